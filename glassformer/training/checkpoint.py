"""Save and load the crash-safe checkpoints and the model folders of a run.

    checkpoints/
      step-00000400/   model/model.safetensors  optimizer/...  state.json  checksums.json
      step-00000800/
      latest           the name of the newest checkpoint

A checkpoint is written to a temporary folder and each file is fsynced, the checksums last. Then the folder is
renamed, `latest` is updated, and only then are older checkpoints deleted. If the step was saved before, its
old folder is renamed to `.step-00000400.1a2b3c4d.old` meanwhile and can still be loaded. Tensors are saved as
safetensors and the rest as JSON; nothing is pickled. Rank 0 writes the full tensors, so a run can be resumed
on any number of ranks.

    model        encoder.blocks.0.ffn.up.weight              parameter names without DDP or compile prefixes
    optimizer    exp_avg.encoder.blocks.0.ffn.up.weight      the kind of state, then the parameter
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from glassformer.errors import (
    ConflictError,
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    GlassformerError,
)
from glassformer.pretrained import SNAPSHOTS
from glassformer.training.distributed import Parallel, Tensors
from glassformer.weights.atomic_write import make_folder, sync_folder, write_file
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums
from glassformer.weights.int8 import StoredWeights
from glassformer.weights.store import open_weights, save_weights

_NAME = re.compile(r"step-(\d{8,})")
_REPLACED = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.old")
FIRST_SNAPSHOT = 0.01  # the first snapshot after step 0, as a fraction of the run
_COMPILED = "_orig_mod."  # torch.compile's prefix of parameter names


@dataclass(eq=False)
class CheckpointWriteError(GlassformerError):
    """A checkpoint could not be written; earlier checkpoints are intact."""

    step: int
    folder: Path
    reason: str
    hint: str = "free disk space or fix the folder; earlier checkpoints are intact"
    template: ClassVar[str] = "the checkpoint of step {step:,} could not be written to {folder} ({reason})"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: tensors by group and name, and the rest of the state.

    damaged: why newer checkpoints were skipped.
    """

    step: int
    folder: Path
    tensors: Mapping[str, Tensors]
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()


def save_checkpoint(
    folder: str | Path, step: int, tensors: Mapping[str, Tensors], state: Mapping[str, Any], *, keep: int = 2
) -> Path:
    """Write the checkpoint of a step and delete all but the `keep` newest; see the module's docstring.

    tensors: by group and name. state: JSON data. After an error, earlier checkpoints are intact.
    """
    root = Path(folder)
    final = root / f"step-{step:08}"
    temporary, replaced = (root / f".{final.name}.{secrets.token_hex(4)}.{end}" for end in ("part", "old"))
    content = {"step": step, "groups": list(tensors), "state": dict(state)}
    try:
        make_folder(root)
        _remove_unfinished(root)  # before writing, since their disk space may be needed
        temporary.mkdir()
        names = [
            f"{group}/{name}" for group in tensors for name in save_weights(temporary / group, tensors[group])
        ]
        write_file(temporary / "state.json", json.dumps(content).encode())
        write_checksums(temporary, ["state.json", *names])
        sync_folder(temporary)
        if final.exists():
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync_folder(root)
        write_file(root / "latest", f"{final.name}\n".encode())
    except (OSError, GlassformerError) as error:
        with suppress(OSError):
            if replaced.exists() and not final.exists():
                os.rename(replaced, final)
        _remove_unfinished(root)
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise  # not an I/O error
        raise CheckpointWriteError(step, root, cause.strerror or str(cause)) from error
    _prune(root, keep=max(keep, 1), step=step)
    return final


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """Load the newest checkpoint whose checksums match; None if there is no checkpoint.

    Raises an error if there are only damaged ones.
    """
    root = Path(folder)
    damaged: list[str] = []
    for _, path in newest_first(root):
        try:
            if not verify_checksums(path):
                raise FileMissingError(path / CHECKSUMS_FILE)
            content = json.loads((path / "state.json").read_bytes())
            groups = {group: open_weights(path / group) for group in content["groups"]}
        except (GlassformerError, OSError, ValueError, KeyError) as error:
            damaged.append(error.message() if isinstance(error, FileProblemError) else str(error))
        else:
            return Checkpoint(
                step=content["step"],
                folder=path,
                tensors=groups,
                state=content["state"],
                damaged=tuple(damaged),
            )
    if damaged:
        problem = f"has no intact checkpoint ({damaged[0]})"
        raise FileProblemError(root, problem, hint="move the folder away to start from scratch")
    return None


