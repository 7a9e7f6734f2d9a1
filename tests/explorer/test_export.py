"""One trace as a page of its own: it works from disk, asks nobody, and shows the same numbers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import glassformer
from glassformer import baselines
from glassformer.bundle import Bundle
from glassformer.cli.main import app
from glassformer.errors import GlassformerError
from tests.explorer.conftest import Opened, settled

KINDS = ("translator", "masked", "pictures", "series")


@pytest.fixture(scope="module")
def exported(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("exported")
    made = {}
    for name in KINDS:
        words = ["explore", str(folders[name]), "--export", str(place / f"{name}.html")]
        done = CliRunner().invoke(app(words), words)
        assert done.exit_code == 0, done.output
        made[name] = place / f"{name}.html"
    return made


@pytest.mark.parametrize("name", KINDS)
def test_every_stage_opens_from_disk(exported: dict[str, Path], opened: Opened, name: str) -> None:
    with opened(exported[name].as_uri()) as page:
        stages = page.eval_on_selector_all(
            "[data-stage]", "all => [...new Set(all.map(e => e.dataset.stage))]"
        )
        assert len(stages) > 8
        for stage in stages:
            page.evaluate("id => { location.hash = location.hash.split('?')[0] + '?at=' + id }", stage)
            page.wait_for_selector(f'[data-open="{stage}"] [data-figure]')
        assert page.locator("[role=alert]").count() == 0
        for view in ("heads", "decoding", "change", "learning"):
            page.evaluate("view => { location.hash = '#/' + location.hash.split('/')[1] + '/' + view }", view)
            page.wait_for_selector(f'[data-view="{view}"]')
            settled(page)


def test_it_shows_what_the_model_wrote(
    exported: dict[str, Path], opened: Opened, bundles: dict[str, Bundle]
) -> None:
    with opened(exported["translator"].as_uri(), language="ko") as page:
        read = page.input_value("textarea")
        wrote = bundles["translator"].translate(read)[0]
        assert wrote in page.inner_text("body")
        assert page.get_attribute("html", "lang") == "ko"


def test_its_policy_allows_its_own_script_alone(exported: dict[str, Path]) -> None:
    text = exported["translator"].read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src &#x27;none&#x27;" in policy[1] and "sha256-" in policy[1]
    assert text.count("<script>") == 1 and "http://" not in text.split('id="kept"')[0].replace(
        "http://www.w3.org", ""
    )


def test_of_a_paragraph_the_first_part_is_exported(folders: dict[str, Path], tmp_path: Path) -> None:
    for parts in (("the cat sat", "on the mat"), ("the cat sat",)):
        out = tmp_path / f"{len(parts)}.html"
        words = ["explore", str(folders["translator"]), "--text", "\n".join(parts), "--export", str(out)]
        done = CliRunner().invoke(app(words), words)
        assert done.exit_code == 0 and bool(done.stderr) == (len(parts) == 2)
        assert _kept(out)["trace"]["input"]["text"] == "the cat sat"


def _kept(page: Path) -> dict[str, Any]:
    """What a page holds."""
    (held,) = re.findall(r'id="kept">([^<]+)<', page.read_text("utf-8"))
    return dict(json.loads(gzip.decompress(base64.b64decode(held))))


@pytest.mark.parametrize(
    "options",
    [
        ["--export", "no/such/folder/t.html"],
        ["--image", "README.md"],
        ["--image", "README.md", "--export", "t.html"],
        ["other", "--export", "t.html"],
    ],
)
def test_impossible_exports_are_rejected(folders: dict[str, Path], options: list[str]) -> None:
    arguments = ["explore", str(folders["translator"]), *options]
    done = CliRunner().invoke(app(arguments), arguments)
    assert isinstance(done.exception, GlassformerError) or done.exit_code == 2


def refused(*words: str) -> str:
    """The error message that a command ends with."""
    done = CliRunner().invoke(app(["explore", *words]), ["explore", *words])
    assert done.exit_code == 2, done.output
    return done.stderr.strip()


def test_a_baseline_is_told_before_anything_is_served(tmp_path: Path) -> None:
    spec = baselines.lstm_spec("LSTMLanguageModel", {"d_model": 8}, vocab_size=9)
    bundle = Bundle(model=baselines.build_baseline(spec))
    folder = glassformer.save(bundle, tmp_path / "lstm", layout="glassformer")
    told = refused(str(folder), "--port", "0", "--no-browser")
    assert "lstm" in told and "\n" not in told
    assert told == refused(str(folder), "--export", str(tmp_path / "page.html"))


def test_a_page_is_not_written_over_another_unless_asked(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert "--overwrite" in refused("pocket-series", "--export", str(page))
    assert page.read_text() == "mine"
    words = ["explore", "pocket-series", "--export", str(page), "--overwrite"]
    assert CliRunner().invoke(app(words), words).exit_code == 0
    assert "<html" in page.read_text("utf-8")
