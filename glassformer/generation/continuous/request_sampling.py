"""Token selection for each request of a shared batch, with the same result as `generate` for it alone.

Greedy requests are handled together, and so are requests that sample with the same config, each with its own
random generator. This takes as few passes over the vocabulary as possible. Other requests are handled one at
a time.

R rows, V vocabulary, W beams.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.generation.beam_search import BeamSearch
from glassformer.generation.continuous.request import Request
from glassformer.generation.params import GeneratedToken, GenerationOutput
from glassformer.generation.sampling import choose_greedy, sample, with_logprobs
from glassformer.generation.stopping_criteria import (
    FinishReason,
    check_interval,
    completes_stop,
    should_compact,
)

TopTokens = tuple[tuple[int, float], ...]


class SampledTokens(NamedTuple):
    """The tokens chosen for the rows of one request."""

    ids: list[int]
    logprobs: list[float]
    tops: list[TopTokens] | None


class RequestSampler:
    """Greedy decoding or sampling of one request: one token per row and step, recorded on the host."""

    def __init__(self, request: Request, vocab_size: int, device: torch.device) -> None:
        self.request, self.config, self.device = request, request.params.config, device
        self.processors = request.processors(vocab_size, device)
        self.generator = request.params.generator(device)
        self.n = 0  # tokens generated in every active row
        self.active = list(range(request.rows)) if request.limit else []
        # as in `generate`, finished rows still draw random numbers until the batch is compacted
        self.sampled = list(range(request.rows))
        self.ids: list[list[int]] = [[] for _ in range(request.rows)]
        self.logprobs: list[list[float]] = [[] for _ in range(request.rows)]
        self.reasons: list[FinishReason] = ["length"] * request.rows
        self._eos_ids = request.params.eos_ids
        self._constant_until = -1
        self._suppressed: tuple[int, ...] | None = None

    def only_suppressed(self) -> tuple[int, ...] | None:
        """Return the tokens suppressed at this step; None if other processors change the scores."""
        if self.n >= self._constant_until:
            suppressed = self.processors.only_suppressed(self.n)
            self._suppressed = None if suppressed is None else tuple(suppressed.tolist())
            until = self.processors.constant_until(self.n, self.request.limit)
            self._constant_until = until if suppressed is not None else self.n + 1
        return self._suppressed

    @property
    def kind(self) -> Hashable:
        """Key that is equal for requests that can be handled together."""
        params = self.request.params
        suppressed = self.only_suppressed()
        if suppressed is not None:
            return "greedy", suppressed, params.top_logprobs
        if self._samples_independently():
            return "sample", replace(self.config, seed=None), self._eos_ids, params.top_logprobs
        return id(self)

    def _samples_independently(self) -> bool:
        """Whether this step samples one row, with processors that do not depend on its history or length."""
        processors, config = self.processors, self.config
        forced = config.forced_eos_token_id is not None and self.n >= processors.earliest_last
        bounded = self.n < max(processors.longest_min_length, len(processors.prefix))
        alone = len(self.sampled) == 1 and not processors.depends_on_history
        return config.do_sample and alone and not forced and not bounded

    def choose(self, scores: Tensor) -> Tensor:
        """Choose tokens (R,) from the processed scores (R, V) of the active rows."""
        if not self.config.do_sample:
            return scores.argmax(-1)
        if len(self.sampled) == len(self.active):
            return sample(scores, 1, self.generator)[:, 0]
        indices = torch.tensor([self.sampled.index(row) for row in self.active], device=self.device)
        all_scores = scores.new_zeros(len(self.sampled), scores.shape[1]).index_copy_(0, indices, scores)
        return sample(all_scores, 1, self.generator)[indices, 0]

    def append(self, choice: SampledTokens) -> tuple[list[GeneratedToken], list[int]]:
        """Record the tokens of the active rows; return those to report, and the indices of finished rows."""
        ids, logprobs, tops = choice
        if self.processors.depends_on_history:
            self.processors.append(torch.tensor(ids, device=self.device))
        reported: list[GeneratedToken] = []
        finished: list[int] = []
        for index, (row, token, logprob) in enumerate(zip(self.active, ids, logprobs, strict=True)):
            self.logprobs[row].append(logprob)
            reason: FinishReason | None = "length" if self.n + 1 == self.request.limit else None
            if token in self._eos_ids:
                reason = "end"
            else:
                self.ids[row].append(token)
                reported.append(GeneratedToken(row, token, logprob, tops[index] if tops else ()))
                if self._stops(row):
                    reason = "stop"
            if reason is not None:
                self.reasons[row] = reason
                finished.append(index)
        self.n += 1
        if finished:
            self._drop(finished)
        due = self.n % check_interval(self.device) == 0
        if due and should_compact(len(self.active), len(self.sampled), self.device):
            self.sampled = list(self.active)
        return reported, finished

    def _stops(self, row: int) -> bool:
        stops, decode = self.config.stop_strings, self.request.params.decode
        return bool(stops) and decode is not None and completes_stop(self.ids[row], stops, decode)

    def _drop(self, finished: list[int]) -> None:
        left = [index for index in range(len(self.active)) if index not in finished]
        self.active = [self.active[index] for index in left]
        if left:
            self.processors.select(torch.tensor(left, device=self.device))

    def outputs(self) -> list[GenerationOutput]:
        """Return the sequences, best first."""
        rows = zip(self.ids, self.logprobs, self.reasons, strict=True)
        outputs = [
            GenerationOutput(ids=ids, score=sum(logprobs, 0.0), logprobs=logprobs, finish_reason=reason)
            for ids, logprobs, reason in rows
        ]
        return sorted(outputs, key=lambda output: -output.score)


class RequestBeamSearch:
    """The beam search of one request."""

    def __init__(self, request: Request, vocab_size: int, device: torch.device) -> None:
        self.request, self.n = request, 0
        processors = request.processors(vocab_size, device)
        generator = request.params.generator(device)
        self.search = BeamSearch(request.params, processors, generator, vocab_size)

    def choose(self, logits: Tensor) -> tuple[list[int], list[int]] | None:
        """Choose next tokens from logits (W, V) and return them with parent beams; None if finished."""
        ids, parents = self.search.choose(logits, self.n)
        self.n += 1
        if self.n == self.request.limit or not bool(self.search.active()):
            return None
        self.search.advance(ids, parents)
        return ids.tolist(), parents.tolist()

    def outputs(self) -> list[GenerationOutput]:
        return self.search.outputs()[0]


def choose_tokens(
    samplers: Sequence[RequestSampler], offsets: Sequence[int], logits: Tensor
) -> list[SampledTokens | GlassformerError]:
    """Choose the tokens of each request from logits (R, V). offsets: first row of each request.

    The result of a request is the error if it fails, e.g. because no token can continue its JSON value.
    """
    groups: dict[Hashable, list[int]] = {}
    for n, sampler in enumerate(samplers):
        groups.setdefault(sampler.kind, []).append(n)
    choices: dict[int, SampledTokens | GlassformerError] = {}
    for members in groups.values():
        rows = [offsets[n] + row for n in members for row in range(len(samplers[n].active))]
        try:
            sampled = _choose_together([samplers[n] for n in members], _rows(logits, rows))
            choices.update(zip(members, sampled, strict=True))
        except GlassformerError as error:
            choices.update(dict.fromkeys(members, error))
    return [choices[n] for n in range(len(samplers))]


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    if rows == list(range(rows[0], rows[0] + len(rows))):  # adjacent, so a view is enough
        return logits[rows[0] : rows[0] + len(rows)]
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _choose_together(samplers: list[RequestSampler], logits: Tensor) -> list[SampledTokens]:
    """Choose the tokens of requests of one kind; their rows are logits (R, V)."""
    first, sizes = samplers[0], [len(sampler.active) for sampler in samplers]
    suppressed = first.only_suppressed()
    if suppressed is not None:
        choice = choose_greedy(logits, torch.tensor(suppressed, dtype=torch.long, device=logits.device))
    else:
        scores = first.processors(logits.float(), first.n)
        parts = zip(samplers, scores.split(sizes), strict=True)
        choice = with_logprobs(scores, torch.cat([sampler.choose(part) for sampler, part in parts]))
    count = first.request.params.top_logprobs
    ids, logprobs, tops = choice.ids.tolist(), choice.logprobs.tolist(), choice.top(count) if count else None
    sampled, start = [], 0
    for size in sizes:
        end = start + size
        sampled.append(SampledTokens(ids[start:end], logprobs[start:end], tops[start:end] if tops else None))
        start = end
    return sampled
