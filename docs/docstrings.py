"""A Griffe extension that turns the docstrings of the package into Google style for the API reference.

In the source an argument is a line `name: description`, and an example starts with `>>>`:

    Record the tensors whose names match `want`.

    want: one glob or several

    >>> Observer(want="*.q")

A field of a dataclass may have a comment instead. `docs/glossary.py` explains arguments that are shared.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Any

from griffe import Class, ExprCall, Extension, Function, Object

from docs.glossary import GLOSSARY

COMMENT = re.compile(r"  # (?P<text>.+)")


class Docstrings(Extension):
    """Rewrite the docstring of every class and function."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        ours = obj.path.startswith("glassformer.")
        if ours and isinstance(obj, Class):
            show_setting_defaults(obj)
        if ours and isinstance(obj, Class | Function) and obj.docstring is not None:
            obj.docstring.value = to_google(obj)


def to_google(obj: Class | Function) -> str:
    """Return the docstring with the sections `Args` and `Examples`."""
    names = parameters(obj)
    text, examples, described = describe(obj, names)
    if any(described.values()):
        text += ["", "Args:", *(f"    {name}: {described[name] or '&nbsp;'}" for name in names)]
    if examples:
        text += ["", "Examples:", *(f"    {line}".rstrip() for line in examples)]
    return "\n".join(text)


def parameters(obj: Class | Function) -> list[str]:
    """Return the names of the parameters, with the stars of variadic ones."""
    stars = {"variadic positional": "*", "variadic keyword": "**"}
    try:
        declared = list(obj.parameters)
    except KeyError:  # a class whose base is not known
        return []
    names = [stars.get(str(one.kind and one.kind.value), "") + one.name for one in declared]
    return [name for name in names if name not in ("self", "cls")]


def describe(obj: Class | Function, names: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Return the text, the examples, and the description of each parameter."""
    assert obj.docstring is not None
    text, examples, own = split(obj.docstring.value.splitlines(), names)
    own = settings(obj) | comments(obj) | own
    owner = f"{obj.parent.name}.{obj.name}" if obj.parent is not None else obj.name
    described = {}
    for name in names:
        bare = name.lstrip("*")
        shared = (GLOSSARY.get(key, "") for key in (f"{owner}.{bare}", f"{obj.name}.{bare}", name))
        described[name] = sentence(own[bare]) if bare in own else next(filter(None, shared), "")
    return text, examples, described


def split(lines: Iterable[str], names: list[str]) -> tuple[list[str], list[str], dict[str, str]]:
    """Split lines into text, examples and arguments.

    Arguments are `name: text`, `a, b: text` or `name (shape): text`; a line may have several.
    """
    known = "|".join(re.escape(name.lstrip("*")) for name in names) or "(?!)"
    argument = re.compile(rf"`?(?P<names>(?:{known})(?:, (?:{known}))*)`?(?P<shape> \([^)]*\))?: ")
    text: list[str] = []
    examples: list[str] = []
    described: dict[str, str] = {}
    current: list[str] = []  # the arguments of the line before
    in_example = False
    for line in lines:
        in_example = line.startswith(">>>") or (in_example and bool(line))
        if in_example:
            examples.append(line)
            continue
        first = argument.match(line)
        if not line or not (current or first):
            current = []
            text.append(line)
            continue
        starts = [match for match in argument.finditer(line) if line[: match.start()].endswith((". ", "; "))]
        starts = [first, *starts] if first else starts
        before = line[: starts[0].start()] if starts else line
        described |= {name: f"{described[name]} {before}".strip() for name in current}
        for match, end in zip(starts, [*(one.start() for one in starts[1:]), len(line)], strict=bool(starts)):
            current = match["names"].split(", ")
            shape = f"`{match['shape'].strip()}`, " if match["shape"] else ""
            described |= dict.fromkeys(current, shape + line[match.end() : end].rstrip(" ;"))
    return text, examples, described


def settings(obj: Class | Function) -> dict[str, str]:
    """Return the descriptions of the fields of a dataclass that are declared with `setting`."""
    calls = (
        {name: setting_call(one.value) for name, one in obj.attributes.items()}
        if isinstance(obj, Class)
        else {}
    )
    return {
        name: ast.literal_eval(str(call.arguments[1])) for name, call in calls.items() if call is not None
    }


def setting_call(value: Any) -> ExprCall | None:
    return value if isinstance(value, ExprCall) and str(value.function) == "setting" else None


def show_setting_defaults(obj: Class) -> None:
    """Replace calls of `setting` by the default, their first argument."""
    try:
        declared = list(obj.parameters)
    except KeyError:  # a class whose base is not known
        return
    for parameter in declared:
        if (call := setting_call(parameter.default)) is not None:
            parameter.default = call.arguments[0]


def comments(obj: Class | Function) -> dict[str, str]:
    """Return the comments after the fields of a dataclass."""
    if not isinstance(obj, Class):
        return {}
    sources = {one.name: one.source for one in obj.attributes.values()}
    matches = {
        name: COMMENT.search(source) for name, source in sources.items() if "type: ignore" not in source
    }
    return {name: match["text"] for name, match in matches.items() if match}


def sentence(text: str) -> str:
    """Format a description with a capital letter and a period."""
    if not text:
        return ""
    first = text.split()[0].rstrip(",;:.")
    text = text[0].upper() + text[1:] if first.replace("-", "").isalpha() else text
    return text if text.endswith((".", "`")) else f"{text}."
