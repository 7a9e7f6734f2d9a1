"""Dataclasses that validate their fields, and are parsed from plain data: specs and settings.

`Spec` is the base of what a model consists of, stored as JSON. `Settings` is the base of what a person sets,
e.g. the sections of a recipe: each field has a description, a default and an interval of valid numbers.
The schema is closed: an unknown key or kind is an error that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import Any, ClassVar, Literal, TypeVar

from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnknownNameError

KINDS: dict[str, type[Spec]] = {}

# integer fields of at least 1
SIZES = frozenset(
    """
    vocab_size types max_len original_max_len d_model num_heads num_kv_heads head_dim value_dim window width
    d_ff channels patch_length context_length image_size patch_size stride num_labels pooler_dim
    prediction_length projection_dim mask_dim num_targets season src_vocab_size tgt_vocab_size num_queries
    class_layers query_layers num_points box_layers stem_width widths depths strides dilations
    hidden_dim pretrained_size expansion local_conv mask_channels num_masks iou_dim iou_layers shuffle
    image_kinds num_frames
    """.split()
)
POSITIVE = frozenset("eps norm_eps base factor low_freq_factor high_freq_factor".split())
NOT_NEGATIVE = frozenset(
    "prefix suffix registers layer_positions offset std num_layers num_upscale num_finer".split()
)
MAX_INT = 2**31 - 1
REQUIRED: Any = dataclasses.MISSING  # the default of a field that must be set
LIMITS = {"channels": 2**16, "num_layers": 10_000, "num_frames": 2**16}  # not bounded by the weights file


class Spec:
    """Base of specs: a dataclass whose fields are validated by type and bounds.

    abstract: whether a class is only a base of others, which no file contains
    """

    kind: ClassVar[str]  # the name in files: the class without "Spec"

    def __init_subclass__(cls, *, abstract: bool = False) -> None:
        cls.kind = cls.__name__.removesuffix("Spec")
        if not abstract:
            KINDS[cls.kind] = cls

    def __post_init__(self) -> None:
        for name, hint in field_types(type(self)).items():
            value = getattr(self, name)
            matches = any(matches_type(value, choice) for choice in union_members(hint))
            expected = _bound(name, value) if matches else describe_type(hint)
            if expected:
                raise InvalidValueError(f"{self.kind}.{name}", value, expected)


_TYPES: dict[type, dict[str, Any]] = {}


def field_types(kind: type) -> dict[str, Any]:
    """Return the types of the fields of a dataclass, by name."""
    if kind not in _TYPES:
        hints = typing.get_type_hints(kind)
        _TYPES[kind] = {field.name: hints[field.name] for field in dataclasses.fields(kind)}
    return _TYPES[kind]


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
        return number and -inf < value < inf
    return isinstance(value, origin or hint)


def describe_type(hint: Any) -> str:
    """Describe a type for an error message."""
    names = []
    for choice in union_members(hint):
        if typing.get_origin(choice) is Literal:
            names += [repr(arg) for arg in typing.get_args(choice)]
        elif typing.get_args(choice)[1:] == (...,):
            names.append(f"a tuple of {describe_type(typing.get_args(choice)[0])}")
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
        values = {name: to_dict(getattr(spec, name)) for name in field_types(type(spec))}
        return {"kind": spec.kind, **values}
    return [to_dict(item) for item in spec] if isinstance(spec, tuple) else spec


def from_dict(data: Any, where: str = "spec", kinds: Mapping[str, type[Spec]] = KINDS) -> Any:
    """Create a spec from the output of `to_dict`. where: its path, for errors."""
    if not isinstance(data, dict) or "kind" not in data:
        raise InvalidValueError(where, data, "an object with a 'kind'")
    kind = kinds.get(data["kind"]) if isinstance(data["kind"], str) else None
    if kind is None:
        raise UnknownNameError("kind", str(data["kind"])[:60], list(kinds), where=where)
    label = f"{where} ({data['kind']})"
    fields = {key: value for key, value in data.items() if key != "kind"}
    values = parse_fields(kind, fields, where, _read, label=label, needed=f"by {label}")
    try:
        return kind(**values)
    except GlassformerError as error:
        raise InvalidSpecError(where, str(error)) from error


def _read(value: Any, hint: Any, where: str) -> Any:
    if isinstance(value, dict):
        return from_dict(value, where)
    if isinstance(value, list):
        items = [choice for choice in union_members(hint) if typing.get_origin(choice) is tuple]
        inner = typing.get_args(items[0])[0] if items else Any
        return tuple(_read(item, inner, f"{where}[{n}]") for n, item in enumerate(value))
    return float(value) if float in union_members(hint) and matches_type(value, int) else value


def parse_fields(
    kind: type,
    data: Mapping[str, Any],
    where: str,
    read: Callable[[Any, Any, str], Any],
    *,
    label: str = "",
    needed: str = "",
    synonyms: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the values of a dataclass's fields from plain data; unknown and missing keys are errors.

    where: the path of the data, for errors; label: it in words. read: converts a value to a type.
    needed: what needs a missing key. synonyms: our keys by names that other libraries use.
    """
    hints = field_types(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            ours = [name for name in synonyms.get(str(key), ()) if name in hints]
            known, hint = ((), f"use {' or '.join(ours)}") if ours else (list(hints), "")
            raise UnknownNameError("key", str(key), known, hint, where=label or where)
        values[key] = read(value, hints[key], f"{where}.{key}")
    for field in dataclasses.fields(kind):
        if field.default is REQUIRED and field.default_factory is REQUIRED and field.name not in values:
            raise MissingValueError(field.name if label else f"{where}.{field.name}", needed)
    return values


# ---- settings ---------------------------------------------------------------------------------------------


def setting(
    default: Any,
    description: str,
    *,
    interval: str = "",
    unit: str = "",
    length: int | None = None,
    aliases: Mapping[str, str] = MappingProxyType({}),
    **more: Any,
) -> Any:
    """Declare a field that a person sets, with its default and its description.

    interval: valid numbers, e.g. `[0, 1)`. length: required length of a tuple. aliases: other spellings.
    more: further metadata of the field.
    """
    limits = {"interval": interval, "unit": unit, "length": length}
    metadata = {"description": description, "aliases": aliases, **limits, **more}
    return dataclasses.field(default=default, metadata=metadata)


def in_interval(value: float, interval: str) -> bool:
    """Return whether a number lies in an interval.

    >>> in_interval(0, "[0, 1)"), in_interval(1, "[0, 1)"), in_interval(float("nan"), "[0, inf)")
    (True, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


class Settings:
    """Base of dataclasses whose fields are declared with `setting`; numbers must lie in their intervals.

    section: their name in errors, e.g. the section of a recipe.
    """

    section: ClassVar[str]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value, length = getattr(self, field.name), field.metadata["length"]
            interval = field.metadata["interval"]
            values = value.values() if isinstance(value, Mapping) else value
            numbers = (value,) if not isinstance(value, tuple | Mapping) else tuple(values)
            if interval and not all(in_interval(n, interval) for n in numbers if isinstance(n, int | float)):
                raise InvalidValueError(f"{self.section}.{field.name}", value, f"a number in {interval}")
            if length and isinstance(value, tuple) and len(value) != length:
                raise InvalidValueError(f"{self.section}.{field.name}", list(value), f"{length} numbers")


SettingsType = TypeVar("SettingsType", bound=Settings)


def parse_settings(
    kind: type[SettingsType],
    data: Any,
    *,
    needed: str = "",
    synonyms: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> SettingsType:
    """Parse settings from plain data. needed, synonyms: as for `parse_fields`."""
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise InvalidValueError(kind.section, data, "a section of keys and values")
    aliases = {field.name: field.metadata["aliases"] for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    plain = {
        key: aliases[key].get(value, value) if key in aliases and isinstance(value, str) else value
        for key, value in data.items()
    }
    return kind(**parse_fields(kind, plain, kind.section, coerce_value, needed=needed, synonyms=synonyms))


def coerce_value(value: Any, hint: Any, name: str) -> Any:
    """Convert a value to the type `hint` of its field: a list to a tuple, a single path to a tuple of one.

    YAML 1.1 parses `off` as a boolean and `1e-3` as a string; both are converted if the field requires it.
    name: the key, for errors.
    """
    known = union_members(hint)
    scalars = [choice for choice in known if typing.get_origin(choice) is not tuple]
    sequence = next((choice for choice in known if typing.get_origin(choice) is tuple), None)
    if isinstance(value, bool) and not any(matches_type(value, choice) for choice in scalars):
        word = "on" if value else "off"
        value = word if any(matches_type(word, choice) for choice in scalars) else value
    if isinstance(value, str) and float in scalars and str not in scalars:
        with suppress(ValueError):
            value = float(value)
    if any(matches_type(value, choice) for choice in scalars):
        return float(value) if matches_type(value, int) and float in scalars and int not in scalars else value
    if sequence is not None and value is not None:
        inner = typing.get_args(sequence)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(coerce_value(item, inner, name) for item in items)
    raise InvalidValueError(name, value, describe_type(hint))
