"""How one request chooses its tokens: as `engine.write` would for it alone.

Each has rows that go on; given their scores it takes one token for each, and says who is over.

R rows, V vocabulary, W beams.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.generation import pick
from glassformer.generation.beam import candidates, followed, stops_of
from glassformer.generation.beams import Beams
from glassformer.generation.continuous.asked import Asked
from glassformer.generation.request import (
    FinishReason,
    GenerationOutput,
    Token,
    check_interval,
    should_compact,
)
from glassformer.generation.stopping import completes_stop

Top = Sequence[tuple[int, float]]


class Lines:
    """Rows that each take one token a step: the likeliest, or one that is drawn."""

    def __init__(self, asked: Asked, vocab: int, device: torch.device) -> None:
        self.asked, self.device = asked, device
        self.shaping = asked.shaping(vocab, device)
        self.generator = asked.request.generator(device)
        self.n = 0  # tokens written in every row that goes on
        self.live = list(range(asked.rows)) if asked.limit else []
        # alone, rows that are over still draw until it is worthwhile to move the others together
        self.drawing = list(range(asked.rows))
        self.ids: list[list[int]] = [[] for _ in range(asked.rows)]
        self.logprobs: list[list[float]] = [[] for _ in range(asked.rows)]
        self.ended: list[FinishReason] = ["length"] * asked.rows
        self._steady = -1
        self._forbidden: tuple[int, ...] | None = None
        self._texts = asked.settings.stop_strings

    def forbidden(self) -> tuple[int, ...] | None:
        """The tokens forbidden at this step, where nothing else is done to scores; None: more is."""
        if self.n >= self._steady:
            found = self.shaping.forbidden(self.n)
            self._forbidden = None if found is None else tuple(found.tolist())
            until = self.shaping.steady_until(self.n, self.asked.limit)
            self._steady = until if found is not None else self.n + 1
        return self._forbidden

    @property
    def draws_plainly(self) -> bool:
        """Whether this step is one row's draw, to whose scores nothing is done that depends on what was
        written before: then requests with the same settings can be shaped together."""
        shaping, settings = self.shaping, self.asked.settings
        forced = settings.forced_eos_token_id is not None and self.n >= shaping.before_last
        held = self.n < max(shaping.until_least, len(shaping.prefix))
        alone = len(self.drawing) == 1 and shaping.history is None
        return settings.do_sample and alone and not forced and not held

    def scores(self, logits: Tensor) -> Tensor:
        """Logits (R, V) of the rows that go on -> the scores to choose by."""
        return self.shaping.shape(logits.float(), self.n)

    def choose(self, scores: Tensor) -> Tensor:
        """Scores (R, V) -> tokens (R,)."""
        if not self.asked.settings.do_sample:
            return scores.argmax(-1)
        if len(self.drawing) == len(self.live):
            return pick.draw(scores, 1, self.generator)[:, 0]
        here = torch.tensor([self.drawing.index(row) for row in self.live], device=self.device)
        every = scores.new_zeros(len(self.drawing), scores.shape[1]).index_copy_(0, here, scores)
        return pick.draw(every, 1, self.generator)[here, 0]

    def take(
        self, ids: Sequence[int], logprobs: Sequence[float], tops: Sequence[Top] | None
    ) -> tuple[list[Token], list[int]]:
        """The tokens chosen for the rows that go on -> those to tell of, and which of the rows are over."""
        if self.shaping.history is not None:
            self.shaping.append(torch.tensor(ids, device=self.device))
        told: list[Token] = []
        over: list[int] = []
        for place, (row, token, logprob) in enumerate(zip(self.live, ids, logprobs, strict=True)):
            self.logprobs[row].append(logprob)
            ending: FinishReason | None = "length" if self.n + 1 == self.asked.limit else None
            if token in self.asked.request.eos_ids:
                ending = "end"
            else:
                self.ids[row].append(token)
                told.append(Token(row, token, logprob, tuple(tops[place]) if tops else ()))
                if self._stops(row):
                    ending = "stop"
            if ending is not None:
                self.ended[row] = ending
                over.append(place)
        self.n += 1
        if over:
            self._let_go(over)
        due = self.n % check_interval(self.device) == 0
        if due and should_compact(len(self.live), len(self.drawing), self.device):
            self.drawing = list(self.live)
        return told, over

    def _stops(self, row: int) -> bool:
        decode = self.asked.request.decode
        return bool(self._texts) and decode is not None and completes_stop(self.ids[row], self._texts, decode)

    def _let_go(self, over: list[int]) -> None:
        kept = [place for place in range(len(self.live)) if place not in over]
        self.live = [self.live[place] for place in kept]
        if kept:
            self.shaping.select(torch.tensor(kept, device=self.device))

    def written(self) -> list[GenerationOutput]:
        """The texts, the best first."""
        found = [
            GenerationOutput(ids=ids, score=sum(logprobs, 0.0), logprobs=logprobs, finish_reason=ended)
            for ids, logprobs, ended in zip(self.ids, self.logprobs, self.ended, strict=True)
        ]
        return sorted(found, key=lambda text: -text.score)


class Search:
    """The beams of one sentence."""

    def __init__(self, asked: Asked, vocab: int, device: torch.device) -> None:
        self.asked = asked
        self.shaping = asked.shaping(vocab, device)
        self.generator = asked.request.generator(device)
        width, ends = asked.settings.num_beams, self.shaping.ends
        self.wide = min(max(2, 1 + len(ends)), vocab) * width
        self.beams = Beams(asked.settings, self.shaping.limits[:1].clone(), ends, self.wide)
        self.n = 0

    def choose(self, logits: Tensor) -> tuple[list[int], Tensor] | None:
        """Logits (W, V) -> the tokens to go on with, and the beam each goes on from; None: it is over."""
        asked, beams, shaping = self.asked, self.beams, self.shaping
        found = candidates(logits, self.n, beams.running, shaping, self.wide, self.generator)
        stops = None
        if asked.settings.stop_strings and asked.request.decode is not None:
            stops = stops_of(shaping, self.n, found.beams, found.tokens, beams.going, asked.request.decode)
        chosen = beams.weigh(found, stops)
        self.n += 1
        if self.n == asked.limit or not bool(beams.going):
            return None
        shaping.reorder(chosen.moved)
        shaping.append(chosen.ids)
        return chosen.ids.tolist(), chosen.moved

    def written(self) -> list[GenerationOutput]:
        beams, best = self.beams, self.asked.settings.num_return_sequences
        return followed(beams.finished(), beams.kept, beams.kept_logprobs, best)[0]
