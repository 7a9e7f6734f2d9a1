"""Read (memory-mapped) and write safetensors files, single or sharded.

Files are not written by the safetensors library, because it copies all tensors before it writes.
"""

import gc
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import safetensors
import torch
from torch import Tensor

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError, UnsupportedError
from glassformer.json_text import parse_json
from glassformer.weights.atomic_write import atomic_write, make_folder, write_file

LENGTH_BYTES = 8
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
# names of weight files by the library that reads them
STEMS = {"transformers": "model", "diffusers": "diffusion_pytorch_model"}
MAX_SHARD_BYTES = 5_000_000_000

_STEM = f"({'|'.join(STEMS.values())})"
_WEIGHT_FILES = re.compile(rf"{_STEM}((-\d{{5}}-of-\d{{5}})?\.safetensors|\.safetensors\.index\.json)")
_PICKLES = ("pytorch_model*.bin", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl", "*.h5", "*.msgpack")
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(eq=False)
class PickleRefusedError(GlassformerError):
    """The folder has only pickled weights, which can execute code when they are loaded.

    model_class: the class that reads the folder with its head. library: that of the class.
    """

    path: str | Path
    model_class: str = "AutoModel"
    library: str = "transformers"

    def message(self) -> str:
        folder, out = Path(self.path).parent, f"{Path(self.path).parent.name}-safetensors"
        classes = [*["AutoTokenizer"] * (self.library == "transformers"), self.model_class]
        steps = [f'{name}.from_pretrained("{folder}").save_pretrained("{out}")' for name in classes[::-1]]
        return (
            f"{self.path} is a pickle or similar, which is not loaded because it can run code; convert the "
            f"folder with {self.library}: from {self.library} import {', '.join(classes)}; {'; '.join(steps)}"
        )


@contextmanager
def pause_gc() -> Iterator[None]:
    """Disable garbage collection; loading a model creates many objects but no garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class Weights(Mapping[str, Tensor]):
    """The tensors of a folder by name, each a view of the memory-mapped file.

    Values are read on first use. Writing to a tensor never changes the file. Tensors obtained before `close`
    stay valid.
    """

    def __init__(self, files: Iterable[Any]) -> None:
        self._files = {name: file for file in files for name in file.keys()}  # noqa: SIM118

    def __getitem__(self, name: str) -> Tensor:
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def __enter__(self) -> "Weights":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(file.get_slice(name).get_shape()) for name, file in self._files.items()}

    def close(self) -> None:
        """Close the files."""
        self._files.clear()


def open_weights(folder: str | Path) -> Weights:
    """Open the weights file of a folder, or the shards of its index, and check their headers."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FileMissingError(folder, "model folder")
    for stem in STEMS.values():
        single = folder / f"{stem}.safetensors"
        index = folder / f"{single.name}.index.json"
        if single.is_file():
            return Weights([_open(single)])
        if index.is_file():
            return Weights(_open_shards(index))
    for pattern in _PICKLES:
        for path in sorted(folder.glob(pattern)):
            raise PickleRefusedError(path, *_model_class(folder))
    raise FileMissingError(folder / WEIGHTS_FILE, "weights file")


def open_file(path: Path) -> Weights:
    """Open one safetensors file and check its header."""
    return Weights([_open(path)])


def _model_class(folder: Path) -> tuple[str, str]:
    """Return the class that a folder's config.json names, else "AutoModel", and its library."""
    try:
        config = parse_json((folder / "config.json").read_bytes())
        library = "diffusers" if "_class_name" in config else "transformers"
        name = config["_class_name"] if library == "diffusers" else config["architectures"][0]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        name, library = "AutoModel", "transformers"
    return (name, library) if isinstance(name, str) and name.isidentifier() else ("AutoModel", "transformers")


def save_weights(
    folder: str | Path,
    state: Mapping[str, Tensor],
    max_shard_bytes: int = MAX_SHARD_BYTES,
    *,
    stem: str = "model",
) -> tuple[str, ...]:
    """Write the tensors into `folder`, in shards if needed; return the file names.

    stem: the names without what follows, one of `STEMS`.
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
        names = [f"{stem}.safetensors"]
    else:
        names = [f"{stem}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    for file_name, shard in zip(names, shards, strict=True):
        save_file(folder / file_name, {name: state[name] for name in shard})
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(map(_size, state.values()))},
            "weight_map": {
                name: file_name for file_name, shard in zip(names, shards, strict=True) for name in shard
            },
        }
        write_file(
            folder / f"{stem}.safetensors.index.json",
            json.dumps(index, indent=2, sort_keys=True).encode() + b"\n",
        )
        names.append(f"{stem}.safetensors.index.json")
    for name in weight_files(folder):
        if name not in names:
            (folder / name).unlink()
    return tuple(names)


def save_file(path: Path, state: Mapping[str, Tensor]) -> None:
    """Write the tensors to one safetensors file, atomically."""
    with atomic_write(path) as file:
        _write(file, state)


def weight_files(folder: Path) -> list[str]:
    """Return the names of the weight files in a folder: one file, or shards and their index."""
    return [path.name for path in folder.iterdir() if _WEIGHT_FILES.fullmatch(path.name)]


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


def _open(path: Path) -> Any:
    try:
        return safetensors.safe_open(path, framework="pt")
    except (OSError, safetensors.SafetensorError) as error:
        with path.open("rb") as file:
            if file.read(8) == b"version ":
                raise FileProblemError(path, "is a Git LFS pointer", hint="run git lfs pull") from None
        hint = "download or save it again"
        raise FileProblemError(
            path, f"is damaged or not a safetensors file ({error!s:.80})", hint=hint
        ) from error


def _open_shards(index: Path) -> list[Any]:
    try:
        weight_map: dict[str, str] = dict(parse_json(index.read_bytes())["weight_map"])
    except (ValueError, KeyError, TypeError) as error:
        raise FileProblemError(index, "is not an index of shards") from error
    files = []
    for shard in sorted(set(weight_map.values())):
        path = index.parent / str(shard)
        if Path(path.name) != Path(str(shard)):
            raise FileProblemError(index, f"refers to the shard {shard!r}, which is outside its folder")
        if not path.is_file():
            raise FileMissingError(path, "shard")
        files.append(_open(path))
        listed = {name for name, file in weight_map.items() if file == shard}
        if wrong := sorted(listed ^ set(files[-1].keys())):
            raise FileProblemError(path, f"does not match {index.name} ({wrong[0]})")
    return files


def _size(tensor: Tensor) -> int:
    return tensor.numel() * tensor.dtype.itemsize


def _shards(state: Mapping[str, Tensor], limit: int) -> list[list[str]]:
    """Group the sorted names into shards of at most `limit` bytes; a larger tensor gets its own."""
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
    """Write one safetensors file: widest dtypes first, so that every tensor is aligned."""
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
    for name in names:  # one at a time, so that at most one is copied to be contiguous
        if state[name].numel():
            flat = state[name].detach().cpu().resolve_conj().resolve_neg().reshape(-1)
            file.write(flat.contiguous().view(torch.uint8).numpy().data)
