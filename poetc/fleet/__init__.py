"""A fleet: many clients train one model, each on data of its own, and a server averages their weights.

Nothing here needs Flower; `poetc.flower` turns its messages into calls of this package.
"""

from poetc.fleet.board import Board
from poetc.fleet.data import Data, Source, read_data
from poetc.fleet.frames import BoardError
from poetc.fleet.participant import Evaluated, Participant, Trained
from poetc.fleet.update import Quantizer
from poetc.fleet.weights import MAX_UPDATE_NORM, FleetModel, UnsoundUpdate, require_sound
