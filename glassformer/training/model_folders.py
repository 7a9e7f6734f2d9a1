"""Model folders inside a run: replaced atomically, averaged, and saved as snapshots along the way."""

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


FIRST = 0.01  # of the run, where the first frame after the beginning stands


def film_steps(frames: int, steps: int) -> frozenset[int]:
    """So many steps from 0 to the last, each further from the one before by the same factor.

    Most of what can be seen happens early. A run shorter than its film has a frame each step.

    >>> sorted(film_steps(6, 1000))
    [0, 10, 32, 100, 316, 1000]
    """
    if frames < 1:
        return frozenset()
    if frames < 3:
        return frozenset([steps] if frames == 1 else [0, steps])
    first = max(1.0, FIRST * steps)
    between = range(frames - 1)
    return frozenset({0, *(round(first * (steps / first) ** (n / (frames - 2))) for n in between)})


def keep_frame(run: Path, step: int, save: Callable[[Path], object], say: Callable[[str], None]) -> None:
    """Write the model of a step into `film/`; where that fails it is said, for no run should end of it."""
    try:
        replace_folder(run / "film" / f"step-{step:08}", save)
    except GlassformerError as error:
        say(f"step {step:,} is not in the film: {error}")
