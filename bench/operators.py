"""`make bench-operators`: seconds, gaps and memory of `poetc solve` against the number of operators.

The network is a decoder with the sizes of SmolLM2-135M and any number of layers. Its weights are absent, so `poetc`
takes them with `--random-weights`. Adapters with magnitudes (`--lora 8:dora`) make 232 operators of a layer. Every row
is a process of its own, and its clock counts processor time of all threads. The last line states the exponent: the
slope of a line through the logarithms of operators and seconds.

    python -m bench.operators model LAYERS FILE     writes the decoder
    python -m bench.operators first                 stops each row at its first schedule that packs
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bench._command import Rows, Table, main
from bench.solver import BY_PROCESSOR_TIME, commit

WIDTH, INNER, HEADS, GROUPS, HEAD, VOCABULARY, TOKENS = 576, 1536, 9, 3, 64, 49152, 128
_MICROSOFT = "com.microsoft"


class _Decoder:
    """A graph that grows node by node. Each node takes names of tensors and gives that of its result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.tensors: list[onnx.TensorProto] = []

    def add(self, kind: str, inputs: Sequence[str], output: str = "", domain: str = "", **attributes: object) -> str:
        name = output or f"{kind.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def hold(self, name: str, array: np.ndarray) -> str:
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value="absent.bin")
        self.tensors.append(tensor)
        return name

    def dense(self, x: str, name: str, inputs: int, outputs: int) -> str:
        return self.add("MatMul", [x, self.weight(f"{name}.weight", inputs, outputs)])

    def norm(self, x: str, name: str) -> str:
        held = self.hold(f"{name}.weight", np.ones(WIDTH, np.float32))
        return self.add("SimplifiedLayerNormalization", [x, held], axis=-1, epsilon=1e-5, stash_type=1)

    def layer(self, x: str, at: str) -> str:
        y = self.norm(x, f"{at}.input_layernorm")
        widths = {"q": HEADS * HEAD, "k": GROUPS * HEAD, "v": GROUPS * HEAD}
        q, k, v = (self.dense(y, f"{at}.self_attn.{of}_proj", WIDTH, n) for of, n in widths.items())
        inputs = [q, k, v, "", "", "last", "total", "cos_cache", "sin_cache"]
        heads = {"num_heads": HEADS, "kv_num_heads": GROUPS, "do_rotary": 1, "scale": HEAD**-0.5}
        y = self.add("GroupQueryAttention", inputs, domain=_MICROSOFT, **heads)
        x = self.add("Add", [x, self.dense(y, f"{at}.self_attn.o_proj", HEADS * HEAD, WIDTH)])
        y = self.norm(x, f"{at}.post_attention_layernorm")
        gate, up = (self.dense(y, f"{at}.mlp.{of}_proj", WIDTH, INNER) for of in ("gate", "up"))
        gate = self.add("Mul", [gate, self.add("Sigmoid", [gate])])
        return self.add("Add", [x, self.dense(self.add("Mul", [gate, up]), f"{at}.mlp.down_proj", INNER, WIDTH)])


def decoder(layers: int) -> onnx.ModelProto:
    """A decoder as Llama's with `layers` layers. The head shares the table of tokens."""
    net = _Decoder()
    angles = np.arange(TOKENS)[:, None] * 10000.0 ** (-np.arange(0, HEAD, 2) / HEAD)
    net.hold("cos_cache", np.cos(angles).astype(np.float32))
    net.hold("sin_cache", np.sin(angles).astype(np.float32))
    net.hold("last", np.array([TOKENS - 1], np.int32))
    net.hold("total", np.array(TOKENS, np.int32))
    table = net.weight("model.embed_tokens.weight", VOCABULARY, WIDTH)
    x = net.add("Gather", [table, "input_ids"])
    for number in range(layers):
        x = net.layer(x, f"model.layers.{number}")
    x = net.norm(x, "model.norm")
    net.add("MatMul", [x, net.add("Transpose", [table], perm=[1, 0])], "logits")
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, TOKENS])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, TOKENS, VOCABULARY])
    graph = helper.make_graph(net.nodes, "decoder", [ids], [logits], net.tensors)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def model(layers: int, file: Path) -> None:
    """Write the decoder."""
    onnx.save(decoder(layers), file)


COLUMNS = (
    "layers",
    "budget",
    "limit_s",
    "processors",
    "adapters",
    "operators",
    "first_schedule_s",
    "within_half_per_cent_s",
    "gap",
    "total_s",
    "most_memory_mb",
    "status",
    "commit",
)


KEY = COLUMNS[:5]


FIRST = ("layers", "operators", "budget", "first_schedule_s", "most_memory_mb")
OF_LAYER, BESIDE = 232, 9  # operators of a layer with adapters and magnitudes; so many more are in all layers
LOOK_S = 0.05  # between looks at the log


