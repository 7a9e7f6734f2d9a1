"""Train models: the trainer, jobs, losses, schedules and crash-safe checkpoints."""

from glassformer.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from glassformer.training.losses import cross_entropy, projected_cross_entropy
from glassformer.training.optimizer import LRSchedule

__all__ = [
    "Checkpoint",
    "LRSchedule",
    "cross_entropy",
    "load_checkpoint",
    "projected_cross_entropy",
    "save_checkpoint",
]
