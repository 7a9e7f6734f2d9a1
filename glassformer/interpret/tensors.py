"""Any tensor of a trace by name: recorded ones, and those worked out when asked for, no more than is asked.

B rows, H heads, T queries, S keys.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import TooLargeError, UnknownNameError
from glassformer.interpret.outline import StackInfo, stacks_of
from glassformer.interpret.positions import TAILS, position_tensor
from glassformer.interpret.slices import Item, count_after, parse
from glassformer.interpret.stations import growth_of
from glassformer.interpret.taken import Trace

Dtype = Literal["float32", "float64", "uint8", "int32"]
STAGES = ("dot", "scaled", "masked", "weights")
MOST_BYTES = 32_000_000  # of an answer
MOST_WORKED_OUT = 128_000_000  # numbers, before they are pooled


class Cut(NamedTuple):
    """A part of a tensor, ready to be sent: its numbers, all of one of four kinds."""

    values: Tensor

    @property
    def dtype(self) -> Dtype:
        """What the bytes are of."""
        named: dict[torch.dtype, Dtype] = {
            torch.uint8: "uint8",
            torch.int32: "int32",
            torch.float64: "float64",
        }
        return named.get(self.values.dtype, "float32")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def data(self) -> bytes:
        """The numbers, row by row, little-endian."""
        array = self.values.contiguous().numpy()
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def cut(
    trace: Trace, name: str, slices: str = "", *, pool: int | None = None, minus: Trace | None = None
) -> Cut:
    """A part of the tensor of that name.

    slices: as in `trace.slices`. pool: the last two dimensions are brought to at most so many places each, by
    the largest of each patch. minus: the same part of another trace, subtracted; where both are equal, also
    both minus infinity, that is 0.
    """
    if pool is not None and pool < 1:
        raise GlassformerError(f"pool is {pool}; it must be at least 1")
    if minus is not None and name.endswith(".change"):
        from glassformer.interpret.difference import change_table

        table = change_table(trace, minus, name.removesuffix(".change"))
        found = table[parse(slices, table.shape)]
    else:
        found = _part(trace, name, slices)
        if minus is not None:
            found = _difference(found, _part(minus, name, slices, like=found), name)
    found = found if pool is None else _pooled(found, pool)
    kinds = {torch.uint8, torch.int32}
    if name.startswith("forecast."):  # in the series' own units: a swing may ride upon a large offset
        kinds.add(torch.float64)
    kind = found.dtype if found.dtype in kinds else torch.float32
    if found.numel() * kind.itemsize > MOST_BYTES:
        raise TooLargeError(
            f"'{name}' is {found.numel():,} numbers so, and at most {MOST_BYTES // 4:,} are sent at once; "
            "slice it, or pool it"
        )
    return Cut(found.detach().to("cpu", kind))


def _part(trace: Trace, name: str, slices: str, like: Tensor | None = None) -> Tensor:
    attention, _, stage = name.rpartition(".")
    try:
        if stage in STAGES and attention in trace.record.attended:
            return _matrix(trace, attention, stage, slices)
        if stage in ("top", "prob") and attention.endswith(".lens"):
            return _lens(trace, attention.removesuffix(".lens"), stage, slices)
        known = _known(trace, name)
        items = parse(slices, known.shape)
    except GlassformerError as error:
        if like is None or isinstance(error, UnknownNameError):
            raise
        raise GlassformerError(f"the other trace's '{name}' has another shape ({error})") from None
    _check_count(name, items, known.shape)
    return known[items]


def _check_count(name: str, items: Several[Item], shape: Several[int]) -> None:
    if (count := count_after(items, shape)) > MOST_WORKED_OUT:
        raise TooLargeError(f"'{name}' is {count:,} numbers so; slice it, to one head or fewer places")


def _matrix(trace: Trace, attention: str, stage: str, slices: str) -> Tensor:
    """Scores or weights (B, H, T, S) of the heads that are asked for, and of no other."""
    record = trace.record
    q, k = record[f"{attention}.q"], record[f"{attention}.k"]
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    items = parse(slices, shape)
    rows, heads, *rest = items
    asked = [heads] if isinstance(heads, int) else list(range(*heads.indices(shape[1])))
    _check_count(attention, (slice(0, shape[0], 1), slice(0, len(asked), 1), *rest), shape)
    with torch.inference_mode():
        if len(asked) == shape[1]:
            found = _stage(trace, attention, stage, None)
        else:
            each = [_stage(trace, attention, stage, head)[(slice(None), *rest)] for head in asked]
            joined = each[0] if isinstance(heads, int) else torch.stack(each, 1)
            return joined[rows]
        return found[items]


def _lens(trace: Trace, stack: str, which: str, slices: str) -> Tensor:
    """The lens (layers + 1, T), worked out at the places that are asked for."""
    from glassformer.interpret.lens import lens_table

    shape = lens_table(trace, stack, ())[0].shape
    items = parse(slices, shape)
    places = [items[1]] if isinstance(items[1], int) else range(*items[1].indices(shape[1]))
    return lens_table(trace, stack, places)[("top", "prob").index(which)][items]


def _stage(trace: Trace, attention: str, stage: str, head: int | None) -> Tensor:
    match stage:
        case "weights":
            return trace.record.weights(attention, head)
        case "dot" | "scaled" | "masked":
            return trace.record.scores(attention, head, stage)
    raise UnknownNameError(f"an attention has no stage '{stage}'")


def _known(trace: Trace, name: str) -> Tensor:
    """A tensor that was recorded, or kept, or is worked out whole; the last kind once."""
    if name in trace.record:
        return trace.record[name]
    if name not in trace.kept:
        trace.kept.update(_derived(trace, name))
    return trace.kept[name]


def _derived(trace: Trace, name: str) -> dict[str, Tensor]:
    stacks = {stack.name: stack for stack in stacks_of(trace.bundle)}
    first, _, tail = name.rpartition(".")
    if tail == "growth" and first in stacks:
        return {name: growth(trace, stacks[first])}
    if tail == "thumbnails" and first in trace.record.attended:
        from glassformer.interpret.heads import thumbnails

        return {name: thumbnails(trace.record.weights(first))}
    for known in TAILS:
        if tail == known and first.endswith(".position"):
            return {name: position_tensor(trace.bundle.model, first.removesuffix(".position"), known)}
    raise UnknownNameError(
        f"this trace has no tensor '{name[:120]}'; its `tensors` lists those that were recorded"
    )


def growth(trace: Trace, stack: StackInfo) -> Tensor:
    """The length of the residual stream's vectors (sites, T), the mean over rows."""
    sites = [trace.record[site].float().norm(dim=-1).mean(0) for site in growth_of(stack, trace.record)]
    return torch.stack(sites)


def _difference(one: Tensor, other: Tensor, name: str) -> Tensor:
    if one.shape != other.shape:
        raise GlassformerError(
            f"'{name}' is {tuple(one.shape)} here and {tuple(other.shape)} in the other trace; compare "
            "traces of as many tokens"
        )
    one, other = one.float(), other.float()
    return torch.where(one == other, 0.0, one - other)


def _pooled(x: Tensor, most: int) -> Tensor:
    """The last two dimensions (or the only one) at most `most` long, by the largest of each patch."""
    if x.dim() == 0:
        return x
    flat = x.float().reshape(-1, x.shape[-2] if x.dim() > 1 else 1, x.shape[-1])
    if not flat.numel():
        return x
    patch = [-(-size // most) for size in flat.shape[1:]]
    small = F.max_pool2d(flat, patch, ceil_mode=True)
    shape = (*x.shape[:-2], *small.shape[1:]) if x.dim() > 1 else small.shape[2:]
    return small.reshape(shape).to(x.dtype)
