"""Checkpoints that are never half there: whole and checked, or not there at all.

    checkpoints/
      step-00000400/   model/model.safetensors  optimiser/...  state.json  checksums.json
      step-00000800/
      latest           the name of the newest

A checkpoint is written into a folder beside, every file on disk before its name is, the checksums last; then
the folder takes its name, then `latest` names it, and only then older ones go. Tensors are safetensors, all
else is JSON; nothing is ever pickled.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from glassformer.core.errors import GlassformerError
from glassformer.weights.checksums import verify_checksums, write_checksums
from glassformer.weights.replacing import replacing, sync_folder
from glassformer.weights.store import open_weights, save_weights

_NAME = re.compile(r"step-(\d{8,})")


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
    part = root / f".{final.name}.{secrets.token_hex(4)}.part"
    try:
        root.mkdir(parents=True, exist_ok=True)
        part.mkdir()
        names = ["state.json"]
        for group, values in tensors.items():
            names += [f"{group}/{name}" for name in save_weights(part / group, values)]
        content = {"step": step, "groups": list(tensors), "state": dict(state)}
        with replacing(part / "state.json") as file:
            file.write(json.dumps(content, allow_nan=True).encode())
        write_checksums(part, names)
        sync_folder(part)
        if final.exists():  # the same step again: the old one makes room only now that the new one is whole
            shutil.rmtree(final)
        os.rename(part, final)
        sync_folder(root)
        with replacing(root / "latest") as file:
            file.write(f"{final.name}\n".encode())
    except OSError as error:
        raise GlassformerError(
            f"The checkpoint of step {step} could not be written to {root} ({error.strerror or error}); "
            "free space or mend the folder. Earlier checkpoints are untouched."
        ) from error
    _prune(root, keep=max(keep, 1), newest=final.name)
    return final


def load_checkpoint(folder: str | Path) -> Checkpoint | None:
    """The newest whole checkpoint, damaged ones passed over; None where there is none at all."""
    root = Path(folder)
    passed: list[str] = []
    for path in _newest_first(root):
        try:
            if not verify_checksums(path):
                raise GlassformerError(f"{path} has no checksums.json")
            content = json.loads((path / "state.json").read_bytes())
            groups = {group: open_weights(path / group) for group in content["groups"]}
        except (GlassformerError, OSError, ValueError, KeyError) as error:
            passed.append(str(error))
            continue
        return Checkpoint(
            step=content["step"],
            folder=path,
            tensors=groups,
            state=content["state"],
            passed_over=tuple(passed),
        )
    if passed:
        raise GlassformerError(
            f"No checkpoint in {root} is whole ({passed[0]}); move the folder away to begin anew."
        )
    return None


def _newest_first(root: Path) -> list[Path]:
    """By step: `latest` is for people and other programs; a name of its own is whole by construction."""
    if not root.is_dir():
        return []
    found = [(int(match[1]), path) for path in root.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, reverse=True)]


def _prune(root: Path, *, keep: int, newest: str) -> None:
    """Older checkpoints go, and what broken-off saves left. A failure here loses nothing, so it is let be."""
    for path in _newest_first(root)[keep:]:
        if path.name != newest:
            shutil.rmtree(path, ignore_errors=True)
    for path in root.glob(".step-*.part"):
        shutil.rmtree(path, ignore_errors=True)
