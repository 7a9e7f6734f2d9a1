"""The base class of specs: dataclasses that validate their fields, and convert to and from JSON data.

The schema is closed: an unknown key or kind is an error that names the nearest known one.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar, Literal

from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnknownNameError

KINDS: dict[str, type[Spec]] = {}

# integer fields of at least 1
SIZES = frozenset(
    """
    vocab_size types max_len original_max_len d_model num_heads num_kv_heads head_dim value_dim window width
    d_ff channels patch_length context_length image_size patch_size stride num_labels pooler_dim
    prediction_length projection_dim mask_dim num_targets season src_vocab_size tgt_vocab_size num_queries
    class_layers query_layers num_points box_layers stem_width widths depths strides dilations
    hidden_dim pretrained_size expansion local_conv mask_channels num_masks iou_dim iou_layers
    """.split()
)
POSITIVE = frozenset("eps norm_eps base factor low_freq_factor high_freq_factor".split())
NOT_NEGATIVE = frozenset(
    "prefix suffix registers layer_positions offset std num_layers num_upscale num_finer".split()
)
MAX_INT = 2**31 - 1
LIMITS = {"channels": 2**16, "num_layers": 10_000}  # not bounded by the size of the weights file


class Spec:
    """Base of specs: a dataclass whose fields are validated by type and bounds."""

    kind: ClassVar[str]  # the name in files: the class without "Spec"

    def __init_subclass__(cls) -> None:
        cls.kind = cls.__name__.removesuffix("Spec")
        KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        for name, hint in _hints(type(self)).items():
            value = getattr(self, name)
            matches = any(matches_type(value, choice) for choice in union_members(hint))
            expected = _bound(name, value) if matches else describe_type(hint)
            if expected:
                raise InvalidValueError(f"{self.kind}.{name}", value, expected)


_HINTS: dict[type[Spec], dict[str, Any]] = {}


def _hints(kind: type[Spec]) -> dict[str, Any]:
    if kind not in _HINTS:
        hints = typing.get_type_hints(kind)
        _HINTS[kind] = {name: hints[name] for name in hints if name != "kind"}
    return _HINTS[kind]


def _bound(name: str, value: Any) -> str | None:
    """Return the bounds of a field if one of its numbers is out of bounds; else None."""
    values = value if isinstance(value, tuple) else (value,)
    numbers = [number for number in values if matches_type(number, float)]
    limit = LIMITS.get(name, MAX_INT)
    if name in SIZES:
        return None if all(0 < n <= limit for n in numbers) else f"an integer from 1 to {limit}"
    if name == "dropout":
        return None if all(0 <= n < 1 for n in numbers) else "at least 0 and less than 1"
    if name in POSITIVE:
        return None if all(n > 0 for n in numbers) else "a number above 0"
    if name in NOT_NEGATIVE and any(n < 0 for n in numbers):
        return "a number, 0 or more"
    return None if all(abs(n) <= limit for n in numbers) else f"at most {limit}"


# ---- types ------------------------------------------------------------------------------------------------


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the type itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(choice for arg in typing.get_args(hint) for choice in union_members(arg))
    return (hint,)


def matches_type(value: Any, hint: Any) -> bool:
    """Whether a value has the declared type; numbers must be finite, and bool is not a number."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return any(value == arg and type(value) is type(arg) for arg in args)
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        inner = args[:1] * len(value) if args[-1] is Ellipsis else args
        pairs = zip(value, inner, strict=False)
        return len(value) == len(inner) and all(
            any(matches_type(v, c) for c in union_members(h)) for v, h in pairs
        )
    if hint in (int, float):
        number = isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
        return number and isfinite(value)
    return isinstance(value, origin or hint)


def describe_type(hint: Any) -> str:
    """Describe a type for an error message."""
    names = []
    for choice in union_members(hint):
        if typing.get_origin(choice) is Literal:
            names += [repr(arg) for arg in typing.get_args(choice)]
        else:
            name: str = getattr(choice, "kind", "") or getattr(choice, "__name__", str(choice))
            names.append(name.replace("NoneType", "null"))
    return " or ".join(names)


# ---- plain data -------------------------------------------------------------------------------------------


@dataclass(eq=False)
class InvalidSpecError(GlassformerError):
    """A spec whose fields are invalid or conflict. where: the path of the spec in the file."""

    where: str
    problem: str
    template: ClassVar[str] = "{where}: {problem}"


def to_dict(spec: Any) -> Any:
    """Convert a spec to nested dicts, each with its `kind`; tuples become lists."""
    if isinstance(spec, Spec):
        values = {name: to_dict(getattr(spec, name)) for name in _hints(type(spec))}
        return {"kind": spec.kind, **values}
    return [to_dict(item) for item in spec] if isinstance(spec, tuple) else spec


def from_dict(data: Any, where: str = "spec", kinds: Mapping[str, type[Spec]] = KINDS) -> Any:
    """Create a spec from the output of `to_dict`. where: its path, for errors."""
    if not isinstance(data, dict) or "kind" not in data:
        raise InvalidValueError(where, data, "an object with a 'kind'")
    kind = kinds.get(data["kind"]) if isinstance(data["kind"], str) else None
    if kind is None:
        raise UnknownNameError("kind", str(data["kind"])[:60], list(kinds), where=where)
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key not in hints:
            raise UnknownNameError("key", key, list(hints), where=f"{where} ({data['kind']})")
        values[key] = _read(value, hints[key], f"{where}.{key}")
    try:
        return kind(**values)
    except GlassformerError as error:
        raise InvalidSpecError(where, str(error)) from error
    except TypeError as error:
        missing = str(error).split(":")[-1].strip()
        raise MissingValueError(missing, f"by {where} ({data['kind']})") from None


def _read(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, dict):
        return from_dict(value, where)
    if isinstance(value, list):
        items = [choice for choice in union_members(hint) if typing.get_origin(choice) is tuple]
        inner = typing.get_args(items[0])[0] if items else Any
        return tuple(_read(item, inner, f"{where}[{n}]") for n, item in enumerate(value))
    return float(value) if float in union_members(hint) and matches_type(value, int) else value
