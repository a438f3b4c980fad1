"""Rules by which search and relaxations leave out schedules, columns and rows.

Each is safe: with it switched off, the same optimum is found and bounds stay bounds, for more work
(tests/solvers/bounds/test_pruning.py; docs/explanation/bounds.md has the list).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rules:
    """A rule is applied where it is True.

    `search_` rules are those of `search.exhaustive`. `cuts_` rules are those of `bounds.cuts` and `bounds.between`.
    """

    search_useless_leaves: bool = True  # tensors without later readers leave RAM for good
    search_minimal_drops: bool = True  # only sets of tensors leave RAM of which none could stay
    search_useful_again: bool = True  # an operator is repeated only for an output that is useful and not in RAM
    search_cutoff: bool = True  # a state as dear as the best schedule known is not followed
    cuts_useful: bool = True  # no columns for tensors without a reader at or after a cut
    cuts_pinned: bool = True  # no columns for tensors that can neither be made again nor paged: they stay
    cuts_expiry: bool = True  # a tensor that an update has overwritten is not in RAM any more
    cuts_needed_rows: bool = True  # RAM inside a stage counts tensors that it still needs
    cuts_suffixes: bool = True  # all stages behind a cut read tensors there at the cut or made since
    cuts_recomputation_rows: bool = True  # rows for operators that run again, or none if they never fit
    cuts_chain_rows: bool = True  # such rows count operands of other repeated operators
    cuts_slack_rows: bool = True  # a RAM row that no choice can violate is left out


ALL = Rules()
