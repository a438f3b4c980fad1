"""Residencies and RAM of an action sequence, and clean-up: the removal of actions that it does not need.

The rule of liveness is that of `scheduling.complete`: a residency runs from its birth to its last use before the next
birth. A tensor is born where it is computed, paged in, or there at the start.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from poetc.solvers.model import Model


@dataclass(slots=True)
class Residency:
    """One stay of a tensor in RAM; `uses` are the positions that read it, sorted, the end of the sequence included."""

    tensor: int
    birth: int
    uses: list[int] = field(default_factory=list)

    @property
    def end(self) -> int:
        """The last position at which it occupies RAM."""
        return self.uses[-1] if self.uses else self.birth


class Profile:
    """The RAM at every position of a sequence, kept up to date while actions are removed."""

    def __init__(self, model: Model, codes: Sequence[int]) -> None:
        self.model = model
        self.codes = list(codes)
        self.alive = [True] * len(self.codes)
        self.stays: list[list[Residency]] = [[] for _ in range(model.n_tensors)]
        self.born: list[list[Residency]] = []  # by position
        self.read: list[list[Residency]] = []
        self.pairs: list[list[tuple[Residency, Residency]]] = []  # in-place pairs in use at a position
        self._build()

    def _build(self) -> None:
        model, n, m = self.model, self.model.n_ops, self.model.n_tensors
        current: list[Residency | None] = [None] * m
        stays, born, read = self.stays, self.born, self.read
        for t in range(m):
            if model.in_ram[t]:
                current[t] = stay = Residency(t, -1, [])
                stays[t].append(stay)
        length = len(self.codes)
        extra = [0] * length
        for j, code in enumerate(self.codes):
            reads: Sequence[int] = ()
            makes: Sequence[int] = ()
            if code < n:
                reads, makes = model.inputs[code], model.outputs[code]
                extra[j] = model.workspace[code]
            elif code < n + m:
                makes = (code - n,)
            else:
                reads = (code - n - m,)
            used = []
            for t in reads:
                there = current[t]
                if there is None:
                    raise ValueError(f"action {j} reads a tensor that was never made")
                there.uses.append(j)
                used.append(there)
            born_here = []
            for t in makes:
                current[t] = stay = Residency(t, j, [])
                stays[t].append(stay)
                born_here.append(stay)
            read.append(used)
            born.append(born_here)
        self.pairs = [[] for _ in range(length)]
        for t in range(m):
            if model.ends_in_ram[t]:
                there = current[t]
                if there is None:
                    raise ValueError("a tensor that must end in RAM was never made")
                there.uses.append(length)
        delta = [0] * (length + 2)
        for of_tensor, size in zip(stays, model.size, strict=True):
            for stay in of_tensor:
                birth, uses = stay.birth, stay.uses
                delta[birth if birth > 0 else 0] += size
                delta[(uses[-1] if uses else birth) + 1] -= size
        self.ram = np.cumsum(np.array(delta[:length], dtype=np.int64)) + np.array(extra, dtype=np.int64)
        for j, code in enumerate(self.codes):
            if code < n and model.pairs[code]:
                self._choose_pairs(j)

    def _choose_pairs(self, j: int) -> None:
        """Match in-place pairs greedily, required ones first; `complete` may do better, never worse."""
        born = {s.tensor: s for s in self.born[j]}
        read = {s.tensor: s for s in self.read[j]}
        for i, o, required in self.model.ordered_pairs[self.codes[j]]:
            if i in read and o in born and (required or read[i].end == j):
                self.pairs[j].append((read.pop(i), born.pop(o)))
                self.ram[j] -= self.model.size[o]

    @property
    def peak(self) -> int:
        return int(self.ram.max()) if len(self.codes) else 0

    def remaining(self) -> list[int]:
        return [c for c, alive in zip(self.codes, self.alive, strict=True) if alive]

    # --- removal ---

    def try_remove(self, j: int, capacity: int) -> bool:
        """Remove the recomputation or page-in at `j`, if RAM has room to keep its tensors since their last stay."""
        model = self.model
        merges: list[tuple[Residency, Residency]] = []
        for stay in self.born[j]:
            if not stay.uses:
                continue
            stays = self.stays[stay.tensor]
            at = next(k for k, s in enumerate(stays) if s is stay)
            if at == 0:
                return False
            before = stays[at - 1]
            if before.end >= 0 and any(
                a is before and required
                for a, b in (self.pairs[before.end] if before.end < len(self.codes) else [])
                for i, o, required in model.pairs[self.codes[before.end]]
                if i == a.tensor and o == b.tensor
            ):
                return False
            merges.append((before, stay))
        undo = []
        fits = True
        for before, _ in merges:
            end, size = before.end, model.size[before.tensor]
            view = self.ram[max(end + 1, 0) : j]
            broken = 0
            if end >= 0:
                broken = sum(model.size[b.tensor] for a, b in self.pairs[end] if a is before)
                self.ram[end] += broken
            view += size
            undo.append((view, size, end, broken))
            if (len(view) and int(view.max()) > capacity) or (broken and int(self.ram[end]) > capacity):
                fits = False
                break
        if not fits:
            for view, size, end, broken in undo:
                view -= size
                if broken:
                    self.ram[end] -= broken
            return False
        for before, stay in merges:
            if before.end >= 0:
                self.pairs[before.end] = [p for p in self.pairs[before.end] if p[0] is not before]
            before.uses.extend(stay.uses)
            self.stays[stay.tensor].remove(stay)
            for position in stay.uses:
                if position < len(self.codes):
                    self.read[position] = [before if s is stay else s for s in self.read[position]]
                    self.pairs[position] = [(before if a is stay else a, b) for a, b in self.pairs[position]]
        self._unmake(j, {id(stay) for _, stay in merges})
        return True

    def _unmake(self, j: int, merged: Set[int] = frozenset()) -> None:
        """Delete action `j` with the stays that it begins, but for those that others have become part of."""
        size = self.model.size
        for stay in self.born[j]:
            if id(stay) not in merged:
                self.ram[j] -= size[stay.tensor]
                self.stays[stay.tensor].remove(stay)
        for _, b in self.pairs[j]:
            self.ram[j] += size[b.tensor]
        self.pairs[j] = []
        self._delete(j)

    def _delete(self, j: int) -> None:
        """Take action `j` away. Stays that only it read get shorter; actions that nobody needs any more go as well."""
        model, n = self.model, self.model.n_ops
        self.alive[j] = False
        if self.codes[j] < n:
            self.ram[j] -= model.workspace[self.codes[j]]
        for stay in self.read[j]:
            was = stay.end
            stay.uses.remove(j)
            now = stay.end
            if now < was:
                self._grow_back(stay, now, was)
            if not stay.uses and stay.birth >= 0:
                self._drop_if_useless(stay.birth)
        self.read[j], self.born[j] = [], []

    def _grow_back(self, stay: Residency, now: int, was: int) -> None:
        self.ram[max(now + 1, 0) : was + 1] -= self.model.size[stay.tensor]

    def _drop_if_useless(self, j: int) -> None:
        """Remove action `j` if none of its tensors is read and it is not the first execution of an operator."""
        if not self.alive[j] or any(s.uses for s in self.born[j]):
            return
        model, code = self.model, self.codes[j]
        if code < model.n_ops:
            # The first stay of an output is the one made by the first execution.
            if any(self.stays[s.tensor][0] is s for s in self.born[j]) or not model.outputs[code]:
                return
        elif code >= model.n_ops + model.n_tensors or (
            self.stays[code - model.n_ops][0] is self.born[j][0] and model.ends_in_ram[code - model.n_ops]
        ):
            return
        self._unmake(j)

    def drop_useless(self) -> None:
        for j in range(len(self.codes) - 1, -1, -1):
            if self.alive[j] and self.born[j]:
                self._drop_if_useless(j)
        self._drop_unread_pages()

    def _drop_unread_pages(self) -> None:
        """Remove page-outs that no later page-in and not the end asks for, and second ones."""
        model, n, m = self.model, self.model.n_ops, self.model.n_tensors
        read_later: set[int] = set()
        written: set[int] = {t for t in range(m) if model.on_store[t]}
        outs: list[int] = []
        for j in range(len(self.codes) - 1, -1, -1):
            if not self.alive[j]:
                continue
            code = self.codes[j]
            if n <= code < n + m:
                read_later.add(code - n)
            elif code >= n + m:
                outs.append(j)
                t = code - n - m
                if t not in read_later and not model.ends_on_store[t]:
                    self._delete(j)
        for j in reversed(outs):
            if self.alive[j]:
                t = self.codes[j] - n - m
                if t in written:
                    self._delete(j)
                written.add(t)


def early_page_outs(model: Model, codes: Sequence[int]) -> list[int]:
    """The same actions with every page-out as early as it can be, which costs nothing.

    Each comes right behind the last action before it that makes or reads its tensor. So a page-out keeps no tensor in
    RAM that is not there anyway.
    """
    n, m = model.n_ops, model.n_tensors
    touched = [-1] * m
    behind: list[list[int]] = [[] for _ in range(len(codes) + 1)]
    for j, code in enumerate(codes):
        if code < n:
            for t in (*model.inputs[code], *model.outputs[code]):
                touched[t] = j
        elif code < n + m:
            touched[code - n] = j
        else:
            behind[touched[code - n - m]].append(code)  # -1, for tensors there since the start, is the last entry
    early = behind[-1]
    for j, code in enumerate(codes):
        if code < n + m:
            early.append(code)
            early += behind[j]
    return early


def improve(model: Model, codes: Sequence[int], capacity: int) -> list[int]:
    """Clean up: page out as early as possible, then remove recomputations and page-ins that RAM has room to avoid.

    The dearest per byte and position are removed first.
    """
    n, m = model.n_ops, model.n_tensors
    profile = Profile(model, early_page_outs(model, codes))
    profile.drop_useless()
    seen = [False] * n
    candidates: list[tuple[float, int]] = []
    for j, code in enumerate(profile.codes):
        if code < n:
            if seen[code] and profile.alive[j]:
                candidates.append((-model.op_cost[code] / _footprint(profile, j), j))
            seen[code] = True
        elif code < n + m and profile.alive[j]:
            candidates.append((-model.in_cost[code - n] / _footprint(profile, j), j))
    for _ in range(3):
        changed = False
        for _, j in sorted(candidates):
            if profile.alive[j] and profile.try_remove(j, capacity):
                changed = True
        if not changed:
            break
    profile.drop_useless()
    return profile.remaining()


def _footprint(profile: Profile, j: int) -> float:
    """Bytes times positions that it would take to keep the tensors in place of making them again at `j`."""
    area = 1
    for stay in profile.born[j]:
        stays = profile.stays[stay.tensor]
        at = next(k for k, s in enumerate(stays) if s is stay)
        if at:
            area += profile.model.size[stay.tensor] * (j - stays[at - 1].end)
    return float(area)
