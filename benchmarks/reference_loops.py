"""Training loops to compare with, on the same sentences: a plain loop, and transformers' trainer."""

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
    """Pad rows to the longest, rounded up to a multiple: (B, T)."""
    width = -(-max(map(len, rows)) // multiple) * multiple
    return torch.tensor([row + [pad_id] * (width - len(row)) for row in rows])


def shuffled(sources: Rows, targets: Rows, count: int, *, pad_id: int, multiple: int = 1) -> Batches:
    """Yield batches of `count` sentences in random order, without end."""
    rng = np.random.default_rng(0)
    while True:
        order = rng.permutation(len(sources))
        for start in range(0, len(order) - count + 1, count):
            rows = order[start : start + count]
            yield tuple(padded([side[n] for n in rows], pad_id, multiple) for side in (sources, targets))


def sorted_by_length(sources: Rows, targets: Rows, count: int, *, pad_id: int, multiple: int = 1) -> Batches:
    """Yield batches of `count` sentences of similar length, in random order, without end."""
    rng = np.random.default_rng(0)
    by_length = sorted(range(len(sources)), key=lambda n: (len(targets[n]), len(sources[n])))
    batches = [by_length[n : n + count] for n in range(0, len(by_length) - count + 1, count)]
    while True:
        for n in rng.permutation(len(batches)):
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
    """Return a plain training step: forward, cross-entropy, backward and Adam.

    The step returns its numbers of sentences and tokens. compiled: options of torch.compile, if any.
    """
    model.to(device).train()
    optimizer = torch.optim.Adam(model.parameters(), 1e-4, fused=True)

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
        optimizer.step()
        optimizer.zero_grad()
        return len(src), tokens

    return step


class TrainerSteps:
    """Run transformers' Seq2SeqTrainer with its own collator one step at a time.

    It runs in its own thread and waits after each step, so that steps can be timed in turns.
    """

    def __init__(self, model: Any, sources: Rows, targets: Rows, count: int, tokenizer: Any, out: Path):
        import transformers

        steps, resume, step_done = self, threading.Semaphore(0), threading.Semaphore(0)
        self._resume, self._step_done, self._stopped = resume, step_done, False
        self._error: BaseException | None = None
        self._count = count
        data = [{"input_ids": a, "labels": b} for a, b in zip(sources, targets, strict=True)]

        class PauseCallback(transformers.TrainerCallback):  # type: ignore[misc]
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
                step_done.release()
                resume.acquire()
                control.should_training_stop = steps._stopped
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
            callbacks=[PauseCallback()],
        )

        def work() -> None:
            resume.acquire()
            try:
                trainer.train()
            except BaseException as error:
                self._error = error
            finally:
                step_done.release()

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def __call__(self) -> tuple[int, int]:
        self._resume.release()
        self._step_done.acquire()
        if self._error is not None:
            raise self._error
        return self._count, 0

    def close(self) -> None:
        self._stopped = True
        self._resume.release()
        self._thread.join()
