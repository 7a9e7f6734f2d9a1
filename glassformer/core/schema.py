"""A spec as plain data (for JSON) and back: a closed schema, where a misspelt key is an error."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from typing import Any

from glassformer.core import spec
from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, UnknownNameError

KINDS: dict[str, type] = {
    name: kind
    for name, kind in vars(spec).items()
    if isinstance(kind, type) and dataclasses.is_dataclass(kind)
}


@dataclasses.dataclass(eq=False)
class InvalidSpecError(GlassformerError):
    """A spec whose parts do not fit together. where: its path in the file."""

    where: str
    problem: str
    template: typing.ClassVar[str] = "{where}: {problem}"


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """`; did you mean 'x'?` where a known word is close, else the list of known words."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1)
    return f"; did you mean '{close[0]}'?" if close else f"; known are {', '.join(names)}"


def to_dict(part: Any) -> Any:
    """A spec as nested dicts, each with its `kind`; tuples become lists."""
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        fields = {f.name: to_dict(getattr(part, f.name)) for f in dataclasses.fields(part)}
        return {"kind": type(part).__name__, **fields}
    if isinstance(part, tuple):
        return [to_dict(item) for item in part]
    return part


def from_dict(data: Any, where: str = "spec", kinds: typing.Mapping[str, type] = KINDS) -> Any:
    """The spec that `to_dict` wrote; every unknown key, kind or ill-typed value is one sentence."""
    if not isinstance(data, dict) or "kind" not in data:
        raise InvalidValueError(where, data, "an object with a 'kind'")
    kind = kinds.get(data["kind"]) if isinstance(data["kind"], str) else None
    if kind is None:
        raise UnknownNameError(f"kind of {where}", str(data["kind"])[:60], list(kinds))
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key == "kind":
            continue
        if key not in hints:
            raise UnknownNameError(f"key of {where} ({data['kind']})", key, list(hints))
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
        read = from_dict(value, where)
    elif isinstance(value, list):
        items = [a for a in choices(hint) if typing.get_origin(a) is tuple]
        inner = typing.get_args(items[0])[0] if items else Any
        read = tuple(_read(v, inner, f"{where}[{n}]") for n, v in enumerate(value))
    else:
        read = value
    if not any(fits(read, choice) for choice in choices(hint)):
        raise InvalidValueError(where, value, str(named(hint)))
    return float(read) if isinstance(read, int) and float in choices(hint) else read


def choices(hint: Any) -> tuple[Any, ...]:
    """The members of a union, or the one type itself."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return tuple(c for arg in typing.get_args(hint) for c in choices(arg))
    return (hint,)


def fits(value: Any, hint: Any) -> bool:
    """Whether a value read from a file is of the type that a field declares."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if origin is typing.Literal:
        return value in typing.get_args(hint)
    if origin is tuple:
        args = typing.get_args(hint)
        return isinstance(value, tuple) and (args[-1] is Ellipsis or len(args) == len(value))
    if hint in (int, float):
        allowed = (int,) if hint is int else (int, float)
        return isinstance(value, allowed) and not isinstance(value, bool)
    return isinstance(value, hint)


def named(hint: Any) -> str:
    """A type in words, for a sentence."""
    words = []
    for choice in choices(hint):
        if typing.get_origin(choice) is typing.Literal:
            words += [repr(a) for a in typing.get_args(choice)]
        else:
            words.append(getattr(choice, "__name__", str(choice)).replace("NoneType", "null"))
    return " or ".join(words)
