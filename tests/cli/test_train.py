"""`glassformer train`: invalid input, dry runs, interrupted and resumed runs."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import glassformer
from glassformer.training.recipe import read_recipe
from tests.recipes.made_up import text_files

QUICK = {"training.steps": 2, "training.device": "cpu", "tokenizer.vocab_size": 60, "model.d_model": 16}
QUICK |= {"model.num_heads": 2, "model.d_ff": 16, "model.num_layers": 1}
ROOT = Path(__file__).parents[2]
PAIRS = ["translate", "--train", "pairs.tsv"]


def quick(*changes: str) -> list[str]:
    """Options for a run of two steps, with changes."""
    words = [f"{name}={value}" for name, value in QUICK.items()]
    return [word for change in (*words, *changes) for word in ("--set", change)]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.chdir(tmp_path)
    text_files(tmp_path)
    yield tmp_path
    torch.set_num_threads(before)


def write(path, text):
    path.write_text(text)
    return path


def with_recipe(text):
    return lambda place: write(place / "mine.yaml", text)


def shorter(place):
    lines = (place / "train.de").read_text().splitlines(keepends=True)
    write(place / "train.de", "".join(lines[:-3]))


def folder(name):
    return lambda place: (place / name).mkdir()


def saved(family):
    return lambda place: glassformer.save(glassformer.tiny(family), place / "model")


def nothing(place):
    pass


GOOD = "job: translate\ndata: {train: pairs.tsv}\n"
RECIPE = ["mine.yaml"]
# what is wrong: (preparation, arguments, a name that the error must contain)
BAD = {
    "unknown job": (nothing, ["translat", "--train", "pairs.tsv"], "did you mean 'translate'"),
    "nearest recipe": (nothing, ["multi30k-en-ed"], "did you mean 'multi30k-en-de'"),
    "no files": (nothing, ["translate"], "--train"),
    "missing file": (nothing, ["translate", "--train", "no-such.tsv"], "no-such.tsv"),
    "misaligned": (shorter, ["translate", "--train", "train.en", "--train", "train.de"], "117"),
    "unknown key": (nothing, [*PAIRS, "--set", "training.step=3"], "did you mean 'steps'"),
    "wrong type": (nothing, [*PAIRS, "--set", "training.steps=many"], "training.steps"),
    "out is a file": (nothing, [*PAIRS, "--out", "pairs.tsv"], "pairs.tsv"),
    "valid share 1": (nothing, [*PAIRS, "--valid", "1"], "valid"),
    "no such GPU": (nothing, [*PAIRS, "--set", "training.device=cuda:99"], "cuda:99"),
    "vocabulary that cannot write the targets": (
        lambda place: write(place / "k.tsv", "".join(f"a {n}\t{chr(0xAC00 + n) * 3}\n" for n in range(200))),
        ["translate", "--train", "k.tsv", "--set", "tokenizer.vocab_size=20", "--valid", "0.1"],
        "tokenizer.vocab_size",
    ),
    "model folder of another shape": (
        saved("gpt2"),
        [*PAIRS, "--set", "model.folder=model", "--set", "tokenizer.folder=model"],
        "model",
    ),
    "resume without a run": (nothing, [*PAIRS, "--resume"], "--resume"),
    "broken YAML": (with_recipe("job: translate\nseed: 1\ndata: }\n"), RECIPE, "mine.yaml"),
}


@pytest.mark.parametrize("case", BAD)
def test_invalid_input_is_an_error_of_one_line(run, place, case):
    """Afterwards the corrected command trains in the same folder."""
    prepare, args, named = BAD[case]
    prepare(place)
    given = [word for n, word in enumerate(quick()) if n % 2 == 1]
    options = [word for change in given if not _is_set(change, args) for word in ("--set", change)]
    if args == RECIPE and case.startswith(("broken", "a ", "no recipe")):
        options = []
    out = [] if "--out" in args else ["--out", "runs/x"]
    done = run("train", *args[:1], *options, *args[1:], *out)
    assert done.code == 2 and done.out == "", done
    line = done.err.splitlines()[-1]
    assert line.startswith("error: ") and named in line and "Traceback" not in done.err, done.err
    assert done.err.count("error: ") == 1
    if (place / "runs/x").exists() and any(
        not path.name.startswith("lock") for path in (place / "runs/x").iterdir()
    ):
        corrected = run("train", *PAIRS, *quick(), "--out", "runs/x")
        assert corrected.code == 0, f"after: {line}\n{corrected.err}"


def _is_set(change, args):
    return any(arg.partition("=")[0] == change.partition("=")[0] for arg in args)


def test_unread_columns_are_reported(run, place):
    pairs = (place / "pairs.tsv").read_text().splitlines()
    write(place / "by.tsv", "\n".join(["source\ttarget\tchecked by", *(f"{pair}\tme" for pair in pairs)]))
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


def test_finished_run_is_not_trained_again(run, place):
    command = ["train", *PAIRS, *quick(), "--out", "runs/x"]
    assert run(*command).code == 0
    model = (place / "runs/x/model/model.safetensors").read_bytes()
    again = run(*command)
    assert again.code == 0 and "finished" in again.err, again.err
    assert (place / "runs/x/model/model.safetensors").read_bytes() == model
    further = run("train", *PAIRS, *quick("training.steps=3"), "--out", "runs/x", "--resume")
    assert further.code == 0 and "resuming from step 2" in further.err, further.err


def test_folder_of_another_run_is_refused(run, place):
    assert run("train", *PAIRS, *quick(), "--out", "runs/x").code == 0
    done = run("train", *PAIRS, *quick("seed=2"), "--out", "runs/x")
    assert done.code == 2 and "seed is 1 and not 2" in done.err
    shutil.copyfile(place / "pairs.tsv", place / "copy.tsv")
    done = run("train", "translate", "--train", "copy.tsv", *quick(), "--out", "runs/x")
    assert done.code == 2 and "data.train" in done.err


def test_recipe_of_a_run_reproduces_it(run, place):
    assert run("train", *PAIRS, *quick(), "--out", "runs/x").code == 0
    kept = place / "runs/x/recipe.yaml"
    assert read_recipe(kept).training.lr is not None
    assert run("train", kept, "--out", "runs/y").code == 0
    one, other = ((place / "runs" / n / "model/model.safetensors").read_bytes() for n in "xy")
    assert one == other


def test_resume_after_ctrl_c_is_bit_identical(run, place):
    command = ["train", *PAIRS, *quick("training.steps=250", "training.validate_every=125"), "--out"]
    args = [sys.executable, "-m", "glassformer", *command, "runs/x"]
    child = subprocess.Popen(
        args,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
    )
    until = time.monotonic() + 120
    while (
        child.poll() is None
        and time.monotonic() < until
        and not _noted_a_step(place / "runs/x/metrics.jsonl")
    ):
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=120)
    assert child.returncode == 130 and "run the same command again" in told, told
    done = run(*command, "runs/x")
    assert done.code == 0 and "resuming from step" in done.err, done.err
    assert run(*command, "runs/y").code == 0
    one, other = ((place / "runs" / n / "model/model.safetensors").read_bytes() for n in "xy")
    assert one == other


def test_closed_stderr_does_not_stop_training(place):
    """As in `glassformer train ... 2>&1 | head`."""
    command = ["train", *PAIRS, *quick("training.steps=12"), "--out", "runs/x"]
    args = [sys.executable, "-m", "glassformer", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(args, stderr=subprocess.PIPE, text=True, env=environment)
    assert child.stderr is not None
    assert any("parameters" in line for line in child.stderr)
    child.stderr.close()
    assert child.wait(timeout=120) == 0
    assert (place / "runs/x/model/model.safetensors").is_file()


def _noted_a_step(path):
    lines = path.read_text().splitlines() if path.exists() else []
    return any(json.loads(line)["kind"] == "step" for line in lines[:-1])
