"""The film of a drawing in a real browser: its numbers are the library's own."""

from __future__ import annotations

import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, Page, Route, expect
from pytest import approx
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.interpret.schema import AblateHead, ForceToken, Intervention, TraceInput
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace, trace_model
from glassformer.tasks.image_tokens import TokenImageGenerator
from tests.explorer.browser_page import address, display_errors, number, numbers, wait_until_idle
from tests.explorer.conftest import OpenPage

STEPS, TEXT = 4, "the cat sat on the mat."
CROSS = "denoiser.encoder.blocks.1.cross_attn"


def film(page: Page, name: str = "A", frames: int = STEPS + 1) -> Locator:
    """A film that is loaded."""
    loaded = page.locator(f'[data-film="{name}"][data-frames="{frames}"]')
    loaded.wait_for()
    wait_until_idle(page)
    return loaded


def point_at(page: Page, step: int, patch: int, columns: int, rows: int) -> float:
    """The weight of a patch in the large map of a step."""
    page.locator(f'[data-step="{step}"]').wait_for()
    wait_until_idle(page)
    grid = page.locator("[data-step] [role=slider]")
    box = grid.bounding_box()
    assert box is not None
    x = (patch % columns + 0.5) * box["width"] / columns
    y = (patch // columns + 0.5) * box["height"] / rows
    grid.hover(position={"x": x, "y": y})
    return number(page.locator("[data-step] [aria-live] [data-value]"))


def trace(bundle: Bundle, text: str, *changes: AblateHead, start_step: int | None = None) -> Trace:
    input = TraceInput(text=text, num_inference_steps=STEPS, seed=3, start_step=start_step)
    return trace_model(bundle, input, changes)


def clean(of: Trace, step: int) -> Tensor:
    return read_tensor(of, f"step.{step}.frames", "1").values.float()


@pytest.mark.parametrize(("name", "text"), [("drawings", TEXT), ("classes", "7")])
def test_film_and_attention_match_the_library(
    open_page: OpenPage, bundles: dict[str, Bundle], name: str, text: str
) -> None:
    expected = trace(bundles[name], text)
    params = {"text": text, "seed": 3, "steps": STEPS, "k": 2, "word": 2, "patch": 5, "look": 1, "by": 1}
    with open_page(address(name, **params)) as page:
        change = film(page).locator("[data-picture=change] [data-value]")
        assert number(change) == approx(float((clean(expected, 2) - clean(expected, 1)).abs().mean()) / 255)
        slices, attention = "0,1,:,2", CROSS
        if name == "classes":
            slices, attention = "0,1,5", CROSS.replace("cross", "self")
        for step in (2, 3):
            weights = read_tensor(expected, f"step.{step}.{attention}.weights", slices).values
            assert point_at(page, step, 6, 4, 4) == approx(float(weights[6]), abs=1e-6)
            page.locator('input[type="range"]').press("ArrowRight")
        assert display_errors(page.locator("main")) == []
        assert page.locator('[data-film="A"] [data-picture=noisy]').count() == 0  # after the last step


@pytest.mark.parametrize("language", ["en", "ko"])
def test_a_head_is_switched_off_in_a_second_film(
    open_page: OpenPage, bundles: dict[str, Bundle], language: str
) -> None:
    plain = trace(bundles["drawings"], TEXT)
    changed = trace(bundles["drawings"], TEXT, AblateHead(attention=CROSS, head=1), start_step=2)
    params = {"text": TEXT, "seed": 3, "steps": STEPS, "k": 2, "look": 1, "by": 1}
    with open_page(address("drawings", **params), language=language, width=390, height=844) as page:
        film(page)
        page.locator('[data-step="2"]').wait_for()
        page.locator("[data-switches] button").last.click()
        other = film(page, "B")
        expected = float((clean(changed, 2) - clean(changed, 1)).abs().mean()) / 255
        assert number(other.locator("[data-picture=change] [data-value]")) == approx(expected)
        assert expected != approx(float((clean(plain, 2) - clean(plain, 1)).abs().mean()) / 255)
        assert json.loads(page.evaluate("new URLSearchParams(location.hash.split('?')[1]).get('changes')"))
        assert display_errors(page.locator("main")) == []
        page.locator("[data-changes] button").first.click()
        expect(page.locator('[data-film="B"]')).to_have_count(0)


def test_a_film_is_stopped_and_continued(open_page: OpenPage) -> None:
    held: list[Route] = []
    with open_page(address("classes", text="7", steps=2)) as page:
        page.route(re.compile(r"name=step\.10\.frames$"), lambda route: held.append(route))
        page.evaluate("to => { location.hash = to }", address("classes", text="7", steps=20))
        page.locator('[data-frames="10"]').wait_for()
        page.locator("[data-stop]").click()
        held[0].continue_()
        page.unroute_all()  # the tab is used again
        wait_until_idle(page)
        assert page.locator("[data-film]").get_attribute("data-frames") == "10"
        page.locator("[data-stop]").click()
        film(page, frames=21)


def test_a_video_has_steps_and_frames(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    """The difference of a frame, and what a patch of it attends to: words, patches, and frames."""
    expected, names = trace(bundles["videos"], TEXT), {}
    for one in expected.outcome.attentions:  # type: ignore[union-attr]
        names.setdefault(one.kind, f"step.2.{one.name}.weights")
    params = {"text": TEXT, "seed": 3, "steps": STEPS, "k": 2, "word": 2, "patch": 5, "look": 0, "by": 1}
    with open_page(address("videos", **params)) as page:
        film(page)
        for frame in (1, 2):
            for see, slices in (
                ("cross", f"0,1,{16 * frame + 6},2"),
                ("self", f"0,1,{16 * frame + 5},{16 * frame + 6}"),
            ):
                to = address("videos", **params, frame=frame, see=see)
                page.evaluate("to => { location.hash = to }", to)
                page.locator(f'[data-frame="{frame}"]').wait_for()
                weight = float(read_tensor(expected, names[see], slices).values)
                assert point_at(page, 2, 6, 4, 4) == approx(weight, abs=1e-6) and weight > 1e-3
            difference = (clean(expected, 2)[frame] - clean(expected, 1)[frame]).abs().mean()
            change = page.locator("[data-picture=change] [data-value]")
            assert number(change) == approx(float(difference) / 255)
        page.evaluate("to => { location.hash = to }", address("videos", **params, frame=2, see="time"))
        strip = page.locator("[data-figure=draw-attention] [role=group] [data-value]")
        strip.first.wait_for()
        wait_until_idle(page)
        through = read_tensor(expected, names["time"], f"0,1,{16 * 2 + 5},5:64:16").values.tolist()
        assert numbers(strip) == approx(through, abs=1e-6)
        assert display_errors(page.locator("main")) == []
        page.get_by_role("slider", name="Frames").press("End")
        page.get_by_role("button", name="Play: Frames").click()
        expect(page.get_by_role("slider", name="Frames")).to_have_value("0")
        expect(page.get_by_role("slider", name="Frames")).to_have_value("3")
        expect(page.get_by_role("slider", name="Frames")).to_have_value("0")  # again after the last
        page.get_by_role("button", name="Pause: Frames").click()


def test_frames_are_those_of_the_task(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    """Also with fewer frames; without a head of a layer over time, the second video differs."""
    options = {"num_inference_steps": STEPS, "seed": 3, "num_frames": 3}
    drawn = bundles["videos"].animate(TEXT, **options)
    layer = "denoiser.encoder.blocks.1.self_attn"
    change = json.dumps([{"kind": "ablate_head", "attention": layer, "head": 0}])
    params = {"text": TEXT, "seed": 3, "steps": STEPS, "frames": 3, "k": STEPS, "frame": 2}
    with open_page(address("videos", **params, changes=change), width=390, height=844) as page:
        shown, other = (
            [pixels(one) for one in film(page, n).locator("[role=group] img").all()] for n in "AB"
        )
        assert len(shown) == 3 and shown != other
        assert shown == [[*np.asarray(frame.convert("RGB")).flat] for frame in drawn]
        assert display_errors(page.locator("main")) == []


SETTINGS: dict[str, Any] = {"seed": 3, "guidance_scale": 2.5, "temperature": 1.2, "top_k": 9, "top_p": 0.9}
CODES = {"text": TEXT, **SETTINGS, "guidance": 2.5}
ATTENTION, CELLS = "decoder.decoder.blocks.1.self_attn", 16  # of the model of 4 x 4 codes


def codes_film(bundle: Bundle, *changes: Intervention, start_step: int | None = None) -> Trace:
    return trace_model(bundle, TraceInput(text=TEXT, start_step=start_step, **SETTINGS), changes)


def shown_picture(page: Page, name: str = "A") -> list[int]:
    return pixels(page.locator(f'[data-film="{name}"] [data-picture=codes] img'))


def test_the_codes_of_a_picture_match_the_library(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    """The picture, how unlikely its codes were, the candidates of a step, and what patches attended to."""
    bundle, step = bundles["codes"], 6
    expected = codes_film(bundle)
    image = TokenImageGenerator(bundle, **SETTINGS)(TEXT).images[0]
    with open_page(address("codes", **CODES, k=step, word=2, look=1, by=1)) as page:
        page.locator("[data-picture=surprise]").wait_for()
        wait_until_idle(page)
        assert shown_picture(page) == [*np.asarray(image.convert("RGB")).flat]
        probabilities = read_tensor(expected, f"step.{step}.probabilities").values
        candidates = read_tensor(expected, f"step.{step}.candidates").values.tolist()
        chosen = read_tensor(expected, f"step.{CELLS}.codes").values.tolist()
        buttons = page.locator(f"[data-candidates='{step}'] [data-code]")
        assert [int(str(one.get_attribute("data-code"))) for one in buttons.all()] == candidates
        assert numbers(buttons.locator("[data-value]")) == approx(
            probabilities[candidates].tolist(), abs=1e-6
        )
        assert page.locator("[data-code][aria-pressed=true]").get_attribute("data-code") == str(chosen[step])
        patches = read_tensor(expected, f"step.{step}.patches").values
        assert [pixels(one) for one in buttons.locator("img").all()] == patches.flatten(1).tolist()
        words = len(expected.sequences[0])  # before the token that starts the image
        weights = read_tensor(expected, f"step.{step}.{ATTENTION}.weights", "0,1").values  # (T, S)
        assert point_at(page, step, 5, 4, 4) == approx(float(weights[words + 5, 2]), abs=1e-6)
        page.evaluate(
            "to => { location.hash = to }", address("codes", **CODES, k=step, see="self", look=1, by=1)
        )
        page.locator("[data-words-share]").wait_for()
        wait_until_idle(page)
        row = weights[words + step]
        assert point_at(page, step, 4, 4, 4) == approx(float(row[words + 1 + 4]), abs=1e-6)
        share = page.locator("[data-words-share]").get_attribute("data-words-share")
        assert float(str(share)) == approx(float(row[: words + 1].sum()), abs=1e-5)
        surprise = page.locator("[data-picture=surprise]")
        surprise.get_by_role("slider").hover(position={"x": 5, "y": 5})
        logprobs = read_tensor(expected, f"step.{CELLS}.logprobs").values
        assert number(surprise.locator("[aria-live] [data-value]")) == approx(-float(logprobs[0]), abs=1e-6)
        assert display_errors(page.locator("main")) == []


@pytest.mark.parametrize("language", ["en", "ko"])
def test_another_code_continues_in_a_second_film(
    open_page: OpenPage, bundles: dict[str, Bundle], language: str
) -> None:
    bundle, step = bundles["codes"], 6
    plain = codes_film(bundle)
    candidates = read_tensor(plain, f"step.{step}.candidates").values.tolist()
    own = int(read_tensor(plain, f"step.{CELLS}.codes", f"{step}").values)
    other = next(code for code in candidates if code != own)
    with open_page(address("codes", **CODES, k=step), language=language, width=390, height=844) as page:
        for changes in (
            [ForceToken(step=step, token=other)],
            [ForceToken(step=step, token=other), AblateHead(attention=ATTENTION, head=1)],
        ):
            if len(changes) == 1:
                page.locator(f"[data-candidates='{step}'] [data-code='{other}']").click()
            else:
                page.evaluate(
                    "to => { location.hash = to }", page.url.partition("#")[2] + "&see=self&look=1&by=1"
                )
                page.locator("[data-switches] button").last.click()
            page.locator('[data-film="B"] [data-picture=surprise]').wait_for()
            wait_until_idle(page)
            changed = codes_film(bundle, *changes, start_step=step)
            drawing = read_tensor(changed, f"step.{CELLS}.frames", "0").values
            assert shown_picture(page, "B") == drawing.flatten().tolist()
            assert shown_picture(page, "B") != shown_picture(page, "A")
        page.get_by_role("slider").first.press("ArrowLeft")
        assert page.locator(".cover").count() and display_errors(page.locator("main")) == []
        for _ in range(2):
            page.locator("[data-changes] button").first.click()
        expect(page.locator('[data-film="B"]')).to_have_count(0)


def test_the_codebook_shows_what_a_picture_uses(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    expected = codes_film(bundles["codes"])
    codes = read_tensor(expected, f"step.{CELLS}.codes").values.tolist()
    with open_page(address("codes", **CODES)) as page:
        sheet = page.locator("[data-figure=codebook] .sheet button")
        sheet.last.wait_for()
        wait_until_idle(page)
        patches = read_tensor(expected, "codebook.0").values.flatten(1).tolist()
        assert [pixels(one) for one in sheet.locator("img").all()] == patches
        assert page.locator("[data-used]").get_attribute("data-used") == str(len(set(codes)))
        often = max(set(codes), key=codes.count)
        sheet.nth(often).click()
        marks = page.locator("[data-film=A] [data-picture=codes] .mark")
        expect(marks).to_have_count(codes.count(often))
        page.locator("[data-picture=codes] [role=slider]").click(position={"x": 3, "y": 3})
        expect(page.locator("[data-candidates='0']")).to_be_visible()  # a patch leads to its step


def pixels(image: Locator) -> list[int]:
    """The pixels of an image of the page."""
    url = image.get_attribute("src")
    assert url is not None
    with Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))) as file:
        return [*np.asarray(file.convert("RGB")).flat]
