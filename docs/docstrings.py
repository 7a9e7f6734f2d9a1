"""A Griffe extension that turns the docstrings of the package into Google style for the API reference.

In the source an argument is a line `name: description`, and an example starts with `>>>`:

    Record the tensors whose names match `want`.

    want: one glob or several

    >>> Observer(want="*.q")

Arguments that mean the same everywhere are explained once, in `SHARED`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from griffe import Class, Docstring, Extension, Function, Object

ARGUMENT = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*): (?P<text>.+)")
SHARED = {
    "x": "Input vectors `(B, T, D)`.",
    "ids": "Token ids `(B, T)`.",
    "src": "Source token ids `(B, S)`.",
    "tgt": "Target token ids `(B, T)`.",
    "memory": "Encoder output `(B, S, D)` that cross-attention reads.",
    "mask": "Which keys a query may attend to: a `Mask`, or a boolean tensor that is True where it may.",
    "src_mask": "Mask of the source, e.g. its padding `(B, S)`.",
    "tgt_mask": "Mask of the target, in addition to the causal one.",
    "memory_mask": "Mask of cross-attention, e.g. the padding of the source `(B, S)`.",
    "positions": "Position ids `(B or 1, T)`; by default they are counted from 0, or continue a cache.",
    "types": "Token type ids `(B or 1, T)`, e.g. 0 for a question and 1 for its context.",
    "cache": "Keys and values of earlier steps; it is filled in place.",
    "kernel": 'Attention kernel: `"auto"`, `"explicit"`, `"sdpa"` or `"flex"`.',
    "obs": "An `Observer` that records or edits the named tensors of this forward.",
    "d_model": "Width of the residual stream.",
    "num_heads": "Number of attention heads.",
    "max_len": "Number of positions in the table.",
    "dropout": "Dropout probability, in training only.",
    "eps": "Added to the variance for numerical stability.",
    "bundle": "A loaded model: what `glassformer.load` returns.",
    "batch_tokens": "Maximum number of tokens per batch, padding included.",
    "**options": "Further options, passed on.",
    "device": "Device, e.g. `cpu` or `cuda:0`.",
    "folder": "Path of a folder.",
}


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
    known = {name: described.get(name.lstrip("*"), SHARED.get(name, "")) for name in names}
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
