"""A tiny run for one rank or several, and what each of several ranks does with it (see `launcher.py`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import glassformer
from glassformer.cli.main import main
from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.data.examples import IGNORE_INDEX
from glassformer.training.checkpoint import Checkpoint, CheckpointManager, named_state
from glassformer.training.distributed import Ddp, Fsdp, Parallel, parallel_from_environment
from glassformer.training.learner import enable_gradient_checkpointing
from glassformer.training.losses import projected_cross_entropy

VOCAB, PIECES, STEPS, SAVED = 23, 6, 5, 3  # 6 micro-batches a step, on however many ranks


class Tiny(nn.Module):
    """A language model with tied ends, dropout, and four rows of bias, which do not go round three ranks."""

    def __init__(self) -> None:
        super().__init__()
        block = spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=4, dropout=0.1),
            feed_forward=spec.FeedForwardSpec(d_ff=24, dropout=0.1),
            wiring="pre",
            dropout=0.1,
        )
        position = spec.RelativeSpec(buckets=4, max_distance=12)
        stack = spec.StackSpec(d_model=16, num_layers=2, block=block, causal=True, position=position)
        tokens, head = spec.TokensSpec(vocab_size=VOCAB), spec.LanguageModelSpec(vocab_size=VOCAB)
        self.model = build_model(spec.DecoderOnlySpec(input=tokens, decoder=stack, head=head, tied=("head",)))
        with torch.no_grad():
            for value in self.model.parameters():  # so large that a mistake shows
                value.add_(torch.randn_like(value) * 0.2)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        x, _ = self.model.hidden_states(ids)
        return projected_cross_entropy(x, self.model.head.weight, labels)


def batch(step: int, piece: int, device: torch.device | None = None) -> dict[str, Tensor]:
    """Of its own number of rows, and of labels that count."""
    draw = torch.Generator().manual_seed(1000 * step + piece)
    ids = torch.randint(1, VOCAB, (2 + piece % 3, 8), generator=draw)
    labels = ids[:, 1:].masked_fill(torch.rand(ids[:, 1:].shape, generator=draw) < 0.2, IGNORE_INDEX)
    return {"ids": ids[:, :-1].to(device), "labels": labels.to(device)}


class Run:
    """What a training loop holds."""

    def __init__(self, parallel: Parallel, seed: int = 0, recompute: bool = False) -> None:
        torch.manual_seed(seed)
        self.parallel, learner = parallel, Tiny()
        if recompute:
            assert enable_gradient_checkpointing(learner) == 2
        self.module = parallel.wrap(learner)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-2)

    def steps(self, steps: Iterable[int]) -> list[float]:
        """The loss of each step and the norm of its gradient."""
        parallel, results = self.parallel, []
        for step in steps:
            mine = [piece for piece in range(PIECES) if piece % parallel.ranks == parallel.rank]
            batches = {piece: batch(step, piece, parallel.device) for piece in mine}
            counts = [(b["labels"] != IGNORE_INDEX).sum() for b in batches.values()]
            units = parallel.sum(torch.stack(counts).sum())
            lost = torch.zeros((), device=parallel.device)
            for piece, inputs in batches.items():
                torch.manual_seed(1000 * step + piece)
                with parallel.gradient_sync(self.module, last=piece == mine[-1]):
                    loss = self.module(**inputs) / units
                    loss.backward()
                lost += loss.detach()
            norm = parallel.grad_norm(self.module.parameters())
            for weight in self.module.parameters():
                if weight.grad is not None:
                    weight.grad.mul_(min(1.0, 0.5 / float(norm)))
            self.optimizer.step()
            self.optimizer.zero_grad()
            parallel.sync_batch_norm(self.module)
            results += [float(parallel.sum(lost)), float(norm)]
        return results

    def full_state(self) -> dict[str, dict[str, Tensor]]:
        named = named_state(self.module, self.optimizer)
        return {group: self.parallel.gather_to_cpu(tensors) for group, tensors in named.items()}

    def save(self, folder: Path, step: int) -> None:
        manager = CheckpointManager(folder, self.parallel, keep=2)
        manager.save(step, self.module, self.optimizer, {}, {"next": step + 1})

    def resume(self, folder: Path) -> Checkpoint | None:
        manager = CheckpointManager(folder, self.parallel, keep=2)
        checkpoint = manager.newest()
        if checkpoint is not None:
            manager.restore(checkpoint, self.module, self.optimizer, {})
        return checkpoint


def differing(ours: dict[str, dict[str, Tensor]], theirs: dict[str, dict[str, Tensor]]) -> list[str]:
    """The names under which two states are not bit for bit the same."""
    assert {g: sorted(v) for g, v in ours.items()} == {g: sorted(v) for g, v in theirs.items()}
    return [f"{g}/{n}" for g in ours for n in ours[g] if not torch.equal(ours[g][n], theirs[g][n])]


def trained(parallel: Parallel, folder: Path) -> dict[str, Any]:
    """Five steps, saved after three; again from there; and on from what one process saved."""
    kind = type(parallel).__name__.lower()
    run = Run(parallel)
    losses = run.steps(range(1, SAVED + 1))
    run.save(folder / kind, SAVED)
    saved = run.full_state()
    losses += run.steps(range(SAVED + 1, STEPS + 1))
    ended = run.full_state()

    changed: list[str] = []
    resumed: dict[str, list[float]] = {}
    for source in (kind, "one"):
        resumed_run = Run(parallel, seed=1, recompute=True)
        checkpoint = resumed_run.resume(folder / source)
        assert checkpoint is not None and checkpoint.state == {"next": SAVED + 1} and not checkpoint.damaged
        loaded = resumed_run.full_state()
        resumed[source] = resumed_run.steps(range(checkpoint.state["next"], STEPS + 1))
        again_ended = resumed_run.full_state()
        if source != "one" and parallel.main:
            changed = differing(loaded, saved) + differing(again_ended, ended)
    run.module.eval()
    alone, changes = 0.0, []
    with parallel.full_weights(run.module), torch.no_grad():  # meanwhile each rank may go its own way
        if parallel.rank == 1:
            alone = float(parallel.unwrap(run.module)(**batch(9, 0)))
        if parallel.main:
            model = parallel.unwrap(run.module).model.state_dict()
            assert model.pop("head.weight") is not None
            named = {f"model.{name}": value for name, value in model.items()}
            changes = differing({"model": named}, {"model": ended["model"]})
            assert all(value.numpy().shape == value.shape for value in model.values())  # as a save does
    run.module.train()
    further = run.steps([STEPS + 1])
    norm = nn.BatchNorm1d(2)
    assert norm.running_mean is not None
    norm.running_mean.fill_(parallel.rank)
    parallel.sync_batch_norm(norm)
    after = Run(parallel, seed=2)
    with parallel.full_weights(after.module):  # before the first step too
        pass
    return {
        "losses": losses,
        "resumed": resumed,
        "changed": changed,
        "kept": changes,
        "settled": norm.running_mean.tolist(),
        "further": further,
        "alone": float(parallel.sum(torch.tensor(alone))),
        "agree": [parallel.any(parallel.rank == 1), parallel.any(False)],
        "slices": [type(t).__name__ for t in list(run.module.parameters())[:1]],
    }


def threads() -> list[str]:
    """What this process is doing at once, as Linux names it."""
    return sorted(path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm"))


def more_ranks(folder: Path) -> dict[str, Any]:
    """On from what two ranks saved and from what one did, on three."""
    parallel = parallel_from_environment("fsdp", "cpu")
    results = {}
    for source in ("fsdp", "one"):
        run = Run(parallel, seed=1)
        assert run.resume(folder / source) is not None
        run.save(folder / f"three-from-{source}", SAVED)
        results[source] = run.steps(range(SAVED + 1, STEPS + 1))
    parallel.barrier()
    parallel.close()
    return results


def killed(folder: Path) -> dict[str, Any]:
    """Five steps, saved after each; the first time it is run, rank 1 dies after the third."""
    parallel = parallel_from_environment("fsdp", "cpu")
    run = Run(parallel)
    checkpoint = run.resume(folder / "runs")
    first = 1 if checkpoint is None else checkpoint.step + 1
    losses = []
    for step in range(first, STEPS + 1):
        losses += run.steps([step])
        run.save(folder / "runs", step)
        if step == 3 and parallel.rank == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    parallel.barrier()
    parallel.close()
    return {"first": first, "losses": losses}


def joined_twice(folder: Path) -> list[int]:
    """How many had come each time that all were said to have; the last rank comes late."""
    threads_seen = []
    for time_round in range(2):
        parallel = parallel_from_environment("ddp", "cpu")
        if parallel.rank == parallel.ranks - 1:
            time.sleep(0.3)
        (folder / f"came {time_round} {parallel.rank}").touch()
        parallel.barrier()
        threads_seen.append(len(list(folder.glob(f"came {time_round} *"))))
        parallel.close()
    return threads_seen


def everything(folder: Path) -> dict[str, Any]:
    """Train by FSDP and by DDP, in one group; and what still runs in a rank that has left it."""
    fsdp = parallel_from_environment("fsdp", "cpu")
    assert isinstance(fsdp, Fsdp)
    ddp = Ddp(device=fsdp.device, rank=fsdp.rank, ranks=fsdp.ranks, store=fsdp.store)
    results: dict[str, Any] = {"fsdp": trained(fsdp, folder), "ddp": trained(ddp, folder)}
    fsdp.barrier()
    fsdp.close()
    return {**results, "threads": threads()}


def command(tokens: list[str]) -> None:
    """The command line, in this rank."""
    with pytest.raises(SystemExit) as stop:
        main(tokens)
    assert stop.value.code in (0, None)


def train_own_module(folder: Path, parallel: str) -> str:
    """Train a module that starts from other weights on each rank, except that those of rank 0 are used."""
    torch.manual_seed(10 + int(os.environ.get("RANK", 0)))
    module = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))
    rows = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))

    def loss(model: nn.Module, rows: Tensor) -> tuple[Tensor, int]:
        assert model is module  # not wrapped
        return (model(rows[:, :3]) - rows[:, 3:]).square().sum(), len(rows)

    trainer = glassformer.Trainer(
        module,
        loss=loss,
        train_dataset=list(rows),
        eval_dataset=list(rows),
        folder=folder,
        max_steps=6,
        batch_size=4,
        gradient_accumulation_steps=4,
        eval_steps=3,
        lr=0.01,
        eps=1e-3,
        ema=0.5,
        parallel=parallel,
    )
    return trainer.train().outcome
