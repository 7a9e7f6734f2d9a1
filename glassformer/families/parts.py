"""Families that are parts of another family: an image encoder, a text decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from glassformer.core import spec
from glassformer.errors import UnsupportedError
from glassformer.families.family import Family
from glassformer.weights.ops import Op

CrossRows = Callable[[str, spec.StackSpec], tuple[Op, ...]]


@dataclass(frozen=True)
class Part:
    """A family that gives an encoder or a decoder.

    architecture: the class that it reads. defaults: of its config, where they differ from those of the
    family. cross: (published prefix, decoder) -> rows of cross-attention.
    """

    family: Family
    architecture: str
    defaults: Mapping[str, Any] | None = None
    cross: CrossRows = lambda prefix, stack: ()


def find_part(parts: Mapping[str, Part], model: Any) -> tuple[str, Part]:
    """Return the part that describes a spec, and its name."""
    for name, part in parts.items():
        if part.family.describes(model):
            return name, part
    raise UnsupportedError("a published config", "this encoder or decoder")


def find_fields(parts: Mapping[str, Part], **fields: Any) -> tuple[Part, Any]:
    """Return the part that describes a spec with these fields and its own defaults, and the spec."""
    for part in parts.values():
        default = part.family.build()
        if fields.keys() <= vars(default).keys():
            model = replace(default, **fields)
            if part.family.describes(model):
                return part, model
    raise UnsupportedError("a published config", "this encoder or decoder")
