"""Train models: the trainer, jobs, losses, schedules and crash-safe checkpoints."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from glassformer.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
    from glassformer.training.losses import cross_entropy, projected_cross_entropy
    from glassformer.training.optimizer import LRSchedule

_MODULES = {
    "Checkpoint": "checkpoint",
    "LRSchedule": "optimizer",
    "cross_entropy": "losses",
    "load_checkpoint": "checkpoint",
    "projected_cross_entropy": "losses",
    "save_checkpoint": "checkpoint",
}
__all__ = [
    "Checkpoint",
    "LRSchedule",
    "cross_entropy",
    "load_checkpoint",
    "projected_cross_entropy",
    "save_checkpoint",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is used, so that the names of jobs can be listed without torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
