"""nanoGPT's own model in a plain training loop with the settings of its script, for comparison.

Its model file is not included: set the variable NANOGPT_MODEL to the path of its model.py.
"""

from __future__ import annotations

import importlib.util
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.text_loss import Ids, Scores
from glassformer.errors import GlassformerError

WARMUP, TIMED = 100, 200  # steps in which the rate rises; steps by which the time of one is measured
VALIDATIONS = 10


@dataclass(frozen=True, kw_only=True)
class Size:
    """The size of the model and its batches, as for ours."""

    vocab_size: int
    length: int
    rows: int
    d_model: int = 384
    num_heads: int = 6
    num_layers: int = 6
    dropout: float = 0.2


@dataclass(frozen=True, kw_only=True)
class Learned:
    """The result of one learning rate: best validation loss, curve, steps and their seconds."""

    lr: float
    valid: float
    test: float
    steps: int
    seconds: float
    parameters: int
    curve: list[tuple[int, float]]


Measure = Callable[[Scores, Ids], float]


class Peer:
    """One compiled model, trained from the same initial weights with one learning rate after another."""

    def __init__(self, size: Size, train: Ids, *, device: str, seed: int) -> None:
        torch.manual_seed(seed)
        torch.set_float32_matmul_precision("high")
        self.size, self.train, self.device = size, train, device
        self.random = np.random.default_rng(seed)
        self.model = _model(size).to(device)
        self.fresh = _copied(self.model)
        self.compiled = torch.compile(self.model) if device == "cuda" else self.model

    def learn(self, lr: float, steps: int, each: Callable[[int], None] | None = None) -> float:
        """Train `steps` steps; their seconds, without those of the callback `each`."""
        optimiser = self.model.configure_optimizers(0.1, lr, (0.9, 0.99), self.device)
        batches = self._batches()
        ids, labels = next(batches)
        total, began = 0.0, self._now()
        for step in range(1, steps + 1):
            for group in optimiser.param_groups:
                group["lr"] = lr * _share(step, steps)
            with self._casting():
                _, loss = self.compiled(ids, labels)
            ids, labels = next(batches)  # read while the device works
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            if each is not None and (step == steps or step % max(1, steps // VALIDATIONS) == 0):
                total += self._now() - began
                each(step)
                began = self._now()
        return total + self._now() - began

    def contest(self, lr: float, seconds: float, valid: Ids, test: Ids, measure: Measure) -> Learned:
        """Train for a number of seconds; the weights with the best validation loss are measured."""
        self.learn(lr, 10)  # compiles
        steps = max(VALIDATIONS, int(seconds / (self.learn(lr, TIMED) / TIMED)))
        self.model.load_state_dict(self.fresh)
        curve: list[tuple[int, float]] = []
        best = self.fresh

        def validate(step: int) -> None:
            nonlocal best
            loss = self._measured(measure, valid)
            if loss < min((result for _, result in curve), default=math.inf):
                best = _copied(self.model)
            curve.append((step, loss))

        took = self.learn(lr, steps, validate)
        self.model.load_state_dict(best)
        result = Learned(
            lr=lr,
            valid=self._measured(measure, valid),
            test=self._measured(measure, test),
            steps=steps,
            seconds=took,
            parameters=sum(p.numel() for p in self.model.parameters()),
            curve=curve,
        )
        self.model.load_state_dict(self.fresh)
        return result

    def _measured(self, measure: Measure, ids: Ids) -> float:
        self.model.eval()
        result = measure(lambda window: self.model(window, window)[0], ids)
        self.model.train()
        return result

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        length, pinned = self.size.length, self.device == "cuda"
        while True:
            starts = self.random.integers(len(self.train) - length, size=self.size.rows)
            places = starts[:, None] + np.arange(length)
            both = (torch.from_numpy(self.train[places + ahead]) for ahead in (0, 1))
            ids, labels = (one.pin_memory() if pinned else one for one in both)
            yield ids.to(self.device, non_blocking=True), labels.to(self.device, non_blocking=True)

    def _casting(self) -> AbstractContextManager[object]:
        return torch.autocast("cuda", torch.bfloat16) if self.device == "cuda" else nullcontext()

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def model_file() -> Path:
    """The path of nanoGPT's model.py."""
    path = Path(os.environ.get("NANOGPT_MODEL", ""))
    if not path.is_file() or path.suffix != ".py":
        problem = f"NANOGPT_MODEL is '{path}'" if path.name else "NANOGPT_MODEL is not set"
        raise GlassformerError(
            f"this run needs nanoGPT's model.py, and {problem}; set it to the path of that file"
        )
    return path


def _model(size: Size) -> Any:
    path = model_file()
    result = importlib.util.spec_from_file_location("nanogpt_model", path)
    assert result is not None and result.loader is not None
    module = importlib.util.module_from_spec(result)
    result.loader.exec_module(module)
    if not hasattr(module, "GPT") or not hasattr(module, "GPTConfig"):
        raise GlassformerError(f"NANOGPT_MODEL is '{path}', which has no GPT or GPTConfig; give nanoGPT's")
    config = module.GPTConfig(
        block_size=size.length,
        vocab_size=size.vocab_size,
        n_layer=size.num_layers,
        n_head=size.num_heads,
        n_embd=size.d_model,
        dropout=size.dropout,
        bias=False,
    )
    return module.GPT(config)


def _copied(model: Any) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def _share(step: int, steps: int) -> float:
    """The schedule of the training script: linear warmup, then cosine decay to a tenth."""
    warmup = min(WARMUP, steps // 10 + 1)
    if step < warmup:
        return step / warmup
    return 0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))
