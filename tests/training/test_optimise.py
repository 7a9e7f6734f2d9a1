"""Steps of the loop are those of a plain loop in torch: loss, clipping, optimiser, rate, running average."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.data import Place
from glassformer.data.examples import IGNORED
from glassformer.training.trainer import Loop
from tests.training.reversing import PAD, WORDS, loop_in, weights

STEPS, WARMUP, LR, DECAY, CLIP = 6, 2, 3e-3, 0.9, 0.5
RATES = {  # what each schedule multiplies the rate by after the warm-up, written as it is published
    "inverse_sqrt": lambda step: math.sqrt(WARMUP / step),
    "cosine": lambda step: (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2,
    "linear": lambda step: (STEPS - step) / (STEPS - WARMUP),
    "constant": lambda step: 1.0,
}


def plain(loop: Loop, optimiser: str, schedule: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights after all steps, and their running average, of a loop as one writes it by hand."""
    model: Any = deepcopy(loop.learner.model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    given: dict[str, Any] = {"lr": LR, "betas": WORDS.betas, "eps": WORDS.eps, "fused": False}
    moved: torch.optim.Optimizer
    if optimiser == "adamw":
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        moved = torch.optim.AdamW(groups, **given)
    else:
        moved = torch.optim.Adam(model.parameters(), **given)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step, portion in enumerate(islice(loop.feed.portions(Place()), STEPS), 1):
        batches = [piece.tensors for piece in portion.pieces]
        units = sum(int((batch["labels"] != IGNORED).sum()) for batch in batches)
        for batch in batches:
            logits = model(batch["src"], batch["tgt"], src_mask=batch["src"] != PAD)
            flat = logits.flatten(0, 1), batch["labels"].flatten()
            loss = F.cross_entropy(*flat, reduction="sum", ignore_index=IGNORED, label_smoothing=0.1)
            (loss / units).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), CLIP) > CLIP
        for group in moved.param_groups:
            group["lr"] = LR * (step / WARMUP if step <= WARMUP else RATES[schedule](step))
        moved.step()
        moved.zero_grad()
        decay = min(DECAY, (1 + step) / (10 + step))
        for name, p in model.named_parameters():
            average[name] = decay * average[name] + (1 - decay) * p.detach()
    return dict(model.named_parameters()), average


@pytest.mark.parametrize(
    ("optimiser", "schedule"),
    [("adamw", "cosine"), ("adamw", "linear"), ("adamw", "constant"), ("adam", "inverse_sqrt")],
)
def test_steps_are_those_of_a_plain_loop(tmp_path: Path, optimiser: Any, schedule: Any) -> None:
    rate: dict[str, Any] = {"steps": STEPS, "warmup": WARMUP, "lr": LR, "schedule": schedule}
    moves: dict[str, Any] = {"optimiser": optimiser, "weight_decay": 0.1, "clip": CLIP, "ema": DECAY}
    words = replace(WORDS, accumulate=2, **rate, **moves)
    with loop_in(tmp_path, words, dropout=0.0) as loop:
        expected, average = plain(loop, optimiser, schedule)
        begun = weights(loop)
        loop.run()
        assert loop.ema is not None
        for name, theirs in expected.items():
            ours = dict(loop.learner.model.named_parameters())[name]
            assert not torch.equal(ours, begun[name]), name
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-4)
            torch.testing.assert_close(loop.ema.tensors[name], average[name], atol=2e-6, rtol=1e-4)
