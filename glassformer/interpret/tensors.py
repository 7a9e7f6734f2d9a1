"""Read any tensor of a trace by name and slice, recorded or computed on demand.

A slice is written `0,3,:,5:9`: one item per dimension, each an index (which drops the dimension), `a:b`,
`a:b:step` or `:`. B rows, D d_model, H heads, L positions, R rotated width, S keys, T queries.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.core.model import AnyModel
from glassformer.core.positions import (
    AlibiBias,
    DisentangledPositions,
    LearnedPositions,
    RelativeBias,
    RotaryPositions,
    SinusoidalPositions,
)
from glassformer.errors import InvalidValueError, ShapeError
from glassformer.interpret.comparison import residual_change
from glassformer.interpret.head_patterns import attention_blocks, thumbnails, typical_rows
from glassformer.interpret.head_weights import circuit_matrix, singular_values
from glassformer.interpret.logit_lens import lens_table
from glassformer.interpret.occlusion import occlude
from glassformer.interpret.outline import DERIVED, describe_stacks, residual_sites
from glassformer.interpret.readout import head_readout
from glassformer.interpret.schema import ItemNotFoundError, StackInfo, TooLargeError
from glassformer.interpret.trace import Trace
from glassformer.interpret.window_attention import bias_table, spread_rows

Item = int | slice
STAGES = ("dot", "scaled", "masked", "weights")
MAX_BYTES = 32_000_000  # of one response
MAX_COMPUTED = 128_000_000  # numbers, before pooling
MAX_DISTANCE = 512  # maximum number of positions of an unlimited scheme, and of distances
_OCCLUSION = re.compile(  # with the sequence, how its tokens are hidden, and the size of covered squares
    r"occlusion(?:\.([a-z]\w*?))??(?:\.(replace|mask))?(?:\.([1-9]))?"
)
_STEP = re.compile(r"step\.(\d{1,4})\.(.+)")  # of a drawing
_ITEM = re.compile(r"(\d{1,9})|(\d{0,9}):(\d{0,9})(?::(\d{1,9}))?", re.ASCII)


class TensorSlice(NamedTuple):
    """A slice of a tensor, as float32, float64, uint8 or int32."""

    values: Tensor

    @property
    def dtype(self) -> str:
        return str(self.values.dtype).removeprefix("torch.")

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.values.shape)

    def data(self) -> bytes:
        """Return the values in row-major order, little-endian."""
        array = self.values.contiguous().numpy()
        return array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()


def parse_slice(text: str, shape: Sequence[int]) -> tuple[Item, ...]:
    """Parse a slice into one item per dimension; missing items select the full dimension.

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
    start, end, step_size = int(first or 0), int(last) if last else size, int(step or 1)
    whole = start == 0 and end == size  # also of an empty dimension
    if step_size < 1 or not (start < end <= size or whole):
        raise InvalidValueError("slice", text, f"a:b:step with a < b <= {size} and step >= 1")
    return slice(start, end, step_size)


def read_tensor(
    trace: Trace, name: str, slices: str = "", *, pool: int | None = None, minus: Trace | None = None
) -> TensorSlice:
    """Read a slice of the tensor `name`.

    pool: reduce the last two dimensions to at most this many entries each, by maximum. minus: subtract the
    same slice of another trace; equal entries give 0, including two values of minus infinity.
    """
    if minus is not None and name.endswith(".change"):
        table = residual_change(trace, minus, name.removesuffix(".change"))
        tensor = table[parse_slice(slices, table.shape)]
    else:
        tensor = _part(trace, name, slices)
        if minus is not None:
            tensor = _difference(tensor, _part(minus, name, slices), name)
    tensor = tensor if pool is None else _max_pool(tensor, pool)
    exact = [torch.uint8, torch.int32]
    if name.startswith("forecast."):  # changes may be small relative to the values
        exact.append(torch.float64)
    dtype = tensor.dtype if tensor.dtype in exact else torch.float32
    if (size := tensor.numel() * dtype.itemsize) > MAX_BYTES:
        raise TooLargeError(name, size, MAX_BYTES, "bytes", hint="slice or pool it")
    return TensorSlice(tensor.detach().to("cpu", dtype))


def _part(trace: Trace, name: str, slices: str) -> Tensor:
    if trace.film is not None and (match := _STEP.fullmatch(name)) is not None:
        step, name = int(match[1]), match[2]
        if (found := trace.film.tensor(name, step)) is not None:
            return found[parse_slice(slices, found.shape)]
        trace = replace(trace, film=None, record=trace.film.record(step), derived={})
    owner, _, tail = name.rpartition(".")
    if tail in STAGES and owner in trace.record.attention_contexts:
        return _attention_matrix(trace, owner, tail, slices)
    if tail in ("top", "prob") and owner.endswith(".lens"):
        return _lens(trace, owner.removesuffix(".lens"), tail, slices)
    if tail in ("ov", "qk") and owner in trace.record.attention_contexts:
        return _circuit(trace, owner, tail, slices)
    if name in trace.record:
        whole = trace.tensor(name)
    else:
        if name not in trace.derived:
            trace.derived[name] = _derive(trace, name)
        whole = trace.derived[name]
    items = parse_slice(slices, whole.shape)
    _check_size(name, items, whole.shape)
    return whole[items]


