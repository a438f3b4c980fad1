"""Language models with adapters: RAM, modelled and measured speed, beside PyTorch with peft.

    bench/setup_peers peft
    python -m bench.language_models modelled build/peers/peft/bin/python build/language-models [--models NAME ...]
    python -m bench.language_models measured build/peers/peft/bin/python build/language-models [--threads 2]
    bench/setup_peers llama
    bench/setup_peers
    python -m bench.language_models peers build/peers/{peft,llama,mnn}/bin/python build/language-models [--threads 2]
    python -m bench.language_models scores build/peers/llama/bin/python SmolLM2-135M-Instruct.Q4_1.gguf

The models have the published configurations and random weights; frozen matrices are rounded to 4 bits. A row is a
model and a number of tokens. Its budget is the keep-all peak without tensors that are near-free to compute again.
*modelled* solves the rows, and *measured* compiles what was solved. Both engines are processes of their own there,
which take turns, a step each, on one thread. Rows that are there are kept, so that a run which was interrupted goes
on. *peers* does the same with all engines that train a decoder. *scores* compares an imported GGUF file with
llama.cpp. docs/results/language-models.md has the tables.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench._command import Rows, Table, main
from bench.kernels import CFLAGS
from bench.memory import peak_bytes

HERE = Path(__file__).resolve().parent
MODELS = ("SmolLM2-135M", "SmolLM2-360M", "Gemma-3-270M", "Qwen3-0.6B")
LENGTHS = (128, 256)
RANK, OPTIMIZER, FROZEN, DEVICE, OTHERS = 8, "adamw", "int4", "rpi4", ("rpi5", "rpizero2w")
TEXT = (
    "The quick brown fox jumps over the lazy dog, and 17 days later in Zürich it reads 语言模型"
    " <- def f(x): return x**2"
)
SEARCH_S = 15.0  # of each of two searches for the least RAM
PLANNED = (
    "keep_all_bytes", "budget_bytes", "least_bytes", "streamed_bytes", "ratio", "gap",
    "threads", "tool_s", "tool_bytes", *(f"{name}_{what}" for name in (DEVICE, *OTHERS) for what in ("s", "j")),
)  # fmt: skip
MEASURED = ("busy_s", "peer_busy_s", "memory_bytes", "peer_bytes", "load")
KEYS = ("model", "tokens")


def _request(model: Path, device: str) -> Any:
    from poetc.commands.requests import ModelRequest, SolveRequest
    from poetc.training import TrainingOptions

    options = TrainingOptions(lora=(str(RANK),), optimizer=OPTIMIZER, frozen=FROZEN, random_weights=0)
    return SolveRequest(model=ModelRequest(source=model, device=device, training=options))


def look(model: Path) -> dict[str, Any]:
    """The least RAM that is found, without streams and with them, and the budget of the row."""
    from poetc.commands.requests import read_problem
    from poetc.commands.small_ram import Step, least_streamed
    from poetc.devices import load_profile
    from poetc.devices.saved import saved_bytes, saved_near_free
    from poetc.scheduling import keep_all_peak_bytes

    request = _request(model, DEVICE)
    graph, step, _, problem = read_problem(request)
    keep_all = keep_all_peak_bytes(problem)
    near_free = saved_near_free(problem, step).saved_bytes
    least = request.planner(SEARCH_S).search_ram(problem, SEARCH_S).result.ram_bytes
    whole = Step(graph=step, model=graph, problem=problem)
    streamed = least_streamed(request, whole, load_profile(DEVICE), least, SEARCH_S)
    return {
        "keep_all_bytes": keep_all,
        "budget_bytes": keep_all - saved_bytes(problem) + near_free,
        "least_bytes": least,
        "streamed_bytes": None if streamed is None else streamed[1].result.ram_bytes,
    }


def price(solved: Path) -> dict[str, Any]:
    """Time and energy of the schedule on the other devices, in as many threads; 0 where it does not fit."""
    import poetc
    from poetc.commands.requests import ways_of
    from poetc.devices import build_problem, load_profile
    from poetc.planning.kernels import fastest
    from poetc.scheduling import trace_of

    made, found = poetc.open_solution(solved).artifact, {}
    assert made.graph is not None
    for name in OTHERS:
        profile = load_profile(name)
        fits = made.problem.budget_bytes <= profile.ram_bytes
        problem = build_problem(made.graph, profile, budget_bytes=2 * made.problem.budget_bytes)
        ways = ways_of(_request(solved, name), problem, made.graph, profile)
        way = fastest(ways.get(int(made.summary["threads"]), problem))
        # Tensors are where the schedule has them at the start of a step.
        trace = trace_of(replace(way, tensors=made.problem.tensors), made.schedule)
        found |= {f"{name}_s": fits * trace.time_ns / 1e9, f"{name}_j": fits * trace.energy_pj / 1e12}
    return found


def build(solved: Path, built: Path) -> dict[str, Any]:
    """The step of a schedule, compiled for this machine."""
    import poetc
    from poetc.commands.programs import graph_of, training_program
    from poetc.measure import compile_library

    made = poetc.open_solution(solved).artifact
    program, values = replace(training_program(made), probes={}), dict(graph_of(made).values)
    built.mkdir(exist_ok=True)
    library = compile_library([program], values, built, cflags=CFLAGS, threads=2)
    (built / "step.pickle").write_bytes(pickle.dumps((library, program, values)))
    return {}


def planned(model: Path, folder: Path, limit_s: float) -> dict[str, Any]:
    """The answer of the tool for a row, and its own processor time and memory."""
    found = _of_process("look", model, kept=model.with_suffix(".look.json"))
    solved = folder / f"{model.stem}.solved"
    words = ["solve", model, "--random-weights", 0, "--lora", RANK, "--optimizer", OPTIMIZER, "--frozen", FROZEN]
    words += ["--device", DEVICE, "--budget", found["budget_bytes"], "--no-paging", "--time-limit", limit_s]
    words += ["-o", solved, "--force"]
    found |= _of_process("tool", *words, kept=model.with_suffix(".tool.json"))
    said = json.loads((solved / "summary.json").read_text())
    found |= {"ratio": said["time_ns"] / said["compute_once_ns"], "gap": said["gap"], "threads": said["threads"]}
    found |= {f"{DEVICE}_j": said["energy_pj"] / 1e12, f"{DEVICE}_s": said["time_ns"] / 1e9}
    return found | _of_process("price", solved, kept=model.with_suffix(".price.json"))


def tool(*words: str) -> dict[str, Any]:
    """Processor time and memory of a command."""
    ended = subprocess.run([sys.executable, "-m", "poetc", *words, "--quiet"], check=False)
    if ended.returncode:
        raise SystemExit(f"poetc {' '.join(words)} failed")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"tool_s": used.ru_utime + used.ru_stime, "tool_bytes": used.ru_maxrss << 10}


def train(built: Path) -> None:
    """A worker: a step a line, its processor time in ms, the loss, memory of the process in bytes, and time in ms."""
    from poetc.measure import HostModel
    from poetc.program import sample_inputs

    library, program, values = pickle.loads((built / "step.pickle").read_bytes())
    inputs = sample_inputs(program, 0)
    with HostModel(library, [program], values) as model:
        print("ready", flush=True)
        for _ in sys.stdin:
            wall, busy = time.perf_counter(), time.process_time()
            loss = model.run(inputs)
            busy, wall = time.process_time() - busy, time.perf_counter() - wall
            print(1e3 * busy, loss, peak_bytes(), 1e3 * wall, flush=True)


def _of_process(kind: str, *words: object, kept: Path | None = None) -> dict[str, Any]:
    """The answer of a worker; one that a file holds is not asked for again."""
    if kept is not None and kept.exists():
        held: dict[str, Any] = json.loads(kept.read_text())
        return held
    command = [sys.executable, "-m", "bench.language_models", "--worker", kind, "--", *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{kind} failed")
    if kept is not None:
        kept.write_text(done.stdout.splitlines()[-1])
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def work(kind: str, first: str, rest: tuple[str, ...] = ()) -> None:
    """The work of a process of its own; a line of JSON is its answer."""
    if kind == "train":
        train(Path(first))
        return
    if kind == "tool":
        found = tool(first, *rest)
    elif kind == "build":
        found = build(Path(first), Path(rest[0]))
    else:
        found = look(Path(first)) if kind == "look" else price(Path(first))
    print(json.dumps(found))


def _start(*words: object, threads: int = 1) -> subprocess.Popen[str]:
    counted = dict.fromkeys(("POETC_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    environment = {**os.environ, **counted}
    process = subprocess.Popen(
        list(map(str, words)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ready\n":
            return process
    raise SystemExit(f"{words[:4]} failed")


def _turn(process: subprocess.Popen[str]) -> tuple[float, ...]:
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return tuple(map(float, process.stdout.readline().split()))


def turns(torch: str, name: str, tokens: int, built: Path, rounds: int, threads: int) -> dict[str, Any]:
    """Steps of both engines in turn: the least time of each, and the memory of the process.

    The time is the processor's with one thread, and that of the clock with several.
    """
    own = _start(sys.executable, "-m", "bench.language_models", "--worker", "train", built, threads=threads)
    words = (torch, "-P", HERE / "peer_language_models.py", "run", name, tokens, "float32")
    peer = _start(*words, threads=threads)
    times = [(_turn(own), _turn(peer)) for _ in range(rounds + 1)][1:]  # the first is not counted
    for process in (own, peer):
        process.kill()
    busy, peer_busy = (min(row[k][0 if threads == 1 else 3] for row in times) / 1e3 for k in (0, 1))
    memory, peer_memory = (int(times[-1][k][2]) for k in (0, 1))
    found = {"busy_s": busy, "peer_busy_s": peer_busy, "memory_bytes": memory, "peer_bytes": peer_memory}
    return found | {"load": os.getloadavg()[0]}


def modelled(
    torch: str,
    folder: Path,
    *,
    models: tuple[str, ...] = MODELS,
    lengths: tuple[int, ...] = LENGTHS,
    limit_s: float = 60.0,
) -> Rows:
    """RAM, speed and energy of schedules on the devices."""
    held = Table(folder / "modelled.csv", (*KEYS, *PLANNED), KEYS)
    yield (
        "model, tokens", "least RAM; streamed, MB", "RAM, MB (of keep-all; time)", "gap",
        *(f"{device}: tokens/s; J a token" for device in (DEVICE, *OTHERS)), "tool, s; GB",
    )  # fmt: skip
    for tokens, name in product(lengths, models):
        row = held.rows.get((name, str(tokens)))
        if row is None:
            model = _exported(torch, folder, name, tokens)
            row = held.add({"model": name, "tokens": tokens, **planned(model, folder, limit_s)})
        yield _modelled_cells(row)


def measured(
    torch: str,
    folder: Path,
    *,
    models: tuple[str, ...] = MODELS,
    lengths: tuple[int, ...] = LENGTHS,
    rounds: int = 2,
    threads: int = 1,
) -> Rows:
    """Steps of both engines on this machine, with the schedules of *modelled*: in threads by the clock."""
    held = Table(folder / ("measured.csv" if threads == 1 else f"measured-{threads}.csv"), (*KEYS, *MEASURED), KEYS)
    yield "model, tokens", "poetc, tokens/s", "PyTorch", "poetc's process, MB", "PyTorch's"
    for tokens, name in product(lengths, models):
        row, at = held.rows.get((name, str(tokens))), folder / f"{name}-{tokens}"
        if row is None:
            if not (built := Path(f"{at}.built")).exists():
                _of_process("build", f"{at}.solved", built)
            row = held.add({"model": name, "tokens": tokens, **turns(torch, name, tokens, built, rounds, threads)})
        yield _measured_cells(row)


def peers(
    torch: str,
    llama: str,
    mnn: str,
    folder: Path,
    *,
    model: str = MODELS[0],
    tokens: int = LENGTHS[0],
    rounds: int = 5,
    threads: int = 1,
) -> Rows:
    """Steps of all engines in turn: the median processor time of each, and with threads that of the clock."""
    at = folder / f"{model}-{tokens}"
    planned(_exported(torch, folder, model, tokens), folder, 60.0)
    if not (plain := Path(f"{at}.f32.solved")).exists():
        words = ["solve", f"{at}.onnx", "--random-weights", 0, "--lora", RANK, "--optimizer", OPTIMIZER]
        _of_process("tool", *words, "--device", DEVICE, "--no-paging", "--time-limit", 20, "-o", plain)
    engines = dict[str, tuple[int, tuple[object, ...]]]()
    for name, solved in (("poetc, int4", Path(f"{at}.solved")), ("poetc, f32", plain)):
        if not (built := solved.with_suffix(".built")).exists():
            _of_process("build", solved, built)
        engines[name] = tokens, (sys.executable, "-m", "bench.language_models", "--worker", "train", built)
    for name, form in (("PyTorch, f32", "float32"), ("PyTorch, bf16", "bfloat16")):
        engines[name] = tokens, (torch, "-P", HERE / "peer_language_models.py", "run", model, tokens, form)
    engines["MNN, f32"] = tokens, (mnn, "-P", HERE / "peer_mnn_decoder.py", model, tokens)
    words = [llama, "-P", HERE / "peer_llama_cpp.py", "train", model, tokens, folder / f"{model}.gguf"]
    engines["llama.cpp, f32, all weights"] = -(-tokens // 256) * 256, tuple(words)
    workers = {name: _paused(_start(*words, threads=threads)) for name, (_, words) in engines.items()}
    found = dict[str, list[tuple[float, ...]]]()
    for name in [name for _ in range(rounds + 1) for name in workers]:
        workers[name].send_signal(signal.SIGCONT)
        found.setdefault(name, []).append(_turn(workers[name]))
        _paused(workers[name])
    for process in workers.values():
        process.kill()
    yield "engine", "tokens a step", "s a step", "tokens/s", "poetc's over it", "process, MB", "losses"
    paces = dict[str, float]()
    for name, (count, _) in engines.items():
        rows = found[name][1:]  # the first is not counted
        step_s = statistics.median(row[0 if threads == 1 else 3] for row in rows) / 1e3
        paces[name] = count / step_s
        ratio = next(iter(paces.values())) / paces[name]
        losses = f"{found[name][0][1]:.3f} to {rows[-1][1]:.3f}"
        yield name, count, f"{step_s:.3f}", f"{paces[name]:.1f}", f"{ratio:.2f}", f"{rows[-1][2] / 1e6:,.0f}", losses


def scores(llama: str, gguf: Path, *, text: str = TEXT) -> Rows:
    """Logits of an imported GGUF file in onnxruntime beside those of llama.cpp, with its blocks and with floats."""
    import numpy as np
    import onnxruntime
    from tokenizers import Tokenizer

    from poetc.commands.gguf import import_gguf

    with TemporaryDirectory() as scratch:
        model, numbers = Path(scratch) / "model.onnx", Path(scratch) / "scores.npz"
        import_gguf(gguf, model)
        subprocess.run([llama, "-P", HERE / "peer_llama_cpp.py", "scores", gguf, text, numbers], check=True)
        held, tokenizer = np.load(numbers), Tokenizer.from_file(str(model.with_name("tokenizer.json")))
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        (found,) = session.run(["logits"], {"input_ids": held["ids"][None].astype(np.int64)})
    own = np.asarray(found[0], np.float64)
    same = "the same" if tokenizer.encode(text).ids == list(held["ids"]) else "others"
    yield "llama.cpp", f"tokens: {same}", "largest logit", "largest difference", "root mean square", "same first token"
    for name, theirs in (("its blocks", held["own"]), ("floats", held["floats"])):
        apart = np.abs(own - theirs)
        first = int((own.argmax(1) == theirs.argmax(1)).sum())
        root = np.sqrt((apart**2).mean())
        yield name, len(own), f"{np.abs(own).max():.2f}", f"{apart.max():.1e}", f"{root:.1e}", f"{first} of {len(own)}"


def _paused(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    """A worker that waits for its turn without spinning threads."""
    process.send_signal(signal.SIGSTOP)
    return process


def _exported(torch: str, folder: Path, name: str, tokens: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    model = folder / f"{name}-{tokens}.onnx"
    if not model.exists():
        words = [torch, "-P", str(HERE / "peer_language_models.py"), "export", name, str(tokens), str(model)]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return model


def _modelled_cells(row: Mapping[str, str]) -> tuple[str, ...]:
    tokens, of = int(row["tokens"]), {key: float(row[key] or "nan") for key in PLANNED}
    mega = {key: f"{of[key] / 1e6:,.1f}" for key in of if key.endswith("bytes")}
    share = of["budget_bytes"] / of["keep_all_bytes"]
    return (
        f"{row['model']}, {tokens}",
        f"{mega['least_bytes']}; {mega['streamed_bytes']}",
        f"{mega['budget_bytes']} ({100 * share:.0f} %; {of['ratio']:.3f} x)",
        f"{100 * of['gap']:.2f} %",
        *(_pace(tokens, of[f"{device}_s"], of[f"{device}_j"]) for device in (DEVICE, *OTHERS)),
        f"{of['tool_s']:.0f}; {of['tool_bytes'] / 1e9:.2f}",
    )


def _pace(tokens: int, time_s: float, energy_j: float) -> str:
    return f"{tokens / time_s:.1f}; {energy_j / tokens:.2f}" if time_s else "does not fit"


def _measured_cells(row: Mapping[str, str]) -> tuple[str, ...]:
    tokens, of = int(row["tokens"]), {key: float(row[key]) for key in MEASURED}
    paces = (f"{tokens / of[key]:.1f}" for key in ("busy_s", "peer_busy_s"))
    return f"{row['model']}, {tokens}", *paces, *(f"{of[key] / 1e6:,.1f}" for key in ("memory_bytes", "peer_bytes"))


if __name__ == "__main__":
    main(modelled, measured, peers, scores, worker=work)
