"""Errors raised for invalid input: typed exceptions with structured fields.

Every error has a `code`, which is stable across releases and languages, and `fields`, the values that a
program or a translation needs. `str(error)` is the English message, built from the template of the class; do
not parse it. The command line prints it and exits with status 2, the server returns code, message and fields,
and the page translates by code.

>>> error = InputTooLongError(length=700, limit=512)
>>> error.code, error.fields
('input_too_long', {'length': 700, 'limit': 512, 'unit': 'tokens'})
>>> print(error)
the input has 700 tokens, but the model reads at most 512
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar


class GlassformerError(ValueError):
    """Base class of all errors for invalid input.

    code: derived from the class name: `InputTooLongError` -> `input_too_long`.
    hint: how to fix the problem; optional in every subclass.
    """

    template: ClassVar[str] = "{message}"

    @property
    def code(self) -> str:
        name = type(self).__name__.removesuffix("Error")
        return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()

    @property
    def fields(self) -> dict[str, Any]:
        """The values of the error by name, as JSON types."""
        return {name: _plain(value) for name, value in self._values().items() if name != "hint"}

    def __str__(self) -> str:
        if not is_dataclass(self):
            return super().__str__()
        hint = self._values().get("hint")
        message = self.message()
        return f"{message}{' ' if message.endswith('?') else '; '}{hint}" if hint else message

    def message(self) -> str:
        """Return the English message without the hint."""
        return self.template.format(**self._values())

    def _values(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)} if is_dataclass(self) else {}

    def __reduce__(self) -> Any:  # errors are pickled, and keyword arguments are not in `args`
        return (_restore, (type(self), self._values())) if is_dataclass(self) else super().__reduce__()


@dataclass(eq=False)
class InvalidValueError(GlassformerError):
    """A parameter, setting or field has an invalid value.

    name: as the caller writes it, e.g. `num_beams`, `training.lr`, `config.json: hidden_size`.
    """

    name: str
    value: Any
    expected: str
    hint: str = ""
    template: ClassVar[str] = "{name} is {value!r:.80}; expected {expected}"


@dataclass(eq=False)
class ConflictError(GlassformerError):
    """Settings or inputs contradict each other."""

    names: Sequence[str]
    reason: str
    hint: str = ""

    def message(self) -> str:
        return f"{' and '.join(self.names)} conflict: {self.reason}"


@dataclass(eq=False)
class MissingValueError(GlassformerError):
    """A required value is missing. needed_for: completes the message "... is required".

    alternatives: names of values that may be given instead.
    """

    name: str
    needed_for: str
    hint: str = ""
    alternatives: tuple[str, ...] = ()
    template: ClassVar[str] = "{name} is required {needed_for}"

    def message(self) -> str:
        return self.template.format(
            name=" or ".join((self.name, *self.alternatives)), needed_for=self.needed_for
        )


@dataclass(eq=False)
class UnknownNameError(GlassformerError):
    """A name is not one of the known names.

    kind: e.g. `model`, `column`, `language`. where: the file, section or model it was looked up in.
    """

    kind: str
    name: str
    known: Iterable[str] = ()
    hint: str = ""
    where: str = ""

    def message(self) -> str:
        known = [str(name) for name in self.known]
        text = f"unknown {self.kind} {self.name!r}" + (f" in {self.where}" if self.where else "")
        longer = [name for name in known if self.name and self.name in name]
        if close := get_close_matches(self.name, known, n=1) or longer[:5]:
            return f"{text}; did you mean {' or '.join(map(repr, close))}?"
        return f"{text}; choose from {', '.join(known)}" if 0 < len(known) <= 20 else text


@dataclass(eq=False)
class UnsupportedError(GlassformerError):
    """A model, device or file format (`subject`) does not support a feature."""

    subject: str
    feature: str
    hint: str = ""
    template: ClassVar[str] = "{subject} does not support {feature}"


@dataclass(eq=False)
class InputTooLongError(GlassformerError):
    """An input exceeds the model's maximum length. unit: e.g. tokens, characters, steps."""

    length: int
    limit: int
    unit: str = "tokens"
    hint: str = ""
    template: ClassVar[str] = "the input has {length:,} {unit}, but the model reads at most {limit:,}"


@dataclass(eq=False)
class EmptyInputError(GlassformerError):
    """An input is empty. what: e.g. `text`, `file`, `column`."""

    what: str
    hint: str = ""
    template: ClassVar[str] = "the {what} is empty"


@dataclass(eq=False)
class ShapeError(GlassformerError):
    """A tensor or array has the wrong shape."""

    what: str
    shape: Sequence[int]
    expected: str
    hint: str = ""

    def message(self) -> str:
        return f"{self.what} has shape {tuple(self.shape)}; expected {self.expected}"


@dataclass(eq=False)
class NonFiniteError(GlassformerError):
    """A value contains NaN or infinity."""

    what: str
    hint: str = ""
    template: ClassVar[str] = "{what} contains NaN or infinity"


@dataclass(eq=False)
class FileProblemError(GlassformerError):
    """A file or folder cannot be read, parsed or written. line: counted from 1."""

    path: str | Path
    problem: str
    line: int | None = None
    hint: str = ""

    def message(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else f"{self.path}"
        return f"{where}: {self.problem}"


@dataclass(eq=False)
class FileMissingError(GlassformerError):
    """A file or folder does not exist. kind: e.g. `file`, `folder`, `model folder`."""

    path: str | Path
    kind: str = "file"
    hint: str = ""
    template: ClassVar[str] = "{kind} not found: {path}"


@dataclass(eq=False)
class FileExistsAlreadyError(GlassformerError):
    """A file or folder already exists and would be overwritten."""

    path: str | Path
    hint: str = ""
    template: ClassVar[str] = "{path} already exists"


@dataclass(eq=False)
class MissingDependencyError(GlassformerError):
    """An optional package is not installed. extra: the glassformer extra that installs it."""

    package: str
    extra: str
    template: ClassVar[str] = "{package} is not installed; run: pip install 'glassformer[{extra}]'"


def _restore(kind: type[GlassformerError], values: dict[str, Any]) -> GlassformerError:
    return kind(**values)


def _plain(value: Any) -> Any:
    """Convert a value to a JSON type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_plain(item) for item in value]
    return str(value)
