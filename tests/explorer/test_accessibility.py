"""Everyone can use the page: by keyboard alone, on a phone, in both languages, in light and dark."""

from __future__ import annotations

from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from glassformer.interpret.schema import to_json
from tests.explorer.browser_page import address, navigate, wait_until_idle
from tests.explorer.conftest import ExpectedTrace, OpenPage
from tests.explorer.explorer_models import CAPTIONS, INPUTS, RUN
from tests.faults.scale import WHOLE

HEAD_OFF = '[{"kind":"ablate_head","attention":"denoiser.encoder.blocks.0.cross_attn","head":1}]'
VIEWS: list[tuple[str, str, dict[str, Any]]] = [
    (RUN, "model", {}),
    (RUN, "model", {"at": "encoder.tokens"}),
    (RUN, "model", {"at": "decoder.0.self", "tab": "scores", "pos": 2}),
    (RUN, "model", {"at": "decoder.0.self", "tab": "qkv"}),
    (RUN, "model", {"at": "decoder.1.self", "tab": "links"}),
    (RUN, "model", {"at": "decoder.1.norm_cross"}),
    (RUN, "model", {"at": "decoder.1.ffn"}),
    (RUN, "model", {"at": "head"}),
    (RUN, "model", {"at": "encoder.0.self", "in_b": "blue gold"}),
    (RUN, "model", {"tour": 5}),
    (RUN, "heads", {}),
    (RUN, "decoding", {"n": 2, "topk": 3}),
    (RUN, "decoding", {"way": "beam"}),
    (
        RUN,
        "change",
        {"what": "tokens", "changes": '[{"kind":"mask_token","sequence":"source","position":1}]'},
    ),
    (RUN, "change", {"what": "positions"}),
    (RUN, "learning", {}),
    (RUN, "model", {"follow": "target.1", "scene": 5}),
    ("queries", "model", {"follow": "word", "scene": 4}),
    ("rotary", "model", {"at": "decoder.position"}),
    ("sentences", "model", {"at": "head", "in_b": "a dog ran"}),
    ("pictures", "model", {}),
    ("windows", "model", {"look": 1}),
    ("pairs", "model", {}),
    ("detector", "model", {}),
    ("queries", "model", {"at": "decoder.tokens"}),
    ("prompts", "model", {}),
    (CAPTIONS, "model", {}),
    ("questions", "model", {"pos": 4}),
    (CAPTIONS, "decoding", {"n": 3}),
    ("classes", "model", {"in": "7", "steps": 3, "guidance_2": 3}),
    ("drawings", "model", {"in": "the cat sat", "steps": 3, "by": 1, "changes": HEAD_OFF, "from": 1}),
    ("codes", "model", {"in": "the cat sat", "k": 6, "see": "self", "code": 3, "guidance_2": 1}),
    ("series", "model", {"at": "head"}),
    ("writer", "learning", {"run": "none"}),
]
UNTIL = "main [data-figure], main pre"


def every(page: Page, name: str, view: str, params: dict[str, Any]) -> str:
    """Go there and say where that is."""
    to = address(name, view, **INPUTS.get(name, {}), **params)
    navigate(page, to, UNTIL)
    return to


def views_for(language: str, views: list[tuple[str, str, dict[str, Any]]] = VIEWS) -> Any:
    """The views to look at: here each in one of the two languages, all in both in `make test-slow`."""
    return views if WHOLE else views[["en", "ko"].index(language) :: 2]


@pytest.mark.slow
@pytest.mark.parametrize(("language", "theme"), [("en", "light"), ("ko", "dark")])
def test_axe_reports_no_violations(open_page: OpenPage, language: str, theme: str) -> None:
    found = []
    with open_page(address(RUN, **INPUTS[RUN]), language=language, theme=theme) as page:
        page.evaluate(Axe().axe_script)
        for name, view, params in views_for(language):
            where = every(page, name, view, params)
            for one in page.evaluate("axe.run({ resultTypes: ['violations'] })")["violations"]:
                parts = [str(node["target"]) + node["failureSummary"] for node in one["nodes"][:3]]
                found.append(f"{where}: {one['id']}: {one['help']}: {parts}")
    assert not found, "\n".join(found)


