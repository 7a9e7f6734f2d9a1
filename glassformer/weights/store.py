"""Weights on disk: safetensors files, whole or in shards, memory-mapped when read.

A file is 8 bytes (the header's length, little-endian), the header (JSON), then the tensors' bytes:
    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
The header is checked in full before any tensor is touched.
"""

import gc
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

import torch
from torch import Tensor

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError, UnsupportedError
from glassformer.weights.atomic_write import atomic_write, make_folder

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
METADATA = "__metadata__"
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U64": torch.uint64,
    "U32": torch.uint32,
    "U16": torch.uint16,
    "U8": torch.uint8,
    "BOOL": torch.bool,
    "C64": torch.complex64,
}

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_SHARD_BYTES = 5_000_000_000

_WEIGHT_FILES = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index\.json")
_PICKLES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(eq=False)
class PickleRefusedError(GlassformerError):
    """The weights are only there in a format that can run code when it is read."""

    path: str | Path
    template: ClassVar[str] = (
        "{path} is a pickle or similar, which is never loaded because that can run code; convert the folder "
        'with transformers: AutoModel.from_pretrained("FOLDER").save_pretrained("OUT")'
    )


@contextmanager
def pause_gc() -> Iterator[None]:
    """Disable garbage collection while a model is read, which creates many objects and no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@dataclass(frozen=True)
class Entry:
    """The location of one tensor: bytes `start` to `stop` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder by name, each a view of the memory-mapped file.

    Nothing is read until a tensor's values are. Writing to a tensor changes memory only, never the
    file. Tensors obtained before `close` stay valid.
    """

    def __init__(self, folder: Path, files: Iterable["_File"]) -> None:
        self.folder = folder
        self._entries = {name: (file, file.entries[name]) for file in files for name in file.entries}

    def __getitem__(self, name: str) -> Tensor:
        file, entry = self._entries[name]
        data = file.data[entry.start : entry.stop]
        if entry.start % entry.dtype.itemsize:
            data = data.clone()  # not aligned in the file
        return data.view(entry.dtype).view(entry.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: entry.shape for name, (_, entry) in self._entries.items()}

    @property
    def dtypes(self) -> dict[str, torch.dtype]:
        return {name: entry.dtype for name, (_, entry) in self._entries.items()}

    @property
    def nbytes(self) -> int:
        return sum(entry.stop - entry.start for _, entry in self._entries.values())

    def close(self) -> None:
        """Release the files; no name is left."""
        self._entries.clear()


@dataclass(frozen=True)
class _File:
    """One file: its mapped bytes and its tensors."""

    data: Tensor
    entries: dict[str, Entry]


def open_weights(folder: str | Path) -> Weights:
    """Open a folder's `model.safetensors`, or the shards its index names, headers checked."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileMissingError(folder, "model folder")
    whole, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if whole.is_file():
        return Weights(folder, [_open(whole)])
    if index.is_file():
        return Weights(folder, _open_shards(index))
    for pattern in _PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise PickleRefusedError(path)
    raise FileMissingError(whole, "weights file")


def save_weights(
    folder: str | Path, state: Mapping[str, Tensor], max_shard_bytes: int = MAX_SHARD_BYTES
) -> tuple[str, ...]:
    """Write the tensors into `folder`, in shards if they exceed one; returns the file names.

    Safe if `state` is mapped from the same folder: new files replace old ones only when complete.
    Weight files of an earlier save that are not part of this one are removed.
    """
    folder = Path(folder)
    for name, tensor in state.items():
        if name == METADATA or tensor.dtype not in _DTYPE_NAMES:
            raise UnsupportedError("safetensors", f"tensor {name} of {tensor.dtype}")
    try:
        make_folder(folder)
    except OSError as error:
        raise FileProblemError(folder, f"cannot be created ({error.strerror})") from error
    shards = _shards(state, max_shard_bytes)
    if len(shards) == 1:
        names = [WEIGHTS_FILE]
    else:
        names = [f"model-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file_name, shard in zip(names, shards, strict=True):
        with atomic_write(folder / file_name) as file:
            _write(file, {name: state[name] for name in shard})
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_size, state.values()))},
            "weight_map": {
                name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard
            },
        }
        with atomic_write(folder / INDEX_FILE) as file:
            file.write(json.dumps(index, indent=2, sort_keys=True).encode() + b"\n")
        names.append(INDEX_FILE)
    for path in folder.iterdir():
        if path.name not in names and _WEIGHT_FILES.fullmatch(path.name):
            path.unlink()
    return tuple(names)


