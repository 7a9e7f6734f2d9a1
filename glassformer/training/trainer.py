"""The training loop.

A run is a function of its recipe and its data. Each micro-batch seeds its random numbers from the seed, the
step and its index within the step, so the state of a run is a step and a position in the data. A checkpoint
holds these with the weights, and a resumed run is bit-identical to an uninterrupted one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle, load, save
from glassformer.core.build import matches_spec, unique_state_dict
from glassformer.core.lora import merge_lora, remove_lora
from glassformer.core.model import AnyModel
from glassformer.data import DataPosition
from glassformer.data.batches import ROW_SEPARATOR
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
    is_out_of_memory,
)
from glassformer.pretrained import AVERAGED, BEST, MODEL, REQUEST
from glassformer.training.callbacks import TrainerCallback
from glassformer.training.checkpoint import (
    Checkpoint,
    CheckpointManager,
    average_folders,
    fill,
    model_state,
    replace_folder,
    save_snapshot,
    snapshot_steps,
)
from glassformer.training.data_loader import DataLoader, MicroBatch, StepBatches, make_batches
from glassformer.training.datasets import (
    Collate,
    Dataset,
    DatasetLoader,
    DatasetOptions,
    EvaluationBatches,
    collate_equal,
    to_device,
)
from glassformer.training.distributed import Fsdp, Parallel
from glassformer.training.hardware import (
    autocast,
    compile_learner,
    configure_torch,
    device_for,
    dtype_of,
    peak_flops,
)
from glassformer.training.learner import (
    BatchNormState,
    Learner,
    enable_gradient_checkpointing,
    flops_per_token,
    model_parameters,
)
from glassformer.training.logging.console import format_number
from glassformer.training.logging.report import write_report
from glassformer.training.logging.run_log import RunLog, StepMetrics
from glassformer.training.logging.trackers import make_trackers
from glassformer.training.model_setup import select_trainable
from glassformer.training.optimizer import ExponentialMovingAverage, LossScale, LRSchedule, scales_gradients
from glassformer.training.recipe import (
    DEFAULT_MAX_GRAD_NORM,
    TrainingOptions,
    default_intervals,
    parse_duration,
    parse_section,
    section_dict,
)
from glassformer.training.session import RESUMABLE, Session, check_unchanged, has_results, open_session
from glassformer.training.signals import StopSignals
from glassformer.training.task import (
    FunctionTask,
    LossFunction,
    MetricsFunction,
    Sample,
    TaskLearner,
    TrainingPlan,
    TrainingTask,
    ValidationResult,
    lower_is_better,
)
from glassformer.weights.atomic_write import write_file
from glassformer.weights.checksums import write_checksums
from glassformer.weights.store import open_weights, save_weights

LOSS_SPIKE = 10.0  # a step whose loss is this many times the running mean is skipped
MIN_MEAN_LOSS = 0.2  # lower bound for spike detection: the mean loss may be near 0, or negative for a density
MEAN_LOSS_AFTER = 50  # steps until the running mean is meaningful
MEAN_LOSS_WEIGHT = 0.02  # of a step in the running mean of the loss
SHOWN_ROWS = 8

DEFAULT_BATCH_SIZE, DEFAULT_EPOCHS, DEFAULT_LR = 32, 3.0, 1e-3  # of a training run without a recipe

Outcome = Literal["finished", "interrupted", "early stop", "stopped", "time limit"]


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """How a training run ended.

    outcome: "finished", "early stop", "stopped" by a callback, "time limit" or "interrupted" by a signal.
    step: the last step. metrics: of the last validation in this process.
    exit_code: 0, or 128 plus the signal that stopped it.
    """

    outcome: Outcome
    folder: Path
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    exit_code: int = 0

    def raise_signal(self) -> None:
        """Raise KeyboardInterrupt or SystemExit if a signal stopped the training."""
        if self.exit_code == 128 + signal.SIGINT:
            raise KeyboardInterrupt
        if self.exit_code:
            raise SystemExit(self.exit_code)


@dataclass(eq=False)
class DivergedError(GlassformerError):
    """Too many consecutive steps had a non-finite or far too large loss. examples: rows of the last step."""

    steps: int
    last_step: int
    examples: str
    hint: str = "lower training.lr, inspect these examples, or raise training.max_skipped_steps"
    template: ClassVar[str] = (
        "{steps} consecutive steps had a non-finite or far too large loss, the last one step {last_step:,} "
        "(examples {examples}); the weights are those before them"
    )


@dataclass(eq=False)
class TrainingMemoryError(GlassformerError):
    """A step did not fit into memory, and cannot be split further."""

    step: int
    examples: int
    reason: str
    hint: str = "lower the batch size, or set training.gradient_checkpointing: true"
    template: ClassVar[str] = "out of memory in step {step:,} with {examples} examples at once ({reason})"


@dataclass
class TrainState:
    """The state of a run without its tensors; saved in every checkpoint.

    position: in the data. splits: number of parts that each micro-batch is split into, after running out of
    memory. stale: number of validations since the last improvement. averaged: steps and scores of the
    weights to average. data_state: of an iterable dataset that has one. threads: number of CPU threads.
    """

    step: int = 0
    position: DataPosition = field(default_factory=DataPosition)
    skipped: int = 0
    consecutive_skipped: int = 0
    splits: int = 1
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    averaged: list[tuple[int, float]] = field(default_factory=list)
    data_state: Any = None
    threads: int | None = None

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrainState:
        averaged = [(int(step), float(score)) for step, score in data["averaged"]]
        return cls(**{**data, "position": DataPosition(*data["position"]), "averaged": averaged})


class Trainer:
    """Train any module, with your own loss, dataset, metrics and callbacks, in the loop of the built-in jobs.

    A step runs `gradient_accumulation_steps` micro-batches under autocast (mixed precision), clips the
    gradient, sets the learning rate of the schedule, runs the optimizer and updates the EMA of the weights.
    Validation, early stopping and checkpoints follow at their intervals.

    model: a module, or a model with its tokenizer and files as `glassformer.load` returns it. A model of this
        library is saved as a model folder that `load` reads, any other module as `model.safetensors`.
    task: the loss and the metrics; see `TrainingTask`.
    loss: instead of a task, a function of model and batch that returns the mean loss, or (sum, count).
    train_dataset: map-style or iterable `torch.utils.data` dataset, or any sequence or iterable of examples.
        An iterable is resumed with its `state_dict` and `load_state_dict` if it has both and the state is
        JSON data, otherwise by skipping.
    eval_dataset: dataset for validation; without it nothing is validated.
    collate_fn: makes a batch from a list of examples; by default torch's `default_collate`.
    compute_metrics: with `loss`, a function of model and batches that returns more metrics by name.
    callbacks: see `TrainerCallback`.
    folder: the run folder. If it holds an unfinished run with the same settings, `train` resumes it.
    seed: of the order of the examples, of dropout, and of random numbers in the dataset.
    shuffle: shuffle a map-style dataset in each epoch.
    num_workers: processes that load the batches of a map-style dataset; 0 loads them in this process.
    options: keys of the `training` section of a recipe, e.g. max_steps, epochs, batch_size, lr, ema,
        precision, early_stopping_patience; by default 3 epochs, 32 examples per batch, lr 0.001.

    >>> from tempfile import TemporaryDirectory
    >>> examples = [(torch.tensor([x]), torch.tensor([2 * x])) for x in torch.linspace(-1, 1, 64).tolist()]
    >>> def loss(model, batch):
    ...     inputs, targets = batch
    ...     return nn.functional.mse_loss(model(inputs), targets)
    >>> with TemporaryDirectory() as folder:
    ...     trainer = Trainer(
    ...         nn.Linear(1, 1), loss=loss, train_dataset=examples, folder=folder, max_steps=120, lr=0.1
    ...     )
    ...     trainer.train().outcome
    'finished'
    >>> round(float(trainer.model.weight), 1)
    2.0
    """

    should_stop: bool = False  # set by a callback to end the training
    deadline: float = math.inf
    metric: str = "loss"
    log: RunLog
    _task: TrainingTask | None = None  # None for the plan of a job
    _stop_outcome: Outcome = "interrupted"

    def __init__(
        self,
        model: nn.Module | Bundle,
        task: TrainingTask | None = None,
        *,
        loss: LossFunction | None = None,
        train_dataset: Dataset,
        eval_dataset: Dataset | None = None,
        collate_fn: Collate | None = None,
        compute_metrics: MetricsFunction | None = None,
        callbacks: Sequence[TrainerCallback] = (),
        folder: str | Path | None = None,
        seed: int = 1,
        shuffle: bool = True,
        num_workers: int = 0,
        **options: Any,
    ) -> None:
        if folder is None:
            raise MissingValueError("folder", "to train", 'pass the run folder, e.g. folder="runs/x"')
        if task is None:
            if loss is None:
                raise MissingValueError(
                    "task", "to train", "pass a TrainingTask, or a loss function as loss="
                )
            task = FunctionTask(loss, compute_metrics)
        elif loss is not None or compute_metrics is not None:
            name = "compute_metrics" if loss is None else "loss"
            raise ConflictError(("task", name), "both are given", "define it in the task")
        collate_fn = collate_fn or collate_equal
        data = DatasetOptions(
            dataset=train_dataset, collate_fn=collate_fn, shuffle=shuffle, num_workers=num_workers
        )
        requested = parse_section(TrainingOptions, options)
        training = fill_options(requested, data.examples)
        module: nn.Module = model.model if isinstance(model, Bundle) else model
        self.model, self._eval_dataset, self._collate_fn = module, eval_dataset, collate_fn
        self._task, self._requested = task, section_dict(requested)
        self._training_examples = data.examples
        self._unfrozen = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        library_model = isinstance(model, Bundle) or (isinstance(module, AnyModel) and matches_spec(module))
        self._initialize(
            TrainingPlan(
                learner=TaskLearner(module, task),
                train=data,
                unit=task.unit,
                count=None,
                metric=task.metric,
                validate=None if eval_dataset is None else self._evaluate,
                save=partial(save, model) if library_model else partial(save_module, module),  # type: ignore[arg-type]
                load=(lambda path: unique_state_dict(load(path).model)) if library_model else open_weights,
                optimizer=task.optimizer,
            ),
            training,
            seed=seed,
            folder=Path(folder),
            callbacks=callbacks,
        )

    @classmethod
    def of_plan(
        cls,
        plan: TrainingPlan,
        options: TrainingOptions,
        *,
        seed: int,
        folder: Path,
        callbacks: Sequence[TrainerCallback] = (),
        facts: Mapping[str, Any] | None = None,
    ) -> Trainer:
        """Return the trainer of a job's plan, with all options set. facts: about the run, for its log."""
        trainer = cls.__new__(cls)
        trainer.model = plan.learner.model
        trainer._initialize(plan, options, seed=seed, folder=folder, callbacks=callbacks, facts=facts)
        return trainer

    def _initialize(
        self,
        plan: TrainingPlan,
        options: TrainingOptions,
        *,
        seed: int,
        folder: Path,
        callbacks: Sequence[TrainerCallback],
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        assert options.max_steps is not None
        self.plan, self.options, self.seed, self.folder = plan, options, seed, folder
        self.facts = facts or {}
        self.max_steps = options.max_steps
        self.callbacks = [*callbacks, *make_trackers(options.report_to)]
        self.state = TrainState()
        self.metrics: Mapping[str, float] = {}  # of the last validation

    def start(
        self, *, parallel: Parallel, log: RunLog, signals: StopSignals, started: float | None = None
    ) -> Trainer:
        """Wrap the model and build everything else that steps need; `run_steps` then trains from the state.

        started: when the time limit starts, as `time.monotonic` returns it; by default now.
        """
        plan, options = self.plan, self.options
        self.parallel, self.log, self.signals = parallel, log, signals
        if trainable := select_trainable(plan.learner.model, options):
            log.message(trainable)
        self.device = parallel.device
        self.dtype = dtype_of(options, self.device)
        if options.time_limit is not None:
            start = time.monotonic() if started is None else started
            self.deadline = start + parse_duration(options.time_limit)
        self.schedule = LRSchedule(
            kind=options.lr_scheduler or "constant",
            warmup_steps=options.warmup_steps or 0,
            max_steps=self.max_steps,
            min_lr_ratio=options.min_lr_ratio,
        )
        self.metric = options.metric_for_best_model or plan.metric or "loss"
        if reason := compile_learner(plan.learner, options, self.device):
            log.message(reason)
        if isinstance(plan.learner, TaskLearner):  # a job builds the same weights on every rank
            parallel.broadcast_weights(plan.learner)
        self.module = parallel.wrap(plan.learner)
        self.learner = cast(Learner, parallel.unwrap(self.module))
        self.parameters = model_parameters(self.learner)
        total = sum(p.numel() for p in self.learner.parameters())
        if not self.parameters and (total or self._task):  # a baseline of a job has nothing to train
            hint = "check training.freeze, and requires_grad of the parameters"
            raise InvalidValueError("the number of trained parameters", 0, f"some of {total:,}", hint)
        self.batch_norm_state = BatchNormState(self.learner)
        self.optimizer = plan.optimizer(self.parameters, options)
        self.peak_lrs = [group["lr"] for group in self.optimizer.param_groups]
        self.ema = ExponentialMovingAverage(self.parameters, options.ema) if options.ema else None
        self.loss_scale = LossScale(self.device) if self.dtype == torch.float16 else None
        self.mean_loss = torch.zeros((), device=self.device)
        self.checkpoints = CheckpointManager(
            self.folder / "checkpoints", parallel, keep=options.save_total_limit
        )
        self.snapshots = snapshot_steps(options.snapshots, self.max_steps)
        self.loader = self._make_loader()
        tokens = self.plan.unit == "tokens"  # an image or a series has an unknown number of them
        self.flops_per_unit = flops_per_token(self.learner) if tokens else 0.0
        self.data_seconds = 0.0  # spent waiting for data
        self._compiled = False  # whether a compiled step succeeded
        self._pending: deque[tuple[int, Tensor, str]] = deque()  # steps whose loss is not yet checked
        return self

    def _make_loader(self) -> DataLoader | DatasetLoader:
        plan, options = self.plan, self.options
        common: dict[str, Any] = {
            "accumulation_steps": options.gradient_accumulation_steps,
            "rank": self.parallel.rank,
            "ranks": self.parallel.ranks,
        }
        if isinstance(plan.train, DatasetOptions):
            assert options.batch_size is not None
            return DatasetLoader(data=plan.train, batch_size=options.batch_size, seed=self.seed, **common)
        assert plan.count is not None
        batches, examples = make_batches(plan.train, options, seed=self.seed, row_width=plan.row_width)
        pinned = self.device.type == "cuda"
        return DataLoader(batches=batches, examples=examples, count=plan.count, pin_memory=pinned, **common)

    @property
    def is_main(self) -> bool:
        """Whether this process logs and writes files; always true without torchrun."""
        return self.parallel.main

    def _call(self, event: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, event)(self, *arguments)

    # ---- the whole training ----------------------------------------------------------------------------

    def train(self) -> RunResult:
        """Train to the end, starting or resuming from the newest checkpoint in the folder.

        Afterwards the folder `model` in the run folder holds the best weights (or the last, without
        `eval_dataset`), and so does the module. Ctrl-C saves a checkpoint and raises KeyboardInterrupt;
        another signal raises SystemExit.
        """
        with open_session(self.folder, self.options) as session:
            self._resume_settings(session.parallel)
            torch.manual_seed(self.seed)  # for new adapters
            result = self.train_in(session)
        result.raise_signal()
        return result

    def _resume_settings(self, parallel: Parallel) -> None:
        """Use the settings of the run in the folder, if there is one, and store those of this run.

        A setting that may not change raises an error; one that was chosen for the run keeps its value.
        """
        path = self.folder / REQUEST
        dataset = {"examples": self._training_examples}
        request = {"seed": self.seed, "training": self._requested, "train_dataset": dataset}
        if path.is_file() and has_results(self.folder):
            before = json.loads(path.read_text(encoding="utf-8"))
            chosen = before.pop("chosen", {})
            check_unchanged(self.folder, json.loads(json.dumps(request)), before)
            kept = {name: value for name, value in chosen.items() if name not in RESUMABLE}
            self.options = parse_section(TrainingOptions, {**section_dict(self.options), **kept})
        parallel.any(False)  # every rank has read the file
        if parallel.main:
            write_file(path, json.dumps({**request, "chosen": section_dict(self.options)}, indent=2).encode())

    def train_in(self, session: Session) -> RunResult:
        """Train in an open session; a signal is reported by the exit code of the result."""
        parallel, options, root = session.parallel, self.options, self.folder
        if options.gradient_accumulation_steps % parallel.ranks:
            raise ConflictError(
                ("training.gradient_accumulation_steps", "the number of processes"),
                f"{options.gradient_accumulation_steps} batches per step cannot be divided among "
                f"{parallel.ranks} processes",
                "resume with a number of processes that divides it",
            )
        configure_torch(options, parallel.device)
        manager = CheckpointManager(root / "checkpoints", parallel, keep=options.save_total_limit)
        checkpoint = manager.newest()
        step = checkpoint.step if checkpoint is not None else 0
        peak = peak_flops(parallel.device, dtype_of(options, parallel.device))
        with RunLog(
            root,
            total_steps=self.max_steps,
            from_step=step,
            unit=self.plan.unit,
            every=options.logging_steps or 1,
            peak_flops=peak and peak * parallel.ranks,
            main=parallel.main,
            tensorboard="tensorboard" in options.report_to,
        ) as log:
            if options.gradient_checkpointing and not enable_gradient_checkpointing(self.plan.learner):
                log.message("gradient checkpointing has no effect: the module has no blocks of this library")
            self.start(parallel=parallel, log=log, signals=session.signals, started=session.started)
            weights = sum(p.numel() for p in self.plan.learner.parameters())
            facts = {"parameters": weights, "device": str(parallel.device), "processes": parallel.ranks}
            log.facts({**facts, "CPU threads": torch.get_num_threads(), **self.facts})
            if checkpoint is None:
                steps = "step" if self.max_steps == 1 else "steps"
                log.message(f"{weights:,} parameters, {self.max_steps:,} {steps} on {parallel.device}")
            else:
                for reason in checkpoint.damaged:
                    log.message(f"skipped a damaged checkpoint: {reason}")
                self.restore(checkpoint)
                verb = "finished at" if step >= self.max_steps else "resuming from"
                log.message(f"{verb} step {step:,} of {self.max_steps:,}")
            self._call("on_train_begin")
            outcome = self.run_steps()
            state, progress = self.state, f"step {self.state.step:,} of {self.max_steps:,}"
            if outcome == "interrupted":
                log.message(f"stopped at {progress}; run the same command again to resume")
                return RunResult(
                    outcome=outcome,
                    folder=root,
                    step=state.step,
                    metrics=self.metrics,
                    exit_code=session.signals.exit_code,
                )
            if outcome == "early stop":
                log.message(
                    f"early stop at step {state.step:,}: best {self.metric} at step {state.best_step:,}"
                )
            elif outcome == "time limit":
                log.message(
                    f"reached the time limit of {options.time_limit} at {progress}; run the same command "
                    "again to resume"
                )
            elif outcome == "stopped":
                log.message(f"stopped by a callback at {progress}")
            self.write_model()
            self._call("on_train_end")
            log.facts({"skipped steps": state.skipped, "seconds waiting for data": self.data_seconds})
            if parallel.main:
                try:
                    log.message(f"wrote {' and '.join(map(str, write_report(root)))}")
                except GlassformerError as error:  # the model is saved, so a failed report is not fatal
                    log.message(str(error))
        return RunResult(outcome=outcome, folder=root, step=state.step, metrics=self.metrics)

    def evaluate(self, dataset: Dataset | None = None) -> dict[str, float]:
        """Return the metrics of the module as it is now.

        dataset: by default `eval_dataset`.
        """
        if dataset is None and self.plan.validate is None:
            raise MissingValueError("dataset", "to evaluate", "pass one, or eval_dataset to the trainer")
        device = device_for(self.options.device)
        training = self.model.training
        self.model.to(device).eval()
        try:
            with torch.no_grad(), autocast(device, dtype_of(self.options, device)):
                validate = self.plan.validate if dataset is None else partial(self._evaluate, dataset=dataset)
                return dict(validate(device).metrics) if validate else {}
        finally:
            self.model.train(training)

    def _evaluate(self, device: torch.device, dataset: Dataset | None = None) -> ValidationResult:
        assert self._task is not None and self.options.batch_size is not None
        batches = EvaluationBatches(
            self._eval_dataset if dataset is None else dataset,
            batch_size=self.options.batch_size,
            collate_fn=self._collate_fn,
            device=device,
        )
        metrics = self._task.evaluate(self.model, batches)
        return ValidationResult(metrics={name: float(value) for name, value in metrics.items()})

    # ---- steps -----------------------------------------------------------------------------------------

    def run_steps(self) -> Outcome:
        """Train until the last step, an early stop or a signal, and save a checkpoint in each case."""
        if self.state.step >= self.max_steps:
            return "finished"
        if self._out_of_patience():
            return "early stop"
        if not self.parameters:
            self.log.message("this model has no trainable parameters; it is only evaluated")
            self.validate()
            return "finished"
        self.learner.train()
        if self.state.step == 0:
            self._save_snapshot()
        with self.loader.open(self.state.position, self.state.data_state) as steps:
            while self.state.step < self.max_steps:
                outcome = self.run_step(steps)
                if outcome is not None:
                    return outcome
        return "finished"

    def run_step(self, steps: Iterator[StepBatches]) -> Outcome | None:
        """Train one step and log it; validate and save if they are due. Return why the run ends, or None."""
        options, state = self.options, self.state
        start = time.perf_counter()
        batches = next(steps)
        self.data_seconds += time.perf_counter() - start
        result = self.train_step(batches)
        if result is None:
            self.save()
            return self._stop_outcome
        loss, norm, units = result
        state.step += 1
        state.position, state.data_state = batches.after, batches.data_state
        step, last = state.step, state.step == self.max_steps
        metrics = StepMetrics(
            step=step,
            loss=loss,
            lr=self.learning_rate(step),
            grad_norm=norm,
            units=units,
            seconds=time.perf_counter() - start,
            epoch=batches.epoch,
            flops=self.flops_per_unit * units,
        )
        if logs := self.log.step(metrics):
            self._call("on_log", logs)
        self._call("on_step_end", metrics)
        self._save_snapshot()
        outcome: Outcome | None = None
        if last or step % (options.eval_steps or step + 1) == 0:
            self._check_pending()
            if self.validate():
                outcome = "early stop"
        if last or outcome or step % (options.save_steps or step + 1) == 0:
            self.save()
        return outcome

    def learning_rate(self, step: int) -> float:
        return (self.options.lr or 0.0) * self.schedule.at(step)

    def train_step(self, step: StepBatches) -> tuple[Tensor, Tensor, float] | None:
        """Run one optimizer step; return loss per unit, gradient norm and units, or None to stop."""
        batches = list(step.batches)
        for _ in range(int(math.log2(self.state.splits))):
            batches = [half for batch in batches for half in self.loader.halve(batch)]
        self.batch_norm_state.save()
        while True:
            try:
                return self._forward_backward(batches)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                self._discard_step()
                batches = self._split_batches(batches, error)

    def _forward_backward(self, batches: list[MicroBatch]) -> tuple[Tensor, Tensor, float] | None:
        """Compute the gradient of a step and update the weights; see `train_step`."""
        step = self.state.step + 1
        known = sum(batch.units or 0 for batch in batches)
        overdue = time.monotonic() >= self.deadline
        flags = (self.signals.received, self.should_stop, overdue)
        # exchanged before the step, when the device has nothing to do
        units, *stop = self.parallel.sum(torch.tensor([known, *flags], dtype=torch.int64)).tolist()
        if any(stop):
            outcomes: tuple[Outcome, ...] = ("interrupted", "stopped", "time limit")
            self._stop_outcome = next(outcome for outcome, flag in zip(outcomes, stop, strict=True) if flag)
            return None
        total, returned = torch.zeros((), device=self.device), 0.0
        for n, batch in enumerate(batches):
            if self.signals.received and self.parallel.ranks == 1:
                self._discard_step()
                self._stop_outcome = "interrupted"
                return None
            loss, count = self._backward(batch, step, last=n + 1 == len(batches))
            total += loss
            returned += count
        if self.plan.count is None:
            units = float(self.parallel.sum(torch.tensor(returned, dtype=torch.float64)))
        if units <= 0:
            raise EmptyInputError(f"batch of step {step:,}", "check the data, or raise the batch size")
        loss = self.parallel.sum(total) / units
        norm = self.parallel.grad_norm(self.parameters.values()) / units
        if self.loss_scale is not None:
            norm = norm / self.loss_scale.scale
        self._update(step, loss, norm, units, batches)
        return loss, norm, units

    def _discard_step(self) -> None:
        """Discard the gradients and batch-norm updates of an unfinished step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.batch_norm_state.restore()

    def _backward(self, batch: MicroBatch, step: int, *, last: bool) -> tuple[Tensor, float]:
        """Run forward and backward of a micro-batch; return its summed loss and the count it returned."""
        # seed each micro-batch of each step separately
        entropy = np.random.SeedSequence((self.seed, step, batch.index, int(batch.rows[0])))
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        inputs = to_device(batch.inputs, self.device)
        torch.compiler.cudagraph_mark_step_begin()
        with self.parallel.gradient_sync(self.module, last):
            with autocast(self.device, self.dtype):
                output: Any = self._forward(inputs)
            loss, count = (output, 0) if self.plan.count else output
            (loss if self.loss_scale is None else loss * self.loss_scale.scale).backward()
        return loss.detach(), float(count)

    def _forward(self, inputs: dict[str, Any]) -> Any:
        try:
            loss = self.module(**inputs)
            self._compiled = True
            return loss
        except Exception as error:
            compiling = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
            if not compiling or self._compiled:
                raise
            self.learner._compiled_call_impl = None  # torch has no public API to undo `compile`
            reason = str(error).splitlines()[0][:150]
            self.log.message(f"not compiled: {reason}; training runs uncompiled, slower")
            return self.module(**inputs)

    @torch.no_grad()
    def _update(self, step: int, loss: Tensor, norm: Tensor, units: float, batches: list[MicroBatch]) -> None:
        """Update the weights, unless loss or gradient norm is not finite, or the loss spikes.

        The flag `bad` stays on the device: the fused optimizer reads it there, and the loop checks it one
        step later. Gradient clipping costs no extra pass: the optimizer divides the summed gradient by
        `units`, and also by norm / `max_grad_norm` if the norm exceeds the maximum.
        """
        chosen = self.options.max_grad_norm
        max_norm = DEFAULT_MAX_GRAD_NORM if chosen is None else chosen
        divisor = units * (norm / max_norm).clamp(min=1.0) if max_norm else units + 0 * norm
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        overflow = None
        if self.loss_scale is not None:
            divisor = divisor * self.loss_scale.scale
            overflow = self.loss_scale.update(bad)
        if step > MEAN_LOSS_AFTER:
            mean = self.mean_loss
            bad = bad | (loss > mean + (LOSS_SPIKE - 1) * mean.abs().clamp(min=MIN_MEAN_LOSS))
        weight = MEAN_LOSS_WEIGHT if step > 1 else 1.0
        updated = torch.lerp(self.mean_loss, loss.to(self.mean_loss.dtype), weight)
        self.mean_loss = torch.where(bad, self.mean_loss, updated)
        for group, lr in zip(self.optimizer.param_groups, self.peak_lrs, strict=True):
            group["lr"] = lr * self.schedule.at(step)
        # the fused pass cannot scale sharded gradients
        if isinstance(self.parallel, Fsdp) or not scales_gradients(self.optimizer):
            if not bool(bad):
                for parameter in self.parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.div_(float(divisor))
                self.optimizer.step()
        else:
            self.optimizer.grad_scale, self.optimizer.found_inf = divisor, bad.float()  # type: ignore[attr-defined]
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.batch_norm_state.restore(bad)
        self.parallel.sync_batch_norm(self.module)
        if self.ema is not None:
            self.ema.update(step)
        rows = np.concatenate([batch.rows[batch.rows != ROW_SEPARATOR] for batch in batches])
        more = ", ..." if len(rows) > SHOWN_ROWS else ""
        # an overflow that a smaller loss scale avoids is normal in float16
        skipped = bad if overflow is None else bad & ~overflow
        self._pending.append((step, skipped, ", ".join(map(str, rows[:SHOWN_ROWS])) + more))
        self._check_pending(unchecked=1 if self.device.type == "cuda" else 0)

    def _check_pending(self, unchecked: int = 0) -> None:
        """Count skipped steps among all but the last `unchecked` pending ones.

        Too many consecutive skipped steps raise `DivergedError`.
        """
        while len(self._pending) > unchecked:
            self._check_step(*self._pending.popleft())

    def _check_step(self, step: int, bad: Tensor, rows: str) -> None:
        state = self.state
        if not bool(bad):
            state.consecutive_skipped = 0
            return
        state.skipped += 1
        state.consecutive_skipped += 1
        self.log.message(
            f"skipped step {step:,}: its loss is not finite or {LOSS_SPIKE:.0f} times the running mean "
            f"(examples {rows}); {state.skipped:,} skipped so far"
        )
        if state.consecutive_skipped >= self.options.max_skipped_steps:
            raise DivergedError(state.consecutive_skipped, step, rows)

    def _split_batches(self, batches: list[MicroBatch], error: BaseException) -> list[MicroBatch]:
        """Split the micro-batches of a step in half after running out of memory."""
        largest = max(len(batch.rows) for batch in batches)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.parallel.ranks > 1 or largest < 2:
            reason = str(error).splitlines()[0][:100]
            raise TrainingMemoryError(self.state.step + 1, largest, reason) from None
        self.state.splits *= 2
        self.log.message(
            f"out of memory with {largest} examples at once; from now on each batch is processed in "
            f"{self.state.splits} parts, which gives the same step"
        )
        return [half for batch in batches for half in self.loader.halve(batch)]

    # ---- validation and saving -------------------------------------------------------------------------

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context for evaluating and saving: full (EMA) weights, evaluation mode and autocast."""
        self.learner.eval()
        averaged = self.ema.applied() if self.ema is not None else nullcontext()
        try:
            with averaged, self.parallel.full_weights(self.module), autocast(self.device, self.dtype):
                yield
        finally:
            self.learner.train()

    def validate(self) -> bool:
        """Validate, log the result and save the best model; return whether to stop early."""
        state, plan = self.state, self.plan
        if plan.validate is None:
            return False
        with torch.no_grad(), self.evaluating():
            result = plan.validate(self.device)
            self.metrics = result.metrics
            samples = distinct_samples(result.samples, self.options.log_samples)
            self.log.validation(
                state.step, result.metrics, samples, images=result.images, signatures=result.signatures
            )
            name = self.metric = self._metric_name(result.metrics)
            own = torch.tensor(result.metrics[name] if self.parallel.main else 0.0, dtype=torch.float64)
            # every rank uses the value of rank 0, so that all make the same decision
            value = float(self.parallel.sum(own))
            greater = self.options.greater_is_better
            sign = -1 if (lower_is_better(name) if greater is None else not greater) else 1
            score = -math.inf if math.isnan(value) else sign * value
            best = -math.inf if state.best is None else sign * state.best
            # an equal score replaces the best model, but only a better one resets the patience
            waiting = self.parallel.any(self.parallel.main and result.constant)
            state.stale = 0 if score > best or waiting else state.stale + 1
            if score >= best:
                state.best, state.best_step = sign * score, state.step
                if self.parallel.main:
                    replace_folder(self.folder / BEST, plan.save)
            self._save_for_averaging(score)
        if self.is_main:
            self._call("on_log", {f"valid/{name}": value for name, value in result.metrics.items()})
        self._call("on_evaluate", result.metrics)
        return self._out_of_patience()

    def _metric_name(self, metrics: Mapping[str, float]) -> str:
        """Return the name of the metric that selects the best model."""
        default = "loss" if "loss" in metrics else next(iter(metrics), "loss")
        name = self.options.metric_for_best_model or self.plan.metric or default
        if name not in metrics:
            raise UnknownNameError("metric", name, metrics)
        return name

    def _out_of_patience(self) -> bool:
        patience = self.options.early_stopping_patience or 0
        return 0 < patience <= self.state.stale

    def _save_for_averaging(self, score: float) -> None:
        """Save the current weights for checkpoint averaging; `save` deletes those no longer needed."""
        options, state = self.options, self.state
        if not options.average_checkpoints:
            return
        if self.parallel.main:
            replace_folder(self.averaged_folder(state.step), self.plan.save)
        candidates = [*state.averaged, (state.step, score)]
        if options.average_selection == "best":
            candidates.sort(key=lambda pair: pair[1])
        state.averaged = candidates[-options.average_checkpoints :]

    def averaged_folder(self, step: int) -> Path:
        return self.folder / AVERAGED / f"step-{step:08}"

    def _save_snapshot(self) -> None:
        if self.state.step in self.snapshots:
            self._check_pending()
            with torch.no_grad(), self.evaluating():
                if self.parallel.main:
                    save_snapshot(self.folder, self.state.step, self.plan.save, self.log.message)

    def save(self) -> None:
        """Write a checkpoint, and delete averaging weights that are no longer needed."""
        self._check_pending()
        state = self.state
        state.threads = torch.get_num_threads()
        self.checkpoints.save(
            state.step, self.learner.model, self.optimizer, self._extra_tensors(), vars(state)
        )
        if self.parallel.main:  # after the checkpoint: until then a killed run resumes with older ones
            needed = {self.averaged_folder(step) for step, _ in state.averaged}
            for unneeded in set((self.folder / AVERAGED).glob("step-*")) - needed:
                shutil.rmtree(unneeded, ignore_errors=True)
        self._call("on_save", self.checkpoints.root)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self.checkpoints.restore(checkpoint, self.learner.model, self.optimizer, self._extra_tensors())
        self.state = TrainState.from_json(checkpoint.state)
        before, now = self.state.threads, torch.get_num_threads()
        if before not in (None, now) and self.device.type == "cpu":
            self.log.message(
                f"the run used {before} CPU threads and resumes with {now}: sums are rounded differently, so "
                "it is not bit-identical to an uninterrupted run"
            )

    def _extra_tensors(self) -> dict[str, dict[str, Tensor]]:
        loop = {"mean_loss": self.mean_loss, **(self.loss_scale.tensors if self.loss_scale else {})}
        extra = {"loop": loop}
        return extra if self.ema is None else {**extra, "ema": self.ema.tensors}

    def write_model(self) -> None:
        """Write the model folder with averaged, best or last weights, as the options specify."""
        options, state = self.options, self.state
        model = self.folder / MODEL
        if options.average_checkpoints and state.averaged:
            steps = [step for step, _ in state.averaged]
            write: Callable[[Path], object] = partial(average_folders, [*map(self.averaged_folder, steps)])
            listed = ", ".join(f"{step:,}" for step in sorted(steps))
            which = f", the best by {self.metric}" if options.average_selection == "best" else ""
            what, saved = f"the average of steps {listed}{which}", True
        elif options.load_best_model_at_end and (self.folder / BEST).is_dir():
            write = partial(shutil.copytree, self.folder / BEST)
            score = "" if state.best is None else f", {self.metric} {format_number(state.best)}"
            what, saved = f"the best weights (step {state.best_step:,}{score})", True
        else:
            write, what, saved = self.plan.save, "the weights of the last step", False
        with torch.no_grad(), nullcontext() if saved else self.evaluating():
            if self.is_main:
                replace_folder(model, write)
        self.log.message(f"wrote {model}, {what}")
        if self.plan.load is not None:
            self.parallel.any(False)  # other ranks read what rank 0 has written
            remove_lora(self.model)  # the saved weights include the adapters
            fill(model_state(self.model), self.plan.load(model))
            for name, parameter in self.model.named_parameters():
                parameter.requires_grad_(name in self._unfrozen)


def distinct_samples(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """Return the first `limit` samples with different sources."""
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.source, sample)
    return list(first.values())[:limit]


def fill_options(options: TrainingOptions, examples: int | None) -> TrainingOptions:
    """Return the options of a training run without a recipe, with the open ones filled in.

    examples: number of training examples; None if unknown.
    """
    for name, other in {
        "batch_tokens": "use batch_size",
        "packing": "pack examples in the dataset or collate_fn",
        "label_smoothing": "apply it in the loss",
        "r_drop": "compute it in the loss",
    }.items():
        if getattr(options, name):
            raise UnsupportedError("a custom loss", f"the option {name}", other)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    accumulation = -(-options.gradient_accumulation_steps // ranks) * ranks
    batch = options.batch_size or DEFAULT_BATCH_SIZE
    per_epoch = None if examples is None else max(1, math.ceil(math.ceil(examples / batch) / accumulation))
    steps = options.max_steps
    if steps is None:
        if per_epoch is None:
            raise MissingValueError(
                "max_steps", "for a dataset without a length, since its epochs cannot be counted"
            )
        steps = max(1, math.ceil((options.epochs or DEFAULT_EPOCHS) * per_epoch))
    defaults = {
        "max_steps": steps,
        "batch_size": batch,
        "lr": DEFAULT_LR,
        "lr_scheduler": "cosine",
        "max_grad_norm": DEFAULT_MAX_GRAD_NORM,
        "early_stopping_patience": 0,
        **default_intervals(steps, per_epoch or steps, options.eval_steps),
    }
    chosen: dict[str, Any] = {
        name: value for name, value in defaults.items() if getattr(options, name) is None
    }
    if options.compile == "auto":  # compiling an unknown module may fail, or be slower
        chosen["compile"] = "off"
    return replace(options, gradient_accumulation_steps=accumulation, **chosen)


def save_module(module: nn.Module, folder: Path) -> None:
    """Save the weights of any module as safetensors; a tied weight is stored once, under its first name."""
    state = merge_lora(unique_state_dict(module), module)
    weights = {name: tensor.detach().cpu() for name, tensor in state.items()}
    write_checksums(folder, save_weights(folder, weights))
