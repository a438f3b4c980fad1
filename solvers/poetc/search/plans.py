"""Plans and sequences from the solution of a relaxation, and random parameters of the eviction heuristic."""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Sequence

import numpy as np

from poetc.solvers.liveness import Profile
from poetc.solvers.model import Model
from poetc.solvers.poetc.bounds.cuts import Relaxation
from poetc.solvers.poetc.search.eviction import Plan, Policy
from poetc.solvers.poetc.settings import RACE


def plan_of(model: Model, relaxation: Relaxation, favour: float) -> Plan:
    """A plan that lets go of the tensors that the relaxation does not hold at a cut.

    Each goes right after its last direct use before that cut.
    """
    cuts, held = relaxation.cuts, relaxation.held
    drop: list[list[int]] = [[] for _ in range(model.n_ops)]
    for t in range(model.n_tensors):
        p = model.producer[t]
        if p >= cuts[0] or (p < 0 and not model.in_ram[t]) or t in held[0]:
            continue
        uses = model.consumers[t]
        k = bisect.bisect_left(uses, cuts[0])
        drop[uses[k - 1] if k else max(p, 0)].append(t)
    for g in range(1, len(cuts)):
        for t in sorted(held[g - 1] - held[g]):
            uses = model.consumers[t]
            k = bisect.bisect_left(uses, cuts[g])
            last = uses[k - 1] if k else 0
            drop[last if last >= cuts[g - 1] else cuts[g] - 1].append(t)
    keep = [t in held[0] for t in range(model.n_tensors)]
    return Plan(tuple(map(tuple, drop)), np.where(np.array(keep), favour, 0.0), tuple(keep))


def lazy_codes(model: Model, relaxation: Relaxation) -> list[int] | None:
    """A sequence that follows a relaxation, with recomputations and page-ins as late as possible.

    Those of a stage come right before the first reader, or at the end of the stage. The sequence may exceed the RAM
    between cuts. None if an operand is not there.
    """
    n, m = model.n_ops, model.n_tensors
    there = {t for t in range(m) if model.in_ram[t]}
    codes: list[int] = []
    unwritten = {*relaxation.paged, *model.page_outs_needed} - {t for t in range(m) if model.on_store[t]}
    waiting = set(model.page_ins_needed)

    def write(tensors: Iterable[int]) -> None:
        chosen = sorted(unwritten.intersection(tensors))
        codes.extend(n + m + t for t in chosen)
        unwritten.difference_update(chosen)

    def execute(v: int) -> None:
        codes.append(v)
        there.difference_update(model.overwritten[v])
        there.update(model.outputs[v])
        write(model.outputs[v])

    def bring(wanted: Iterable[int], run: set[int], load: set[int]) -> bool:
        """Bring all of `wanted` to RAM, with the operators that this takes in ascending order. False if impossible."""
        order: set[int] = set()
        stack = [t for t in wanted if t not in there]
        pages: set[int] = set()
        while stack:
            t = stack.pop()
            p = model.producer[t]
            if t in load or t in waiting:
                pages.add(t)
            elif p in run:
                if p not in order:
                    order.add(p)
                    stack.extend(u for u in model.inputs[p] if u not in there)
            else:
                return False
        for v in sorted(order):
            page_in(pages.intersection(model.inputs[v]) - there)
            execute(v)
        page_in(pages - there)
        return True

    def page_in(tensors: Iterable[int]) -> None:
        for t in sorted(tensors):
            codes.append(n + t)
            there.add(t)
            waiting.discard(t)

    write(sorted(there))
    edges = [*relaxation.cuts, n]
    for v in range(edges[0]):
        if not bring(model.inputs[v], set(), set()):
            return None
        execute(v)
    for g, cut in enumerate(relaxation.cuts):
        run, load = set(relaxation.run[g]), set(relaxation.load[g])
        there &= relaxation.held[g] | relaxation.pinned[g]
        for v in range(cut, edges[g + 1]):
            if not bring(model.inputs[v], run, load):
                return None
            gone = model.overwritten[v]
            for x in sorted(run) if gone else ():  # readers of a tensor that an update overwrites cannot come after it
                if not gone.isdisjoint(model.inputs[x]):
                    bring(model.outputs[x], run, load)
            execute(v)
        last = g + 1 == len(relaxation.cuts)
        after = [t for t in range(m) if model.ends_in_ram[t]] if last else relaxation.held[g + 1]
        if not bring(after, run, load):
            return None
    return codes


def overfull(model: Model, codes: Sequence[int], capacity: int) -> list[tuple[int, int]]:
    """(excess bytes, operator) where a sequence needs more than the capacity, the largest excess first.

    Actions between two first executions count for the second.
    """
    ram = Profile(model, codes).ram
    excesses: list[tuple[int, int]] = []
    seen = [False] * model.n_ops
    worst = 0
    for j, code in enumerate(codes):
        worst = max(worst, int(ram[j]) - capacity)
        if code < model.n_ops and not seen[code]:
            seen[code] = True
            if worst > 0:
                excesses.append((worst, code))
            worst = 0
    return sorted(excesses, key=lambda x: (-x[0], x[1]))


def chain_ends(model: Model, codes: Sequence[int], v: int) -> list[int]:
    """Tensors that are made again before `v`, and divide the others into parts: about as many as a part is long.

    Only tensors count that wait beside `v` for later readers, and are no smaller than their mean. A chain that is made
    again from its beginning fills RAM with them. Where these ends are held, it is made again part by part.
    """
    n, at = model.n_ops, codes.index(v)
    seen: set[int] = set()
    again: dict[int, None] = {}
    for code in codes[:at]:
        if code in seen and code < n:
            again.update(dict.fromkeys(model.outputs[code]))
        seen.add(code)
    later = {t for code in codes[at + 1 :] if code < n for t in model.inputs[code]}
    waiting = [t for t in again if t in later]
    size = sum(model.size[t] for t in waiting)
    large = [t for t in waiting if model.size[t] * len(waiting) >= size]
    step = max(1, round(math.sqrt(len(large))))
    return large[step - 1 :: step]


def sample(random: np.random.Generator, model: Model, around: Policy | None, plan: Plan | None) -> Policy:
    """A random policy; near `around` if given."""
    if around is None:
        alpha, beta, gamma = (random.uniform(*interval) for interval in (RACE.alpha, RACE.beta, RACE.gamma))
    else:
        alpha, beta, gamma = (
            x * float(np.exp(random.normal(0, RACE.spread))) for x in (around.alpha, around.beta, around.gamma)
        )
    level = float(random.choice(RACE.noises))
    noise = random.normal(0, level, model.n_tensors) if level else None
    if around is not None and around.noise is not None and random.random() < RACE.keep_noise:
        noise = around.noise + (noise if noise is not None else 0.0)
    depth_first = bool(random.random() < RACE.depth_first)
    return Policy(alpha=alpha, beta=beta, gamma=gamma, noise=noise, plan=plan, depth_first=depth_first)
