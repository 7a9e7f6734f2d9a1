"""The slices that several ranks wrote of one group of tensors, read as whole tensors without any ranks."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.header import DTYPES
from glassformer.weights.store import save_weights

_PLACES = "DCP_SHARDING_INFO"  # the key of a header's metadata under which torch's writer puts the places
_ONE_FILE = 1 << 62  # bytes: never split


@dataclass(frozen=True)
class _Slice:
    """Part of a tensor: in which file, where in the whole it begins, how large it is."""

    file: Any
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(b + size for b, size in zip(self.begin, self.shape, strict=True))


class Slices(Mapping[str, Tensor]):
    """The tensors of a folder of shards by name; one is put together each time it is asked for.

    A folder with a whole `model.safetensors` is read alike.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("*.safetensors"))
        self._slices: dict[str, list[_Slice]] = {}
        for path in self.files:
            try:
                for name, found in _read(path):
                    self._slices.setdefault(name, []).append(found)
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                raise GlassformerError(f"{path} is not a sound shard ({error}).") from error
        self.shapes = {name: _shape(folder, name, found) for name, found in self._slices.items()}

    def __getitem__(self, name: str) -> Tensor:
        slices = self._slices[name]
        whole = torch.empty(self.shapes[name], dtype=slices[0].dtype)
        for part in slices:
            place = tuple(slice(b, e) for b, e in zip(part.begin, part.end, strict=True))
            whole[place] = part.file.get_tensor(name)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._slices)

    def __len__(self) -> int:
        return len(self._slices)

    def outlines(self) -> dict[str, Tensor]:
        """Each tensor's shape and dtype, without its numbers."""
        return {
            name: torch.empty(shape, dtype=self._slices[name][0].dtype, device="meta")
            for name, shape in self.shapes.items()
        }


def consolidate(checkpoint: str | Path, out: str | Path | None = None) -> Path:
    """Join the weights of a sharded checkpoint into one `model.safetensors`, one tensor at a time in memory.

    `checkpoint` is a folder `step-...`; `out` the folder to write into, the checkpoint's `joined` by default.
    """
    checkpoint = Path(checkpoint)
    weights = checkpoint / "model"
    slices = Slices(weights)
    if not slices:
        raise GlassformerError(f"{weights} holds no shards; give the folder of one checkpoint (step-...).")
    folder = checkpoint / "joined" if out is None else Path(out)
    (name,) = save_weights(folder, slices, max_shard_bytes=_ONE_FILE)
    return folder / name


def _read(path: Path) -> Iterator[tuple[str, _Slice]]:
    file = safe_open(path, framework="pt")
    places = json.loads((file.metadata() or {}).get(_PLACES, "{}"))
    for name in file.keys():  # noqa: SIM118 - no mapping
        view = file.get_slice(name)
        shape = tuple(view.get_shape())
        begin = tuple(places[name]["saved_offsets"]) if places else (0,) * len(shape)
        if len(begin) != len(shape):
            raise ValueError(f"the place of {name} has {len(begin)} numbers and not {len(shape)}")
        yield name, _Slice(file, begin, shape, DTYPES[view.get_dtype()])


def _shape(folder: Path, name: str, slices: list[_Slice]) -> tuple[int, ...]:
    """The whole tensor's shape; every number of it must be in one slice."""
    shape = tuple(map(max, zip(*(part.end for part in slices), strict=True)))
    held = sum(math.prod(part.shape) for part in slices)
    if held != math.prod(shape) or len({part.dtype for part in slices}) > 1:
        raise GlassformerError(
            f"{folder} holds {held} numbers of {name} where {shape} needs "
            f"{math.prod(shape)}; a shard is missing."
        )
    return shape