def _check_size(name: str, items: Sequence[Item], shape: Sequence[int]) -> None:
    pairs = zip(items, shape, strict=True)
    count = math.prod(len(range(*item.indices(size))) for item, size in pairs if isinstance(item, slice))
    if count > MAX_COMPUTED:
        raise TooLargeError(name, count, MAX_COMPUTED, "numbers", hint="slice it")


@torch.inference_mode()
def _attention_matrix(trace: Trace, attention: str, stage: Any, slices: str) -> Tensor:
    """Compute a slice of the attention scores or weights (B, H, T, S), only for the requested heads.

    In window attention, weights outside of a patch's window are 0, and scores minus infinity.
    """
    record, windows = trace.record, trace.record.attention_contexts[attention].windows
    q, k = trace.tensor(f"{attention}.q"), trace.tensor(f"{attention}.k")
    shape = (*q.shape[:3], k.shape[2])
    items = parse_slice(slices, shape)
    rows, heads, query, keys = items
    selected = [heads] if isinstance(heads, int) else list(range(*heads.indices(shape[1])))
    _check_size(attention, (slice(0, shape[0], 1), slice(0, len(selected), 1), query, keys), shape)
    if windows is not None:
        queries = [query] if isinstance(query, int) else range(*query.indices(shape[2]))
        query = 0 if isinstance(query, int) else slice(None)

    def matrix(head: int | None) -> Tensor:
        x = record.weights(attention, head) if stage == "weights" else record.scores(attention, head, stage)
        outside = 0.0 if stage == "weights" else -math.inf
        return x if windows is None else spread_rows(x[:, None], windows, queries, outside)[:, 0]

    if windows is None and len(selected) == shape[1]:
        return matrix(None)[items]
    matrices = [matrix(head)[:, query, keys] for head in selected]  # those of all windows may be large
    return (matrices[0] if isinstance(heads, int) else torch.stack(matrices, 1))[rows]


def _circuit(trace: Trace, name: str, circuit: Any, slices: str) -> Tensor:
    """Compute a slice of W_V W_O or W_Q^T W_K (H, rows, columns), only for the requested heads."""
    attention: Any = trace.bundle.model.get_submodule(name)
    sizes = attention.q_proj.in_features, attention.k_proj.in_features
    shape = (attention.num_heads, *(sizes if circuit == "qk" else sizes[::-1]))
    heads, *rest = items = parse_slice(slices, shape)
    _check_size(f"{name}.{circuit}", items, shape)
    if isinstance(heads, int):
        return circuit_matrix(attention, heads, circuit)[tuple(rest)]
    each = range(*heads.indices(shape[0]))
    return torch.stack([circuit_matrix(attention, head, circuit)[tuple(rest)] for head in each])


def _lens(trace: Trace, stack: str, which: str, slices: str) -> Tensor:
    """Compute a slice of the logit lens (layers + 1, T), only at the requested positions."""
    shape = lens_table(trace, stack, ())[0].shape
    items = parse_slice(slices, shape)
    positions = [items[1]] if isinstance(items[1], int) else range(*items[1].indices(shape[1]))
    return lens_table(trace, stack, positions)[("top", "prob").index(which)][items]


def _derive(trace: Trace, name: str) -> Tensor:
    stacks = {stack.name: stack for stack in describe_stacks(trace.bundle)}
    owner, _, tail = name.rpartition(".")
    if tail == "growth" and owner in stacks:
        return _residual_norms(trace, stacks[owner])
    if tail == "thumbnails" and owner in trace.record.attention_contexts:
        return thumbnails(trace.record.weights(owner)[typical_rows(trace.record, owner)])
    if tail in ("ov_values", "qk_values") and owner in trace.record.attention_contexts:
        return singular_values(trace.bundle.model.get_submodule(owner), tail[:2])  # type: ignore[arg-type]
    if tail == "bias_table":
        return _bias_table(trace, owner)
    if (match := _OCCLUSION.fullmatch(name)) is not None:
        sequence, hide, size = match.groups()
        return occlude(trace, sequence, hide=hide, size=int(size or 1))  # type: ignore[arg-type]
    if trace.film is not None and (found := trace.film.tensor(name)) is not None:
        return found
    if name == "attention.blocks":
        return attention_blocks(trace)
    if name == "head.confidence":
        return _confidence(trace)
    if tail in DERIVED and owner.endswith(".position"):
        return position_tensor(trace.bundle.model, owner.removesuffix(".position"), tail)
    raise ItemNotFoundError("tensor", name, trace.record)


def _bias_table(trace: Trace, attention: str) -> Tensor:
    """Return the biases of an attention layer by 2-D offset, (H, 2 * rows - 1, 2 * columns - 1)."""
    info = next((one for one in trace.attentions() if one.name == attention), None)
    if info is None or info.bias_table is None:
        raise ItemNotFoundError("tensor", f"{attention}.bias_table", trace.record)
    bias = trace.record.attention_contexts[attention].bias
    grid = (info.windows.size,) * 2 if info.windows else trace.sequence(info.queries).grid
    assert bias is not None and grid is not None
    return bias_table(bias, (grid[0], grid[1]))


