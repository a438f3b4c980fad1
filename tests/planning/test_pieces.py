"""The longest piece of a step: operators run in blocks with the bits of whole ones, or the limit is refused by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from poetc.commands import programs
from poetc.commands.requests import ModelRequest, SolveRequest
from poetc.commands.solve import solve
from poetc.errors import InfeasibleError, UsageError
from poetc.measure import validate
from poetc.planning.pieces import Piece, in_pieces, longest_piece
from poetc.scheduling import keep_all
from poetc.scheduling.schedule import SolveOptions
from tests.arm.conftest import load_networks
from tests.program.models import training_case


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> SolveRequest:
    source = load_networks().write("lenet", tmp_path_factory.mktemp("model") / "lenet.onnx")
    return SolveRequest(
        model=ModelRequest(source=source, batch=4, device="qemu-mps2-an386"),
        options=SolveOptions(time_limit_s=1, gap=0.5),
    )


def test_operators_that_take_too_long_run_in_blocks(request_: SolveRequest) -> None:
    artifact = solve(replace(request_, longest_piece="150us"))
    piece, program = artifact.summary["longest_piece"], programs.training_program(artifact)
    assert program.has_blocks and 0 < piece["time_ns"] <= 150_000
    assert longest_piece(artifact.problem, artifact.schedule).time_ns == piece["time_ns"]
    assert not any(op.is_streamed for op in artifact.problem.operators)
    assert artifact.graph is not None
    assert not validate(program, programs.keep_all_program(artifact), artifact.graph.values, steps=1).problems()


@pytest.mark.long
def test_longer_pieces_of_kernels_for_little_ram_forbid_nothing(request_: SolveRequest) -> None:
    """The search for the least RAM tries them, with time to do so; all RAM does with the others."""
    summary = solve(replace(request_, longest_piece="100us", options=SolveOptions(time_limit_s=30, gap=0.5))).summary
    assert 0 < summary["longest_piece"]["time_ns"] <= 100_000
    assert summary["min_budget_bytes"] > 0 and "streamed_min_budget_bytes" not in summary
    least = solve(replace(request_, longest_piece="100us", budget="least")).summary
    assert 0 < least["longest_piece"]["time_ns"] <= 100_000


def test_a_limit_that_cannot_be_kept_names_the_node(request_: SolveRequest) -> None:
    with pytest.raises(InfeasibleError, match=r"^--longest-piece 20.00 µs: \w+ '.*' of node 'conv\d' takes .* allow"):
        solve(replace(request_, longest_piece="20us"))
    for batch, is_named in ((1, False), (2, True)):
        model = replace(request_.model, batch=batch)
        with pytest.raises(InfeasibleError) as failed:
            solve(replace(request_, model=model, longest_piece="1us"))
        assert ("smaller --batch" in str(failed.value)) == is_named


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"longest_piece": "5 parsecs"}, "--longest-piece '5 parsecs': unknown unit"),
        ({"longest_piece": "5ms", "dma": True}, "without --dma"),
        ({"longest_piece": "5ms", "processors": "all"}, "one processor"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: SolveRequest, options: dict[str, object], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        solve(replace(request_, **options))  # type: ignore[arg-type]


def test_a_name_that_begins_with_the_kind_says_it_once() -> None:
    assert Piece("Add(x.grad)", "Add", 1).in_words("Add(x.grad)") == "Add(x.grad)"
    assert Piece("fc1", "MatMul", 1, blocks=True).in_words("fc1") == "a block of MatMul fc1"


def test_transfers_are_pieces_too() -> None:
    """Tensors whose transfer takes too long stay in RAM; state that lives on the store is refused by name."""
    problem = training_case().problem
    tensors = tuple(replace(t, page_in_ns=50, page_out_ns=10 * i) for i, t in enumerate(problem.tensors))
    limited = in_pieces(replace(problem, tensors=tensors), 100, None)
    assert [t.pageable for t in limited.tensors] == [t.pageable and 10 * i <= 100 for i, t in enumerate(tensors)]
    assert longest_piece(problem, keep_all(problem)).time_ns == max(op.time_ns for op in problem.operators)
    stored = tuple(replace(t, initial="store", page_in_ns=200) if t.initial else t for t in problem.tensors)
    with pytest.raises(InfeasibleError, match="lives on the store, and its transfer takes 200 ns"):
        in_pieces(replace(problem, tensors=stored), 100, None)
