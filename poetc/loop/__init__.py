"""The training loop: epochs of steps, evaluation, the best weights, checkpoints."""

from poetc.loop.checkpoint import Checkpoint, CheckpointStore
from poetc.loop.engine import Engine, HostEngine
from poetc.loop.loop import EpochRow, Loop, LoopOptions, Outcome, Watcher
from poetc.loop.metrics import Loss, default_metrics, parse_metrics

__all__ = [
    "Checkpoint",
    "CheckpointStore",
    "Engine",
    "EpochRow",
    "HostEngine",
    "Loop",
    "LoopOptions",
    "Loss",
    "Outcome",
    "Watcher",
    "default_metrics",
    "parse_metrics",
]
