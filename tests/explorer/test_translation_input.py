"""In the explorer, a translator of several languages is expected which to write, and examples are at hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Page, expect

import glassformer
from tests.explorer.browser_page import wait_until_idle
from tests.explorer.conftest import OpenPage
from tests.pretrained.tiny_models import save_models
from tests.server.harness import Server, serving


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[Server]:
    with serving([models / "pocket", models / "pocket-lm"]) as running:
        yield running


def test_target_language_and_examples_can_be_chosen(open_page: OpenPage, models: Path) -> None:
    bundle = glassformer.load(models / "pocket")

    def translation(page: Page, to: str) -> str:
        """The translation of the input, which the page shows."""
        (output,) = bundle.translate([page.locator("[data-input=_a]").input_value()], to=to)
        expect(page.locator("[data-outcome] b")).to_have_text(output.strip() or "empty output")
        return output.strip()

    with open_page("#/pocket/model") as page:
        language, examples = page.get_by_label("Target language"), page.get_by_label("Examples")
        assert language.locator("option").all_inner_texts() == ["German", "English", "Korean"]
        expect(language).to_have_value("de")
        language.select_option("ko")
        wait_until_idle(page)
        assert "?to=ko" in page.url and page.get_by_text(">>ko<<").count()
        shown = {"ko": translation(page, "ko")}
        examples.select_option("3")
        wait_until_idle(page)
        expect(language).to_have_value("en")
        text = "Der alte Mann liest jeden Morgen die Zeitung."
        expect(page.locator("[data-input=_a]")).to_have_value(text)
        shown["en"] = translation(page, "en")
        assert any(shown.values()) and shown["ko"] != shown["en"]
        page.goto(page.url.replace("/model?", "/decoding?"))
        wait_until_idle(page)
        assert page.locator("[data-figure=decoding-next]").count()


def test_one_sentence_of_a_paragraph_is_shown(open_page: OpenPage, models: Path) -> None:
    """The first until another is chosen; each is read and written as `translate` does it, alone."""
    bundle, parts = glassformer.load(models / "pocket"), ["the cat sat on the mat.", "Where is the glass?"]

    def shows(page: Page, n: int) -> None:
        wait_until_idle(page)
        expect(page.get_by_role("radio", name=parts[n])).to_be_checked()
        (output,) = bundle.translate([parts[n]], to="de")
        expect(page.locator("[data-outcome] b")).to_have_text(output.strip())

    with open_page(f"#/pocket/model?{urlencode({'in': ' '.join(parts), 'to': 'de'})}") as page:
        choice = page.get_by_role("radiogroup", name="Sentence")
        shows(page, 0)
        assert choice.get_by_role("radio").all_inner_texts() == [
            f"{n}. {one}" for n, one in enumerate(parts, 1)
        ]
        choice.get_by_role("radio").nth(1).click()
        shows(page, 1)
        assert "sentence=2" in page.url
        page.goto(page.url.replace("/model?", "/decoding?"))
        shows(page, 1)
        given = page.locator("[data-input=_a]")
        expect(given).to_have_value(" ".join(parts))
        given.fill(parts[0])
        given.press("Enter")
        expect(choice).to_have_count(0)
        wait_until_idle(page)
        assert "sentence=" not in page.url
    with open_page(f"#/pocket/model?{urlencode({'in': ' '.join(parts), 'to': 'de'})}", language="ko") as page:
        expect(page.get_by_role("radiogroup", name="문장")).to_be_visible()
