"""The interface of a training job: prepare the data, choose defaults for unset options, build the model."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch

from glassformer.bundle import Bundle, load, save
from glassformer.data import Batches
from glassformer.data.examples import Arrays, Examples
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.families.sidecars import JobInfo
from glassformer.messages import plural, quantity
from glassformer.tokenization.train import Template
from glassformer.training.callbacks import TrainerCallback
from glassformer.training.data_cache import Log
from glassformer.training.hardware import Hardware
from glassformer.training.learner import Learner, count_labels
from glassformer.training.logging.console import format_duration
from glassformer.training.model_setup import (
    SIZE_OPTIONS,
    ModelSize,
    check_overrides,
    choose_size,
    has_fixed_size,
    max_input_length,
)
from glassformer.training.recipe import DEFAULT_MAX_GRAD_NORM, BatchLimits, Recipe, default_intervals
from glassformer.training.sections import DataSection
from glassformer.training.task import TrainingPlan, ValidationResult

PATIENCE = 8  # validations without improvement before a training run of many epochs ends
OVERFITTING_EPOCHS = 10
LONG_TRAINING = 2 * 3600.0  # seconds
SAVE_SECONDS, SAVE_SPEED = 0.1, 1e9  # of every save; bytes per second
SAVED_BYTES = 12  # per weight, with the state of the optimizer
Data = TypeVar("Data", bound=DataSection)


class Job(ABC, Generic[Data]):
    """The job of one run. Call `prepare_data`, then `choose_defaults` (in a new run), then `plan`.

    folder: the run folder. recipe: complete after `choose_defaults`.
    facts: numbers about the data, for the log and the report.
    bundle: the model that is trained, from `plan` on.
    unit: what the loss is summed over, for the log. count: returns the number of units in a batch.
    row_width: width of a row of packed examples; None if they cannot be packed.
    template: special tokens that a tokenizer adds to a text; None if there are no texts.
    text_pairs: whether the data are pairs of texts, also in plain text files.
    """

    unit: str = "examples"
    count: Callable[[Arrays], int] = staticmethod(count_labels)
    row_width: int | None = None
    template: ClassVar[Template | None] = None
    text_pairs: ClassVar[bool] = False
    default_max_len = 128
    training_seconds: float = 0.0  # estimated time of all steps of a new model
    bundle: Bundle
    fine_tuning_options: ClassVar[frozenset[str]] = frozenset()  # that change a model in `model.folder`

    def __init__(self, recipe: Recipe, folder: Path, log: Log) -> None:
        self.recipe, self.folder, self.log = recipe, folder, log
        self.facts: dict[str, Any] = {}

    @property
    def data(self) -> Data:
        section: Any = self.recipe.data
        return section

    @property
    def preset(self) -> str:
        return self.recipe.model.preset or self.recipe.spec.preset

    @property
    def fine_tuning(self) -> bool:
        return self.recipe.model.folder is not None

    @cached_property
    def base(self) -> Bundle | None:
        """The model to fine-tune or evaluate, in float32, if the recipe names one."""
        folder = self.recipe.model.folder
        return None if folder is None else load(folder, dtype="float32")

    @property
    def base_info(self) -> JobInfo:
        """The `job.json` of the base model."""
        return self.base.job if self.base else JobInfo()

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a text."""
        section: Any = self.data
        length: int = section.max_len
        return length

    def fill_max_len(self) -> None:
        """Fill in `data.max_len` if the recipe leaves it open; reject one that the base model cannot read."""
        limit = max_input_length(self.base.spec) if self.base else self.default_max_len
        length = self.max_len or min(limit, self.default_max_len)
        if self.base is not None and length > limit:
            raise InvalidValueError("data.max_len", length, f"at most {limit} for this model")
        self.update_data(max_len=length)

    def update_data(self, **changes: Any) -> None:
        """Change settings of the recipe's data section."""
        self.recipe = replace(self.recipe, data=replace(self.recipe.data, **changes))

    def unsupported_model(self, hint: str) -> UnsupportedError:
        """Return the error for a model or preset that this job cannot train."""
        model = self.recipe.model.folder or self.preset
        return UnsupportedError(f"the model '{model}'", f"the job {self.recipe.job}", hint)

    def log_counts(self, item: str, train: int, valid: int, what: str = "", skipped: str = "") -> None:
        """Log the number of training and validation examples. what: of them. skipped: rows, if any."""
        self.facts |= {f"training {plural(item, 2)}": train, f"validation {plural(item, 2)}": valid}
        self.log(f"{quantity(train, item)}{what} for training, {valid:,} for validation")
        if skipped:
            self.facts["skipped"] = skipped
            self.log(skipped)

    def adopt_base_settings(self) -> None:
        """Use the data settings stored with the model; called before `prepare_data` in an evaluation."""
        return  # most models store no data settings

    def check_model(self) -> None:
        """Reject invalid model overrides, and report ignored ones; called before any data is read."""
        model = self.recipe.model
        if not self.fine_tuning:
            check_overrides(self.preset, model.overrides)
            return
        names = [*(["preset"] if model.preset else []), *model.overrides]
        ignored = [f"model.{name}" for name in names if name not in self.fine_tuning_options]
        if ignored:
            self.log(f"ignored, since model.folder determines the model: {', '.join(ignored)}")

    @abstractmethod
    def prepare_data(self) -> None:
        """Read and check all data, and cache it in the run folder."""

    @abstractmethod
    def choose_defaults(self, hardware: Hardware) -> list[str]:
        """Fill in the settings that the recipe leaves open; return the reasons, for the log."""

    @abstractmethod
    def train_examples(self) -> Examples:
        """Return the training examples, augmented as the recipe specifies."""

    @abstractmethod
    def valid_examples(self) -> Examples:
        """Return the validation examples."""

    @abstractmethod
    def build(self) -> Bundle:
        """Build or load the model with everything that is saved with it."""

    @abstractmethod
    def learner(self, model: Any) -> Learner:
        """Return the model with its loss."""

    @abstractmethod
    def validate(self, learner: Any, valid: Any, device: torch.device) -> ValidationResult:
        """Compute the metrics of the validation examples, with the model in evaluation mode."""

    @property
    def metric(self) -> str:
        """The metric that selects the best model, unless the recipe names one."""
        return self.recipe.spec.metric

    def plan(self) -> TrainingPlan:
        """Build the model, the loss and everything else that the trainer needs."""
        self.bundle = self.build()
        learner = self.learner(self.bundle.model)
        return TrainingPlan(
            learner=learner,
            train=self.train_examples(),
            unit=self.unit,
            count=self.count,
            metric=self.metric,
            validate=partial(self.validate, learner, self.valid_examples()),
            save=partial(save, self.bundle),
            row_width=self.row_width,
        )

    def test(self, folder: Path, device: torch.device) -> dict[str, float]:
        """Return the metrics of the final model in `folder` on the test split; empty without a test split."""
        return {}

    @property
    def callbacks(self) -> Sequence[TrainerCallback]:
        """Code that runs during the training, besides the callbacks of the caller."""
        return ()

    @property
    def has_length(self) -> bool:
        """Whether the recipe says how long to train."""
        return self.recipe.training.max_steps is not None or self.recipe.training.epochs is not None

    def choose_size(self, hardware: Hardware, **data: Any) -> tuple[ModelSize, float, list[str]]:
        """Return size, epochs and reasons of `choose_size` for the data; none if a model is tuned."""
        size, epochs, reason = choose_size(hardware, length_known=self.has_length, **data)
        if not self.fine_tuning and not self.has_length:
            weights = size.weights(data.get("stacks", 1), data["vocab_size"])
            self.training_seconds = 6 * weights * epochs * data["units"] / hardware.measured_flops
        return size, epochs, [] if self.fine_tuning else [reason]

    @property
    def validation_cost(self) -> float:
        """The time to validate an example, relative to a training step on it."""
        return 1 / 3  # no backward pass

    def run_seconds(self, step_seconds: float, weights: int = 0) -> float:
        """Estimate the time of a run, with validations and saves. weights: number of weights to save."""
        training, train = self.recipe.training, self.train_examples()
        assert training.max_steps is not None
        steps, validated = training.max_steps, len(self.valid_examples()) / len(train)
        per_epoch = steps_per_epoch(train, training.batch_limits(), training.gradient_accumulation_steps)
        validations, saves = (
            math.ceil(steps / (interval or steps)) for interval in (training.eval_steps, training.save_steps)
        )
        steps_of_validations = validations * validated * per_epoch * self.validation_cost
        save = SAVE_SECONDS + SAVED_BYTES * weights / SAVE_SPEED
        return step_seconds * (steps + steps_of_validations) + save * (validations + saves)

    def fill_training(self, examples: Examples, *, batch: int, epochs: float, **defaults: Any) -> list[str]:
        """Fill in the training settings that the recipe leaves open; return the reasons, for the log.

        batch, epochs, defaults: values to use for open settings. batch: tokens in a text job, else examples.
        """
        training = self.recipe.training
        limits = training.batch_limits(BatchLimits(**{self.recipe.spec.batch_key: batch}))
        per_epoch = steps_per_epoch(examples, limits, training.gradient_accumulation_steps)
        steps = training.max_steps or max(1, math.ceil((training.epochs or epochs) * per_epoch))
        # several epochs over little data overfit; a length that the recipe sets is kept
        overfits = not self.has_length and steps > OVERFITTING_EPOCHS * per_epoch
        defaults = {
            "early_stopping_patience": PATIENCE if overfits else 0,
            "max_steps": steps,
            **{name: limit for name, limit in limits._asdict().items() if limit is not None},
            "label_smoothing": 0.0,
            "ema": 0.0,
            "lr_scheduler": "linear" if self.fine_tuning else "cosine",
            "packing": False,
            "max_grad_norm": DEFAULT_MAX_GRAD_NORM,
            **default_intervals(steps, per_epoch, training.eval_steps),
            **self.recipe.spec.defaults,
            **defaults,
        }
        if training.lora_r is not None:
            defaults["lr"] = 10 * defaults["lr"]  # few parameters, starting at zero, need larger steps
        chosen = {name: value for name, value in defaults.items() if getattr(training, name) is None}
        self.recipe = replace(self.recipe, training=replace(training, **chosen))
        numbers = {name: value for name, value in chosen.items() if not isinstance(value, str | bool)}
        listed = ", ".join(f"{name} {value:,.12g}" for name, value in numbers.items())
        reasons = [f"training: {listed}"] if listed else []
        if self.training_seconds:
            seconds = self.run_seconds(self.training_seconds / steps)
            long = "; set training.epochs or training.time_limit to shorten it"
            hint = long if seconds > LONG_TRAINING else ""
            reasons.append(f"estimated to take {format_duration(seconds)} on this machine{hint}")
        if self.recipe.batch_warning:
            reasons.append(self.recipe.batch_warning)
        if training.max_steps is not None and training.epochs is not None:
            ignored = f"training.epochs {training.epochs:g} is ignored"
            reasons.append(f"training.max_steps {steps:,} is used, and {ignored}")
        return reasons

    def fill_model(self, defaults: Mapping[str, Any]) -> None:
        """Fill in the model settings that the recipe leaves open, unless a model is fine-tuned.

        The size of a family is chosen for the data; a preset, e.g. bert-base-cased, keeps its published size.
        """
        model = self.recipe.model
        if model.folder is None:
            fixed = SIZE_OPTIONS if has_fixed_size(self.preset) else frozenset[str]()
            chosen = {name: value for name, value in defaults.items() if name not in fixed}
            model = replace(model, preset=self.preset, overrides={**chosen, **model.overrides})
            self.recipe = replace(self.recipe, model=model)


def create_job(recipe: Recipe, folder: Path, log: Log) -> Job[Any]:
    """Create the job of a recipe. folder: the run folder."""
    return recipe.spec.factory(recipe, folder, log)


def steps_per_epoch(examples: Examples, limits: BatchLimits, accumulation_steps: int) -> int:
    """Estimate the number of steps per epoch from the first shuffling pool."""
    batches = Batches(data=examples, rows=limits.batch_size, tokens=limits.batch_tokens)
    first = len(batches.plan(0, 0))
    pools = len(examples) / min(len(examples), batches.pool)
    return max(1, math.ceil(first * pools / accumulation_steps))
