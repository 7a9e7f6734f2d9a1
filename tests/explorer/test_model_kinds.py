"""Every kind of model in a real browser: each stage opens, and its numbers are the library's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page
from pytest import approx

from glassformer.bundle import Bundle
from glassformer.generation import logits_processors
from glassformer.interpret.catalog import describe_model
from glassformer.interpret.examples import example_inputs
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.logit_lens import logit_lens, unit_tokens
from glassformer.interpret.schema import to_json
from glassformer.interpret.similarity import compare_images_texts
from glassformer.interpret.tensors import read_tensor
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
from tests.explorer.explorer_models import CAPTIONS, INPUTS, QUESTIONS, RUN


@pytest.mark.parametrize("name", INPUTS)
def test_keyboard_opens_every_stage(open_page: OpenPage, expected_trace: ExpectedTrace, name: str) -> None:
    trace = expected_trace(name)
    stages = to_json(trace.info())["stages"]
    with open_page(address(name, **INPUTS[name])) as page:
        drawn = page.locator("svg [data-stage]").evaluate_all("all => all.map(one => one.dataset.stage)")
        assert {one["id"] for one in stages} <= set(drawn)
        page.locator(f'svg [data-stage="{stages[0]["id"]}"]').first.focus()
        tried = set()
        for stage in stages:
            page.keyboard.press("ArrowUp")
            shown = page.locator(f'[data-open="{stage["id"]}"]')
            shown.locator("[data-figure]").first.wait_for()
            wait_until_idle(page)
            assert display_errors(shown) == [], stage["id"]
            kind = (stage["kind"], stage["id"].endswith("cross"))
            if stage["kind"] == "attention" and kind not in tried:
                tried.add(kind)
                keys = trace.sequences[0] if kind[1] else trace.sequence(stage["sequence"])
                patches = keys.kind == "patches"
                every_tab(page, stage["id"], patches=patches)
        assert page.locator('[data-way="on"]').get_attribute("aria-disabled") == "true"
        assert ("attention", True) in tried or not any(one.kind == "cross" for one in trace.attentions())


def every_tab(page: Page, stage: str, patches: bool) -> None:
    shown = page.locator(f'[data-open="{stage}"]')
    tabs = shown.locator("[role=tab]").evaluate_all("all => all.map(one => one.dataset.choice)")
    assert tabs == ["image"] * patches + ["qkv", "scores", "weights", "ribbons", "mix", "head_weights"]
    for tab in tabs:
        shown.locator(f'[role=tab][data-choice="{tab}"]').click()
        wait_until_idle(page)
        assert shown.locator("[role=tab][aria-selected=true]").get_attribute("data-choice") == tab
        assert display_errors(shown) == [], (stage, tab)
    page.locator(f'svg [data-stage="{stage}"]').first.focus()


CELLS = [
    (RUN, "decoder.1.self", 3, 1, 3),  # a key that the query may not see
    (RUN, "decoder.1.cross", 0, 2, 3),
    ("rotary", "decoder.0.self", 3, 3, 1),  # its keys serve two heads
]


@pytest.mark.parametrize(("name", "stage", "head", "query", "key"), CELLS)
def test_attention_cell_matches_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str, stage: str, head: int, query: int, key: int
) -> None:
    trace = expected_trace(name)
    found = next(one for one in to_json(trace.info())["stages"] if one["id"] == stage)
    attention = found["tensors"]["q"].removesuffix(".q")
    scores = {
        score: float(trace.record.scores(attention, head, score)[0, query, key])
        for score in ("dot", "scaled", "masked")
    }
    weights = trace.record.weights(attention, head)[0, query]
    params = {"at": stage, "tab": "scores", "head": head, "pos": query, "key": key}
    with open_page(address(name, **INPUTS[name], **params)) as page:
        cell = page.locator('[data-figure$="-cell"]')
        for score in ("dot", "scaled"):
            assert number(cell.locator(f"[data-score={score}]")) == approx(scores[score], abs=1e-5)
        assert number(cell.locator("[data-score=weights]")) == approx(float(weights[key]), abs=1e-6)
        assert ("−∞" in cell.inner_text()) == (scores["masked"] == float("-inf"))
        matrices = page.locator(f'[data-figure="{attention}-h{head}-scores"] .at [data-value]')
        if not trace.record.scores(attention, head, "masked").isinf().any():
            del scores["masked"]  # nothing is masked, so there is no such picture
        assert numbers(matrices) == approx([*scores.values(), float(weights[key])], abs=1e-5)
        navigate(page, address(name, **INPUTS[name], **{**params, "tab": "weights"}), '[data-figure$="-row"]')
        best, order = weights.sort(descending=True)
        row = page.locator(f'[data-figure="{attention}-h{head}-row"] li')
        assert numbers(row.locator("[data-value]")) == approx(best[:12].tolist(), abs=1e-6)
        assert int(texts(row)[0].split()[-2]) == int(order[0])


def test_matrix_colors_follow_the_weights(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    attention = "decoder.blocks.1.cross_attn"
    weights = expected_trace(RUN).record.weights(attention, 2)[0]
    with open_page(address(RUN, **INPUTS[RUN], at="decoder.1.cross", tab="weights", head=2)) as page:
        canvas = page.locator(f'[data-figure="{attention}-h2-weights"] canvas').first
        painted = canvas.evaluate(
            """one => {
              const copy = new OffscreenCanvas(one.width, one.height).getContext('2d');
              copy.drawImage(one, 0, 0);
              const { data } = copy.getImageData(0, 0, one.width, one.height);
              return [one.height, one.width, Array.from({ length: data.length / 4 }, (_, n) =>
                data[4 * n] + data[4 * n + 1] + data[4 * n + 2])];
            }"""
        )
        assert tuple(painted[:2]) == weights.shape  # a pixel for each
        light = torch.tensor(painted[2])[weights.flatten().argsort()]
        assert (light.diff() <= 3).all() and light[0] - light[-1] > 300  # the larger the darker


def sampling_probabilities(
    logits: torch.Tensor, temperature: float, top_k: int, top_p: float
) -> torch.Tensor:
    """The probabilities that the library samples from."""
    scores = logits[None] / temperature
    scores = logits_processors.keep_top_k(scores, top_k) if top_k else scores
    scores = logits_processors.keep_top_p(scores, top_p) if top_p < 1 else scores
    return scores.softmax(-1)[0]


@pytest.mark.parametrize("name", [RUN, "masked"])
def test_next_token_probabilities_match_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str
) -> None:
    trace = expected_trace(name)
    logits = trace.record["head.logits"][0, 2].float()
    order = logits.argsort(descending=True)[:12]
    shown = '[data-figure="next-2"]'
    with open_page(address(name, **INPUTS[name], at="head", pos=2)) as page:
        for temperature, top_k, top_p in [(1.0, 0, 1.0), (0.7, 3, 0.6), (0.7, 0, 0.6), (2.0, 3, 1.0)]:
            params = {"temp": temperature, "topk": top_k, "topp": top_p}
            navigate(page, address(name, **INPUTS[name], at="head", pos=2, **params), shown)
            probabilities = sampling_probabilities(logits, temperature, top_k, top_p)
            tempered = (logits / temperature).softmax(-1)
            kept = probabilities > 0
            bars = page.locator(f"{shown} li")
            outlines, values = (numbers(bars.locator(part)) for part in (".before", ".number"))
            assert outlines == approx(tempered[order].tolist(), abs=1e-6)  # removed tokens stay as outlines
            assert values == approx(probabilities[order].tolist(), abs=1e-6)
            mass = page.locator(f"{shown} [data-kept]")
            assert mass.get_attribute("data-kept") == str(int(kept.sum()))
            assert number(mass) == approx(float(tempered[kept].sum()), abs=1e-6)


@pytest.mark.parametrize("name", [RUN, "labels"])
def test_logit_lens_matches_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str
) -> None:
    trace = expected_trace(name)
    expected = to_json(logit_lens(trace, 0 if name == "labels" else 3))  # one label for all places
    with open_page(address(name, **INPUTS[name], at="head", pos=3)) as page:
        lens = page.locator("[data-figure=lens]")
        for n, layer in enumerate(expected["layers"]):
            cell = lens.locator(f'td[data-layer="{n}"][data-position="{expected["position"]}"]')
            assert number(cell) == approx(layer["predictions"][0]["probability"], abs=1e-6)
        detail = lens.locator("table.detail tbody tr")
        ranks = numbers(detail.locator("td[data-value]:nth-of-type(2)"))
        assert sorted(ranks) == sorted(layer["rank_of_final"] for layer in expected["layers"])
        entropies = numbers(detail.locator("td[data-value]:nth-of-type(3)"))
        assert sorted(entropies) == approx(sorted(layer["entropy"] for layer in expected["layers"]), abs=1e-5)


@pytest.mark.parametrize("name", [RUN, "pictures", "prompts"])
def test_head_roles_match_the_library(open_page: OpenPage, expected_trace: ExpectedTrace, name: str) -> None:
    expected = to_json(describe_heads(expected_trace(name)))["attentions"]
    with open_page(address(name, "heads", **INPUTS.get(name, {}))) as page:
        page.locator("[data-attention]").first.wait_for()
        for attention in expected:
            for head in attention["heads"]:
                tile = page.locator(f'[data-attention="{attention["name"]}"][data-head="{head["head"]}"]')
                assert tile.get_attribute("data-role") == (head["role"] or "none")
                values = [head["share"]] if head["role"] else [head["entropy"], head["distance"]]
                assert numbers(tile.locator("[data-value]")) == approx(values, abs=1e-5)


def test_masked_tokens_match_the_library(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    (filled,) = bundles["masked"].fill([INPUTS["masked"]["text"]], top=5)
    with open_page(address("masked", **INPUTS["masked"])) as page:
        best = page.locator("[data-outcome=fill]")
        assert texts(best.locator("b")) == [mask[0].text for mask in filled.masks]
        assert numbers(best.locator("[data-value]")) == approx([mask[0].score for mask in filled.masks])


def test_labels_match_the_library(
    open_page: OpenPage, bundles: dict[str, Bundle], expected_trace: ExpectedTrace, tmp_path: Any
) -> None:
    import base64

    picture = tmp_path / "digit.png"
    example = to_json(expected_trace("pictures").info())["input"]["image"]
    picture.write_bytes(base64.b64decode(example.split(",", 1)[1]))
    answers = {
        "labels": bundles["labels"].classify([INPUTS["labels"]["text"]]),
        "pictures": bundles["pictures"].classify([picture]),
    }
    with open_page(address("labels", **INPUTS["labels"], at="head")) as page:
        for name, (labels,) in answers.items():
            navigate(page, address(name, **INPUTS[name], at="head"), "[data-figure=labels]")
            bars = page.locator("[data-figure=labels] li")
            assert numbers(bars.locator("[data-value]")) == approx([one.score for one in labels], abs=1e-6)
            assert [one.splitlines()[0] for one in texts(bars)] == [one.label for one in labels]
            best = page.locator(f"[data-outcome] b >> text={labels[0].label}")
            assert best.count() == 1


def test_windows_match_the_library(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    trace = expected_trace("windows")
    attention = trace.attentions()[1]
    assert attention.windows is not None and attention.windows.shift
    grid, query = attention.windows.grid, 3 * 8 + 4
    weights = [trace.record.token_weights(attention.name, head, query)[0] for head in range(attention.heads)]
    with open_page(address("windows", look=1, by=1, pos=query)) as page:
        figure = page.locator("[data-figure=patch-attention]")
        expected = [weights[1][query], weights[1].sum(), weights[1].max()]
        assert numbers(figure.locator(".shares [data-value]")) == approx(list(map(float, expected)), abs=1e-6)
        size, shift = attention.windows.size, attention.windows.shift
        lines = sum(len(range(shift, side, size)) for side in grid)
        assert figure.locator("line.window").count() == lines
        box = figure.locator("[role=slider]").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 2, box["y"] + 2)  # the first patch is in another window
        assert "outside" in figure.inner_text()
        page.locator("[data-figure=stages] [data-stage-grid=stage2]").click()
        wait_until_idle(page)
        below = trace.attentions()[2].name
        merged = trace.record.weights(below).shape[1]
        coarse = [trace.record.token_weights(below, head, 1 * 4 + 2)[0] for head in range(merged)]
        sharpest = coarse[sharpest_head(torch.stack(coarse))]
        expected = [sharpest[1 * 4 + 2], sharpest.sum(), sharpest.max()]
        assert numbers(figure.locator(".shares [data-value]")) == approx(list(map(float, expected)), abs=1e-6)


def test_images_and_texts_match_the_library(
    open_page: OpenPage, bundles: dict[str, Bundle], expected_trace: ExpectedTrace
) -> None:
    bundle = bundles["pairs"]
    images = [example.image or "" for example in example_inputs(bundle)]
    lines = ["the cat", "a dog ran", "the mat."]
    info = compare_images_texts(bundle, images, lines)
    with open_page(address("pairs", text="\n".join(lines))) as page:
        cosines = numbers(page.locator("[data-figure=similarity] [data-pair]"))
        assert cosines == approx([cosine for row in info.cosines for cosine in row], abs=1e-5)
        page.locator('[data-pair="2.1"]').click()
        wait_until_idle(page)
        assert number(page.locator("[data-outcome] [data-value]")) == approx(info.cosines[2][1], abs=1e-5)
        expected = (info.scale * torch.tensor(info.cosines[2])).softmax(-1).tolist()
        assert numbers(page.locator("[data-figure=zero-shot] li [data-value]")) == approx(expected, abs=1e-5)
        drops = read_tensor(expected_trace("pairs", image=images[2], text=lines[1]), "occlusion").values
        squares = page.locator("[data-figure=occlusion] rect[data-value]")
        assert numbers(squares) == approx(drops.flatten().tolist(), abs=1e-4)


def test_sentence_similarity_matches_the_library(open_page: OpenPage, bundles: dict[str, Bundle]) -> None:
    one, other = "the cat sat on the mat.", "a dog ran"
    ((match,),) = bundles["sentences"].similar([one], [other])
    with open_page(address("sentences", text=one, in_b=other, at="head")) as page:
        alike = page.locator("[data-figure=sentence-alike] b[data-value]")
        assert alike.count() == 2  # once beside each
        assert numbers(alike) == approx([match.score] * 2, abs=1e-6)
        navigate(page, address("sentences", text=one, in_b=one, at="head"))
        assert numbers(page.locator("[data-figure=sentence-alike] b[data-value]")) == approx([1, 1], abs=1e-6)


def test_forecast_and_errors_match_the_library(
    open_page: OpenPage, bundles: dict[str, Bundle], expected_trace: ExpectedTrace
) -> None:
    example = to_json(expected_trace("series").info())["input"]["series"]
    held = example["holdout"]
    columns = {name: np.array(values) for name, values in example["columns"].items()}
    past = {name: values[:-held] for name, values in columns.items()}
    table = {"ds": range(len(past["oil"])), **past}
    expected = bundles["series"].forecast({name: list(values) for name, values in table.items()})
    values = expected.values[0]  # (N, C)
    truth = np.stack([columns[name][-held:] for name in expected.names], 1)
    last = np.stack([past[name][-1:].repeat(held) for name in expected.names], 1)

    def errors(by: np.ndarray, channels: list[int]) -> list[float]:
        off = (by - truth)[:, channels]
        return [float((off**2).mean()), float(np.abs(off).mean())]

    with open_page(address("series", channel=1)) as page:
        shown = page.locator("[data-figure=forecast-errors] td[data-value]")
        rows = [error for by in (values, last) for error in errors(by, [1]) + errors(by, [0, 1])]
        assert numbers(shown) == approx(rows, rel=1e-4)
        navigate(page, address("series", channel=1, at="head"), "[data-figure=forecast-head] svg")
        page.locator("[data-figure=forecast-head] svg").focus()
        for _ in range(len(past["oil"]) + 1):
            page.keyboard.press("ArrowRight")
        for n in range(held):
            here = numbers(page.locator("[data-figure=forecast-head] b[data-value]"))
            assert here == approx([float(truth[n, 1]), float(values[n, 1])], rel=1e-4)
            page.keyboard.press("ArrowRight")


def test_residual_norms_and_units_match_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace
) -> None:
    trace = expected_trace(RUN)
    stages = {one["id"]: one for one in to_json(trace.info())["stages"]}
    with open_page(address(RUN, **INPUTS[RUN], at="decoder.1.norm_ffn", pos=2)) as page:
        tensors = stages["decoder.1.norm_ffn"]["tensors"]
        for role in ("before", "sublayer", "sum"):
            x = trace.record[tensors[role]][0, 2]
            row = numbers(page.locator(f"[data-role={role}] [data-value]"))
            assert row == approx([float(x.mean()), float(x.std(correction=0)), float(x.norm())], abs=1e-4)
        navigate(
            page,
            address(RUN, **INPUTS[RUN], at="decoder.1.ffn", pos=2),
            '[data-figure="decoder.1.ffn-units"]',
        )
        act = trace.record[stages["decoder.1.ffn"]["tensors"]["act"]][0, 2]
        strongest = act[act.abs().argsort(descending=True)[:12]]
        bars = page.locator('[data-figure="decoder.1.ffn-units"] ul').first.locator("li [data-value]")
        assert numbers(bars)[:12] == approx(strongest.tolist(), abs=1e-5)


def test_units_without_vocabulary_explain_why(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    whys = {RUN: "only through the decoder", "labels": "has no vocabulary"}
    with open_page(address(RUN, **INPUTS[RUN])) as page:
        for name, why in whys.items():
            vocabulary = describe_model(expected_trace(name).bundle, name).outline.head.vocab_size
            assert (vocabulary is None) == ("no vocabulary" in why)
            assert not unit_tokens(expected_trace(name), "encoder.blocks.1.ffn", 0).promotes
            units = '[data-figure="encoder.1.ffn-units"] .unit'
            navigate(page, address(name, **INPUTS[name], at="encoder.1.ffn"), units)
            assert why in page.locator(units).inner_text()


@pytest.mark.parametrize("name", ["detector", "queries"])
def test_detected_boxes_match_the_library(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str
) -> None:
    trace = expected_trace(name)
    scores = trace.derived["detect.probabilities"][..., :-1].amax(-1)  # (layers, Q)
    with open_page(address(name, min=0)) as page:
        figure = page.locator("[data-figure=detection]")
        assert figure.locator("rect.found").count() == scores.shape[1]
        expected = sorted(scores[-1].tolist(), reverse=True)
        assert numbers(page.locator("[data-figure=objects] [data-value]")) == approx(expected, abs=1e-6)
        best = int(scores[-1].argmax())
        by_layer = numbers(page.locator("[data-figure=query-layers] [data-value]"))
        assert by_layer == approx(scores[:, best].tolist(), abs=1e-6)
        rect, box = (
            figure.locator(f'rect.found[data-query="{best}"]'),
            trace.derived["detect.boxes"][-1, best],
        )
        assert float(rect.get_attribute("x") or "nan") == approx(float(box[0]), abs=1e-6)
        navigate(page, address(name, min=1, after=1, query=0), "[data-figure=detection] rect.none")
        assert figure.locator("rect.none").count() == scores.shape[1]
        assert number(figure.locator("p [data-value]")) == approx(float(scores[0, 0]), abs=1e-6)
        layers = [one for one in trace.attentions() if name == "detector" or one.kind == "cross"]
        heads = page.locator("[data-figure=query-attention] .heads")
        assert heads.locator("button").count() == sum(one.heads + 1 for one in layers)
        weights = trace.record.weights(layers[0].name)[0, :, trace.outcome.first_query]
        grid = trace.sequences[0].grid or (0, 0)
        patches = weights[:, trace.sequences[0].prefix :][:, : grid[0] * grid[1]]
        pressed = heads.first.locator("button").evaluate_all("all => all.map(one => one.ariaPressed)")
        assert pressed.index("true") == 1 + sharpest_head(patches)  # the mean of all heads is first


@pytest.mark.parametrize(
    ("name", "attention"), [("detector", "encoder.blocks.0.self_attn"), ("prompts", "decoder.final_attn")]
)
def test_a_head_is_switched_off_on_the_image(
    open_page: OpenPage, expected_trace: ExpectedTrace, name: str, attention: str
) -> None:
    changes = [{"kind": "ablate_head", "attention": attention, "head": 1}]
    with open_page(address(name, "change")) as page:
        page.locator(f'[data-head="{attention}.1"]').click()
        shown = page.locator("[data-figure=outcome-changed]")
        shown.wait_for()
        wait_until_idle(page)
        for side, outcome in (
            ("before", expected_trace(name)),
            ("after", expected_trace(name, changes=changes)),
        ):
            values = numbers(shown.locator(f"[data-side={side}] [data-value]"))
            kind = outcome.outcome
            expected = kind.iou[:1] if name == "prompts" else [one.score for one in kind.objects]
            assert values == approx(list(expected), abs=1e-5)


def test_clicks_segment_the_image(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    with open_page(address("prompts")) as page:
        figure = page.locator("[data-figure=candidates]")
        assert numbers(figure.locator("[data-value]")) == approx(
            expected_trace("prompts").outcome.iou, abs=1e-4
        )
        surface = page.locator("[data-surface]")
        box = surface.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] / 4, box["y"] + box["height"] / 2)
        page.keyboard.down("Shift")
        page.mouse.click(box["x"] + box["width"] * 3 / 4, box["y"] + box["height"] / 4)
        page.keyboard.up("Shift")
        page.locator("circle.background").first.wait_for()
        wait_until_idle(page)
        assert surface.locator("circle.object").count() == surface.locator("circle.background").count() == 1
        prompt = {"points": [[32.0, 64.0]], "background_points": [[96.0, 32.0]]}
        outcome = expected_trace("prompts", **prompt).outcome
        assert numbers(figure.locator("[data-value]")) == approx(
            outcome.iou, abs=0.02
        )  # a click has whole pixels
        page.mouse.move(box["x"] + 20, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + 120, box["y"] + 90)
        page.mouse.up()
        surface.locator("rect.box").wait_for()
        wait_until_idle(page)
        assert surface.locator("circle").count() == 0
        assert "[top left]" in page.locator("[data-figure=tokens-to-image]").inner_text()
        page.locator("[data-marking=background_points]").click()  # without Shift, e.g. on a touch screen
        page.mouse.click(box["x"] + 200, box["y"] + 20)
        assert surface.locator("rect.box").count() == surface.locator("circle.background").count() == 1
        wait_until_idle(page)


def sharpest_head(weights: torch.Tensor) -> int:
    """The head that the page opens at first, for weights (H, S) of one query on the patches."""
    return int(weights.square().sum(-1).argmax())


def test_captions_match_the_library(
    open_page: OpenPage, bundles: dict[str, Bundle], expected_trace: ExpectedTrace
) -> None:
    trace = expected_trace(CAPTIONS, to="ko")
    crosses = [one for one in trace.attentions() if one.kind == "cross"]
    word, start = 8, trace.prepared.start  # the number of the second group of objects
    with open_page(address(CAPTIONS, to="en", n=3)) as page:
        page.locator("header select").nth(1).select_option("ko")
        wait_until_idle(page)
        assert trace.outcome.text in page.locator("[data-outcome=caption]").inner_text()
        tokens = page.locator("[data-figure=caption] [data-token]")
        logits = trace.record["head.logits"][0].softmax(-1)
        ids = [token.id or 0 for token in trace.sequence("target").tokens[start:]]
        expected = [float(logits[start + n - 1, index]) for n, index in enumerate(ids)]
        assert numbers(tokens) == approx(expected, abs=1e-5)

        # a token that is pointed at shows the patches that the position before it attended to
        tokens.nth(word).hover()
        wait_until_idle(page)
        drops = read_tensor(trace, "occlusion.3").values[word]
        squares = page.locator("[data-figure=occlusion] rect[data-value]")
        assert numbers(squares) == approx(drops.flatten().tolist(), abs=1e-3)
        tokens.nth(word).click()
        for layer, head in ((1, None), (0, 2)):
            weights = trace.record.weights(crosses[layer].name)[0, :, start + word - 1]
            row = weights[sharpest_head(weights[:, 1:]) if head is None else head]
            patch = int(row[1:].argmax())
            figure = page.locator("[data-figure=decoding-looking]")
            grid = figure.locator("[role=slider]")
            box = grid.bounding_box()
            assert box is not None
            column, line = patch % 12 + 0.5, patch // 12 + 0.5
            grid.hover(position={"x": box["width"] * column / 12, "y": box["height"] * line / 12})
            assert number(figure.locator("b[data-value]")) == approx(float(row[1:].max()), abs=1e-6)
            page.locator("[data-figure=caption-heads] .heads").first.locator("button").nth(3).click()
            wait_until_idle(page)


def test_a_caption_grows_over_its_image(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    trace = expected_trace(CAPTIONS)
    with open_page(address(CAPTIONS, "decoding", n=2)) as page:
        assert page.locator("[data-written]").get_attribute("data-written") == "A red"
        assert page.locator("[data-figure=decoding-looking] canvas").count() == 1
        navigate(page, address(CAPTIONS, "decoding", out=""), "[data-figure=decoding-next] [data-key]")
        page.get_by_role("button", name="Play", exact=True).click()
        page.wait_for_selector("[data-ended=end]")
        wait_until_idle(page)
        assert page.locator("[data-written]").get_attribute("data-written") == trace.outcome.text
        head = "decoder.blocks.0.self_attn.0"
        navigate(page, address(CAPTIONS, "change"), f'[data-head="{head}"]')
        page.locator(f'[data-head="{head}"]').click()
        changes = [{"kind": "ablate_head", "attention": head[:-2], "head": 0}]
        expected = expected_trace(CAPTIONS, changes=changes).outcome.text
        shown = page.locator("[data-figure=outcome-changed]")
        shown.wait_for()
        wait_until_idle(page)
        assert expected != trace.outcome.text and expected.split()[-1] in shown.inner_text()


def test_questions_about_images_match_the_library(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    name, question = "questions", "the dog ran?"
    trace = expected_trace(name, question=question)
    words = trace.prepared.inputs["inputs"].ids.shape[1]
    prefix = trace.sequences[0].prefix
    with open_page(address(name, **INPUTS[name], look=1, by=2)) as page:
        page.locator("[data-question]").fill(question)
        page.locator("[data-question]").press("Enter")
        wait_until_idle(page)
        bars = page.locator("[data-figure=classes] li [data-value]")
        assert numbers(bars) == approx([one.probability for one in trace.outcome.labels], abs=1e-6)
        best = trace.bundle.job.classes.index(trace.outcome.labels[0].label)
        drops = read_tensor(trace, "occlusion.words").values[best].tolist()
        assert numbers(page.locator("[data-figure=ask-words] [data-value]")) == approx(drops, abs=1e-6)
        squares = page.locator("[data-figure=occlusion] rect[data-value]")
        drops = read_tensor(trace, "occlusion.3").values[best].flatten().tolist()
        assert numbers(squares) == approx(drops, abs=1e-6)

        page.locator(
            "[data-figure=ask-words] [data-token='2']"
        ).click()  # a word, and the patches it attends to
        wait_until_idle(page)
        weights = trace.record.weights("encoder.blocks.1.self_attn")[0, 2, 2]
        shares = page.locator("[data-figure=patch-attention] .shares [data-value]")
        expected = [*weights[:prefix].tolist(), float(weights[prefix:].sum()), float(weights[prefix:].max())]
        assert numbers(shares) == approx(expected, abs=1e-6)
        blocks = read_tensor(trace, "attention.blocks").values
        figure = page.locator("[data-figure=ask-blocks]")
        assert numbers(figure.locator("p [data-value]")) == approx(blocks[1, 2].flatten().tolist(), abs=1e-6)
        cells = figure.locator("canvas").evaluate_all("all => all.map(one => one.width * one.height)")
        patches = len(trace.sequences[0]) - words
        assert cells[::2] == [words**2, words * patches, patches * words, patches**2]  # then the legend
        rows = page.locator("[data-figure=ask-layers] td[data-value]")
        assert numbers(rows) == approx(blocks.mean(1).flatten().tolist(), abs=1e-6)


def test_a_question_is_asked_in_the_language_of_the_page(open_page: OpenPage) -> None:
    answers = {"en": ("How many cars are there?", "2"), "ko": ("원은 무슨 색인가요?", "노란색")}
    for language, (question, answer) in answers.items():
        with open_page(address(QUESTIONS), language=language) as page:
            assert page.locator("[data-question]").input_value() == question
            assert answer in page.locator("[data-figure=classes] li").first.inner_text()
    with open_page(address(QUESTIONS)) as page:
        page.get_by_role("button", name="한국어").click()
        wait_until_idle(page)
        assert page.locator("[data-question]").input_value() == answers["ko"][0]


def test_the_tour_of_a_question_describes_words_and_patches(open_page: OpenPage) -> None:
    said = []
    with open_page(address(QUESTIONS, tour=1)) as page:
        for _ in range(3):
            card = page.locator("[role=dialog]")
            said.append(card.locator(".body").inner_text())
            step = card.get_attribute("data-step")
            card.locator("button.main").click()
            page.wait_for_function(
                "was => document.querySelector('[role=dialog]').dataset.step !== was", arg=step
            )
    assert "the question “How many cars are there?”" in said[0]
    assert "8 tokens" in said[1] and "144 patches" in said[1] and "one sequence" in said[1]
    assert "table" in said[2] and "patch" in said[2] and "classification" not in said[2]


def test_the_four_blocks_of_a_question_fit_on_a_phone(open_page: OpenPage) -> None:
    with open_page(address(QUESTIONS), width=390) as page:
        boxes = [box.bounding_box() for box in page.locator("[data-figure=ask-blocks] canvas").all()]
        assert len(boxes) == 8  # with legends
        assert all(box and box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
