"""Threads inside kernels, on a device with equal cores: a way to use them all that leaves steps one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from poetc.devices.profile import DeviceProfile
from poetc.graph import Graph
from poetc.ops import bind, spec
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
    specs, split = {op.name: op for op in graph.operators}, set[str]()
    for operator in problem.operators:
        op = specs[operator.name]
        bound = bind(op, graph.tensors)
        macs = spec(op.kind).kernel(bound).repeats * spec(op.kind).work(bound).macs
        elements = max((graph.tensors[t].size_bytes // 4 for t in (*op.inputs, *op.outputs)), default=0)
        if is_split(macs, elements):
            split.add(operator.name)
    speedup = 1 + (count - 1) * float(own.efficiency.value)
    return Threads(count, speedup, round(own.start_ns.value), frozenset(split))


@dataclass(frozen=True, slots=True)
class Prices:
    """Time and energy where kernels run in threads, from those on the main processor alone.

    Every other processor draws its active power in a kernel in threads, and its idle power otherwise.
    """

    threads: Threads
    main_uw: int  # of the main processor, while it works
    active_uw: int  # of all processors
    waiting_uw: int  # of the others, while they wait

    @classmethod
    def of(cls, problem: Problem, threads: Threads) -> Prices:
        """`problem`: the one of the same step whose processors run side by side."""
        first, others = problem.processors[0], problem.processors[1:]
        active_uw = first.active_uw + sum(p.active_uw for p in others)
        return cls(threads, first.active_uw, active_uw, sum(p.idle_uw for p in others))

    def kernel(self, time_ns: int, energy_pj: int, *, split: bool) -> tuple[int, int]:
        """`split`: it runs in threads."""
        alone_ns, others_uw = time_ns, self.waiting_uw
        if split:
            time_ns = min(alone_ns, self.threads.start_ns + round(alone_ns / self.threads.speedup))
            energy_pj -= alone_ns * self.main_uw // 1000
            others_uw = self.active_uw
        return time_ns, max(0, energy_pj) + -(-time_ns * others_uw // 1000)

    def transfer_pj(self, time_ns: int | None, energy_pj: int) -> int:
        """The energy of a transfer, for which all processors wait."""
        return energy_pj + -(-(time_ns or 0) * self.waiting_uw // 1000)


def in_threads(problem: Problem, plain: Problem, threads: Threads) -> Problem:
    """`plain`, the same step on the main processor alone, with its kernels in threads on all of the processors.

    `problem`: the same step with operators side by side on these processors.
    """
    prices = Prices.of(problem, threads)

    def cost(part: OperatorSpec | Variant, name: str) -> tuple[int, int]:
        return prices.kernel(part.time_ns, part.energy_pj, split=name in threads.split)

    def tensor(spec: TensorSpec) -> TensorSpec:
        spec = replace(spec, move_pj=prices.transfer_pj(spec.move_ns, spec.move_pj))
        if problem.paging is not Paging.SYNC:
            return spec
        out = prices.transfer_pj(spec.page_out_ns, spec.page_out_pj)
        return replace(spec, page_out_pj=out, page_in_pj=prices.transfer_pj(spec.page_in_ns, spec.page_in_pj))

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
        idle_uw=plain.idle_uw and plain.idle_uw + prices.waiting_uw,
    )


def is_split(macs: int, elements: int) -> bool:
    """Whether a kernel is large enough to run in threads. `elements`: of its largest operand."""
    return max(macs, ELEMENT_WORK * elements) > LEAST_WORK


def _is_equal(operator: OperatorSpec, count: int) -> bool:
    costs = (operator.cost_on(p) for p in range(count))
    return all(c is not None and c[0] == operator.time_ns for c in costs)
