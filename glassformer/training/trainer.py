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
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from glassformer.data import Place
from glassformer.data.packing import NEXT
from glassformer.errors import GlassformerError
from glassformer.pretrained.run_folder import BEST
from glassformer.training.data_loader import Feed, Piece, Portion, ReadAhead, batches_of
from glassformer.training.distributed import Fsdp, Parallel
from glassformer.training.hardware import casting, compile_learner, precision_for, uncompile
from glassformer.training.learner import Learner, Statistics, flops_a_unit, model_parameters
from glassformer.training.logging.run_log import RunLog, StepNote, distinct
from glassformer.training.model_folders import film_steps, keep_frame, replace_folder
from glassformer.training.optimizer import RunningAverage, optimiser_for, schedule_for
from glassformer.training.recipe import Training
from glassformer.training.sharded_checkpoint import Saving, Sharded
from glassformer.training.signals import Stopping
from glassformer.training.task import LOWER, Task


@dataclass
class Standing:
    """Where a run stands, besides its tensors; saved with every checkpoint."""

    step: int = 0
    place: Place = field(default_factory=Place)
    skipped: int = 0
    in_a_row: int = 0
    parts: int = 1
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    kept: list[tuple[int, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "place": list(self.place), "kept": [list(pair) for pair in self.kept]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Standing:
        kept = [(int(step), float(score)) for step, score in data["kept"]]
        return cls(**{**data, "place": Place(*data["place"]), "kept": kept})


SPIKE = 10.0  # a loss this many times the usual one is taken for a fault
SMALL = 0.2  # and where the usual one is near 0, or below as a density's may be, it is taken for this
USUAL_AFTER = 50  # steps until there is a usual loss
USUAL_SHARE = 0.02  # how much a step's loss moves the usual one

Ending = Literal["finished", "asked", "patience"]


class Loop:
    """Trains a task in a run folder: `run` goes from where it stands to the end."""

    def __init__(
        self,
        task: Task,
        words: Training,
        *,
        seed: int,
        folder: Path,
        parallel: Parallel,
        log: RunLog,
        stopping: Stopping,
    ) -> None:
        self.task, self.words, self.seed, self.folder = task, words, seed, folder
        self.parallel, self.log, self.stopping = parallel, log, stopping
        self.device = parallel.device
        self.precision = precision_for(words, self.device)
        self.schedule = schedule_for(words)
        self.metric = words.metric or task.metric  # by which the best is known
        if told := compile_learner(task.learner, words, self.device):
            log.say(told)
        self.module = parallel.wrap(task.learner)
        self.learner = cast(Learner, parallel.inner(self.module))
        self.parameters = model_parameters(self.learner)
        self.statistics = Statistics(self.learner)
        self.optimiser = optimiser_for(self.parameters, words)
        self.ema = RunningAverage(self.parameters, words.ema) if words.ema else None
        self.usual = torch.zeros((), device=self.device)
        self.standing = Standing()
        self.saving = Saving(folder / "checkpoints", parallel, keep=words.keep)
        assert words.steps is not None
        self.steps = words.steps
        self.film = film_steps(words.film, self.steps)
        batches, examples = batches_of(task, words, seed)
        self.feed = Feed(
            batches=batches,
            examples=examples,
            units=task.count,
            accumulate=words.accumulate,
            rank=parallel.rank,
            ranks=parallel.ranks,
            pinned=self.device.type == "cuda",
        )
        self.flops_a_unit = flops_a_unit(self.learner)
        self.waited = 0.0  # seconds the loop had to wait for data
        self._compiled = False  # whether a step went through as it was compiled
        self._pending: deque[tuple[int, Tensor, str]] = deque()

    # ---- the steps -------------------------------------------------------------------------------------

    def run(self) -> Ending:
        """Train until the last step, an early stop, or being asked to stop; each leaves a checkpoint."""
        if self.standing.step >= self.steps:
            return "finished"
        if self._impatient():
            return "patience"
        if not self.parameters:
            self.log.say("this model has nothing to learn; it is only measured")
            self.validate()
            return "finished"
        self.learner.train()
        if self.standing.step == 0:
            self._film()
        with ReadAhead(self.feed, self.standing.place) as ahead:
            while self.standing.step < self.steps:
                ending = self._step(ahead)
                if ending is not None:
                    return ending
        return "finished"

    def _step(self, ahead: ReadAhead) -> Ending | None:
        words, standing = self.words, self.standing
        began = time.perf_counter()
        portion = ahead.next()
        self.waited += time.perf_counter() - began
        learned = self.learn(portion)
        if learned is None:
            self.save()
            return "asked"
        loss, norm, units = learned
        standing.step += 1
        standing.place = portion.after
        step, last = standing.step, standing.step == self.steps
        self.log.step(
            StepNote(
                step=step,
                loss=loss,
                lr=self.rate(step),
                grad_norm=norm,
                units=units,
                seconds=time.perf_counter() - began,
                epoch=portion.epoch,
                flops=self.flops_a_unit * units,
            )
        )
        self._film()
        ending: Ending | None = None
        if last or step % (words.validate_every or step + 1) == 0:
            self._settle_pending()
            if self.validate():
                ending = "patience"
        if last or ending or step % (words.save_every or step + 1) == 0:
            self.save()
        return ending

    def rate(self, step: int) -> float:
        """The learning rate of a step."""
        return (self.words.lr or 0.0) * self.schedule.at(step)

    def learn(self, portion: Portion) -> tuple[Tensor, Tensor, int] | None:
        """One step on one portion: its loss per unit, the length of its gradient, its units.

        None where a stop was asked for before the weights were touched.
        """
        pieces = list(portion.pieces)
        for _ in range(int(math.log2(self.standing.parts))):
            pieces = [half for piece in pieces for half in self.feed.halved(piece)]
        self.statistics.remember()
        while True:
            try:
                return self._learn(pieces)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not _is_memory(error):
                    raise
                self._undo()
                pieces = self._smaller(pieces, error)

    def _learn(self, pieces: list[Piece]) -> tuple[Tensor, Tensor, int] | None:
        step = self.standing.step + 1
        mine = torch.tensor([sum(piece.units for piece in pieces), int(self.stopping.asked)])
        units, asked = (int(n) for n in self.parallel.total(mine))
        if asked or units == 0:
            if asked:
                return None
            raise GlassformerError(f"step {step:,} learns from nothing; check the data or training.batch")
        total = torch.zeros((), device=self.device)
        for n, piece in enumerate(pieces):
            if self.stopping.asked and self.parallel.ranks == 1:
                self._undo()
                return None
            total += self._backward(piece, step, last=n + 1 == len(pieces))
        loss = self.parallel.total(total) / units
        norm = self.parallel.norm(self.parameters.values()) / units
        self._update(step, loss, norm, units, pieces)
        return loss, norm, units

    def _undo(self) -> None:
        """Half a step is no step; it is done again from where it began."""
        self.optimiser.zero_grad(set_to_none=True)
        self.statistics.put_back()

    def _backward(self, piece: Piece, step: int, *, last: bool) -> Tensor:
        torch.manual_seed(seed_of(self.seed, step, piece.number, int(piece.rows[0])))
        batch = {name: t.to(self.device, non_blocking=True) for name, t in piece.tensors.items()}
        torch.compiler.cudagraph_mark_step_begin()
        with self.parallel.accumulating(self.module, last):
            with casting(self.device, self.precision):
                loss: Tensor = self._forward(batch)
            loss.backward()
        return loss.detach()

    def _forward(self, batch: dict[str, Tensor]) -> Any:
        try:
            loss = self.module(**batch)
            self._compiled = True
            return loss
        except Exception as error:
            compiling = type(error).__module__.startswith(("torch._dynamo", "torch._inductor"))
            if not compiling or self._compiled:
                raise
            uncompile(self.learner)
            self.log.say(
                f"not compiled: {str(error).splitlines()[0][:150]}; training runs uncompiled, slower"
            )
            return self.module(**batch)

    @torch.no_grad()
    def _update(self, step: int, loss: Tensor, norm: Tensor, units: int, pieces: list[Piece]) -> None:
        """Move the weights, unless the loss or the gradient is at fault.

        Whether it is stays on the device: the fused optimiser reads it there, and the loop a step later. The
        same pass of the optimiser divides the summed gradient by the units and shortens it to `clip`.
        """
        divisor = units * (norm / self.words.clip).clamp(min=1.0) if self.words.clip else units + 0 * norm
        bad = ~(torch.isfinite(loss) & torch.isfinite(norm))
        if step > USUAL_AFTER:
            bad = bad | (loss > self.usual + (SPIKE - 1) * self.usual.abs().clamp(min=SMALL))
        share = USUAL_SHARE if step > 1 else 1.0
        self.usual = torch.where(bad, self.usual, torch.lerp(self.usual, loss.to(self.usual.dtype), share))
        for group in self.optimiser.param_groups:
            group["lr"] = self.rate(step)
        if isinstance(self.parallel, Fsdp):  # whose sharded gradients the fused pass takes no scale for
            if not bool(bad):
                for parameter in self.parameters.values():
                    if parameter.grad is not None:
                        parameter.grad.div_(float(divisor))
                self.optimiser.step()
        else:
            self.optimiser.grad_scale, self.optimiser.found_inf = divisor, bad.float()  # type: ignore[attr-defined]
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.statistics.put_back(bad)
        self.parallel.settle(self.module)
        if self.ema is not None:
            self.ema.update(step)
        rows = np.concatenate([piece.rows[piece.rows != NEXT] for piece in pieces])
        named = ", ".join(str(int(row)) for row in rows[:8]) + (", ..." if len(rows) > 8 else "")
        self._pending.append((step, bad, named))
        while len(self._pending) > (1 if self.device.type == "cuda" else 0):
            self._look(*self._pending.popleft())

    def _settle_pending(self) -> None:
        while self._pending:
            self._look(*self._pending.popleft())

    def _look(self, step: int, bad: Tensor, rows: str) -> None:
        """Count a step that was skipped; too many in a row end the run."""
        standing = self.standing
        if not bool(bad):
            standing.in_a_row = 0
            return
        standing.skipped += 1
        standing.in_a_row += 1
        self.log.say(
            f"step {step:,} was skipped: its loss is not finite or {SPIKE:.0f} times the usual "
            f"(examples {rows}); {standing.skipped:,} skipped so far"
        )
        if standing.in_a_row >= self.words.max_bad_steps:
            raise GlassformerError(
                f"{standing.in_a_row} steps in a row had a loss that is not finite or far too large, the "
                f"last of them step {step:,} with the examples {rows}; lower training.lr, look at these "
                "examples, or raise training.max_bad_steps. The weights are those before the first of them."
            )

    def _smaller(self, pieces: list[Piece], error: BaseException) -> list[Piece]:
        """After running out of memory: the same step in halves, or a sentence on what to change."""
        largest = max(len(piece.rows) for piece in pieces)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.parallel.ranks > 1 or largest < 2:
            raise GlassformerError(
                f"out of memory in step {self.standing.step + 1:,} with {largest} examples at once "
                f"({str(error).splitlines()[0][:100]}); lower training.batch (now {self.words.batch}), or "
                "set training.checkpoint_activations: true. The last checkpoint stands."
            ) from None
        self.standing.parts *= 2
        self.log.say(
            f"out of memory with {largest} examples at once; from here each batch is done in "
            f"{self.standing.parts} parts, which come to the same step"
        )
        return [half for piece in pieces for half in self.feed.halved(piece)]

    # ---- looking and saving ----------------------------------------------------------------------------

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The model as it would be saved: averaged weights if there are, whole, no dropout."""
        self.learner.eval()
        averaged = self.ema.in_place() if self.ema is not None else nullcontext()
        try:
            with averaged, self.parallel.gathered(self.module), casting(self.device, self.precision):
                yield
        finally:
            self.learner.train()

    def validate(self) -> bool:
        """Measure, note, keep the best; whether patience has run out."""
        standing, name = self.standing, self.metric
        higher = self.task.better == "higher" if name == self.task.metric else not name.startswith(LOWER)
        with torch.no_grad(), self.evaluating():
            found = self.task.validate(self.device)
            samples = distinct(found.samples, self.words.samples)
            self.log.validated(standing.step, found.metrics, samples, signatures=found.signatures)
            if name not in found.metrics:
                raise GlassformerError(
                    f"training.metric is '{name}', which this job does not measure; it has "
                    f"{', '.join(found.metrics)}"
                )
            score, sign = self._agreed(found.metrics[name]), 1 if higher else -1
            worth = -math.inf if math.isnan(score) else sign * score
            before = -math.inf if standing.best is None else sign * standing.best
            # Of equals the later is kept, having learned more; but only a better one is worth waiting for.
            standing.stale = 0 if worth > before else standing.stale + 1
            if worth >= before:
                standing.best, standing.best_step = sign * worth, standing.step
                if self.parallel.main:
                    replace_folder(self.folder / BEST, self.task.save)
            self._keep_weights(worth)
        return self._impatient()

    def _impatient(self) -> bool:
        """Whether there was nothing better for as long as the recipe waits."""
        return self.words.patience is not None and self.standing.stale >= self.words.patience

    def _agreed(self, score: float) -> float:
        """The first rank's score on every rank, so that all decide alike."""
        mine = torch.tensor(score if self.parallel.main else 0.0, dtype=torch.float64)
        return float(self.parallel.total(mine))

    def _keep_weights(self, worth: float) -> None:
        """Keep these weights for the average; `save` lets go of those that will not be in it."""
        words, standing = self.words, self.standing
        if not words.average:
            return
        if self.parallel.main:
            replace_folder(self.kept_folder(standing.step), self.task.save)
        kept = [*standing.kept, (standing.step, worth)]
        if words.average_of == "best":
            kept.sort(key=lambda pair: pair[1])
        standing.kept = kept[-words.average :]

    def _film(self) -> None:
        """Keep the weights for the film where this step is one of its."""
        if self.standing.step in self.film:
            self._settle_pending()
            with torch.no_grad(), self.evaluating():
                if self.parallel.main:
                    keep_frame(self.folder, self.standing.step, self.task.save, self.log.say)

    def kept_folder(self, step: int) -> Path:
        return self.folder / "kept" / f"step-{step:08}"

    def save(self) -> None:
        """Write a checkpoint of where the run stands."""
        self._settle_pending()
        standing, further = self.standing, self._further()
        self.saving.save(standing.step, self.learner.model, self.optimiser, further, standing.to_dict())
        if self.parallel.main:  # only now: a run that is killed before goes on with the older ones
            kept = {self.kept_folder(step) for step, _ in standing.kept}
            for gone in set((self.folder / "kept").glob("step-*")) - kept:
                shutil.rmtree(gone, ignore_errors=True)  # one that cannot be removed does no harm

    def restore(self, saved: Sharded) -> None:
        """Go on from a checkpoint."""
        self.saving.restore(saved, self.learner.model, self.optimiser, self._further())
        self.standing = Standing.from_dict(saved.state)

    def _further(self) -> dict[str, dict[str, Tensor]]:
        """The tensors that a run needs besides its model's and its optimiser's."""
        further = {"loop": {"usual": self.usual}}
        return further if self.ema is None else {**further, "ema": self.ema.tensors}


def seed_of(*numbers: int) -> int:
    """One seed from several numbers, so that each batch of each step draws its own."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def _is_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
