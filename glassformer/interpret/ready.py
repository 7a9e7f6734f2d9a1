"""One input as a model takes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.interpret.altered import altered
from glassformer.interpret.kinds import Change, Given, Kind, Sequence
from glassformer.tasks.reading import picked


@dataclass(frozen=True, kw_only=True)
class Ready:
    """An input made ready for `model(**inputs)`.

    inputs: the forward's named arguments: src (1, S) and tgt (1, T) of an encoder-decoder, ids (1, T) of a
    decoder, inputs of an encoder, and masks, types or positions beside them. sequences: what stands at each
    place. rows: the names of the batch's rows, where there are several. start: how many places of the target
    come before what is written. ended: why the model's own answer ended. wrote: whether the target is the
    model's own answer. about: what the outcome needs beside. kept: tensors that belong to the input.
    """

    kind: Kind
    given: Given
    sequences: tuple[Sequence, ...]
    inputs: Mapping[str, Any]
    rows: tuple[str, ...] | None = None
    start: int = 0
    ended: str | None = None
    wrote: bool = False
    about: Any = None
    kept: Mapping[str, Tensor] = field(default_factory=dict)


def all_real(name: str, ids: Tensor, read: specs.Input, *, first: int = 0) -> dict[str, Tensor]:
    """A mask under `name` that says all ids (1, T) are real, where one spells padding; else none is needed.

    The verbs know what they padded; a model that is told nothing would take the id for padding, from the
    place `first` on.
    """
    pad = read.pad_id if isinstance(read, specs.Tokens) else None
    if pad is None or not bool(ids[:, first:].eq(pad).any()):
        return {}
    return {name: torch.ones_like(ids, dtype=torch.bool)}


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One forward to be watched: by which model, of what, with which edits on the way."""

    model: nn.Module
    ready: Ready
    edit: Mapping[str, Callable[[Tensor], Tensor]]


def forward_of(bundle: Bundle, ready: Ready, changes: Several[Change]) -> Forward:
    """The forward after these changes; the bundle's own model is left as it is."""
    if not changes:
        return Forward(model=bundle.model, ready=ready, edit={})
    made = altered(bundle.model, ready.inputs, changes)
    sequences = tuple(
        replace(one, tokens=tuple(one.tokens[n] for n in made.orders[one.name]))
        if one.name in made.orders
        else one
        for one in ready.sequences
    )
    about = ready.about
    if ready.kind == "answer" and "input" in made.orders:  # where an answer stands is told by its tokens
        about = (picked(about[0], made.orders["input"]), about[1])
    changed = replace(ready, inputs=made.inputs, sequences=sequences, about=about)
    return Forward(model=made.model, ready=changed, edit=made.edit)
