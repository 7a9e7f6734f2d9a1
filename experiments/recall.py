"""Copying and recalling: a Transformer beside LSTMs with as many parameters, on the same made pairs.

few: recalling from 8 keys at most, where recall asks for up to 32
many: what has learned few goes on with up to 32
lstm: reads both ways, two layers, and looks back at the source with Luong's dot attention
lstm-alone: the same without looking back: the writer has only the state in which the reader ended
speed: how fast each learns from ever longer strings, nothing else running
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median

from experiments import recall_speed, records, training_runs
from experiments.paths import Place, glassformer
from experiments.synthetic_pairs import Copying, Recalling, Task, generate_pairs, of_sizes, written
from glassformer.metrics.text import ExactMatch

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
DONE = 0.99  # a task counts as learned from the first validation on with so many exact answers


def run(place: Place, name: str) -> None:
    """One run, as "copy-transformer/1" or "speed/1"."""
    kind, _, number = name.partition("/")
    if kind == "speed":
        recall_speed.run(place, ROW, name, seed=int(number), models=MODELS)
        return
    task, _, model = kind.partition("-")
    recipe, changes = MODELS[model]
    files = write_files(place, task)
    overrides = [f"data.train=[{files['train']}]", f"data.valid=[{files['valid']}]"]
    overrides += [f"training.max_steps={STEPS[task]}", *changes, *FOR_TASK.get((task, model), ())]
    if task in AFTER:
        before = place.run(ROW, f"{AFTER[task]}-{model}/{number}") / "model"
        if not before.is_dir():
            run(place, f"{AFTER[task]}-{model}/{number}")
        overrides += [f"model.folder={before}", f"tokenizer.folder={before}"]
    found = training_runs.train(place, ROW, name, recipe, seed=int(number), of="exact", changes=overrides)
    figures = {**answered(place, task, found.model, files["test"]), **pace(found)}
    figures |= learned(found, figures)
    records.note(place, ROW, name, seed=int(number), trained=found, figures=figures)


def write_files(place: Place, task: str) -> dict[str, Path]:
    """The files of a task, the same for every seed and model."""
    kind, folder = TASKS[task], place.prepared(ROW) / task
    folder.mkdir(exist_ok=True)
    return written(
        folder,
        {
            "train": generate_pairs(kind, LEARNED, seed=1),
            "valid": generate_pairs(kind, HELD, seed=2),
            "test": of_sizes(kind, SIZES[task], TESTED, seed=3),
        },
    )


def answered(place: Place, task: str, model: Path, test: Path) -> dict[str, float]:
    """What the model answered at each size: {"exact at 10": 1.0, "right at 10": 1.0, ...}."""
    answers = model.parent / "test.txt"
    glassformer("evaluate", model, test, "--out", answers, "--overwrite", "--json", "--device", place.device)
    wanted = [line.split("\t")[1] for line in test.read_text(encoding="utf-8").splitlines()]
    return shares(answers.read_text(encoding="utf-8").splitlines(), wanted, SIZES[task])


def shares(predictions: Sequence[str], wanted: Sequence[str], sizes: Sequence[int]) -> dict[str, float]:
    """Shares of whole answers and of their words, of equally many answers of each size one after another.

    >>> shares(["a a", "b b", "c c", "x d"], ["a a", "b b", "c c", "d d"], (10, 20))
    {'exact at 10': 1.0, 'right at 10': 1.0, 'exact at 20': 0.5, 'right at 20': 0.75}
    """
    count = len(wanted) // len(sizes)
    found: dict[str, float] = {}
    for n, size in enumerate(sizes):
        these, same = slice(n * count, (n + 1) * count), ExactMatch()
        same.add([text.split() for text in predictions[these]], [text.split() for text in wanted[these]])
        found |= {f"exact at {size}": same.match, f"right at {size}": same.token_accuracy}
    return found


def pace(found: training_runs.Trained) -> dict[str, float]:
    """How fast it learned: milliseconds a step and tokens a second, where several steps were records.

    Of the stretches between noted steps the middle one counts, so neither compiling nor validating does.
    """
    steps = [line for line in training_runs.log(found.folder) if line["kind"] == "step"]
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


def learned(found: training_runs.Trained, figures: Mapping[str, float]) -> dict[str, float]:
    """Steps, and seconds at that pace, until the task was done; nothing where it never was."""
    done = next((step for step, exact in found.curve if exact >= DONE), None)
    if done is None or "ms a step" not in figures:
        return {}
    return {"steps to 99 %": done, "seconds to 99 %": done * figures["ms a step"] / 1000}
