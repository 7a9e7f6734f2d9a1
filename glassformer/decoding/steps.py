"""Writing one token at a time, the same for every model: begin once, then step, and select rows.

Whatever chooses the next token (the likeliest, a sample, a beam) sees only `Begun` and `Steps`, so it is
written once. A model of another shape joins in by having a method `begin` of its own.

B rows, S source positions, P prompt positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from glassformer.core import spec as specs
from glassformer.core.cache import Cache
from glassformer.core.embeddings import TokenInput, check_form
from glassformer.core.errors import GlassformerError
from glassformer.core.masks import Mask
from glassformer.core.model import DecoderOnly, EncoderDecoder


class Steps(Protocol):
    """Rows being written, all of them one token further with every step."""

    def step(self, ids: Tensor) -> Tensor:
        """The token just chosen for each row (B,) -> logits (B, V) of the one after it."""
        ...

    def select(self, rows: Tensor) -> None:
        """Go on with these rows, in this order: beams are reordered, finished rows dropped."""
        ...


@runtime_checkable
class SharedSource(Protocol):
    """Steps whose rows are beams of sentences and share what was read of the source."""

    def widen(self, count: int) -> None:
        """Each row becomes `count` rows that stand together."""
        ...

    def reorder(self, rows: Tensor) -> None:
        """Like `select`, where each row is replaced by a row of the same sentence."""
        ...


def widen(steps: Steps, rows: int, count: int, device: torch.device) -> None:
    """Each of so many rows becomes `count` rows that stand together."""
    if isinstance(steps, SharedSource):
        steps.widen(count)
    elif count > 1:
        steps.select(torch.arange(rows, device=device).repeat_interleave(count))


def reorder(steps: Steps, rows: Tensor) -> None:
    """Replace each row by a row of the same sentence."""
    if rows.is_cpu and torch.equal(rows, torch.arange(len(rows))):
        return  # often the beams stay in order, and then nothing need be copied
    if isinstance(steps, SharedSource):
        steps.reorder(rows)
    else:
        steps.select(rows)


class Begun(NamedTuple):
    """What stands when all that was given is read."""

    steps: Steps
    logits: Tensor  # (B, V) of the first token to choose
    most: Tensor | int | None = None  # how many tokens each row (B,) can still be given; None: no bound


@runtime_checkable
class Begins(Protocol):
    """A model that knows by itself how to write step by step."""

    def begin(self, inputs: Tensor, real: Tensor, *, start_ids: Sequence[int], room: int) -> Begun:
        """inputs (B, S), of which `real` (B, S) are no padding; at most `room` tokens will be written."""
        ...


def begin(
    model: nn.Module, inputs: Tensor, real: Tensor, *, start_ids: Sequence[int] | int | None, room: int
) -> Begun:
    """Read a source or a prompt (B, S), of which `real` (B, S) are no padding, wherever that stands.

    `start_ids` begin the target of a model that has a source (by default the model's own start). At most
    `room` tokens can then be written.
    """
    check_form(inputs)
    if real.shape != inputs.shape or real.dtype != torch.bool:
        raise GlassformerError(
            f"the mask must be boolean and of the inputs' shape {tuple(inputs.shape)}; "
            f"got {str(real.dtype).removeprefix('torch.')} {tuple(real.shape)}"
        )
    starts = starts_of(model, start_ids)
    if isinstance(model, EncoderDecoder):
        _check_head(model.spec.head)
        return _begin_target(model, inputs, real, starts, room)
    if isinstance(model, DecoderOnly):
        _check_head(model.spec.head)
        _check_no_starts(starts)
        return _begin_prompt(model, inputs, real, room)
    if isinstance(model, Begins):
        return model.begin(inputs, real, start_ids=starts, room=room)
    raise GlassformerError(f"a {type(model).__name__} does not write text; give a model with a decoder")


def starts_of(model: nn.Module, start_ids: Sequence[int] | int | None) -> list[int]:
    """How the target of a model with a source begins: as given, else as its spec says."""
    starts = [start_ids] if isinstance(start_ids, int) else list(start_ids or ())
    own_start = getattr(getattr(model, "spec", None), "start_id", None)
    return [own_start] if not starts and own_start is not None else starts


def _check_head(head: specs.Head) -> None:
    if not isinstance(head, specs.LanguageModel):
        raise GlassformerError(
            f"a model whose head is {type(head).__name__} writes no text; load it as a language model"
        )


def _check_no_starts(starts: Sequence[int]) -> None:
    if starts:
        raise GlassformerError("a model without a source goes on from its prompt; put start_ids there")


def _cache_for(model: EncoderDecoder | DecoderOnly, rows: int, room: int) -> Cache:
    parameter = next(model.parameters())
    kind = parameter.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else parameter.dtype
    return Cache.allocate(model.spec, rows, room, dtype=dtype, device=parameter.device)


def _table(embed: nn.Module) -> int | None:
    """How many positions the input's table holds, where it has one."""
    position = embed.position if isinstance(embed, TokenInput) else None
    return None if position is None else position.max_len


def _last(logits: Any) -> Tensor:
    found: Tensor = logits[:, -1]
    return found


# ---- a source and a target --------------------------------------------------------------------------


@dataclass
class TargetSteps:
    """The target of an encoder-decoder; the source was read once and for all."""

    model: EncoderDecoder
    memory: Tensor  # (B, S, D)
    real: Tensor | None  # (B, S), None where nothing is padding
    cache: Cache

    def step(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None])

    def read(self, ids: Tensor) -> Tensor:
        """(B, T) further tokens -> logits (B, V) after the last of them."""
        # an empty mask: a start token that is also the pad token is no padding
        return _last(self.model.decode(ids, self.memory, Mask(), self.real, cache=self.cache))

    def select(self, rows: Tensor) -> None:
        self._lean(len(rows))
        self.real = None if self.real is None else self.real.index_select(0, rows)
        self.cache.select(rows)

    def widen(self, count: int) -> None:
        rows = torch.arange(len(self.memory), device=self.memory.device).repeat_interleave(count)
        self._lean(len(rows))
        self.real = None if self.real is None else self.real.index_select(0, rows)
        one = len(rows) == count  # the beams of a single sentence can look at one copy
        for layer in self.cache.layers:
            layer.k, layer.v = layer.k.index_select(0, rows), layer.v.index_select(0, rows)
            if layer.cross is not None:
                k, v = layer.cross
                layer.cross = (
                    (k.expand(count, -1, -1, -1), v.expand(count, -1, -1, -1))
                    if one
                    else (k.index_select(0, rows), v.index_select(0, rows))
                )

    def reorder(self, rows: Tensor) -> None:
        # beams of a sentence have the same source: only what was written moves
        for layer in self.cache.layers:
            layer.k, layer.v = layer.k.index_select(0, rows), layer.v.index_select(0, rows)

    def _lean(self, rows: int) -> None:
        # The cache holds the source's keys and values by now. Of the memory only the shape is read
        # again, so all rows can point at one of it.
        self.memory = self.memory[:1].expand(rows, -1, -1)


