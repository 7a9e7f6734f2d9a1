"""The ready recipes: complete, commented, and each one trains."""

import dataclasses
import re

import pytest
import yaml

from glassformer.recipes import names, ready, title
from glassformer.training.recipe import JOBS, METRICS, SECTIONS, Recipe, Tokenizer, Training, read_recipe

KEY = re.compile(r"^ *[a-z_]+:")


def keys(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_job_has_a_recipe():
    assert {read_recipe(ready(name)).job for name in names()} == set(JOBS)


@pytest.mark.parametrize("name", names())
def test_is_complete_and_commented(name):
    """Every key of every section that applies is there, none twice, each with a comment in its line."""
    path = ready(name)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    recipe = read_recipe(path)
    sections = set(SECTIONS) - ({"tokenizer"} if recipe.job in ("images", "forecast") else set())
    assert set(data) == sections
    assert set(data["data"]) == keys(JOBS[recipe.job])
    assert set(data["training"]) == keys(Training)
    assert {"preset", "folder"} <= set(data["model"])
    assert "tokenizer" not in sections or set(data["tokenizer"]) == keys(Tokenizer)
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if KEY.match(line)]
    assert len(lines) == len(sections) + sum(len(part) for part in data.values() if isinstance(part, dict))
    for line in lines:
        _, mark, comment = line.partition("  # ")
        assert mark and len(comment) > 5, line
        assert len(line) <= 120, line
    assert len(title(path)) > 20


@pytest.mark.parametrize("name", names())
def test_paths_are_plain_names(name):
    recipe = read_recipe(ready(name))
    valid = getattr(recipe.data, "valid", ())
    for path in (*recipe.data.train, *(valid if isinstance(valid, tuple) else ())):
        assert not path.startswith(("/", "~", "..")), path


SMALL = {"d_model": 48, "num_layers": 1, "d_ff": 64}  # what two steps on a CPU have time for
BATCH = {"lm": 512, "forecast": 32, "images": 40}  # a lm's recipe has rows of up to 512 tokens
ALSO = {
    "lm-gpt2-small": ["training.batch=1024", "tokenizer.vocab_size=300"],
    "classify-reviews": ["data.max_len=16"],
    "forecast-ett": ["data.context=64", "data.horizon=12", "data.split=[0.7,0.1,0.2]"],
}


def small(name: str, recipe: Recipe) -> list[str]:
    """The changes by which a recipe is tried quickly: its sizes, not its ways."""
    sizes = [f"model.{key}={value}" for key, value in SMALL.items() if key in recipe.model.words]
    batch = f"training.batch={BATCH.get(recipe.job, 2048)}"
    return [*sizes, batch, "training.compile=off", *ALSO.get(name, ())]


@pytest.mark.parametrize("name", names())
def test_trains(run, place, monkeypatch, name):
    """Two steps on made-up files of the names in it give a model that can be measured."""
    monkeypatch.chdir(place)
    recipe = read_recipe(ready(name))
    steps = ["training.steps=2", "training.accumulate=1", "training.validate_every=1", "training.device=cpu"]
    changes = [word for change in (*steps, *small(name, recipe)) for word in ("--set", change)]
    out = place / "runs" / name
    assert len(recipe.data.train) and all((place / path).exists() for path in recipe.data.train)
    done = run("train", name, "--out", out, *changes)
    assert done.code == 0, done.err
    assert read_recipe(out / "recipe.yaml").training.steps == 2
    done = run("evaluate", out / "model", *recipe.data.train, "--json")
    assert done.code == 0, done.err
    found = yaml.safe_load(done.out)
    assert found["job"] == recipe.job
    assert {name for name in found["metrics"] if not name.startswith("repeat")} == set(METRICS[recipe.job])
