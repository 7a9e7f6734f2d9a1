"""Choosing one token per row from its scores: the most likely one, or a random one.

Scores are logits or log-probabilities; a token that must not be chosen has the score -inf.

B rows, V vocabulary.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch import Tensor

from glassformer.inference.prepare import has_triton

NEVER: Final = float("-inf")
MAX_FUSED_TOP_K: Final = 16  # of one GPU kernel


class Choice(NamedTuple):
    """The tokens chosen at one step."""

    ids: Tensor  # (B,)
    logprobs: Tensor  # (B,)
    scores: Tensor  # (B, V) they were chosen from
    log_total: Tensor  # (B,), log(sum(exp(scores)))

    def top(self, count: int) -> list[tuple[tuple[int, float], ...]]:
        """The most likely tokens of each row and their log-probs, without those that cannot be chosen."""
        values, tokens = self.scores.float().topk(min(count, self.scores.shape[-1]))
        table = zip(tokens.tolist(), (values - self.log_total[:, None]).tolist(), strict=True)
        return [tuple(pair for pair in zip(*row, strict=True) if pair[1] > NEVER) for row in table]


def suppress(scores: Tensor, ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """Suppress these tokens (N,): everywhere, or only in `rows` (B,)."""
    suppressed = scores.index_fill(1, ids, NEVER)
    return suppressed if rows is None else torch.where(rows[:, None], suppressed, scores)


def choose_greedy(logits: Tensor, suppressed: Tensor) -> Choice:
    """The most likely token of each row that is not among the suppressed (N,)."""
    scores = suppress(logits, suppressed) if len(suppressed) else logits
    values, tokens, log_total = top_scores(scores, 1)
    return Choice(tokens[:, 0], values[:, 0] - log_total, scores, log_total)


def choose(scores: Tensor, ids: Tensor) -> Choice:
    """These tokens (B,) with their log-probabilities."""
    log_total = scores.logsumexp(-1)
    return Choice(ids, scores.gather(1, ids[:, None])[:, 0] - log_total, scores, log_total)


def sample(scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """Sample `count` different tokens per row (B, count) by their probabilities.

    A race of exponential clocks: it gives what `multinomial` gives and never waits for a GPU.
    """
    clocks = torch.empty_like(scores).exponential_(1, generator=generator)
    return (scores.softmax(-1) / clocks).topk(count).indices


def top_scores(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, V) -> the `count` highest in descending order, their tokens, log(sum(exp)); float32."""
    if scores.is_cuda and count <= MAX_FUSED_TOP_K and has_triton():
        from glassformer.inference.gpu.top_k import top_k

        return top_k(scores, count)
    scores = scores.float()
    values, tokens = scores.topk(count) if count > 1 else scores.max(-1, keepdim=True)
    return values, tokens, scores.logsumexp(-1)
