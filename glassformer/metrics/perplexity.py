"""Perplexity from summed loss and counts: dividing once, at the end, is what makes it exact."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassformer.errors import GlassformerError


def perplexity(loss: float) -> float:
    """e to a mean loss in nats.

    >>> round(perplexity(math.log(8)), 6), perplexity(1000.0)
    (8.0, inf)
    """
    return math.inf if loss > 700 else math.exp(loss)  # exp(710) is more than a float holds


@dataclass
class Perplexity:
    """The loss of a text in nats, added up, and how many tokens, characters and bytes it was about.

    Perplexity depends on the vocabulary; bits a character or a byte do not, so they compare tokenizers.

    >>> found = Perplexity()
    >>> found.add(loss=4 * math.log(8), tokens=4, characters=6)
    >>> round(found.perplexity, 6), round(found.bits_per_character, 6)
    (8.0, 2.0)
    """

    loss: float = 0.0
    tokens: int = 0
    characters: int = 0
    bytes: int = 0

    def add(self, *, loss: float, tokens: int, characters: int = 0, bytes: int = 0) -> None:
        """Count a batch by its SUMMED loss in nats."""
        if tokens < 0 or characters < 0 or bytes < 0:
            raise GlassformerError("counts of tokens, characters or bytes cannot be negative")
        self.loss += float(loss)
        self.tokens += int(tokens)
        self.characters += int(characters)
        self.bytes += int(bytes)

    @property
    def loss_per_token(self) -> float:
        """The mean loss in nats; not a number where nothing was counted."""
        return self.loss / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the mean loss: among how many equally likely words the model was torn."""
        return perplexity(self.loss_per_token)

    @property
    def bits_per_character(self) -> float | None:
        """None where no characters were counted."""
        return self.loss / math.log(2) / self.characters if self.characters else None

    @property
    def bits_per_byte(self) -> float | None:
        """None where no bytes were counted."""
        return self.loss / math.log(2) / self.bytes if self.bytes else None
