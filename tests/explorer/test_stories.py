"""The stories of the first page: their figures are those of the weights, and one click opens the place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page
from typer.testing import CliRunner

import glassformer
from glassformer.cli.main import app
from glassformer.explorer import stories
from glassformer.explorer.claims import ClaimError, StoryHead, WritesWord
from glassformer.explorer.stories import FILE, STORIES, Story, stories_of
from glassformer.interpret.schema import TraceInput, to_json
from glassformer.interpret.trace import trace_model
from glassformer.pretrained import folder_of, names
from tests.explorer.browser_page import display_errors, log_requests, navigate, numbers, wait_until_idle
from tests.server.harness import serving

SHIPPED = [story for story in STORIES if story.model in names()]
MODELS = ("pocket", "pocket-detector", "pocket-digits", "pocket-series")
STORED = {story["id"]: story for story in json.loads(FILE.read_bytes())["stories"]}
PAS = next(story for story in STORIES if story.id == "pas")


@pytest.fixture(scope="module")
def bundles() -> dict[str, glassformer.Pipeline]:
    return {name: glassformer.load(folder_of(name)) for name in {story.model for story in SHIPPED}}


def flat(value: Any) -> list[Any]:
    """All numbers and texts of a JSON value, in order."""
    if isinstance(value, dict):
        return [leaf for key in sorted(value) for leaf in (key, *flat(value[key]))]
    return [leaf for one in value for leaf in flat(one)] if isinstance(value, list) else [value]


@pytest.mark.parametrize("story", SHIPPED, ids=lambda story: story.id)
def test_figures_are_those_of_the_shipped_weights(bundles: dict[str, Any], story: Story) -> None:
    """Recompute every claim; on another machine the last digits may differ."""
    found = to_json(story.tell(bundles[story.model]))
    stored = STORED[story.id]
    assert {key: found[key] for key in ("address", "title", "switch", "changes", "input")} == {
        key: stored[key] for key in ("address", "title", "switch", "changes", "input")
    }
    for now, then in zip(flat(found["figure"]), flat(stored["figure"]), strict=True):
        assert now == pytest.approx(then, abs=2e-3) if isinstance(then, float) else now == then


def test_effect_of_the_head_is_that_of_an_edit(bundles: dict[str, Any]) -> None:
    """The bars of "pas" agree with a forward pass in which the head's output is set to zero by hand."""
    bundle, bar = bundles["pocket"], STORED["pas"]["figure"]["bars"][0]
    assert PAS.input is not None
    trace = trace_model(bundle, PAS.input)
    inputs = trace.prepared.inputs
    pieces = [token.piece for token in trace.sequence("target").tokens]
    position = pieces.index(" pas") - 1
    word = trace.sequence("target").tokens[position + 1].id

    def without_head(x: torch.Tensor) -> torch.Tensor:  # (B, H, T, K)
        return torch.cat((x[:, :5], torch.zeros_like(x[:, 5:])), 1)  # the last of six heads

    for edit, expected in (
        ({}, bar["value"]),
        ({"decoder.blocks.1.self_attn.heads": without_head}, bar["changed"]),
    ):
        logits = glassformer.observe(bundle.model, inputs, edit=edit).output[0, position]
        assert float(logits.softmax(-1)[word]) == pytest.approx(expected, rel=1e-3)


def test_claims_that_do_not_hold_are_rejected(bundles: dict[str, Any]) -> None:
    bundle = bundles["pocket"]
    assert PAS.input is not None and isinstance(PAS.claim, WritesWord)
    false = [
        replace(PAS.claim, head=StoryHead("decoder.blocks.1.self_attn", 4)),  # another head
        replace(PAS.claim, looks_at="L"),
        replace(PAS.claim, word="rue", looks_at="n"),
    ]
    for claim in false:
        with pytest.raises(ClaimError, match="does not hold"):
            claim.check(bundle, PAS.input)
    no_negation = TraceInput(text="I know.", to="fr")
    with pytest.raises(ClaimError, match="the output contains pas"):
        PAS.claim.check(bundle, no_negation)


def test_stories_of_other_weights_are_not_told(
    bundles: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {story.model for story in stories_of({"mine": bundles["pocket"]})} == {"mine"}
    glassformer.save(bundles["pocket"], tmp_path / "pocket")
    monkeypatch.chdir(tmp_path)  # where the name `pocket` means the copy
    assert stories_of({"pocket": glassformer.load("pocket")}) == []
    assert stories_of({"mine": bundles["pocket"]})
    monkeypatch.setattr(stories, "checksum_of", lambda model: "retrained")
    assert stories_of(bundles) == []


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving([folder_of(name) for name in MODELS]) as server:
        yield server.url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 1000}, reduced_motion="reduce")
    page = context.new_page()
    log_requests(page)
    yield page
    context.close()


