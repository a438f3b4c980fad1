"""Graph → TrainingGraph: loss, backward operators, optimizer updates."""

from poetc.ops._integers import RESCALES
from poetc.ops.losses import LOSSES
from poetc.training._adapters import (
    merged,
    squares_of_norms,
    untied_by_merging,
    untrained_magnitudes,
    with_adapters,
)
from poetc.training._build import takes_batch_statistics
from poetc.training._channels import chosen_channels
from poetc.training._declarations import TRAINING
from poetc.training._evaluation import evaluation
from poetc.training._layers import Layer, adapter_names, is_adapter, layers_of, magnitude_name
from poetc.training._loss import pick_output, plan_losses
from poetc.training._micro import at_batch, divisors, micro_batch_of, renamed
from poetc.training._precision import build, in_precision
from poetc.training._restored_norms import folded, measured, restored_norms
from poetc.training._selection import BEST, Lora, select_parameters, select_updates
from poetc.training._splits import continued, is_partial_sum, share_of, with_own_names
from poetc.training._state import CLIPPED
from poetc.training._updates import Adapter, Channels, Update, Updates, Whole
from poetc.training.options import TrainingOptions
from poetc.training.precisions import PRECISIONS
from poetc.training.precisions._niti_model import STORED, codes_of, exponents_of, numbers_of
