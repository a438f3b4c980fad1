"""Prices of streamed operators: counted block by block here, and by their repetition in the product."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from poetc import passes
from poetc.commands.requests import ModelRequest, SolveRequest, streams_of, training_graph, ways_of
from poetc.devices import build_problem, load_profile
from poetc.devices.blocks import Blocks, Stream, is_even
from poetc.devices.growth import Growth
from poetc.devices.streaming import StreamedAlternatives, forms_of_operator
from poetc.graph import DType, TensorType
from poetc.ops import Bound, Cut, Part, Span, spec
from poetc.planning.streamed_operators import within
from poetc.planning.ways import ALONE, SIDE_BY_SIDE
from poetc.training import TrainingOptions
from tests.program.models import rows_case, words

DIGITS = Path(__file__).resolve().parents[2] / "demo" / "digits.onnx"


def offered() -> StreamedAlternatives:
    step = passes.for_small_ram(training_graph(ModelRequest(source=DIGITS, batch=3, device="nrf52840"))[1], 0)
    profile = load_profile("nrf52840")
    return StreamedAlternatives(step, profile, build_problem(step, profile, budget_bytes=0))


def written(stream: Stream, blocks: Blocks, size: int) -> int:
    """Blocks of the store, each piece of each block by itself."""
    extents = [axis.extent for axis in blocks.cut.axes]
    found = 0
    sizes = list(zip(extents, blocks.units, strict=True))
    begins = [range(0, e, n) if a in stream.axes else (0,) for a, (e, n) in enumerate(sizes)]
    for begin in itertools.product(*begins):
        ranges = [(b, min(b + n, e)) for b, (e, n) in zip(begin, sizes, strict=True)]
        rows, piece, first = stream.pieces(ranges, extents)
        found += sum(
            -(-(at + piece) // size) - at // size for at in range(first, first + rows * stream.pitch, stream.pitch)
        )
    return found * size


def test_blocks_of_the_store_that_are_written_are_those_of_every_piece() -> None:
    offer = offered()
    within(offer, 0)
    compared = 0
    for blocks in itertools.chain(*offer._forms.values()):
        for stream in blocks.streams:
            if stream.writes and not stream.in_ram and stream.has_edges(blocks.units, blocks.counts, offer.block_bytes):
                assert offer._written_bytes(stream, blocks) == written(stream, blocks, offer.block_bytes), blocks
                compared += max(blocks.counts) > 3
    assert compared > 10


def test_only_what_is_chosen_is_priced() -> None:
    """Prices take longer than the blocks themselves."""
    offer = offered()
    made = within(offer, 0)
    assert sum(op.cut != "" for op in made.values()) > 10
    assert len(offer._prices) <= len(made)
    assert all(op.time_ns > 0 for op in made.values())


def test_a_price_is_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Floors and choices ask for the same blocks of the same operators again and again."""
    offer, priced, cost = offered(), list[object](), StreamedAlternatives._cost

    def counted(alternatives: StreamedAlternatives, *arguments: Any) -> Any:
        priced.append(arguments)
        return cost(alternatives, *arguments)

    monkeypatch.setattr(StreamedAlternatives, "_cost", counted)
    made = within(offer, 0)
    streamed = {k: frozenset({*op.reads_store, *op.writes_store}) for k, op in made.items()}
    for k, tensors in streamed.items():
        for number in offer.numbers(k, tensors)[:2]:
            at = offer.numbers(k, tensors).index(number)
            assert offer.priced(k, tensors, at) == offer.priced(k, tensors, at)
    assert len(priced) == len(offer._prices) > 10


def test_blocks_in_threads_cost_what_kernels_in_threads_do() -> None:
    """A weight passes through a window in one piece: the price is that of the operator, and of a transfer besides."""
    model, profile = ModelRequest(source=DIGITS, batch=16, device="rpi4"), load_profile("rpi4")
    step = training_graph(model)[1]
    ways = ways_of(SolveRequest(model=model), build_problem(step, profile, budget_bytes=10**6), step, profile)
    (count,) = ways.keys() - {ALONE, SIDE_BY_SIDE}
    (offer,) = streams_of(step, profile=profile, ways=[ways])
    alone, threads = offer(ways[ALONE]), offer(ways[count])
    assert alone is not None and threads is not None
    assert alone.threads is None and threads.threads is not None
    compared = 0
    for k, op in enumerate(threads.problem.operators):
        for streamed in (frozenset({t}) for t in op.inputs if threads.is_state(t)):
            whole = [n for n, form in enumerate(threads.forms(k, streamed)) if form.cut == "whole"]
            if not whole or len(threads._blocks(k, streamed)[whole[0]].streams) != 1:
                continue
            blocks, found = threads._blocks(k, streamed)[whole[0]], threads.priced(k, streamed, whole[0])
            transfer, one = threads._transfer(blocks.streams[0], blocks)[0], alone.priced(k, streamed, whole[0])
            split = op.name in threads.threads.threads.split
            waiting_pj = threads.threads.transfer_pj(transfer.time_ns, transfer.energy_pj)
            kernel = one.time_ns - transfer.time_ns, one.energy_pj - transfer.energy_pj
            time_ns, energy_pj = threads.threads.kernel(*kernel, split=split)
            assert (found.time_ns, found.energy_pj) == (time_ns + transfer.time_ns, energy_pj + waiting_pj), op.name
            assert waiting_pj > transfer.energy_pj
            compared += split and found.time_ns < one.time_ns
    assert compared > 0


