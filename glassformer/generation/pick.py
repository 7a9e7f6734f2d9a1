"""Choosing the next token: pure functions on scores, in the order in which they are applied.

Scores are logits, or log-probabilities in a beam search; what must not be written becomes -inf. A history
holds what was read and written before, right-aligned, with NOTHING where a shorter row has no token.

B rows, V vocabulary, T tokens of history.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from glassformer.inference.prepare import has_triton

NOTHING: Final = -1
NEVER: Final = float("-inf")
BEST_AT_MOST: Final = 16  # that one kernel finds at once on a GPU


def penalise_repetition(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Make each token of the history (B, T) less likely: a score is divided by the penalty, or multiplied
    where it is negative."""
    seen = _columns(history, scores)
    return torch.where(seen, torch.where(scores < 0, scores * penalty, scores / penalty), scores)


def forbid_ngrams(scores: Tensor, history: Tensor, size: int) -> Tensor:
    """Forbid each token that would end a run of `size` tokens that the history (B, T) already holds.

    >>> forbid_ngrams(torch.zeros(1, 4), torch.tensor([[1, 2, 3, 1]]), 2)
    tensor([[0., 0., -inf, 0.]])
    """
    length = history.shape[1]
    if length < size:
        return scores
    runs = history.unfold(1, size, 1)  # (B, T - size + 1, size)
    now = history[:, length + 1 - size :]  # (B, size - 1), the run as far as it has got
    repeats = (runs[..., :-1] == now[:, None]).all(-1)
    return scores.masked_fill(_columns(runs[..., -1].masked_fill(~repeats, NOTHING), scores), NEVER)


def forbid(scores: Tensor, ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """Forbid these tokens (N,): everywhere, or in `rows` (B,) where that is True."""
    forbidden = scores.index_fill(1, ids, NEVER)
    return forbidden if rows is None else torch.where(rows[:, None], forbidden, scores)


def force(scores: Tensor, token: int | Tensor, rows: Tensor | None = None) -> Tensor:
    """Leave only this token, with score 0: everywhere, or in `rows` (B,) where that is True."""
    only = torch.full_like(scores[0], NEVER)
    only[token] = 0.0
    return only.repeat(len(scores), 1) if rows is None else torch.where(rows[:, None], only, scores)


def keep_top_k(scores: Tensor, count: int, at_least: int = 1) -> Tensor:
    """Forbid all but the `count` likeliest; equals of the last stay."""
    count = min(max(count, at_least), scores.shape[-1])
    return scores.masked_fill(scores < scores.topk(count).values[:, -1:], NEVER)


def keep_top_p(scores: Tensor, share: float, at_least: int = 1) -> Tensor:
    """Forbid all but the fewest likeliest tokens that together have at least this share."""
    rising, order = scores.sort(descending=False)
    away = rising.softmax(-1).cumsum(-1) <= 1 - share
    away[:, -at_least:] = False
    return scores.masked_fill(torch.zeros_like(away).scatter(1, order, away), NEVER)


def keep_min_p(scores: Tensor, share: float, at_least: int = 1) -> Tensor:
    """Forbid what is less likely than this share of the likeliest token's probability."""
    chances = scores.softmax(-1)
    away = chances < share * chances.amax(-1, keepdim=True)
    best = chances.topk(min(at_least, chances.shape[-1])).indices
    return scores.masked_fill(away.scatter(1, best, False), NEVER)


def draw(scores: Tensor, count: int, generator: torch.Generator | None) -> Tensor:
    """`count` different tokens of each row (B, count), each drawn by its probability among what is left.

    A race of exponential clocks: it gives what `multinomial` gives and never waits for a GPU.
    """
    clocks = torch.empty_like(scores).exponential_(1, generator=generator)
    return (scores.softmax(-1) / clocks).topk(count).indices


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores (B, V) -> the `count` highest, falling, their tokens (B, count), log(sum(exp)) (B,): float32."""
    if scores.is_cuda and count <= BEST_AT_MOST and has_triton():
        from glassformer.inference.gpu.top_k import top_k as at_once

        return at_once(scores, count)
    scores = scores.float()
    values, tokens = scores.topk(count) if count > 1 else scores.max(-1, keepdim=True)
    return values, tokens, scores.logsumexp(-1)


def _columns(ids: Tensor, scores: Tensor) -> Tensor:
    """(B, V), True in the columns that a row's ids (B, N) name; NOTHING names none."""
    width = scores.shape[-1]
    named = torch.zeros(len(scores), width + 1, dtype=torch.bool, device=scores.device)
    # ids that the head does not know, and NOTHING, go to a spare column
    spare = torch.where((ids < 0) | (ids >= width), width, ids)
    return named.scatter_(1, spare, True)[:, :width]
