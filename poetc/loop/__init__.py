"""The training loop: epochs of steps, evaluation, the best weights, checkpoints."""

from poetc.loop.checkpoint import Checkpoint, CheckpointStore, is_checkpoint, read_checkpoint
from poetc.loop.engine import Engine
from poetc.loop.log import Log
from poetc.loop.loop import EpochRow, Loop, LoopOptions, Outcome, Watcher, is_over, outcome_of
from poetc.loop.metrics import Loss, Meter, default_metrics, parse_metrics
