"""Checkpoints of which every rank writes its own shards, resumable on any number of ranks.

    checkpoints/step-00000400/
      model/       shard-00001-model-00001-of-00001.safetensors  shard-00002-...
      optimizer/   likewise
      state.json   checksums.json

They live among those of `checkpoint.py` and are equally crash-safe. torch.distributed.checkpoint does the
sharding with its safetensors storage, since its default one has pickled metadata.

    model        encoder.blocks.0.ffn.up.weight              the model's own names, however it is wrapped
    optimizer    exp_avg.encoder.blocks.0.ffn.up.weight      the kind of state, then the weight

The tensors are the run's own, not copies: filling them restores the run. Under FSDP they are DTensors.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed.checkpoint as dcp
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.training.checkpoint import (
    CheckpointWriteError,
    NoIntactCheckpointError,
    commit_checkpoint,
    newest_intact,
    remove_unfinished,
    save_checkpoint,
)
from glassformer.training.distributed import Parallel, Tensors
from glassformer.weights.atomic_write import make_folder, sync_folder
from glassformer.weights.store import DTYPES, save_weights

_SHARDING_INFO = "DCP_SHARDING_INFO"  # torch's key in the safetensors metadata
_UNSPLIT_BYTES = 1 << 62
_NAME_BYTES = 64
_COMPILED = "_orig_mod."  # torch.compile's prefix of parameter names

# ---- tensors of a run by name ------------------------------------------------------------------------------


@dataclass(eq=False)
class CheckpointMismatchError(GlassformerError):
    """A checkpoint does not fit the model or optimizer of this run."""

    problem: str
    hint: str = "resume it with the recipe that wrote it"
    template: ClassVar[str] = "the checkpoint does not fit this run: {problem}"


def named_state(module: nn.Module, optimizer: Optimizer, *, initialize: bool = False) -> dict[str, Tensors]:
    """The weights and the optimizer's tensors; a tied weight appears under its first name only.

    initialize: create the state of an optimizer that has made no step, to be filled.
    """
    learner = module.module if isinstance(module, DistributedDataParallel) else module
    once = dict(learner.named_parameters())
    duplicates = dict(learner.named_parameters(remove_duplicate=False)).keys() - once.keys()
    tied = {name.replace(_COMPILED, "") for name in duplicates}
    weights: Any = get_model_state_dict(learner)
    state: Any = {}
    if optimizer.state or initialize:
        state = get_optimizer_state_dict(learner, optimizer)["state"]
    return {
        "model": {name.removeprefix("model."): value for name, value in weights.items() if name not in tied},
        "optimizer": {
            f"{kind}.{name.removeprefix('model.')}": value
            for name, values in state.items()
            for kind, value in values.items()
            if isinstance(value, Tensor)
        },
    }


def find_mismatch(targets: Tensors, values: Tensors) -> str:
    """Why `values` cannot be copied into `targets`; empty if they can."""
    for name in sorted(targets.keys() ^ values.keys()):
        return f"{name} is {'missing' if name in targets else 'unexpected'}"
    for name, target in targets.items():
        if target.shape != values[name].shape:
            return f"{name} has shape {tuple(values[name].shape)} instead of {tuple(target.shape)}"
    return ""


# ---- reading shards without ranks --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Shard:
    """Part of a tensor: its file, its offset in the whole, its shape."""

    file: Any
    begin: tuple[int, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(b + size for b, size in zip(self.begin, self.shape, strict=True))


class ShardedTensors(Mapping[str, Tensor]):
    """The tensors of a folder of shards by name, each assembled when accessed.

    A folder with a whole `model.safetensors` is read alike.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("*.safetensors"))
        self._shards: dict[str, list[_Shard]] = {}
        for path in self.files:
            try:
                for name, shard in _read_shards(path):
                    self._shards.setdefault(name, []).append(shard)
            except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
                raise FileProblemError(path, f"damaged shard ({error})") from error
        self.shapes = {name: self._full_shape(name, shards) for name, shards in self._shards.items()}

    def __getitem__(self, name: str) -> Tensor:
        shards = self._shards[name]
        whole = torch.empty(self.shapes[name], dtype=shards[0].dtype)
        for shard in shards:
            region = tuple(slice(b, e) for b, e in zip(shard.begin, shard.end, strict=True))
            whole[region] = shard.file.get_tensor(name)
        return whole

    def __iter__(self) -> Iterator[str]:
        return iter(self._shards)

    def __len__(self) -> int:
        return len(self._shards)

    def meta(self) -> dict[str, Tensor]:
        """Meta tensors: shapes and dtypes without data."""
        return {
            name: torch.empty(shape, dtype=self._shards[name][0].dtype, device="meta")
            for name, shape in self.shapes.items()
        }

    def _full_shape(self, name: str, shards: list[_Shard]) -> tuple[int, ...]:
        """The whole tensor's shape; the shards must cover it exactly."""
        shape = tuple(map(max, zip(*(shard.end for shard in shards), strict=True)))
        covered = sum(math.prod(shard.shape) for shard in shards)
        if covered != math.prod(shape) or len({shard.dtype for shard in shards}) > 1:
            problem = f"a shard is missing: {covered} of {math.prod(shape)} numbers of {name}"
            raise FileProblemError(self.folder, problem)
        return shape


