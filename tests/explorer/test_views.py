"""Decoding, changing, comparing, learning, saving: what the page does in use, fixed to the library."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image
from playwright.sync_api import Page
from pytest import approx

from glassformer.bundle import Bundle
from glassformer.interpret.comparison import compare_traces
from glassformer.interpret.runs import SnapshotViewer, describe_run
from glassformer.interpret.schema import to_json
from glassformer.interpret.search_view import search_tree
from glassformer.interpret.trace import TraceStore
from glassformer.training.lock import RunLock
from tests.explorer.browser_page import (
    address,
    display_errors,
    navigate,
    number,
    numbers,
    texts,
    wait_until_idle,
)
from tests.explorer.conftest import ExpectedTrace, OpenPage
from tests.explorer.explorer_models import INPUTS, RUN

TEXT: str = INPUTS[RUN]["text"]


def url_params(page: Page) -> dict[str, str]:
    """The words of the page's address."""
    _, _, query = page.url.partition("?")
    return {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}


@torch.inference_mode()
def greedy(expected_trace: ExpectedTrace, written: list[int]) -> list[int]:
    """Greedy continuation of the reversing model, computed with its forward only."""
    trace = expected_trace(RUN)
    inputs, start = trace.prepared.inputs, trace.sequence("target").prefix
    first = inputs["tgt"].ids[0, :start].tolist()
    end = trace.bundle.tokenizer.eos_id
    while len(written) < 20 and (not written or written[-1] != end):
        scores = trace.bundle.model(inputs["src"], torch.tensor([[*first, *written]]))
        written = [*written, int(scores[0, -1].argmax())]
    return written


def test_playing_greedy_decoding_matches_one_beam(
    open_page: OpenPage, bundles: dict[str, Bundle], expected_trace: ExpectedTrace
) -> None:
    (output,) = bundles[RUN].translate([TEXT], num_beams=1)
    own = greedy(expected_trace, [])
    with open_page(address(RUN, "decoding", text=TEXT, out="", speed=50)) as page:
        probabilities = expected_trace(RUN).record["head.logits"][0, 0].softmax(-1)
        bars = page.locator("[data-figure=decoding-next] [data-key]")
        first = [int(key) for key in bars.evaluate_all("all => all.map(one => one.dataset.key)")]
        assert first == probabilities.argsort(descending=True)[: len(first)].tolist()
        assert numbers(bars.locator(".number")) == approx(probabilities[first].tolist(), abs=1e-6)
        page.get_by_role("button", name="Play", exact=True).click()
        page.wait_for_selector("[data-ended=end]")
        wait_until_idle(page)
        assert page.locator("[data-written]").get_attribute("data-written") == output
        assert url_params(page)["out"] == ".".join(map(str, own))

        # each token was as likely as the library says
        logits = expected_trace(RUN, target=own).record["head.logits"][0]
        values = [float(logits[n].softmax(-1)[index]) for n, index in enumerate(own)]
        tokens = page.locator("[data-figure=decoding-written] [data-token]")
        assert numbers(tokens) == approx(values, abs=1e-5)


