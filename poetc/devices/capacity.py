"""Whether a model and a budget fit a device: flash for constants and state, RAM for the budget."""

from __future__ import annotations

from poetc.devices.building import is_flash_resident
from poetc.devices.profile import DeviceProfile
from poetc.devices.units import format_bytes
from poetc.graph import Graph


def flash_needed_bytes(graph: Graph, profile: DeviceProfile) -> int:
    """Flash for constants read in place and the initial image of the state; code comes on top."""
    results = {t for op in graph.operators for t in op.outputs}
    return sum(
        t.size_bytes
        for name, t in graph.tensors.items()
        if name not in results and (t.role.is_state or is_flash_resident(t, graph, profile))
    )


def fit_notes(graph: Graph, profile: DeviceProfile, budget_bytes: int, stored_bytes: int = 0) -> tuple[str, ...]:
    """A line for each memory of the device that is too small for the budget or the model; empty if all fits.

    `stored_bytes`: of state that lives on the store. Its first version is in flash, or comes on the store.
    These are no errors: a schedule for a budget that no board of this kind has is still worth comparing.
    """
    notes: list[str] = []
    if budget_bytes > profile.ram_bytes:
        notes.append(
            f"the budget of {format_bytes(budget_bytes)} is more than the {format_bytes(profile.ram_bytes)} of RAM that"
            f" {profile.name} has: the program will not run on it"
        )
    needed = flash_needed_bytes(graph, profile)
    if profile.flash_bytes is None or needed <= profile.flash_bytes:
        return tuple(notes)
    if needed - stored_bytes <= profile.flash_bytes:
        notes.append(
            f"{profile.name} has {format_bytes(profile.flash_bytes)} of flash:"
            f" {format_bytes(stored_bytes)} of initial state have to come on the store"
        )
    else:
        notes.append(
            f"constants and the initial state take {format_bytes(needed - stored_bytes)} of flash, code not counted;"
            f" {profile.name} has {format_bytes(profile.flash_bytes)}"
        )
    return tuple(notes)
