"""Activation checkpointing: a block keeps only its input and is run again in the backward pass.

A block changes its class and nothing else, so module paths and checkpoint keys stay the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from glassformer.core.block import Block
from glassformer.training.learner import BatchNormState


class CheckpointedBlock(Block):
    """A block that recomputes its activations; dropout draws the same numbers the second time."""

    def forward(self, x: Tensor, memory: Tensor | None = None, **kwargs: Any) -> Tensor:
        # with a cache or an observer, which a second run would disturb, there is no training
        cache = getattr(kwargs.get("attend"), "cache", None)
        inference = cache is not None or kwargs.get("obs") is not None
        if not torch.is_grad_enabled() or inference:
            return super().forward(x, memory, **kwargs)
        state = BatchNormState(self)
        if state.tensors and not torch.compiler.is_compiling():
            kwargs["context_fn"] = lambda: (nullcontext(), _preserved(state))
        out: Tensor = checkpoint(
            super().forward, x, memory, use_reentrant=False, preserve_rng_state=True, **kwargs
        )
        return out


@contextmanager
def _preserved(state: BatchNormState) -> Iterator[None]:
    """Keep batch-norm statistics from counting the recomputation."""
    state.save()
    try:
        yield
    finally:
        state.restore()


def checkpoint_activations(model: nn.Module) -> int:
    """Enable activation checkpointing for every block; the number of blocks. Call it before `wrap`."""
    blocks = [module for module in model.modules() if type(module) is Block]
    for block in blocks:
        block.__class__ = CheckpointedBlock
    return len(blocks)
