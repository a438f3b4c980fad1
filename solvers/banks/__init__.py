"""Tensors in several banks of RAM: where each lies, and the least that any choice costs.

`placing` chooses banks for the tensors of a schedule, and `bounds` and `crossing` prove costs. `repeating` has
schedules with some recomputation. More of it, and paging, are left to solvers for one RAM.
"""

from poetc.solvers.banks.bounds import relaxed
from poetc.solvers.banks.crossing import Crossing, placement_bound
from poetc.solvers.banks.placing import Placed, place_in_banks, unplaceable
from poetc.solvers.banks.repeating import Order, Repeat
