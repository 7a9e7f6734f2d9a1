"""What goes wrong inside a run: numbers that are none, memory that ends, disks that fill up, odd folders."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from glassformer.training.checkpoint import load_checkpoint
from glassformer.training.recipe import TrainingOptions
from glassformer.weights.store import open_weights, save_weights
from tests.faults.disk import Call, Disk, Verdict, watched
from tests.faults.runs import ACCUMULATE, SAVE_EVERY, STEPS, Workplace, differing, on_batch, outcome

MOST_BAD = TrainingOptions().max_bad_steps


def spoil(steps: set[int], value: float) -> None:
    """In a run from its beginning: the loss of these steps is times a number that is not finite."""
    on_batch(lambda number, batch: value if (number - 1) // ACCUMULATE + 1 in steps else 1.0)


def spoil_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """NaN or infinity in the loss at random steps: counted, left out, and the weights stay finite."""
    chance = random.Random(seed)
    failures = []
    tried = 0
    while tried < count:
        out = work.folder / "spoilt"
        steps = set(chance.sample(range(1, STEPS + 1), min(5, count - tried)))
        value = chance.choice([float("nan"), float("inf"), float("-inf")])
        tried += len(steps)
        told = work.run(out, lambda steps=steps, value=value: spoil(steps, value))
        fault = told.fault(0, *(f"skipped step {step}" for step in steps))
        saved = load_checkpoint(out / "checkpoints")
        if fault is None and (saved is None or saved.state["skipped"] != len(steps)):
            fault = f"the checkpoint counts {saved and saved.state['skipped']} skipped steps"
        if fault is None and saved is not None:
            tensors = {f"{g}.{n}": t for g, named in saved.tensors.items() for n, t in named.items()}
            tensors |= dict(open_weights(out / "model"))
            fault = next((f"{name} is not finite" for name, t in tensors.items() if not finite(t)), None)
        if fault:
            failures.append(f"{value} at {sorted(steps)}: {fault}")
        shutil.rmtree(out)
    return tried, failures


def finite(tensor: torch.Tensor) -> bool:
    return bool(torch.isfinite(tensor.float()).all())


def spoil_to_the_end(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """NaN from a step on: the run ends in a sentence that names the examples, its weights finite."""
    chance = random.Random(seed)
    failures = []
    for _ in range(count):
        out = work.folder / "hopeless"
        step = chance.randrange(1, STEPS - MOST_BAD)
        told = work.run(out, lambda step=step: spoil(set(range(step, STEPS + 1)), float("nan")))
        fault = told.fault(2, f"step {step + MOST_BAD - 1} (examples")
        saved = load_checkpoint(out / "checkpoints")
        for group, tensors in (saved.tensors if saved is not None else {}).items():
            wrong = [name for name, tensor in tensors.items() if not finite(tensor)]
            fault = fault or (f"{group}.{wrong[0]} is not finite" if wrong else None)
        if fault:
            failures.append(f"NaN from step {step}: {fault}")
        shutil.rmtree(out)
    return count, failures


def short_of_memory(rows: int, gradients: Path) -> None:
    """In a run: more examples at once than this do not fit. The first step's gradients are kept."""

    def fit(number: int, batch: dict[str, torch.Tensor]) -> float:
        if len(batch["labels"]) > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return 1.0

    def keep_first(optimizer: Any, *_: object) -> None:
        if gradients.exists():
            return
        found = [p.grad for group in optimizer.param_groups for p in group["params"]]
        scale = optimizer.grad_scale  # what the step divides the summed gradients by
        save_weights(gradients, {str(n): grad / scale for n, grad in enumerate(found) if grad is not None})

    on_batch(fit)
    register_optimizer_step_pre_hook(keep_first)


def memory_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """Memory for so many examples only: halved until it fits, with the same gradients; or advice."""
    chance = random.Random(seed)
    failures = []
    words: dict[str, Any] = {"model_dropout": 0.0, "training_steps": 2}
    for _ in range(count):
        out, whole, halves = (work.folder / name for name in ("memory", "whole", "halves"))
        words["seed"] = chance.randrange(1000)
        rows = chance.choice([0, 1, 2, 3, 4, 5])
        told = work.run(out, lambda: short_of_memory(10**9, whole), **words)  # noqa: B023
        fault = told.fault(0)
        shutil.rmtree(out)
        told = work.run(out, lambda: short_of_memory(rows, halves), **words)  # noqa: B023
        if rows == 0:
            fault = fault or told.fault(2, "out of memory", "lower training.batch")
        else:
            fault = fault or told.fault(0, "which gives the same step")
            if fault is None:
                one, other = open_weights(whole), open_weights(halves)
                apart = max(float((one[name] - other[name]).abs().max()) for name in one)
                fault = f"gradients are {apart:.1e} apart" if apart > 1e-6 or set(one) != set(other) else None
        if fault:
            failures.append(f"room for {rows} examples: {fault}")
        for folder in (out, whole, halves):
            shutil.rmtree(folder, ignore_errors=True)
    return count, failures


