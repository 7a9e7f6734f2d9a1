"""Reversible operations between a published checkpoint's tensors ("theirs") and ours.

Every operation knows both directions: `load` makes our tensors from theirs, `save` makes theirs
from ours, and the two are exact inverses. A family's weight table is a tuple of these. Layouts that
are views of the published tensor stay views, so that a memory-mapped file is not copied.

Names: `{a,b}` lists names, as in a shell: `self_attn.{q,k,v}_proj.weight` is three names. `{i}` is a
blank that `expand` fills: `h.{i}.ln.{p}`, `i=12, p=("weight", "bias")`, is 24 names. `{base}` is the one
blank left open: the published prefix, which is found when a file is read.

Letters: G groups (key/value heads), R queries per group, H heads, K head_dim.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from glassformer.errors import ConflictError

BASE = "{base}"
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_BLANK = re.compile(r"\{(\w+)\}")

Names = str | tuple[str, ...]
Tensors = tuple[Tensor, ...]
Shape = tuple[int, ...]


def expand_lists(names: Names) -> tuple[str, ...]:
    """Expand every `{a,b}` list, the leftmost list slowest.

    >>> expand_lists("{q,k}.{weight,bias}")
    ('q.weight', 'q.bias', 'k.weight', 'k.bias')
    """
    found: list[str] = []
    for name in (names,) if isinstance(names, str) else names:
        parts = [part.split(",") if n % 2 else [part] for n, part in enumerate(_LIST.split(name))]
        found += map("".join, product(*parts))
    return tuple(found)


def open_blanks(names: Iterable[str]) -> set[str]:
    """The names of the blanks that are still open.

    >>> sorted(open_blanks(("{base}h.{i}.weight",)))
    ['base', 'i']
    """
    return {blank for name in names for blank in _BLANK.findall(name)}


@dataclass(frozen=True)
class Op:
    """One row of a weight table: some of their tensors become some of ours, and back."""

    theirs: Names
    ours: Names
    required: ClassVar[bool] = True  # whether a file must have them

    def __post_init__(self) -> None:
        object.__setattr__(self, "theirs", expand_lists(self.theirs))
        object.__setattr__(self, "ours", expand_lists(self.ours))

    @property
    def saved(self) -> tuple[str, ...]:
        """Which of their tensors are written."""
        return tuple(self.theirs)

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        """Our tensors, in the order of `self.ours`."""
        raise NotImplementedError

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        """Their tensors, in the order of `self.theirs`."""
        raise NotImplementedError

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        """The shapes that `save` would make, without any tensor."""
        return tuple(ours)


@dataclass(frozen=True)
class Rename(Op):
    """The same tensor under another name."""

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return tuple(theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return tuple(ours)


@dataclass(frozen=True)
class Transpose(Op):
    """A weight kept as (in, out) becomes a Linear's (out, in); a bias passes through."""

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.t() for tensor in theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.t() for tensor in ours)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(shape[::-1] for shape in ours)


@dataclass(frozen=True)
class Reshape(Op):
    """The same numbers in another shape, such as (1, 1, D) for (D,)."""

    _: KW_ONLY
    their_shape: tuple[int, ...]
    our_shape: tuple[int, ...]

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.reshape(self.our_shape) for tensor in theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.reshape(self.their_shape) for tensor in ours)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return (self.their_shape,) * len(ours)


@dataclass(frozen=True)
class Split(Op):
    """One fused tensor of theirs is several of ours, of the given sizes along `dim`.

    `transpose` turns a weight kept as (in, out) first, so `dim` always counts in our layout.
    """

    _: KW_ONLY
    sizes: tuple[int, ...]
    dim: int = 0
    transpose: bool = False

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        fused = theirs[0].t() if self.transpose else theirs[0]
        return fused.split(self.sizes, self.dim)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        fused = torch.cat(tuple(ours), self.dim)
        return (fused.t() if self.transpose else fused,)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        fused = _resized(ours[0], self.dim, sum(self.sizes))
        return (fused[::-1] if self.transpose else fused,)


@dataclass(frozen=True)
class Concat(Op):
    """Several tensors of theirs are one of ours, joined along `dim` with the given sizes."""

    _: KW_ONLY
    sizes: tuple[int, ...]
    dim: int = 0

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return (torch.cat(tuple(theirs), self.dim),)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return ours[0].split(self.sizes, self.dim)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(_resized(ours[0], self.dim, size) for size in self.sizes)


@dataclass(frozen=True)
class SplitGroups(Op):
    """Fused query, key and value rows, interleaved by group, for a weight or a bias.

    Their rows: G groups of [R query heads, 1 key head, 1 value head], each of K rows.
    Ours, in this order: q (G*R*K rows), k (G*K rows), v (G*K rows).
    One group with R = H is the multi-query layout; G = H groups with R = 1 is plain multi-head.
    """

    _: KW_ONLY
    groups: int
    queries: int
    head_dim: int

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        rows = theirs[0].unflatten(0, (self.groups, self.queries + 2, self.head_dim))
        parts = rows.split((self.queries, 1, 1), dim=1)  # each (G, R or 1, K, ...)
        return tuple(part.flatten(0, 2) for part in parts)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        parts = [part.unflatten(0, (self.groups, -1, self.head_dim)) for part in ours]
        return (torch.cat(parts, dim=1).flatten(0, 2),)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return (_resized(ours[0], 0, self.groups * (self.queries + 2) * self.head_dim),)


