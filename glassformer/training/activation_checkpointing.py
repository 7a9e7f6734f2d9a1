"""Memory for time: a block keeps only its input for the way back, and is run again when the gradient comes.

The block changes its class and nothing else, so that every module path and checkpoint key stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.core.block import Block
from glassformer.training.learner import Statistics


class RecomputedBlock(Block):
    """A block that forgets what it worked out; dropout draws the same numbers the second time."""

    def forward(self, x: Tensor, memory: Tensor | None = None, **how: Any) -> Tensor:
        # A cache would grow twice and an observer see everything twice, and both mean that no one trains.
        if (
            not torch.is_grad_enabled()
            or getattr(how.get("attend"), "cache", None) is not None
            or how.get("obs") is not None
        ):
            return super().forward(x, memory, **how)
        statistics = Statistics(self)
        if statistics.tensors and not torch.compiler.is_compiling():  # which runs only the rest again
            how["context_fn"] = lambda: (nullcontext(), _uncounted(statistics))
        out: Tensor = checkpoint(
            super().forward, x, memory, use_reentrant=False, preserve_rng_state=True, **how
        )
        return out


@contextmanager
def _uncounted(statistics: Statistics) -> Iterator[None]:
    """What norms keep of the batches does not move when they see one for the second time."""
    statistics.remember()
    try:
        yield
    finally:
        statistics.put_back()


def checkpoint_blocks(model: nn.Module) -> int:
    """Have every block of a model recomputed in the backward; how many there are. Do it before `wrap`."""
    blocks = [module for module in model.modules() if type(module) is Block]
    for block in blocks:
        block.__class__ = RecomputedBlock
    return len(blocks)
