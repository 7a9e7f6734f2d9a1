"""Convert a checkpoint between published and Glassformer's tensor names; every tensor must match."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.messages import list_some, plural
from glassformer.weights.ops import BASE, Ignored, Op, Tied, fill_placeholder

# suffixes of norm parameters in old checkpoints
_OLD_SUFFIXES = {".gamma": ".weight", ".beta": ".bias"}


@dataclass(eq=False)
class WeightsMismatchError(GlassformerError):
    """The tensors of a file do not match the model.

    wrong_shapes: names with both shapes. config_file: the file that defines the model.
    """

    path: str | Path
    missing: list[str]
    unexpected: list[str]
    wrong_shapes: list[str]
    config_file: str = "config.json"

    def message(self) -> str:
        parts = [
            f"{len(names)} {plural('tensor', len(names))} {problem}: {list_some(names, 3)}"
            for names, problem in (
                (self.missing, "missing"),
                (self.unexpected, "not in the model"),
                (self.wrong_shapes, "of the wrong shape"),
            )
            if names
        ]
        return f"{self.path}: {'; '.join(parts)}; check that {self.config_file} belongs to these weights"


@dataclass(frozen=True)
class WeightTable:
    """The weight operations of one model, and the possible values of `{base}` in the names.

    Published files of a bare model and of the same model with a head differ by a prefix. `base` lists the
    prefixes that a file may have; the best match is used for loading, the first one for saving:
    `base=("bert.", "")` with a head, `base=("", "bert.")` for a bare model.
    """

    ops: tuple[Op, ...]
    base: tuple[str, ...] = ("",)

    def rows(self, prefix: str) -> tuple[Op, ...]:
        """Return the operations with `{base}` replaced by `prefix`."""
        return tuple(fill_placeholder(op, "base", prefix) for op in self.ops)

    def fit(self, names: Iterable[str]) -> tuple[Op, ...]:
        """Return the operations with the prefix that matches most of these names."""
        present = set(names)
        templates = [name for op in self.ops for name in op.theirs if BASE in name]

        def matches(prefix: str) -> int:
            return sum(name.replace(BASE, prefix) in present for name in templates)

        return self.rows(max(self.base, key=matches))


def to_ours(
    source: Mapping[str, Tensor],
    table: WeightTable,
    expected: Mapping[str, Sequence[int]],
    *,
    where: str | Path,
    config_file: str = "config.json",
) -> dict[str, Tensor]:
    """Convert published tensors to Glassformer's state dict; views of the source if the layout allows.

    source: may be lazy; only shapes are read until everything is known to match. expected: Glassformer's
    names with their shapes. where, config_file: the source and the file that defines the model, for errors.
    """
    keys = _normalize_names(source, table)
    rows = table.fit(keys)
    known = {name for op in rows for name in op.theirs}
    ignored = [name for op in rows if isinstance(op, Ignored) for name in op.theirs]
    unexpected = [
        key
        for name, key in keys.items()
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in ignored)
    ]
    sources, missing, wrong_shapes = dict[Op, list[str]](), list[str](), list[str]()
    for op in rows:
        names = [name for name in op.theirs if name in keys]
        if isinstance(op, Tied) and not names:
            missing.append(" or ".join(op.theirs))
        elif op.required and not isinstance(op, Tied):
            missing += [name for name in op.theirs if name not in keys]
        if isinstance(op, Ignored) or not names or (len(names) < len(op.theirs) and not isinstance(op, Tied)):
            continue
        sources[op] = names
        if set(op.ours) <= set(expected):
            shapes = op.their_shapes([tuple(expected[name]) for name in op.ours])
            for name, shape in zip(op.theirs, shapes, strict=True):
                if name in keys and (actual := tuple(source[keys[name]].shape)) != shape:
                    wrong_shapes.append(f"{keys[name]} is {actual} instead of {shape}")
    missing += sorted(set(expected) - {name for op in rows for name in op.ours})  # no operation produces them
    if missing or unexpected or wrong_shapes:
        raise WeightsMismatchError(where, missing, unexpected, wrong_shapes, config_file)
    state: dict[str, Tensor] = {}
    for op, names in sources.items():
        state.update(zip(op.ours, op.load([source[keys[name]] for name in names]), strict=True))
    return state


def to_theirs(state: Mapping[str, Tensor], table: WeightTable) -> dict[str, Tensor]:
    """Convert Glassformer's state dict to published tensors; every tensor must be used."""
    rows = table.rows(table.base[0])
    if unused := set(state) - {name for op in rows for name in op.ours}:
        raise ValueError(f"no operation of the table saves {sorted(unused)}")
    published: dict[str, Tensor] = {}
    for op in rows:
        if op.saved_names and (op.required or set(op.ours) <= set(state)):
            tensors = zip(op.theirs, op.save([state[name] for name in op.ours]), strict=True)
            published |= {name: tensor for name, tensor in tensors if name in op.saved_names}
    return published


def _normalize_names(source: Mapping[str, Tensor], table: WeightTable) -> dict[str, str]:
    """Map current tensor names to the names in the source, which may have old suffixes."""
    known = {name for prefix in table.base for op in table.rows(prefix) for name in op.theirs}
    keys: dict[str, str] = {}
    for key in source:
        name = key
        for old, new in _OLD_SUFFIXES.items():
            if key.endswith(old) and key not in known:
                name = key.removesuffix(old) + new
        # if a file has both names, the old one is reported as unexpected
        keys[key if name in source else name] = key
    return keys