# What sticks out to the right of the page where nothing around it scrolls or cuts it.
WIDE = """() => {
  const wide = document.documentElement.clientWidth;
  const cut = (one) => {
    for (let up = one.parentElement; up && up !== document.documentElement; up = up.parentElement)
      if (getComputedStyle(up).overflowX !== 'visible') return true;
    return false;
  };
  const out = [...document.querySelectorAll('body *')].filter((one) => {
    const box = one.getBoundingClientRect();
    return box.width > 1 && box.right > wide + 1 && !cut(one);
  });
  return [document.documentElement.scrollWidth - wide,
    out.slice(0, 3).map((one) => one.outerHTML.slice(0, 120))];
}"""


@pytest.mark.slow
@pytest.mark.parametrize("language", ["en", "ko"])
def test_views_fit_a_phone(open_page: OpenPage, expected_trace: ExpectedTrace, language: str) -> None:
    found = []
    stages = [(RUN, "model", {"at": one["id"]}) for one in to_json(expected_trace(RUN).info())["stages"]]
    with open_page(address(RUN, **INPUTS[RUN]), language=language, width=390, height=844) as page:
        for name, view, params in views_for(language, VIEWS + stages):
            where = every(page, name, view, params)
            over, parts = page.evaluate(WIDE)
            if over > 0 or parts:
                found.append(f"{where}: {over} pixels: {parts}")
    assert not found, "\n".join(found)


# How what has the keyboard looks, itself and all in it.
LOOKS = """async one => {
  for (let frame = 0; frame < 2; frame++) await new Promise(requestAnimationFrame);
  return [one, ...one.querySelectorAll('*')].map((part) => {
    const at = getComputedStyle(part);
    return [at.outlineStyle === 'none' ? '' : at.outline, at.stroke, at.strokeWidth, at.boxShadow, at.top];
  }).join();
}"""


def tab(page: Page) -> dict[str, str]:
    """Go on by one stop; it must be focused to have the keyboard. What it is, in the page's own params."""
    page.keyboard.press("Tab")
    here = page.evaluate_handle("document.activeElement").as_element()
    assert here is not None
    lit = here.evaluate(LOOKS)
    here.evaluate("one => one.blur()")
    plain = here.evaluate(LOOKS)
    here.evaluate("one => one.focus()")
    expected: dict[str, str] = here.evaluate(
        """one => ({ ...one.dataset, kind: one.getAttribute('role') ?? one.tagName.toLowerCase(),
                     figure: one.closest('[data-figure]')?.dataset.figure ?? '' })"""
    )
    assert lit != plain, expected
    return expected


def test_keyboard_reaches_and_moves_through_the_diagram(
    open_page: OpenPage, expected_trace: ExpectedTrace
) -> None:
    stages = [one["id"] for one in to_json(expected_trace(RUN).info())["stages"]]
    with open_page(address(RUN, **INPUTS[RUN])) as page:
        focused = [tab(page)]
        while "stage" not in focused[-1] and len(focused) < 40:
            focused.append(tab(page))
        assert {"go", "input", "language", "compare", "stage"} <= {key for one in focused for key in one}
        assert focused[-1]["stage"] == stages[0]
        for key, stage in [
            ("Enter", stages[0]),
            ("ArrowRight", stages[1]),
            ("ArrowUp", stages[2]),
            ("ArrowLeft", stages[1]),
            ("ArrowDown", stages[0]),
            ("End", stages[-1]),
            ("Home", stages[0]),
        ]:
            page.keyboard.press(key)
            page.wait_for_selector(f'[data-open="{stage}"]')
            focus = page.evaluate("document.activeElement.dataset.stage")
            assert focus == stage  # the keyboard goes along
        page.keyboard.press("Escape")
        page.wait_for_selector("[data-open]", state="detached")


def test_language_and_theme_follow_the_browser_and_can_be_switched(open_page: OpenPage) -> None:
    language, other = "ko", "en"
    named = {"en": "Heads", "ko": "헤드"}
    with open_page(address(RUN, **INPUTS[RUN]), language=language, theme="dark") as page:
        root, link = page.locator("html"), page.locator("[data-go=heads]")
        assert (root.get_attribute("lang"), root.get_attribute("data-theme")) == (language, "dark")
        assert link.inner_text() == named[language]
        dark = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
        page.locator("[data-language]").click()
        page.locator("button.theme").click()
        for _ in range(2):  # and they stay so when the page is open_page again
            assert (root.get_attribute("lang"), root.get_attribute("data-theme")) == (other, "light")
            assert link.inner_text() == named[other]
            page.wait_for_function("was => getComputedStyle(document.body).backgroundColor !== was", arg=dark)
            page.reload()
            wait_until_idle(page)
