"""Follow a word: a film of one token's vector, with the library's numbers behind every part of it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from pytest import approx

from glassformer.interpret.schema import StackPass
from glassformer.interpret.token_flow import token_flow
from tests.explorer.browser_page import address, display_errors, navigate, numbers, wait_until_idle
from tests.explorer.conftest import ExpectedTrace, OpenPage
from tests.explorer.explorer_models import CAPTIONS, INPUTS, RUN
from tests.server.harness import Server

PIXELS = """([from, to]) => {
  const canvas = document.querySelector('[data-follow] canvas');
  const [top, bottom] = [from, to].map((y) => Math.round(y * canvas.height));
  const copy = new OffscreenCanvas(canvas.width, bottom - top);
  const context = copy.getContext('2d', { willReadFrequently: true });
  context.drawImage(canvas, 0, -top);
  return context.getImageData(0, 0, copy.width, copy.height).data.join();
}"""


def picture(page: Page, top: float = 0, bottom: float = 1) -> str:
    """The pixels of the canvas between two heights, once it is drawn."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    pixels: str = page.evaluate(PIXELS, [top, bottom])
    return pixels


def scrub(page: Page, time: float) -> None:
    slider = page.locator("[data-follow] input[type=range]")
    slider.evaluate(
        "(input, time) => { input.value = time; input.dispatchEvent(new Event('input', { bubbles: true })) }",
        time,
    )


def rows(page: Page) -> list[list[float]]:
    """The values of the open card, by row of its table."""
    table = page.locator("[data-numbers] tbody tr")
    return [numbers(table.nth(n).locator("[data-value]")) for n in range(table.count())]


def layer_of(one: StackPass, layer: int) -> list[Any]:
    return [update for update in one.updates if update.layer == layer]


@pytest.mark.parametrize(
    "name", [RUN, "writer", "labels", "pictures", "queries", "windows", "series", CAPTIONS]
)
def test_numbers_of_a_scene_match_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str
) -> None:
    flow = token_flow(expected_trace(name))
    last = flow.passes[-1]
    layer = max(update.layer for update in last.updates if update.layer is not None)
    updates = layer_of(last, layer)
    with open_page(address(name, **INPUTS.get(name, {}), follow="word")) as page:
        count = int(page.locator("[data-follow] input").get_attribute("max") or 0)
        layers = sum(len({u.layer for u in one.updates} - {None}) for one in flow.passes)
        starts = len(flow.passes)
        assert count == starts + layers + 1  # all layers of these small models have a scene
        navigate(page, address(name, **INPUTS.get(name, {}), follow="word", scene=count - 1), "[data-say]")
        assert display_errors(page.locator("[data-follow]")) == []
        page.locator("[data-target=strip]").click()
        before, *added, after = rows(page)
        first = int(page.locator("[data-numbers] thead th").first.inner_text())
        cells = slice(first, first + len(before))
        assert before == approx(last.vectors[updates[0].before][cells], abs=1e-5)
        assert after == approx(last.vectors[updates[-1].after][cells], abs=1e-5)
        if all(update.sum == update.after for update in updates):
            sums = [sum(column) for column in zip(before, *added, strict=True)]
            assert sums == approx(after, abs=1e-4)
        found = [update.attention for update in updates if update.attention]
        expected = {
            tuple(round(weight, 5) for weight in source.weights): source
            for attention in found
            for source in attention.sources
        }
        chips = page.locator("[data-target=source]")
        assert chips.count() == sum(len(attention.sources) for attention in found)
        for n in range(chips.count()):
            chips.nth(n).press("Enter")
            *heads, total = rows(page)
            source = expected[tuple(round(weight, 5) for weight, _, _ in heads)]
            assert [norm for _, norm, _ in heads] == approx(list(source.value_norms), rel=1e-4)
            assert sum(product for _, _, product in heads) == approx(source.strength, rel=1e-4)
            assert total == approx([source.strength], rel=1e-4)
        page.locator("[data-target=units]").first.press("Enter")
        (units,) = [update.units for update in updates if update.units]
        assert [row[:2] for row in rows(page)] == [approx([one.activation, one.norm]) for one in units]
        reading = updates[-1].reading
        if reading is not None:
            page.locator("[data-target=word]").press("Enter")
            best = [one.probability for one in reading.predictions]
            assert [row[0] for row in rows(page)] == approx(best, abs=1e-5)
            assert reading.predictions[0].text.strip() in page.locator("[data-say]").inner_text()
        page.locator("[data-numbers] a").click()
        page.wait_for_selector("[data-open]")


def test_the_picture_is_a_function_of_time_and_the_token_keeps_its_place(open_page: OpenPage) -> None:
    with open_page(address("writer", **INPUTS["writer"])) as page:
        page.locator("[data-play]").click()
        page.wait_for_selector("[data-say]")
        ends = 0.93, 1.0  # the names of the tokens below the rows
        pictures: dict[float, str] = {}
        rails = set()
        times = (0.4, 1.3, 1.7, 2.4, 2.8, 1.7, 0.4)
        page.emulate_media(reduced_motion="no-preference")
        page.reload()
        wait_until_idle(page)
        scrub(page, 0)
        for time in times:
            scrub(page, time)
            pixels = picture(page)
            assert pictures.setdefault(time, pixels) == pixels  # the same on the way back
            rails.add(picture(page, *ends))
        assert len(set(pictures.values())) == len(pictures)
        assert len(rails) == 1
        page.emulate_media(reduced_motion="reduce")


def test_play_advances_and_pauses(server: Server, browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900}, reduced_motion="no-preference")
    page.goto(f"{server.url}/{address('writer', **INPUTS['writer'], follow='input.4')}")
    slider = page.locator("[data-follow] input[type=range]")
    slider.wait_for()
    page.wait_for_timeout(1000)
    page.locator("[data-play]").click()
    stopped = slider.input_value()
    assert float(stopped) > 0.1
    first = picture(page)
    page.wait_for_timeout(200)
    assert slider.input_value() == stopped and picture(page) == first
    page.locator("[data-play]").press("ArrowRight")
    assert float(slider.input_value()) == approx(int(float(stopped)) + 1.999)
    page.wait_for_url(re.compile(r"scene=\d"))
    page.close()


def test_with_reduced_motion_scenes_are_steps(open_page: OpenPage) -> None:
    with open_page(address("writer", **INPUTS["writer"], follow="input.4")) as page:
        slider = page.locator("[data-follow] input[type=range]")
        assert float(slider.input_value()) == approx(0.999)  # the first scene, not playing
        first = picture(page)
        scrub(page, 0.2)
        assert picture(page) == first
        scrub(page, 1.2)
        assert picture(page) != first and float(slider.input_value()) == approx(1.999)


def test_another_token_is_followed_from_the_rail_and_from_the_list(
    open_page: OpenPage, expected_trace: ExpectedTrace
) -> None:
    with open_page(address(RUN, **INPUTS[RUN], follow="word", scene=1)) as page:
        box = page.locator("[data-follow] canvas").bounding_box()
        assert box is not None
        page.locator("[data-follow] canvas").click(
            position={"x": 0.25 * box["width"], "y": box["height"] - 30}
        )
        page.wait_for_url(re.compile(r"follow=source\."))
        page.locator("[data-follow] summary").click()
        page.locator("[data-follow] [data-token='1']").first.click()
        page.wait_for_url(re.compile(r"follow=source\.1"))
        word = expected_trace(RUN).sequence("source").tokens[1].piece
        page.locator("[data-say]", has_text=f"“{word.strip()}”").wait_for()