def test_one_click_opens_the_place_of_a_story(page: Page, url: str) -> None:
    page.goto(url)
    wait_until_idle(page)
    told = [story for story in SHIPPED if story.model in MODELS]
    assert page.locator("[data-story]").count() == len(told)
    for story in told:
        navigate(page, "#/pocket/model", f'[data-story="{story.id}"] a')
        page.click(f'[data-story="{story.id}"] h3 a')
        page.wait_for_selector(f'.told[data-story="{story.id}"]')
        page.wait_for_selector("[data-figure]")
        wait_until_idle(page)
        errors = display_errors(page.locator("main"))
        assert all("empty canvas" in error for error in errors), story.id  # diffuse attention is transparent
        if isinstance(story.claim, WritesWord):
            assert page.get_attribute("[role=radio][aria-checked=true]", "data-head") == "5"
            row = page.locator('[data-figure$="-row"]')
            assert "pas" in row.inner_text()
            assert numbers(row.locator("[data-value]"))[0] == pytest.approx(0.977, abs=5e-4)
    page.reload()
    page.wait_for_selector(".told[data-story]")


def test_switch_shows_the_effect_of_the_head(page: Page, url: str) -> None:
    page.goto(f"{url}/{STORED['pas']['address']}")
    wait_until_idle(page)
    story = page.locator('.told[data-story="pas"]')
    story.get_by_role("switch").click()
    wait_until_idle(page)
    assert "off=pas" in page.url and story.get_by_role("switch").get_attribute("aria-checked") == "false"
    assert "94.9% → 0.09%" in story.inner_text()
    story.get_by_text("Try it on the model").click()  # the same by the model itself
    page.wait_for_selector("[data-change]")
    wait_until_idle(page)
    assert "n'a traversé" in page.inner_text("main")


@pytest.mark.parametrize(("language", "scheme", "width"), [("en", "light", 1440), ("ko", "dark", 390)])
def test_stories_are_accessible(browser: Browser, url: str, language: str, scheme: Any, width: int) -> None:
    context = browser.new_context(
        viewport={"width": width, "height": 900},
        locale=language,
        color_scheme=scheme,
        reduced_motion="reduce",
    )
    page = context.new_page()
    log_requests(page)
    for story, place in (("pas", ""), *((story, STORED[story]["address"]) for story in ("pas", "boxes"))):
        page.goto(f"{url}/{place}")
        page.wait_for_selector("[data-story]")
        wait_until_idle(page)
        assert STORED[story]["title"][language] in page.inner_text("main")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.evaluate(Axe().axe_script)
        found = page.evaluate("axe.run('main', { resultTypes: ['violations'] })")["violations"]
        assert not [(one["id"], one["nodes"][0]["html"]) for one in found]
    context.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = ["explore", "pocket-digits", "pocket-series", "--site", str(folder)]
    result = CliRunner().invoke(app(words), words)
    assert result.exit_code == 0, result.output
    return folder


def test_site_opens_from_disk(browser: Browser, site: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    page, problems = context.new_page(), list[str]()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    page.on("request", lambda request: problems.append(request.url) if "://" in request.url[5:] else None)
    page.goto((site / "index.html").as_uri())
    page.wait_for_selector("[data-story]")
    page.click('[data-story="digit"] h3 a')
    page.wait_for_selector('.told[data-story="digit"]')
    wait_until_idle(page)
    assert "story=digit" in page.url and not display_errors(page.locator("main"))
    loaded = page.evaluate("Object.keys(glassformerChunks).length")
    navigate(page, "#/pocket-digits/model?at=encoder.3.ffn", '[data-open="encoder.3.ffn"] [data-figure]')
    assert page.evaluate("Object.keys(glassformerChunks).length") > loaded, "layers are loaded when needed"
    context.close()
    assert not problems


def test_site_is_small_and_safe(site: Path) -> None:
    for page in site.rglob("index.html"):
        text = page.read_text("utf-8")
        policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', text)
        assert "default-src &#x27;none&#x27;" in policy[0] and "unsafe-eval" not in policy[0]
        assert sum(file.stat().st_size for file in page.parent.glob("*")) < 3e6
    words = ["explore", "pocket-digits", "--site", str(site)]
    result = CliRunner().invoke(app(words), words)
    assert result.exit_code == 2 and "--overwrite" in result.stderr
