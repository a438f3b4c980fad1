"""The rules of a Problem beyond its types; everything downstream relies on them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields

from poetc.errors import UsageError
from poetc.scheduling.problem import (
    BankSpec,
    Elsewhere,
    OperatorSpec,
    Paging,
    Problem,
    ProcessorSpec,
    TensorSpec,
    Variant,
)

MAX_BYTES = 2**48  # keeps every sum of sizes within 64 bits
MAX_COST = 2**62  # in nanoseconds or picojoules: nine months, a kilowatt-hour


def validate_problem(problem: Problem, source: str = "problem") -> None:
    """UsageError naming `source` and the place in the document for the first thing that is wrong."""
    try:
        _check_numbers(problem)
        _check_processors(problem)
        _check_banks(problem)
        _check_tensors(problem)
        for index, operator in enumerate(problem.operators):
            _check_operator(problem, operator, f"$.operators[{index}]")
        _check_flow(problem)
    except _WrongError as error:
        raise UsageError(f"{source}: {error}") from None


class _WrongError(Exception):
    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")


def _check_numbers(problem: Problem) -> None:
    parts: list[tuple[Part, str]] = [(problem, "$")]
    parts += [(b, f"$.banks[{i}]") for i, b in enumerate(problem.banks)]
    parts += [(p, f"$.processors[{i}]") for i, p in enumerate(problem.processors)]
    parts += [(t, f"$.tensors[{i}]") for i, t in enumerate(problem.tensors)]
    parts += [(o, f"$.operators[{i}]") for i, o in enumerate(problem.operators)]
    for part, path in parts:
        _check_integers(part, path)
    if problem.alignment_bytes < 1:
        raise _WrongError("$.alignment_bytes", "must be at least 1")
    if problem.idle_uw and (problem.paging is not Paging.DMA or problem.processors):
        raise _WrongError("$.idle_uw", "is for one processor whose transfers overlap compute")
    if not problem.operators:
        raise _WrongError("$.operators", "there must be at least one operator")


Part = Problem | TensorSpec | OperatorSpec | ProcessorSpec | BankSpec | Variant | Elsewhere


def _check_integers(part: Part, path: str) -> None:
    for field in fields(part):
        value = getattr(part, field.name)
        if not isinstance(value, int):
            continue
        if value < 0 and field.name != "rewritten_bytes":
            raise _WrongError(f"{path}.{field.name}", f"{value} is negative")
        most = MAX_BYTES if field.name.endswith("_bytes") else MAX_COST
        if value > most:
            raise _WrongError(f"{path}.{field.name}", f"{str(value)[:30]} is beyond {most}")


def _check_processors(problem: Problem) -> None:
    count = len(problem.processors)
    if count == 1:
        raise _WrongError("$.processors", "there is one; leave it out, or name at least two")
    _check_unique((p.name for p in problem.processors), "processors")
    for index, processor in enumerate(problem.processors):
        if processor.idle_uw > processor.active_uw:
            raise _WrongError(f"$.processors[{index}].idle_uw", f"{processor.idle_uw} is more than active_uw")
    for index, operator in enumerate(problem.operators):
        parts: list[tuple[str, OperatorSpec | Variant]] = [(f"$.operators[{index}]", operator)]
        parts += [(f"$.operators[{index}].low_workspace[{i}]", v) for i, v in enumerate(operator.low_workspace)]
        for path, part in parts:
            before = 0
            for position, cost in enumerate(part.elsewhere):
                where = f"{path}.elsewhere[{position}]"
                _check_integers(cost, where)
                if not before < cost.processor < count:
                    reason = f"processor {cost.processor}, must ascend from 1 to {count - 1}"
                    raise _WrongError(f"{where}.processor", reason)
                before = cost.processor
            if {c.processor for c in part.elsewhere} != {c.processor for c in operator.elsewhere}:
                raise _WrongError(f"{path}.elsewhere", "other processors than those of the operator's first kernel")


def _check_banks(problem: Problem) -> None:
    if not problem.banks:
        return
    _check_unique((b.name for b in problem.banks), "banks")
    if problem.processors:
        raise _WrongError("$.banks", "tensors are placed in banks for one processor alone; leave $.processors out")
    total = sum(b.budget_bytes for b in problem.banks)
    if total != problem.budget_bytes:
        raise _WrongError("$.budget_bytes", f"{problem.budget_bytes} is not the sum of the banks' budgets, {total}")


def _check_tensors(problem: Problem) -> None:
    _check_unique((t.name for t in problem.tensors), "tensors")
    written = problem.written_by_operators
    for index, tensor in enumerate(problem.tensors):
        path = f"$.tensors[{index}]"
        if tensor.size_bytes % problem.alignment_bytes:
            raise _WrongError(
                f"{path}.size_bytes",
                f"{tensor.size_bytes} is not a multiple of alignment_bytes ({problem.alignment_bytes}); "
                "round it up, or set alignment_bytes to 1",
            )
        if tensor.footprint_bytes < tensor.size_bytes:
            raise _WrongError(
                f"{path}.store_bytes", f"{tensor.store_bytes} is less than the tensor's {tensor.size_bytes}"
            )
        if problem.paging is Paging.NONE and "store" in (tensor.initial, tensor.final):
            raise _WrongError(path, f"{tensor.name!r} is placed on the store, but paging is 'none'")
        streamed = index in written
        if tensor.final == "store" and tensor.initial != "store" and not tensor.pageable and not streamed:
            raise _WrongError(path, f"{tensor.name!r} must end on the store but is not pageable")


def _check_operator(problem: Problem, operator: OperatorSpec, path: str) -> None:
    for kind, indices in (("inputs", operator.inputs), ("outputs", operator.outputs)):
        for position, t in enumerate(indices):
            if not 0 <= t < len(problem.tensors):
                raise _WrongError(f"{path}.{kind}[{position}]", f"tensor {t}, there are {len(problem.tensors)}")
    for position, pair in enumerate(operator.in_place):
        where = f"{path}.in_place[{position}]"
        if pair.input not in operator.inputs:
            raise _WrongError(f"{where}.input", f"tensor {pair.input} is not an input of {operator.name!r}")
        if pair.output not in operator.outputs:
            raise _WrongError(f"{where}.output", f"tensor {pair.output} is not an output of {operator.name!r}")
        sizes = problem.tensors[pair.input].size_bytes, problem.tensors[pair.output].size_bytes
        if sizes[1] > sizes[0] or (pair.required and sizes[1] != sizes[0]):
            wanted = "exactly" if pair.required else "at most"
            raise _WrongError(where, f"the output has {sizes[1]} bytes, it must have {wanted} the input's {sizes[0]}")
    _check_streamed(problem, operator, path)
    before: OperatorSpec | Variant = operator
    for position, variant in enumerate(operator.low_workspace):
        where = f"{path}.low_workspace[{position}]"
        _check_integers(variant, where)
        if variant.workspace_bytes >= before.workspace_bytes:
            reason = f"{variant.workspace_bytes} is no less than {before.workspace_bytes}, of the one before"
            raise _WrongError(f"{where}.workspace_bytes", reason)
        for name in ("time_ns", "energy_pj"):
            if getattr(variant, name) < getattr(before, name):
                raise _WrongError(f"{where}.{name}", "less than of the one before: the fastest is first")
        before = variant
    names = [operator.kernel, *(v.kernel for v in operator.low_workspace)]
    if operator.low_workspace and len(set(names)) != (len(names) if all(names) else 1):
        raise _WrongError(f"{path}.kernel", f"the kernels {names} must have different names, or none of them a name")
    required = [p for p in operator.in_place if p.required]
    for side in ({p.input for p in required}, {p.output for p in required}):
        if len(side) < len(required):
            raise _WrongError(f"{path}.in_place", "a tensor is in two required pairs")


def _check_streamed(problem: Problem, operator: OperatorSpec, path: str) -> None:
    """Raises _WrongError where the streamed operands, blocks and pieces of an operator contradict each other."""
    tensors = problem.tensors
    for kind, indices in (("reads_store", operator.reads_store), ("writes_store", operator.writes_store)):
        for position, t in enumerate(indices):
            where = f"{path}.{kind}[{position}]"
            if not 0 <= t < len(tensors):
                raise _WrongError(where, f"tensor {t}, there are {len(tensors)}")
            if kind == "writes_store":
                if t not in operator.outputs or tensors[t].size_bytes or tensors[t].pageable:
                    raise _WrongError(where, f"{tensors[t].name!r} must be an output of 0 bytes that is not pageable")
            elif t in operator.inputs and tensors[t].size_bytes:
                raise _WrongError(where, f"{tensors[t].name!r} is read in RAM too")
            elif t not in operator.inputs and tensors[t].initial != "store":
                raise _WrongError(where, f"{tensors[t].name!r} is not on the store when the step begins")
    for position, pair in enumerate(operator.replaces):
        if pair.input not in operator.reads_store or pair.output not in operator.writes_store:
            raise _WrongError(f"{path}.replaces[{position}]", "must name a tensor that it reads and one that it writes")
    if bool(operator.cut) != bool(operator.block) or (operator.is_streamed and not operator.cut):
        raise _WrongError(
            path, "an operator in blocks has cut and block, and so has one with reads_store or writes_store"
        )
    if operator.overlaps and (not operator.is_streamed or problem.paging is not Paging.DMA):
        raise _WrongError(f"{path}.overlaps", "takes streamed operands, and transfers that overlap compute")
    written_bytes = sum(tensors[t].footprint_bytes for t in operator.writes_store) + operator.rewritten_bytes
    if written_bytes < 0:
        raise _WrongError(f"{path}.rewritten_bytes", f"it would write {written_bytes} bytes in all")
    if operator.piece_ns > operator.time_ns:
        raise _WrongError(f"{path}.piece_ns", f"{operator.piece_ns} ns of {operator.time_ns} ns")


def _check_flow(problem: Problem) -> None:
    """Operators in a topological order, one producer a tensor, nothing read after a required in-place took it over."""
    _check_unique((o.name for o in problem.operators), "operators")
    written = problem.written_by_operators
    maker: dict[int, str] = {}
    there = {t for t, tensor in enumerate(problem.tensors) if tensor.initial}
    taken_by: dict[int, str] = {}
    for index, operator in enumerate(problem.operators):
        for position, t in enumerate(operator.inputs):
            where, name = f"$.operators[{index}].inputs[{position}]", problem.tensors[t].name
            if t in taken_by:
                raise _WrongError(where, f"{name!r} is read after {taken_by[t]!r} updated it in place")
            if t in written and t not in operator.reads_store:
                raise _WrongError(where, f"{name!r} is on the store alone, and must be among reads_store")
            if t not in there:
                raise _WrongError(where, f"{name!r} is read before it is made (operators must be in topological order)")
        for position, t in enumerate(operator.outputs):
            where, name = f"$.operators[{index}].outputs[{position}]", problem.tensors[t].name
            if problem.tensors[t].initial:
                raise _WrongError(where, f"{name!r} is made by an operator but also there from the start (`initial`)")
            if t in maker:
                raise _WrongError(where, f"{name!r} is made by {maker[t]!r} already")
            maker[t] = operator.name
            there.add(t)
        taken_by |= {p.input: operator.name for p in operator.in_place if p.required}
    for t, tensor in enumerate(problem.tensors):
        if t not in there:
            raise _WrongError(f"$.tensors[{t}]", f"{tensor.name!r} has no `initial` place and no operator makes it")
        if t in taken_by and tensor.final == "ram":
            reason = f"{tensor.name!r} must be in RAM at the end, but {taken_by[t]!r} updates it in place"
            raise _WrongError(f"$.tensors[{t}].final", reason)


def _check_unique(names: Iterable[str], kind: str) -> None:
    seen: dict[str, int] = {}
    for index, name in enumerate(names):
        if not name:
            raise _WrongError(f"$.{kind}[{index}].name", "is empty")
        if name in seen:
            raise _WrongError(f"$.{kind}[{index}].name", f"{name!r} is the name of $.{kind}[{seen[name]}] already")
        seen[name] = index
