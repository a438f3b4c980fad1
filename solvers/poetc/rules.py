"""Rules by which search and relaxations leave things out. Each is safe: switched off, the same optimum is found
and bounds stay bounds, for more work (tests/solvers/test_rules.py; docs/DESIGN.md has the list).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """True: applied. `search_`: in `search.exhaustive`; `cuts_`: in `bounds.cuts`, `.between` and, through them,
    `.staged`.
    """

    search_useless_leaves: bool = True  # what nothing to come can read leaves RAM at once, and is never brought back
    search_minimal_drops: bool = True  # only sets of tensors leave RAM of which none could stay
    search_useful_again: bool = True  # an operator is repeated only for an output that is useful and not in RAM
    search_cutoff: bool = True  # what costs at least as much as the best schedule known is not followed
    cuts_useful: bool = True  # no columns for tensors that nothing at or after a cut can use
    cuts_pinned: bool = True  # what can neither be made again nor paged is in RAM while it has readers: no decision
    cuts_expiry: bool = True  # what an update has taken over is not in RAM any more
    cuts_needed_rows: bool = True  # RAM inside a stage counts what the stage still needs, unless it is made again
    cuts_suffixes: bool = True  # from each cut on, all stages together read what is there at the cut or made since
    cuts_recomputation_rows: bool = True  # RAM while an operator is repeated; what then never fits is not repeated
    cuts_chain_rows: bool = True  # RAM while an operator is repeated counts what others, before and after it, need then
    cuts_slack_rows: bool = True  # a RAM row that no choice can violate is left out


ALL = Rules()
