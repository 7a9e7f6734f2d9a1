"""Training speed of models of the same size on longer and longer strings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

import torch
from torch import nn

from experiments.paths import Workspace
from experiments.records import note
from experiments.training_runs import Trained
from glassformer.baselines import build_baseline, lstm_spec
from glassformer.recipes import recipe_path
from glassformer.training.hardware import device_for
from glassformer.training.learner import PairLearner
from glassformer.training.model_setup import build_initialized, new_model_spec
from glassformer.training.recipe import parse_recipe, read_recipe_dict, with_overrides

LENGTHS = (16, 32, 64, 128, 256, 512)  # symbols of each string
VOCABULARY = 40
A_STEP = {"cuda": 32_768, "cpu": 2_048}  # target symbols of a step, whatever the length of its strings
WARMING, TIMED = 3, 10  # steps before and within the measurement


def run(
    workspace: Workspace, row: str, name: str, *, seed: int, models: dict[str, tuple[str, Sequence[str]]]
) -> None:
    """Record target symbols per second of each model at each length: {"transformer at 16": ..., ...}."""
    began, device = time.perf_counter(), device_for(workspace.device)
    torch.manual_seed(seed)
    figures, sizes = {}, []
    for model, (recipe, changes) in models.items():
        learner = PairLearner(built(recipe, changes)).to(device).train()
        sizes.append(sum(one.numel() for one in learner.parameters()))
        for length in LENGTHS:
            rows = max(1, A_STEP[device.type] // length)
            figures[f"{model} at {length}"] = rows * length / seconds_per_step(learner, rows, length, device)
    measured = Trained(
        folder=workspace.run(row, name),
        seconds=time.perf_counter() - began,
        parameters=sizes[0],
        of="",
        curve=[],
    )
    rounded = {key: round(value) for key, value in figures.items()}
    note(workspace, row, name, seed=seed, trained=measured, figures=rounded)


def built(recipe: str, changes: Sequence[str]) -> nn.Module:
    """The model of a recipe, for strings of symbols."""
    options = parse_recipe(with_overrides(read_recipe_dict(recipe_path(recipe)), changes)).model
    sizes = {"src_vocab_size": VOCABULARY, "tgt_vocab_size": VOCABULARY, "tied": ("source", "head")}
    if options.preset == "lstm":
        return build_baseline(lstm_spec("LSTMEncoderDecoder", options.overrides, **sizes))
    return build_initialized(new_model_spec(options, sizes))


def seconds_per_step(learner: PairLearner, rows: int, length: int, device: torch.device) -> float:
    """The median time of a few optimizer steps, not compiled."""
    optimizer = torch.optim.AdamW(learner.parameters(), lr=1e-4)
    strings = torch.randint(4, VOCABULARY, (rows, length), device=device)
    durations = []
    for _ in range(WARMING + TIMED):
        began = _now(device)
        optimizer.zero_grad()
        (learner(strings, strings, strings) / strings.numel()).backward()
        optimizer.step()
        durations.append(_now(device) - began)
    return median(durations[WARMING:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
