"""Training: checkpoints that survive what machines do to them, and learning rates over time."""

from glassformer.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from glassformer.training.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule

__all__ = [
    "Checkpoint",
    "Constant",
    "Cosine",
    "InverseSqrt",
    "Linear",
    "Schedule",
    "load_checkpoint",
    "save_checkpoint",
]
