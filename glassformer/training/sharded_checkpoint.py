"""The slices that several ranks wrote of one group of tensors, read as whole tensors without any ranks."""

from __future__ import annotations

import json
import math
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from glassformer.errors import GlassformerError
from glassformer.training.checkpoint import (
    newest_whole,
    none_whole,
    prune,
    remove_unfinished,
    save_checkpoint,
)
from glassformer.training.distributed import Parallel, Tensors
from glassformer.weights.checksums import write_checksums
from glassformer.weights.header import DTYPES
from glassformer.weights.replacing import make_folder, replacing, sync_folder
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


_COMPILED = "_orig_mod."  # what torch.compile puts before the names of what it wraps


def named_state(module: nn.Module, optimiser: Optimizer, *, begin: bool = False) -> dict[str, Tensors]:
    """The weights and the optimiser's tensors; one that is tied stands under its first name only.

    An optimiser that has made no step keeps nothing yet; `begin` has it keep something, to be filled.
    """
    learner = module.module if isinstance(module, DistributedDataParallel) else module
    once = dict(learner.named_parameters())
    again = dict(learner.named_parameters(remove_duplicate=False)).keys() - once.keys()
    tied = {name.replace(_COMPILED, "") for name in again}
    weights: Any = get_model_state_dict(learner)
    kept: Any = {}
    if optimiser.state or begin:
        kept = get_optimizer_state_dict(learner, optimiser)["state"]
    return {
        "model": {_own(name): value for name, value in weights.items() if name not in tied},
        "optimiser": {
            f"{what}.{_own(name)}": value
            for name, values in kept.items()
            for what, value in values.items()
            if isinstance(value, Tensor)
        },
    }


def misfit(targets: Tensors, values: Tensors) -> str:
    """What keeps `values` from being copied into `targets`, as a sentence; nothing where they fit."""
    for name in sorted(targets.keys() - values.keys()):
        return f"The checkpoint has no {name}, which this run needs; resume it with the recipe that wrote it."
    for name in sorted(values.keys() - targets.keys()):
        return f"The checkpoint has {name}, which this run does not; resume it with the recipe that wrote it."
    for name, target in targets.items():
        if target.shape != values[name].shape:
            return (
                f"{name} is {tuple(values[name].shape)} in the checkpoint and {tuple(target.shape)} in this "
                "run; resume it with the recipe that wrote it."
            )
    return ""


def _own(name: str) -> str:
    """The model's own name for what the learner that holds it calls `model.…`."""
    return name.removeprefix("model.")


_NAME_BYTES = 64


def save_sharded(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, Any],
    *,
    parallel: Parallel,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step, each rank its own slices; the `keep` newest stay. Every rank calls it.

    `tensors` by group and name are the run's own, whole or DTensors; `state` is rank 0's.
    """
    root = Path(folder)
    final = root / f"step-{step:08}"
    part = root / f".{final.name}.sharded.part"  # the same for all ranks; other runs are locked out

    def prepare() -> None:
        make_folder(root)
        remove_unfinished(root)
        for group in tensors:
            make_folder(part / group)

    def write(group: str) -> None:
        if tensors[group]:
            writer = HuggingFaceStorageWriter(path=str(part / group), save_distributed=True)
            with _quietly():
                dcp.save(dict(tensors[group]), storage_writer=writer, no_dist=parallel.ranks == 1)
            sync_folder(part / group)

    def finish() -> None:
        names = ["state.json"]
        for group, values in tensors.items():
            slices = Slices(part / group)
            if fault := misfit(values, slices.outlines()):
                raise GlassformerError(f"What the ranks wrote is not whole: {fault}")
            names += [f"{group}/{path.name}" for path in slices.files]
        content = {"step": step, "groups": list(tensors), "state": dict(state)}
        with replacing(part / "state.json") as file:
            file.write(json.dumps(content, allow_nan=True).encode())
        write_checksums(part, names)
        sync_folder(part)
        if final.exists():
            os.rename(final, root / f".{final.name}.{secrets.token_hex(4)}.old")
        os.rename(part, final)
        sync_folder(root)
        with replacing(root / "latest") as file:
            file.write(f"{final.name}\n".encode())
        prune(root, keep=max(keep, 1), step=step)

    what = f"The checkpoint of step {step:,} could not be written to {root}"
    _together(parallel, prepare if parallel.main else None, what)
    for group in tensors:
        _together(parallel, partial(write, group), what)
    _together(parallel, finish if parallel.main else None, what)
    return final


@dataclass(frozen=True, kw_only=True)
class Sharded:
    """A whole checkpoint on disk. `passed_over` says on rank 0 which newer ones were damaged, and how."""

    step: int
    folder: Path
    state: dict[str, Any]
    outlines: Mapping[str, Tensors]
    parallel: Parallel
    passed_over: tuple[str, ...] = ()

    def fill(self, group: str, targets: Tensors) -> None:
        """Read each rank's tensors or slices of them from the files, where they lie. Every rank calls it."""
        fault = misfit(targets, self.outlines[group])
        if self.parallel.agree(bool(fault)):
            raise GlassformerError(fault or "The checkpoint does not fit the run on another rank.")
        if targets:
            reader = HuggingFaceStorageReader(path=str(self.folder / group))
            with _quietly():
                dcp.load(dict(targets), storage_reader=reader, no_dist=self.parallel.ranks == 1)


