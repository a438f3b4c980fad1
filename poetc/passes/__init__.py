"""Graph to graph: each pass checks its precondition, runs, and checks its postcondition."""

from poetc.graph import TrainingGraph
from poetc.passes._check import GraphError, check_graph
from poetc.passes._coded_weights import code_model, code_weights
from poetc.passes._encoding import Encoding, encoded, offered, without_encodings
from poetc.passes._fusion import fuse
from poetc.passes._linear_loss import join_losses
from poetc.passes._movement import read_in_place
from poetc.passes._narrow import narrow
from poetc.passes._order import order_backward
from poetc.passes._pass import Pass, run_passes
from poetc.passes._small_ram import for_small_ram, model_as_it_was, model_for_small_ram

STANDARD = (
    Pass("linear-loss", join_losses),
    Pass("coded-weights", code_weights),
    Pass("fusion", fuse),
    Pass("movement", read_in_place),
    Pass("narrow", narrow),
    Pass("order-backward", order_backward),
)


def run_standard(graph: TrainingGraph) -> TrainingGraph:
    """The passes that every training graph goes through before it is costed."""
    return run_passes(graph, STANDARD)
