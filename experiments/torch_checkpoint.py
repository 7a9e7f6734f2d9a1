"""Read the tensors of a PyTorch checkpoint (.bin, .pt) without unpickling it.

    python -m experiments.torch_checkpoint pytorch_model.bin model.safetensors

A pickle is a program. This reader runs only the opcodes that build dicts, lists, tuples, strings and numbers,
and calls nothing: the three functions that a checkpoint of tensors names are interpreted here. Any other
opcode or name is an error. It reads the zip format and the older one, in which five pickles and the storages
follow one another.
"""

from __future__ import annotations

import argparse
import io
import pickletools
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from glassformer.errors import FileProblemError

DTYPES = {
    "torch DoubleStorage": torch.float64,
    "torch FloatStorage": torch.float32,
    "torch HalfStorage": torch.float16,
    "torch BFloat16Storage": torch.bfloat16,
    "torch LongStorage": torch.int64,
    "torch IntStorage": torch.int32,
    "torch ShortStorage": torch.int16,
    "torch CharStorage": torch.int8,
    "torch ByteStorage": torch.uint8,
    "torch BoolStorage": torch.bool,
}
CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
LITERALS = frozenset("BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE".split())
MALFORMED = (ValueError, TypeError, LookupError, OverflowError)
MAGIC_NUMBER = 0x1950A86A20F9469CFC6C  # the first pickle of the older format


class RejectedPickleError(ValueError):
    """The pickle holds something else than tensors, or is damaged."""


@dataclass(frozen=True)
class Name:
    """A name that the pickle imports; it is never looked up."""

    name: str


@dataclass(frozen=True)
class Storage:
    """A storage that tensors refer to: a key, and the number of elements."""

    dtype: torch.dtype
    key: str
    size: int


