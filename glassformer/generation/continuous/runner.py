"""Runners: generate for all queued requests in one batch of slots, or for one request after another.

In each turn, a runner drops cancelled requests, admits new ones, prefills some tokens and takes one step.

R rows of the batch, M prompts, V vocabulary, D d_model.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from math import isnan
from typing import TYPE_CHECKING, Final

import torch
from torch import Tensor, nn

from glassformer.errors import GlassformerError, NonFiniteError
from glassformer.generation.continuous.prefix_cache import PrefixCache
from glassformer.generation.continuous.request import (
    Request,
    RequestCancelledError,
    SchedulerClosedError,
    generation_error,
)
from glassformer.generation.continuous.request_sampling import (
    RequestBeamSearch,
    RequestSampler,
    SampledTokens,
    choose_tokens,
)
from glassformer.generation.continuous.slot_batch import ByLayer, SlotBatch
from glassformer.generation.engine import start_search
from glassformer.generation.inference_model import InferenceModel
from glassformer.generation.loop import run_search
from glassformer.generation.params import GenerationOutput
from glassformer.inference.attention import DynamicKVCache
from glassformer.inference.prepare import evaluation_mode
from glassformer.inference.slot_cache import Slot

if TYPE_CHECKING:
    from glassformer.generation.continuous.graph_batch import CUDAGraphBatch

CHUNK: Final = 256  # tokens of one prompt that are prefilled at once
IDLE_CHUNK: Final = 1024  # tokens that are prefilled at once if no request waits for the next step
NextRequest = Callable[[int, int], Request | None]  # free rows and tokens -> a request that fits
_log = logging.getLogger("glassformer.scheduler")


@dataclass
class Counts:
    """Counts since the scheduler started."""

    prompt_tokens: int = 0  # prefilled
    prefix_cache_queries: int = 0  # tokens of prompts that were looked up in the prefix cache
    prefix_cache_hits: int = 0  # tokens found there, which were not prefilled again
    new_tokens: int = 0
    steps: int = 0
    requests: int = 0


def outputs_or_error(outputs: list[GenerationOutput]) -> list[GenerationOutput] | NonFiniteError:
    """Return the outputs, or an error if a score is NaN."""
    try:
        for output in outputs:
            output.check_finite()
    except NonFiniteError as error:
        return error
    return outputs


class SequentialRunner:
    """Run one request at a time, for models that have their own decoder."""

    busy = False  # nothing runs between two turns

    def __init__(self, model: nn.Module) -> None:
        self.model, self.counts, self.rows = model, Counts(), 0
        self._stopping = False

    def stop(self) -> None:
        """Drop the running request; may be called from any thread."""
        self._stopping = True

    def end(self) -> None:
        """Do nothing: no request runs between two turns."""

    def turn(self, next_request: NextRequest) -> None:
        """Run the next request to its end."""
        request = next_request(1 << 62, 1 << 62)
        if request is None:
            return
        self.counts.requests += 1
        self.rows = request.rows
        try:
            with evaluation_mode(self.model):
                result = self._run(request)
        except GlassformerError as error:  # invalid options
            result = error
        except Exception as error:
            result = generation_error("decoding", error)
        self.rows = 0
        request.finish(result)

    def _run(self, request: Request) -> list[GenerationOutput] | Exception:
        device, params = next(self.model.parameters()).device, request.params
        if params.on_token is not None:
            params = replace(params, on_token=request.report)
        ids = torch.tensor([request.ids], dtype=torch.long, device=device)
        mask, generator = torch.ones_like(ids, dtype=torch.bool), params.generator(device)
        prompts = [] if request.prompt is None else [request.prompt]
        decoder, logits, search = start_search(
            self.model, ids, params, mask, [request.limit], generator, prompts
        )
        self.counts.prompt_tokens += len(request.ids)
        for _ in run_search(decoder, logits, search):
            self.counts.steps += 1
            if self._stopping:
                return SchedulerClosedError()
            if request.cancelled:
                return RequestCancelledError()
        if request.cancelled:
            return RequestCancelledError()
        outputs = search.outputs()[0]
        self.counts.new_tokens += sum(len(output.logprobs) for output in outputs)
        return outputs_or_error(outputs)


@dataclass(eq=False)
class RunningRequest:
    """A request that is being prefilled or generated."""

    request: Request
    sampler: RequestSampler | RequestBeamSearch
    batch: SlotBatch  # of its slots
    past: DynamicKVCache = field(default_factory=DynamicKVCache)  # the prefilled part of the prompt
    looked_up: bool = False  # in the prefix cache
    slots: list[Slot] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)  # the next input token of each row
    starts: list[int] = field(default_factory=list)  # the decoder's start tokens that are not yet processed

    def chunk(self) -> Sequence[int]:
        """Return the next tokens to prefill: a full source, or a prompt chunk of a fixed size."""
        ids, done = self.request.ids, int(self.past.length)
        return ids if self.request.starts else ids[done : done + CHUNK]


class SlotRunner:
    """Run all requests in one batch; rows join and leave between any two steps."""

    def __init__(
        self,
        model: InferenceModel,
        slots: int,
        tokens: int,
        *,
        cuda_graphs: bool = True,
        prefix_cache_tokens: int = 0,
    ) -> None:
        self.model, self.slots, self.tokens = model, slots, tokens
        self.prefix_cache_tokens = prefix_cache_tokens if model.encoder is None else 0
        self.prefixes = PrefixCache(self.prefix_cache_tokens)
        self._prefix_decoder = model.decoder  # that computed the cached prefixes
        self.batch = SlotBatch(model)
        self.cuda_graphs = cuda_graphs
        self.graph_batch: CUDAGraphBatch | None = None  # for requests that fit, if the model supports it
        self.running: list[RunningRequest] = []
        self.prefilling: deque[RunningRequest] = deque()
        self.counts = Counts()
        self._joining: list[RunningRequest] = []  # being prefilled right now
        self._eval_mode = ExitStack()  # no dropout while anything is running
        self._stopping = False

    @property
    def busy(self) -> bool:
        return bool(self.running or self.prefilling)

    @property
    def rows(self) -> int:
        """Number of rows in use or being prefilled."""
        captured = self.graph_batch.rows if self.graph_batch is not None else 0
        return self.batch.rows + captured + sum(entry.request.rows for entry in list(self.prefilling))

    def stop(self) -> None:
        """Drop all requests at the next turn; may be called from any thread."""
        self._stopping = True

    def end(self) -> None:
        """Fail the running requests, because the scheduler is closed."""
        self._fail_all(SchedulerClosedError())

    def turn(self, next_request: NextRequest) -> None:
        """Take one step with the running requests, and admit more."""
        with torch.cuda.device_of(self.batch.parameter):
            try:
                if not self.busy:  # after a pause: weights may have changed or moved
                    self._eval_mode.enter_context(evaluation_mode(self.model.model))
                    self.model.refresh()
                    self.batch = SlotBatch(self.model)
                    if self._prefix_decoder is not self.model.decoder:
                        self.prefixes = PrefixCache(self.prefix_cache_tokens)
                        self._prefix_decoder = self.model.decoder
                    if self.graph_batch is not None and self.graph_batch.decoder is not self.model.decoder:
                        self.graph_batch = None
                self._turn(next_request)
            except Exception as error:  # the cache may be inconsistent
                _log.exception("a step failed")
                failed = generation_error("decoding", error)
                if not self._requests() and (first := next_request(self.slots, self.tokens)) is not None:
                    first.finish(failed)  # nothing can start: report it to the first in the queue
                self._fail_all(failed)
        if not self.busy:
            self._eval_mode.close()

    def _turn(self, next_request: NextRequest) -> None:
        if self._stopping:
            self.end()
        for entry in [entry for entry in (*self.prefilling, *self.running) if entry.request.cancelled]:
            self._finish(entry, RequestCancelledError())
        self._admit(next_request)
        self._prefill()
        if self.running:
            self.counts.steps += 1
            batches = {entry.batch: None for entry in self.running}
            parts = [[entry for entry in self.running if entry.batch is batch] for batch in batches]
            logits = [part[0].batch.step([token for entry in part for token in entry.ids]) for part in parts]
            together = logits[0] if len(logits) == 1 else torch.cat(logits)
            self._choose([entry for part in parts for entry in part], together)

    def _requests(self) -> list[Request]:
        return [entry.request for entry in (*self._joining, *self.prefilling, *self.running)]

    def _fail_all(self, error: Exception) -> None:
        requests = self._requests()
        self.running, self.prefilling, self._joining = [], deque(), []
        self.batch, self.graph_batch = SlotBatch(self.model), None
        for request in requests:
            request.finish(error)

    def _admit(self, next_request: NextRequest) -> None:
        tokens = self.tokens - sum(request.tokens for request in self._requests())
        while (request := next_request(self.slots - self.rows, tokens)) is not None:
            self.counts.requests += 1
            kind = RequestBeamSearch if request.searches else RequestSampler
            try:
                sampler = kind(request, self.model.vocab_size, self.batch.parameter.device)
                batch = self._batch_for(request)
            except Exception as error:  # caused by its own options, or too little memory
                request.finish(generation_error("prefill", error))
                continue
            tokens -= request.tokens
            if request.limit:
                starts = request.starts
                ids = [*starts[:1]] * request.rows
                entry = RunningRequest(request, sampler, batch, ids=ids, starts=[*starts[1:]])
                self.prefilling.append(entry)
            else:
                request.finish(sampler.outputs())

    def _batch_for(self, request: Request) -> SlotBatch:
        """Return the batch in which a request runs: with CUDA graphs if it fits."""
        if not self.cuda_graphs or not self.model.captures or self.model.encoder is not None:
            return self.batch
        if self.graph_batch is None:
            from glassformer.generation.continuous.graph_batch import CUDAGraphBatch

            self.graph_batch = CUDAGraphBatch(self.model, self.slots, self.tokens)
        if not self.graph_batch.fits(request):
            return self.batch
        self.graph_batch.reserve(request)
        return self.graph_batch

    def _finish(self, entry: RunningRequest, error: Exception | None = None) -> None:
        """Free the rows of a request and report its outputs, or the error."""
        for slot in entry.slots:
            entry.batch.leave(slot)
        (self.running if entry in self.running else self.prefilling).remove(entry)
        entry.request.finish(outputs_or_error(entry.sampler.outputs()) if error is None else error)

    def _prefill(self) -> None:
        """Prefill as much as fits between two steps: one chunk of each request in turn."""
        batch: list[RunningRequest] = []
        budget = CHUNK if self.running else IDLE_CHUNK
        while self.prefilling:
            self._find_prefix(self.prefilling[0])
            if batch and len(self.prefilling[0].chunk()) > budget:
                break
            batch.append(self.prefilling.popleft())
            budget -= len(batch[-1].chunk())
        if not batch:
            return
        chunks = [entry.chunk() for entry in batch]
        try:
            prompts = [entry.request.prompt for entry in batch]
            if self.batch.sources is not None:
                sources = self.batch.read_sources(chunks, prompts)
            else:
                pasts = [entry.past for entry in batch]
                last = self.batch.read_prompts(chunks, pasts, prompts)  # (M, D)
        except Exception as error:
            _log.exception("prefill failed")
            for entry in batch:
                entry.request.finish(generation_error("prefill", error))
            return
        self.counts.prompt_tokens += sum(map(len, chunks))
        self._joining = batch
        if self.batch.sources is not None:
            for entry, source in zip(batch, sources, strict=True):
                self._join(entry, source)
        else:
            complete = [n for n, entry in enumerate(batch) if entry.past.length == len(entry.request.ids)]
            self.prefilling.extend(entry for n, entry in enumerate(batch) if n not in complete)
            for n in complete:
                if self.prefix_cache_tokens:
                    self.prefixes.store(batch[n].request.cache_keys, batch[n].past)
                self._join(batch[n], batch[n].past)
            rows = [n for n in complete for _ in range(batch[n].request.rows)]
            if rows:
                logits = self.model.logits(last.index_select(0, torch.tensor(complete, device=last.device)))
                repeats = torch.tensor([complete.index(n) for n in rows], device=last.device)
                self._choose([batch[n] for n in complete], logits.index_select(0, repeats))
        self._joining = []

    def _find_prefix(self, entry: RunningRequest) -> None:
        """Take the keys and values of the prompt's prefix from the prefix cache, before it is prefilled."""
        if self.prefix_cache_tokens and not entry.looked_up:
            entry.looked_up = True
            entry.past = self.prefixes.find(entry.request.cache_keys)
            self.counts.prefix_cache_queries += len(entry.request.ids)
            self.counts.prefix_cache_hits += int(entry.past.length)

    def _join(self, entry: RunningRequest, past: DynamicKVCache | tuple[ByLayer, ByLayer]) -> None:
        """Add the slots of a request: one for all its beams, or one for each sample."""
        rows = entry.request.rows
        widths = [rows] if entry.request.searches else [1] * rows
        entry.slots = [entry.batch.join(width, past) for width in widths]
        for slot in entry.slots:
            slot.shift = entry.request.shift
        entry.past = DynamicKVCache()
        self.running.append(entry)

    def _choose(self, requests: list[RunningRequest], logits: Tensor) -> None:
        """Choose the next tokens of these requests from their logits (R, V)."""
        rows: list[tuple[RunningRequest, RequestSampler, int]] = []
        order, start = list(range(self.batch.rows)), 0
        finished: list[tuple[RunningRequest, Exception | None]] = []
        for entry in requests:
            count = len(entry.ids) or entry.request.rows
            if entry.starts:
                entry.ids = [entry.starts.pop(0)] * count
            elif isinstance(entry.sampler, RequestSampler):
                rows.append((entry, entry.sampler, start))
            else:
                try:
                    step = entry.sampler.choose(logits[start : start + count])
                    self.counts.new_tokens += 1
                    if step is None:
                        finished.append((entry, None))
                    else:
                        entry.ids, parents = step
                        first = self.batch.cache.first_row(entry.slots[0])
                        order[first : first + count] = [first + beam for beam in parents]
                except Exception as error:
                    finished.append((entry, generation_error("decoding", error)))
            start += count
        if order != list(range(len(order))):
            self.batch.cache.reorder(torch.tensor(order, device=logits.device))
        if rows:
            choices = choose_tokens([entry for _, entry, _ in rows], [start for _, _, start in rows], logits)
            for (entry, sampler, _), choice in zip(rows, choices, strict=True):
                self._append(entry, sampler, choice)
        for entry, problem in finished:
            self._finish(entry, problem)

    def _append(
        self, entry: RunningRequest, sampler: RequestSampler, choice: SampledTokens | GlassformerError
    ) -> None:
        if isinstance(choice, GlassformerError):
            self._finish(entry, choice)
            return
        try:
            tokens, finished = sampler.append(choice)
        except Exception as error:  # stop strings are found with the caller's own decode function
            self._finish(entry, generation_error("decoding", error))
            return
        self.counts.new_tokens += len(choice.ids)
        if not any(map(isnan, choice.logprobs)):
            for token in tokens:
                entry.request.report(token)
            for index in reversed(finished):
                entry.batch.leave(entry.slots.pop(index))
            entry.ids = [token for index, token in enumerate(choice.ids) if index not in finished]
        if not entry.slots or any(map(isnan, choice.logprobs)):
            self._finish(entry)
