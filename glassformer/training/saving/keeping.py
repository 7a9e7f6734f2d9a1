"""Folders that are replaced whole, and weights kept to be averaged."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.checksums import verify_checksums, write_checksums
from glassformer.weights.replacing import sync_folder
from glassformer.weights.rounded import Stored
from glassformer.weights.store import open_weights, save_weights


def replace_folder(path: Path, write: Callable[[Path], object]) -> None:
    """Write a folder beside, then let it take the name; a kill leaves the old one or the new one."""
    part, old = path.with_name(f".{path.name}.part"), path.with_name(f".{path.name}.old")
    try:
        shutil.rmtree(part, ignore_errors=True)
        write(part)
        sync_folder(part)
        if path.exists():
            shutil.rmtree(old, ignore_errors=True)
            os.rename(path, old)
        os.rename(part, path)
        sync_folder(path.parent)
        shutil.rmtree(old, ignore_errors=True)
    except OSError as error:
        raise GlassformerError(
            f"'{path}' could not be written ({error.strerror or error}); free space or mend the folder, "
            "then run the same command again"
        ) from error


def mend_folder(path: Path) -> None:
    """Undo a replacement that was cut off between its two renames."""
    old = path.with_name(f".{path.name}.old")
    if old.exists() and not path.exists():
        os.rename(old, path)


def averaged(folders: Iterable[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several folders, tensor by tensor, summed in float64."""
    paths = list(folders)
    if not paths:
        raise GlassformerError("there are no weights to average; name at least one folder")
    opened = [Stored(open_weights(path), path) for path in paths]
    first = opened[0]
    for path, weights in zip(paths[1:], opened[1:], strict=True):
        _refuse_unlike(first, weights, paths[0], path)
    found = {}
    for name in first:
        tensor = first.widened(name)
        if not tensor.is_floating_point():
            found[name] = tensor.clone()
            continue
        total = torch.zeros(tensor.shape, dtype=torch.float64)
        for weights in opened:
            total += weights.widened(name).double()
        found[name] = (total / len(opened)).to(tensor.dtype)
    return found


def _refuse_unlike(one: Mapping[str, Tensor], other: Mapping[str, Tensor], here: Path, there: Path) -> None:
    """A sentence where two folders do not hold the same tensors."""
    for name in (*one, *other):
        if name not in one or name not in other or one[name].shape != other[name].shape:
            raise GlassformerError(
                f"'{here}' and '{there}' are not the same model: '{name}' differs; average folders of one run"
            )


def average_folders(folders: Iterable[Path], out: Path) -> None:
    """A model folder with the averaged weights, and all else as the first folder has it."""
    paths = list(folders)
    weights = averaged(paths)
    for path in paths:
        verify_checksums(path)
    out.mkdir(parents=True)
    kept = [path.name for path in paths[0].iterdir() if path.is_file() and not _is_weights(path.name)]
    for name in kept:
        shutil.copyfile(paths[0] / name, out / name)
    write_checksums(out, [*kept, *save_weights(out, weights)])


def _is_weights(name: str) -> bool:
    return name.endswith((".safetensors", ".safetensors.index.json")) or name == "checksums.json"
