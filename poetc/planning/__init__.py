"""Planning: a Problem with open choices becomes a Solution through a chain of reductions.

`chain.py` is the chain; `Planner` holds the clock and the events. Each file with a `Reduction` is one kind of choice.
"""

from poetc.planning.arena import ram_bytes
from poetc.planning.bundle import Bundle, solve_bundle
from poetc.planning.chain import reductions
from poetc.planning.curve import Point, solve_curve
from poetc.planning.importance import Candidate, Importance
from poetc.planning.kernels import Kernels
from poetc.planning.micro_batches import MicroBatches
from poetc.planning.plain import ENGINE
from poetc.planning.planner import Planner
from poetc.planning.smallest_ram import RamSearch, SmallestRam
from poetc.planning.solution import Solution
from poetc.planning.state import StatePlacement
from poetc.planning.switching import Switching
from poetc.planning.updates import BestUpdates, Goal, Step
