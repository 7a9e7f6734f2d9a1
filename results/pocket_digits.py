"""The model of digits that comes with the package: at most 300,000 weights."""

from __future__ import annotations

from results.digits import measure
from results.place import Place


def run(place: Place, name: str) -> None:
    """Train it, and measure it on MNIST's test pictures."""
    measure(place, "pocket-digits", name, "pocket-digits")
