"""Weights on disk: safetensors files, in one piece or in shards, memory-mapped when read."""

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.header import (
    DTYPES,
    LENGTH_BYTES,
    METADATA,
    Entry,
    header_bytes,
    parse_header,
    unique,
)
from glassformer.weights.replacing import make_folder, replacing

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000

_WEIGHT_FILES = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_PICKLES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder by name, each a view of the memory-mapped file.

    Nothing is read until a tensor's numbers are. Writing to a tensor changes memory only, never
    the file. Tensors already taken stay good after `close`.
    """

    def __init__(self, folder: Path, files: Iterable["_File"]) -> None:
        self.folder = folder
        self._places = {name: (file, file.entries[name]) for file in files for name in file.entries}

    def __getitem__(self, name: str) -> Tensor:
        file, entry = self._places[name]
        data = file.data[entry.start : entry.stop]
        if entry.start % entry.dtype.itemsize:
            data = data.clone()  # not aligned in the file, so no view of it can have this dtype
        return data.view(entry.dtype).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, (_, entry) in self._places.items()}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: entry.dtype for name, (_, entry) in self._places.items()}

    @property
    def nbytes(self) -> int:
        return sum(entry.stop - entry.start for _, entry in self._places.values())

    def close(self) -> None:
        """Let go of the files; no name is left."""
        self._places.clear()


@dataclass(frozen=True)
class _File:
    """One file: its bytes, mapped, and where its tensors lie."""

    data: Tensor
    entries: dict[str, Entry]


def open_weights(folder: str | Path) -> Weights:
    """Open a folder's `model.safetensors`, or the shards its index names, headers checked."""
    folder = Path(folder)
    if not folder.is_dir():
        raise GlassformerError(f"There is no folder {folder}; give the folder of a saved model.")
    whole, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if whole.is_file():
        return Weights(folder, [_open(whole)])
    if index.is_file():
        return Weights(folder, _open_shards(index))
    for pattern in _PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise GlassformerError(
                f"{folder} holds its weights only as {path.name}, and pickles and their like are "
                "never read here because reading one can run code; convert the folder elsewhere "
                f'with the reference library: AutoModel.from_pretrained("{folder}")'
                '.save_pretrained("OUT", safe_serialization=True).'
            )
    raise GlassformerError(f"{folder} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}.")


def save_weights(
    folder: str | Path, state: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES
) -> tuple[str, ...]:
    """Write the tensors into `folder`, in shards where they are bigger than one; the file names.

    Safe where `state` is mapped from that very folder: new files take the place of old ones only
    when whole. Weight files of an earlier save that are no longer meant are removed.
    """
    folder = Path(folder)
    for name, tensor in state.items():
        if name == METADATA or tensor.dtype not in _DTYPE_NAMES:
            raise GlassformerError(f"The tensor {name} ({tensor.dtype}) cannot be saved.")
    try:
        make_folder(folder)
    except OSError as error:
        raise GlassformerError(f"Could not make the folder {folder}: {error.strerror}.") from error
    shards = _shards(state, max_shard_bytes)
    if len(shards) == 1:
        names = [WEIGHTS_FILE]
    else:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file_name, shard in zip(names, shards, strict=True):
        with replacing(folder / file_name) as file:
            _write(file, {name: state[name] for name in shard})
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_size, state.values()))},
            "weight_map": {
                name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard
            },
        }
        with replacing(folder / INDEX_FILE) as file:
            file.write(json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")
        names.append(INDEX_FILE)
    try:
        for path in folder.iterdir():
            if path.name not in names and _WEIGHT_FILES.fullmatch(path.name):
                path.unlink()
    except OSError as error:
        raise GlassformerError(f"Could not clear old weights from {folder}: {error.strerror}.") from error
    return tuple(names)


def _open(path: Path) -> _File:
    """Map a file copy-on-write and check its header."""
    data = torch.empty(0, dtype=torch.uint8)
    try:
        size = path.stat().st_size
        if size:  # nothing cannot be mapped
            data.set_(torch.UntypedStorage.from_file(str(path), False, size))  # type: ignore[arg-type]
    except (OSError, RuntimeError) as error:
        raise GlassformerError(f"Could not read {path}; check its permissions.") from error
    first = data[:LENGTH_BYTES].numpy().tobytes()
    end = LENGTH_BYTES + header_bytes(path, first, size)
    return _File(data, parse_header(path, data[:end].numpy().tobytes(), size))


def _open_shards(index: Path) -> list[_File]:
    places = _weight_map(index)
    files = []
    for shard in sorted(set(places.values())):
        path = index.parent / shard
        if Path(shard).name != shard:
            raise GlassformerError(f"{index} names the shard {shard!r}, which is not beside it.")
        if not path.is_file():
            raise GlassformerError(f"{index} names the shard {shard}, which does not exist.")
        files.append(_open(path))
        held = set(files[-1].entries)
        listed = {name for name, place in places.items() if place == shard}
        if absent := sorted(listed - held):
            raise GlassformerError(f"{index} lists {absent[0]} in {shard}, which does not have it.")
        if extra := sorted(held - listed):
            raise GlassformerError(f"{path} holds {extra[0]}, which {index} does not list there.")
    return files


def _weight_map(index: Path) -> dict[str, str]:
    try:
        places = json.loads(index.read_bytes(), object_pairs_hook=unique)["weight_map"]
        if not all(isinstance(shard, str) for shard in places.values()):
            raise TypeError("a shard is not named by text")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise GlassformerError(f"{index} is not a sound index of shards ({error!r}).") from error
    return dict(places)


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _shards(state: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """The names, sorted, cut into runs of at most `limit` bytes (a bigger tensor stays alone)."""
    shards: list[list[str]] = [[]]
    room = limit
    for name in sorted(state):
        size = _size(state[name])
        if size > room and shards[-1]:
            shards.append([])
            room = limit
        shards[-1].append(name)
        room -= size
    return shards


def _write(file: BinaryIO, state: Mapping[str, Tensor]) -> None:
    """One safetensors file: widest dtypes first, so that every tensor is aligned."""
    names = sorted(state, key=lambda name: (-state[name].dtype.itemsize, name))
    header: dict[str, object] = {METADATA: {"format": "pt"}}
    position = 0
    for name in names:
        tensor = state[name]
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + _size(tensor)],
        }
        position += _size(tensor)
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (math.ceil(len(text) / LENGTH_BYTES) * LENGTH_BYTES - len(text))
    file.write(len(text).to_bytes(LENGTH_BYTES, "little") + text)
    for name in names:  # one at a time, so that only one is ever copied to be made contiguous
        if state[name].numel():
            flat = state[name].detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            file.write(flat.contiguous().view(torch.uint8).numpy().data)
