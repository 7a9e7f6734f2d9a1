"""The header of a safetensors file: checked in full before any tensor is touched.

A file is 8 bytes (the header's length, little-endian), the header (JSON), then the tensors'
bytes end to end:
    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, "__metadata__": {...}}
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from reprlib import repr as brief

import torch

from glassformer.errors import GlassformerError

LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
METADATA = "__metadata__"
LARGEST = 2**63 - 1  # what a size may be in torch
MAX_DIMS = 64  # likewise

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


@dataclass(frozen=True)
class Entry:
    """Where one tensor lies: bytes `start` to `stop` of the file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int


def parse_header(path: Path, head: bytes, size: int) -> dict[str, Entry]:
    """Name -> entry, from the first bytes of a file of `size` bytes.

    `head` must reach to the end of the header; `header_bytes` says how far that is.
    """
    begin = LENGTH_BYTES + header_bytes(path, head[:LENGTH_BYTES], size)
    entries = {
        name: _entry(path, name, value, begin)
        for name, value in _object(path, head[LENGTH_BYTES:begin]).items()
        if name != METADATA
    }
    position = begin
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].start, item[1].stop)):
        if entry.start != position:
            fault = "overlaps the tensor before it" if entry.start < position else "leaves a gap"
            raise _bad(path, f"tensor {name!r} {fault} at byte {entry.start}")
        position = entry.stop
    if position > size:
        raise _bad(path, f"it is truncated: {position} bytes are announced, {size} are there")
    if position < size:
        raise _bad(path, f"{size - position} bytes at its end belong to no tensor")
    return entries


def header_bytes(path: Path, first: bytes, size: int) -> int:
    """The length of the header, from the first 8 bytes of a file of `size` bytes."""
    if len(first) < LENGTH_BYTES:
        raise _bad(path, f"it has only {len(first)} bytes")
    if first == b"version ":
        raise _bad(path, "it is the pointer that Git LFS leaves in place of a file (git lfs pull)")
    length = int.from_bytes(first, "little")
    if length > MAX_HEADER_BYTES:
        raise _bad(path, f"its header claims {length} bytes, over the limit of {MAX_HEADER_BYTES}")
    if LENGTH_BYTES + length > size:
        raise _bad(path, f"its header claims {length} bytes, more than the file holds")
    return length


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object whose keys may not repeat (`object_pairs_hook`)."""
    found = dict(pairs)
    if len(found) != len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {key!r} appears twice")
    return found


def _object(path: Path, text: bytes) -> dict[str, object]:
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=unique)
    except RecursionError:
        raise _bad(path, "its header is nested too deeply") from None
    except ValueError as error:
        raise _bad(path, f"its header is not valid JSON ({error})") from None
    if not isinstance(value, dict):
        raise _bad(path, "its header is not a JSON object")
    return value


def _entry(path: Path, name: str, value: object, begin: int) -> Entry:
    if not isinstance(value, dict) or set(value) != {"dtype", "shape", "data_offsets"}:
        raise _bad(path, f"tensor {name!r} needs exactly dtype, shape and data_offsets")
    dtype, shape, offsets = value["dtype"], value["shape"], value["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise _bad(path, f"tensor {name!r} has the unknown dtype {dtype!r}")
    width = DTYPES[dtype].itemsize
    if not _naturals(shape) or math.prod(size or 1 for size in shape) * width > LARGEST:
        raise _bad(path, f"tensor {name!r} has the impossible shape {brief(shape)}")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _bad(path, f"tensor {name!r} has the impossible offsets {brief(offsets)}")
    if offsets[1] - offsets[0] != math.prod(shape) * width:
        raise _bad(
            path,
            f"tensor {name!r} has {offsets[1] - offsets[0]} bytes "
            f"where {dtype} of shape {shape} needs {math.prod(shape) * width}",
        )
    return Entry(DTYPES[dtype], tuple(shape), begin + offsets[0], begin + offsets[1])


def _naturals(value: object) -> bool:
    # `type` rather than isinstance: JSON's true is not a number.
    return (
        isinstance(value, list)
        and len(value) <= MAX_DIMS
        and all(type(item) is int and 0 <= item <= LARGEST for item in value)
    )


def _bad(path: Path, why: str) -> GlassformerError:
    return GlassformerError(f"{path} is not a sound safetensors file: {why}; fetch or save it anew.")
