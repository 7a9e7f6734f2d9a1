"""A published `config.json`, read key by key."""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError
from glassformer.json_text import read_json
from glassformer.weights.store import open_weights

Value = TypeVar("Value")


@dataclass(eq=False)
class UnsupportedConfigError(GlassformerError):
    """A published config requires something unsupported. supported: the values that are."""

    path: str
    key: str
    value: Any
    supported: str
    hint: str = ""
    template: ClassVar[str] = "{path}: {key} = {value!r:.60} is not supported; supported: {supported}"


class Config:
    """A published `config.json`, read key by key; missing, ill-typed or unsupported values are errors.

    Some properties of a model are in other JSON files (`read_sibling`) or in the names of its tensors
    (`names`). Both are read from `folder` on demand, or passed in.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str = "config.json",
        folder: Path | None = None,
        *,
        files: Mapping[str, Any] | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.values = dict(values)
        self.where = where
        self.folder = folder
        self.files = dict(files or {})  # other JSON files of the folder, passed in or read so far
        self._names = names
        if self.values.get("quantization_config") is not None:
            raise UnsupportedConfigError(where, "quantization_config", "...", "an unquantized checkpoint")

    @property
    def architecture(self) -> str:
        names = self.values.get("architectures") or [self.values.get("_class_name")]  # of diffusers
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise MissingValueError(f"{self.where}: architectures", "to know the model's class")
        return names[0]

    def read_sibling(self, name: str) -> Any:
        """Return the content of the JSON file `name` in the same folder; None if there is none."""
        if name not in self.files and self.folder is not None and (self.folder / name).is_file():
            self.files[name] = read_json(self.folder / name)
        return self.files.get(name)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the folder's tensors; empty without a folder."""
        if self._names is not None or self.folder is None:
            return frozenset(self._names or ())
        with open_weights(self.folder) as weights:
            return frozenset(weights)

    @property
    def num_labels(self) -> int:
        return len(self.get("id2label", {})) or self.get("num_labels", 2)

    @property
    def has_pooler(self) -> bool:
        """Whether a bare encoder has a pooler, which many published files leave out.

        The tensors decide; the key `add_pooling_layer` is used only if there are none.
        """
        declared = self.get("add_pooling_layer", True)
        if not self.names:
            return declared
        return any(name.endswith(("pooler.dense.weight", "pooler.weight")) for name in self.names)

    def get(self, key: str, default: Value, *aliases: str) -> Value:
        """Return the value of `key` or an alias, or the default if absent; checks for the default's type."""
        for name in (key, *aliases):
            if name in self.values and (self.values[name] is not None or default is None):
                return self._typed(name, self.values[name], default)
        return default

    def nested(self, key: str, **changes: Any) -> Config:
        """Return the config of a part, an object under `key`, with some changes; empty if it is absent."""
        return Config({**self.get(key, {}), **changes}, f"{self.where}: {key}")

    def maybe(self, key: str, kind: type[Value]) -> Value | None:
        """Return the value of an optional key of type `kind`; None if it is null or absent."""
        value = self.values.get(key)
        return None if value is None else self._typed(key, value, kind())

    def need(self, key: str, kind: type[Value], *aliases: str) -> Value:
        """Return the value of a required key of type `kind`."""
        for name in (key, *aliases):
            if self.values.get(name) is not None:
                return self._typed(name, self.values[name], kind())
        raise MissingValueError(f"{self.where}: {key}", "for this architecture")

    def only(self, key: str, *supported: Any, default: Any = None) -> Any:
        """Return the value of a key; raise if it is not one of the supported values."""
        value = self.values.get(key, default)
        if value not in supported:
            raise UnsupportedConfigError(self.where, key, value, " or ".join(repr(s) for s in supported))
        return value

    def choose(self, key: str, table: Mapping[Any, Value], default: Any) -> Value:
        """Return `table[value of key]`; raise if the table has no such entry."""
        value = self.values.get(key, default)
        if not isinstance(value, Hashable) or value not in table:
            raise UnsupportedConfigError(self.where, key, value, ", ".join(str(name) for name in table))
        return table[value]

    def _typed(self, key: str, value: Any, like: Value) -> Value:
        if like is None or value is None:
            return value
        kind = type(like)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidValueError(f"{self.where}: {key}", value, "a finite number")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidValueError(f"{self.where}: {key}", value, f"a value of type {kind.__name__}")
        return value