def _read_shards(path: Path) -> Iterator[tuple[str, _Shard]]:
    file = safe_open(path, framework="pt")
    info = json.loads((file.metadata() or {}).get(_SHARDING_INFO, "{}"))
    for name in file.keys():  # noqa: SIM118 - not a mapping
        view = file.get_slice(name)
        shape = tuple(view.get_shape())
        begin = tuple(info[name]["saved_offsets"]) if info else (0,) * len(shape)
        if len(begin) != len(shape):
            raise ValueError(f"the offset of {name} has {len(begin)} dimensions, not {len(shape)}")
        yield name, _Shard(file, begin, shape, DTYPES[view.get_dtype()])


def consolidate(checkpoint: str | Path, out: str | Path | None = None) -> Path:
    """Join the weights of a sharded checkpoint into one `model.safetensors`, one tensor at a time in memory.

    checkpoint: a folder `step-...`. out: the folder to write into, by default `joined` in the checkpoint.
    """
    checkpoint = Path(checkpoint)
    shards = ShardedTensors(checkpoint / "model")
    if not shards:
        raise FileMissingError(checkpoint / "model", "shards", "give the folder of one checkpoint (step-...)")
    folder = checkpoint / "joined" if out is None else Path(out)
    (name,) = save_weights(folder, shards, max_shard_bytes=_UNSPLIT_BYTES)
    return folder / name


# ---- saving and loading with ranks -------------------------------------------------------------------------


def save_sharded(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensors],
    state: Mapping[str, Any],
    *,
    parallel: Parallel,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step, each rank its own shards; collective.

    tensors: the run's own by group and name, whole or DTensors. state: rank 0's.
    """
    root = Path(folder)
    temporary = root / f".step-{step:08}.sharded.part"  # the same for all ranks; other runs are locked out

    def prepare() -> None:
        make_folder(root)
        remove_unfinished(root)
        for group in tensors:
            make_folder(temporary / group)

    def write(group: str) -> None:
        if tensors[group]:
            writer = HuggingFaceStorageWriter(path=str(temporary / group), save_distributed=True)
            with _no_rank_warning():
                dcp.save(dict(tensors[group]), storage_writer=writer, no_dist=parallel.ranks == 1)
            sync_folder(temporary / group)

    def finish() -> None:
        names = []
        for group, values in tensors.items():
            shards = ShardedTensors(temporary / group)
            if problem := find_mismatch(values, shards.meta()):
                raise FileProblemError(temporary / group, f"incomplete: {problem}")
            names += [f"{group}/{path.name}" for path in shards.files]
        commit_checkpoint(temporary, step, names, groups=list(tensors), state=state, keep=keep)

    run = partial(_run_together, parallel, step, root)
    run(prepare if parallel.main else None)
    for group in tensors:
        run(partial(write, group))
    run(finish if parallel.main else None)
    return root / f"step-{step:08}"


@dataclass(frozen=True, kw_only=True)
class ShardedCheckpoint:
    """A complete checkpoint on disk. damaged: on rank 0, why newer ones were skipped."""

    step: int
    folder: Path
    state: dict[str, Any]
    meta: Mapping[str, Tensors]
    parallel: Parallel
    damaged: tuple[str, ...] = ()

    def fill(self, group: str, targets: Tensors) -> None:
        """Read each rank's tensors or shards from the files; collective."""
        problem = find_mismatch(targets, self.meta[group])
        if self.parallel.any(bool(problem)):
            raise CheckpointMismatchError(problem or "another rank reports the mismatch")
        if targets:
            reader = HuggingFaceStorageReader(path=str(self.folder / group))
            with _no_rank_warning():
                dcp.load(dict(targets), storage_reader=reader, no_dist=self.parallel.ranks == 1)


