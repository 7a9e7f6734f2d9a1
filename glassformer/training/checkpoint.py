"""Checkpoints that are never half there: whole and checked, or not there at all.

    checkpoints/
      step-00000400/   model/model.safetensors  optimiser/...  state.json  checksums.json
      step-00000800/
      latest           the name of the newest

A checkpoint is written into a folder beside, every file on disk before its name is, the checksums last; then
the folder takes its name, then `latest` names it, and only then older ones go. Where the step was saved
before, that folder steps aside (`.step-00000400.1a2b3c4d.old`) while the new one takes its name, and loads
from there if need be. Tensors are safetensors, all else is JSON; nothing is ever pickled.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor

from glassformer.errors import GlassformerError
from glassformer.weights.checksums import verify_checksums, write_checksums
from glassformer.weights.replacing import make_folder, replacing, sync_folder
from glassformer.weights.store import open_weights, save_weights

Opened = TypeVar("Opened")
_NAME = re.compile(r"step-(\d{8,})")
_ASIDE = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.old")


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A whole checkpoint: tensors by group and name, and the rest of the run's state.

    `passed_over` says which newer ones were damaged, and how.
    """

    step: int
    folder: Path
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    passed_over: tuple[str, ...] = ()


def save_checkpoint(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step; the `keep` newest stay. On any error the earlier ones are untouched."""
    root = Path(folder)
    final = root / f"step-{step:08}"
    part, aside = (root / f".{final.name}.{secrets.token_hex(4)}.{end}" for end in ("part", "old"))
    try:
        make_folder(root)
        remove_unfinished(root)  # before the writing: what a killed save left may be the room that is needed
        part.mkdir()
        names = ["state.json"]
        for group, values in tensors.items():
            names += [f"{group}/{name}" for name in save_weights(part / group, values)]
        content = {"step": step, "groups": list(tensors), "state": dict(state)}
        with replacing(part / "state.json") as file:
            file.write(json.dumps(content, allow_nan=True).encode())
        write_checksums(part, names)
        sync_folder(part)
        if final.exists():
            os.rename(final, aside)
        os.rename(part, final)
        sync_folder(root)
        with replacing(root / "latest") as file:
            file.write(f"{final.name}\n".encode())
    except (OSError, GlassformerError) as error:
        remove_unfinished(root)
        with suppress(OSError):
            if aside.exists() and not final.exists():
                os.rename(aside, final)
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise  # nothing to do with the disk
        size = sum(value.nbytes for values in tensors.values() for value in values.values())
        raise GlassformerError(
            f"The checkpoint of step {step:,} (about {size:,} bytes) could not be written to {root} "
            f"({cause.strerror or cause}); free space or mend the folder. Earlier checkpoints are untouched."
        ) from error
    prune(root, keep=max(keep, 1), step=step)
    return final


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The newest whole checkpoint, damaged ones passed over; None where there is none at all."""
    root = Path(folder)

    def opened(path: Path) -> Checkpoint:
        content = json.loads((path / "state.json").read_bytes())
        groups = {group: open_weights(path / group) for group in content["groups"]}
        return Checkpoint(step=content["step"], folder=path, tensors=groups, state=content["state"])

    found, passed = newest_whole(root, opened)
    if found is None:
        if passed:
            raise none_whole(root, passed[0])
        return None
    return replace(found, passed_over=tuple(passed))


def newest_whole(root: Path, opened: Callable[[Path], Opened]) -> tuple[Opened | None, list[str]]:
    """The newest checkpoint whose every byte is as it was written, opened; and what ails newer ones."""
    passed: list[str] = []
    for _, path in newest_first(root):
        try:
            if not verify_checksums(path):
                raise GlassformerError(f"{path} has no checksums.json")
            return opened(path), passed
        except (GlassformerError, OSError, ValueError, KeyError) as error:
            # What is wrong, without what stands after it: how a folder that someone gave is mended.
            fault, _, _ = str(error).rpartition("; ")
            passed.append(fault or str(error))
    return None, passed


def none_whole(root: Path, why: str) -> GlassformerError:
    """What to say where there are checkpoints, and all are damaged."""
    return GlassformerError(f"No checkpoint in {root} is whole ({why}); move the folder away to begin anew.")


def newest_first(root: Path) -> list[tuple[int, Path]]:
    """By step: `latest` is for people and other programs; a name of its own is whole by construction.

    Of one step, the checkpoint in its place comes before one that stepped aside for it.
    """
    try:
        paths = list(root.iterdir()) if root.is_dir() else []
    except OSError as error:
        raise GlassformerError(f"Could not read the folder {root}: {error.strerror}.") from error
    named = [(int(match[1]), True, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    aside = [(int(match[1]), False, path) for path in paths if (match := _ASIDE.fullmatch(path.name))]
    return [(step, path) for step, _, path in sorted(named + aside, reverse=True)]


def prune(root: Path, *, keep: int, step: int) -> None:
    """Older checkpoints go. A failure here loses nothing, so it is let be.

    One newer than `step` was passed over as damaged: it stays, and does not count.
    """
    with suppress(GlassformerError):
        kept: set[int] = set()
        for found, path in newest_first(root):
            if found > step:
                continue
            if found in kept or len(kept) >= keep:
                shutil.rmtree(path, ignore_errors=True)
            else:
                kept.add(found)


def remove_unfinished(root: Path) -> None:
    """Remove what broken-off saves left; what cannot be removed is never loaded either."""
    with suppress(OSError):
        for path in root.glob(".step-*.part"):
            shutil.rmtree(path, ignore_errors=True)
