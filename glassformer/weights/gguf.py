"""Read GGUF files (llama.cpp): metadata and tensors, dequantized on access.

Layout: magic, version, number of tensors and of metadata entries; the entries (key, type, value); the tensor
descriptions (name, dimensions, type, offset); then the aligned data. No length in the file is trusted: every
read is checked against the size of the file, and a damaged file gives a `FileProblemError`.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from glassformer.errors import FileProblemError, UnsupportedError

MAGIC, VERSIONS = b"GGUF", (2, 3)
MAX_DIMS, MAX_ALIGNMENT = 4, 1 << 20
CHUNK: Final = 1 << 22  # elements that are dequantized at a time
# struct formats of metadata values, by type; 8 is a string, 9 an array
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


# ---- dequantization: blocks (N, bytes of a block) -> values (N, elements of a block) -----------------------


def _half(blocks: Bytes, at: int) -> Floats:
    """Return the float16 number at byte `at` of each block: (N, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """Unpack bytes (..., n) to 4-bit numbers (..., 2 * n): all low halves, then all high ones."""
    return np.concatenate((packed & 15, packed >> 4), -1)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q4_k(blocks: Bytes) -> Floats:
    """Eight sub-blocks of 32 with 6-bit scales and minima; the upper bits of four of them are elsewhere."""
    low, middle, high = (blocks[:, n : n + 4] for n in (4, 8, 12))
    scales = np.concatenate((low & 63, (high & 15) | ((low >> 6) << 4)), -1)  # (N, 8)
    minima = np.concatenate((middle & 63, (high >> 4) | ((middle >> 6) << 4)), -1)
    values = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    scaled = (_half(blocks, 0) * scales)[..., None] * values - (_half(blocks, 2) * minima)[..., None]
    return scaled.reshape(len(blocks), 256)


def _q6_k(blocks: Bytes) -> Floats:
    """16 sub-blocks of 16 with 8-bit scales; a number has 4 bits in one table and 2 bits in another."""
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts) & 3  # (N, 2, 4, 32)
    values = (low | (high << 4)).astype(np.float32) - 32
    scales = _half(blocks, 208) * blocks[:, 192:208].view(np.int8)  # (N, 16)
    return (values.reshape(-1, 16, 16) * scales[..., None]).reshape(len(blocks), 256)


@dataclass(frozen=True)
class BlockType:
    """A storage type: elements and bytes of a block, and its values in float32.

    dtype: for types that are stored as plain numbers, which are not converted.
    """

    name: str
    elements: int
    size: int
    dequantize: Callable[[Bytes], Floats] | None = None
    dtype: torch.dtype = torch.float32


TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2, dtype=torch.float16),
    2: BlockType("Q4_0", 32, 18, _q4_0),
    3: BlockType("Q4_1", 32, 20, _q4_1),
    8: BlockType("Q8_0", 32, 34, _q8_0),
    12: BlockType("Q4_K", 256, 144, _q4_k),
    14: BlockType("Q6_K", 256, 210, _q6_k),
    30: BlockType("BF16", 1, 2, dtype=torch.bfloat16),
}


# ---- the file ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as it is stored. blocks: (number of blocks, bytes of a block), a view of the file."""

    type: BlockType
    shape: tuple[int, ...]
    blocks: Bytes

    def dequantize(self) -> Tensor:
        """Return the values: in the stored dtype, or in float32 if they are quantized."""
        kind = self.type
        if kind.dequantize is None:
            plain = torch.from_numpy(self.blocks.reshape(-1).copy()).view(kind.dtype)
            return plain.view(self.shape)
        values = torch.empty(len(self.blocks), kind.elements)
        step = CHUNK // kind.elements
        for start in range(0, len(self.blocks), step):
            part = kind.dequantize(self.blocks[start : start + step])
            values[start : start + step] = torch.from_numpy(part)
        return values.view(self.shape)


