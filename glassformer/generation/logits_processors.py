"""Logits processors such as temperature, top-k, top-p, penalties and forced tokens, in transformers' order.

Scores are logits, or log-probabilities in a beam search; a suppressed token gets -inf. A history holds the
tokens of the prompt and the generated tokens, right-aligned; shorter rows are padded with NO_TOKEN on the
left. `at_least` is the minimum number of tokens that top-k, top-p and min-p keep.

B rows, V vocabulary, T tokens in the prompt or generated so far, L maximum new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from glassformer.generation.config import GenerationConfig
from glassformer.generation.params import ConstraintState, GenerationParams
from glassformer.inference.prepare import has_triton

NO_TOKEN: Final = -1
NEVER: Final = float("-inf")
MAX_FUSED_TOP_K: Final = 16  # maximum k of the Triton kernel


def penalize_repetition(scores: Tensor, history: Tensor, penalty: float) -> Tensor:
    """Make each token of the history (B, T) less likely: divide its score, or multiply a negative one."""
    penalized = torch.where(scores < 0, scores * penalty, scores / penalty)
    return torch.where(_columns(history, scores), penalized, scores)


def penalize_frequency(scores: Tensor, generated: Tensor, penalty: float) -> Tensor:
    """Subtract the penalty from each token as many times as `generated` (B, N) contains it.

    >>> penalize_frequency(torch.zeros(1, 4), torch.tensor([[2, 1, 2]]), 0.5)
    tensor([[ 0.0000, -0.5000, -1.0000,  0.0000]])
    """
    return scores - penalty * _counts(generated, scores)


def penalize_presence(scores: Tensor, generated: Tensor, penalty: float) -> Tensor:
    """Subtract the penalty once from each token that `generated` (B, N) contains."""
    return scores - penalty * _columns(generated, scores)


def add_bias(scores: Tensor, ids: Tensor, biases: Tensor) -> Tensor:
    """Add the biases (N,) to the scores of the tokens `ids` (N,) in all rows."""
    return scores.index_add(1, ids, biases.to(scores.dtype).expand(len(scores), -1))


def suppress_repeated_ngrams(scores: Tensor, history: Tensor, size: int) -> Tensor:
    """Suppress each token that would complete an n-gram that the history (B, T) already contains.

    >>> suppress_repeated_ngrams(torch.zeros(1, 4), torch.tensor([[1, 2, 3, 1]]), 2)
    tensor([[0., 0., -inf, 0.]])
    """
    length = history.shape[1]
    if length < size:
        return scores
    ngrams = history.unfold(1, size, 1)  # (B, T - size + 1, size)
    current = history[:, length + 1 - size :]  # (B, size - 1)
    repeats = (ngrams[..., :-1] == current[:, None]).all(-1)
    return scores.masked_fill(_columns(ngrams[..., -1].masked_fill(~repeats, NO_TOKEN), scores), NEVER)


def suppress(scores: Tensor, ids: Tensor, rows: Tensor | None = None) -> Tensor:
    """Suppress the tokens `ids` (N,) in all rows, or only where the mask `rows` (B,) is True."""
    suppressed = scores.index_fill(1, ids, NEVER)
    return suppressed if rows is None else torch.where(rows[:, None], suppressed, scores)


def force(scores: Tensor, token: int, rows: Tensor | None = None) -> Tensor:
    """Give this token score 0 and suppress all others, in all rows or where the mask `rows` (B,) is True."""
    only = torch.full_like(scores[0], NEVER)
    only[token] = 0.0
    return only.repeat(len(scores), 1) if rows is None else torch.where(rows[:, None], only, scores)


def keep_top_k(scores: Tensor, count: int, at_least: int = 1) -> Tensor:
    """Suppress all but the `count` most likely tokens; ties with the last one are kept."""
    count = min(max(count, at_least), scores.shape[-1])
    return scores.masked_fill(scores < scores.topk(count).values[:, -1:], NEVER)


def keep_top_p(scores: Tensor, share: float, at_least: int = 1) -> Tensor:
    """Keep the smallest set of most likely tokens whose total probability is at least `share`."""
    ascending, order = scores.sort(descending=False)
    drop = ascending.softmax(-1).cumsum(-1) <= 1 - share
    drop[:, -at_least:] = False
    return scores.masked_fill(torch.zeros_like(drop).scatter(1, order, drop), NEVER)


def keep_min_p(scores: Tensor, share: float, at_least: int = 1) -> Tensor:
    """Suppress tokens less likely than `share` times the probability of the most likely token."""
    probs = scores.softmax(-1)
    drop = probs < share * probs.amax(-1, keepdim=True)
    best = probs.topk(min(at_least, probs.shape[-1])).indices
    return scores.masked_fill(drop.scatter(1, best, False), NEVER)


def _columns(ids: Tensor, scores: Tensor) -> Tensor:
    """Return a mask (B, V) that is True for the ids (B, N) of each row; NO_TOKEN is ignored."""
    width = scores.shape[-1]
    named = torch.zeros(len(scores), width + 1, dtype=torch.bool, device=scores.device)
    return named.scatter_(1, _or_spare(ids, width), True)[:, :width]


def _counts(ids: Tensor, scores: Tensor) -> Tensor:
    """Return how often each token (B, V) occurs in the ids (B, N) of its row; NO_TOKEN is ignored."""
    width = scores.shape[-1]
    counts = scores.new_zeros(len(scores), width + 1)
    return counts.scatter_add_(1, _or_spare(ids, width), counts.new_ones(ids.shape))[:, :width]


def _or_spare(ids: Tensor, width: int) -> Tensor:
    """Replace NO_TOKEN and ids outside the vocabulary by a spare column after it."""
    return torch.where((ids < 0) | (ids >= width), width, ids)


def top_scores(scores: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the `count` highest scores (B, count), descending, their tokens, and log-sum-exp, in float32."""
    if scores.is_cuda and count <= MAX_FUSED_TOP_K and has_triton():
        from glassformer.inference.gpu.top_k import top_k

        return top_k(scores, count)
    scores = scores.float()
    values, tokens = scores.topk(count) if count > 1 else scores.max(-1, keepdim=True)
    return values, tokens, scores.logsumexp(-1)