@dataclass(frozen=True)
class PermuteRotary(Op):
    """Rotary rows kept interleaved (pairs 2j, 2j+1) become half-split (pairs j, j + width/2).

    For weights (H*K, D), biases (H*K,) and per-head norms (H, K). Only the first `width` rows of
    a head are rotated (all of them when None); the rest stay where they are.
    """

    _: KW_ONLY
    num_heads: int
    head_dim: int
    width: int | None = None

    def _rows(self) -> Tensor:
        """For each of our rows of a head, the row of theirs it comes from: (K,)."""
        width = self.head_dim if self.width is None else self.width
        order = torch.arange(self.head_dim)
        order[:width] = order[:width].view(-1, 2).t().reshape(-1)
        return order

    def _reorder(self, tensor: Tensor, order: Tensor) -> Tensor:
        heads = tensor.reshape(self.num_heads, self.head_dim, -1)  # (H, K, D or 1)
        return heads[:, order.to(tensor.device)].reshape(tensor.shape)

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        order = self._rows()
        return tuple(self._reorder(tensor, order) for tensor in theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        order = self._rows().argsort()
        return tuple(self._reorder(tensor, order) for tensor in ours)


@dataclass(frozen=True)
class Tied(Op):
    """One tensor with several names: a file may hold any of theirs, all equal.

    Saving writes `written` (the first of theirs when empty). Several names on our side, where a
    shared parameter is listed under each, get the same tensor.
    """

    _: KW_ONLY
    written: Names = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "written", expand_lists(self.written) or self.theirs[:1])

    @property
    def saved(self) -> tuple[str, ...]:
        return tuple(self.written)

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        """From the tensors found, at least one; they must agree bit for bit."""
        _same(theirs, self.theirs)
        return (theirs[0],) * len(self.ours)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        """One tensor for every name of theirs, though only `written` go into a file."""
        _same(ours, self.ours)
        return (ours[0],) * len(self.theirs)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return (ours[0],) * len(self.theirs)


@dataclass(frozen=True)
class Computed(Rename):
    """A tensor that follows from the configuration, such as a sinusoidal table.

    Loaded when the file has it, else left to the module; `written` says whether saving writes it. It has one
    name, because each may be absent.
    """

    _: KW_ONLY
    written: bool = False
    required = False

    @property
    def saved(self) -> tuple[str, ...]:
        return tuple(self.theirs) if self.written else ()


@dataclass(frozen=True)
class Ignored(Op):
    """Published names that carry no information (`*` is a wildcard): accepted, never written."""

    ours: Names = ()
    required = False

    @property
    def saved(self) -> tuple[str, ...]:
        return ()


def expand(ops: Iterable[Op], **values: int | Iterable[object]) -> tuple[Op, ...]:
    """Fill blanks: each row is repeated for every value of the blanks it has.

    >>> expand((Rename("h.{i}.{p}", "blocks.{i}.norm.{p}"),), i=1, p=("weight",))
    (Rename(theirs=('h.0.weight',), ours=('blocks.0.norm.weight',)),)
    """
    choices = {
        blank: tuple(range(value) if isinstance(value, int) else value) for blank, value in values.items()
    }
    rows: list[Op] = []
    for op in ops:
        present = [blank for blank in choices if blank in open_blanks((*op.theirs, *op.ours))]
        for combination in product(*(choices[blank] for blank in present)):
            row = op
            for blank, value in zip(present, combination, strict=True):
                row = fill(row, blank, value)
            rows.append(row)
    return tuple(rows)


def fill(op: Op, blank: str, value: object) -> Op:
    """The row with one blank filled in all its names."""

    def put(name: str) -> str:
        return name.replace("{" + blank + "}", str(value))

    return _rename(op, put, put)


def within(theirs: str, ours: str, ops: Iterable[Op]) -> tuple[Op, ...]:
    """Put a prefix before all their names and another before all our names.

    >>> within("{base}", "encoder.", (Rename("ln", "norm"),))
    (Rename(theirs=('{base}ln',), ours=('encoder.norm',)),)
    """
    return tuple(_rename(op, theirs.__add__, ours.__add__) for op in ops)


def _rename(op: Op, theirs: Callable[[str], str], ours: Callable[[str], str]) -> Op:
    names: dict[str, Any] = {"theirs": tuple(map(theirs, op.theirs)), "ours": tuple(map(ours, op.ours))}
    if isinstance(op, Tied):
        names["written"] = tuple(map(theirs, op.written))
    return replace(op, **names)


def _resized(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _same(tensors: Sequence[Tensor], names: Names) -> None:
    first = tensors[0]
    if not all(_equal_bits(first, other) for other in tensors[1:]):
        hint = "untie them in the config or keep only one of them"
        raise ConflictError(list(names), "tied tensors have different values", hint=hint)


def _equal_bits(one: Tensor, two: Tensor) -> bool:
    """Equal as bytes, so that NaN equals itself."""
    if one is two:
        return True
    if one.shape != two.shape or one.dtype != two.dtype:
        return False
    bits = [tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (one, two)]
    return torch.equal(*bits)
