"""Threads inside kernels, on a device with equal cores: a way to use them all that leaves steps one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.devices.features import features_of
from poetc.devices.loops import machine_of
from poetc.devices.profile import DeviceProfile
from poetc.graph import Graph
from poetc.scheduling.problem import OperatorSpec, Paging, Problem, TensorSpec, Variant

# Of runtime/kernels/poetc_threads.h: kernels with less work, in multiply-adds, run alone.
LEAST_WORK, ELEMENT_WORK = 200_000, 8


@dataclass(frozen=True, slots=True)
class Threads:
    """Kernels in `count` threads: `start_ns` to start and join them, and `speedup` for the work between."""

    count: int
    speedup: float
    start_ns: int
    split: frozenset[str]  # operators whose kernels are large enough


def threads_of(problem: Problem, graph: Graph, profile: DeviceProfile) -> Threads | None:
    """The threads that stand for the processors of `problem`; None where the profile names none.

    That takes equal cores: every processor runs every operator as fast as the main one.
    """
    count, own = len(problem.processors), profile.threads
    if own is None or count < 2 or not all(_is_equal(o, count) for o in problem.operators):
        return None
    machine, specs = machine_of(profile.cpu), {op.name: op for op in graph.operators}
    split = set()
    for operator in problem.operators:
        op = specs[operator.name]
        macs = features_of(op, graph.tensors, machine).macs
        elements = max((graph.tensors[t].size_bytes // 4 for t in (*op.inputs, *op.outputs)), default=0)
        if max(macs, ELEMENT_WORK * elements) > LEAST_WORK:
            split.add(operator.name)
    speedup = 1 + (count - 1) * float(own.efficiency.value)
    return Threads(count, speedup, round(own.start_ns.value), frozenset(split))


def in_threads(problem: Problem, plain: Problem, threads: Threads) -> Problem:
    """`plain`, the same step on the main processor alone, with its kernels in threads on all of `problem`'s processors.

    Every other processor draws its active power in such a kernel, and its idle power otherwise.
    """
    active_uw, idle_uw = sum(p.active_uw for p in problem.processors), sum(p.idle_uw for p in problem.processors)
    first = problem.processors[0]

    def cost(part: OperatorSpec | Variant, name: str) -> tuple[int, int]:
        others_uw, time_ns, own_pj = idle_uw - first.idle_uw, part.time_ns, part.energy_pj
        if name in threads.split:
            time_ns = min(part.time_ns, threads.start_ns + round(part.time_ns / threads.speedup))
            own_pj -= part.time_ns * first.active_uw // 1000
            others_uw = active_uw
        return time_ns, max(0, own_pj) + -(-time_ns * others_uw // 1000)

    def waiting(time_ns: int | None) -> int:
        return -(-(time_ns or 0) * (idle_uw - first.idle_uw) // 1000)

    def tensor(spec: TensorSpec) -> TensorSpec:
        spec = replace(spec, move_pj=spec.move_pj + waiting(spec.move_ns))
        if problem.paging is not Paging.SYNC:
            return spec
        out, back = spec.page_out_pj + waiting(spec.page_out_ns), spec.page_in_pj + waiting(spec.page_in_ns)
        return replace(spec, page_out_pj=out, page_in_pj=back)

    operators = []
    for operator in plain.operators:
        time_ns, energy_pj = cost(operator, operator.name)
        variants, before = [], (time_ns, energy_pj)
        for variant in operator.low_workspace:  # the fastest first, in threads too
            own = cost(variant, operator.name)
            before = max(before[0], own[0]), max(before[1], own[1])
            variants.append(replace(variant, time_ns=before[0], energy_pj=before[1]))
        operators.append(replace(operator, time_ns=time_ns, energy_pj=energy_pj, low_workspace=tuple(variants)))
    return replace(
        problem,
        operators=tuple(operators),
        tensors=tuple(tensor(t) for t in problem.tensors),
        processors=(),
        base_bytes=plain.base_bytes,
    )


def _is_equal(operator: OperatorSpec, count: int) -> bool:
    costs = (operator.cost_on(p) for p in range(count))
    return all(c is not None and c[0] == operator.time_ns for c in costs)