def _begin_target(
    model: EncoderDecoder, src: Tensor, real: Tensor, starts: Sequence[int], room: int
) -> Begun:
    if not starts:
        raise GlassformerError("nothing says how the target begins; give start_ids")
    table = _table(model.tgt_embed)
    # the last token written is never read again, so it needs no position
    most = None if table is None else max(0, table + 1 - len(starts))
    room = room if most is None else min(room, most)
    padded = None if bool(real.all()) else real
    memory = model.encode(src, Mask(padding=padded))
    steps = TargetSteps(model, memory, padded, _cache_for(model, len(src), len(starts) + room))
    first = torch.tensor(starts, device=src.device).expand(len(src), -1)  # (B, starts)
    return Begun(steps, steps.read(first), most)


# ---- a prompt ---------------------------------------------------------------------------------------


@dataclass
class PromptSteps:
    """What follows a prompt. Padding stands on the left, so that nothing separates the two."""

    model: DecoderOnly
    cache: Cache
    real: Tensor | None  # (B, P + room), True from the prompt's first token on; None: nothing is padding
    places: Tensor  # (B,), where the next token stands
    table: int | None  # the places there are

    def step(self, ids: Tensor) -> Tensor:
        keys = self.cache.keys(1)
        places = self.places if self.table is None else self.places.clamp(max=self.table - 1)
        mask = Mask(padding=None if self.real is None else self.real[:, :keys])
        self.places = self.places + 1
        return _last(self.model(ids[:, None], mask, positions=places[:, None], cache=self.cache))

    def select(self, rows: Tensor) -> None:
        self.real = None if self.real is None else self.real.index_select(0, rows)
        self.places = self.places.index_select(0, rows)
        self.cache.select(rows)


def _begin_prompt(model: DecoderOnly, prompt: Tensor, real: Tensor, room: int) -> Begun:
    lengths = real.sum(1)  # (B,)
    if prompt.shape[1] == 0 or not bool(lengths.all()):
        raise GlassformerError("a prompt is empty; begin it with the model's start token")
    table = _table(model.embed)
    most = None if table is None else (table + 1 - lengths).clamp(min=0)
    padded = not bool(real.all())
    longest = int(lengths.max())
    if padded:
        order = real.int().argsort(dim=1, stable=True)  # padding first, the rest as it was
        prompt = prompt.gather(1, order)[:, -longest:]
    begins = torch.arange(longest + room, device=prompt.device) >= (longest - lengths)[:, None]
    steps = PromptSteps(
        model,
        cache=_cache_for(model, len(prompt), longest + room),
        real=begins if padded else None,  # (B, longest + room)
        places=lengths,
        table=table,
    )
    mask = Mask(padding=begins[:, :longest] if padded else None)
    x, context = model.vectors(prompt, mask, cache=steps.cache)
    logits = model.head(x[:, -1:], context._replace(ids=None, padding=None))
    return Begun(steps, _last(logits), most)
