"""Requests of the continuous batching scheduler, their errors, and the queue.

The queue is fair: callers take turns, and none gets all the rows. If a caller submits more than can run at
once, requests of other callers run before the remaining ones, and some rows stay free for other callers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import TokenInput
from glassformer.core.model import EncoderDecoder
from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
    is_out_of_memory,
)
from glassformer.generation.inference_model import InferenceModel, max_positions
from glassformer.generation.logits_processors import LogitsProcessors
from glassformer.generation.params import GeneratedToken, GenerationOutput, GenerationParams
from glassformer.generation.prompt import Prompt
from glassformer.generation.step_decoder import decoder_start_ids

MAX_SHARE: Final = 0.75  # of rows and tokens that one caller with several requests may use
OnDone = Callable[["list[GenerationOutput] | Exception"], Any]


@dataclass(eq=False)
class RequestTooLargeError(GlassformerError):
    """A request exceeds the capacity of the scheduler. unit: `rows` or `tokens`."""

    needed: int
    available: int
    unit: str
    hint: str = ""
    template: ClassVar[str] = "the request needs {needed:,} {unit}, but only {available:,} are available"


@dataclass(eq=False)
class SchedulerFullError(GlassformerError):
    """The queue of the scheduler is full."""

    waiting: int
    template: ClassVar[str] = "the queue is full ({waiting} requests are waiting); try again later"


@dataclass(eq=False)
class SchedulerClosedError(GlassformerError):
    """The scheduler was closed before the request finished, or accepts no more requests."""

    template: ClassVar[str] = "the scheduler is closed"


@dataclass(eq=False)
class RequestCancelledError(GlassformerError):
    """The caller cancelled the request."""

    template: ClassVar[str] = "the request was cancelled"


@dataclass(eq=False)
class GenerationFailedError(GlassformerError):
    """An unexpected error, or too little memory. stage: `prefill` or `decoding`."""

    stage: str
    cause: str
    hint: str = ""
    template: ClassVar[str] = "{stage} failed: {cause}"


def generation_error(stage: str, error: Exception) -> GenerationFailedError:
    """Convert an exception raised while serving a request to a `GenerationFailedError`."""
    if is_out_of_memory(error):
        return GenerationFailedError(stage, "out of memory", hint="request fewer or shorter sequences")
    lines = str(error).splitlines() or [type(error).__name__]
    return GenerationFailedError(stage, lines[0])


class Request:
    """A submitted generation; callbacks run in the scheduler's thread and must not block.

    ids: token ids of the source or prompt. starts: the decoder's start tokens; empty for a decoder-only
    model.
    prompt: with embeddings, position ids or a source that is not text; None if it is only ids.
    limit: maximum number of new tokens.
    """

    def __init__(
        self,
        model: nn.Module,
        ids: Sequence[int] | Tensor | Prompt,
        params: GenerationParams,
        *,
        caller: Hashable | None = None,
        on_done: OnDone | None = None,
    ) -> None:
        prompt = Prompt.of(ids)
        prompt.check(model)
        if params.config.guidance_scale != 1 or params.seeds:
            raise UnsupportedError("continuous batching", "guidance_scale and seeds of rows")
        has_more = prompt.has_embeddings_or_positions or prompt.source is not None
        self.prompt = prompt if has_more else None
        self.ids = tuple(prompt.ids.tolist())
        self.params, self._on_done = params, on_done
        self.starts = tuple(decoder_start_ids(model, params.start_ids))
        self.limit = params.limit(len(self.ids), len(self.starts) or len(self.ids))
        if isinstance(model, InferenceModel):
            self.limit = min(self.limit, _max_new_tokens(model, prompt, self.starts))
            params.check_forced_ids(model.vocab_size)
        self.caller: Hashable = self if caller is None else caller
        self.cancelled = False
        self._result: list[GenerationOutput] | Exception | None = None
        self._done = threading.Event()

    @property
    def cache_keys(self) -> Sequence[Hashable]:
        """What the prefix cache looks up: the ids, or what stands in their place."""
        return self.ids if self.prompt is None else self.prompt.cache_keys()

    @property
    def shift(self) -> int:
        """Position id of the first new token minus the length of the prompt."""
        return 0 if self.prompt is None else self.prompt.next_position - len(self.ids)

    @property
    def searches(self) -> bool:
        """Whether the rows of the request are the beams of one search."""
        return self.params.config.num_beams > 1

    @property
    def rows(self) -> int:
        """Number of batch rows of the request."""
        return self.params.config.rows

    @property
    def tokens(self) -> int:
        """Maximum number of tokens that are cached for the request."""
        read = len(self.ids) if self.searches else len(self.ids) * self.rows
        return read + self.rows * (len(self.starts) + self.limit)

    def processors(self, vocab_size: int, device: torch.device) -> LogitsProcessors:
        """Create the logits processors for the rows of the request."""
        return LogitsProcessors.build(
            self.params,
            torch.tensor(self.starts or self.ids, device=device).expand(self.rows, -1),
            torch.full((self.rows,), self.limit, device=device),
            vocab_size=vocab_size,
            prefix=self.params.prefix(self.starts),
        )

    def cancel(self) -> None:
        """Cancel the request; its rows are freed at the next step."""
        self.cancelled = True

    @property
    def done(self) -> bool:
        return self._done.is_set()

    def result(self, timeout: float | None = None) -> list[GenerationOutput]:
        """Wait for the outputs and return them, best first; raise if the request failed."""
        if not self._done.wait(timeout):
            raise TimeoutError(f"the request did not finish within {timeout} seconds")
        assert self._result is not None
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def report(self, token: GeneratedToken) -> None:
        """Pass a new token to `on_token`; an exception there cancels the request."""
        if self.params.on_token is None or self.cancelled:
            return
        try:
            self.params.on_token(token)
        except Exception:
            self.cancel()

    def finish(self, result: list[GenerationOutput] | Exception) -> None:
        """Set the result and call `on_done`; only the first call has an effect."""
        if self.done:
            return
        self._result = result
        self._done.set()
        if self._on_done is not None:
            with suppress(Exception):  # an error in on_done must not affect other requests
                self._on_done(result)


def _max_new_tokens(model: InferenceModel, prompt: Prompt, starts: Sequence[int]) -> int:
    """Return how many new tokens the position table allows; raise if the model cannot process the input."""
    inner = model.model
    ids: Sequence[int] = prompt.ids.tolist()
    if isinstance(inner, EncoderDecoder):
        if not starts:
            raise MissingValueError("start_ids", "to start the decoder")
        if prompt.source is None:
            _check_ids(inner.src_embed, ids, "source", len(ids))
        embed, before, name, used = inner.tgt_embed, starts, "start", len(starts)
    else:
        if starts:
            raise ConflictError(("start_ids", "prompt"), "a decoder-only model continues its prompt")
        if not ids:
            raise EmptyInputError("prompt", hint="start it with the BOS token")
        embed, before, name, used = inner.embed, ids, "prompt", prompt.next_position
    table = _check_ids(embed, before, name, used)
    return 1 << 62 if table is None else max(0, table + 1 - used)


def _check_ids(embed: nn.Module, ids: Sequence[int], name: str, used: int) -> int | None:
    """Raise if an id is not in the vocabulary or there are too many; return the position table's size."""
    assert isinstance(embed, TokenInput)
    size, table = embed.token.num_embeddings, max_positions(embed)
    for token in ids:
        if not 0 <= token < size:
            raise InvalidValueError(f"token of the {name}", token, f"a token id from 0 to {size - 1}")
    if table is not None and used > table:
        raise InputTooLongError(used, table)
    return table


