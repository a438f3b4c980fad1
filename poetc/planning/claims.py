"""The claim that is stated, of several that are proven about the best schedule."""

from __future__ import annotations

from collections.abc import Mapping

from poetc.planning.settings import CLAIMS
from poetc.planning.solution import Solution
from poetc.scheduling.scope import Scope


def widest(bounds: Mapping[Scope, int], best: Solution, gap: float) -> Scope:
    """The scope with the highest bound, or one that covers it, if the narrower claim closes little of the gap.

    `gap`: the asked one. A claim that alone proves it is made.
    """
    scope = max(bounds, key=lambda scope: bounds[scope])
    enough = (1 - gap) * best.cost
    for other in sorted(bounds, key=lambda other: -bounds[other]):
        is_little = bounds[scope] - bounds[other] <= CLAIMS.narrower * (best.cost - bounds[other])
        if other.covers(scope) and is_little and not bounds[other] < enough <= bounds[scope]:
            scope = other
    return scope
