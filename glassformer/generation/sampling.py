"""The sampler: choose the next token of each row from its processed logits, by sampling or greedily.

B rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from glassformer.generation.generators import RandomGenerator, exponential
from glassformer.generation.logits_processors import NEVER, suppress, top_scores


class Choice(NamedTuple):
    """The tokens chosen at one step."""

    ids: Tensor  # (B,)
    logprobs: Tensor  # (B,)
    scores: Tensor  # (B, V) they were chosen from
    log_total: Tensor  # (B,), log(sum(exp(scores)))

    def top(self, count: int) -> list[tuple[tuple[int, float], ...]]:
        """Return the most likely tokens of each row and their log-probs, without suppressed tokens."""
        values, tokens = self.scores.float().topk(min(count, self.scores.shape[-1]))
        table = zip(tokens.tolist(), (values - self.log_total[:, None]).tolist(), strict=True)
        return [tuple(pair for pair in zip(*row, strict=True) if pair[1] > NEVER) for row in table]


def choose_greedy(logits: Tensor, suppressed: Tensor) -> Choice:
    """Choose the most likely token of each row that is not in `suppressed` (N,)."""
    scores = suppress(logits, suppressed) if len(suppressed) else logits
    values, tokens, log_total = top_scores(scores, 1)
    return Choice(tokens[:, 0], values[:, 0] - log_total, scores, log_total)


def with_logprobs(scores: Tensor, ids: Tensor) -> Choice:
    """Return a `Choice` of these tokens (B,), with their log-probabilities."""
    log_total = scores.logsumexp(-1)
    return Choice(ids, scores.gather(1, ids[:, None])[:, 0] - log_total, scores, log_total)


def sample(scores: Tensor, count: int, generator: RandomGenerator) -> Tensor:
    """Sample `count` different tokens per row, (B, count), in proportion to their probabilities.

    Takes the top of probability / exponential noise (equivalent to Gumbel top-k): the same distribution as
    `torch.multinomial`, without a GPU synchronization.
    """
    return (scores.softmax(-1) / exponential(scores, generator)).topk(count).indices
