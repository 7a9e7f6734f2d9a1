"""The state of a beam search, and what a step does to it: in place, in tensors that keep their shapes.

How many tokens are written is counted on the device too, so a step can be captured together with the model's.

B sentences, W beams, C candidates, L tokens that may be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from torch import Tensor

from glassformer.generation.config import GenerationConfig
from glassformer.generation.request import SPARE

LOW: Final = -1e9  # the score of what is no beam, or not yet a result; lower than any real one
ON: Final = 3  # the fate of a candidate that goes on; the others follow ENDINGS


def length_term(settings: GenerationConfig, length: int | Tensor) -> float | Tensor:
    """What the score of a text of so many tokens, the end token counted, is divided by.

    >>> length_term(GenerationConfig(length_penalty=2.0), 3)
    9.0
    >>> length_term(GenerationConfig(length_formula="paper"), 7)
    2.0
    """
    penalty = float(settings.length_penalty)
    if settings.length_formula == "paper":
        return ((5 + length) / 6) ** penalty
    return length**penalty  # "hf" and "fairseq" agree


@dataclass
class Results:
    """The best finished texts of each sentence, W of them at most."""

    scores: Tensor  # (B, W), best first; LOW where there is none yet
    logprobs: Tensor  # (B, W), the last token's
    facts: Tensor  # (B, W, 5): the last token's step (-1: none yet), the beam it goes on from, itself,
    # where it stood among the step's candidates, and how it ended, as in ENDINGS

    @classmethod
    def empty(cls, sentences: int, beams: int, device: torch.device) -> Results:
        scores = torch.full((sentences, beams), LOW, device=device)
        facts = torch.full((sentences, beams, 5), -1, device=device)
        return cls(scores, torch.zeros_like(scores), facts)

    @property
    def full(self) -> Tensor:
        """Sentences (B,) that have as many as are kept."""
        return (self.facts[..., 0] >= 0).all(1)

    def merge(self, new: Results) -> None:
        """Keep the best of both."""
        scores, order = torch.cat((self.scores, new.scores), 1).topk(self.scores.shape[1])
        self.scores.copy_(scores)
        self.logprobs.copy_(torch.cat((self.logprobs, new.logprobs), 1).gather(1, order))
        every = torch.cat((self.facts, new.facts), 1)
        self.facts.copy_(every.gather(1, order[..., None].expand_as(self.facts)))

    def select(self, rows: Tensor) -> Results:
        return Results(*(value.index_select(0, rows) for value in vars(self).values()))

    def put(self, rows: Tensor, these: Results) -> None:
        for own, value in zip(vars(self).values(), vars(these).values(), strict=True):
            own[rows] = value


class Candidates(NamedTuple):
    """The likeliest ways on of each sentence, best first: (B, C) each."""

    scores: Tensor  # of the whole text
    beams: Tensor  # it goes on from
    tokens: Tensor
    logprobs: Tensor  # of the token


class Chosen(NamedTuple):
    """What a step came to."""

    ids: Tensor  # (B * W,), the beams' new tokens
    moved: Tensor  # (B * W,), the row that each of them goes on from
    places: Tensor  # (B, W), where each stood among the candidates
    fates: Tensor  # (B, C), as in ENDINGS, or ON


class Beams:
    """The open beams of each sentence, its results, and the way back from each."""

    def __init__(self, settings: GenerationConfig, limits: Tensor, ends: Tensor, candidates: int) -> None:
        """limits (B,): the most tokens of each sentence; ends (E,): the tokens that end a text."""
        device, count, width = limits.device, len(limits), settings.num_beams
        longest = int(limits.max())
        self.settings, self.ends, self.limits = settings, ends, limits
        self.n = torch.zeros((), dtype=torch.long, device=device)  # tokens written
        self.rows = torch.arange(count, device=device)  # where each sentence of now stands among all
        self.running = torch.full((count, width), LOW, device=device)
        self.running[:, 0] = 0.0  # the beams are alike at first, so one of them goes on for all
        self.going = limits > 0  # (B,)
        self.results = Results.empty(count, width, device)
        self.all_results = Results.empty(count, width, device)
        self.first = torch.arange(candidates, device=device) < width  # only these may become results
        # token, and the beam it goes on from
        self.kept = torch.zeros(longest + SPARE, count, width, 2, dtype=torch.long, device=device)
        self.kept_logprobs = torch.zeros(longest + SPARE, count, width, device=device)

    def weigh(self, found: Candidates, stopped: Tensor | None = None) -> Chosen:
        """Go on with the best that do not end; `stopped` (B, C) complete a stop text."""
        scores, beams, tokens, logprobs = found
        ask, width, written = self.settings, self.running.shape[1], self.n + 1
        # an end token goes before the other reasons
        fates = torch.full_like(tokens, ON).masked_fill((self.limits <= written)[:, None], 1)
        if stopped is not None:
            fates = fates.masked_fill(stopped, 2)
        fates = fates.masked_fill((tokens[:, :, None] == self.ends).any(-1), 0)
        over = fates < ON
        running, places = (scores + over * LOW).topk(width)  # (B, W)
        admitted = over & self.first & self.going[:, None]
        steps = torch.where(admitted, self.n, -1)
        order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        self.results.merge(
            Results(
                (scores / length_term(ask, written)).masked_fill(~admitted, LOW),
                logprobs,
                torch.stack((steps, beams, tokens, order, fates), -1),
            )
        )
        came, ids = beams.gather(1, places), tokens.gather(1, places)
        at = (self.n.expand_as(self.rows), self.rows)
        self.kept.index_put_(at, torch.stack((ids, came), -1))
        self.kept_logprobs.index_put_(at, logprobs.gather(1, places))
        self.running.copy_(running)
        self.going &= ~over.all(1) & self._may_improve(written)
        self.n += 1
        begins = torch.arange(0, ids.numel(), width, device=ids.device)[:, None]
        return Chosen(ids.view(-1), (begins + came).view(-1), places, fates)

    def _may_improve(self, written: Tensor) -> Tensor:
        """Which sentences (B,) an open beam might still give a better result than their worst."""
        ask, full = self.settings, self.results.full
        if ask.early_stopping is True:
            return ~full
        # a longer text has a larger term: only "never" believes that an open beam could come to that
        hopeful = ask.early_stopping == "never" and ask.length_penalty > 0
        term = length_term(ask, self.limits if hopeful else written)
        return ~full | (self.running[:, 0] / term > self.results.scores[:, -1])

    def select(self, left: Tensor) -> None:
        """Go on with these sentences; the others are finished."""
        self.all_results.put(self.rows, self.results)
        self.results = self.results.select(left)
        self.rows, self.limits = self.rows[left], self.limits[left]
        self.going, self.running = self.going[left], self.running[left]

    def finished(self) -> Results:
        """The results of all sentences."""
        self.all_results.put(self.rows, self.results)
        return self.all_results

    def state(self) -> dict[str, Tensor]:
        """All that a step reads and writes."""
        names = ("n", "rows", "limits", "ends", "running", "going", "first", "kept", "kept_logprobs")
        return {name: getattr(self, name) for name in names} | {
            f"results.{name}": value for name, value in vars(self.results).items()
        }

    def adopt(self, state: dict[str, Tensor]) -> None:
        """Go on in these tensors, which hold the same."""
        for name, value in state.items():
            owner = self.results if name.startswith("results.") else self
            setattr(owner, name.removeprefix("results."), value)
