"""The explorer in a notebook: a page in a sandboxed frame that needs nothing and can reach nothing."""

from __future__ import annotations

import base64
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Frame, Page

import glassformer
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.pretrained import folder_of
from tests.explorer.browser_page import number
from tests.explorer.test_escaping import PAYLOADS


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1100, "height": 800}, reduced_motion="reduce")
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda one: problems.append(one.url) if one.url.startswith("http") else None)
    yield page
    context.close()
    assert not problems


def show(page: Page, cell: Any, folder: Path) -> Frame:
    """Put the output of a cell into a page, as a notebook does; return its frame."""
    file = folder / "notebook.html"
    file.write_text(f"<!doctype html><meta charset=utf-8><body>{cell._repr_html_()}</body>", encoding="utf-8")
    page.goto(file.as_uri())
    frame = page.frames[1]
    frame.wait_for_selector("[data-view] [data-figure]")
    return frame


@pytest.mark.parametrize(
    ("family", "lengths"),
    [("gpt2", (7,)), ("bert", (6,)), ("original", (6, 5))],
    ids=lambda value: str(value),
)
def test_record_shows_every_head(page: Page, tmp_path: Path, family: str, lengths: tuple[int, ...]) -> None:
    torch.manual_seed(5)
    model = glassformer.tiny(family)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # so that heads differ
    record = glassformer.observe(model, tuple(torch.randint(4, 20, (1, length)) for length in lengths))
    frame = show(page, record.show(), tmp_path)
    heads = sum(record[f"{name}.q"].shape[1] for name in record.attentions())
    assert frame.locator("main [data-head]").count() == heads
    name = record.attentions()[-1]
    stage = "decoder.1.cross" if "cross" in name else f"{name.split('.')[0]}.1.self"
    open_stage = (
        "to => { const a = document.createElement('a'); a.href = to; document.body.append(a); a.click() }"
    )
    frame.evaluate(open_stage, f"#/{type(model).__name__}/model?at={stage}&head=1&pos=2&tab=weights")
    bar = frame.locator(f'[data-figure="{name}-h1-row"] [data-value]').first
    bar.wait_for()
    assert number(bar) == pytest.approx(float(record.weights(name, 1)[0, 2].max()), rel=2e-3)
    assert frame.locator("[role=alert]").count() == 0


def test_pipeline_page_is_small_and_opens_a_view(page: Page, tmp_path: Path) -> None:
    shown = glassformer.load("pocket").explore("He is not here.", to="fr", view="heads")
    assert len(shown._repr_html_()) < 3e6
    frame = show(page, shown, tmp_path)
    assert frame.get_attribute("main", "data-view") == "heads"
    assert "Il n'est pas là." in frame.inner_text("body")
    frame.click("[data-go=decoding]")
    frame.wait_for_selector("[data-view=decoding] [data-figure]")
    shown.save(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text("utf-8") == shown.html


def test_hostile_texts_stay_inside_the_frame(page: Page, tmp_path: Path) -> None:
    tokens = [
        *PAYLOADS,
        "</iframe><script>window.harmed=1</script>",
        '" onload="window.harmed=1',
        "&quot; srcdoc=",
    ]
    record = glassformer.observe(glassformer.tiny("bert", max_len=64), torch.randint(4, 20, (1, len(tokens))))
    frame = show(page, record.show(tokens), tmp_path)
    for view in ("heads", "model"):
        frame.click(f"[data-go={view}]")
        frame.wait_for_selector(f"[data-view={view}] [data-figure]")
        for place in (page.main_frame, frame):
            assert place.evaluate("window.harmed === undefined")
    assert len(page.frames) == 2 and page.locator("script").count() == 0
    assert frame.evaluate("origin") == "null", "the frame cannot read the notebook"
    with pytest.raises(Exception, match=r"cross-origin|Blocked"):
        frame.evaluate("parent.document.body.innerHTML")
    assert sum(payload in frame.inner_text("body") for payload in tokens) > 5


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tokens": ["a"]}, "7 tokens"), ({"view": "elsewhere"}, "elsewhere")],
)
def test_impossible_records_are_rejected(change: dict[str, Any], message: str) -> None:
    record = glassformer.observe(glassformer.tiny("gpt2"), torch.randint(4, 20, (1, 7)))
    with pytest.raises(GlassformerError, match=message):
        record.show(**change)
    part = glassformer.observe(glassformer.FeedForward(8, d_ff=16), torch.randn(1, 3, 8))
    with pytest.raises(GlassformerError, match="model"):
        part.show()


def test_record_of_an_image_model_can_be_shown() -> None:
    model = glassformer.tiny("vit")
    height, width = model.spec.input.image_size  # type: ignore[attr-defined]
    record = glassformer.observe(model, torch.randn(1, 3, height, width))
    assert "EncoderOnly" in repr(record.show())


@pytest.mark.parametrize(
    ("family", "lengths", "want"),
    [
        ("gpt2", (7,), ("*.q", "*.k")),
        ("original", (6, 5), ("*.q", "*.k")),
        ("original", (6, 5), "decoder.*"),
        ("original", (6, 5), "encoder.*"),
        ("gpt2", (7,), "decoder.blocks.0.*"),
    ],
)
def test_incomplete_records_are_rejected(family: str, lengths: tuple[int, ...], want: Any) -> None:
    inputs = tuple(torch.randint(4, 20, (1, length)) for length in lengths)
    record = glassformer.observe(glassformer.tiny(family), inputs, want=want)
    with pytest.raises(UnsupportedError) as raised:
        record.show()
    assert "want=" in raised.value.hint


def test_records_of_merged_patches_are_rejected() -> None:
    model = glassformer.tiny("swin")
    height, width = model.spec.input.image_size  # type: ignore[attr-defined]
    record = glassformer.observe(model, torch.randn(1, 3, height, width))
    with pytest.raises(UnsupportedError, match="explorer"):
        record.show()


def test_new_image_drops_the_prompt_of_the_example() -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 12), "red").save(file, "PNG")
    shown = glassformer.load(folder_of("pocket-sam")).explore(image=file.getvalue())
    (data,) = re.findall(r'id="trace-">([^<]+)<', shown.html)
    assert json.loads(zlib.decompress(base64.b64decode(data)))["trace"]["input"]["points"] == [[8, 6]]
