"""Running requests: all of them in one batch of slots, or one after another.

Between two looks at the queue a runner drops cancelled requests, admits new ones, prefills a little and takes
one step.

R rows of one request, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import isnan
from typing import Final, Protocol

import torch
from torch import Tensor, nn

from glassformer.errors import NonFiniteError
from glassformer.generation.continuous.batch import SlotBatch, SlotRef
from glassformer.generation.continuous.request import (
    Request,
    RequestCancelledError,
    SchedulerClosedError,
    failure,
    vocab_size,
)
from glassformer.generation.continuous.selection import BeamSelection, RowChoice, RowSelection, choose_tokens
from glassformer.generation.engine import start_search
from glassformer.generation.inference_model import InferenceModel
from glassformer.generation.loop import Search, run_search
from glassformer.generation.request import GenerationOutput
from glassformer.inference.attention import GrowingCache
from glassformer.inference.prepare import evaluation_mode

CHUNK: Final = 256  # tokens of one prompt that are prefilled at once
IDLE_CHUNK: Final = 1024  # tokens that are prefilled at once if no request waits for the next step
NextRequest = Callable[[int, int], Request | None]  # free rows and tokens -> a request that fits
_log = logging.getLogger("glassformer.scheduler")


@dataclass
class Counts:
    """Since the scheduler started."""

    prompt_tokens: int = 0
    new_tokens: int = 0
    steps: int = 0
    requests: int = 0


class Runner(Protocol):
    """Runs the requests of a scheduler, in its thread."""

    counts: Counts

    @property
    def busy(self) -> bool: ...

    @property
    def rows(self) -> int:
        """Rows in use, or soon to be."""
        ...

    def turn(self, next_request: NextRequest) -> None:
        """Take one step with the running requests, and admit more."""
        ...

    def stop(self) -> None:
        """Drop everything at the next turn; called from any thread."""
        ...

    def end(self) -> None:
        """Fail the running requests: the scheduler is closed."""
        ...


def finite(outputs: list[GenerationOutput]) -> list[GenerationOutput] | NonFiniteError:
    """The outputs, or the error that their scores are not numbers."""
    try:
        for output in outputs:
            output.check_finite()
    except NonFiniteError as error:
        return error
    return outputs


class SequentialRunner:
    """Runs one request at a time, for models that have their own decoder."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.counts = model, Counts()
        self._request: Request | None = None
        self._steps: Iterator[None] = iter(())
        self._search: Search | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        return self._request is not None

    @property
    def rows(self) -> int:
        request = self._request
        return 0 if request is None else request.rows

    def stop(self) -> None:
        self._stopping = True

    def end(self) -> None:
        self._finish(SchedulerClosedError())

    def turn(self, next_request: NextRequest) -> None:
        with evaluation_mode(self.model):
            try:
                if self._request is None:
                    self._start(next_request)
                elif self._stopping:
                    self.end()
                elif self._request.cancelled:
                    self._finish(RequestCancelledError())
                else:
                    self.counts.steps += 1
                    self._advance()
            except Exception as error:
                self._finish(failure("decoding", error))

    def _start(self, next_request: NextRequest) -> None:
        self._request = request = next_request(1 << 62, 1 << 62)
        if request is None:
            return
        self.counts.requests += 1
        device = next(self.model.parameters()).device
        ids = torch.tensor([request.ids], dtype=torch.long, device=device)
        params = request.params
        if params.on_token is not None:
            params = replace(params, on_token=request.report)
        mask, generator = torch.ones_like(ids, dtype=torch.bool), params.generator(device)
        decoder, logits, self._search = start_search(
            self.model, ids, params, mask, [request.limit], generator
        )
        self.counts.prompt_tokens += len(request.ids)
        self._steps = run_search(decoder, logits, self._search)
        self._advance()

    def _advance(self) -> None:
        assert self._search is not None
        try:
            next(self._steps)
        except StopIteration:
            outputs = self._search.outputs()[0]
            self.counts.new_tokens += sum(len(output.logprobs) for output in outputs)
            self._finish(finite(outputs))

    def _finish(self, result: list[GenerationOutput] | Exception) -> None:
        request, self._request, self._search, self._steps = self._request, None, None, iter(())
        if request is not None:
            request.finish(result)