def test_alternatives_have_the_same_numbers_in_every_way() -> None:
    """Also where the time of a block is limited, which is shorter in threads."""
    model, profile = ModelRequest(source=DIGITS, batch=64, device="rpi4"), load_profile("rpi4")
    step = training_graph(model)[1]
    request = SolveRequest(model=model, longest_piece="1ms")
    ways = ways_of(
        replace(request, longest_piece=None), build_problem(step, profile, budget_bytes=10**6), step, profile
    )
    (offer,) = streams_of(step, profile=profile, request=request, ways=[ways])
    alone, threads = (offer(problem) for way, problem in sorted(ways.items()) if way != SIDE_BY_SIDE)
    assert alone is not None and threads is not None
    lists = 0
    for k, op in enumerate(alone.problem.operators):
        for streamed in (frozenset({t}) for t in op.inputs if alone.is_state(t)):
            forms = alone.forms(k, streamed)
            assert forms == threads.forms(k, streamed), op.name
            lists += len(forms) > 0
    assert lists > 10


def test_blocks_of_one_size_come_with_faster_kernels_where_windows_may_be_larger(tmp_path: Path) -> None:
    """The head of a language model in blocks of 1,024 words: the kernel's logits take more or less room."""
    table = (0.2 * np.random.default_rng(0).standard_normal((5000, 64))).astype(np.float32)
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["e"]),
        helper.make_node("MatMul", ["e", "w"], ["h"]),
        helper.make_node("Transpose", ["table"], ["head"], perm=[1, 0]),
        helper.make_node("MatMul", ["h", "head"], ["y"]),
    ]
    weights = [numpy_helper.from_array(table, "table"), numpy_helper.from_array(table[:64], "w")]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 128])
    logits = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 128, 5000])
    graph = helper.make_graph(nodes, "words", [tokens], [logits], weights)
    path = tmp_path / "words.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    profile = load_profile("rpi4")
    step = training_graph(ModelRequest(source=path, device="rpi4", training=TrainingOptions(train="w")))[1]
    offer = StreamedAlternatives(step, profile, build_problem(step, profile, budget_bytes=0))
    k = next(k for k, op in enumerate(offer.problem.operators) if op.kind == "LinearCrossEntropy")
    head = frozenset({max(offer.problem.operators[k].inputs, key=lambda t: offer.problem.tensors[t].size_bytes)})
    alike = [n for n, form in enumerate(offer.forms(k, head)) if form.inner_block == 1024]
    found = [offer.priced(k, head, n) for n in alike]
    assert len({op.kernel for op in found}) == len(found) > 1
    assert [op.workspace_bytes for op in found] == sorted(op.workspace_bytes for op in found)
    assert found[-1].time_ns < 0.85 * found[0].time_ns