def test_beam_tree_matches_the_library(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    expected = to_json(
        search_tree(bundles[RUN], text=TEXT, num_beams=3, length_penalty=0.6, max_new_tokens=64)
    )
    with open_page(address(RUN, "decoding", text=TEXT, way="beam", beams=3, penalty=0.6)) as page:
        tree = page.locator("[data-figure=beam-tree] [data-node]")
        shown = tree.evaluate_all(
            """all => all.map(one => [Number(one.dataset.node), one.dataset.state, Number(one.dataset.rank),
                 ...[...one.querySelectorAll('[data-value]')].map(value => Number(value.dataset.value))])"""
        )
        keys = ("id", "state", "rank", "logprob", "score")
        for one, node in zip(sorted(shown), expected["nodes"], strict=True):
            assert one == approx([node[key] for key in keys], abs=1e-5)
        assert {node["state"] for node in expected["nodes"]} == {"kept", "pruned", "finished"}
        results = page.locator("[data-result]")
        assert texts(results.locator(".text")) == [one["text"] for one in expected["results"]]
        assert numbers(results.locator("[data-value]")) == approx(
            [one["score"] for one in expected["results"]], abs=1e-5
        )

        # a node says its sum, its term of length and why it went on or not
        node = next(one for one in expected["nodes"] if one["state"] == "finished")
        tree.and_(page.locator(f'[data-node="{node["id"]}"]')).press("Enter")
        about = page.locator("[data-figure=beam-node]")
        path, at = [], node
        while at is not None:
            path.append(at["logprob"])
            at = None if at["parent"] is None else expected["nodes"][at["parent"]]
        *sums, score = numbers(about.locator("[data-value]"))
        assert sums == approx(path[::-1], abs=1e-5) and math.fsum(sums) == approx(node["score"], abs=1e-4)
        assert score == approx(node["score"] / node["length_term"], abs=1e-5)
        assert about.locator("[data-why]").get_attribute("data-why") == node["reason"]

        page.get_by_role("checkbox", name="Show pruned").uncheck()
        states = tree.evaluate_all("all => all.map(one => one.dataset.state)")
        assert len(states) == sum(one["state"] != "pruned" for one in expected["nodes"])


CHANGES: dict[str, tuple[str, list[str], list[dict[str, Any]]]] = {
    "a head": (
        "heads",
        ['[data-head="decoder.blocks.1.cross_attn.2"]'],
        [{"kind": "ablate_head", "attention": "decoder.blocks.1.cross_attn", "head": 2}],
    ),
    "a layer": (
        "layers",
        ['[data-block="encoder.blocks.1"]'],
        [{"kind": "skip_layer", "block": "encoder.blocks.1"}],
    ),
    "a token": (
        "tokens",
        ['[data-token="source.1"]'],
        [{"kind": "mask_token", "sequence": "source", "position": 1}],
    ),
    "two tokens": (
        "tokens",
        ["[data-choice=swap]", '[data-token="source.3"]', '[data-token="source.0"]'],
        [{"kind": "swap_tokens", "sequence": "source", "positions": [0, 3]}],
    ),
}


def test_interventions_match_the_library(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    before = expected_trace(RUN)
    target = before.sequence("target").tokens
    fixed = {"target": [token.id for token in target[len(target) - before.outcome.num_tokens :]]}
    output = set()
    with open_page(address(RUN, "change", text=TEXT)) as page:
        for what, (tab, clicks, changes) in CHANGES.items():
            navigate(
                page, address(RUN, "change", text=TEXT, what=tab), f"[data-tour=change] [data-choice={tab}]"
            )
            for click in clicks:
                page.locator(f"main {click}").first.click()
            page.wait_for_selector("[data-side=after]")
            wait_until_idle(page)
            assert json.loads(url_params(page)["changes"]) == changes, what
            free = expected_trace(RUN, changes=changes)
            assert page.locator("[data-side=before]").inner_text() == before.outcome.text
            assert page.locator("[data-side=after]").inner_text() == free.outcome.text, what
            expected = to_json(
                compare_traces(expected_trace(RUN, **fixed), expected_trace(RUN, **fixed, changes=changes))
            )
            assert number(page.locator("[data-kl]")) == approx(expected["kl"], abs=1e-5), what
            places = numbers(page.locator("[data-figure=divergence] [data-token]"))
            assert places == approx(expected["positions"], abs=1e-5), what
            last = page.locator("[data-figure=divergence] [data-token] small").last
            assert last.inner_text() == page.locator("[data-kl]").inner_text(), what
            output.add(free.outcome.text)
            page.locator("[data-change]").click()  # undone
            page.wait_for_selector("[data-offer]")
        assert len(output) > 2  # these changes do change something


def test_two_inputs_are_compared_side_by_side(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    other = "blue gold"
    with open_page(address(RUN, text=TEXT, at="decoder.1.cross", tab="weights", head=1, pos=1)) as page:
        page.locator("[data-compare]").click()
        page.locator("[data-input=_b]").fill(other)
        page.locator("[data-input=_b]").press("Enter")
        page.wait_for_selector("[data-beside=B]")
        page.wait_for_function(
            "text => document.querySelectorAll('[data-outcome] b')[1]?.innerText === text", arg="gold blue"
        )
        wait_until_idle(page)
        assert texts(page.locator("[data-outcome] b")) == ["gold gold blue red", "gold blue"]
        for which, text in (("A", TEXT), ("B", other)):
            weights = expected_trace(RUN, text=text).record.weights("decoder.blocks.1.cross_attn", 1)[0, 1]
            row = page.locator(f'[data-beside={which}] [data-figure$="-row"] li [data-value]')
            assert numbers(row) == approx(weights.sort(descending=True).values.tolist(), abs=1e-6)
        for view in ("heads", "decoding", "change"):
            navigate(page, address(RUN, view, text=TEXT, in_b=other), "[data-beside=B] [data-figure]")
            assert display_errors(page.locator("[data-beside=B]")) == [], view


# What a person sees: the figures, every exact number, and what is chosen.
SEEN = """() => {
  const main = document.querySelector('main');
  const all = (what, of) => [...main.querySelectorAll(what)].map(of);
  return {
    view: main.dataset.view, open: main.querySelector('[data-open]')?.dataset.open,
    figures: all('[data-figure]', (one) => one.dataset.figure),
    numbers: all('[data-value]', (one) => Number(one.dataset.value).toPrecision(4)),
    chosen: all('[aria-pressed=true], [aria-selected=true], [aria-checked=true], [aria-current], :checked',
      (one) => one.getAttribute('aria-label') ?? one.textContent.trim()),
  };
}"""


def test_every_view_has_a_url_and_back_works(open_page: OpenPage) -> None:
    with open_page(address(RUN, text=TEXT)) as page:
        ways: list[tuple[str, list[str]]] = [
            ('[data-open="decoder.0.cross"]', ['svg [data-stage="decoder.0.cross"]']),
            ("[data-figure$=-cell]", ["article [data-choice=scores]"]),
            ('[data-head="3"][aria-checked=true]', ['article [role=radio][data-head="3"]']),
            ("[data-figure=heads-decoder_cross]", ["[data-go=heads]", "[data-choice=decoder_cross]"]),
            (
                "[data-figure=decoding-next]",
                ["[data-go=decoding]", '[data-figure=decoding-written] [data-token="2"]'],
            ),
            ("[data-figure=beam-results]", ['nav a[href*="way=beam"]', '[data-result="1"]']),
            ("[data-side=after]", ["[data-go=change]", "[data-offer=skip_layer]"]),
            ("[data-figure=heads-forming]", ["[data-go=learning]"]),
        ]
        for until, clicks in ways:
            for click in clicks:
                page.locator(click).first.click()
            page.wait_for_selector(until)
            wait_until_idle(page)
            before = page.evaluate(SEEN)
            page.reload()
            page.wait_for_selector(until)
            wait_until_idle(page)
            assert page.evaluate(SEEN) == before, page.url
        seen = []
        for _ in range(20):
            seen.append((page.locator("main").get_attribute("data-view"), url_params(page).get("at")))
            if seen[-1] == ("model", None):
                break
            page.go_back()
        assert list(dict.fromkeys(view for view, _ in seen)) == [
            "learning",
            "change",
            "decoding",
            "heads",
            "model",
        ]
        assert seen[-2] == ("model", "decoder.0.cross")
        wait_until_idle(page)
        assert page.locator("[data-open]").count() == 0


SAVED = [
    (RUN, {"at": "decoder.1.cross", "tab": "weights", "head": 0}, "model", "model"),
    (
        RUN,
        {"at": "decoder.1.cross", "tab": "weights", "head": 0},
        "model",
        "decoder.blocks.1.cross_attn-h0-weights",
    ),
    (RUN, {"at": "head"}, "model", "lens"),
    (RUN, {"way": "beam"}, "decoding", "beam-results"),
    (RUN, {"way": "beam"}, "decoding", "beam-tree"),
    ("pictures", {}, "model", "patch-attention"),
    ("series", {}, "model", "series-attention"),
]


def test_figures_are_saved_as_svg_and_png(open_page: OpenPage, tmp_path: Path) -> None:
    with open_page(address(RUN, text=TEXT)) as page:
        for name, params, view, figure in SAVED:
            shown = f'[data-figure="{figure}"]'
            navigate(page, address(name, view, **INPUTS[name], **params), shown)
            output = page.locator(f"{shown} > .body").inner_text().split()
            folded = " ".join(page.locator(f"{shown} option").all_text_contents()).split()
            paths = {}
            for kind in ("SVG", "PNG"):
                with page.expect_download() as coming:
                    page.locator(f"{shown} header").get_by_text(kind, exact=True).click()
                paths[kind] = tmp_path / coming.value.suggested_filename
                coming.value.save_as(paths[kind])
            assert [path.name for path in paths.values()] == [f"{figure}.svg", f"{figure}.png"]
            root = ElementTree.parse(paths["SVG"]).getroot()
            tags = [one.tag.rpartition("}")[2] for one in root.iter()]
            assert root.tag.endswith("}svg") and len(tags) > 10
            assert not {"foreignObject", "script"} & set(tags), figure
            links = [value for one in root.iter() for key, value in one.items() if key.endswith("href")]
            assert all(value.startswith(("data:", "#")) for value in links), figure
            svg_text = " ".join("".join(one.itertext()) for one in root.iter() if one.tag.endswith("}text"))
            plain = [word for word in output if word.isalpha() and word.isascii() and word not in folded]
            assert all(word in svg_text for word in plain), (figure, plain, svg_text)
            picture = Image.open(paths["PNG"]).convert("RGB")
            assert min(picture.size) > 60
            assert len(picture.getcolors(1 << 24)) > 8, figure  # more than an empty panel


def test_snapshots_of_a_run_match_the_library(open_page: OpenPage, folders: dict[str, Path]) -> None:
    store = TraceStore()
    expected = to_json(SnapshotViewer(store).view(folders[RUN], id=RUN, text=TEXT))
    run = to_json(describe_run(folders[RUN], id=RUN))
    shares = []
    with open_page(address(RUN, "learning", film=TEXT)) as page:
        page.wait_for_selector("[data-figure=heads-forming]")
        assert len(expected["snapshots"]) == 5
        for n, frame in enumerate(expected["snapshots"]):
            page.locator("input[type=range]").fill(str(n))
            wait_until_idle(page)
            assert number(page.locator(".scrubber [data-value]")) == frame["step"]
            cross = [one for one in frame["heads"]["attentions"] if one["name"].endswith("cross_attn")]
            shares = [head["share"] for one in cross for head in one["heads"] if head["role"]]
            assert numbers(page.locator("[data-figure=heads-forming] [data-value]")) == approx(
                shares, abs=1e-5
            )
            samples = page.locator("[data-figure=samples]")
            assert texts(samples.locator(".own b")) == [frame["prediction"] or "∅"]
            assert TEXT in samples.locator(".own").inner_text()
            curve = run["curves"]["valid.loss"]
            past = [
                value
                for step, value in zip(curve["step"], curve["value"], strict=True)
                if step <= frame["step"]
            ]
            shown = numbers(page.locator("[data-figure=learning-curves] [data-value]"))
            assert shown[-1:] == approx(past[-1:]) or not past
        curves = page.locator("[data-figure=learning-curves] option").all_text_contents()
        assert len(curves) > 4 and not {name.partition(".")[2] for name in run["curves"]} & set(curves)
        page.get_by_label("Input for every checkpoint").fill("gold red")
        page.get_by_label("Input for every checkpoint").press("Enter")
        page.wait_for_function(
            "() => document.querySelector('[data-figure=samples]')?.innerText.includes('gold red')"
        )
        wait_until_idle(page)
        last = to_json(SnapshotViewer(store).view(folders[RUN], id=RUN, text="gold red"))["snapshots"][-1]
        assert texts(page.locator("[data-figure=samples] .own b")) == [last["prediction"]]


def test_run_is_updated_while_it_trains(open_page: OpenPage, folders: dict[str, Path]) -> None:
    history = folders[RUN] / "metrics.jsonl"
    original = history.read_text()
    line = next(
        json.loads(line) for line in original.splitlines()[::-1] if json.loads(line)["kind"] == "step"
    )
    try:
        with RunLock(folders[RUN]), open_page(address(RUN, "learning")) as page:
            assert page.get_by_role("status").first.inner_text() == "training"
            with history.open("a") as file:
                file.write(json.dumps({**line, "step": 160, "loss": 0.0123}) + "\n")
            page.wait_for_function("() => document.querySelector('main').innerText.includes('160 of')")
    finally:
        history.write_text(original)


@pytest.mark.parametrize(("name", "language"), [(RUN, "en"), ("pictures", "ko")])
def test_tour_points_at_visible_elements(open_page: OpenPage, name: str, language: str) -> None:
    with open_page(address(name, **INPUTS[name], tour=1), language=language) as page:
        steps, expected, formulas = [], set(), {}
        while True:
            card = page.locator("[role=dialog]")
            steps.append(card.get_attribute("data-step"))
            page.wait_for_selector(".ring")
            wait_until_idle(page)
            # the ring lies on the screen, around something, and the card does not leave the screen
            for box in (page.locator(".ring").bounding_box(), card.bounding_box()):
                assert box is not None and box["width"] > 20 and box["height"] > 10, steps[-1]
                assert box["x"] >= 0 and box["x"] + box["width"] <= 1280, steps[-1]
                assert box["y"] >= 0 and box["y"] + box["height"] <= 900, steps[-1]
            words = card.locator(".body").inner_text()
            assert any("가" <= letter <= "힣" for letter in words) == (language == "ko")
            assert "{" not in words and "undefined" not in words
            expected.add(words)
            formulas[steps[-1]] = "".join(card.locator("annotation").all_text_contents())
            if card.locator("button.main").inner_text() in ("Done", "마치기"):
                break
            card.locator("button.main").click()
            page.wait_for_function(
                "was => document.querySelector('[role=dialog]').dataset.step !== was", arg=steps[-1]
            )
        assert len(steps) == len(set(steps)) == len(expected) and len(steps) >= 11
        assert ("cross" in steps) == ("decoding" in steps) == ("+ b" not in formulas["head"]) == (name == RUN)
        page.keyboard.press("Escape")
        page.wait_for_selector("[role=dialog]", state="detached")
