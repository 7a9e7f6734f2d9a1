"""What the settings do to the scores of a step, for the rows that are being written.

B rows, V vocabulary, T tokens given or written so far, L tokens that may be written.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from glassformer.generation import pick
from glassformer.generation.config import GenerationConfig


@dataclass
class Shaping:
    """The rows' bounds and history, and the settings applied to their scores in Hugging Face's order."""

    settings: GenerationConfig
    ends: Tensor  # (E,), the tokens that end a row
    suppressed: Tensor  # (N,), never written
    prefix: tuple[int, ...]  # how every row begins
    limits: Tensor  # (B,), the most tokens of each row
    least: Tensor  # (B,), the fewest before an end token
    history: Tensor | None  # (B, T + L), right of the first `filled` columns nothing yet; None: no one asks
    filled: int = 0
    all_held: int = 0  # every row is held back before this step
    until_least: int = 0  # no row is held back from this step on
    before_last: int = 0  # no row is at its last token before this step

    @classmethod
    def of(
        cls,
        settings: GenerationConfig,
        *,
        ends: Tensor,
        vocab: int,
        prefix: tuple[int, ...],
        limits: Tensor,
        least: Tensor,
        given: Tensor,
    ) -> Shaping:
        """`given` (B, T): what stands before the first token to write, right-aligned."""
        asked = settings.repetition_penalty != 1 or settings.no_repeat_ngram_size > 0 or settings.stop_strings
        history = None
        if asked:
            room = given.new_full((len(given), int(limits.max())), pick.NOTHING)
            history = torch.cat((given, room), 1)
        never = ends.new_tensor(settings.suppress_tokens)
        return cls(
            settings,
            ends[(ends >= 0) & (ends < vocab)],  # what the model cannot write need not be forbidden
            never[(never >= 0) & (never < vocab)],
            prefix,
            limits,
            least,
            history,
            filled=given.shape[1],
            all_held=int(least.min()),
            until_least=int(least.max()),
            before_last=int(limits.min()) - 1,
        )

    def shape(self, scores: Tensor, n: int) -> Tensor:
        """Scores (B, V) of the token n -> the scores to choose by."""
        ask = self.settings
        if self.history is not None:
            so_far = self.history[:, : self.filled]
            if ask.repetition_penalty != 1:
                scores = pick.penalise_repetition(scores, so_far, ask.repetition_penalty)
            if ask.no_repeat_ngram_size:
                scores = pick.forbid_ngrams(scores, so_far, ask.no_repeat_ngram_size)
        if len(self.suppressed):
            scores = pick.forbid(scores, self.suppressed)
        if n < self.until_least:
            scores = pick.forbid(scores, self.ends, None if n < self.all_held else self.least > n)
        if n < len(self.prefix):
            scores = pick.force(scores, self.prefix[n])
        if ask.forced_eos_token_id is not None and n >= self.before_last:
            scores = pick.force(scores, ask.forced_eos_token_id, self.limits == n + 1)
        if ask.do_sample:
            # a beam must find something to go on with beside the ends
            at_least = len(self.ends) + 1 if ask.num_beams > 1 else 1
            if ask.temperature != 1:
                scores = scores / ask.temperature
            if ask.top_k:
                scores = pick.keep_top_k(scores, ask.top_k, at_least)
            if ask.top_p < 1:
                scores = pick.keep_top_p(scores, ask.top_p, at_least)
            if ask.min_p > 0:
                scores = pick.keep_min_p(scores, ask.min_p, at_least)
        return scores.log_softmax(-1) if ask.renormalize_logits else scores

    def forbidden(self, n: int) -> Tensor | None:
        """The tokens (F,) forbidden to every row at step n; None where more is done to its scores."""
        ask = self.settings
        forced = n < len(self.prefix) or (ask.forced_eos_token_id is not None and n >= self.before_last)
        repeated = ask.repetition_penalty != 1 or ask.no_repeat_ngram_size > 0
        some_held = self.all_held <= n < self.until_least
        if forced or repeated or some_held or ask.do_sample or ask.renormalize_logits:
            return None
        return torch.cat((self.suppressed, self.ends)) if n < self.all_held else self.suppressed

    def steady_until(self, n: int, longest: int) -> int:
        """The step up to which the same tokens are forbidden as at step n; n where more is done there."""
        if self.forbidden(n) is None:
            return n
        until = self.all_held if n < self.all_held else longest
        return until if self.settings.forced_eos_token_id is None else min(until, self.before_last)

    def likeliest(self, logits: Tensor, n: int, count: int) -> tuple[Tensor, Tensor]:
        """Logits (B, V) of the token n -> the `count` best shaped log-probs (B, count), and their tokens."""
        forbidden = self.forbidden(n)
        if forbidden is None or count + len(forbidden) > logits.shape[-1]:
            values, tokens = self.shape(logits.float().log_softmax(-1), n).topk(count)
            return values, tokens
        # the best that are left, without a pass over the vocabulary to strike out the others
        values, tokens, total = pick.best(logits, count + len(forbidden))
        if len(forbidden):
            struck = (tokens[..., None] == forbidden).any(-1)
            values, order = values.masked_fill(struck, pick.NEVER).topk(count)
            tokens = tokens.gather(1, order)
        return values - total[:, None], tokens

    def append(self, ids: Tensor) -> None:
        """The tokens chosen (B,)."""
        if self.history is not None:
            self.history[:, self.filled] = ids
        self.filled += 1

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order."""
        self.limits, self.least = self.limits.index_select(0, rows), self.least.index_select(0, rows)
        self.reorder(rows)

    def reorder(self, rows: Tensor) -> None:
        """The same for rows that stay with their sentence, whose bounds are one."""
        if self.history is not None:
            self.history = self.history.index_select(0, rows)