def _command(out: str, layers: int, budget: str, limit_s: float, processors: str, adapters: str) -> list[str]:
    file = Path(out, "model.onnx")
    model(layers, file)
    training = ["--random-weights", "0", "--lora", adapters, "--optimizer", "sgd"]
    limits = ["--device", "rpi4", "--processors", processors, "--budget", budget, "--time-limit", str(limit_s)]
    files = ["-o", f"{out}/solved", "--log", f"{out}/log.jsonl", "--json"]
    return [sys.executable, "-c", BY_PROCESSOR_TIME, "solve", str(file), *training, *limits, *files]


def _first(layers: int, budget: str, limit_s: float) -> dict[str, object]:
    """The processor time of the whole process, start of Python included, until its log names a schedule that packs."""
    with tempfile.TemporaryDirectory() as out:
        command, log = _command(out, layers, budget, limit_s, "main", "8:dora"), Path(out, "log.jsonl")
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            there = False
            while not there and process.poll() is None:
                time.sleep(LOOK_S)
                rows = log.read_text().splitlines() if log.exists() else []
                there = any(json.loads(line)["best"] is not None for line in rows)
            process.kill()
            _, _, used = os.wait4(process.pid, 0)
            process.returncode = 0
    operators = OF_LAYER * layers - BESIDE
    seconds = round(used.ru_utime + used.ru_stime, 1) if there else ""
    return dict(zip(FIRST, (layers, operators, budget, seconds, used.ru_maxrss // 1024), strict=True))


def first(
    layers: tuple[int, ...] = (2, 4, 9, 22, 43, 86, 96), *, budgets: str = "60%,30%", time_limit: float = 300.0
) -> Rows:
    """Seconds and memory until the first schedule that packs, about 500 to 22,000 operators."""
    yield FIRST
    for budget in budgets.split(","):
        rows = []
        for count in layers:
            rows.append({name: str(value) for name, value in _first(count, budget, time_limit).items()})
            yield [rows[-1][name] for name in FIRST]
        power = exponent(rows, "first_schedule_s")
        yield f"{budget}: first_schedule_s grows with the operators to the power {power:.2f}"


def _row(layers: int, budget: str, limit_s: float, processors: str, adapters: str) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as out:
        command = _command(out, layers, budget, limit_s, processors, adapters)
        log, answer = Path(out, "log.jsonl"), Path(out, "answer.json")
        with answer.open("w") as told, subprocess.Popen(command, stdout=told) as process:
            _, status, used = os.wait4(process.pid, 0)  # with what this process alone has used
            process.returncode = os.waitstatus_to_exitcode(status)
        said = json.loads(answer.read_text() or "{}")
        if process.returncode:
            sys.exit(f"{layers} layers: {said.get('error', f'exit code {process.returncode}')}")
        rows = [json.loads(line) for line in log.read_text().splitlines()]
    first = next((r["seconds"] for r in rows if (r["best"], r["unpacked"]) != (None, None)), None)
    within = next((r["seconds"] for r in rows if r["gap"] is not None and r["gap"] <= 0.005), None)
    row = dict(zip(KEY, (layers, budget, limit_s, processors, adapters), strict=True)) | {"commit": commit()}
    row |= {"first_schedule_s": first, "within_half_per_cent_s": within, "total_s": used.ru_utime + used.ru_stime}
    row |= {name: said.get(name) for name in ("operators", "gap", "status")}
    return row | {"most_memory_mb": used.ru_maxrss // 1024}


def exponent(rows: Sequence[Mapping[str, str]], column: str) -> float:
    """The slope of a line through the logarithms of operators and of a column."""
    points = [(float(r["operators"]), float(r[column])) for r in rows if r["operators"] and r[column]]
    if len(points) < 2:
        return float("nan")
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def run(
    layers: tuple[int, ...] = (2, 6, 12, 24, 48, 96),
    *,
    budgets: str = "60%",
    time_limit: float = 300.0,
    processors: str = "main",
    adapters: str = "8:dora",
    csv: Path = Path("build/bench-operators.csv"),
) -> Rows:
    """Solve each number of layers within each budget. Rows that the CSV file has are not run again."""
    done = Table(csv, COLUMNS, KEY)
    yield COLUMNS
    for budget in budgets.split(","):
        rows = []
        for count in layers:
            known = done.rows.get((str(count), budget, str(time_limit), processors, adapters))
            rows.append(known or done.add(_row(count, budget, time_limit, processors, adapters)))
            yield [rows[-1][name] for name in COLUMNS]
        for column in ("first_schedule_s", "within_half_per_cent_s") if len(rows) > 1 else ():
            yield f"{budget}: {column} grows with the operators to the power {exponent(rows, column):.2f}"


if __name__ == "__main__":
    main(model, first, run)