def newest_first(root: Path) -> list[tuple[int, Path]]:
    """List the checkpoints, newest step first; of the same step, the current one before the replaced one."""
    try:
        paths = list(root.iterdir()) if root.is_dir() else []
    except OSError as error:
        raise FileProblemError(root, f"cannot be read ({error.strerror})") from error
    current = [(int(match[1]), True, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    replaced = [(int(match[1]), False, path) for path in paths if (match := _REPLACED.fullmatch(path.name))]
    return [(step, path) for step, _, path in sorted(current + replaced, reverse=True)]


def _prune(root: Path, *, keep: int, step: int) -> None:
    """Delete all but the `keep` newest checkpoints up to `step`, ignoring errors.

    A checkpoint newer than `step` is damaged, since the run resumed from an older one; it is not counted.
    """
    with suppress(GlassformerError):
        recent: set[int] = set()
        for saved_step, path in newest_first(root):
            if saved_step > step:
                continue
            if saved_step in recent or len(recent) >= keep:
                shutil.rmtree(path, ignore_errors=True)
            else:
                recent.add(saved_step)


def _remove_unfinished(root: Path) -> None:
    """Delete the temporary folders of interrupted saves."""
    with suppress(OSError):
        for path in root.glob(".step-*.part"):
            shutil.rmtree(path, ignore_errors=True)


class CheckpointManager:
    """Save and restore the checkpoints of a run. Every rank makes the same calls; rank 0 writes."""

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
        """Write the checkpoint of a step. extra: more groups of tensors, e.g. the EMA. state: JSON data."""
        tensors = {**named_state(model, optimizer), **extra}
        full = {group: self.parallel.gather_to_cpu(named) for group, named in tensors.items()}
        failure: GlassformerError | None = None
        if self.parallel.main:
            try:
                save_checkpoint(self.root, step, full, state, keep=self.keep)
            except GlassformerError as error:
                failure = error
        if self.parallel.any(failure is not None):
            raise failure or CheckpointWriteError(step, self.root, "rank 0 reports why")

    def newest(self) -> Checkpoint | None:
        """Load the newest intact checkpoint, and check that all ranks load the same one."""
        checkpoint = load_checkpoint(self.root)
        step = -1 if checkpoint is None else checkpoint.step
        if self.parallel.any(int(self.parallel.sum(torch.tensor(step))) != step * self.parallel.ranks):
            raise ConflictError(
                ("ranks",),
                f"they see different checkpoints in {self.root}",
                "use a filesystem shared by all ranks",
            )
        return checkpoint

    def restore(
        self, checkpoint: Checkpoint, model: nn.Module, optimizer: Optimizer, extra: Mapping[str, Tensors]
    ) -> None:
        """Copy a checkpoint into the model, the optimizer and the tensors of `extra`."""
        initialize = bool(checkpoint.tensors["optimizer"])
        for group, targets in {**named_state(model, optimizer, initialize=initialize), **extra}.items():
            fill(targets, checkpoint.tensors[group])


def named_state(module: nn.Module, optimizer: Optimizer, *, initialize: bool = False) -> dict[str, Tensors]:
    """Return references to the weights and the optimizer state by name, for saving or filling.

    A tied weight appears under its first name only.
    initialize: create the state of an optimizer that has not made a step yet.
    """
    learner = module.module if isinstance(module, DistributedDataParallel) else module
    state: Any = {}
    if optimizer.state or initialize:
        state = get_optimizer_state_dict(learner, optimizer)["state"]
    return {
        "model": model_state(learner),
        "optimizer": {
            f"{kind}.{name}": value
            for name, values in state.items()
            for kind, value in values.items()
            if isinstance(value, Tensor)
        },
    }


def model_state(module: nn.Module) -> dict[str, Tensor]:
    """Return references to the weights by name; a tied weight appears under its first name only."""
    unique = dict(module.named_parameters())
    duplicates = dict(module.named_parameters(remove_duplicate=False)).keys() - unique.keys()
    tied = {name.replace(_COMPILED, "") for name in duplicates}
    weights: Any = get_model_state_dict(module)
    return {name: value for name, value in weights.items() if name not in tied}


@torch.no_grad()
def fill(targets: Tensors, values: Tensors) -> None:
    """Copy full tensors into the target tensors, which are sharded under FSDP."""
    for name in sorted(targets.keys() ^ values.keys()):
        raise _mismatch(f"{name} is {'missing' if name in targets else 'unexpected'}")
    for name, target in targets.items():
        value = values[name]
        if target.shape != value.shape:
            raise _mismatch(f"{name} has shape {tuple(value.shape)} instead of {tuple(target.shape)}")
        if isinstance(target, DTensor):
            value = value.to(target.device)
            value = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
        target.copy_(value)


def _mismatch(problem: str) -> ConflictError:
    return ConflictError(("the checkpoint", "this run"), problem, "resume it with the recipe that wrote it")


# ---- model folders ----------------------------------------------------------------------------------------


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a folder atomically: `write` fills a temporary folder, which is then renamed.

    After a crash either the old or the new folder exists.
    """
    temporary, old = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        write(temporary)
        sync_folder(temporary)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
        os.rename(temporary, path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise FileProblemError(
            path,
            f"could not be written ({error.strerror or error})",
            hint="free disk space or fix the folder, then run the same command again",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def recover_folder(path: Path) -> None:
    """Restore the old folder if `replace_folder` was interrupted between its two renames."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        os.rename(old, path)


def average_weights(folders: Iterable[Path]) -> dict[str, Tensor]:
    """Return the mean of the weights of several folders, summed in float64."""
    paths = list(folders)
    if not paths:
        raise EmptyInputError("list of folders to average")
    sources = [StoredWeights(open_weights(path), path) for path in paths]
    first = sources[0]
    for path, weights in zip(paths[1:], sources[1:], strict=True):
        for name in (*first, *weights):
            if name not in first or name not in weights or first[name].shape != weights[name].shape:
                raise ConflictError(
                    (str(paths[0]), str(path)), f"'{name}' differs", "average folders of one run"
                )
    averaged = {}
    for name in first:
        tensor = first.dequantize(name)
        if not tensor.is_floating_point():
            averaged[name] = tensor.clone()
            continue
        total = torch.zeros(tensor.shape, dtype=torch.float64)
        for weights in sources:
            total += weights.dequantize(name).double()
        averaged[name] = (total / len(sources)).to(tensor.dtype)
    return averaged


def average_folders(folders: Iterable[Path], out: Path) -> None:
    """Write a model folder with the averaged weights and the other files of the first folder."""
    paths = list(folders)
    weights = average_weights(paths)
    for path in paths:
        verify_checksums(path)
    out.mkdir(parents=True, exist_ok=True)
    names = [path.name for path in paths[0].iterdir() if path.is_file() and not _is_weights(path.name)]
    for name in names:
        shutil.copyfile(paths[0] / name, out / name)
    write_checksums(out, [*names, *save_weights(out, weights)])


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json")) or name == CHECKSUMS_FILE


def snapshot_steps(count: int, steps: int) -> frozenset[int]:
    """Return the steps of `count` snapshots from 0 to `steps`, spaced geometrically: most changes are early.

    >>> sorted(snapshot_steps(6, 1000))
    [0, 10, 32, 100, 316, 1000]
    """
    if count < 3:
        return frozenset([steps, 0][:count])
    first = max(1.0, FIRST_SNAPSHOT * steps)
    return frozenset({0, *(round(first * (steps / first) ** (n / (count - 2))) for n in range(count - 1))})


def save_snapshot(run: Path, step: int, save: Callable[[Path], object], log: Callable[[str], None]) -> None:
    """Save the model of a step in `snapshots/`; an error is logged and does not stop the run."""
    try:
        replace_folder(run / SNAPSHOTS / f"step-{step:08}", save)
    except GlassformerError as error:
        log(f"no snapshot of step {step:,}: {error}")
