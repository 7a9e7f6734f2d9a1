"""Copying and recall: a Transformer and LSTMs with the same number of parameters, on synthetic pairs.

few: recall with at most 8 keys; recall has up to 32
many: continues training of few with up to 32 keys
lstm: two bidirectional layers, with Luong's dot attention over the source
lstm-alone: the same without attention: the decoder has only the encoder's final state
speed: training speed on longer and longer strings, with nothing else running
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from experiments import recall_speed, records, training_runs
from experiments.paths import Workspace, glassformer
from experiments.synthetic_pairs import Copying, Recalling, Task, generate_pairs, pairs_of_sizes, written

ROW = "recall"
TASKS: dict[str, Task] = {
    "copy": Copying(),
    "recall": Recalling(),
    "few": Recalling(longest=8),
    "many": Recalling(),
}
SIZES = {  # tested apart
    "copy": (10, 20, 30, 40, 50, 60),
    "recall": (2, 4, 8, 16, 32),
    "few": (2, 4, 8),
    "many": (2, 4, 8, 16, 32),
}
AFTER = {"many": "few"}  # what was learned before
MODELS: dict[str, tuple[str, Sequence[str]]] = {  # recipe and changes, for parameters within 2 %
    "transformer": ("recall-pairs", ()),
    "lstm": ("lstm-recall", ()),
    "lstm-alone": ("lstm-recall", ("model.attention=none", "model.d_model=182")),
}
# What copying was measured with before the recipe got what recalling needs; with that it was not tried.
FOR_TASK = {("copy", "transformer"): ("model.position=sinusoidal", "training.lr=0.001")}
STEPS = {"copy": 3000, "recall": 4000, "few": 2000, "many": 2000}  # the same for every model
LEARNED, HELD, TESTED = 100_000, 128, 200  # pairs to learn from, to validate with, to test with for each size
DONE = 0.99  # a task counts as learned at the first validation with this fraction of exact answers


def run(workspace: Workspace, name: str) -> None:
    """One run, e.g. "copy-transformer/1" or "speed/1"."""
    kind, _, number = name.partition("/")
    if kind == "speed":
        recall_speed.run(workspace, ROW, name, seed=int(number), models=MODELS)
        return
    task, _, model = kind.partition("-")
    recipe, changes = MODELS[model]
    files = write_files(workspace, task)
    overrides = [f"data.train=[{files['train']}]", f"data.valid=[{files['valid']}]"]
    overrides += [f"training.max_steps={STEPS[task]}", *changes, *FOR_TASK.get((task, model), ())]
    if task in AFTER:
        before = workspace.run(ROW, f"{AFTER[task]}-{model}/{number}") / "model"
        if not before.is_dir():
            run(workspace, f"{AFTER[task]}-{model}/{number}")
        overrides += [f"model.folder={before}", f"tokenizer.folder={before}"]
    result = training_runs.train(
        workspace, ROW, name, recipe, seed=int(number), of="exact", changes=overrides
    )
    figures = {**answered(workspace, task, result.model, files["test"]), **pace(result)}
    figures |= learned(result, figures)
    records.note(workspace, ROW, name, seed=int(number), trained=result, figures=figures)


def write_files(workspace: Workspace, task: str) -> dict[str, Path]:
    """The files of a task, the same for every seed and model."""
    kind, folder = TASKS[task], workspace.prepared(ROW) / task
    folder.mkdir(exist_ok=True)
    return written(
        folder,
        {
            "train": generate_pairs(kind, LEARNED, seed=1),
            "valid": generate_pairs(kind, HELD, seed=2),
            "test": pairs_of_sizes(kind, SIZES[task], TESTED, seed=3),
        },
    )


def answered(workspace: Workspace, task: str, model: Path, test: Path) -> dict[str, float]:
    """The accuracy at each size: {"exact at 10": 1.0, "right at 10": 1.0, ...}."""
    answers = model.parent / "test.txt"
    glassformer(
        "evaluate", model, test, "--out", answers, "--overwrite", "--json", "--device", workspace.device
    )
    requested = [line.split("\t")[1] for line in test.read_text(encoding="utf-8").splitlines()]
    return shares(answers.read_text(encoding="utf-8").splitlines(), requested, SIZES[task])


def shares(predictions: Sequence[str], requested: Sequence[str], sizes: Sequence[int]) -> dict[str, float]:
    """The fractions of exact answers and of correct symbols, for the same number of answers of each size.

    >>> shares(["a a", "b b", "c c", "x d"], ["a a", "b b", "c c", "d d"], (10, 20))
    {'exact at 10': 1.0, 'right at 10': 1.0, 'exact at 20': 0.5, 'right at 20': 0.75}
    """
    count = len(requested) // len(sizes)
    result: dict[str, float] = {}
    for n, size in enumerate(sizes):
        these = slice(n * count, (n + 1) * count)
        pairs = [
            (one.split(), other.split())
            for one, other in zip(predictions[these], requested[these], strict=True)
        ]
        right = sum(a == b for one, other in pairs for a, b in zip(one, other, strict=False))
        symbols = sum(max(len(one), len(other)) for one, other in pairs)
        result[f"exact at {size}"] = sum(one == other for one, other in pairs) / max(1, len(pairs))
        result[f"right at {size}"] = right / max(1, symbols)
    return result


def pace(result: training_runs.Trained) -> dict[str, float]:
    """Training speed: milliseconds per step and tokens per second, if several steps were logged.

    The median over intervals between logged steps, so that compilation and validation do not count.
    """
    steps = [line for line in training_runs.log(result.folder) if line["kind"] == "step"]
    between = [
        (after["time"] - before["time"]) / (after["step"] - before["step"])
        for before, after in pairwise(steps)
        if after["step"] > before["step"]
    ]
    if not between:
        return {}
    each = median(between)
    return {
        "ms a step": 1000 * each,
        "tokens a second": sum(line["units"] for line in steps) / len(steps) / each,
    }


def learned(result: training_runs.Trained, figures: Mapping[str, float]) -> dict[str, float]:
    """Steps, and seconds at that speed, until the task was learned; empty if it never was."""
    done = next((step for step, exact in result.curve if exact >= DONE), None)
    if done is None or "ms a step" not in figures:
        return {}
    return {"steps to 99 %": done, "seconds to 99 %": done * figures["ms a step"] / 1000}
