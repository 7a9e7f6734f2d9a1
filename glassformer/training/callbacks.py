"""Callbacks: code that runs during training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glassformer.training.logging.run_log import StepMetrics
    from glassformer.training.trainer import Trainer


class TrainerCallback:
    """Base class of callbacks; override the methods that you need, and pass an instance to `Trainer`.

    Set `trainer.should_stop = True` to end the training after the current step: a checkpoint is saved and
    the model is written. Under torchrun, every rank calls its callbacks; `trainer.is_main` is true on one.

    >>> class StopAtLoss(TrainerCallback):
    ...     def on_evaluate(self, trainer, metrics):
    ...         trainer.should_stop = metrics["loss"] < 0.1
    """

    def on_train_begin(self, trainer: Trainer) -> None:
        """Called before the first step; `trainer.state.step` is not 0 if a run is resumed."""

    def on_step_end(self, trainer: Trainer, metrics: StepMetrics) -> None:
        """Called after each optimizer step.

        metrics: step, loss, lr, grad_norm, units, seconds, epoch.
        """

    def on_log(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        """Called on the main process when metrics are logged.

        logs: e.g. `train/loss`, `valid/accuracy`.
        """

    def on_evaluate(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Called after each validation.

        metrics: by name.
        """

    def on_save(self, trainer: Trainer, folder: Path) -> None:
        """Called after each checkpoint.

        folder: of all checkpoints of the run.
        """

    def on_train_end(self, trainer: Trainer) -> None:
        """Called when the model is written; not after Ctrl-C."""
