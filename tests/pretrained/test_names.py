"""Every command accepts the name of a shipped model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import glassformer
from glassformer import pretrained as models
from glassformer.errors import FileMissingError, GlassformerError
from tests.interpret import models as tiny

Shipped = Callable[[str], Path]
NAMES = ["pocket", "pocket-digits", "pocket-lm", "pocket-series"]


def test_models_lists_the_shipped_models(run: Any, shipped: Shipped) -> None:
    assert models.names() == NAMES
    done = run("models")
    assert done.code == 0 and all(name in done.out for name in NAMES) and "CC BY 2.0" in done.out
    infos = json.loads(run("models", "--json").out)
    assert [info["name"] for info in infos] == NAMES
    weights = (shipped("pocket") / "model.safetensors").stat().st_size
    assert infos[0]["bytes"] > weights and infos[0]["languages"] == ["de", "en", "ko"]
    count = sum(p.numel() for p in glassformer.load("pocket").model.parameters())
    assert infos[0]["parameters"] == count
    assert run("models", "pocket-lm") == (0, "# pocket-lm\n", "")


def test_every_command_accepts_the_name(run: Any, shipped: Shipped, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("en\tde\tto\nthe cat\ta dog\tde\n")
    (tmp_path / "lines.txt").write_text("the cat\na dog\n")
    image = _save_image(tmp_path / "seven.png")
    columns = glassformer.load("pocket-series").job.columns
    rows = [columns, *([str(n)] * len(columns) for n in range(64))]
    (tmp_path / "series.csv").write_text("".join(",".join(row) + "\n" for row in rows))
    commands = [
        ("translate", "pocket", "the cat", "--to", "de", "--max-new-tokens", 4),
        ("translate", "pocket", "--file", "lines.txt", "--to", "de", "--max-new-tokens", 4, "--out", "o.txt"),
        ("generate", "pocket-lm", "the cat", "--max-new-tokens", 4),
        ("classify", "pocket-digits", image),
        ("embed", "pocket-digits", image),
        ("forecast", "pocket-series", "series.csv"),
        ("inspect", "pocket"),
        ("verify", "pocket", "--no-reference"),
        ("evaluate", "pocket", "pairs.tsv", "--columns", "en,de", "--set", "data.language_column=to"),
        ("convert", "pocket", "converted", "--dtype", "int8"),
        ("average", "pocket", "pocket", "--out", "mean"),
        ("export", "pocket", "--format", "ctranslate2", "--out", "exported"),
        ("explore", "pocket", "--to", "ko", "--export", "page.html"),
    ]
    for args in commands:
        done = run(*args)
        assert done.code == 0, (args, done.out, done.err)


def _save_image(path: Path) -> Path:
    from PIL import Image

    Image.new("RGB", (16, 16), (200, 30, 90)).save(path)
    return path


def test_a_local_folder_takes_precedence_with_a_note(run: Any, shipped: Shipped, tmp_path: Path) -> None:
    other = tiny.tiny_bundle("gpt2")
    glassformer.save(other, tmp_path / "pocket")
    assert glassformer.load("pocket").family == "gpt2"
    done = run("inspect", "pocket")
    assert done.code == 0 and "gpt2" in done.out and "not the shipped model" in done.err
    assert run("inspect", "./pocket").err == ""


def test_a_run_folder_means_its_model(run: Any, shipped: Shipped, tmp_path: Path) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "recipe.yaml").write_text("job: lm\n")
    for args in (["inspect"], ["generate", "a"], ["evaluate", "lines.txt"], ["verify", "--no-reference"]):
        done = run(args[0], "runs/mine", *args[1:])
        assert done.code == 2 and "no model yet" in done.err, (args, done.err)
    glassformer.save(tiny.tiny_bundle("gpt2"), tmp_path / "runs" / "mine" / "best")  # the best so far
    assert glassformer.load("runs/mine").folder == Path("runs/mine/best")
    glassformer.save(tiny.tiny_bundle("gpt2"), tmp_path / "runs" / "mine" / "model")
    assert glassformer.load("runs/mine").folder == Path("runs/mine/model")
    (tmp_path / "lines.txt").write_text("the cat\na dog\n")
    for args in (["inspect"], ["evaluate", "lines.txt", "--job", "lm"], ["verify", "--no-reference"]):
        done = run(args[0], "runs/mine", *args[1:])
        assert done.code == 0, (args, done.err)


def test_a_misspelled_name_gets_a_suggestion(run: Any, shipped: Shipped) -> None:
    with pytest.raises(FileMissingError) as near:
        glassformer.load("poket-lm")
    with pytest.raises(FileMissingError) as far:
        glassformer.load("/somewhere/else")
    assert "pocket-lm" in near.value.hint and not far.value.hint
    for args in (["models", "poket"], ["inspect", "poket"], ["translate", "poket", "a"], ["serve", "poket"]):
        done = run(*args)
        assert done.code == 2 and "did you mean 'pocket'?" in done.err, args


def test_a_name_that_may_be_on_the_hub_gets_the_command_that_downloads_it(shipped: Shipped) -> None:
    from glassformer.batch import run
    from glassformer.cli.options import load_or_build

    for name, repo in {"gpt2": "ORG/gpt2", "gpt5": "ORG/gpt5", "org/gpt5": "org/gpt5"}.items():
        for find in (
            lambda name: glassformer.load(name),
            load_or_build,
            lambda name: run("translate", name, "in.csv", "out"),
        ):
            with pytest.raises(GlassformerError) as missing:
                find(name)
            assert f"glassformer download {repo}" in missing.value.hint  # type: ignore[attr-defined]


def test_explore_opens_all_shipped_models_by_default(
    run: Any, shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.cli import explore
    from glassformer.cli.options import load_model
    from glassformer.server.models import load_models

    requested: list[list[str]] = []
    monkeypatch.setattr(explore, "run_server", lambda models, *_, **__: requested.append(list(models)))
    assert run("explore", "--no-browser").code == 0
    assert requested == [NAMES]
    folders = [str(models.resolve_name(name)) for name in requested[0]]
    bundles, runs = load_models(folders, load_model)
    assert list(bundles) == NAMES and not runs


def test_explore_leaves_out_a_model_without_a_view(
    run: Any, shipped: Shipped, monkeypatch: pytest.MonkeyPatch
) -> None:
    from glassformer.cli import explore

    def start(models: Any, *_: Any, check: Any, **__: Any) -> None:
        check({name: glassformer.load(name) for name in models})

    monkeypatch.setattr(explore, "run_server", start)
    glassformer.save(tiny.tiny_bundle("mask2former"), "masks")
    done = run("explore", "masks", "pocket-digits", "--no-browser")
    assert done.code == 0 and done.err.startswith("note: ") and done.err.count("\n") == 1, done.err
    assert "masks" in done.err and "view" in done.err
    for args in (["--no-browser"], ["--export", "page.html"]):
        done = run("explore", "masks", *args)
        assert done.code == 2 and done.err.count("\n") == 1 and "no view for" in done.err, done.err


@pytest.mark.parametrize(("model", "field"), [("questions", "question"), ("pocket", "in")])
def test_explore_opens_with_a_text_or_a_question(
    run: Any, shipped: Shipped, monkeypatch: pytest.MonkeyPatch, model: str, field: str
) -> None:
    from glassformer.cli import explore
    from glassformer.interpret.schema import TraceInput
    from glassformer.interpret.views import samples
    from glassformer.interpret.views.images import data_url

    example = TraceInput(image=data_url(Image.new("RGB", (32, 32))), question="What is it?")
    monkeypatch.setattr(samples, "shipped_example", lambda name: example)

    def start(models: Any, *_: Any, check: Any, on_ready: Any, **__: Any) -> None:
        check({name: glassformer.load(name) for name in models})
        on_ready("http://127.0.0.1:1", list(models))

    monkeypatch.setattr(explore, "run_server", start)
    glassformer.save(tiny.tiny_bundle("vilt"), "questions")
    done = run("explore", model, "--text", "How many cars?", "--no-browser")
    assert f"#/{model}/model?{field}=How%20many%20cars%3F " in done.out, done.out + done.err
