"""Crash-safe checkpoints: complete and verified, or not there at all.

    checkpoints/
      step-00000400/   model/model.safetensors  optimizer/...  state.json  checksums.json
      step-00000800/
      latest           the name of the newest

A checkpoint is written into a temporary folder: every file is flushed to disk, the checksums last; then the
folder is renamed, then `latest` updated, and only then are older ones deleted. If the step was saved before,
that folder is renamed to `.step-00000400.1a2b3c4d.old` meanwhile, and can be loaded from there. Tensors are
safetensors, the rest is JSON; nothing is pickled.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from glassformer.errors import FileMissingError, FileProblemError, GlassformerError
from glassformer.weights.atomic_write import atomic_write, make_folder, sync_folder
from glassformer.weights.checksums import CHECKSUMS_FILE, verify_checksums, write_checksums
from glassformer.weights.store import open_weights, save_weights

Opened = TypeVar("Opened")
_NAME = re.compile(r"step-(\d{8,})")
_REPLACED = re.compile(r"\.step-(\d{8,})\.[0-9a-f]{8}\.old")


@dataclass(eq=False)
class CheckpointWriteError(GlassformerError):
    """A checkpoint could not be written; earlier ones are intact."""

    step: int
    folder: Path
    reason: str
    hint: str = "free disk space or fix the folder; earlier checkpoints are intact"
    template: ClassVar[str] = "the checkpoint of step {step:,} could not be written to {folder} ({reason})"


@dataclass(eq=False)
class NoIntactCheckpointError(GlassformerError):
    """There are checkpoints, but all are damaged."""

    folder: Path
    reason: str
    hint: str = "move the folder away to start from scratch"
    template: ClassVar[str] = "no checkpoint in {folder} is intact ({reason})"


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A complete checkpoint: tensors by group and name, and the rest of the state.

    damaged: why newer checkpoints were skipped.
    """

    step: int
    folder: Path
    tensors: Mapping[str, Mapping[str, Tensor]]
    state: dict[str, Any]
    damaged: tuple[str, ...] = ()


def save_checkpoint(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    *,
    keep: int = 2,
) -> Path:
    """Write the checkpoint of a step and keep the `keep` newest. On an error the earlier ones are intact."""
    root = Path(folder)
    temporary = root / f".step-{step:08}.{secrets.token_hex(4)}.part"
    try:
        make_folder(root)
        remove_unfinished(root)  # before writing: their disk space may be needed
        temporary.mkdir()
        names = [
            f"{group}/{name}"
            for group, values in tensors.items()
            for name in save_weights(temporary / group, values)
        ]
        return commit_checkpoint(temporary, step, names, groups=list(tensors), state=state, keep=keep)
    except (OSError, GlassformerError) as error:
        remove_unfinished(root)
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise  # not a problem of the disk
        raise CheckpointWriteError(step, root, cause.strerror or str(cause)) from error


def commit_checkpoint(
    temporary: Path,
    step: int,
    names: Iterable[str],
    *,
    groups: list[str],
    state: Mapping[str, Any],
    keep: int,
) -> Path:
    """Complete a temporary folder with state and checksums, give it its name, delete old checkpoints."""
    root = temporary.parent
    final = root / f"step-{step:08}"
    replaced = root / f".{final.name}.{secrets.token_hex(4)}.old"
    content = {"step": step, "groups": groups, "state": dict(state)}
    with atomic_write(temporary / "state.json") as file:
        file.write(json.dumps(content, allow_nan=True).encode())
    write_checksums(temporary, ["state.json", *names])
    sync_folder(temporary)
    try:
        if final.exists():
            os.rename(final, replaced)
        os.rename(temporary, final)
        sync_folder(root)
        with atomic_write(root / "latest") as file:
            file.write(f"{final.name}\n".encode())
    except (OSError, GlassformerError):
        with suppress(OSError):
            if replaced.exists() and not final.exists():
                os.rename(replaced, final)
        raise
    _prune(root, keep=max(keep, 1), step=step)
    return final


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The newest intact checkpoint; None if there is none at all."""
    root = Path(folder)

    def opened(path: Path) -> Checkpoint:
        content = json.loads((path / "state.json").read_bytes())
        groups = {group: open_weights(path / group) for group in content["groups"]}
        return Checkpoint(step=content["step"], folder=path, tensors=groups, state=content["state"])

    found, damaged = newest_intact(root, opened)
    if found is not None:
        return replace(found, damaged=tuple(damaged))
    if damaged:
        raise NoIntactCheckpointError(root, damaged[0])
    return None


def newest_intact(root: Path, opened: Callable[[Path], Opened]) -> tuple[Opened | None, list[str]]:
    """The newest checkpoint whose checksums match, opened; and what is wrong with newer ones."""
    damaged: list[str] = []
    for _, path in newest_first(root):
        try:
            if not verify_checksums(path):
                raise FileMissingError(path / CHECKSUMS_FILE)
            return opened(path), damaged
        except (GlassformerError, OSError, ValueError, KeyError) as error:
            damaged.append(error.message() if isinstance(error, FileProblemError) else str(error))
    return None, damaged


def newest_first(root: Path) -> list[tuple[int, Path]]:
    """Checkpoints by step; of one step, the current one before the one it replaced."""
    try:
        paths = list(root.iterdir()) if root.is_dir() else []
    except OSError as error:
        raise FileProblemError(root, f"cannot be read ({error.strerror})") from error
    current = [(int(match[1]), True, path) for path in paths if (match := _NAME.fullmatch(path.name))]
    replaced = [(int(match[1]), False, path) for path in paths if (match := _REPLACED.fullmatch(path.name))]
    return [(step, path) for step, _, path in sorted(current + replaced, reverse=True)]


def _prune(root: Path, *, keep: int, step: int) -> None:
    """Delete old checkpoints; failures are harmless. One newer than `step` is damaged and not counted."""
    with suppress(GlassformerError):
        recent: set[int] = set()
        for found, path in newest_first(root):
            if found > step:
                continue
            if found in recent or len(recent) >= keep:
                shutil.rmtree(path, ignore_errors=True)
            else:
                recent.add(found)


def remove_unfinished(root: Path) -> None:
    """Delete what interrupted saves left; it is never loaded."""
    with suppress(OSError):
        for path in root.glob(".step-*.part"):
            shutil.rmtree(path, ignore_errors=True)
