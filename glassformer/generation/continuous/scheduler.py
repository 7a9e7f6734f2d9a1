"""The scheduler of continuous batching: requests join and leave the batch between any two steps.

One thread runs the model. Callers submit requests from their own threads; callbacks run in the scheduler's
thread.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.continuous.request import (
    OnDone,
    Request,
    RequestCancelledError,
    RequestQueue,
    RequestTooLargeError,
    SchedulerClosedError,
    SchedulerFullError,
)
from glassformer.generation.continuous.runner import SequentialRunner, SlotRunner
from glassformer.generation.inference_model import InferenceModel, prepare_for_inference
from glassformer.generation.params import GenerationParams
from glassformer.generation.prompt import Prompt
from glassformer.generation.step_decoder import SupportsPrefill

PREFIX_SHARE: Final = 0.25  # size of the prefix cache, as a fraction of the tokens of all rows
POLL: Final = 0.5  # seconds between checks of an idle scheduler for the end of the program


@dataclass(frozen=True, kw_only=True)
class Stats:
    """Current use of slots and queue, and counts since the scheduler started."""

    rows: int
    slots: int
    waiting: int
    queue: int
    prompt_tokens: int
    prefix_cache_queries: int
    prefix_cache_hits: int
    new_tokens: int
    steps: int
    requests: int


class Scheduler:
    """Generate for many callers with one model, by continuous batching.

    slots: maximum number of rows in the batch; a beam or a sample is a row. tokens: maximum number of cached
    tokens of all rows, including those still to be generated. queue: maximum number of waiting requests.
    enable_prefix_caching: reuse the keys and values of prompts that begin alike; takes memory for a quarter
    of `tokens` in addition.
    cuda_graphs: on a GPU, capture decode steps as CUDA graphs; requests of up to tokens // slots tokens and
    without beam search use them. They take memory for as many tokens as `tokens` in addition.

    >>> from glassformer.api import tiny
    >>> scheduler = Scheduler(tiny("gpt2"), slots=4)
    >>> request = scheduler.submit([1, 2, 3], GenerationParams(max_new_tokens=5))
    >>> len(request.result()[0].ids)
    5
    >>> scheduler.close()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        slots: int = 32,
        tokens: int = 65_536,
        queue: int = 256,
        enable_prefix_caching: bool = True,
        cuda_graphs: bool = True,
    ) -> None:
        for name, value in (("slots", slots), ("tokens", tokens), ("queue", queue)):
            if value < 1:
                raise InvalidValueError(name, value, "at least 1")
        self.model = model if isinstance(model, InferenceModel) else prepare_for_inference(model)
        if not isinstance(self.model, SupportsPrefill):
            raise UnsupportedError(
                type(model).__name__, "text generation", hint="load a model with a decoder"
            )
        self.slots, self.tokens, self.queue = slots, tokens, queue
        self._changed = threading.Condition()
        self._queue = RequestQueue(slots, tokens)
        self._closing = False
        self._step_since: float | None = None
        self._runner: SlotRunner | SequentialRunner = SequentialRunner(self.model)
        if isinstance(self.model, InferenceModel) and self.model.decoder.attentions:
            cached = int(PREFIX_SHARE * tokens) if enable_prefix_caching else 0
            self._runner = SlotRunner(
                self.model, slots, tokens, cuda_graphs=cuda_graphs, prefix_cache_tokens=cached
            )
        self._thread = threading.Thread(target=self._run, name="scheduler")
        self._thread.start()

    def submit(
        self,
        ids: Sequence[int] | Tensor | Prompt,
        params: GenerationParams,
        *,
        caller: Hashable | None = None,
        on_done: OnDone | None = None,
    ) -> Request:
        """Queue a source or a prompt.

        caller: identifies the submitter; callers take turns, and none gets all the slots.
        on_done: called with the outputs, or with the error.
        """
        request = Request(self.model, ids, params, caller=caller, on_done=on_done)
        if request.rows > self.slots:
            raise RequestTooLargeError(
                request.rows, self.slots, "rows", hint="lower num_beams or num_return_sequences"
            )
        if request.tokens > self.tokens:
            raise RequestTooLargeError(
                request.tokens,
                self.tokens,
                "tokens",
                hint="shorten it, or lower max_new_tokens, num_beams or num_return_sequences",
            )
        with self._changed:
            if self._closing or not self._thread.is_alive():
                raise SchedulerClosedError()
            if len(self._queue) >= self.queue:
                raise SchedulerFullError(len(self._queue))
            self._queue.add(request)
            self._changed.notify()
        return request

    def stats(self) -> Stats:
        with self._changed:
            waiting = len(self._queue)
        counts = vars(self._runner.counts)
        return Stats(rows=self._runner.rows, slots=self.slots, waiting=waiting, queue=self.queue, **counts)

    def step_seconds(self) -> float:
        """Return for how long the current step has been running; infinity if the thread has ended."""
        if not self._thread.is_alive():
            return math.inf
        since = self._step_since
        return 0.0 if since is None else time.monotonic() - since

    def close(self, drain: bool = True, timeout: float | None = None) -> None:
        """Accept no more requests, finish (`drain`) or drop the accepted ones, and wait for the thread."""
        self._stop_accepting(drain)
        self._thread.join(timeout)

    def _stop_accepting(self, drain: bool) -> None:
        with self._changed:
            self._closing = True
            left = [] if drain else self._queue.pop_all()
            if not drain:
                self._runner.stop()
            self._changed.notify()
        for request in left:
            request.finish(SchedulerClosedError())

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                while self._wait_for_work():
                    self._step_since = time.monotonic()
                    self._runner.turn(self._next)
                    self._step_since = None
        finally:  # however the thread ends, no caller may wait forever
            self._stop_accepting(drain=False)
            self._runner.end()

    def _wait_for_work(self) -> bool:
        """Wait until there is work and return True; False if the thread should end."""
        with self._changed:
            while not self._queue and not self._runner.busy:
                if self._closing or not threading.main_thread().is_alive():
                    return False
                self._changed.wait(POLL)
            return threading.main_thread().is_alive()

    def _next(self, free_rows: int, free_tokens: int) -> Request | None:
        """Pop a waiting request that fits into the free rows and tokens, if any."""
        with self._changed:
            cancelled = self._queue.pop_cancelled()
            request = self._queue.pop(free_rows, free_tokens)
        for cancelled_request in cancelled:
            cancelled_request.finish(RequestCancelledError())
        return request
