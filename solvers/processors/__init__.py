"""Operators on several processors: where each runs, when, and the least that any choice costs.

`placing` has the costs of a placement and proposes placements, `side_by_side` makes actions run at once, and `bounds`
proves costs. They leave recomputation and paging to solvers for one processor. `exact` searches small problems to the
end, recomputation included; `twice` has one way to recompute in larger ones.
"""

from poetc.solvers.processors.bounds import (
    GRAIN,
    Relaxed,
    above_idle,
    critical_path_ns,
    relaxed,
    shortest_ns,
    weights_of,
)
from poetc.solvers.processors.exact import Exact, can_search, is_roomy, search
from poetc.solvers.processors.placing import (
    Placement,
    are_equal,
    as_ready,
    context_switches,
    heft,
    improved,
    one_at_a_time,
    placed,
    runs_on,
    transfers_apart,
    weight_gradients,
    without_long_transfers,
)
from poetc.solvers.processors.side_by_side import (
    estimate,
    estimate_in_ram,
    one_after_another,
    scheduled,
    side_by_side,
)
from poetc.solvers.processors.twice import repeated_elsewhere