def _penalizes(config: GenerationConfig) -> bool:
    """Whether earlier tokens change the scores."""
    penalties = config.presence_penalty or config.frequency_penalty or config.repetition_penalty != 1
    return bool(penalties or config.no_repeat_ngram_size)


@dataclass
class LogitsProcessors:
    """The logits processors of a generation config, with length bounds and history of each row."""

    config: GenerationConfig
    eos_ids: Tensor  # (E,)
    suppressed: Tensor  # (N,), never generated
    biased: Tensor  # (N,), tokens of `biases`
    biases: Tensor  # (N,)
    prefix: tuple[int, ...]  # tokens that every row begins with
    limits: Tensor  # (B,), maximum number of new tokens
    min_lengths: Tensor  # (B,), minimum number of new tokens before an end token
    history: Tensor | None  # (B, T + L), of which `filled` columns are in use; None: no processor needs it
    constraints: list[ConstraintState] | None = None  # of each row
    filled: int = 0
    new: int = 0  # tokens appended
    shared_min_length: int = 0  # before this step no row may end
    longest_min_length: int = 0  # from this step on every row may end
    earliest_last: int = 0  # before this step no row is at its last token

    @classmethod
    def build(
        cls,
        params: GenerationParams,
        context: Tensor,
        limits: Tensor,
        *,
        vocab_size: int,
        prefix: tuple[int, ...] = (),
    ) -> LogitsProcessors:
        """Create the processors of a generation.

        context (B, T): the prompt or the decoder's start tokens, right-aligned. limits (B,): maximum number
        of new tokens. prefix: tokens that every row begins with.
        """
        config, history = params.config, None
        if _penalizes(config) or config.stop_strings:
            new = context.new_full((len(context), int(limits.max())), NO_TOKEN)
            history = torch.cat((context, new), 1)
        lengths = (context != NO_TOKEN).sum(1)
        min_lengths = (config.min_length - lengths).clamp(min=config.min_new_tokens)
        eos_ids = torch.tensor(params.eos_ids, dtype=torch.long, device=context.device)
        suppressed = eos_ids.new_tensor(config.suppress_tokens)
        biased = eos_ids.new_tensor([token for token, _ in config.logit_bias])
        return cls(
            config,
            # tokens outside the vocabulary cannot be generated anyway
            eos_ids[(eos_ids >= 0) & (eos_ids < vocab_size)],
            suppressed[(suppressed >= 0) & (suppressed < vocab_size)],
            biased,
            torch.tensor([bias for _, bias in config.logit_bias], device=context.device),
            prefix,
            limits,
            min_lengths,
            history,
            None if params.constraint is None else [params.constraint.start() for _ in context],
            filled=context.shape[1],
            shared_min_length=int(min_lengths.min()),
            longest_min_length=int(min_lengths.max()),
            earliest_last=int(limits.min()) - 1,
        )

    def __call__(self, scores: Tensor, n: int) -> Tensor:
        """Process the scores (B, V) of new token n."""
        config = self.config
        constrained = self.constraints is not None and n >= len(self.prefix)
        if constrained:
            scores = permitted = self._constrain(scores)
        if len(self.biased):
            scores = add_bias(scores, self.biased, self.biases)
        if self.history is not None:
            so_far = self.history[:, : self.filled]
            generated = so_far[:, self.filled - self.new :]
            if config.repetition_penalty != 1:
                scores = penalize_repetition(scores, so_far, config.repetition_penalty)
            if config.frequency_penalty:
                scores = penalize_frequency(scores, generated, config.frequency_penalty)
            if config.presence_penalty:
                scores = penalize_presence(scores, generated, config.presence_penalty)
            if config.no_repeat_ngram_size:
                scores = suppress_repeated_ngrams(scores, so_far, config.no_repeat_ngram_size)
        if len(self.suppressed):
            scores = suppress(scores, self.suppressed)
        if n < self.longest_min_length:
            rows = None if n < self.shared_min_length else self.min_lengths > n
            scores = suppress(scores, self.eos_ids, rows)
        if n < len(self.prefix):
            scores = force(scores, self.prefix[n])
        if config.forced_eos_token_id is not None and n >= self.earliest_last and not constrained:
            scores = force(scores, config.forced_eos_token_id, self.limits == n + 1)
        if constrained:  # other processors must not suppress the only tokens that are possible
            scores = torch.where(scores.isneginf().all(-1, keepdim=True), permitted, scores)
        if config.do_sample:
            # a beam needs a token to continue with besides the end tokens
            at_least = len(self.eos_ids) + 1 if config.num_beams > 1 else 1
            if config.temperature != 1:
                scores = scores / config.temperature
            if config.top_k:
                scores = keep_top_k(scores, config.top_k, at_least)
            if config.top_p < 1:
                scores = keep_top_p(scores, config.top_p, at_least)
            if config.min_p > 0:
                scores = keep_min_p(scores, config.min_p, at_least)
        return scores.log_softmax(-1) if config.renormalize_logits else scores

    def _constrain(self, scores: Tensor) -> Tensor:
        assert self.constraints is not None
        masks = torch.stack([state.mask(scores.shape[-1]) for state in self.constraints])
        return scores.masked_fill(~masks.to(scores.device), NEVER)

    def only_suppressed(self, n: int) -> Tensor | None:
        """Return the tokens (N,) suppressed in all rows at step n; None if there are other processors."""
        config = self.config
        forced = n < len(self.prefix) or (config.forced_eos_token_id is not None and n >= self.earliest_last)
        changed = _penalizes(config) or config.logit_bias
        rows_differ = self.shared_min_length <= n < self.longest_min_length
        other = config.do_sample or config.renormalize_logits or self.constraints is not None
        if forced or changed or rows_differ or other:
            return None
        return torch.cat((self.suppressed, self.eos_ids)) if n < self.shared_min_length else self.suppressed

    def constant_until(self, n: int, longest: int) -> int:
        """Return the first step after n at which `only_suppressed` may change; n if it is None."""
        if self.only_suppressed(n) is None:
            return n
        until = self.shared_min_length if n < self.shared_min_length else longest
        return until if self.config.forced_eos_token_id is None else min(until, self.earliest_last)

    def top(self, logits: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the `count` highest processed log-probs (B, count) and their tokens, from logits (B, V)."""
        suppressed = self.only_suppressed(n)
        if suppressed is None or count + len(suppressed) > logits.shape[-1]:
            values, tokens = self(logits.float().log_softmax(-1), n).topk(count)
            return values, tokens
        # take enough candidates to drop the suppressed ones, without a pass over the vocabulary to mask them
        values, tokens, log_total = top_scores(logits, count + len(suppressed))
        if len(suppressed):
            dropped = (tokens[..., None] == suppressed).any(-1)
            values, order = values.masked_fill(dropped, NEVER).topk(count)
            tokens = tokens.gather(1, order)
        return values - log_total[:, None], tokens

    def new_tokens(self, n: int) -> list[list[int]]:
        """Return the last n tokens of each row."""
        assert self.history is not None
        rows: list[list[int]] = self.history[:, self.filled - n : self.filled].tolist()
        return rows

    @property
    def depends_on_history(self) -> bool:
        """Whether the chosen tokens have to be appended."""
        return self.history is not None or self.constraints is not None

    def append(self, ids: Tensor) -> None:
        """Add the chosen tokens (B,) to the history."""
        if self.history is not None:
            self.history[:, self.filled] = ids
        if self.constraints is not None and self.new >= len(self.prefix):
            for state, token in zip(self.constraints, ids.tolist(), strict=True):
                state.append(token)
        self.filled += 1
        self.new += 1

    def select(self, rows: Tensor) -> None:
        """Keep only these rows, in this order."""
        self.limits = self.limits.index_select(0, rows)
        self.min_lengths = self.min_lengths.index_select(0, rows)
        self.reorder(rows)

    def reorder(self, rows: Tensor) -> None:
        """Replace row i by `rows[i]`, a row of the same input, which has the same bounds."""
        if self.history is not None:
            self.history = self.history.index_select(0, rows)
        if self.constraints is not None:
            self.constraints = [self.constraints[row].copy() for row in rows.tolist()]
