"""Apply a weight table to a whole checkpoint, in either direction, leaving nothing unexplained."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.ops import BASE, Computed, Ignored, Op, Tied, fill, open_blanks

SHOWN = 3  # names in a message; the rest are counted

# Norm parameters were once published under these endings.
_OLD_ENDINGS = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(eq=False)
class WeightsMismatchError(GlassformerError):
    """The tensors of a file are not those of the model.

    misshapen: names with both shapes.    described: the file that defines the model.
    """

    path: str | Path
    missing: list[str]
    unexpected: list[str]
    misshapen: list[str]
    described: str = "config.json"

    def message(self) -> str:
        parts = [
            f"{len(names)} tensor{'s' * (len(names) != 1)} {what}: {_some(names)}"
            for names, what in (
                (self.missing, "missing"),
                (self.unexpected, "not in the model"),
                (self.misshapen, "of the wrong shape"),
            )
            if names
        ]
        return f"{self.path}: {'; '.join(parts)}; check that {self.described} belongs to these weights"


def _some(names: list[str]) -> str:
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


@dataclass(frozen=True)
class Table:
    """The rows of one model, with the alternatives for the blank `{base}` in their names.

    Published files of a bare model and of the same model under a head differ by a prefix. `base`
    lists the prefixes a file may have; the one that fits best is used for loading, the first for
    saving: `base=("bert.", "")` under a head, `base=("", "bert.")` bare.
    """

    ops: tuple[Op, ...]
    base: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        for side in ("theirs", "ours"):
            names = [name for op in self.ops for name in getattr(op, side)]
            if open_ := open_blanks(names) - {"base"}:
                raise ValueError(f"blanks left open in {side}: {sorted(open_)}")
            if twice := [name for name, count in Counter(names).items() if count > 1]:
                raise ValueError(f"named twice in {side}: {twice}")

    def rows(self, prefix: str) -> tuple[Op, ...]:
        """The rows with `{base}` filled in."""
        return tuple(fill(op, "base", prefix) for op in self.ops)

    def fit(self, names: Iterable[str]) -> tuple[Op, ...]:
        """The rows under the prefix that explains the most of the given names."""
        present = set(names)
        marked = [name for op in self.ops for name in op.theirs if BASE in name]

        def explained(prefix: str) -> int:
            return sum(name.replace(BASE, prefix) in present for name in marked)

        return self.rows(max(self.base, key=explained))


def to_ours(
    source: Mapping[str, Tensor],
    table: Table,
    expected: Mapping[str, Sequence[int]],
    *,
    where: str | Path,
    described: str = "config.json",
) -> dict[str, Tensor]:
    """Published tensors -> our state dict, views of the source where the layout allows.

    `source` may be lazy: until everything is known to fit, only shapes are looked at.
    `expected` maps every one of our names to its shape; `where` and `described`, the file that defines the
    model, are named in errors.
    """
    keys = _normalize_names(source, table)
    rows = table.fit(keys)
    found = {op: _found(op, keys) for op in rows}

    missing = [name for op, names in found.items() for name in _missing(op, names, keys)]
    explained = {name for op in rows for name in op.theirs}
    patterns = [name for op in rows if isinstance(op, Ignored) for name in op.theirs]
    unexpected = [
        key
        for name, key in keys.items()
        if name not in explained and not any(fnmatchcase(name, each) for each in patterns)
    ]
    unmade = set(expected) - {name for op in rows for name in op.ours}
    missing += sorted(unmade)  # no row makes them, so the file cannot hold them
    if beyond := {name for op in rows for name in op.ours} - set(expected):
        raise ValueError(f"the table makes tensors that the model does not have: {sorted(beyond)}")
    misshapen = [
        f"{keys[name]} is {_shape(actual)} where {_shape(wanted)} is needed"
        for op, names in found.items()
        for name, wanted in _their_shapes(op, names, expected).items()
        if (actual := tuple(source[keys[name]].shape)) != wanted
    ]
    if missing or unexpected or misshapen:
        raise WeightsMismatchError(where, missing, unexpected, misshapen, described)

    state: dict[str, Tensor] = {}
    for op, names in found.items():
        if not names:
            continue
        tensors = op.load([source[keys[name]] for name in names])
        for name, tensor in zip(op.ours, tensors, strict=True):
            if tuple(tensor.shape) != tuple(expected[name]):
                raise ValueError(f"{op} makes {name} {tuple(tensor.shape)}, not {expected[name]}")
            state[name] = tensor
    return state


def to_theirs(state: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """Our state dict -> published tensors, every one of ours used."""
    rows = table.rows(table.base[0])
    if unused := set(state) - {name for op in rows for name in op.ours}:
        raise ValueError(f"no row of the table saves {sorted(unused)}")
    published: dict[str, Tensor] = {}
    for op in rows:
        written = _written(op)
        if not written or (isinstance(op, Computed) and not set(op.ours) <= set(state)):
            continue
        tensors = op.save([state[name] for name in op.ours])
        pairs = zip(op.theirs, tensors, strict=True)
        published.update((name, tensor) for name, tensor in pairs if name in written)
    return published


def _normalize_names(source: Mapping[str, Tensor], table: Table) -> dict[str, str]:
    """The names to look for -> the names in the source, with old endings brought up to date."""
    known = {name for prefix in table.base for op in table.rows(prefix) for name in op.theirs}
    keys: dict[str, str] = {}
    for key in source:
        name = key
        for old, new in _OLD_ENDINGS.items():
            if key.endswith(old) and key not in known:
                name = key.removesuffix(old) + new
        # A file with both spellings keeps the old one apart, to be reported as unexpected.
        keys[key if name in source else name] = key
    return keys


def _found(op: Op, keys: Mapping[str, str]) -> tuple[str, ...]:
    """The names of this row to read: all of them, or those that a file may hold."""
    match op:
        case Ignored():
            return ()
        case Tied():
            return tuple(name for name in op.theirs if name in keys)
        case _:
            return tuple(op.theirs) if all(name in keys for name in op.theirs) else ()


def _missing(op: Op, found: tuple[str, ...], keys: Mapping[str, str]) -> tuple[str, ...]:
    if found:
        return ()
    match op:
        case Ignored() | Computed():
            return ()
        case Tied():
            return (" or ".join(op.theirs),)
        case _:
            return tuple(name for name in op.theirs if name not in keys)


def _their_shapes(
    op: Op, found: tuple[str, ...], expected: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """The shapes the file must have for our model to have its own."""
    if not found or not set(op.ours) <= set(expected):
        return {}
    ours = [tuple(expected[name]) for name in op.ours]
    shapes = dict(zip(op.theirs, op.their_shapes(ours), strict=True))
    return {name: shapes[name] for name in found}


def _written(op: Op) -> frozenset[str]:
    match op:
        case Ignored():
            return frozenset()
        case Tied():
            return frozenset(op.written)
        case Computed():
            return frozenset(op.theirs) if op.written else frozenset()
        case _:
            return frozenset(op.theirs)


def _shape(shape: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, shape)) + ")"
