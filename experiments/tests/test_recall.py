"""The synthetic tasks, and the figures read from a run's log."""

import json
from dataclasses import replace

import numpy as np
import pytest

from experiments import recall
from experiments.paths import Workspace
from experiments.recall_speed import built
from experiments.records import RunRecord, runs_of
from experiments.synthetic_pairs import Copying, Recalling, generate_pairs, pairs_of_sizes, written
from experiments.training_runs import Trained
from experiments.why_attention import accuracy_by_step, better_runs
from glassformer.training.recipe import read_recipe_dict


def test_copy_target_equals_its_source():
    pairs = list(generate_pairs(Copying(), 1000, seed=1))
    assert all(read == answer for read, answer in pairs)
    assert {5, 60} <= {len(read.split()) for read, _ in pairs} <= set(range(5, 61))


def test_answers_are_the_values_of_the_queried_keys():
    for read, answer in generate_pairs(Recalling(), 200, seed=1):
        tokens, fill_tables = read.split(), answer.split()
        form, context = tokens[: len(fill_tables)], tokens[len(fill_tables) :]
        values = dict(zip(context[::2], context[1::2], strict=True))
        assert len(values) == len(form) // 2 <= 32 and set(form[1::2]) == {"?"}
        assert fill_tables == [word for key in form[::2] for word in (key, values[key])]


def test_sizes_are_in_order():
    pairs = list(pairs_of_sizes(Recalling(), (4, 32), 3, seed=2))
    assert [len(read.split()) // 4 for read, _ in pairs] == [4, 4, 4, 32, 32, 32]


def test_files_are_reproducible(tmp_path):
    first = written(tmp_path, {"train": generate_pairs(Copying(), 20, seed=1)})["train"].read_text()
    (tmp_path / "train.tsv").unlink()
    assert written(tmp_path, {"train": generate_pairs(Copying(), 20, seed=1)})["train"].read_text() == first
    assert [path.name for path in tmp_path.iterdir()] == ["train.tsv"]


def test_models_have_similar_parameter_counts():
    sizes = [sum(p.numel() for p in built(*model).parameters()) for model in recall.MODELS.values()]
    assert np.ptp(sizes) < 0.02 * min(sizes)


def test_speed_excludes_compilation_and_validation(tmp_path):
    """Steps of 10 ms, every tenth logged, with a slow start and a pause in the middle."""
    times = 30.0 + 0.1 * np.arange(11) + np.where(np.arange(11) > 5, 20.0, 0.0)
    times[0] = 0.0
    lines = [
        {"kind": "step", "step": 10 * n, "time": float(time), "units": 500} for n, time in enumerate(times)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    curve = [(50, 0.4), (80, 0.995), (100, 1.0)]
    run = Trained(folder=tmp_path, seconds=51.0, parameters=1, of="exact", curve=curve)
    pace = recall.pace(run)
    assert pace == pytest.approx({"ms a step": 10, "tokens a second": 50_000})
    assert recall.learned(run, pace) == pytest.approx({"steps to 99 %": 80, "seconds to 99 %": 0.8})
    assert recall.learned(replace(run, curve=curve[:1]), pace) == {}
    (tmp_path / "metrics.jsonl").write_text(json.dumps(lines[0]) + "\n")
    assert recall.pace(run) == {}


def test_test_sizes_are_within_the_training_sizes():
    for name, task in recall.TASKS.items():
        assert task.shortest <= min(recall.SIZES[name]) <= max(recall.SIZES[name]) == task.longest
    assert recall.TASKS.keys() == recall.SIZES.keys() == recall.STEPS.keys()


def test_many_keys_resume_from_few(tmp_path, monkeypatch, in_process):
    for constant, count in (("LEARNED", 200), ("HELD", 4), ("TESTED", 1)):
        monkeypatch.setattr(recall, constant, count)
    workspace = Workspace(
        data=tmp_path / "none",
        work=tmp_path / "work",
        figures=tmp_path / "figures",
        device="cpu",
        changes=(
            "training.max_steps=1",
            "training.batch_tokens=512",
            "training.eval_steps=1",
            "training.warmup_steps=1",
        ),
    )
    recall.run(workspace, "many-lstm-alone/1")
    assert {one.name for one in runs_of("recall", workspace.figures)} == {
        "few-lstm-alone/1",
        "many-lstm-alone/1",
    }
    recipe = read_recipe_dict(workspace.run("recall", "many-lstm-alone/1") / "recipe.yaml")
    folder = str(workspace.run("recall", "few-lstm-alone/1") / "model")
    assert recipe["model"]["folder"] == recipe["tokenizer"]["folder"] == folder


def test_figure_shows_the_better_variant_with_all_its_steps():
    def record(kind, exact):
        figures = {"exact at 2": 1.0, "exact at 32": exact, "ms a step": 10.0}
        return RunRecord(
            row="recall",
            name=f"{kind}/1",
            seed=1,
            parameters=1,
            seconds=1,
            figures=figures,
            curve=[(100, exact)],
        )

    at_once, count, many = record("recall-lstm", 0.0), record("few-lstm", 0.9), record("many-lstm", 1.0)
    runs, before = better_runs([at_once, count, many], "lstm")
    assert (runs, before) == ([many], [count])
    assert accuracy_by_step(runs, before) == [(200, [100.0])]
    assert better_runs([record("recall-lstm", 0.5), count, record("many-lstm", 0.0)], "lstm")[1] == []
