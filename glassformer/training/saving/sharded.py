"""Checkpoints of which every rank writes its own slices, to be resumed on any number of ranks.

    checkpoints/step-00000400/
      model/       shard-00001-model-00001-of-00001.safetensors  shard-00002-...
      optimiser/   likewise
      state.json   checksums.json

They lie among those of `checkpoint.py`, and are whole or not there in the same way. torch's distributed
checkpoint does the slicing, with its safetensors storage, for its usual one has pickled metadata.
"""

from __future__ import annotations

import json
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
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter

from glassformer.errors import GlassformerError
from glassformer.training.parallel import Parallel
from glassformer.training.saving.checkpoint import newest_whole, none_whole, prune, remove_unfinished
from glassformer.training.saving.named import Tensors, misfit
from glassformer.training.saving.slices import Slices
from glassformer.weights.checksums import write_checksums
from glassformer.weights.replacing import make_folder, replacing, sync_folder

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
