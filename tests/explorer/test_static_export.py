"""One trace as a page of its own: it works from disk, asks nobody, and shows the same numbers."""

from __future__ import annotations

import base64
import json
import re
import zlib
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import glassformer
from glassformer import baselines
from glassformer.bundle import Bundle
from glassformer.cli.main import app
from glassformer.errors import GlassformerError
from glassformer.explorer import stored_trace
from glassformer.explorer.stored_trace import store_trace
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.trace import trace_model
from tests.explorer.browser_page import numbers
from tests.explorer.conftest import ExpectedTrace, OpenPage, wait_until_idle
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
        page.evaluate("location.hash = location.hash.split('?')[0] + '?follow=word&scene=3'")
        page.wait_for_selector("[data-follow] [data-target=strip]")
        page.locator("[data-target=strip]").click()
        assert page.locator("[data-numbers] [data-value]").count() > 8
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


def test_content_security_policy_allows_only_the_scripts_of_the_page(exported: dict[str, Path]) -> None:
    text = exported["translator"].read_text("utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None and "default-src &#x27;none&#x27;" in policy[1]
    allowed = set(re.findall(r"sha256-([\w+/=]+)", policy[1]))
    (packed,) = re.findall(r'id="page-script">([^<]+)<', text)
    (unpack,) = re.findall(r"<script>(.*?)</script>", text, re.S)
    scripts = (unpack.encode(), zlib.decompress(base64.b64decode(packed)))
    assert {base64.b64encode(sha256(script).digest()).decode() for script in scripts} == allowed
    assert not re.findall(r"(?:src|href)=", re.sub(r"<(style|script)\b.*?</\1>", "", text, flags=re.S))


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


@pytest.mark.parametrize("name", ["translator", "rotary", "masked", "windows", "series", "queries"])
def test_stored_tensors_match_the_trace(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Each stored tensor is the recorded one in 16 bits, and each formula gives the recorded values."""
    monkeypatch.setattr(stored_trace, "EXACT", 16)
    bundle = bundles[name]
    model = describe_model(bundle, name)
    trace = trace_model(bundle, model.example, model=name)
    stored = store_trace(trace, model, 2**30)
    data, chunks = stored.index, stored.chunks
    assert not stored.left_out and trace.info().tensors.keys() <= data["tensors"].keys()

    def read(entry: dict[str, Any]) -> torch.Tensor:
        planes = np.frombuffer(
            zlib.decompress(chunks[entry["chunk"]][entry["start"] : entry["end"]]), np.uint8
        )
        dtype = np.dtype(entry["dtype"])
        numbers = planes.reshape(dtype.itemsize, -1).T.copy().view(dtype).reshape(entry["shape"])
        return torch.from_numpy(numbers.astype(np.float64))

    for tensor, entry in data["tensors"].items():
        if tensor not in trace.record:
            continue
        expected = trace.tensor(tensor).double()
        if "of" in entry:
            match entry["of"]:
                case "same":
                    found = trace.tensor(entry["from"][0]).double()
                case "sum":
                    found = torch.stack([trace.record[one] for one in entry["from"]]).sum(0).double()
                case "heads":
                    attention, v = entry["from"]
                    values = trace.record[v].repeat_interleave(
                        expected.shape[1] // trace.record[v].shape[1], 1
                    )
                    found = (trace.record.weights(attention) @ values).double()
                case _:
                    continue
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        else:
            error = (read(entry) - expected).abs()
            assert bool((error <= expected.abs() * 2**-11 + 2**-24).all()), tensor


def test_export_leaves_out_what_does_not_fit(
    bundles: dict[str, Bundle], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_trace, "EXACT", 16)  # so that tensors of a tiny model count as large
    model = describe_model(bundles["masked"], "masked")
    trace = trace_model(bundles["masked"], model.example, model="masked")
    whole = store_trace(trace, model, 2**30)
    size = sum(map(len, whole.chunks.values()))
    part = store_trace(trace, model, size // 2)
    assert not whole.left_out and part.left_out and part.index["left_out"] == len(part.left_out)
    assert sum(map(len, part.chunks.values())) <= size // 2
    missing = whole.index["tensors"].keys() - part.index["tensors"].keys()
    assert missing == set(part.left_out)
    assert any(name.endswith("ffn.up") for name in missing) and not any(
        name.endswith(".q") for name in missing
    )


def test_figures_of_an_export_match_the_model(
    exported: dict[str, Path], open_page: OpenPage, expected_trace: ExpectedTrace
) -> None:
    """The page computes attention from 16-bit queries and keys; its weights agree to three digits."""
    trace = expected_trace("translator")
    name = "decoder.blocks.0.self_attn"
    with open_page(
        f"{exported['translator'].as_uri()}#/x/model?at=decoder.0.self&head=1&pos=3&tab=weights"
    ) as page:
        bars = page.locator(f'[data-figure="{name}-h1-row"] [data-value]')
        bars.first.wait_for()
        shown = numbers(bars)
    expected = trace.record.weights(name, 1)[0, 3, :4].sort(descending=True).values.tolist()
    assert shown[:4] == pytest.approx(expected, rel=2e-3, abs=2e-4)


def _trace_data(page: Path) -> dict[str, Any]:
    """What a page holds."""
    (data,) = re.findall(r'id="trace-">([^<]+)<', page.read_text("utf-8"))
    return dict(json.loads(zlib.decompress(base64.b64decode(data))))


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
