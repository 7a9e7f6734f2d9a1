"""What a person may change about a model at work: heads and layers off, tokens hidden or swapped, and more.

A change is JSON's words for it (`{"kind": "head_off", "attention": ..., "head": 2}`), read strictly; what it
does to a model and its input is `trace.altered`'s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from glassformer.errors import GlassformerError

MOST: Final = 256  # changes at once
LARGEST: Final = 1000.0  # a residual is multiplied by at most this
FARTHEST: Final = 64.0  # and a position


@dataclass(frozen=True, kw_only=True)
class HeadOff:
    """One head's output is nothing."""

    attention: str
    head: int


@dataclass(frozen=True, kw_only=True)
class LayerOff:
    """A block hands on what it was given: `encoder.blocks.3`."""

    block: str


@dataclass(frozen=True, kw_only=True)
class MaskToken:
    """No one may attend to a token; all others stay where they stand."""

    sequence: str
    position: int


@dataclass(frozen=True, kw_only=True)
class Swap:
    """Two tokens, or patches, change places."""

    sequence: str
    positions: tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Residual:
    """The residual at one place (`decoder.blocks.2.resid_out`) is multiplied at one token."""

    name: str
    position: int
    scale: float


@dataclass(frozen=True, kw_only=True)
class Positions:
    """Every token stands `stretch` times as far along."""

    stack: str
    stretch: float


Change = HeadOff | LayerOff | MaskToken | Swap | Residual | Positions
KINDS: Final[dict[str, type[Change]]] = {
    "head_off": HeadOff,
    "layer_off": LayerOff,
    "mask_token": MaskToken,
    "swap": Swap,
    "residual": Residual,
    "positions": Positions,
}
_NUMBERS: Final = {"scale": (-LARGEST, LARGEST), "stretch": (0.0, FARTHEST)}


def parse_changes(given: Any) -> tuple[Change, ...]:
    """JSON's words for changes, each checked; what depends on the model is checked by `altered`."""
    if not isinstance(given, list | tuple):
        raise GlassformerError(f"changes must be a list, not {type(given).__name__}")
    if len(given) > MOST:
        raise GlassformerError(f"{len(given):,} changes are too many at once; make at most {MOST}")
    return tuple(_parsed(one) for one in given)


def _parsed(words: Any) -> Change:
    if isinstance(words, Change):
        return words
    kind = words.get("kind") if isinstance(words, Mapping) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise GlassformerError(f"a change has one of the kinds {', '.join(KINDS)}; got {kind!r:.60}")
    wanted = {field.name for field in fields(KINDS[kind])}
    if wrong := sorted(wanted ^ (set(words) - {"kind"}), key=str):
        raise GlassformerError(
            f"the change {kind} takes {', '.join(sorted(wanted))}; '{wrong[0]!s:.60}' is missing or strange"
        )
    return KINDS[kind](**{name: _value(f"{kind}: {name}", name, words[name]) for name in wanted})


def _value(where: str, name: str, value: Any) -> Any:
    if name in ("head", "position"):
        return _whole(where, value)
    if name == "positions":
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise GlassformerError(f"{where} must be two places; got {value!r:.60}")
        return tuple(_whole(where, one) for one in value)
    if name in _NUMBERS:
        low, high = _NUMBERS[name]
        number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if not number or not low <= value <= high or (name == "stretch" and value == 0):
            raise GlassformerError(f"{where} must be a number from {low:g} to {high:g}; got {value!r:.60}")
        return float(value)
    if not isinstance(value, str):
        raise GlassformerError(f"{where} must be a name; got {value!r:.60}")
    return value


def _whole(where: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise GlassformerError(f"{where} must be a whole number from 0; got {value!r:.60}")
    return value
