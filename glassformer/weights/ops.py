"""Reversible operations between published tensors ("theirs") and Glassformer's tensors ("ours").

Every operation works in both directions: `load` converts published tensors to Glassformer's, `save` converts
them back, and the two are exact inverses. A family's weight table is a tuple of operations. The result of
`load` is a view if possible, so that a memory-mapped file is not copied.

Names: `{a,b}` is a list, as in a shell: `self_attn.{q,k,v}_proj.weight` is three names. `{i}` is a
placeholder that `expand` fills: `h.{i}.ln.{p}` with `i=12, p=("weight", "bias")` is 24 names. `{base}` is the
published prefix, which is determined when a file is read.

G groups (key/value heads), R queries per group, H heads, K head_dim.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import product
from typing import Any, ClassVar

import torch
from torch import Tensor

from glassformer.errors import ConflictError
from glassformer.json_text import as_list

BASE = "{base}"
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")

Names = str | tuple[str, ...]
Tensors = tuple[Tensor, ...]
Shape = tuple[int, ...]


def expand_lists(names: Names) -> tuple[str, ...]:
    """Expand every `{a,b}` list; the leftmost list varies slowest.

    >>> expand_lists("{q,k}.{weight,bias}")
    ('q.weight', 'q.bias', 'k.weight', 'k.bias')
    """
    expanded: list[str] = []
    for name in as_list(names):
        parts = [part.split(",") if n % 2 else [part] for n, part in enumerate(_LIST.split(name))]
        expanded += map("".join, product(*parts))
    return tuple(expanded)


def placeholders(names: Iterable[str]) -> set[str]:
    """Return the placeholders in these names.

    >>> sorted(placeholders(("{base}h.{i}.weight",)))
    ['base', 'i']
    """
    return {key for name in names for key in _PLACEHOLDER.findall(name)}


@dataclass(frozen=True)
class Op:
    """One entry of a weight table: converts the tensors named `theirs` to those named `ours`, and back."""

    theirs: Names
    ours: Names
    required: ClassVar[bool] = True  # whether a file must contain them

    def __post_init__(self) -> None:
        object.__setattr__(self, "theirs", expand_lists(self.theirs))
        object.__setattr__(self, "ours", expand_lists(self.ours))

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The published names that are saved."""
        return tuple(self.theirs)

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        """Convert published tensors to Glassformer's, in the order of `self.ours`."""
        return tuple(theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        """Convert Glassformer's tensors to published ones, in the order of `self.theirs`."""
        return tuple(ours)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        """Return the shapes of the result of `save`."""
        return tuple(ours)


@dataclass(frozen=True)
class Rename(Op):
    """Rename a tensor."""


@dataclass(frozen=True)
class Transpose(Op):
    """Transpose a weight from (in, out) to the (out, in) of nn.Linear; a bias is unchanged."""

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.t() for tensor in theirs)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return tuple(tensor.t() for tensor in ours)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(shape[::-1] for shape in ours)


@dataclass(frozen=True)
class Reshape(Op):
    """Reshape a tensor, e.g. from (1, 1, D) to (D,)."""

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
    """Split one published tensor into several of the given sizes along `dim`.

    transpose: the published weight is (in, out); `dim` always refers to Glassformer's layout (out, in).
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
        fused = _resize(ours[0], self.dim, sum(self.sizes))
        return (fused[::-1] if self.transpose else fused,)


@dataclass(frozen=True)
class Concat(Op):
    """Concatenate several published tensors, of the given sizes along `dim`, into one."""

    _: KW_ONLY
    sizes: tuple[int, ...]
    dim: int = 0

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return (torch.cat(tuple(theirs), self.dim),)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return ours[0].split(self.sizes, self.dim)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return tuple(_resize(ours[0], self.dim, size) for size in self.sizes)


@dataclass(frozen=True)
class SplitGroups(Op):
    """Split fused query, key and value rows, interleaved by group, of a weight or a bias.

    Published rows: G groups of [R query heads, 1 key head, 1 value head], each head of K rows.
    Result, in this order: q (G*R*K rows), k (G*K rows), v (G*K rows).
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
        return (_resize(ours[0], 0, self.groups * (self.queries + 2) * self.head_dim),)


