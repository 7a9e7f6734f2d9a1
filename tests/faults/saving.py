"""Checkpoints whose every bit follows from (step, attempt), so that whatever is loaded can be told."""

from __future__ import annotations

from pathlib import Path

import torch

from glassformer.training import Checkpoint, load_checkpoint, save_checkpoint

Saved = tuple[int, int]  # step, and which save of that step


def contents(saved: Saved, width: int) -> dict[str, dict[str, torch.Tensor]]:
    step, attempt = saved
    generator = torch.Generator().manual_seed(1000 * step + attempt)
    return {
        "model": {"a": torch.randn(width, 4, generator=generator), "b": torch.randn(3, generator=generator)},
        "optimizer": {"a.step": torch.tensor(float(step)), "a.m": torch.randn(width, generator=generator)},
    }


def save(folder: Path, saved: Saved, *, width: int = 4, keep: int = 2) -> None:
    state = {"attempt": saved[1], "width": width}
    save_checkpoint(folder, saved[0], contents(saved, width), state, keep=keep)


def told(found: Checkpoint | None) -> Saved | None:
    """Which save this is; an error where any number differs from what was saved."""
    if found is None:
        return None
    saved = found.step, int(found.state["attempt"])
    expected = contents(saved, found.state["width"])
    if found.tensors.keys() != expected.keys():
        raise AssertionError(f"{found.folder} holds the groups {sorted(found.tensors)}")
    for group, values in expected.items():
        given = found.tensors[group]
        if given.keys() != values.keys() or not all(
            torch.equal(given[name], values[name]) for name in values
        ):
            raise AssertionError(f"{found.folder} was accepted with other numbers than were saved")
    return saved


def loaded(folder: Path) -> Saved | None:
    return told(load_checkpoint(folder))
