"""Apply a weight table to a whole checkpoint, in either direction, leaving nothing unexplained."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.ops import BASE, Ignored, Op, Tied, fill

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
    explained = {name for op in rows for name in op.theirs}
    ignored = [name for op in rows if isinstance(op, Ignored) for name in op.theirs]
    unexpected = [
        key
        for name, key in keys.items()
        if name not in explained and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    found, missing, misshapen = dict[Op, list[str]](), list[str](), list[str]()
    for op in rows:
        names = [name for name in op.theirs if name in keys]
        if isinstance(op, Tied) and not names:
            missing.append(" or ".join(op.theirs))
        elif op.required and not isinstance(op, Tied):
            missing += [name for name in op.theirs if name not in keys]
        if isinstance(op, Ignored) or not names or (len(names) < len(op.theirs) and not isinstance(op, Tied)):
            continue
        found[op] = names
        if set(op.ours) <= set(expected):
            shapes = op.their_shapes([tuple(expected[name]) for name in op.ours])
            for name, shape in zip(op.theirs, shapes, strict=True):
                if name in keys and (actual := tuple(source[keys[name]].shape)) != shape:
                    misshapen.append(f"{keys[name]} is {actual} where {shape} is needed")
    missing += sorted(set(expected) - {name for op in rows for name in op.ours})  # no row makes them
    if missing or unexpected or misshapen:
        raise WeightsMismatchError(where, missing, unexpected, misshapen, described)
    state: dict[str, Tensor] = {}
    for op, names in found.items():
        state.update(zip(op.ours, op.load([source[keys[name]] for name in names]), strict=True))
    return state


def to_theirs(state: Mapping[str, Tensor], table: Table) -> dict[str, Tensor]:
    """Our state dict -> published tensors, every one of ours used."""
    rows = table.rows(table.base[0])
    if unused := set(state) - {name for op in rows for name in op.ours}:
        raise ValueError(f"no row of the table saves {sorted(unused)}")
    published: dict[str, Tensor] = {}
    for op in rows:
        if op.saved and (op.required or set(op.ours) <= set(state)):
            tensors = zip(op.theirs, op.save([state[name] for name in op.ours]), strict=True)
            published |= {name: tensor for name, tensor in tensors if name in op.saved}
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