class RequestQueue:
    """Waiting requests, grouped by caller; not thread-safe."""

    def __init__(self, rows: int, tokens: int) -> None:
        """rows, tokens: total capacity of the scheduler."""
        self._rows, self._tokens = MAX_SHARE * rows, MAX_SHARE * tokens
        self._by_caller: dict[Hashable, deque[Request]] = {}  # in turn order: the next caller first
        self._running: list[Request] = []

    def __len__(self) -> int:
        return sum(map(len, self._by_caller.values()))

    def add(self, request: Request) -> None:
        self._by_caller.setdefault(request.caller, deque()).append(request)

    def pop(self, rows: int, tokens: int) -> Request | None:
        """Pop the first request of the next caller, if it fits into these free rows and tokens.

        If it does not fit, return None: the requests behind it wait too, so that a large request is not
        starved.
        """
        self._running = [request for request in self._running if not request.done]
        waiting = (requests[0] for requests in self._by_caller.values())
        first = next(filter(self._within_share, waiting), None)
        if first is None or first.rows > rows or first.tokens > tokens:
            return None
        requests = self._by_caller.pop(first.caller)
        requests.popleft()
        if requests:
            self._by_caller[first.caller] = requests
        self._running.append(first)
        return first

    def _within_share(self, request: Request) -> bool:
        """Whether the request's caller has nothing running, or stays within its share with this request."""
        own = [other for other in self._running if other.caller == request.caller]
        rows, tokens = sum(other.rows for other in own), sum(other.tokens for other in own)
        within = rows + request.rows <= self._rows and tokens + request.tokens <= self._tokens
        return not own or within

    def pop_cancelled(self) -> list[Request]:
        cancelled = [r for requests in self._by_caller.values() for r in requests if r.cancelled]
        for request in cancelled:
            self._by_caller[request.caller].remove(request)
            if not self._by_caller[request.caller]:
                del self._by_caller[request.caller]
        return cancelled

    def pop_all(self) -> list[Request]:
        removed = [request for requests in self._by_caller.values() for request in requests]
        self._by_caller.clear()
        return removed
