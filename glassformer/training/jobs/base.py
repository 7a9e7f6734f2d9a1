"""What every job does: gather its data, choose what the recipe leaves open, make the task to be trained."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.data import Batches
from glassformer.data.examples import Examples
from glassformer.training.model_setup import SIZED, Machine, is_sized, refuse_words
from glassformer.training.recipe import Recipe
from glassformer.training.task import Task
from glassformer.training.text_encoding import Say


class Job(ABC):
    """One run's job. `gather`, then `choose` (on a fresh run), then `task`.

    folder: the run's own. recipe: after `choose`, with nothing left open.
    """

    usual: str  # the preset where a recipe names none

    def __init__(self, recipe: Recipe, folder: Path, say: Say) -> None:
        self.recipe, self.folder, self.say = recipe, folder, say
        self.facts: dict[str, Any] = {}

    def follow_model(self) -> None:
        """Before `gather`, where a saved model is only measured: take from it how data is to be read."""
        return  # most models leave nothing to say

    def check(self) -> None:
        """Before anything is read: refuse words of which no choice of the others makes a model."""
        if self.recipe.model.folder is None:
            refuse_words(self.preset, self.recipe.model.words)

    @property
    def preset(self) -> str:
        return self.recipe.model.preset or self.usual

    @abstractmethod
    def gather(self) -> None:
        """Read and check all data, and leave it ready in the run folder, where it is found again."""

    @abstractmethod
    def choose(self, machine: Machine) -> list[str]:
        """Fill in what the recipe leaves open, and say why in sentences."""

    @abstractmethod
    def task(self) -> Task:
        """Build the model, and all the loop needs."""

    def test(self, folder: Path, device: torch.device) -> dict[str, float]:
        """How good the finished model in a folder is on what was kept for the very end, if anything was."""
        return {}

    def settle(self, examples: Examples, *, batch: int, passes: float, **words: Any) -> list[str]:
        """Fill in the training's open settings: those given in `words`, and what follows from the steps.

        A setting the recipe has is never changed.
        """
        training = self.recipe.training
        batch = training.batch or batch
        a_pass = steps_in_a_pass(examples, batch, training.accumulate)
        epochs = training.epochs or passes
        steps = training.steps or max(1, math.ceil(epochs * a_pass))
        words = {
            "steps": steps,
            "batch": batch,
            "warmup": max(1, min(4000, steps // 10)),
            # after every pass, but 20 to 40 times in all
            "validate_every": max(1, steps // 40, min(a_pass, steps // 20)),
            "label_smoothing": 0.0,
            "schedule": "cosine",
            "batching": "lengths",
            **words,
        }
        words["save_every"] = training.validate_every or words["validate_every"]
        words["log_every"] = max(1, min(50, steps // 100))
        left_open = {name: value for name, value in words.items() if getattr(training, name) is None}
        self.recipe = replace(self.recipe, training=replace(training, **left_open))
        told = ", ".join(
            f"{name} {value:,}" if isinstance(value, int) else f"{name} {value:g}"
            for name, value in left_open.items()
            if isinstance(value, int | float)
        )
        return [f"training: {told}"] if told else []

    @property
    def length_given(self) -> bool:
        """Whether the recipe says how long to train."""
        return self.recipe.training.steps is not None or self.recipe.training.epochs is not None

    def settle_model(self, preset: str, words: Mapping[str, Any]) -> None:
        """Fill in the model's open words; a recipe that goes on from a folder has none.

        A family is sized for the data; a preset of a published size, as bert-base-cased, keeps it.
        """
        model = self.recipe.model
        if model.folder is None:
            published = is_sized(self.preset)
            chosen = {name: word for name, word in words.items() if not (published and name in SIZED)}
            chosen |= model.words
            self.recipe = replace(
                self.recipe, model=replace(model, preset=model.preset or preset, words=chosen)
            )


def steps_in_a_pass(examples: Examples, batch: int, accumulate: int) -> int:
    """About how many steps go through the data once, counted on its first pool."""
    batches = Batches(data=examples, tokens=batch)
    first = len(batches.plan(0, 0))
    pools = len(examples) / min(len(examples), batches.pool)
    return max(1, math.ceil(first * pools / accumulate))
