"""The trainer equals a plain PyTorch loop: loss, clipping, optimizer, learning rate, EMA; schedules."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.data import DataPosition
from glassformer.data.examples import IGNORE_INDEX
from glassformer.training.optimizer import LRSchedule, build_optimizer
from glassformer.training.trainer import Trainer
from tests.training.reverse_task import OPTIONS, PAD, trainer_in, weights

STEPS, WARMUP, LR, DECAY, CLIP = 6, 2, 3e-3, 0.9, 0.5
RATES = {  # what each schedule multiplies the rate by after the warm-up, written as it is published
    "inverse_sqrt": lambda step: math.sqrt(WARMUP / step),
    "cosine": lambda step: (1 + math.cos(math.pi * (step - WARMUP) / (STEPS - WARMUP))) / 2,
    "linear": lambda step: (STEPS - step) / (STEPS - WARMUP),
    "constant": lambda step: 1.0,
}


def plain(trainer: Trainer, optimizer: str, schedule: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights after all steps, and their running average, of a trainer as one writes it by hand."""
    model: Any = deepcopy(trainer.learner.model)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    options: dict[str, Any] = {"lr": LR, "betas": OPTIONS.betas, "eps": OPTIONS.eps, "fused": False}
    moved: torch.optim.Optimizer
    if optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        moved = torch.optim.AdamW(groups, **options)
    else:
        moved = torch.optim.Adam(model.parameters(), **options)
    average = {name: p.detach().clone() for name, p in model.named_parameters()}
    for step, batches in enumerate(islice(trainer.loader.steps(DataPosition()), STEPS), 1):
        tensors = [batch.inputs for batch in batches.batches]
        units = sum(int((batch["labels"] != IGNORE_INDEX).sum()) for batch in tensors)
        for batch in tensors:
            logits = model(batch["src"], batch["tgt"], batch["src"] != PAD)
            flat = logits.flatten(0, 1), batch["labels"].flatten()
            loss = F.cross_entropy(*flat, reduction="sum", ignore_index=IGNORE_INDEX, label_smoothing=0.1)
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
    ("optimizer", "schedule"),
    [("adamw", "cosine"), ("adamw", "linear"), ("adamw", "constant"), ("adam", "inverse_sqrt")],
)
def test_steps_match_a_plain_pytorch_loop(tmp_path: Path, optimizer: Any, schedule: Any) -> None:
    rate: dict[str, Any] = {"max_steps": STEPS, "warmup_steps": WARMUP, "lr": LR, "lr_scheduler": schedule}
    moves: dict[str, Any] = {"optimizer": optimizer, "weight_decay": 0.1, "max_grad_norm": CLIP, "ema": DECAY}
    options = replace(OPTIONS, gradient_accumulation_steps=2, **rate, **moves)
    with trainer_in(tmp_path, options, dropout=0.0) as trainer:
        expected, average = plain(trainer, optimizer, schedule)
        initial = weights(trainer)
        trainer.run_steps()
        assert trainer.ema is not None
        for name, theirs in expected.items():
            ours = dict(trainer.learner.model.named_parameters())[name]
            assert not torch.equal(ours, initial[name]), name
            torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=1e-4)
            torch.testing.assert_close(trainer.ema.tensors[name], average[name], atol=2e-6, rtol=1e-4)


def test_inverse_sqrt_schedule_matches_the_paper() -> None:
    d_model, warmup = 512, 4000
    ours, peak = LRSchedule(kind="inverse_sqrt", warmup_steps=warmup), (d_model * warmup) ** -0.5
    for step in (1, 2, 100, 3999, 4000, 4001, 10_000, 300_000):
        paper = d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
        assert ours.at(step) * peak == pytest.approx(paper, rel=1e-12)


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_schedules_peak_after_the_warmup_and_end_at_min_lr_ratio(kind: Any) -> None:
    schedule = LRSchedule(kind=kind, warmup_steps=10, max_steps=100, min_lr_ratio=0.05)
    rates = [schedule.at(step) for step in range(1, 150)]
    assert max(rates) == rates[9] == 1.0
    assert all(a < b for a, b in pairwise(rates[:10]))
    assert all(a > b for a, b in pairwise(rates[9:99]))
    assert rates[99:] == pytest.approx([0.05] * 50)


def test_the_longest_prefix_sets_the_learning_rate():
    parameters = {
        name: nn.Parameter(torch.ones(2, 2)) for name in ("embed.a", "embed.b", "embedding", "head")
    }
    options = replace(OPTIONS, lr=1.0, lr_factors={"embed.b": 0.5, "embed": 0.1}, layer_lr_decay=1.0)
    groups = build_optimizer(parameters, options).param_groups
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    assert [rates[id(parameter)] for parameter in parameters.values()] == [0.1, 0.5, 1.0, 1.0]
