"""Which models `glassformer explore` shows."""

import shutil
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from glassformer.cli.explore import models_with_weights
from glassformer.cli.main import app
from glassformer.pretrained import NoModelYetError, folder_of


def test_runs_without_a_model_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("job: translate\n")
    assert models_with_weights(["pocket-lm", str(run), "pocket"]) == ["pocket-lm", "pocket"]
    assert "has no model yet" in capsys.readouterr().err
    with pytest.raises(NoModelYetError):
        models_with_weights([str(run)])


def run_explore(*words: str) -> Result:
    return CliRunner().invoke(app(["explore", *words]), ["explore", *words])


def test_site_has_a_page_for_each_model_of_the_same_name(tmp_path: Path) -> None:
    names = ("a/model", "b/model", "모델", "boxes")
    folders = [shutil.copytree(folder_of("pocket-series"), tmp_path / name) for name in names]
    folder = tmp_path / "site"
    result = run_explore("pocket-detector", *map(str, folders), "--site", str(folder))
    assert result.exit_code == 0, result.output
    assert {page.parent.name for page in folder.glob("*/index.html")} == {
        *("boxes", "boxes-2", "model", "model-2", "model-3")
    }


def test_site_replaces_only_an_earlier_site(tmp_path: Path) -> None:
    other = tmp_path / "homepage"
    other.mkdir()
    (other / "index.html").write_text("mine")
    result = run_explore("pocket-series", "--site", str(other), "--overwrite")
    assert result.exit_code == 2 and "earlier" in result.stderr
    assert [path.name for path in other.iterdir()] == ["index.html"]
    assert (other / "index.html").read_text() == "mine"

    site, outside = tmp_path / "site", tmp_path / "trace-mine.js"
    assert run_explore("pocket-series", "--site", str(site)).exit_code == 0
    marker = site / ".glassformer-site"
    stale, mine = site / "waves" / "trace-old.js", site / "waves" / "trace-mine.js"
    for path in (stale, mine, outside):
        path.write_text("")
    marker.write_text(marker.read_text() + "waves/trace-old.js\n../trace-mine.js\n")
    assert run_explore("pocket-series", "--site", str(site), "--overwrite").exit_code == 0
    assert mine.exists() and outside.exists() and not stale.exists()
    assert (site / "waves" / "trace-.js").exists()


@pytest.mark.parametrize(
    "options", [["--text", "a"], ["--to", "fr"], ["--image", "IMAGE"], ["--export", "page.html"]]
)
def test_options_that_a_site_cannot_use_are_rejected(tmp_path: Path, options: list[str]) -> None:
    image = tmp_path / "image.png"
    image.write_bytes(b"")
    words = [str(image) if word == "IMAGE" else word for word in options]
    result = run_explore("pocket", *words, "--site", str(tmp_path / "site"))
    assert result.exit_code == 2 and options[0] in result.stderr and "--site" in result.stderr
    assert not (tmp_path / "site").exists()
