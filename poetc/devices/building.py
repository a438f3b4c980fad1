"""Graph + DeviceProfile → Problem: costs for operators, sizes, places and page costs for storages."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from poetc.devices.cost import Cost, CostModel
from poetc.devices.features import Features, features_of
from poetc.devices.processors import OtherProcessor, main_processor, team_bytes
from poetc.devices.profile import DeviceProfile, Store
from poetc.devices.reuse import Fetched, fetched_bytes
from poetc.devices.zeros import zero_factors, zero_shares
from poetc.errors import UnsupportedModelError, UsageError, nearest
from poetc.graph import Graph, Operator, Role, Tensor, TrainingGraph
from poetc.ops import Bound, Kernel, bind, registry, spec, view_roots
from poetc.runtime.layout import ALIGNMENT_BYTES, align, page_bytes
from poetc.scheduling.problem import (
    BankSpec,
    Elsewhere,
    InPlace,
    OperatorSpec,
    Paging,
    Place,
    Problem,
    TensorSpec,
    Variant,
)


def build_problem(
    graph: Graph,
    profile: DeviceProfile,
    *,
    budget_bytes: int,
    paging: Paging | None = None,
    store: str | None = None,
    stored: Collection[str] = (),
    in_ram: Collection[str] = (),
    in_flash: Collection[str] = (),
    processors: Sequence[str] = (),
    banks: Sequence[BankSpec] = (),
) -> Problem:
    """The scheduling problem of `graph` on the device.

    Operators are the graph's without its views, in its order and by its names. Tensors are the storages (`view_roots`)
    that operators touch, except constants that the device reads in place from flash. `paging` defaults to synchronous
    transfers if the profile has a store; `store` chooses one by name. State begins and ends a step in RAM
    (`scheduling.on_store` moves it). A tensor in `stored` is given on the store and read there, such as weights for
    inference that training keeps there. One in `in_ram` is in RAM and not in flash, and one in `in_flash` is a constant
    of the program on every device. `processors`: names of those that work beside the main one. `banks`: of RAM, with
    their budgets, which count instead of `budget_bytes`. Raises UsageError where profile and options do not fit.
    """
    chosen = _choose_store(profile, store)
    if paging is None:
        paging = Paging.NONE if chosen is None else Paging.SYNC
    if paging is not Paging.NONE and chosen is None:
        raise UsageError(f"device {profile.name!r} has no store to page to")
    if paging is Paging.DMA and chosen is not None and chosen.mode != "dma":
        raise UsageError(f"the store of device {profile.name!r} cannot transfer while the processor computes")

    prices = _prices_of(_ByIdentity(profile), tuple(processors))
    costs, others = prices.costs, prices.others
    has_thread = paging is Paging.DMA and profile.cpu.core.startswith("cortex-a")  # which transfers
    storages = _Storages(graph, profile, frozenset(stored), frozenset(in_ram), frozenset(in_flash))
    waits = bool(profile.compute.loop_ns) and not banks  # each bank charges its own bytes
    fetched = fetched_bytes(graph, profile.memory) if waits else {}
    shares = zero_shares(graph) if costs.machine.is_soft and profile.compute.loop_ns else {}
    operators = tuple(
        _operator(op, graph, storages, prices, fetched.get(op.name, Fetched()), zero_factors(op, shares))
        for op in storages.operators
    )
    for other in others:
        if not any(cost.processor == other.number for op in operators for cost in op.elsewhere):
            first = storages.operators[0]
            known = f"runs no operator of {graph.name}, only {other.abilities}; {first.name!r} is a {first.kind}"
            known += " of " + ("integers" if features_of(first, graph.tensors, costs.machine).is_integer else "floats")
            way = "name the others, or leave the option out" if len(others) > 1 else "leave the option out"
            raise UsageError(f"--processors: {other.spec.name!r} {known}; {way}")
    page_store = None if paging is Paging.NONE else chosen
    overlaps = paging is Paging.DMA
    tensors = tuple(_tensor(name, storages, costs, page_store, waits=not overlaps) for name in storages.names)
    return Problem(
        name=graph.name,
        operators=operators,
        tensors=tensors,
        budget_bytes=sum(b.budget_bytes for b in banks) if banks else budget_bytes,
        paging=paging,
        base_bytes=profile.base_bytes + team_bytes(profile, len(others) + has_thread),
        dma_full_duplex=page_store is not None and page_store.full_duplex,
        page_buffer_bytes=0 if page_store is None else int(page_store.block_bytes.value),
        idle_uw=costs.waiting_uw(page_store) if overlaps and page_store is not None and not others else 0,
        store_capacity_bytes=None if page_store is None else int(page_store.capacity_bytes.value),
        alignment_bytes=ALIGNMENT_BYTES,
        device=profile.name,
        processors=(main_processor(profile), *(o.spec for o in others)) if others else (),
        banks=tuple(banks),
    )


def name_kernels(problem: Problem, graph: Graph) -> Problem:
    """`problem`, made from `graph` before problems named their kernels, with the names.

    Each operator without a name gets that of its first kernel with the operator's workspace. It stays without one where
    there is no such kernel.
    """
    if all(op.kernel for op in problem.operators):
        return problem
    operators = {op.name: op for op in graph.operators}

    def named(plain: OperatorSpec) -> OperatorSpec:
        op = operators.get(plain.name)
        if plain.kernel or op is None:
            return plain
        kernels = spec(op.kind).kernels(bind(op, graph.tensors))
        names = (k.name for k in kernels if align(k.workspace_bytes) == plain.workspace_bytes)
        return replace(plain, kernel=next(names, ""))

    return replace(problem, operators=tuple(named(op) for op in problem.operators))


def is_flash_resident(tensor: Tensor, graph: Graph, profile: DeviceProfile) -> bool:
    """Whether kernels read it in place from flash, so that it takes no RAM. Without training, weights are constant."""
    if not profile.memory.flash_readable_in_place:
        return False
    frozen = isinstance(graph, TrainingGraph)
    return tensor.role is Role.CONSTANT or (not frozen and tensor.role in (Role.PARAMETER, Role.STATISTIC))


def _choose_store(profile: DeviceProfile, name: str | None) -> Store | None:
    if name is None:
        return profile.stores[profile.default_store] if profile.default_store else None
    if name not in profile.stores:
        hint = nearest(name, profile.stores, f"it has: {', '.join(sorted(profile.stores)) or 'none'}")
        raise UsageError(f"device {profile.name!r} has no store {name!r}; {hint}")
    return profile.stores[name]


class _Storages:
    """Which tensors are storages of their own, which of them are in RAM, and where each begins and ends a step."""

    def __init__(
        self,
        graph: Graph,
        profile: DeviceProfile,
        stored: frozenset[str],
        in_ram: frozenset[str],
        in_flash: frozenset[str],
    ) -> None:
        self.graph = graph
        self.stored = stored
        self.roots = view_roots(graph)
        self.operators = tuple(op for op in graph.operators if not spec(op.kind).is_view)
        self.bounds = {op.name: bind(op, graph.tensors) for op in self.operators}
        self.computed = {t for op in self.operators for t in op.outputs}
        elsewhere = self.computed | stored | in_ram
        self.flash = {
            name
            for name, tensor in graph.tensors.items()
            if name not in elsewhere and (name in in_flash or is_flash_resident(tensor, graph, profile))
        }
        used = {self.roots[t] for op in self.operators for t in (*op.inputs, *op.outputs)}
        results = {self.roots[t] for t in graph.outputs}  # the caller reads them after a step
        present = (used | results) - self.flash
        # In the order of the graph's tensors, so that the same graph gives the same problem.
        self.names = [name for name in graph.tensors if name in present]
        self.index = {name: i for i, name in enumerate(self.names)}
        replaced = {
            self.roots[op.inputs[i]] for op in self.operators for i, _ in spec(op.kind).must_alias
        }  # versions of state that an update takes over
        self.final = {
            name
            for name in self.names
            if name in results
            or (
                name not in replaced
                and (
                    graph.tensors[name].role.is_state
                    or (graph.tensors[name].role is Role.CONSTANT and name not in self.computed)
                )
            )
        }

    def size_bytes(self, name: str) -> int:
        return align(self.graph.tensors[name].size_bytes)

    def in_place(self, op: Operator, bound: Bound) -> tuple[InPlace, ...]:
        kind = spec(op.kind)
        roots = [self.roots[t] for t in op.inputs]
        pairs: list[InPlace] = []
        for i, o in kind.must_alias:
            pairs.append(InPlace(input=self.index[roots[i]], output=self.index[op.outputs[o]], required=True))
        taken = {p.input for p in pairs} | {p.output for p in pairs}
        for i, o in kind.may_alias(bound):
            root, output = roots[i], op.outputs[o]
            if root in self.flash or root in self.final or self.graph.tensors[root].role.is_state:
                continue
            if roots.count(root) > 1 or self.size_bytes(root) != self.size_bytes(output):
                continue  # read through another operand too, or of another size
            pair = InPlace(input=self.index[root], output=self.index[output])
            if taken.isdisjoint((pair.input, pair.output)):
                pairs.append(pair)
        return tuple(pairs)


class _Prices:
    """The kernels of operators and their costs, once for all operators that differ in names alone."""

    def __init__(self, profile: DeviceProfile, processors: Sequence[str]) -> None:
        self.costs = CostModel(profile)
        self.costs.check_kinds(registry(), profile.name)
        self.others = tuple(OtherProcessor(profile, name, number) for number, name in enumerate(processors, 1))
        self._known: dict[tuple[object, ...], tuple[Variant, tuple[Variant, ...]]] = {}

    def of(
        self, op: Operator, graph: Graph, bound: Bound, fetched: Fetched, zeros: float
    ) -> tuple[Variant, tuple[Variant, ...]]:
        """The fastest kernel, and those with less and less workspace."""
        operands = [*op.inputs, *op.outputs]
        repeated = tuple(map(operands.index, operands))  # an operand that is read twice moves once
        key = op.kind, tuple(sorted(bound.attributes.items())), bound.inputs, bound.outputs, repeated, fetched, zeros
        if key not in self._known:
            self._known[key] = self._of(op, graph, bound, fetched, zeros)
        return self._known[key]

    def _of(
        self, op: Operator, graph: Graph, bound: Bound, fetched: Fetched, zeros: float
    ) -> tuple[Variant, tuple[Variant, ...]]:
        def variant_of(kernel: Kernel) -> Variant:
            def features(model: CostModel) -> Features:
                return features_of(op, graph.tensors, model.machine, fetched, zeros, kernel)

            elsewhere = (p.cost(features(p.costs)) for p in self.others)
            cost = self.costs.operator(features(self.costs))
            return _variant(kernel, cost, tuple(e for e in elsewhere if e is not None))

        fastest, *others = (variant_of(kernel) for kernel in _in_32_bits(op, spec(op.kind).kernels(bound)))
        low_workspace: list[Variant] = []
        for variant in others:
            before = low_workspace[-1] if low_workspace else fastest
            if variant.workspace_bytes < before.workspace_bytes:  # estimates may say that it is faster too
                time_ns, energy_pj = max(variant.time_ns, before.time_ns), max(variant.energy_pj, before.energy_pj)
                low_workspace.append(replace(variant, time_ns=time_ns, energy_pj=energy_pj))
        return fastest, tuple(low_workspace)


@dataclass(frozen=True, slots=True, eq=False)
class _ByIdentity:
    """A profile, which has no hash."""

    profile: DeviceProfile

    def __hash__(self) -> int:
        return id(self.profile)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.profile is other.profile


@functools.lru_cache(maxsize=8)
def _prices_of(profile: _ByIdentity, processors: tuple[str, ...]) -> _Prices:
    """The steps of one model, such as those with encodings, share most of their operators."""
    return _Prices(profile.profile, processors)


def _operator(
    op: Operator, graph: Graph, storages: _Storages, prices: _Prices, fetched: Fetched, zeros: float
) -> OperatorSpec:
    kind, bound = spec(op.kind), storages.bounds[op.name]
    fastest, low_workspace = prices.of(op, graph, bound, fetched, zeros)
    roots = dict.fromkeys(storages.roots[t] for t in op.inputs)  # each storage once, in order
    return OperatorSpec(
        name=op.name,
        kind=op.kind,
        phase=op.phase.value,
        inputs=tuple(storages.index[r] for r in roots if r not in storages.flash),
        outputs=tuple(storages.index[t] for t in op.outputs),
        time_ns=fastest.time_ns,
        energy_pj=fastest.energy_pj,
        workspace_bytes=fastest.workspace_bytes,
        recomputable=kind.recomputable and not kind.must_alias,
        in_place=storages.in_place(op, bound),
        kernel=fastest.kernel,
        low_workspace=low_workspace,
        elsewhere=fastest.elsewhere,
    )


def _in_32_bits(op: Operator, kernels: Sequence[Kernel]) -> Sequence[Kernel]:
    """The kernels. UnsupportedModelError where one of them cannot be given its parameters."""
    for number in (n for kernel in kernels for n in kernel.ints):
        if not -(2**31) <= number < 2**31:
            raise UnsupportedModelError(f"{op.source or op.name}: its kernel would need {number:,}, beyond 32 bits")
    return kernels


def _variant(kernel: Kernel, cost: Cost, elsewhere: tuple[Elsewhere, ...]) -> Variant:
    return Variant(
        workspace_bytes=align(kernel.workspace_bytes),
        time_ns=cost.time_ns,
        energy_pj=cost.energy_pj,
        kernel=kernel.name,
        elsewhere=elsewhere,
    )


def _tensor(name: str, storages: _Storages, costs: CostModel, store: Store | None, *, waits: bool) -> TensorSpec:
    place: Place = "store" if name in storages.stored else "ram"
    initial: Place = "" if name in storages.computed else place
    final: Place = place if name in storages.final else ""
    size_bytes = storages.size_bytes(name)
    moved = costs.move(size_bytes)
    if store is None:
        return TensorSpec(
            name=name,
            size_bytes=size_bytes,
            initial=initial,
            final=final,
            pageable=False,
            move_ns=moved.time_ns,
            move_pj=moved.energy_pj,
        )
    written, read = (costs.page(store, size_bytes, write=w, waits=waits) for w in (True, False))
    return TensorSpec(
        name=name,
        size_bytes=size_bytes,
        initial=initial,
        final=final,
        page_out_ns=written.time_ns,
        page_out_pj=written.energy_pj,
        page_in_ns=read.time_ns,
        page_in_pj=read.energy_pj,
        store_bytes=page_bytes(size_bytes, int(store.block_bytes.value)),
        move_ns=moved.time_ns,
        move_pj=moved.energy_pj,
    )