def _open(path: Path) -> _File:
    """Map a file copy-on-write and check its header."""
    data = torch.empty(0, dtype=torch.uint8)
    try:
        size = path.stat().st_size
        if size:  # an empty file cannot be mapped
            data.set_(torch.UntypedStorage.from_file(str(path), False, size))  # type: ignore[arg-type]
    except (OSError, RuntimeError) as error:
        raise FileProblemError(path, "cannot be read", hint="check its permissions") from error
    first = data[:LENGTH_BYTES].numpy().tobytes()
    end = LENGTH_BYTES + _header_length(path, first, size)
    return _File(data, _parse_header(path, data[LENGTH_BYTES:end].numpy().tobytes(), end, size))


def _header_length(path: Path, first: bytes, size: int) -> int:
    if len(first) < LENGTH_BYTES:
        raise _damaged(path, f"has only {len(first)} bytes")
    if first == b"version ":
        raise FileProblemError(path, "is a Git LFS pointer", hint="run git lfs pull")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER_BYTES or LENGTH_BYTES + length > size:
        raise _damaged(path, "is truncated, or not a safetensors file")
    return length


def _parse_header(path: Path, text: bytes, begin: int, size: int) -> dict[str, Entry]:
    """Name -> entry. begin: where the tensors' bytes start in a file of `size` bytes."""
    try:
        header = json.loads(text.decode("utf-8"))
        entries = {name: _entry(value, begin) for name, value in header.items() if name != METADATA}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"has an invalid header ({type(error).__name__}: {error!s:.80})") from None
    position = begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if (
            entry.start != position
            or entry.stop - entry.start != math.prod(entry.shape) * entry.dtype.itemsize
        ):
            raise _damaged(path, f"has wrong offsets for tensor {name!r}")
        position = entry.stop
    if position != size:
        raise _damaged(path, f"has {size:,} bytes where {position:,} are expected")
    return entries


def _entry(value: dict[str, Any], begin: int) -> Entry:
    shape, (start, stop) = tuple(value["shape"]), value["data_offsets"]
    if not all(type(number) is int and 0 <= number < 2**63 for number in (*shape, start, stop)):
        raise ValueError("sizes must be integers")
    return Entry(DTYPES[value["dtype"]], shape, begin + start, begin + stop)


def _damaged(path: Path, problem: str) -> FileProblemError:
    return FileProblemError(path, problem, hint="download or save it again")


def _open_shards(index: Path) -> list[_File]:
    try:
        weight_map: dict[str, str] = dict(json.loads(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileProblemError(index, "is not an index of shards") from error
    files = []
    for shard in sorted(set(weight_map.values())):
        path = index.parent / str(shard)
        if Path(path.name) != Path(str(shard)):
            raise FileProblemError(index, f"names the shard {shard!r} outside its folder")
        if not path.is_file():
            raise FileMissingError(path, "shard")
        files.append(_open(path))
        listed = {name for name, place in weight_map.items() if place == shard}
        if wrong := sorted(listed ^ set(files[-1].entries)):
            raise FileProblemError(path, f"does not match {index.name} ({wrong[0]})")
    return files


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _shards(state: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """The sorted names in groups of at most `limit` bytes (a larger tensor stays alone)."""
    shards: list[list[str]] = [[]]
    left = limit
    for name in sorted(state):
        size = _size(state[name])
        if size > left and shards[-1]:
            shards.append([])
            left = limit
        shards[-1].append(name)
        left -= size
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
