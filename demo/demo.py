"""What `make demo` runs: the whole job on the shipped model and data, through the commands that everybody has.

Solve for an STM32F746 at 40 % of what keeping every tensor takes, compare the bits with keep-all, and train on the
digits of a new writer under that very schedule, on this machine. A better ONNX file comes out.
"""

from __future__ import annotations

import importlib.util
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
DATA = HERE / "digits_new_writer.npz"
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


def solve(directory: Path) -> None:
    """The schedule, and what it costs."""
    solved = poetc(
        *("solve", HERE / "digits.onnx", "--device", DEVICE, "--budget", BUDGET),
        *("--batch", BATCH, "--optimizer", "sgd", "--lr", "0.03", "--gap", 0, "--time-limit", 20, "-o", directory),
    )
    keep_all = solved["keep_all_peak_bytes"]
    once = format_pj(solved["compute_once_pj"])
    show(
        (
            ("status", f"{solved['status']}, gap {solved['gap']:.2%} of the energy ({solved['solve_seconds']:.1f} s)"),
            ("keep-all peak", format_bytes(keep_all)),
            ("budget", f"{format_bytes(solved['budget_bytes'])} ({solved['budget_bytes'] / keep_all:.0%} of keep-all)"),
            ("peak", format_bytes(solved["peak_bytes"])),
            ("packed arena", format_bytes(solved["arena_bytes"])),
            ("energy of a step", f"{format_pj(solved['energy_pj'])} (computing once: {once})"),
            ("time of a step", f"{format_ns(solved['time_ns'])} on the {DEVICE}, modelled"),
            ("recomputed", recomputed_of(solved["recomputed_operators"], solved["recomputes"], solved["operators"])),
            ("page transfers", f"{solved['page_outs']} out, {solved['page_ins']} in"),
        )
    )


def validate(directory: Path) -> None:
    """The bits of the emitted C, beside those of keeping everything."""
    checked = poetc("validate", directory)
    show((("same bits as keep-all", "yes" if checked["bit_identical_to_keep_all"] else "NO"),))


def train(directory: Path, out: Path) -> dict[str, Any]:
    """Train under the schedule; the answer of `poetc train`."""
    trained = poetc(
        *("train", directory, "--data", f"{DATA}:train_x,train_y", "--validation", f"{DATA}:test_x,test_y"),
        *("--normalize", "0..255", "--epochs", EPOCHS, "-o", out, "--force"),
    )
    before, epochs = trained["before"], trained["epochs"]
    best = epochs[trained["best_epoch"] - 1]
    show(
        (
            ("loss", f"{before['loss']:.3f}  ->  {best['validation_loss']:.3f} on the writer's validation digits"),
            ("accuracy", f"{before['accuracy']:.1%}  ->  {best['validation_accuracy']:.1%} on the same"),
            ("training loss by epoch", ", ".join(f"{row['loss']:.3f}" for row in epochs)),
            ("time of a step", f"{trained['step_ms']:.1f} ms on this machine"),
            ("peak, predicted", f"{trained['peak_predicted_bytes']:,} B"),
            ("peak, measured", f"{trained['peak_measured_bytes']:,} B"),
        )
    )
    return trained


def check_onnx(out: Path) -> None:
    """The accuracy that onnxruntime finds in the new file, where it is installed (`pip install '.[test]'`)."""
    if importlib.util.find_spec("onnxruntime") is None:
        print("  (onnxruntime, where it is installed, finds the same accuracy in it)")
        return
    import onnxruntime

    with np.load(DATA, allow_pickle=False) as archive:
        images, labels = archive["test_x"], archive["test_y"]
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    pixels = images.astype(np.float32) / np.float32(255)
    (logits,) = session.run(None, {session.get_inputs()[0].name: pixels[:, None]})
    accuracy = float((np.asarray(logits).argmax(axis=1) == labels).mean())
    show((("onnxruntime's accuracy", f"{accuracy:.1%}"),))


def main() -> None:
    OUT.mkdir(exist_ok=True)
    solved, out = OUT / "digits.poetc", OUT / "digits-trained.onnx"
    solve(solved)
    validate(solved)
    trained = train(solved, out)
    print(f"\nThe trained model: {os.path.relpath(out)}")
    check_onnx(out)
    print(f"\nThe report, with curves: {os.path.relpath(trained['report'])}")


if __name__ == "__main__":
    main()
