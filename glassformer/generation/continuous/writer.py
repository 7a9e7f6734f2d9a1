"""Requests that are written together: they join and leave between any two steps.

One thread does all the work with a model. Callers submit from theirs, and are told in the writer's.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.continuous.asked import asked
from glassformer.generation.continuous.errors import (
    RequestCancelledError,
    RequestTooLargeError,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.generation.continuous.job import OnDone, Request
from glassformer.generation.continuous.one_by_one import OneByOne
from glassformer.generation.continuous.round import Round
from glassformer.generation.continuous.waiting import Waiting
from glassformer.generation.decoder import SupportsPrefill
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.generation.request import GenerationRequest

LOOK: Final = 0.5  # seconds between two looks of an idle writer at whether the program has ended


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Rows in use of the slots, requests waiting of the queue, and counts since the writer began."""

    rows: int
    slots: int
    waiting: int
    queue: int
    tokens_read: int
    tokens_written: int
    steps: int
    jobs: int


class Scheduler:
    """Writes for many callers with one model.

    slots: the most rows at once; a beam or a sample is a row. tokens: the most that is held of all of them,
    read and yet to be written. queue: the most requests that wait for a slot.

    >>> from glassformer.api import tiny
    >>> writer = Scheduler(tiny("gpt2"), slots=4)
    >>> job = writer.submit([1, 2, 3], GenerationRequest(max_new_tokens=5))
    >>> len(job.result()[0].ids)
    5
    >>> writer.close()
    """

    def __init__(self, model: nn.Module, *, slots: int = 32, tokens: int = 65_536, queue: int = 256) -> None:
        for name, value in (("slots", slots), ("tokens", tokens), ("queue", queue)):
            if value < 1:
                raise InvalidValueError(name, value, "at least 1")
        self.model = (
            prepare_for_inference(model) if isinstance(model, EncoderDecoder | DecoderOnly) else model
        )
        if not isinstance(self.model, SupportsPrefill):
            raise UnsupportedError(
                type(model).__name__, "text generation", hint="load a model with a decoder"
            )
        self.slots, self.tokens, self.queue = slots, tokens, queue
        self._changed = threading.Condition()
        self._waiting = Waiting(slots, tokens)
        self._closing = False
        together = isinstance(self.model, InferenceModel) and self.model.decoder.attentions
        self._round = Round(self.model, slots, tokens) if together else OneByOne(self.model)
        self._thread = threading.Thread(target=self._run, name="writer")
        self._thread.start()

    def submit(
        self,
        ids: Sequence[int] | Tensor,
        request: GenerationRequest,
        *,
        caller: Hashable | None = None,
        on_done: OnDone | None = None,
    ) -> Request:
        """Queue a source or a prompt.

        caller: identifies who submits; callers take turns, and none gets all the slots.
        on_done: called with the outputs, or with what went wrong.
        """
        checked = asked(self.model, ids, request)
        if checked.rows > self.slots:
            raise RequestTooLargeError(
                checked.rows, self.slots, "rows", hint="lower num_beams or num_return_sequences"
            )
        if checked.tokens > self.tokens:
            raise RequestTooLargeError(
                checked.tokens,
                self.tokens,
                "tokens",
                hint="shorten it, or lower max_new_tokens, num_beams or num_return_sequences",
            )
        job = Request(checked, on_done, caller)
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise SchedulerClosedError()
            if len(self._waiting) >= self.queue:
                raise SchedulerFullError(len(self._waiting))
            self._waiting.add(job)
            self._changed.notify()
        return job

    def stats(self) -> Stats:
        counts = self._round.counts
        with self._changed:
            waiting = len(self._waiting)
        return Stats(
            rows=self._round.rows,
            slots=self.slots,
            waiting=waiting,
            queue=self.queue,
            tokens_read=counts.read,
            tokens_written=counts.written,
            steps=counts.steps,
            jobs=counts.jobs,
        )

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Take no more; finish what was taken (`drain`), or let it go. Waits for the thread to end."""
        self._take_no_more(drain)
        self._thread.join(timeout)

    def _take_no_more(self, drain: bool) -> None:
        with self._changed:
            self._closing = True
            left = [] if drain else self._waiting.take_all()
            if not drain:
                self._round.stop()
            self._changed.notify()
        for job in left:
            job.finish(SchedulerClosedError())

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._go_on():
                    self._round.turn(self._next)
        finally:  # whatever ended it, nobody waits for what will not come
            self._take_no_more(drain=False)
            self._round.end()

    def _go_on(self) -> bool:
        """Wait for something to do; False: it is time to end."""
        with self._changed:
            while not self._waiting and not self._round.busy:
                if self._closing or not threading.main_thread().is_alive():
                    return False
                self._changed.wait(LOOK)
            return threading.main_thread().is_alive()

    def _next(self, free_rows: int, free_tokens: int) -> Request | None:
        """A request that waits and fits."""
        with self._changed:
            gone = self._waiting.take_cancelled()
            found = self._waiting.take(free_rows, free_tokens)
        for job in gone:
            job.finish(RequestCancelledError())
        return found
