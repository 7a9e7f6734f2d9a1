"""A Griffe extension that turns the docstrings of the package into Google style for the API reference.

In the source an argument is a line `name: description`, and an example starts with `>>>`:

    Record the tensors whose names match `want`.

    want: one glob or several

    >>> Observer(want="*.q")

Arguments that mean the same everywhere are explained once, in `docs/glossary.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from griffe import Class, Docstring, Extension, Function, Object

from docs.glossary import GLOSSARY

ARGUMENT = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*): (?P<text>.+)")


class Docstrings(Extension):
    """Rewrite the docstring of every class and function."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if isinstance(obj, Class | Function) and obj.docstring is not None:
            obj.docstring.value = to_google(obj.docstring, parameters(obj))


def parameters(obj: Class | Function) -> list[str]:
    """The names of the parameters, with the stars of variadic ones."""
    try:
        declared = list(obj.parameters)
    except KeyError:  # a class whose base is not known
        return []
    stars = {"variadic positional": "*", "variadic keyword": "**"}
    names = [stars.get(str(one.kind and one.kind.value), "") + one.name for one in declared]
    return [name for name in names if name not in ("self", "cls")]


def to_google(docstring: Docstring, names: list[str]) -> str:
    """The docstring with the sections `Args` and `Examples`."""
    text, described, examples = split(docstring.value.splitlines(), names)
    lines = [*text]
    known = {name: described.get(name.lstrip("*"), GLOSSARY.get(name, "")) for name in names}
    if any(known.values()):
        lines += ["", "Args:", *(f"    {name}: {about or '&nbsp;'}" for name, about in known.items())]
    if examples:
        lines += ["", "Examples:", *(f"    {line}".rstrip() for line in examples)]
    return "\n".join(lines)


def split(lines: Iterable[str], names: list[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Text, descriptions of arguments, and examples."""
    bare = {name.lstrip("*") for name in names}
    text: list[str] = []
    described: dict[str, str] = {}
    examples: list[str] = []
    current: list[str] = []  # the arguments of the line before
    in_example = False
    for line in lines:
        match = ARGUMENT.fullmatch(line)
        listed = match["names"].lstrip("*").split(", ") if match else []
        if line.startswith(">>>"):
            in_example = True
        if not line:
            current, in_example = [], False
        if in_example:
            examples.append(line)
        elif match and set(listed) <= bare:
            current = listed
            described |= dict.fromkeys(listed, match["text"])
        elif current:
            described |= {name: f"{described[name]} {line.strip()}" for name in current}
        else:
            text.append(line)
    return text, {name: sentence(about) for name, about in described.items()}, examples


def sentence(text: str) -> str:
    """A description with a capital letter and a period."""
    text = text if text.startswith("`") else text[:1].upper() + text[1:]
    return text if text.endswith((".", "`")) else f"{text}."
