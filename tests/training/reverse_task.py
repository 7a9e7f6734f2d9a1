"""A small training task: reversing short rows of ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import glassformer
from glassformer.data.examples import PairExamples
from glassformer.data.store import Store, write_store
from glassformer.training.distributed import SingleProcess
from glassformer.training.learner import PairLearner, count_labels
from glassformer.training.logging.run_log import RunLog
from glassformer.training.recipe import TrainingOptions
from glassformer.training.signals import StopSignals
from glassformer.training.task import TrainingPlan, ValidationResult
from glassformer.training.trainer import Trainer
from glassformer.weights.store import save_weights

PAD, START = 0, 3
Change = Callable[[int, Tensor, Tensor], Tensor]
OPTIONS = TrainingOptions(
    max_steps=12,
    batch_tokens=120,
    lr=3e-3,
    warmup_steps=2,
    lr_scheduler="cosine",
    label_smoothing=0.1,
    eval_steps=4,
    save_steps=4,
    packing=False,
    eps=1e-3,  # so that rounding errors in a zero gradient do not matter
)


class Tampered(PairLearner):
    """A learner whose loss is changed by a function of the number of calls, the source and the loss."""

    def __init__(self, model: nn.Module, change: Change) -> None:
        super().__init__(model, label_smoothing=0.1)
        self.change, self.times = change, 0

    def forward(self, src: Tensor, *others: Tensor, **more: Tensor) -> Tensor:
        if self.training:
            self.times += 1
        loss = super().forward(src, *others, **more)
        return self.change(self.times, src, loss) if self.training else loss


def task_in(
    folder: Path, *, dropout: float = 0.1, scores: list[float] | None = None, change: Change | None = None
) -> TrainingPlan:
    """Reverse short rows of ids; a validation returns the next of `scores`, or the loss on ten rows."""
    rng = np.random.default_rng(0)
    if not (folder / "data").exists():
        rows = [rng.integers(4, 20, rng.integers(2, 9)).tolist() for _ in range(60)]
        pairs = [(row, [*reversed(row), START]) for row in rows]
        write_store(folder / "data", ("source", "target"), pairs, max_id=20)
    examples = PairExamples(Store(folder / "data"), pad_id=PAD, start_id=START)
    torch.manual_seed(5)
    sizes = {"d_model": 16, "num_heads": 2, "d_ff": 32, "num_layers": 1, "src_vocab_size": 21}
    model = glassformer.build("original", dropout=dropout, norm="pre", **sizes)
    learner = PairLearner(model, label_smoothing=0.1) if change is None else Tampered(model, change)
    remaining = iter(scores or [])

    def validate(device: torch.device) -> ValidationResult:
        score = next(remaining, None)
        if score is None:
            arrays = examples.batch(np.arange(10), epoch=0)
            batch = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
            score = float(learner.forward(**batch))
        return ValidationResult(metrics={"loss": score})

    return TrainingPlan(
        learner=learner,
        train=examples,
        unit="tokens",
        count=count_labels,
        metric="loss",
        validate=validate,
        save=lambda path: save_weights(path, dict(model.state_dict())),
        row_width=16,
    )


@contextmanager
def trainer_in(
    folder: Path, options: TrainingOptions = OPTIONS, *, task: TrainingPlan | None = None, **task_options: Any
) -> Iterator[Trainer]:
    """A trainer in a folder, for the given task or for reversing."""
    folder.mkdir(exist_ok=True)
    alone = SingleProcess(device=torch.device("cpu" if options.device == "auto" else options.device))
    with RunLog(folder, total_steps=options.max_steps or 1) as log:
        trainer = Trainer.of_plan(task or task_in(folder, **task_options), options, seed=7, folder=folder)
        yield trainer.start(parallel=alone, log=log, signals=StopSignals())


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.learner.model.state_dict().items()}


def logged(folder: Path, kind: str) -> list[dict[str, Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)