class GGUFFile(Mapping[str, StoredTensor]):
    """The metadata and the tensors of a GGUF file; the data is memory-mapped.

    metadata: values by key: numbers, strings, booleans, and lists of these.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:  # an empty file cannot be mapped
            raise FileProblemError(self.path, f"cannot be read ({error})") from error
        self._at = len(MAGIC)
        if self._data[: self._at] != MAGIC:
            raise FileProblemError(self.path, "is not a GGUF file")
        version = self._scalar("I")
        if version not in VERSIONS:
            problem = f"has GGUF version {version}" if version < 256 else "is big-endian"
            raise FileProblemError(self.path, problem, hint="convert the model again with a newer llama.cpp")
        num_tensors, num_entries = self._count(24), self._count(12)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_entries):
            key = self._string()
            if key in self.metadata:
                self._damaged(f"two entries {key!r}")
            self.metadata[key] = self._value(self._scalar("I"))
        self._tensors = self._read_tensors(num_tensors)

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _damaged(self, problem: str) -> NoReturn:
        raise FileProblemError(self.path, f"is damaged ({problem})", hint="download it again")

    def _take(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if size > len(self._data) - self._at:
            self._damaged(f"it ends before byte {self._at + size}")
        self._at += size
        return self._data[self._at - size : self._at]

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))
        # the shortest number that is the same in float32: 1e-05 instead of 9.999999747378752e-06
        return float(str(np.float32(value))) if code == "f" else value

    def _count(self, size: int) -> int:
        """Read a number of items of at least `size` bytes each, which must fit into the rest of the file."""
        count: int = self._scalar("Q")
        if count * size > len(self._data) - self._at:
            self._damaged(f"{count} items do not fit into it")
        return count

    def _string(self) -> str:
        try:
            return self._take(self._count(1)).decode("utf-8")
        except UnicodeDecodeError:
            self._damaged("a string is not UTF-8")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind in _SCALARS:
            return self._scalar(_SCALARS[kind])
        if kind != _ARRAY:
            self._damaged(f"unknown metadata type {kind}")
        kind = self._scalar("I")
        if kind == _STRING:
            return [self._string() for _ in range(self._count(8))]
        if kind not in _SCALARS:
            self._damaged(f"an array of metadata type {kind}")
        code = _SCALARS[kind]
        count = self._count(struct.calcsize(f"<{code}"))
        return np.frombuffer(self._take(count * struct.calcsize(f"<{code}")), dtype=f"<{code}").tolist()

    def _read_tensors(self, count: int) -> dict[str, StoredTensor]:
        described = []
        for _ in range(count):
            name, dims = self._string(), self._scalar("I")
            if not 1 <= dims <= MAX_DIMS:
                self._damaged(f"tensor {name!r} has {dims} dimensions")
            shape = tuple(self._scalar("Q") for _ in range(dims))[::-1]  # the file has the innermost first
            described.append((name, shape, self._scalar("I"), self._scalar("Q")))
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 1 <= alignment <= MAX_ALIGNMENT:
            self._damaged(f"alignment {alignment!r}")
        first = -(-self._at // alignment) * alignment
        tensors: dict[str, StoredTensor] = {}
        for name, shape, number, offset in described:
            if number not in TYPES:
                known = ", ".join(kind.name for kind in TYPES.values())
                raise UnsupportedError(
                    f"reading {self.path.name}",
                    f"tensor type {number} (tensor {name!r})",
                    hint=f"quantize the model to one of {known}",
                )
            kind, elements = TYPES[number], math.prod(shape)
            size = elements // kind.elements * kind.size
            if shape[-1] % kind.elements or not elements or name in tensors:
                self._damaged(f"tensor {name!r} of {kind.name} is twice there or has the shape {shape}")
            if first + offset + size > len(self._data):
                self._damaged(f"tensor {name!r} ends after the file")
            data = np.frombuffer(self._data, np.uint8, size, first + offset)
            tensors[name] = StoredTensor(kind, shape, data.reshape(-1, kind.size))
        return tensors


def find_gguf(path: Path) -> Path | None:
    """Return a GGUF file: `path` itself, or the only one in a folder without `config.json` or `spec.json`."""
    if path.is_file():
        return path if path.suffix == ".gguf" else None
    if not path.is_dir() or any((path / name).is_file() for name in ("config.json", "spec.json")):
        return None
    files = sorted(path.glob("*.gguf"))
    if len(files) > 1:
        names = ", ".join(file.name for file in files[:4])
        raise FileProblemError(path, f"has {len(files)} GGUF files", hint=f"name one of them: {names}")
    return files[0] if files else None
