"""`glassformer train`: dry runs, interrupted and resumed runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from glassformer.training.recipe import read_recipe
from tests.cli.conftest import quick
from tests.recipes.synthetic_data import text_files

ROOT = Path(__file__).parents[2]
PAIRS = ["translate", "--train", "pairs.tsv"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    text_files(tmp_path)
    yield tmp_path
    torch.set_num_threads(before)


def test_unread_columns_are_reported(run, place):
    pairs = (place / "pairs.tsv").read_text().splitlines()
    rows = ["source\ttarget\tchecked by", *(f"{pair}\tme" for pair in pairs)]
    (place / "by.tsv").write_text("\n".join(rows))
    done = run("train", "translate", "--train", "by.tsv", *quick(), "--valid", "by.tsv", "--out", "runs/x")
    assert done.code == 0 and done.err.count("ignored: ") == 1, done.err
    assert "source from 'source', target from 'target'; ignored: 'checked by'" in done.err
    assert f"{len(pairs)} pairs for training" in done.err
    bare = run("train", "translate", "--train", "by.tsv", *quick("data.columns=[1,2]"), "--out", "runs/y")
    assert bare.code == 0 and "ignored" not in bare.err  # which was asked for


def test_dry_run_writes_nothing(run, place):
    before = sorted(place.rglob("*"))
    done = run("train", *PAIRS, *quick(), "--dry-run", "--out", "runs/x")
    assert done.code == 0, done.err
    assert "job: translate" in done.out and "parameters" in done.out and "self_attn" in done.out
    assert sorted(place.rglob("*")) == before


def test_training_flags(run, place):
    """They are keys of the training section; --epochs replaces the max_steps of a recipe."""
    flags = ["--epochs", "1", "--lr", "0.004", "--batch-tokens", "600", "--time-limit", "1h"]
    flags += ["--batch-size", "1500"]
    done = run("train", *PAIRS, *quick(), "--out", "runs/x")
    assert done.code == 0, done.err
    done = run("train", place / "runs/x/recipe.yaml", *flags, "--out", "runs/y")
    assert done.code == 0, done.err
    training = read_recipe(place / "runs/y/recipe.yaml").training
    before = read_recipe(place / "runs/x/recipe.yaml").training
    assert (training.epochs, training.lr, training.batch_tokens, training.time_limit) == (1, 0.004, 600, "1h")
    assert training.batch_size == 1500 and "batch_tokens" in done.err  # a warning: it counts examples
    assert training.max_steps != before.max_steps
    assert run("train", *PAIRS, "--time-limit", "5", "--out", "runs/z").code == 2
    done = run("train", *PAIRS, "--set", "epochs=3", "--out", "runs/z")
    assert done.code == 2 and "training.epochs" in done.err
    done = run("train", *PAIRS, "--set", "learning_rate=3", "--out", "runs/z")
    assert done.code == 2 and "training.lr" in done.err


def weights(folder):
    return (folder / "model/model.safetensors").read_bytes()


def test_command_of_a_finished_run(run, place):
    """The same one trains nothing, a longer one resumes, another one is refused; its recipe reproduces it."""
    command, out = ["train", *PAIRS, *quick()], ["--out", "runs/x"]
    assert run(*command, *out).code == 0
    trained = weights(place / "runs/x")
    again = run(*command, *out)
    assert again.code == 0 and "finished" in again.err and weights(place / "runs/x") == trained
    done = run(*command, "--set", "seed=2", *out)
    assert done.code == 2 and "started with 1, not 2" in done.err
    shutil.copyfile(place / "pairs.tsv", place / "copy.tsv")
    done = run("train", "translate", "--train", "copy.tsv", *quick(), *out)
    assert done.code == 2 and "data.train" in done.err
    assert run("train", place / "runs/x/recipe.yaml", "--out", "runs/y").code == 0
    assert weights(place / "runs/y") == trained
    further = run("train", *PAIRS, *quick("training.max_steps=3"), *out, "--resume")
    assert further.code == 0 and "resuming from step 2" in further.err, further.err


def start(*args):
    """A command in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "glassformer", *args]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env)


def test_closed_stderr_does_not_stop_training(place):
    """As in `glassformer train ... 2>&1 | head`."""
    child = start("train", *PAIRS, *quick("training.max_steps=12"), "--out", "runs/x")
    assert child.stderr is not None
    assert any("parameters" in line for line in child.stderr)
    child.stderr.close()
    assert child.wait(timeout=120) == 0
    assert (place / "runs/x/model/model.safetensors").is_file()
