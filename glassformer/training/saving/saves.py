"""A run's checkpoints, whole or in slices: one process writes whole files, several write a slice each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from glassformer.training.parallel import Parallel
from glassformer.training.saving.checkpoint import save_checkpoint
from glassformer.training.saving.named import named_state
from glassformer.training.saving.sharded import Sharded as Saved
from glassformer.training.saving.sharded import load_sharded, save_sharded

Groups = Mapping[str, Mapping[str, Tensor]]


class Saving:
    """Saves and restores under a folder; every rank makes the same calls."""

    def __init__(self, root: Path, parallel: Parallel, *, keep: int) -> None:
        self.root, self.parallel, self.keep = root, parallel, keep

    def save(
        self, step: int, model: nn.Module, optimiser: Optimizer, extra: Groups, state: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of a step."""
        tensors: dict[str, Mapping[str, Tensor]] = {**named_state(model, optimiser), **extra}
        if self.parallel.ranks > 1:
            save_sharded(self.root, step, tensors, state, parallel=self.parallel, keep=self.keep)
            return
        whole = {group: self.parallel.gather(named) for group, named in tensors.items()}
        save_checkpoint(self.root, step, whole, state, keep=self.keep)

    def newest(self) -> Saved | None:
        """The newest whole checkpoint, whoever wrote it."""
        return load_sharded(self.root, parallel=self.parallel)

    def restore(self, saved: Saved, model: nn.Module, optimiser: Optimizer, extra: Groups) -> None:
        """Fill the model, the optimiser and the further tensors from a checkpoint."""
        begun = bool(saved.outlines["optimiser"])
        for group, targets in {**named_state(model, optimiser, begin=begun), **extra}.items():
            saved.fill(group, targets)