@dataclass(frozen=True)
class View:
    """A tensor: a strided view of a storage."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self, content: bytes) -> Tensor:
        """Return the tensor; content: the bytes of the storage."""
        size, dtype = self.storage.size, self.storage.dtype
        if len(content) != size * dtype.itemsize:
            raise RejectedPickleError(f"storage {self.storage.key} has {len(content)} bytes")
        numbers = (self.offset, *self.shape, *self.stride)
        if len(self.shape) != len(self.stride) or any(type(n) is not int or n < 0 for n in numbers):
            raise RejectedPickleError(f"a tensor with shape {self.shape} and stride {self.stride}")
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=dtype)
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.stride, strict=True))
        count = torch.Size(self.shape).numel()
        if last >= size or count > size:  # more elements than stored would be a small file that fills memory
            raise RejectedPickleError(f"a tensor of {count} elements in a storage of {size}")
        flat = torch.frombuffer(bytearray(content), dtype=dtype)
        return flat.as_strided(self.shape, self.stride, self.offset).contiguous()


def rebuild(function: Any, arguments: Any) -> Any:
    """Interpret a call in the pickle."""
    match function, arguments:
        case Name("collections OrderedDict"), ():
            return {}
        case Name("torch._utils _rebuild_tensor_v2"), (
            Storage() as storage,
            offset,
            tuple() as shape,
            stride,
            *_,
        ):
            return View(storage, offset, shape, tuple(stride))
        case Name("torch._utils _rebuild_parameter"), (View() as view, *_):
            return view
    raise RejectedPickleError(f"a call of {function}")


def storage_of(reference: Any) -> Storage:
    """Return the storage of a persistent id."""
    match reference:
        case ("storage", Name(name), str(key), _, int(size), *_) if name in DTYPES and size >= 0:
            return Storage(DTYPES[name], key, size)
    raise RejectedPickleError(f"a storage {reference}")


class Interpreter:
    """The stack machine of the pickle format, reduced to plain data and tensors."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, file: io.BytesIO) -> Any:
        """Read one pickle and return its value; tensors are `View`s."""
        try:
            for opcode, argument, _ in pickletools.genops(file):
                self.step(opcode.name, argument)
        except MALFORMED as error:  # e.g. an empty stack
            raise RejectedPickleError(str(error)) from None
        if len(self.stack) != 1:
            raise RejectedPickleError("a pickle that is cut off")
        return self.stack[0]

    def step(self, name: str, argument: Any) -> None:
        if name in CONSTANTS:
            self.stack.append(CONSTANTS[name])
        elif name in LITERALS:
            self.stack.append(argument)
        elif name == "GLOBAL":
            self.stack.append(Name(argument))
        elif name in STEPS:
            STEPS[name](self, argument)
        else:
            raise RejectedPickleError(f"the opcode {name}")

    def pop_mark(self) -> list[Any]:
        start = self.marks.pop()
        items = self.stack[start:]
        del self.stack[start:]
        return items

    def make_tuple(self, count: int) -> None:
        items = [self.stack.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(items)))

    def reduce(self, _: Any) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        self.stack.append(rebuild(function, arguments))

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not dict:
            raise RejectedPickleError("items of something that is not a dict")
        target.update(zip(items[::2], items[1::2], strict=True))

    def append(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if type(target) is not list:
            raise RejectedPickleError("items of something that is not a list")
        target.extend(items)

    def build(self, _: Any) -> None:
        """Drop the attributes of an OrderedDict, e.g. `_metadata`."""
        self.stack.pop()
        if type(self.stack[-1]) is not dict:
            raise RejectedPickleError("attributes of something that is not a dict")


STEPS: dict[str, Callable[[Interpreter, Any], Any]] = {
    "PROTO": lambda machine, _: None,
    "FRAME": lambda machine, _: None,
    "STOP": lambda machine, _: None,
    "EMPTY_DICT": lambda machine, _: machine.stack.append({}),
    "EMPTY_LIST": lambda machine, _: machine.stack.append([]),
    "MARK": lambda machine, _: machine.marks.append(len(machine.stack)),
    "TUPLE": lambda machine, _: machine.stack.append(tuple(machine.pop_mark())),
    "TUPLE1": lambda machine, _: machine.make_tuple(1),
    "TUPLE2": lambda machine, _: machine.make_tuple(2),
    "TUPLE3": lambda machine, _: machine.make_tuple(3),
    "BINPUT": lambda machine, index: machine.memo.update({index: machine.stack[-1]}),
    "LONG_BINPUT": lambda machine, index: machine.memo.update({index: machine.stack[-1]}),
    "BINGET": lambda machine, index: machine.stack.append(machine.memo[index]),
    "LONG_BINGET": lambda machine, index: machine.stack.append(machine.memo[index]),
    "MEMOIZE": lambda machine, _: machine.memo.update({len(machine.memo): machine.stack[-1]}),
    "SETITEM": lambda machine, _: machine.set_items([machine.stack.pop() for _ in range(2)][::-1]),
    "SETITEMS": lambda machine, _: machine.set_items(machine.pop_mark()),
    "APPEND": lambda machine, _: machine.append([machine.stack.pop()]),
    "APPENDS": lambda machine, _: machine.append(machine.pop_mark()),
    "BINPERSID": lambda machine, _: machine.stack.append(storage_of(machine.stack.pop())),
    "REDUCE": Interpreter.reduce,
    "BUILD": Interpreter.build,
}


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a checkpoint by name; other entries are left out."""
    try:
        value, contents = _read_zip(path) if zipfile.is_zipfile(path) else _read_sequence(path)
        if type(value) is not dict:
            raise RejectedPickleError("a checkpoint that is not a dict")
        views = {str(name): view for name, view in value.items() if isinstance(view, View)}
        return {name: view.read(contents[view.storage.key]) for name, view in views.items()}
    except (*MALFORMED, zipfile.BadZipFile, RuntimeError, EOFError, OSError) as error:
        raise FileProblemError(path, f"is no checkpoint of tensors only ({error})") from None


def _read_zip(path: Path) -> tuple[Any, dict[str, bytes]]:
    with zipfile.ZipFile(path) as archive:
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise RejectedPickleError("compressed storages")
        (pickled,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
        folder = pickled.removesuffix("data.pkl")
        if (order := f"{folder}byteorder") in archive.namelist() and archive.read(order) != b"little":
            raise RejectedPickleError("big-endian storages")
        value = Interpreter().run(io.BytesIO(archive.read(pickled)))
        prefix = f"{folder}data/"
        names = (name for name in archive.namelist() if name.startswith(prefix))
        return value, {name.removeprefix(prefix): archive.read(name) for name in names}


def _read_sequence(path: Path) -> tuple[Any, dict[str, bytes]]:
    file = io.BytesIO(path.read_bytes())  # reads at most what it has, whatever a damaged length says
    magic, _, system, value, keys = (Interpreter().run(file) for _ in range(5))
    if magic != MAGIC_NUMBER or type(system) is not dict or system.get("little_endian") is not True:
        raise RejectedPickleError("an unknown header")
    sizes = _item_sizes(value)
    contents = {}
    for key in keys:
        count = int.from_bytes(file.read(8), "little")
        contents[key] = file.read(count * sizes.get(key, 0))
    return value, contents


def _item_sizes(value: Any) -> dict[str, int]:
    """Return the bytes of an element of each storage, for all tensors of a value."""
    if isinstance(value, View):
        return {value.storage.key: value.storage.dtype.itemsize}
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return {key: size for part in inner for key, size in _item_sizes(part).items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.torch_checkpoint")
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path, help="safetensors file to write")
    options = parser.parse_args()
    tensors = read_tensors(options.checkpoint)
    save_file(tensors, options.out, metadata={"format": "pt"})
    print(f"{options.out}: {len(tensors)} tensors, {sum(t.numel() for t in tensors.values()):,} parameters")


if __name__ == "__main__":
    main()
