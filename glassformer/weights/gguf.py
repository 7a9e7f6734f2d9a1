"""Read GGUF files (llama.cpp) with the `gguf` package: metadata, and tensors that are dequantized on access.

The package's reader trusts the lengths in a file and creates an object per number. `_Reader` checks every
read against the end of the file, and reads the numbers of an array at once. Its memory map is closed when the
header was read; the data of a tensor is read from the file when the tensor is dequantized.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFReader, GGUFValueType
from gguf.quants import dequantize
from torch import Tensor

from glassformer.errors import FileProblemError, UnsupportedError

CHUNK: Final = 1 << 22  # elements that are dequantized at a time
MAX_PARTS: Final = 1 << 22  # names, lengths and strings in a header; a large vocabulary has 1.5 million
# types that are not converted
_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


class _Reader(GGUFReader):
    """The package's reader, which a damaged header cannot lead out of the file or into endless loops."""

    num_parts = 0

    def _get(self, offset: int, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        self.num_parts += 1
        if self.num_parts > MAX_PARTS:
            raise ValueError(f"more than {MAX_PARTS:,} names and values")
        stored = np.dtype(dtype).newbyteorder(override_order or self.byte_order)
        return np.frombuffer(self.data, stored, int(count), offset)  # raises if they are not in the file

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
        if raw_type != GGUFValueType.ARRAY:
            return super()._get_field_parts(orig_offs, raw_type)
        kind = GGUFValueType(self._get(orig_offs, np.uint32)[0])
        if kind not in self.gguf_scalar_to_np:
            return super()._get_field_parts(orig_offs, raw_type)
        (count,) = self._get(orig_offs + 4, np.uint64)
        values = self._get(orig_offs + 12, self.gguf_scalar_to_np[kind], count)
        return 12 + values.nbytes, [values], [0], [GGUFValueType.ARRAY, kind]


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file. offset: its first byte."""

    path: Path
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int

    def dequantize(self) -> Tensor:
        """Return the values: in the stored dtype, or in float32 if they are quantized."""
        elements, size = GGML_QUANT_SIZES[self.type]
        blocks = math.prod(self.shape) // elements
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = np.frombuffer(bytearray(file.read(blocks * size)), np.uint8)
        if len(data) < blocks * size:
            raise FileProblemError(self.path, "was truncated while it was read")
        if (dtype := _PLAIN.get(self.type)) is not None:
            return torch.from_numpy(data).view(dtype).view(self.shape)
        values, step = np.empty(blocks * elements, np.float32), CHUNK // elements
        try:
            with np.errstate(all="ignore"):
                for start in range(0, blocks, step):
                    part = dequantize(data[start * size : (start + step) * size], self.type)
                    values[start * elements : (start + step) * elements] = part
        except NotImplementedError:
            raise UnsupportedError(f"reading {self.path.name}", f"tensor type {self.type.name}") from None
        return torch.from_numpy(values).view(self.shape)


class GGUFFile(Mapping[str, StoredTensor]):
    """The metadata and the tensors of a GGUF file.

    metadata: values by key: numbers, strings, booleans, and lists of these.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with np.errstate(all="raise"):
                reader = _Reader(self.path)
            if sum(tensor.n_bytes for tensor in reader.tensors) > len(reader.data):
                raise ValueError("tensors overlap")
            self.metadata = {name: _value(field) for name, field in reader.fields.items()}
        except Exception as error:  # the package raises whatever its parsing meets
            problem = f"is not a readable GGUF file ({error})"
            raise FileProblemError(self.path, problem, hint="download it again") from error
        if reader.byte_order == "S":
            raise UnsupportedError(f"reading {self.path.name}", "big-endian files")
        self._tensors = {
            tensor.name: StoredTensor(
                self.path, tensor.tensor_type, tuple(tensor.shape.tolist())[::-1], tensor.data_offset
            )
            for tensor in reader.tensors
        }

    def __getitem__(self, name: str) -> StoredTensor:
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _value(field: Any) -> Any:
    value = field.contents()
    if field.types == [GGUFValueType.FLOAT32]:
        # the shortest number that is the same in float32: 1e-05 instead of 9.999999747378752e-06
        return float(str(np.float32(value)))
    return value