def on_disk(folder: Path, judge: Callable[[int, Call], Verdict]) -> None:
    """In a run: every call below its folder is judged, to the end of the process."""
    held = watched(Disk(folder, judge))
    held.__enter__()
    _held.append(held)


_held: list[object] = []  # what is let go of would be undone


def full_disk_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """The disk takes k bytes of a run: data, logs, checkpoints, model. With room again, all is as it was."""
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    total = sum(path.stat().st_size for path in work.undisturbed.rglob("*") if path.is_file())
    total += total * STEPS // (2 * SAVE_EVERY)  # checkpoints that made way for later ones
    failures = []
    for _ in range(count):
        out = work.folder / "full"
        place = chance.randrange(total) if chance.random() < 0.8 else chance.randrange(5000)
        left = [place]

        def judge(number: int, call: Call, left: list[int] = left) -> Verdict:
            if call.name != "write":
                return None
            if left[0] == 0:
                return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            taken = min(left[0], len(call.data))
            left[0] -= taken
            return taken

        told = work.run(out, lambda judge=judge: on_disk(out, judge))  # noqa: B023
        fault = None if told.code == 0 else told.fault(2, "No space left on device")
        fault = fault or work.run(out).fault(0)
        # Notes may be lost, as was then said; weights never.
        notes = {"losses": whole["losses"]} if "training continues unlogged" in told.said else {}
        fault = fault or differing(whole, {**outcome(out), **notes})
        if fault:
            failures.append(f"full at byte {place} of a run: {fault}")
        shutil.rmtree(out)
    return count, failures


def read_only_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """A folder that cannot be written, from the beginning or from some call on."""
    chance = random.Random(seed)
    whole = outcome(work.undisturbed)
    failures = []
    changing = ("create", "write", "mkdir", "rename", "unlink", "rmdir", "fsync")
    for number in range(count):
        out = work.folder / "read-only"
        begin = 0 if number == 0 else chance.randrange(450)

        def judge(count: int, call: Call, begin: int = begin) -> Verdict:
            refused = count >= begin and call.name in changing
            return OSError(errno.EROFS, os.strerror(errno.EROFS)) if refused else None

        told = work.run(out, lambda judge=judge: on_disk(out, judge))  # noqa: B023
        fault = told.fault(2, "Read-only file system") if told.code else None
        if number == 0 and told.code == 0:
            fault = "a run in a read-only folder said nothing"
        fault = fault or work.run(out).fault(0) or differing(whole, outcome(out))
        if fault:
            failures.append(f"read-only from call {begin} on: {fault}")
        shutil.rmtree(out)
    return count, failures


def path_runs(work: Workplace, count: int, seed: int) -> tuple[int, list[str]]:
    """Folders with unusual names work; impossible ones are errors."""
    reference = work.folder / "plain"
    told = work.run(reference, training_steps=2)
    assert told.code == 0, told.said
    whole = outcome(reference)
    base = work.folder / "paths"
    (base / "target").mkdir(parents=True)
    (base / "file").write_text("")
    (base / "link").symlink_to(base / "target")
    good = [
        "two words",
        "한국어 폴더",
        "a/b/c",
        "-dash",
        "100%",
        "quote'",
        "back\\slash",
        "$HOME",
        "*",
        "link",
        "~",
    ]
    bad = ["x" * 256, "file", "file/below", "/proc/nothing"]
    cases = [(name, 0) for name in good] + [(name, 2) for name in bad]
    random.Random(seed).shuffle(cases)
    failures = []
    for name, code in cases[:count]:
        told = work.run(base / name, training_steps=2)
        fault = told.fault(code)
        if code == 0 and not fault:
            fault = differing(whole, outcome(base / name))
        if fault:
            failures.append(f"{name!r:.80}: {fault}")
    return min(count, len(cases)), failures
