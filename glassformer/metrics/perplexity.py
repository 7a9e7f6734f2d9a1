"""Perplexity from summed loss and counts, divided once at the end."""

from __future__ import annotations

import math
from dataclasses import dataclass


def perplexity(loss: float) -> float:
    """e to a mean loss in nats.

    >>> round(perplexity(math.log(8)), 6), perplexity(1000.0)
    (8.0, inf)
    """
    return math.inf if loss > 700 else math.exp(loss)  # exp(710) is more than a float holds


@dataclass
class Perplexity:
    """The summed loss of a text in nats, and its number of tokens, characters and bytes.

    Perplexity depends on the vocabulary; bits per character or byte do not, so they compare tokenizers.

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
        """Add a batch by its summed loss in nats."""
        self.loss += float(loss)
        self.tokens += int(tokens)
        self.characters += int(characters)
        self.bytes += int(bytes)

    @property
    def loss_per_token(self) -> float:
        """The mean loss in nats; NaN if nothing was added."""
        return self.loss / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return perplexity(self.loss_per_token)

    @property
    def bits_per_character(self) -> float | None:
        """None if no characters were counted."""
        return self.loss / math.log(2) / self.characters if self.characters else None

    @property
    def bits_per_byte(self) -> float | None:
        """None if no bytes were counted."""
        return self.loss / math.log(2) / self.bytes if self.bytes else None
