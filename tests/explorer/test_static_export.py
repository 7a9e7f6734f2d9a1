"""One trace as a page of its own: it works from disk, asks nobody, and shows the same numbers."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from typer.testing import CliRunner

import glassformer
from glassformer import baselines, explorer
from glassformer.bundle import Bundle
from glassformer.cli.main import app
from glassformer.errors import GlassformerError
from tests.explorer.conftest import OpenPage, wait_until_idle
from tests.explorer.explorer_models import CAPTIONS
from tests.faults.scale import sample

MODELS = ("translator", CAPTIONS, "pairs", "windows", "series", "masked", "pictures", "detector", "queries")
KINDS = sample(MODELS, 5)


@pytest.fixture(scope="module")
def exported(folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("exported")
    pages = {}
    for name in KINDS:
        words = ["explore", str(folders[name]), "--export", str(folder / f"{name}.html")]
        result = CliRunner().invoke(app(words), words)
        assert result.exit_code == 0, result.output
        pages[name] = folder / f"{name}.html"
    return pages


@pytest.mark.parametrize("name", KINDS)
def test_every_stage_opens_from_disk(exported: dict[str, Path], open_page: OpenPage, name: str) -> None:
    with open_page(exported[name].as_uri()) as page:
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
            wait_until_idle(page)


def test_exported_page_shows_the_output(
    exported: dict[str, Path], open_page: OpenPage, bundles: dict[str, Bundle]
) -> None:
    with open_page(exported["translator"].as_uri(), language="ko") as page:
        read = page.input_value("textarea")
        translation = bundles["translator"].translate(read)[0]
        assert translation in page.inner_text("body")
        assert page.get_attribute("html", "lang") == "ko"


def test_content_security_policy_allows_only_the_inline_script(exported: dict[str, Path]) -> None:
    text = exported["translator"].read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src &#x27;none&#x27;" in policy[1] and "sha256-" in policy[1]
    assert text.count("<script>") == 1 and "http://" not in text.split('id="trace-data"')[0].replace(
        "http://www.w3.org", ""
    )


def test_export_takes_the_first_sentence_of_a_paragraph(folders: dict[str, Path], tmp_path: Path) -> None:
    for parts in (("the cat sat", "on the mat"), ("the cat sat",)):
        out = tmp_path / f"{len(parts)}.html"
        words = ["explore", str(folders["translator"]), "--text", "\n".join(parts), "--export", str(out)]
        result = CliRunner().invoke(app(words), words)
        assert result.exit_code == 0 and bool(result.stderr) == (len(parts) == 2)
        assert _trace_data(out)["trace"]["input"]["text"] == "the cat sat"


@pytest.mark.parametrize(
    ("name", "kind"), [("queries", "detect"), ("prompts", "segment"), (CAPTIONS, "caption")]
)
def test_export_reads_an_image_file(folders: dict[str, Path], tmp_path: Path, name: str, kind: str) -> None:
    image, out = tmp_path / "image.png", tmp_path / "page.html"
    Image.new("RGB", (60, 40), "red").save(image)
    words = ["explore", str(folders[name]), "--image", str(image), "--export", str(out)]
    result = CliRunner().invoke(app(words), words)
    assert result.exit_code == 0, result.output
    data = _trace_data(out)
    assert base64.b64decode(data["model"]["example"]["image"]) == image.read_bytes()
    assert data["trace"]["outcome"]["kind"] == kind
    if kind == "segment":  # by default, the prompt is the center of the image
        assert data["model"]["example"]["points"] == [[30, 20]]


def test_export_shows_a_caption_in_another_language(folders: dict[str, Path], tmp_path: Path) -> None:
    out, folder = tmp_path / "page.html", folders[CAPTIONS]
    words = ["explore", str(folder), "--to", "KO", "--export", str(out)]
    result = CliRunner().invoke(app(words), words)
    assert result.exit_code == 0, result.output
    data, bundle = _trace_data(out), glassformer.load(folder)
    (caption,) = bundle.caption([base64.b64decode(bundle.job.example["image"].split(",")[1])], to="ko")
    assert data["trace"]["outcome"]["text"] == data["search"]["results"][0]["text"] == caption


def test_export_leaves_out_the_largest_tensors(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export(name: str) -> tuple[dict[str, int], str]:
        out = tmp_path / f"{name}.html"
        words = ["explore", str(folders["windows"]), "--export", str(out)]
        result = CliRunner().invoke(app(words), words)
        assert result.exit_code == 0, result.output
        tensors = _trace_data(out)["tensors"]
        return {key: len(base64.b64decode(one["data"])) for key, one in tensors.items()}, result.stderr

    whole, note = export("whole")
    assert not note
    limit = sum(whole.values()) // 2
    monkeypatch.setattr(explorer, "MAX_BYTES", limit)
    part, note = export("part")
    missing = whole.keys() - part.keys()
    assert part.items() <= whole.items() and sum(part.values()) <= limit
    assert f" {len(missing)};" in note
    scores = {name for name in whole if name.endswith(explorer.SCORES)}
    assert scores & missing and min(whole[name] for name in missing) > limit - sum(part.values())
    largest = max((name for name in whole if name.endswith(".weights")), key=lambda name: whole[name])
    monkeypatch.setattr("glassformer.interpret.tensors.MAX_BYTES", whole[largest] - 1)
    assert largest not in export("limited")[0]


def _trace_data(page: Path) -> dict[str, Any]:
    """What a page holds."""
    (data,) = re.findall(r'id="trace-data">([^<]+)<', page.read_text("utf-8"))
    return dict(json.loads(gzip.decompress(base64.b64decode(data))))


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
    result = CliRunner().invoke(app(arguments), arguments)
    assert isinstance(result.exception, GlassformerError) or result.exit_code == 2


def error_of(*words: str) -> str:
    """The error message that a command ends with."""
    result = CliRunner().invoke(app(["explore", *words]), ["explore", *words])
    assert result.exit_code == 2, result.output
    return result.stderr.strip()


def test_baselines_are_rejected_before_serving(tmp_path: Path) -> None:
    spec = baselines.lstm_spec("LSTMLanguageModel", {"d_model": 8}, vocab_size=9)
    bundle = Bundle(model=baselines.build_baseline(spec))
    folder = glassformer.save(bundle, tmp_path / "lstm", layout="glassformer")
    expected = error_of(str(folder), "--port", "0", "--no-browser")
    assert "lstm" in expected and "\n" not in expected
    assert expected == error_of(str(folder), "--export", str(tmp_path / "page.html"))


def test_existing_page_is_kept_without_overwrite(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("mine")
    assert "--overwrite" in error_of("pocket-series", "--export", str(page))
    assert page.read_text() == "mine"
    words = ["explore", "pocket-series", "--export", str(page), "--overwrite"]
    assert CliRunner().invoke(app(words), words).exit_code == 0
    assert "<html" in page.read_text("utf-8")
