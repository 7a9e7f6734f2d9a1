"""Our side of the training benchmark: the loop that `glassformer train` runs, step by step."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import peers
from glassformer.data.store import Store, write_store
from glassformer.training.data_loader import Prefetcher
from glassformer.training.distributed import SingleProcess
from glassformer.training.hardware import configure_torch
from glassformer.training.jobs.base import Job
from glassformer.training.logging.run_log import RunLog
from glassformer.training.recipe import Recipe, parse_recipe
from glassformer.training.run import prepare_job
from glassformer.training.signals import StopSignals
from glassformer.training.trainer import Trainer

ENDLESS = 1_000_000  # steps: nothing here trains to an end


def translating(data: Path, *, batch: int, device: torch.device, **words: Any) -> Recipe:
    """Multi30k, English to German, at base size, one vocabulary of 8000; all else as the job chooses."""
    files = {
        "train": [str(data / "train.en.gz"), str(data / "train.de.gz")],
        "valid": [str(data / "val.en.gz"), str(data / "val.de.gz")],
    }
    rare = dict.fromkeys(("max_steps", "eval_steps", "save_steps"), ENDLESS)
    training = {"batch_tokens": batch, "device": str(device), **rare, **words}
    return parse_recipe(
        {
            "job": "translate",
            "data": files,
            "tokenizer": {"kind": "bpe", "vocab_size": 8000},
            "model": {"preset": "original", **peers.BASE, "dropout": 0.1},
            "training": training,
        }
    )


def prepared(recipe: Recipe, folder: Path) -> Any:
    """The job with its data written, its tokenizer trained and every setting filled in."""
    return prepare_job(recipe, folder, torch.device(recipe.training.device), lambda sentence: None)


def speaking(
    folder: Path, *, tokens: int, vocab: int, length: int, rows: int, device: torch.device
) -> Trainer:
    """GPT-2 124M without dropout on a store of random ids, as one document."""
    from glassformer import api
    from glassformer.data.examples import Blocks
    from glassformer.training.learner import TextLearner, count_labels
    from glassformer.training.recipe import TrainingOptions
    from glassformer.training.task import TrainingTask, ValidationResult

    ids = np.random.default_rng(0).integers(0, vocab, tokens)
    store = write_store(folder / "data", ["text"], [[ids]], max_id=vocab - 1)
    quiet = {"dropout": 0.0, "attention_dropout": 0.0, "embed_dropout": 0.0}
    task = TrainingTask(
        learner=TextLearner(api.build("gpt2", vocab_size=vocab, **quiet)),
        train=Blocks(store, length=length, seed=0),
        unit="tokens",
        count=count_labels,
        metric="loss",
        validate=lambda device: ValidationResult(metrics={}),
        save=lambda path: None,
    )
    rare = dict.fromkeys(("max_steps", "eval_steps", "save_steps"), ENDLESS)
    words = TrainingOptions(
        batch_tokens=rows * length, lr=1e-4, lr_scheduler="constant", device=str(device), **rare
    )
    return loop_of(task, words, folder, device)


def loop_of(task: Any, words: Any, folder: Path, device: torch.device, seed: int = 1) -> Trainer:
    """The loop of a task, its log in the folder."""
    configure_torch(words, device)
    log = RunLog(folder, total_steps=ENDLESS, unit=task.unit, every=words.logging_steps or 50)
    task.learner.to(device)
    return Trainer(
        task,
        words,
        seed=seed,
        folder=folder,
        parallel=SingleProcess(device=device),
        log=log,
        signals=StopSignals(),
    )


def loop_for(job: Job[Any], device: torch.device) -> Trainer:
    torch.manual_seed(job.recipe.seed)
    return loop_of(job.task(), job.recipe.training, job.folder, device, job.recipe.seed)


@contextmanager
def stepping(loop: Trainer) -> Iterator[Prefetcher]:
    """The loop's data being read ahead, as `Trainer.run` has it."""
    loop.learner.train()
    with Prefetcher(loop.loader, loop.state.position) as ahead:
        yield ahead


def sentences(store: Store) -> tuple[list[list[int]], list[list[int]]]:
    """The same ids for the peers: every source and every target."""
    (sources, targets), lengths = store.gather(np.arange(len(store)))
    ends = lengths.cumsum(0)[:-1]  # (rows - 1, 2): where each but the last ends
    return (
        [ids.tolist() for ids in np.split(sources, ends[:, 0])],
        [ids.tolist() for ids in np.split(targets, ends[:, 1])],
    )


def own_memory() -> int:
    """Bytes that are this process's alone: files mapped into it, which the system may drop, not counted."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("RssAnon"))


def repeated(job: Any, times: int, folder: Path) -> Path:
    """The job's training pairs, so many times over, as a store of their own."""
    pairs = list(zip(*sentences(job.corpus.train), strict=True))
    again = (pair for _ in range(times) for pair in pairs)
    return write_store(folder, job.corpus.train.fields, again, max_id=job.corpus.max_id).folder


def memory_of(recipe: Recipe, run: Path, store: Path, steps: int) -> dict[str, float]:
    """A tiny model trained for some steps from a prepared store: its pairs, bytes, memory and waiting."""
    torch.set_num_threads(1)
    cpu, small = torch.device("cpu"), {"d_model": 32, "num_heads": 2, "d_ff": 64, "num_layers": 1}
    job = prepared(recipe, run)
    job.recipe = replace(
        job.recipe, model=replace(job.recipe.model, overrides={**job.recipe.model.overrides, **small})
    )
    job.corpus = replace(job.corpus, train=Store(store))
    loop = loop_for(job, cpu)
    most, began = 0, time.perf_counter()
    with stepping(loop) as ahead:
        for _ in range(steps):
            loop._run_step(ahead)
            most = max(most, own_memory())
    waited = loop.data_seconds / (time.perf_counter() - began)
    size = sum(file.stat().st_size for file in store.iterdir())
    return {"rows": len(job.corpus.train), "bytes": size, "own": most, "waited": waited}
