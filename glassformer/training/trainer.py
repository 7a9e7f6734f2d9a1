"""The training loop.

A run is a function of its recipe and its data. Each micro-batch seeds its random numbers from the seed, the
step and its index within the step, so the state of a run is a step and a position in the data. A checkpoint
holds these with the weights, and a resumed run is bit-identical to an uninterrupted one.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from glassformer.data import DataPosition
from glassformer.data.batches import ROW_SEPARATOR
from glassformer.errors import EmptyInputError, GlassformerError, UnknownNameError
from glassformer.pretrained import AVERAGED, BEST
from glassformer.training.checkpoint import (
    Checkpoint,
    CheckpointManager,
    replace_folder,
    save_snapshot,
    snapshot_steps,
)
from glassformer.training.data_loader import DataLoader, MicroBatch, Prefetcher, StepBatches, make_batches
from glassformer.training.distributed import Fsdp, Parallel
from glassformer.training.hardware import autocast, compile_learner, dtype_of
from glassformer.training.learner import BatchNormState, Learner, flops_per_unit, model_parameters
from glassformer.training.logging.run_log import RunLog, StepMetrics
from glassformer.training.optimizer import ExponentialMovingAverage, LRSchedule, build_optimizer
from glassformer.training.recipe import TrainingOptions
from glassformer.training.signals import StopSignals
from glassformer.training.task import Sample, TrainingTask, lower_is_better

LOSS_SPIKE = 10.0  # a step whose loss is this many times the running mean is skipped
MIN_MEAN_LOSS = 0.2  # lower bound for spike detection: the mean loss may be near 0, or negative for a density
MEAN_LOSS_AFTER = 50  # steps until the running mean is meaningful
MEAN_LOSS_WEIGHT = 0.02  # of a step in the running mean of the loss
SHOWN_ROWS = 8

Outcome = Literal["finished", "interrupted", "early stop"]


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
    weights to average.
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

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TrainState:
        averaged = [(int(step), float(score)) for step, score in data["averaged"]]
        return cls(**{**data, "position": DataPosition(*data["position"]), "averaged": averaged})


class Trainer:
    """The training loop of a task in a run folder; `run` continues from the current state to the end.

    A step runs `gradient_accumulation_steps` micro-batches under autocast (mixed precision), clips the
    gradient, sets the learning rate of the schedule, runs the optimizer and updates the EMA of the weights.
    Validation, early stopping and checkpoints follow at their intervals.
    """

    def __init__(
        self,
        task: TrainingTask,
        options: TrainingOptions,
        *,
        seed: int,
        folder: Path,
        parallel: Parallel,
        log: RunLog,
        signals: StopSignals,
    ) -> None:
        self.task, self.options, self.seed, self.folder = task, options, seed, folder
        self.parallel, self.log, self.signals = parallel, log, signals
        self.device = parallel.device
        self.dtype = dtype_of(options, self.device)
        assert options.max_steps is not None
        self.max_steps = options.max_steps
        self.schedule = LRSchedule(
            kind=options.lr_scheduler or "constant",
            warmup_steps=options.warmup_steps or 0,
            max_steps=options.max_steps,
            min_lr_ratio=options.min_lr_ratio,
        )
        self.metric = options.metric_for_best_model or task.metric
        if reason := compile_learner(task.learner, options, self.device):
            log.message(reason)
        self.module = parallel.wrap(task.learner)
        self.learner = cast(Learner, parallel.unwrap(self.module))
        self.parameters = model_parameters(self.learner)
        self.batch_norm_state = BatchNormState(self.learner)
        self.optimizer = build_optimizer(self.parameters, options)
        self.ema = ExponentialMovingAverage(self.parameters, options.ema) if options.ema else None
        self.mean_loss = torch.zeros((), device=self.device)
        self.state = TrainState()
        self.checkpoints = CheckpointManager(folder / "checkpoints", parallel, keep=options.save_total_limit)
        self.snapshots = snapshot_steps(options.snapshots, self.max_steps)
        batches, examples = make_batches(task, options, seed)
        self.loader = DataLoader(
            batches=batches,
            examples=examples,
            count=task.count,
            accumulation_steps=options.gradient_accumulation_steps,
            rank=parallel.rank,
            ranks=parallel.ranks,
            pin_memory=self.device.type == "cuda",
        )
        self.flops_per_unit = flops_per_unit(self.learner)
        self.data_seconds = 0.0  # spent waiting for data
        self._compiled = False  # whether a compiled step succeeded
        self._pending: deque[tuple[int, Tensor, str]] = deque()  # steps whose loss is not yet checked

    # ---- steps -----------------------------------------------------------------------------------------

    def run(self) -> Outcome:
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
        with Prefetcher(self.loader, self.state.position) as prefetcher:
            while self.state.step < self.max_steps:
                outcome = self._run_step(prefetcher)
                if outcome is not None:
                    return outcome
        return "finished"

    def _run_step(self, prefetcher: Prefetcher) -> Outcome | None:
        options, state = self.options, self.state
        start = time.perf_counter()
        batches = prefetcher.next()
        self.data_seconds += time.perf_counter() - start
        result = self.train_step(batches)
        if result is None:
            self.save()
            return "interrupted"
        loss, norm, units = result
        state.step += 1
        state.position = batches.after
        step, last = state.step, state.step == self.max_steps
        self.log.step(
            StepMetrics(
                step=step,
                loss=loss,
                lr=self.learning_rate(step),
                grad_norm=norm,
                units=units,
                seconds=time.perf_counter() - start,
                epoch=batches.epoch,
                flops=self.flops_per_unit * units,
            )
        )
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

    def train_step(self, step: StepBatches) -> tuple[Tensor, Tensor, int] | None:
        """Run one optimizer step; return loss per unit, gradient norm and units, or None after a signal."""
        batches = list(step.batches)
        for _ in range(int(math.log2(self.state.splits))):
            batches = [half for batch in batches for half in self.loader.halve(batch)]
        self.batch_norm_state.save()
        while True:
            try:
                return self._train_step(batches)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_out_of_memory(error):
                    raise
                self._discard_step()
                batches = self._split_batches(batches, error)

    def _train_step(self, batches: list[MicroBatch]) -> tuple[Tensor, Tensor, int] | None:
        step = self.state.step + 1
        own = torch.tensor([sum(batch.units for batch in batches), int(self.signals.received)])
        units, stop = (int(n) for n in self.parallel.sum(own))
        if stop:
            return None
        if units == 0:
            raise EmptyInputError(f"batch of step {step:,}", "check the data, or raise the batch size")
        total = torch.zeros((), device=self.device)
        for n, batch in enumerate(batches):
            if self.signals.received and self.parallel.ranks == 1:
                self._discard_step()
                return None
            total += self._backward(batch, step, last=n + 1 == len(batches))
        loss = self.parallel.sum(total) / units
        norm = self.parallel.grad_norm(self.parameters.values()) / units
        self._update(step, loss, norm, units, batches)
        return loss, norm, units

    def _discard_step(self) -> None:
        """Discard the gradients and batch-norm updates of an unfinished step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.batch_norm_state.restore()

    def _backward(self, batch: MicroBatch, step: int, *, last: bool) -> Tensor:
        # seed each micro-batch of each step separately
        entropy = np.random.SeedSequence((self.seed, step, batch.index, int(batch.rows[0])))
        torch.manual_seed(int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1)))
        tensors = {name: t.to(self.device, non_blocking=True) for name, t in batch.tensors.items()}
        torch.compiler.cudagraph_mark_step_begin()
        with self.parallel.gradient_sync(self.module, last):
            with autocast(self.device, self.dtype):
                loss: Tensor = self._forward(tensors)
            loss.backward()
        return loss.detach()

    def _forward(self, tensors: dict[str, Tensor]) -> Any:
        try:
            loss = self.module(**tensors)
            self._compiled = True
            return loss
        except Exception as error:
            compiling = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
            if not compiling or self._compiled:
                raise
            self.learner._compiled_call_impl = None  # torch has no public API to undo `compile`
            reason = str(error).splitlines()[0][:150]
            self.log.message(f"not compiled: {reason}; training runs uncompiled, slower")
            return self.module(**tensors)

    @torch.no_grad()
    def _update(self, step: int, loss: Tensor, norm: Tensor, units: int, batches: list[MicroBatch]) -> None:
        """Update the weights, unless loss or gradient norm is not finite, or the loss spikes.

        The flag `bad` stays on the device: the fused optimizer reads it there, and the loop checks it one
        step later. Gradient clipping costs no extra pass: the optimizer divides the summed gradient by
        `units`, and also by norm / `max_grad_norm` if the norm exceeds the maximum.
        """
        max_norm = self.options.max_grad_norm
        divisor = units * (norm / max_norm).clamp(min=1.0) if max_norm else units + 0 * norm
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        if step > MEAN_LOSS_AFTER:
            mean = self.mean_loss
            bad = bad | (loss > mean + (LOSS_SPIKE - 1) * mean.abs().clamp(min=MIN_MEAN_LOSS))
        weight = MEAN_LOSS_WEIGHT if step > 1 else 1.0
        updated = torch.lerp(self.mean_loss, loss.to(self.mean_loss.dtype), weight)
        self.mean_loss = torch.where(bad, self.mean_loss, updated)
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate(step)
        if isinstance(self.parallel, Fsdp):  # the fused pass cannot scale sharded gradients
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
        self._pending.append((step, bad, ", ".join(map(str, rows[:SHOWN_ROWS])) + more))
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
        state, name, task = self.state, self.metric, self.task
        with torch.no_grad(), self.evaluating():
            result = task.validate(self.device)
            samples = distinct_samples(result.samples, self.options.log_samples)
            self.log.validation(state.step, result.metrics, samples, signatures=result.signatures)
            if name not in result.metrics:
                raise UnknownNameError("metric", name, result.metrics)
            own = torch.tensor(result.metrics[name] if self.parallel.main else 0.0, dtype=torch.float64)
            # every rank uses the value of rank 0, so that all make the same decision
            value, sign = float(self.parallel.sum(own)), -1 if lower_is_better(name) else 1
            score = -math.inf if math.isnan(value) else sign * value
            best = -math.inf if state.best is None else sign * state.best
            # an equal score replaces the best model, but only a better one resets the patience
            state.stale = 0 if score > best else state.stale + 1
            if score >= best:
                state.best, state.best_step = sign * score, state.step
                if self.parallel.main:
                    replace_folder(self.folder / BEST, task.save)
            self._save_for_averaging(score)
        return self._out_of_patience()

    def _out_of_patience(self) -> bool:
        return (
            self.options.early_stopping_patience is not None
            and self.state.stale >= self.options.early_stopping_patience
        )

    def _save_for_averaging(self, score: float) -> None:
        """Save the current weights for checkpoint averaging; `save` deletes those no longer needed."""
        options, state = self.options, self.state
        if not options.average_checkpoints:
            return
        if self.parallel.main:
            replace_folder(self.averaged_folder(state.step), self.task.save)
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
                    save_snapshot(self.folder, self.state.step, self.task.save, self.log.message)

    def save(self) -> None:
        """Write a checkpoint, and delete averaging weights that are no longer needed."""
        self._check_pending()
        state = self.state
        self.checkpoints.save(
            state.step, self.learner.model, self.optimizer, self._extra_tensors(), vars(state)
        )
        if (
            self.parallel.main
        ):  # only after the checkpoint is saved: until then a killed run resumes with the older ones
            needed = {self.averaged_folder(step) for step, _ in state.averaged}
            for unneeded in set((self.folder / AVERAGED).glob("step-*")) - needed:
                shutil.rmtree(unneeded, ignore_errors=True)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Resume from a checkpoint."""
        self.checkpoints.restore(checkpoint, self.learner.model, self.optimizer, self._extra_tensors())
        self.state = TrainState.from_json(checkpoint.state)

    def _extra_tensors(self) -> dict[str, dict[str, Tensor]]:
        extra = {"loop": {"mean_loss": self.mean_loss}}
        return extra if self.ema is None else {**extra, "ema": self.ema.tensors}


def distinct_samples(samples: Sequence[Sample], limit: int) -> list[Sample]:
    """Return the first `limit` samples with different sources."""
    first: dict[str, Sample] = {}
    for sample in samples:
        first.setdefault(sample.source, sample)
    return list(first.values())[:limit]


def _is_out_of_memory(error: BaseException) -> bool:
    # torch raises a plain RuntimeError if an allocation on the CPU fails
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
