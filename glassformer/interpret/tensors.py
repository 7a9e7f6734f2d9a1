"""Any tensor of a trace by name and slice: recorded ones, and those computed on demand.

A slice is written `0,3,:,5:9`: one item per dimension, each an index (which drops the dimension), `a:b`,
`a:b:step` or `:`. B rows, H heads, T queries, S keys.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.errors import InvalidValueError, ShapeError
from glassformer.interpret.comparison import residual_change
from glassformer.interpret.head_patterns import thumbnails
from glassformer.interpret.logit_lens import lens_table
from glassformer.interpret.outline import describe_stacks, residual_sites
from glassformer.interpret.position_tables import TABLES, position_tensor
from glassformer.interpret.schema import ItemNotFoundError, StackInfo, TooLargeError
from glassformer.interpret.trace import Trace

Dtype = Literal["float32", "float64", "uint8", "int32"]
Item = int | slice
STAGES = ("dot", "scaled", "masked", "weights")
MAX_BYTES = 32_000_000  # of one response
MAX_COMPUTED = 128_000_000  # numbers, before pooling
_ITEM = re.compile(r"(\d{1,9})|(\d{0,9}):(\d{0,9})(?::(\d{1,9}))?", re.ASCII)


class TensorSlice(NamedTuple):
    """Part of a tensor, of one of four dtypes."""

    values: Tensor

    @property
    def dtype(self) -> Dtype:
        names: dict[torch.dtype, Dtype] = {
            torch.uint8: "uint8",
            torch.int32: "int32",
            torch.float64: "float64",
        }
        return names.get(self.values.dtype, "float32")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def data(self) -> bytes:
        """The numbers in row-major order, little-endian."""
        array = self.values.contiguous().numpy()
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def parse_slice(text: str, shape: Sequence[int]) -> tuple[Item, ...]:
    """The items of a slice, one for each dimension; missing ones take the whole dimension.

    >>> parse_slice("0,2:5", (1, 8, 8))
    (0, slice(2, 5, 1), slice(0, 8, 1))
    """
    written = text.split(",") if text.strip() else []
    if len(written) > len(shape):
        raise InvalidValueError("slice", text, f"at most {len(shape)} items, one for each dimension")
    items = [_parse_item(item.strip(), size) for item, size in zip(written, shape, strict=False)]
    return (*items, *(slice(0, size, 1) for size in shape[len(items) :]))


def _parse_item(text: str, size: int) -> Item:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise InvalidValueError("slice", text, "an index, a:b, a:b:step or : for each dimension")
    index, first, last, step = match.groups()
    if index is not None:
        if int(index) >= size:
            raise InvalidValueError("slice", text, f"an index below {size}")
        return int(index)
    begin, end, by = int(first or 0), int(last) if last else size, int(step or 1)
    whole = begin == 0 and end == size  # also of an empty dimension
    if by < 1 or not (begin < end <= size or whole):
        raise InvalidValueError("slice", text, f"a:b:step with a < b <= {size} and step >= 1")
    return slice(begin, end, by)


def sliced_shape(items: Sequence[Item], shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor of this shape after slicing.

    >>> sliced_shape((0, slice(2, 5, 2)), (1, 8))
    (2,)
    """
    pairs = zip(items, shape, strict=True)
    return tuple(len(range(*item.indices(size))) for item, size in pairs if isinstance(item, slice))


def read_tensor(
    trace: Trace, name: str, slices: str = "", *, pool: int | None = None, minus: Trace | None = None
) -> TensorSlice:
    """Part of the tensor `name`.

    pool: reduce the last two dimensions to at most this many entries each, by maximum. minus: subtract the
    same part of another trace; equal entries, including two of minus infinity, give 0.
    """
    if pool is not None and pool < 1:
        raise InvalidValueError("pool", pool, "at least 1")
    if minus is not None and name.endswith(".change"):
        table = residual_change(trace, minus, name.removesuffix(".change"))
        found = table[parse_slice(slices, table.shape)]
    else:
        found = _part(trace, name, slices)
        if minus is not None:
            found = _difference(found, _part(minus, name, slices), name)
    found = found if pool is None else _max_pool(found, pool)
    dtypes = {torch.uint8, torch.int32}
    if name.startswith("forecast."):  # in the units of the data: small changes may ride on a large offset
        dtypes.add(torch.float64)
    dtype = found.dtype if found.dtype in dtypes else torch.float32
    if (size := found.numel() * dtype.itemsize) > MAX_BYTES:
        raise TooLargeError(name, size, MAX_BYTES, "bytes", hint="slice or pool it")
    return TensorSlice(found.detach().to("cpu", dtype))