def _confidence(trace: Trace) -> Tensor:
    """Return the probability of the most likely token at each position (T,)."""
    if head_readout(trace.bundle).whole_input:
        raise ItemNotFoundError("tensor", "head.confidence", trace.record)
    logits = trace.record["head.logits"][0]
    return torch.cat([part.float().softmax(-1).amax(-1) for part in logits.split(64)])


def _residual_norms(trace: Trace, stack: StackInfo) -> Tensor:
    sites = residual_sites(stack, trace.record)
    return torch.stack([trace.record[site].float().norm(dim=-1).mean(0) for site in sites])


def _difference(ours: Tensor, theirs: Tensor, name: str) -> Tensor:
    if ours.shape != theirs.shape:
        raise ShapeError(f"{name} of the other trace", theirs.shape, f"{tuple(ours.shape)}, as in this trace")
    ours, theirs = ours.float(), theirs.float()
    return torch.where(ours == theirs, 0.0, ours - theirs)


def _max_pool(x: Tensor, most: int) -> Tensor:
    """Reduce the last two dimensions (or the only one) to at most `most` entries, by maximum."""
    if not x.dim() or not x.numel():
        return x
    flat = x.float().reshape(-1, x.shape[-2] if x.dim() > 1 else 1, x.shape[-1])
    small = F.max_pool2d(flat, [-(-size // most) for size in flat.shape[1:]], ceil_mode=True)
    shape = (*x.shape[:-2], *small.shape[1:]) if x.dim() > 1 else small.shape[2:]
    return small.reshape(shape).to(x.dtype)


@torch.inference_mode()
def position_tensor(model: AnyModel, owner: str, table: str) -> Tensor:
    """Compute the tensor `<owner>.position.<table>`; owner is a stack or its embedding.

    "table": (L, D) for added position embeddings and for embeddings of distances; (L, R) for rotary ones,
    cosines then sines; (H, L) for an attention bias, by distance 0 to L-1 to earlier keys. "table_ahead": the
    bias to later keys, if the stack is not causal. "similarity": (L,) by distance, 1 at distance 0: the mean
    dot product of two rows for added position embeddings, the mean cosine of the rotation for rotary ones,
    and the mean over heads of exp(bias), the factor on the unnormalized attention weight, for a bias.
    """
    try:
        module: Any = model.get_submodule(owner)
    except AttributeError:
        module = None
    scheme = getattr(module, "position", None)
    biased = isinstance(scheme, RelativeBias | AlibiBias)
    if table == "table_ahead" and (not biased or module.causal):
        raise ItemNotFoundError("position table", table, ("table", "similarity"))
    match scheme:
        case SinusoidalPositions():
            return _added(scheme.table, table)
        case LearnedPositions():
            return _added(scheme.weight[scheme.offset :], table)
        case Tensor():  # of patches: (L, D), or (1, L, D)
            return _added(scheme.reshape(-1, scheme.shape[-1]), table)
        case RotaryPositions():
            angle = torch.arange(MAX_DISTANCE, device=scheme.freq.device)[:, None] * scheme.freq  # (L, R/2)
            return torch.cat((angle.cos(), angle.sin()), 1) if table == "table" else angle.cos().mean(1)
        case DisentangledPositions():
            distances = torch.arange(min(MAX_DISTANCE, scheme.max_distance), device=scheme.weight.device)
            return _added(scheme.embedding()[scheme.rows(distances)], table)
        case RelativeBias() | AlibiBias():
            return _bias(scheme, table)
    raise ItemNotFoundError("tensor", f"{owner}.position.{table}")


def _added(vectors: Tensor, table: str) -> Tensor:
    vectors = vectors.detach().float()
    if table == "table":
        return vectors
    rows = vectors[:MAX_DISTANCE]
    products = rows @ rows.T  # (L, L)
    means = torch.stack([products.diagonal(d).mean() for d in range(len(rows))])
    if not means[0] > 0:
        raise InvalidValueError("the position table", "all zeros", "nonzero rows, to compute similarities")
    return means / means[0]


def _bias(scheme: RelativeBias | AlibiBias, table: str) -> Tensor:
    device = next(iter((*scheme.parameters(), *scheme.buffers()))).device
    positions = torch.arange(MAX_DISTANCE, device=device)
    # ahead: from position 0 to each later one; back: from each later one to position 0
    ahead = table == "table_ahead"
    queries, keys = (positions[:1], positions) if ahead else (positions, positions[:1])
    bias = scheme(queries[None], keys[None]).bias  # (1, H, L, 1), or (1, H, 1, L) ahead
    assert bias is not None
    by_distance = bias[0].flatten(1).float()  # (H, L)
    return by_distance if table != "similarity" else (by_distance - by_distance[:, :1]).exp().mean(0)
