"""Model folders of a run: replaced atomically, averaged, and saved as snapshots along the way."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import ConflictError, EmptyInputError, FileProblemError, GlassformerError
from glassformer.pretrained import SNAPSHOTS
from glassformer.weights.atomic_write import sync_folder
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums
from glassformer.weights.int8 import StoredWeights
from glassformer.weights.store import open_weights, save_weights

FIRST_SNAPSHOT = 0.01  # of the run: the first snapshot after the initialization


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a temporary folder, then rename it; a crash leaves the old folder or the new one."""
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


def recover_folder(path: Path) -> None:
    """Undo a replacement that was interrupted between its two renames."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        os.rename(old, path)


def average_weights(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several folders, summed in float64."""
    paths = list(folders)
    if not paths:
        raise EmptyInputError("list of folders to average")
    opened = [StoredWeights(open_weights(path), path) for path in paths]
    first = opened[0]
    for path, weights in zip(paths[1:], opened[1:], strict=True):
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
        for weights in opened:
            total += weights.dequantize(name).double()
        averaged[name] = (total / len(opened)).to(tensor.dtype)
    return averaged


def average_folders(folders: Iterable[Path], out: Path) -> None:
    """A model folder with the averaged weights and the other files of the first folder."""
    paths = list(folders)
    weights = average_weights(paths)
    for path in paths:
        verify_checksums(path)
    out.mkdir(parents=True)
    names = [path.name for path in paths[0].iterdir() if path.is_file() and not _is_weights(path.name)]
    for name in names:
        shutil.copyfile(paths[0] / name, out / name)
    write_checksums(out, [*names, *save_weights(out, weights)])


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json")) or name == CHECKSUMS_FILE


def snapshot_steps(count: int, steps: int) -> frozenset[int]:
    """The steps of `count` snapshots from 0 to the last, spaced geometrically: most changes happen early.

    >>> sorted(snapshot_steps(6, 1000))
    [0, 10, 32, 100, 316, 1000]
    """
    if count < 1:
        return frozenset()
    if count < 3:
        return frozenset([steps] if count == 1 else [0, steps])
    first = max(1.0, FIRST_SNAPSHOT * steps)
    return frozenset({0, *(round(first * (steps / first) ** (n / (count - 2))) for n in range(count - 1))})


def save_snapshot(run: Path, step: int, save: Callable[[Path], object], log: Callable[[str], None]) -> None:
    """Write the model of a step into `snapshots/`; a failure is logged and does not end the run."""
    try:
        replace_folder(run / SNAPSHOTS / f"step-{step:08}", save)
    except GlassformerError as error:
        log(f"no snapshot of step {step:,}: {error}")