def test_blocks_that_are_alike_are_those_that_look_alike_one_by_one() -> None:
    """`is_even` looks at two blocks where rows grow by as many each time; here every block is looked at."""

    def seen(span: Span, begin: int, end: int, extent: int) -> tuple[int, int]:
        first, last = span.of(begin, end, extent)
        return last - first, begin * span.mul + span.low - first * span.div

    random = np.random.default_rng(3)
    answers = set[bool]()
    for _ in range(3000):
        extent, units, limit = (int(random.integers(1, n)) for n in (60, 9, 150))
        mul, div, low, high = (int(random.integers(*n)) for n in ((1, 4), (1, 4), (-9, 9), (-4, 12)))
        span = Span(limit, mul, div, low, max(low, high))
        cut = Cut("rows", extent, (Part(1, 1, 0, span), None))
        between = range(1, -(-extent // units) - 1)
        even = len({seen(span, k * units, (k + 1) * units, extent) for k in between}) <= 1
        assert is_even(cut, units) == even, (extent, units, span)
        answers.add(even)
    assert answers == {True, False}


def test_every_block_has_rows_of_the_gradient() -> None:
    """Rows of an image that no window reaches: a block of them alone has an operand without elements."""
    attributes = {"group": 1, "strides": (2, 2), "dilations": (1, 1), "pads": (0, 0, 0, 0), "input_size": (17, 17)}
    inputs = tuple(TensorType(shape, DType.F32) for shape in ((1, 32, 8, 8), (32, 32, 2, 2)))
    outputs = (TensorType((1, 32, 17, 17), DType.F32),)
    numbers, alike, sizes = frozenset({0, 2}), (0, 1, 2), set[int]()
    key = "ConvGradInput", tuple(sorted(attributes.items())), inputs, outputs, numbers, alike, frozenset[int]()
    for blocks in forms_of_operator(*key, 512, False):
        sizes |= {n for axis, n in zip(blocks.cut.axes, blocks.units, strict=True) if axis.name == "image_rows"}
        for kernel in blocks.kernels:
            shape = kernel.parameters.convolution
            assert min(shape.height, shape.output_height) > 0, (blocks.cut.title, blocks.units)
    assert sizes, "bands of other sizes are offered"


def test_the_steps_of_a_command_share_their_blocks() -> None:
    first, second = offered(), offered()
    made = within(first, 0)
    found = forms_of_operator.cache_info().misses
    assert within(second, 0) == made
    assert forms_of_operator.cache_info().misses == found


def test_finer_blocks_are_looked_for_where_aligned_ones_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Growing blocks takes most of the time of a floor: those that nobody takes do not grow."""
    rows = TensorType((64, 64), DType.F32)
    key = "Relu", (), (rows,), (rows,), frozenset({0}), (0, 1), frozenset[int](), 16, False
    grown, units = list[int](), Growth.units

    def counted(growth: Growth, most_bytes: int) -> tuple[tuple[int, ...] | None, bool]:
        grown.append(most_bytes)
        return units(growth, most_bytes)

    monkeypatch.setattr(Growth, "units", counted)
    assert forms_of_operator(*key) and grown
    grown.clear()
    assert not forms_of_operator(*key, finer=True) and not grown
    cut = next(c for c in spec("MatMul").cuts(Bound({}, (rows, rows), (rows,))) if c.within is not None)
    assert cut.axes is cut.axes and cut.axes == (replace(cut, within=None), cut.within)


@pytest.mark.parametrize("trained", ["a", "b"])
def test_rows_of_a_frozen_table_are_read_beside_a_trained_one_of_its_shape(tmp_path: Path, trained: str) -> None:
    """The operators that read both differ in nothing else, and what is decided for one is not for the other."""
    random = np.random.default_rng(0)
    shapes = {"a": (6000, 48), "b": (6000, 48), "w": (48, 5)}
    weights = [numpy_helper.from_array(random.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["a", "tokens"], ["from_a"]),
        helper.make_node("Gather", ["b", "tokens"], ["from_b"]),
        helper.make_node("Add", ["from_a", "from_b"], ["sum"]),
        helper.make_node("ReduceMean", ["sum"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "w"], ["y"]),
    ]
    tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, [1, 8])
    graph = helper.make_graph(
        nodes, "tables", [tokens], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5])], weights
    )
    path = tmp_path / "tables.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    profile, training = load_profile("rpi4"), TrainingOptions(train=f"{trained},w")
    step = training_graph(ModelRequest(source=path, device="rpi4", training=training))[1]
    offer = StreamedAlternatives(step, profile, build_problem(step, profile, budget_bytes=0))
    frozen = "b" if trained == "a" else "a"
    assert {op.name: op.cut for op in within(offer, 3_000_000).values()} == {f"Gather(from_{frozen})": "indices"}
    names = "Gather(from_a)", "Gather(from_b)", f"GatherGradSgd({trained}@1)"
    assert {op.name: op.cut for op in within(offer, 100_000).values()} == dict.fromkeys(names, "indices")
    few = [op for op in within(offer, 40_000).values() if op.kind == "GatherGradSgd"]
    assert all(op.writes_store and op.rewritten_bytes < 0 for op in few)


def test_rows_are_read_alone_only_where_they_move_alone(tmp_path: Path) -> None:
    """Checksums of rows are those of the update, which a window of the whole table does not keep."""
    step = rows_case(words(3000, 64)).graph
    problem = build_problem(step, load_profile("nrf52840"), budget_bytes=0)
    offer = StreamedAlternatives(step, load_profile("nrf52840"), problem)
    found = set[tuple[str, ...]]()
    for limit_bytes in (*range(2_000, 60_000, 1_500), 1_000_000):
        made = within(offer, limit_bytes)
        cuts = {op.kind: op.cut for op in made.values() if op.kind.startswith("Gather")}
        found.add(tuple(sorted(cuts.values())))
        assert (cuts.get("GatherGradSgd") == "indices") or cuts.get("Gather") != "indices", (limit_bytes, cuts)
    assert {("indices", "indices"), ("table", "table"), ()} <= found