@dataclass(frozen=True)
class PermuteRotary(Op):
    """Convert rotary rows from interleaved (pairs 2j, 2j+1) to half-split (pairs j, j + width/2).

    For weights (H*K, D), biases (H*K,) and per-head norms (H, K). Only the first `width` rows of
    a head are rotated (None: all); the rest are unchanged.
    """

    _: KW_ONLY
    num_heads: int
    head_dim: int
    width: int | None = None

    def _rows(self) -> Tensor:
        """Return the published row index of each row of a head: (K,)."""
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
    """One tensor with several names; a file may have any of the published names, with equal values.

    save_as: the published names to save, by default the first. All names in `ours` get the same tensor.
    """

    _: KW_ONLY
    save_as: Names = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "save_as", expand_lists(self.save_as) or self.theirs[:1])

    @property
    def saved_names(self) -> tuple[str, ...]:
        return tuple(self.save_as)

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        """Take one of the tensors in the file (at least one); all must be bit-identical."""
        _check_equal(theirs, self.theirs)
        return (theirs[0],) * len(self.ours)

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        """Return the tensor for every published name; only those in `save_as` are saved."""
        _check_equal(ours, self.ours)
        return (ours[0],) * len(self.theirs)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return (ours[0],) * len(self.theirs)


@dataclass(frozen=True)
class Computed(Rename):
    """A tensor that is computed from the configuration, such as a sinusoidal table.

    It is loaded if the file has it, else computed by the module. persistent: whether it is saved. Each
    operation has one name, because each tensor may be absent.
    """

    _: KW_ONLY
    persistent: bool = False
    required = False

    @property
    def saved_names(self) -> tuple[str, ...]:
        return tuple(self.theirs) if self.persistent else ()


@dataclass(frozen=True)
class Ignored(Op):
    """Published tensors that are not needed (`*` is a wildcard): accepted, never saved."""

    ours: Names = ()
    required = False

    @property
    def saved_names(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True)
class Constant(Op):
    """A published tensor that Glassformer computes itself: accepted, and saved with this value."""

    ours: Names = ()
    _: KW_ONLY
    value: Tensor
    required = False

    def load(self, theirs: Sequence[Tensor]) -> Tensors:
        return ()

    def save(self, ours: Sequence[Tensor]) -> Tensors:
        return (self.value,)

    def their_shapes(self, ours: Sequence[Shape]) -> tuple[Shape, ...]:
        return (tuple(self.value.shape),)


def expand(ops: Iterable[Op], **values: int | Iterable[object]) -> tuple[Op, ...]:
    """Fill placeholders: repeat each operation for every value of its placeholders.

    >>> expand((Rename("h.{i}.{p}", "blocks.{i}.norm.{p}"),), i=1, p=("weight",))
    (Rename(theirs=('h.0.weight',), ours=('blocks.0.norm.weight',)),)
    """
    choices = {key: tuple(range(value) if isinstance(value, int) else value) for key, value in values.items()}
    rows: list[Op] = []
    for op in ops:
        present = [key for key in choices if key in placeholders((*op.theirs, *op.ours))]
        for combination in product(*(choices[key] for key in present)):
            row = op
            for key, value in zip(present, combination, strict=True):
                row = fill_placeholder(row, key, value)
            rows.append(row)
    return tuple(rows)


def fill_placeholder(op: Op, key: str, value: object) -> Op:
    """Fill one placeholder in all names of an operation."""

    def replace_key(name: str) -> str:
        return name.replace("{" + key + "}", str(value))

    return rename_op(op, replace_key, replace_key)


def add_prefix(theirs: str, ours: str, ops: Iterable[Op]) -> tuple[Op, ...]:
    """Add one prefix to all published names and another to all Glassformer names.

    >>> add_prefix("{base}", "encoder.", (Rename("ln", "norm"),))
    (Rename(theirs=('{base}ln',), ours=('encoder.norm',)),)
    """
    return tuple(rename_op(op, theirs.__add__, ours.__add__) for op in ops)


def rename_op(op: Op, theirs: Callable[[str], str], ours: Callable[[str], str]) -> Op:
    """Change all published names of an operation by one function, and all Glassformer names by another."""
    names: dict[str, Any] = {"theirs": tuple(map(theirs, op.theirs)), "ours": tuple(map(ours, op.ours))}
    if isinstance(op, Tied):
        names["save_as"] = tuple(map(theirs, op.save_as))
    return replace(op, **names)


def _resize(shape: Shape, dim: int, size: int) -> Shape:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _check_equal(tensors: Sequence[Tensor], names: Names) -> None:
    first = tensors[0]
    if not all(_equal_bits(first, other) for other in tensors[1:]):
        hint = "untie them in the config or keep only one of them"
        raise ConflictError(list(names), "tied tensors have different values", hint=hint)


def _equal_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are bit-identical; NaN equals itself."""
    if a is b:
        return True
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = [tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (a, b)]
    return torch.equal(*bits)