def _part(trace: Trace, name: str, slices: str) -> Tensor:
    owner, _, tail = name.rpartition(".")
    if tail in STAGES and owner in trace.record.attended:
        return _attention_matrix(trace, owner, tail, slices)
    if tail in ("top", "prob") and owner.endswith(".lens"):
        return _lens(trace, owner.removesuffix(".lens"), tail, slices)
    whole = _whole_tensor(trace, name)
    items = parse_slice(slices, whole.shape)
    _check_size(name, items, whole.shape)
    return whole[items]


def _check_size(name: str, items: Sequence[Item], shape: Sequence[int]) -> None:
    if (count := math.prod(sliced_shape(items, shape))) > MAX_COMPUTED:
        raise TooLargeError(
            name, count, MAX_COMPUTED, "numbers", hint="slice it to one head or fewer positions"
        )


def _attention_matrix(trace: Trace, attention: str, stage: str, slices: str) -> Tensor:
    """Part of the scores or weights (B, H, T, S); only the requested heads are computed."""
    record = trace.record
    q, k = record[f"{attention}.q"], record[f"{attention}.k"]
    shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    items = parse_slice(slices, shape)
    rows, heads, *rest = items
    selected = [heads] if isinstance(heads, int) else list(range(*heads.indices(shape[1])))
    _check_size(attention, (slice(0, shape[0], 1), slice(0, len(selected), 1), *rest), shape)
    with torch.inference_mode():
        if len(selected) == shape[1]:
            return _stage(trace, attention, stage, None)[items]
        each = [_stage(trace, attention, stage, head)[(slice(None), *rest)] for head in selected]
        return (each[0] if isinstance(heads, int) else torch.stack(each, 1))[rows]


def _stage(trace: Trace, attention: str, stage: str, head: int | None) -> Tensor:
    match stage:
        case "dot" | "scaled" | "masked":
            return trace.record.scores(attention, head, stage)
    return trace.record.weights(attention, head)


def _lens(trace: Trace, stack: str, which: str, slices: str) -> Tensor:
    """Part of the logit lens (layers + 1, T), computed at the requested positions."""
    shape = lens_table(trace, stack, ())[0].shape
    items = parse_slice(slices, shape)
    positions = [items[1]] if isinstance(items[1], int) else range(*items[1].indices(shape[1]))
    return lens_table(trace, stack, positions)[("top", "prob").index(which)][items]


def _whole_tensor(trace: Trace, name: str) -> Tensor:
    """A recorded tensor, or one derived from the trace, which is then stored with it."""
    if name in trace.record:
        return trace.record[name]
    if name not in trace.derived:
        trace.derived[name] = _derive(trace, name)
    return trace.derived[name]


def _derive(trace: Trace, name: str) -> Tensor:
    stacks = {stack.name: stack for stack in describe_stacks(trace.bundle)}
    owner, _, tail = name.rpartition(".")
    if tail == "growth" and owner in stacks:
        return residual_norms(trace, stacks[owner])
    if tail == "thumbnails" and owner in trace.record.attended:
        return thumbnails(trace.record.weights(owner))
    for table in TABLES:
        if tail == table and owner.endswith(".position"):
            return position_tensor(trace.bundle.model, owner.removesuffix(".position"), table)
    raise ItemNotFoundError("tensor", name, trace.record)


def residual_norms(trace: Trace, stack: StackInfo) -> Tensor:
    """The norms of the residual stream (sites, T), averaged over rows."""
    sites = residual_sites(stack, trace.record)
    return torch.stack([trace.record[site].float().norm(dim=-1).mean(0) for site in sites])


def _difference(one: Tensor, other: Tensor, name: str) -> Tensor:
    if one.shape != other.shape:
        raise ShapeError(f"{name} of the other trace", other.shape, f"{tuple(one.shape)}, as in this trace")
    one, other = one.float(), other.float()
    return torch.where(one == other, 0.0, one - other)


def _max_pool(x: Tensor, most: int) -> Tensor:
    """Reduce the last two dimensions (or the only one) to at most `most` entries, by maximum."""
    if x.dim() == 0:
        return x
    flat = x.float().reshape(-1, x.shape[-2] if x.dim() > 1 else 1, x.shape[-1])
    if not flat.numel():
        return x
    patch = [-(-size // most) for size in flat.shape[1:]]
    small = F.max_pool2d(flat, patch, ceil_mode=True)
    shape = (*x.shape[:-2], *small.shape[1:]) if x.dim() > 1 else small.shape[2:]
    return small.reshape(shape).to(x.dtype)