@dataclass(eq=False)
class Prefilling:
    """A request whose source or prompt is being processed."""

    request: Request
    selection: RowSelection | BeamSelection
    done: int = 0
    past: GrowingCache = field(default_factory=GrowingCache)

    def chunk(self) -> Sequence[int]:
        """What is processed next: a source whole, a prompt in chunks that do not depend on other requests."""
        ids = self.request.ids
        return ids if self.request.starts else ids[self.done : self.done + CHUNK]


@dataclass(eq=False)
class Running:
    """A request that is being generated."""

    request: Request
    selection: RowSelection | BeamSelection
    slots: list[SlotRef]
    ids: list[int]  # the next input of its rows
    starts: list[int]  # the decoder's start tokens that are yet to be read


class SlotRunner:
    """Runs all requests in one batch, whose rows join and leave between any two steps."""

    def __init__(self, model: nn.Module, slots: int, tokens: int) -> None:
        assert isinstance(model, InferenceModel)
        self.model, self.slots, self.tokens = model, slots, tokens
        self.batch = SlotBatch(model)
        self.running: list[Running] = []
        self.prefilling: deque[Prefilling] = deque()
        self.counts = Counts()
        self._joining: list[Prefilling] = []  # prefilled, and about to join
        self._eval_mode = ExitStack()  # no dropout while anything is running
        self._stopping = False

    @property
    def busy(self) -> bool:
        return bool(self.running or self.prefilling)

    @property
    def rows(self) -> int:
        return self.batch.slots.rows + sum(one.request.rows for one in list(self.prefilling))

    def stop(self) -> None:
        self._stopping = True

    def end(self) -> None:
        self._fail_all(SchedulerClosedError())

    def turn(self, next_request: NextRequest) -> None:
        with torch.cuda.device_of(self.batch.parameter):
            try:
                if not self.busy:  # after a pause: the model may have changed, or moved
                    self._eval_mode.enter_context(evaluation_mode(self.model.model))
                    self.model.refresh()
                    self.batch = SlotBatch(self.model)
                self._turn(next_request)
            except Exception as error:  # the cache cannot be trusted any more
                _log.exception("a step failed")
                failed = failure("decoding", error)
                if not self._requests() and (first := next_request(self.slots, self.tokens)) is not None:
                    first.finish(failed)  # nothing can be started: the first in the queue must hear of it
                self._fail_all(failed)
        if not self.busy:
            self._eval_mode.close()

    def _turn(self, next_request: NextRequest) -> None:
        if self._stopping:
            self.end()
        self._drop_cancelled()
        self._admit(next_request)
        self._prefill()
        if self.running:
            logits = self.batch.step([token for one in self.running for token in one.ids])
            self.counts.steps += 1
            self._choose(list(self.running), logits)

    def _requests(self) -> list[Request]:
        waiting = [one.request for one in (*self._joining, *self.prefilling)]
        return waiting + [one.request for one in self.running]

    def _fail_all(self, error: Exception) -> None:
        requests = self._requests()
        self.running, self.prefilling, self._joining = [], deque(), []
        self.batch = SlotBatch(self.model)
        for request in requests:
            request.finish(error)

    def _drop_cancelled(self) -> None:
        for one in [one for one in self.prefilling if one.request.cancelled]:
            self.prefilling.remove(one)
            one.request.finish(RequestCancelledError())
        for running in [one for one in self.running if one.request.cancelled]:
            self._finish(running, RequestCancelledError())

    def _admit(self, next_request: NextRequest) -> None:
        tokens = self.tokens - sum(request.tokens for request in self._requests())
        size, device = vocab_size(self.model), self.batch.parameter.device
        while (request := next_request(self.slots - self.rows, tokens)) is not None:
            self.counts.requests += 1
            kind = BeamSelection if request.searches else RowSelection
            try:
                self.prefilling.append(Prefilling(request, kind(request, size, device)))
            except Exception as error:  # caused by its own options
                request.finish(failure("prefill", error))
                continue
            tokens -= request.tokens

    def _finish(self, running: Running, error: Exception | None = None) -> None:
        """Its rows are free from now on."""
        for slot in running.slots:
            self.batch.leave(slot)
        self.running.remove(running)
        running.request.finish(finite(running.selection.outputs()) if error is None else error)

    def _prefill(self) -> None:
        """Process what fits between two steps: a chunk of each request in turn."""
        for one in [one for one in self.prefilling if not one.request.limit]:
            one.request.finish(one.selection.outputs())
            self.prefilling.remove(one)
        batch: list[Prefilling] = []
        budget = CHUNK if self.running else IDLE_CHUNK
        while self.prefilling and (not batch or len(self.prefilling[0].chunk()) <= budget):
            batch.append(self.prefilling.popleft())
            budget -= len(batch[-1].chunk())
        if not batch:
            return
        chunks = [one.chunk() for one in batch]
        try:
            if self.batch.sources is not None:
                sources = self.batch.read_sources(chunks)
            else:
                last = self.batch.read_pieces(chunks, [one.past for one in batch])  # (M, D)
        except Exception as error:
            _log.exception("prefill failed")
            for one in batch:
                one.request.finish(failure("prefill", error))
            return
        for one, chunk in zip(batch, chunks, strict=True):
            one.done += len(chunk)
            self.counts.prompt_tokens += len(chunk)
        self._joining = batch
        if self.batch.sources is not None:
            for one, (k, v) in zip(batch, sources, strict=True):
                slots = [self.batch.join_with_source(width, k, v) for width in _widths(one.request)]
                self._join(one, slots)
        else:
            self._join_prompts(batch, last)
        self._joining = []

    def _join_prompts(self, batch: list[Prefilling], last: Tensor) -> None:
        """Choose the first token of complete prompts, by vectors (M, D) of the last tokens read."""
        complete = [n for n, one in enumerate(batch) if one.done == len(one.request.ids)]
        self.prefilling.extend(one for one in batch if one.done < len(one.request.ids))
        if not complete:
            return
        logits = self.model.logits(last.index_select(0, torch.tensor(complete, device=last.device)))
        joined = []
        for n in complete:
            one = batch[n]
            slots = [self.batch.join_after(width, one.past) for width in _widths(one.request)]
            joined.append(self._join(one, slots))
        rows = torch.tensor([running.request.rows for running in joined], device=logits.device)
        self._choose(joined, logits.repeat_interleave(rows, 0))

    def _join(self, one: Prefilling, slots: list[SlotRef]) -> Running:
        request = one.request
        ids, starts = list(request.starts[:1]) * request.rows, list(request.starts[1:])
        running = Running(request, one.selection, slots, ids, starts)
        self.running.append(running)
        return running

    def _choose(self, requests: list[Running], logits: Tensor) -> None:
        """Choose the next tokens from logits (R, V) of the rows of these requests, one after another."""
        offset = 0
        rows: list[tuple[Running, RowSelection, int]] = []
        beams: list[tuple[Running, BeamSelection, Tensor]] = []
        for running in requests:
            count = sum(ref.slot.width for ref in running.slots)
            if running.starts:
                running.ids = [running.starts.pop(0)] * count
            elif isinstance(running.selection, RowSelection):
                rows.append((running, running.selection, offset))
            else:
                beams.append((running, running.selection, logits[offset : offset + count]))
            offset += count
        if rows:
            choices = choose_tokens([one for _, one, _ in rows], [start for _, _, start in rows], logits)
            for (running, selection, _), choice in zip(rows, choices, strict=True):
                self._append(running, selection, choice)
        for running, search, own in beams:
            self._search(running, search, own)

    def _append(self, running: Running, selection: RowSelection, choice: RowChoice) -> None:
        try:
            tokens, finished = selection.append(choice)
        except Exception as error:  # stop strings are found with the caller's own decode function
            self._finish(running, failure("decoding", error))
            return
        self.counts.new_tokens += len(choice.ids)
        if any(map(isnan, choice.logprobs)):
            self._finish(running)
            return
        for token in tokens:
            running.request.report(token)
        for index in reversed(finished):
            self.batch.leave(running.slots.pop(index))
        running.ids = [token for index, token in enumerate(choice.ids) if index not in finished]
        if not running.ids:
            self._finish(running)

    def _search(self, running: Running, search: BeamSelection, logits: Tensor) -> None:
        try:
            found = search.choose(logits)
        except Exception as error:
            self._finish(running, failure("decoding", error))
            return
        self.counts.new_tokens += 1
        if found is None:
            self._finish(running)
            return
        running.ids, parents = found
        if parents != list(range(len(parents))):
            self.batch.reorder(running.slots[0], torch.tensor(parents, device=logits.device))


def _widths(request: Request) -> list[int]:
    """The slots that a request takes: one for all its beams, or one per sequence."""
    return [request.rows] if request.searches else [1] * request.rows
