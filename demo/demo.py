"""What `make demo` runs: the whole job on the shipped model and data, through the commands that everybody has.

Solve for an STM32F746 at 40 % of what keeping every tensor takes, emit C, build it with the compiler of this machine,
train it on the digits of a new writer, measure.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from poetc.devices import format_bytes, format_ns, format_pj
from poetc.reporting import recomputed_of

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
BATCH = 16
EPOCHS = 5
DEVICE = "stm32f746"
BUDGET = "40%"


def poetc(*arguments: object) -> dict[str, Any]:
    """Run a command and return its JSON answer; its messages and progress go to the terminal."""
    words = [str(a) for a in arguments]
    print("\n$ poetc " + " ".join(os.path.relpath(w) if w.startswith("/") else w for w in words), flush=True)
    done = subprocess.run([sys.executable, "-m", "poetc", *words, "--json"], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def show(rows: Iterable[tuple[str, str]]) -> None:
    for label, value in rows:
        print(f"  {label:<26}{value}")


def write_digits(path: Path, pixels: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> None:
    """As personalise.c reads it."""
    with path.open("wb") as file:
        file.write(np.int32(len(labels)).tobytes())
        file.write((pixels.astype(np.float32) / np.float32(255)).tobytes())
        file.write(labels.astype(np.int32).tobytes())


def run(*command: object) -> None:
    words = [str(word) for word in command]
    print("\n$ " + " ".join(os.path.relpath(w) if w.startswith("/") else w for w in words), flush=True)
    if subprocess.run(words, check=False).returncode:
        sys.exit(f"demo: {words[0]} failed")


def build(source: Path) -> Path:
    """The emitted library, and the demonstration's own main()."""
    program = OUT / "personalise"
    run("make", "--no-print-directory", "-s", "-C", source, "libmodel.a")
    include = (f"-I{os.path.relpath(source / folder)}" for folder in (".", "runtime/include", "port"))
    flags = ("-std=c99", "-O2", "-Wall", "-Wextra", "-pedantic", *include)
    run(os.environ.get("CC", "cc"), *flags, "-o", program, HERE / "personalise.c", source / "libmodel.a", "-lm")
    return program


def train(program: Path) -> dict[str, dict[str, float]]:
    """Run it; its lines, by their first word."""
    data = np.load(HERE / "digits_new_writer.npz", allow_pickle=False)
    for part in ("train", "test"):
        write_digits(OUT / f"{part}.bin", data[f"{part}_x"], data[f"{part}_y"])
    print(f"\n$ ./personalise train.bin test.bin {EPOCHS}", flush=True)
    done = subprocess.run([program, "train.bin", "test.bin", str(EPOCHS)], cwd=OUT, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit("demo: the training failed")
    measured: dict[str, dict[str, float]] = {}
    for line in done.stdout.decode().splitlines():
        words = [word for word in line.split() if "=" in word]
        measured[line.partition(" " + words[0])[0]] = {k: float(v) for k, _, v in (w.partition("=") for w in words)}
    return measured


def main() -> None:
    OUT.mkdir(exist_ok=True)
    solved_dir = OUT / "digits.poetc"
    training = ("--batch", BATCH, "--optimizer", "sgd", "--lr", "0.03")
    solved = poetc(
        "solve",
        HERE / "digits.onnx",
        "--device",
        DEVICE,
        "--budget",
        BUDGET,
        *training,
        "--gap",
        0,
        "--time-limit",
        20,
        "-o",
        solved_dir,
    )
    keep_all = solved["keep_all_peak_bytes"]
    show(
        (
            ("status", f"{solved['status']}, gap {solved['gap']:.2%} of the energy ({solved['solve_seconds']:.1f} s)"),
            ("keep-all peak", format_bytes(keep_all)),
            ("budget", f"{format_bytes(solved['budget_bytes'])} ({solved['budget_bytes'] / keep_all:.0%} of keep-all)"),
            ("peak", format_bytes(solved["peak_bytes"])),
            ("packed arena", format_bytes(solved["arena_bytes"])),
            (
                "energy of a step",
                f"{format_pj(solved['energy_pj'])} (computing once: {format_pj(solved['compute_once_pj'])})",
            ),
            ("time of a step", f"{format_ns(solved['time_ns'])} on the {DEVICE}, modelled"),
            ("recomputed", recomputed_of(solved["recomputed_operators"], solved["recomputes"], solved["operators"])),
            ("page transfers", f"{solved['page_outs']} out, {solved['page_ins']} in"),
        )
    )
    checked = poetc("validate", solved_dir)
    show(
        (
            ("same bits as keep-all", "yes" if checked["bit_identical_to_keep_all"] else "NO"),
            ("peak, predicted", f"{checked['peak_predicted_bytes']:,} B"),
            ("peak, measured", f"{checked['peak_measured_bytes']:,} B"),
        )
    )
    poetc("emit", solved_dir, "--target", "host", "-o", OUT / "src")
    measured = train(build(OUT / "src"))
    before, after = measured["before"], measured["after"]
    losses = [measured[f"epoch {n}"]["loss"] for n in range(1, EPOCHS + 1)]
    show(
        (
            ("loss", f"{before['loss']:.3f}  ->  {after['loss']:.3f} on the writer's held-out digits"),
            ("accuracy", f"{before['accuracy']:.1%}  ->  {after['accuracy']:.1%} on the same"),
            ("training loss by epoch", ", ".join(f"{loss:.3f}" for loss in losses)),
            (
                "arena, highest byte used",
                f"{measured['memory']['highest']:,.0f} of {measured['memory']['arena']:,.0f} B",
            ),
            ("pages moved", f"{measured['pages']['out']:.0f} out, {measured['pages']['in']:.0f} in"),
        )
    )
    shown = os.path.relpath(solved_dir)
    print(f"\nThe report: {shown}/report.html   (or: poetc report {shown})")


if __name__ == "__main__":
    main()
