"""Every convolution and product of ResNet-18 and BERT alone, beside the core's peak: `make bench-shapes`.

The kernels are those of the emitted step, compiled as there, called with the same numbers; each is timed alone, many
times, with the operands still in the cache where they fit, and once more with weights from beyond it: many copies of
them, taken in turn. The peak of fused multiply-adds is measured next to each kernel, since a shared machine's speed
changes. One thread on one processor. Shares count the multiply-accumulates of a direct convolution, also where
Winograd's filters make fewer.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np

from bench._command import main, markdown
from bench.kernels import CLASSES, build_peak, cflags, export, lower, peak_macs
from poetc.graph import Operator, Phase, Role, TrainingGraph
from poetc.kernels.convolution_shape import ConvolutionParameters
from poetc.kernels.gemm.selection import PackedProduct, Product, SgdProduct
from poetc.measure._host import compile_library
from poetc.ops import bind, spec
from poetc.program import Call, Operand
from poetc.runtime import runtime_directory
from poetc.runtime.layout import ALIGNMENT_BYTES, align

ROUND_S = 0.03  # of calls, before it is the other column's turn
FEWEST = 4  # calls in a round
AGAIN = ", batch norm again"  # a gradient of weight that makes its convolution's input while it reads
DIRECTIONS = ("forward", "gradient of weight", "weight moved", "gradient of input")

TIMER = r"""
#include <time.h>
#include "poetc.h"
/* The time of each of `calls` calls, whose operands are the next of `sets` rows of `refs`, `operands` long. */
int poetc_bench_time(poetc_kernel kernel, poetc_call *call, const poetc_ref *refs, int operands, int sets, int calls,
                     int64_t *ns)
{
    static int next;
    for (int i = 0; i < calls; i++) {
        struct timespec a, b;
        call->refs = refs + (next++ % sets) * operands;
        clock_gettime(CLOCK_MONOTONIC, &a);
        int code = kernel(call);
        clock_gettime(CLOCK_MONOTONIC, &b);
        if (code)
            return code;
        ns[i] = (b.tv_sec - a.tv_sec) * 1000000000LL + (b.tv_nsec - a.tv_nsec);
    }
    return 0;
}
"""


class _Call(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in ("refs", "ints", "floats", "arena", "flash")]


@dataclass(slots=True)
class Kernel:
    """A call of the step. `weights`: which of its operands come from beyond the cache in the second column."""

    call: Call
    layer: str
    direction: str
    macs: int
    library: Path
    weights: tuple[int, ...]
    state: frozenset[int]  # operands that hold the learning rate
    count: int = 1  # of such calls in a step
    peaks: list[float] = field(default_factory=list)
    warm_ns: list[int] = field(default_factory=list)
    beyond_ns: list[int] = field(default_factory=list)


def kernels_of(step: TrainingGraph, calls: list[Call], library: Path) -> dict[tuple[str, tuple[int, ...]], Kernel]:
    """Convolutions and products by symbol and numbers, in the order of the step."""
    operators = {op.name: op for op in step.operators}
    found: dict[tuple[str, tuple[int, ...]], Kernel] = {}
    for call in calls:
        if not call.kind.startswith(("Conv", "MatMul")):
            continue
        op = operators[call.operator]
        layer, direction = _names(op, step, call)
        key = (call.symbol, call.ints)
        if key in found and found[key].direction == direction:
            found[key].count += 1
            continue
        roles = [step.tensors[t].role for t in op.inputs]
        operands = (*call.inputs, *call.outputs)
        weights = {i for i, role in enumerate(roles) if role is Role.PARAMETER and len(operands[i].type.shape) > 1}
        if direction in DIRECTIONS[1:3]:
            weights.add(len(call.inputs))
        state = frozenset(i for i, role in enumerate(roles) if role is Role.OPTIMIZER_STATE)
        macs = spec(op.kind).work(bind(op, step.tensors)).macs
        found[key] = Kernel(call, layer, direction, macs, library, tuple(sorted(weights)), state)
    return found


def _names(op: Operator, step: TrainingGraph, call: Call) -> tuple[str, str]:
    """What a reader calls the layer, and what the kernel makes of it."""
    p = spec(op.kind).kernel(bind(op, step.tensors)).parameters
    if isinstance(p, ConvolutionParameters):
        c = p.convolution
        stride = f" / {c.stride_h}" if c.stride_h > 1 else ""
        layer = f"{c.channels} to {c.outputs} of {c.height} x {c.width}, {c.kernel_h} x {c.kernel_w}{stride}"
        if call.kind == "Conv":
            return layer, DIRECTIONS[0]
        if call.kind == "ConvGradInput":
            return layer, DIRECTIONS[3]
        again = AGAIN if "_norm" in call.symbol else ""
        return layer + again, DIRECTIONS[2 if call.kind.endswith("Sgd") else 1]
    assert isinstance(p, Product | PackedProduct | SgdProduct)
    if isinstance(p, SgdProduct):  # rows of the weights, their columns, terms
        return f"dense, {p.columns} to {p.rows}, {p.depth} rows", DIRECTIONS[2]
    if op.outputs[0] in step.gradients.values():
        return f"dense, {p.columns} to {p.rows}, {p.depth} rows", DIRECTIONS[1]
    trained = any(step.tensors[t].role is Role.PARAMETER for t in op.inputs)
    if trained and op.phase is Phase.FORWARD:
        return f"dense, {p.depth} to {p.columns}, {p.rows} rows", DIRECTIONS[0]
    if trained:
        return f"dense, {p.columns} to {p.depth}, {p.rows} rows", DIRECTIONS[3]
    if isinstance(p, PackedProduct):
        batches, first, second = p.matrices, p.strides.a_term != 1, p.strides.b_column != 1
    else:
        assert isinstance(p, Product)
        batches, first, second = math.prod(loop[0] for loop in p.batch), p.trans_a, p.trans_b
    turned = " (first turned)" if first else " (second turned)" if second else ""
    return f"attention, {batches} of {p.rows} x {p.depth} x {p.columns}{turned}", DIRECTIONS[
        0 if op.phase is Phase.FORWARD else 3
    ]


class Bench:
    """A kernel with operands of its own."""

    def __init__(self, kernel: Kernel, timer: ctypes.CDLL, beyond_bytes: int) -> None:
        self.kernel, self._timer = kernel, timer
        call = kernel.call
        self._function = getattr(ctypes.CDLL(str(kernel.library)), call.symbol)
        operands: list[Operand] = [*call.inputs, *call.outputs, *([call.workspace] if call.workspace else [])]
        places: dict[tuple[int, int], int] = {}  # what shares its bytes in the step does so here
        end = 0
        for operand in operands:
            key = (operand.space.value == "flash", operand.offset_bytes)
            if key not in places:
                places[key], end = end, align(end + operand.type.size_bytes, 64)
        refs = [places[o.space.value == "flash", o.offset_bytes] // ALIGNMENT_BYTES << 1 for o in operands]
        moved = sum(align(operands[i].type.size_bytes, 64) for i in {refs[i]: i for i in kernel.weights}.values())
        self.sets = max(2, -(-beyond_bytes // moved)) if moved else 0
        self._refs = np.tile(np.array(refs, np.uint32), (1 + self.sets, 1))
        for row in self._refs[1:]:
            for ref in sorted({refs[i] for i in kernel.weights}):
                size_bytes = max(operands[i].type.size_bytes for i in kernel.weights if refs[i] == ref)
                row[[i for i, r in enumerate(refs) if r == ref]] = end // ALIGNMENT_BYTES << 1
                end = align(end + size_bytes, 64)
        memory = np.empty(end + 64, np.uint8)
        start = -memory.ctypes.data % 64
        self._arena = memory[start : start + end]
        random = np.random.default_rng(0)
        pattern = random.standard_normal(1 << 18).astype(np.float32)
        floats = self._arena.view(np.float32)
        for begin in range(0, floats.size, pattern.size):
            floats[begin : begin + pattern.size] = pattern[: floats.size - begin]
        for i, operand in enumerate(call.inputs):
            first = int(self._refs[0, i] >> 1) * ALIGNMENT_BYTES // 4
            values = floats[first : first + operand.type.elements]
            if i in kernel.state:
                values[...] = 1e-9
            elif len(operand.type.shape) == 1:
                values[...] = np.abs(values) + 0.5  # variances are positive
        self._ints, self._floats = np.array(call.ints, np.int32), np.array(call.floats, np.float32)
        self._call = _Call(
            ints=self._ints.ctypes.data, floats=self._floats.ctypes.data, arena=self._arena.ctypes.data, flash=0
        )
        self._keep = memory

    def time(self, beyond: bool, calls: int) -> list[int]:
        ns = np.zeros(calls, np.int64)
        refs = self._refs[1:] if beyond else self._refs[:1]
        code = self._timer.poetc_bench_time(
            self._function,
            ctypes.byref(self._call),
            ctypes.c_void_p(refs.ctypes.data),
            refs.shape[1],
            refs.shape[0],
            calls,
            ctypes.c_void_p(ns.ctypes.data),
        )
        if code:
            raise SystemExit(f"{self.kernel.call.symbol} returned {code}")
        return [int(t) for t in ns]

    def run(self, rounds: int, peak: Path) -> None:
        """Peak, warm and beyond the cache in turns."""
        once_ns = max(1, min(self.time(False, 3)))
        calls = max(FEWEST, round(1e9 * ROUND_S / once_ns))
        for _ in range(rounds):
            self.kernel.peaks.append(peak_macs(peak))
            self.time(False, 2)
            self.kernel.warm_ns += self.time(False, calls)
            if self.sets:
                self.kernel.beyond_ns += self.time(True, calls)


def percent(kernel: Kernel, times_ns: list[int]) -> float:
    return 100e9 * kernel.macs / max(1, min(times_ns)) / max(kernel.peaks)


def measure(source: Path, rounds: int, folder: Path, peak: Path, fused: bool, beyond_bytes: int) -> list[Kernel]:
    """All kernels of a step, timed; gradients of weights with plain descent as in the step, and without."""
    folder.mkdir()
    found: dict[tuple[str, tuple[int, ...]], Kernel] = {}
    for optimizer in ("sgd", "momentum"):  # the latter does not move weights while it makes their gradients
        step, program = lower(source, "100", optimizer)
        library = compile_library([program], step.values, folder / optimizer, cflags=cflags(fused))
        calls = [i for i in program.instructions if isinstance(i, Call)]
        for key, kernel in kernels_of(step, calls, library).items():
            if optimizer == "sgd" or kernel.direction == DIRECTIONS[1]:
                found.setdefault(key, kernel)
    timer_source, timer = folder / "timer.c", folder / "timer.so"
    timer_source.write_text(TIMER)
    include = f"-I{runtime_directory() / 'include'}"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", include, "-o", timer, timer_source], check=True)
    library_of_timer = ctypes.CDLL(str(timer))
    for kernel in found.values():
        Bench(kernel, library_of_timer, beyond_bytes).run(rounds, peak)
    return list(found.values())


def print_table(title: str, kernels: list[Kernel]) -> None:
    print(f"{title}: us least (median), per cent of the peak; warm, then weights from beyond the cache")
    for k in sorted(kernels, key=lambda k: (k.layer, DIRECTIONS.index(k.direction))):
        cells = []
        for times in (k.warm_ns, k.beyond_ns):
            us = f"{min(times) / 1e3:8.1f} ({statistics.median(times) / 1e3:8.1f})" if times else " " * 19
            cells.append(f"{us} {percent(k, times):5.1f} %" if times else " " * 27)
        note = f"{max(k.peaks) / 1e9:5.1f} G {k.count:2} x {k.call.symbol.removeprefix('poetc_op_')}"
        print(f"  {k.layer:64} {k.direction:18} {cells[0]}  {cells[1]}  {note}")
    sys.stdout.flush()


def tables(results: dict[tuple[str, int], list[Kernel]]) -> str:
    """Layers by rows, batches by columns: per cent of the peak, warm and with weights from beyond the cache; W where
    Winograd's filters save multiplications that count all the same.
    """
    batches = sorted({batch for _, batch in results})
    lines: list[str] = []
    for model in dict.fromkeys(name for name, _ in results):
        rows = [[model, *(name for b in batches for name in (f"batch {b}: {DIRECTIONS[0]}", *DIRECTIONS[1:]))]]
        cells: dict[str, dict[tuple[int, str], str]] = defaultdict(dict)
        for batch in batches:
            for k in results.get((model, batch), []):
                beyond = f", {percent(k, k.beyond_ns):.0f}" if k.beyond_ns else ""
                mark = " W" if "winograd" in k.call.symbol else ""
                layer = k.layer.replace(f", {batch} rows", ", a row an example").replace(
                    f", {128 * batch} rows", ", 128 rows an example"
                )
                layer = layer.replace(f"attention, {4 * batch} of", "attention, 4 an example of")
                cells[layer][batch, k.direction] = f"{percent(k, k.warm_ns):.0f}{beyond}{mark}"
        first = {layer: at for at, layer in enumerate(cells)}
        in_order = sorted(cells, key=lambda layer: (first.get(layer.partition(AGAIN)[0], first[layer]), first[layer]))
        for layer in in_order:
            keys = itertools.product(batches, DIRECTIONS)
            rows.append([layer, *(cells[layer].get(key, "") for key in keys)])
        lines += ["", *markdown(rows)]
    return "\n".join(lines).strip() + "\n"


def run(
    *,
    torch: Annotated[str, "a Python that has torch and onnx"] = "build/peers/torch/bin/python",
    models: Annotated[tuple[str, ...], f"of {', '.join(CLASSES)}"] = ("resnet18", "bert"),
    batches: tuple[int, ...] = (1, 8),
    fused: Annotated[bool, "fused multiply-adds"] = False,
    rounds: int = 5,
    beyond_mb: Annotated[int, "of copies of weights, for the second column"] = 64,
    markdown: Annotated[Path | None, "write a table of shares of the peak to this file"] = None,
) -> None:
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    results: dict[tuple[str, int], list[Kernel]] = {}
    with tempfile.TemporaryDirectory(prefix="poetc-bench-") as directory:
        folder = Path(directory)
        peak = build_peak(folder)
        for model, batch in itertools.product(models, batches):
            source, scratch = export(torch, model, batch, folder), folder / f"{model}{batch}"
            kernels = measure(source, rounds, scratch, peak, fused, beyond_mb << 20)
            results[model, batch] = kernels
            numerics = "fused" if fused else "separate, where 50 % is the most"
            print_table(f"{model}, batch {batch}, {numerics}", kernels)
    if markdown:
        markdown.write_text(tables(results), encoding="utf-8")


if __name__ == "__main__":
    main(run)
