"""Runs of version 0.2.0 of the jobs `images` and `classify-series`, which are now inputs of `classify`.

`runs_of_version_0_2` was recorded with that version, two steps each.
"""

import json
import shutil
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

import glassformer
from glassformer.errors import ConflictError
from glassformer.training.evaluation import evaluate_files
from glassformer.training.jobs import current_name
from glassformer.training.recipe import parse_recipe, read_recipe_dict
from glassformer.training.run import run as run_training
from tests.cli.conftest import run

__all__ = ["run"]

RECORDED = Path(__file__).with_name("runs_of_version_0_2")
INPUTS = {"images": ("image", "photos"), "classify-series": ("series", "waves.ts")}


@pytest.fixture(params=INPUTS)
def old(request, tmp_path, monkeypatch):
    """The name of a former job, in a folder with its data and its run."""
    shutil.copytree(RECORDED / request.param, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return request.param


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def request_of(old: str, **training: Any) -> dict[str, Any]:
    recipe = read_recipe_dict("run/recipe.yaml")
    return {**recipe, "training": {**recipe["training"], **training}}


def test_old_run_resumes_as_an_uninterrupted_new_run(old, tmp_path):
    messages: list[str] = []
    with pytest.warns(FutureWarning):
        recipe = parse_recipe(request_of(old, max_steps=4))
    run_training(recipe, tmp_path / "run", log=messages.append)
    assert "resuming from step 2 of 4" in (tmp_path / "run/train.log").read_text()
    saved = yaml.safe_load((tmp_path / "run/recipe.yaml").read_text())
    assert (saved["job"], saved["data"]["input"]) == ("classify", INPUTS[old][0])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        content = {**request_of(old, max_steps=4), "job": "classify"}
        run_training(parse_recipe(content), tmp_path / "whole", log=messages.append)
    resumed, whole = (load_file(tmp_path / name / "model/model.safetensors") for name in ("run", "whole"))
    for name, tensor in whole.items():
        assert torch.allclose(resumed[name], tensor, atol=1e-6), name


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_run_resumes_without_naming_former_defaults(old, tmp_path):
    """Version 0.2.0 also recorded the defaults of a command."""
    file = tmp_path / "run/request.json"
    request = json.loads(file.read_text())
    recorded = {**request, "training": {**request["training"], "max_grad_norm": 1.0, "ema": 0.0}}
    file.write_text(json.dumps(recorded))
    for max_grad_norm, same in ((2.0, False), (None, True)):
        training = {**request["training"], "max_steps": 3, "max_grad_norm": max_grad_norm}
        with nullcontext() if same else pytest.raises(ConflictError):
            run_training(parse_recipe({**request, "training": training}), tmp_path / "run", log=print)
    assert read_recipe_dict("run/recipe.yaml")["training"]["max_grad_norm"] == 1.0


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_run_does_not_resume_with_other_settings(old, tmp_path):
    content = request_of(old)
    content["model"]["d_ff"] = 24
    with pytest.raises(ConflictError):
        run_training(parse_recipe(content), tmp_path / "run", log=print)


def test_old_model_loads_and_evaluates(old, tmp_path, run):
    model = glassformer.load(tmp_path / "run")
    assert model.job.name == old
    inputs: Any = ["photos/dark/0.png"] if old == "images" else [np.sin(np.arange(8))[:, None]]
    assert next(best.label for best, *_ in model.classify(inputs)) in (model.job.classes or ())
    files = [INPUTS[old][1]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)  # the folder cannot help being old
        evaluation = evaluate_files(tmp_path / "run/model", files, log=print)
    assert evaluation.job == "classify" and set(evaluation.validation.metrics) == {"loss", "accuracy", "f1"}
    job = tmp_path / "run/model/job.json"
    job.write_text(json.dumps({**json.loads(job.read_text()), "job": "classify"}))
    shutil.copytree(tmp_path / "run/model", tmp_path / "new", ignore=shutil.ignore_patterns("checksums.json"))
    again = evaluate_files(tmp_path / "new", files, log=print)
    assert again.validation.metrics == evaluation.validation.metrics


def test_old_name_is_a_command_and_a_job_to_evaluate(old, tmp_path, run):
    file = INPUTS[old][1]
    sizes = ("model.d_model=8", "model.num_layers=1", "model.num_heads=2", "training.max_steps=1")
    flags = [word for change in sizes for word in ("--set", change)]
    with pytest.warns(FutureWarning):
        assert run("train", old, "--train", file, "--out", "new", *flags).code == 0
    assert yaml.safe_load(Path("new/recipe.yaml").read_text())["data"]["input"] == INPUTS[old][0]
    with pytest.warns(FutureWarning):
        assert run("evaluate", "new/model", file, "--job", old).code == 0


def test_every_former_name_is_known():
    assert {name: current_name(name, warn=False) for name in INPUTS} == {
        name: ("classify", {"input": kind}) for name, (kind, _) in INPUTS.items()
    }
