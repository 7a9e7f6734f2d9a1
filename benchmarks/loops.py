"""The peers' loops over the same sentences: a plain one, and the reference library's own trainer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

Rows = list[list[int]]
Batches = Iterator[tuple[Tensor, Tensor]]  # sources and targets, padded, without end


def padded(rows: Rows, pad_id: int, multiple: int = 1) -> Tensor:
    """Rows filled up to the longest, rounded up to a multiple: (B, T)."""
    width = -(-max(map(len, rows)) // multiple) * multiple
    return torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])


def shuffled(sources: Rows, targets: Rows, count: int, *, pad_id: int, multiple: int = 1) -> Batches:
    """Batches of `count` sentences in random order."""
    draw = np.random.default_rng(0)
    while True:
        order = draw.permutation(len(sources))
        for begin in range(0, len(order) - count + 1, count):
            rows = order[begin : begin + count]
            yield tuple(padded([side[n] for n in rows], pad_id, multiple) for side in (sources, targets))


def sorted_by_length(sources: Rows, targets: Rows, count: int, *, pad_id: int, multiple: int = 1) -> Batches:
    """Batches of `count` sentences of like length, in random order."""
    draw = np.random.default_rng(0)
    by_length = sorted(range(len(sources)), key=lambda n: (len(targets[n]), len(sources[n])))
    batches = [by_length[n : n + count] for n in range(0, len(by_length) - count + 1, count)]
    while True:
        for n in draw.permutation(len(batches)):
            rows = batches[n]
            yield tuple(padded([side[n] for n in rows], pad_id, multiple) for side in (sources, targets))


def plain_step(
    model: nn.Module,
    batches: Batches,
    device: torch.device,
    *,
    pad_id: int,
    start_id: int,
    compiled: dict[str, Any] | None = None,
) -> Callable[[], tuple[int, int]]:
    """A loop as people write it: forward, cross-entropy, backward, Adam. Gives sentences and tokens."""
    model.to(device).train()
    optimiser = torch.optim.Adam(model.parameters(), 1e-4, fused=True)

    def loss_of(src: Tensor, tgt: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(model(src, tgt).flatten(0, 1), labels.flatten(), ignore_index=pad_id)

    run = loss_of if compiled is None else torch.compile(loss_of, **compiled)

    def step() -> tuple[int, int]:
        src, labels = next(batches)
        tokens = int((labels != pad_id).sum())
        tgt = torch.cat((torch.full_like(labels[:, :1], start_id), labels[:, :-1]), 1)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = run(src.to(device), tgt.to(device), labels.to(device))
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return len(src), tokens

    return step


class TrainerSteps:
    """The reference library's Seq2SeqTrainer with its own collator, stopped after every step.

    It runs in a thread of its own and waits there, so that steps can be taken in turn with others.
    """

    def __init__(self, model: Any, sources: Rows, targets: Rows, count: int, tokenizer: Any, out: Path):
        import transformers

        steps, mine, yours = self, threading.Semaphore(0), threading.Semaphore(0)
        self._mine, self._yours, self._over = mine, yours, False
        self._error: BaseException | None = None
        self._count = count
        data = [{"input_ids": a, "labels": b} for a, b in zip(sources, targets, strict=True)]

        class Waiting(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                yours.release()
                mine.acquire()
                control.should_training_stop = steps._over
                return control

        settings = transformers.Seq2SeqTrainingArguments(
            output_dir=str(out),
            per_device_train_batch_size=count,
            max_steps=1_000_000,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=not torch.cuda.is_available(),
        )
        trainer = transformers.Seq2SeqTrainer(
            model=model,
            args=settings,
            train_dataset=data,
            data_collator=transformers.DataCollatorForSeq2Seq(tokenizer, model=model),
            callbacks=[Waiting()],
        )

        def work() -> None:
            mine.acquire()
            try:
                trainer.train()
            except BaseException as error:
                self._error = error
            finally:
                yours.release()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def __call__(self) -> tuple[int, int]:
        self._mine.release()
        self._yours.acquire()
        if self._error is not None:
            raise self._error
        return self._count, 0

    def close(self) -> None:
        self._over = True
        self._mine.release()
        self._thread.join()