def load_sharded(folder: str | Path, *, parallel: Parallel) -> ShardedCheckpoint | None:
    """The newest intact checkpoint, to `fill` tensors from; None if there is none; collective.

    Those of `save_checkpoint` are read as well, so a run may change between one rank and many.
    """
    root = Path(folder)
    damaged: list[str] = []
    chosen = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
    if parallel.main:
        found, damaged = newest_intact(root, lambda path: (path, _open(path)))
        if found is not None:
            name_bytes = bytearray(found[0].name.encode())
            chosen[: len(name_bytes)] = torch.frombuffer(name_bytes, dtype=torch.uint8)
    # the name is broadcast as bytes, so that only rank 0's view of a shared disk matters
    name = bytes(parallel.sum(chosen).tolist()).rstrip(b"\0")
    if not name:
        if parallel.any(bool(damaged)):
            raise NoIntactCheckpointError(root, damaged[0] if damaged else "rank 0 reports more")
        return None
    path = root / name.decode()
    step, state, meta = _open(path)
    return ShardedCheckpoint(
        step=step, folder=path, state=state, meta=meta, parallel=parallel, damaged=tuple(damaged)
    )


def _open(path: Path) -> tuple[int, dict[str, Any], dict[str, Tensors]]:
    content = json.loads((path / "state.json").read_bytes())
    meta: dict[str, Tensors] = {group: ShardedTensors(path / group).meta() for group in content["groups"]}
    return content["step"], content["state"], meta


@contextmanager
def _no_rank_warning() -> Iterator[None]:
    """Silence torch's warning about saving without other processes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        yield


def _run_together(parallel: Parallel, step: int, root: Path, action: Callable[[], None] | None) -> None:
    """Run this rank's part; if one rank fails, all do."""
    failure: BaseException | None = None
    if action is not None:
        try:
            action()
        except (OSError, GlassformerError, CheckpointException) as error:
            failure = error
    if parallel.any(failure is not None):
        reason = _reason(failure) if failure else "another rank failed and reports why"
        raise CheckpointWriteError(step, root, reason) from failure


def _reason(failure: BaseException) -> str:
    """A short reason; torch's own error holds one for each rank that failed."""
    if isinstance(failure, CheckpointException):
        lines = {rank: str(error).strip().split("\n")[0] for rank, (error, _) in failure.failures.items()}
        return "; ".join(f"rank {rank}: {line}" for rank, line in sorted(lines.items()))
    cause = failure if isinstance(failure, OSError) else failure.__cause__
    return (cause.strerror or str(cause)) if isinstance(cause, OSError) else str(failure)


class CheckpointManager:
    """Saves and restores the checkpoints of a run: one process writes whole files, several write shards.

    Every rank makes the same calls.
    """

    def __init__(self, root: Path, parallel: Parallel, *, keep: int) -> None:
        self.root, self.parallel, self.keep = root, parallel, keep

    def save(
        self,
        step: int,
        model: nn.Module,
        optimizer: Optimizer,
        extra: Mapping[str, Tensors],
        state: Mapping[str, Any],
    ) -> None:
        """Write the checkpoint of a step. extra: further groups of tensors."""
        tensors: dict[str, Tensors] = {**named_state(model, optimizer), **extra}
        if self.parallel.ranks > 1:
            save_sharded(self.root, step, tensors, state, parallel=self.parallel, keep=self.keep)
            return
        whole = {group: self.parallel.gather_to_cpu(named) for group, named in tensors.items()}
        save_checkpoint(self.root, step, whole, state, keep=self.keep)

    def newest(self) -> ShardedCheckpoint | None:
        return load_sharded(self.root, parallel=self.parallel)

    def restore(
        self,
        checkpoint: ShardedCheckpoint,
        model: nn.Module,
        optimizer: Optimizer,
        extra: Mapping[str, Tensors],
    ) -> None:
        """Fill the model, the optimizer and the further tensors from a checkpoint."""
        initialize = bool(checkpoint.meta["optimizer"])
        for group, targets in {**named_state(model, optimizer, initialize=initialize), **extra}.items():
            checkpoint.fill(group, targets)
