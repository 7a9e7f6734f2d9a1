"""Log the metrics of a run to Weights & Biases or MLflow.

Both are optional packages; they are configured as usual, e.g. with WANDB_PROJECT, WANDB_MODE,
MLFLOW_TRACKING_URI and MLFLOW_EXPERIMENT_NAME. A resumed run continues its record, whose id is stored in the
run folder.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import TYPE_CHECKING, Any

from glassformer.errors import MissingDependencyError
from glassformer.training.callbacks import TrainerCallback
from glassformer.weights.atomic_write import write_file

if TYPE_CHECKING:
    from glassformer.training.trainer import Trainer

IDS_FILE = "trackers.json"  # ids of the run by tracker


class TrackerCallback(TrainerCallback):
    """Base class of trackers: import the package, and continue the record of a resumed run."""

    package: str

    def __init__(self) -> None:
        try:
            self._module: Any = import_module(self.package)
        except ImportError:
            raise MissingDependencyError(self.package, self.package) from None

    def on_train_begin(self, trainer: Trainer) -> None:
        if not trainer.is_main:
            return
        path = trainer.folder / IDS_FILE
        ids = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
        config = {"seed": trainer.seed, **asdict(trainer.options)}
        ids[self.package] = self.start(trainer, ids.get(self.package), config)
        write_file(path, json.dumps(ids).encode())

    @abstractmethod
    def start(self, trainer: Trainer, run_id: str | None, config: Mapping[str, Any]) -> str:
        """Start or continue a record; return its id. run_id: of a run to continue. config: the settings."""


class WandbCallback(TrackerCallback):
    """Log to Weights & Biases.

    options: arguments of `wandb.init`, e.g. project, entity, tags.
    """

    package = "wandb"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    def start(self, trainer: Trainer, run_id: str | None, config: Mapping[str, Any]) -> str:
        defaults = {"name": trainer.folder.name, "dir": str(trainer.folder), "config": dict(config)}
        run = self._module.init(**{**defaults, "id": run_id, "resume": "allow", **self._options})
        return str(run.id)

    def on_log(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        # a validation has the same step as the last training step, so wandb's own step cannot be used
        self._module.log({**logs, "step": trainer.state.step})

    def on_train_end(self, trainer: Trainer) -> None:
        if trainer.is_main:
            self._module.finish()


class MLflowCallback(TrackerCallback):
    """Log to MLflow.

    options: arguments of `mlflow.start_run`, e.g. experiment_id, tags.
    """

    package = "mlflow"

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self._options = options

    def start(self, trainer: Trainer, run_id: str | None, config: Mapping[str, Any]) -> str:
        run = self._module.start_run(**{"run_id": run_id, "run_name": trainer.folder.name, **self._options})
        if run_id is None:  # the parameters of an MLflow run cannot change
            self._module.log_params(dict(config))
        return str(run.info.run_id)

    def on_log(self, trainer: Trainer, logs: Mapping[str, float]) -> None:
        self._module.log_metrics(dict(logs), step=trainer.state.step)

    def on_train_end(self, trainer: Trainer) -> None:
        if trainer.is_main:
            self._module.end_run()


def make_trackers(names: Sequence[str]) -> list[TrainerCallback]:
    """Return the callbacks of the trackers with these names; TensorBoard's files are written by the log."""
    known: dict[str, type[WandbCallback | MLflowCallback]] = {
        "wandb": WandbCallback,
        "mlflow": MLflowCallback,
    }
    return [known[name]() for name in names if name in known]
