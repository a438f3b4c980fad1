"""What a graph amounts to, whatever its schedule: work, parameters, what training keeps from the forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from poetc.devices.building import is_flash_resident
from poetc.devices.profile import DeviceProfile
from poetc.devices.units import format_bytes
from poetc.graph import Graph, Phase, Role, TrainingGraph
from poetc.ops import bind, spec, view_roots


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    batch: int  # leading dimension of the first input
    operators: int  # without views
    forward_macs: int
    total_macs: int
    total_flops: int  # arithmetic other than multiply-accumulates
    parameters: int  # elements, trained or not
    trained_parameters: int
    state_bytes: int  # parameters, statistics and optimizer state that live from step to step
    constant_bytes: int
    saved_bytes: int  # made by the forward pass (loss included) and read by the backward pass

    @property
    def saved_bytes_per_sample(self) -> int:
        return -(-self.saved_bytes // self.batch)


def compute_totals(graph: Graph) -> Totals:
    """Totals of a model, or of its whole training step. Storages are counted once, however many views they have."""
    roots = view_roots(graph)
    made = {t for op in graph.operators for t in op.outputs}
    given = [t for name, t in graph.tensors.items() if name not in made]
    macs = dict.fromkeys(Phase, 0)
    flops = operators = 0
    forward: set[str] = set()
    read: set[str] = set()
    for op in graph.operators:
        kind = spec(op.kind)
        if kind.is_view:
            continue
        operators += 1
        work = kind.work(bind(op, graph.tensors))
        macs[op.phase] += work.macs
        flops += work.flops
        if op.phase in (Phase.FORWARD, Phase.LOSS):
            forward.update(op.outputs)
        elif op.phase is Phase.BACKWARD:
            read.update(roots[t] for t in op.inputs)
    updated = graph.updates if isinstance(graph, TrainingGraph) else ()
    trained = [t for t in updated if graph.tensors[t].role is Role.PARAMETER]
    weights = [t for t in given if t.role is Role.PARAMETER or (t.role is Role.CONSTANT and t.name in graph.values)]
    first = graph.tensors[graph.inputs[0]].shape if graph.inputs else ()
    return Totals(
        batch=first[0] if first else 1,
        operators=operators,
        forward_macs=macs[Phase.FORWARD],
        total_macs=sum(macs.values()),
        total_flops=flops,
        parameters=sum(t.type.elements for t in weights),
        trained_parameters=sum(graph.tensors[t].type.elements for t in trained),
        state_bytes=sum(t.size_bytes for t in given if t.role.is_state),
        constant_bytes=sum(t.size_bytes for t in given if t.role is Role.CONSTANT),
        saved_bytes=sum(graph.tensors[t].size_bytes for t in sorted(forward & read)),
    )


def flash_needed_bytes(graph: Graph, profile: DeviceProfile) -> int:
    """Flash for constants read in place and the initial image of the state; code comes on top."""
    made = {t for op in graph.operators for t in op.outputs}
    return sum(
        t.size_bytes
        for name, t in graph.tensors.items()
        if name not in made and (t.role.is_state or is_flash_resident(t, graph, profile))
    )


def fit_notes(graph: Graph, profile: DeviceProfile, budget_bytes: int) -> tuple[str, ...]:
    """What of the device is too small for a budget or a model, one line each; empty if all fits.

    Not errors: a schedule for a budget that no board of this kind has is still worth comparing.
    """
    notes: list[str] = []
    if budget_bytes > profile.ram_bytes:
        notes.append(
            f"the budget of {format_bytes(budget_bytes)} is more than the {format_bytes(profile.ram_bytes)} of RAM that"
            f" {profile.name} has: what comes out will not run on it"
        )
    needed = flash_needed_bytes(graph, profile)
    if profile.flash_bytes is not None and needed > profile.flash_bytes:
        notes.append(
            f"constants and the initial state take {format_bytes(needed)} of flash, code not counted;"
            f" {profile.name} has {format_bytes(profile.flash_bytes)}"
        )
    return tuple(notes)