def load_sharded(folder: str | Path, *, parallel: Parallel) -> Sharded | None:
    """The newest whole checkpoint, to `fill` tensors from; None where there is none. Every rank calls it.

    Those of `save_checkpoint` are read as well, so a run may change between one rank and many.
    """
    root = Path(folder)
    passed: list[str] = []
    chosen = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
    if parallel.main:
        found, passed = newest_whole(root, lambda path: (path, _open(path)))
        if found is not None:
            bytes_of = bytearray(found[0].name.encode())
            chosen[: len(bytes_of)] = torch.frombuffer(bytes_of, dtype=torch.uint8)
    # The name travels as bytes, so that no rank's view of a shared disk matters but rank 0's.
    name = bytes(parallel.total(chosen).tolist()).rstrip(b"\0")
    if not name:
        if parallel.agree(bool(passed)):
            raise none_whole(root, passed[0] if passed else "rank 0 says more")
        return None
    path = root / name.decode()
    step, state, outlines = _open(path)
    return Sharded(
        step=step,
        folder=path,
        state=state,
        outlines=outlines,
        parallel=parallel,
        passed_over=tuple(passed),
    )


def _open(path: Path) -> tuple[int, dict[str, Any], dict[str, Tensors]]:
    content = json.loads((path / "state.json").read_bytes())
    outlines: dict[str, Tensors] = {group: Slices(path / group).outlines() for group in content["groups"]}
    return content["step"], content["state"], outlines


@contextmanager
def _quietly() -> Iterator[None]:
    """torch warns of the very thing that was asked for, to work without other processes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _together(parallel: Parallel, action: Callable[[], None] | None, what: str) -> None:
    """Do one's part, then learn how the others fared: where one fails, all do."""
    fault: BaseException | None = None
    if action is not None:
        try:
            action()
        except (OSError, GlassformerError, CheckpointException) as error:
            fault = error
    if parallel.agree(fault is not None):
        why = _reason(fault) if fault else "another rank failed, and says why"
        raise GlassformerError(
            f"{what} ({why}); free space or mend the folder. Earlier checkpoints are untouched."
        ) from fault


def _reason(fault: BaseException) -> str:
    """In a few words; torch's own error holds one for each rank that failed."""
    if isinstance(fault, CheckpointException):
        told = {rank: str(error).strip().split("\n")[0] for rank, (error, _) in fault.failures.items()}
        return "; ".join(f"rank {rank}: {why}" for rank, why in sorted(told.items()))
    cause = fault if isinstance(fault, OSError) else fault.__cause__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(fault)


Groups = Mapping[str, Mapping[str, Tensor]]


class Saving:
    """Saves and restores under a folder; every rank makes the same calls."""

    def __init__(self, root: Path, parallel: Parallel, *, keep: int) -> None:
        self.root, self.parallel, self.keep = root, parallel, keep

    def save(
        self, step: int, model: nn.Module, optimiser: Optimizer, extra: Groups, state: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of a step."""
        tensors: dict[str, Mapping[str, Tensor]] = {**named_state(model, optimiser), **extra}
        if self.parallel.ranks > 1:
            save_sharded(self.root, step, tensors, state, parallel=self.parallel, keep=self.keep)
            return
        whole = {group: self.parallel.gather(named) for group, named in tensors.items()}
        save_checkpoint(self.root, step, whole, state, keep=self.keep)

    def newest(self) -> Sharded | None:
        """The newest whole checkpoint, whoever wrote it."""
        return load_sharded(self.root, parallel=self.parallel)

    def restore(self, saved: Sharded, model: nn.Module, optimiser: Optimizer, extra: Groups) -> None:
        """Fill the model, the optimiser and the further tensors from a checkpoint."""
        begun = bool(saved.outlines["optimiser"])
        for group, targets in {**named_state(model, optimiser, begin=begun), **extra}.items():
            saved.fill(group, targets)
