"""Explanations on the page: their numbers are the library's, also in the Python code and the files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pytest import approx

from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.logit_attribution import attribute_logit
from glassformer.interpret.occlusion import occlude
from glassformer.interpret.patching import compare_answers
from glassformer.interpret.tensors import read_tensor
from tests.explorer.browser_page import address, number, numbers, wait_until_idle
from tests.explorer.conftest import ExpectedTrace, OpenPage
from tests.explorer.explorer_models import RUN

TEXT, OTHER = "red blue gold gold", "gold blue gold gold"


def test_why_a_word(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    trace = expected_trace(RUN, text=TEXT)
    with open_page(address(RUN, text=TEXT, at="head", pos=1)) as page:
        for name in ("source", "target"):
            tokens = page.locator("[data-figure=why] [role=group]").nth(("source", "target").index(name))
            drops = occlude(trace, name)[1].tolist()
            assert numbers(tokens.locator("[data-value]")) == approx(drops, abs=1e-4)
        result = attribute_logit(trace, 1)
        shown = numbers(page.locator("[data-figure=contributions] .number"))
        assert shown[-1] == approx(result.value, abs=1e-4) and sum(shown[:-1]) == approx(
            result.value, abs=1e-3
        )
        largest = max((part.value for part in result.contributions), key=abs)
        assert shown[0] == approx(largest, abs=1e-4)


def test_heads_are_ranked_by_peak(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    trace = expected_trace(RUN, text=TEXT)
    peaks = [
        peak.effect for one in trace.attentions() for peak in ablate_heads(trace, one.name).peaks if peak
    ]
    with open_page(address(RUN, "change", text=TEXT)) as page:
        page.wait_for_selector("[data-figure=heads-off] .ranked .bar")
        page.wait_for_selector("[data-rank]")
        shown = numbers(page.locator("[data-figure=heads-off] .ranked .number"))
        assert shown == approx(sorted(peaks, reverse=True)[: len(shown)], abs=1e-4)


def test_patching_and_links(open_page: OpenPage, expected_trace: ExpectedTrace) -> None:
    patching = compare_answers(expected_trace(RUN, text=TEXT), expected_trace(RUN, text=OTHER))
    with open_page(address(RUN, "change", text=TEXT, in_b=OTHER)) as page:
        page.wait_for_selector("[data-figure=patching] canvas")
        wait_until_idle(page)
        cells = page.locator("[data-figure=patching] canvas").first
        cells.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-figure=patching] [data-side=after]")
        assert page.locator("[data-figure=patching] [data-side=before]").inner_text()
        assert patching.setup().sites
    trace = expected_trace(RUN, text=TEXT)
    with open_page(address(RUN, "heads", text=TEXT, pair_of="target source", link_q=1, link_k=2)) as page:
        shown = numbers(page.locator("[data-figure=find-head] .number"))
        weights = [
            float(trace.record.weights(one.name, head)[0, 1, 2])
            for one in trace.attentions()
            if one.kind == "cross"
            for head in range(one.heads)
        ]
        assert shown == approx(sorted(weights, reverse=True)[: len(shown)], abs=1e-6)


@pytest.mark.slow
def test_the_python_code_of_every_figure_runs(
    open_page: OpenPage, folders: dict[str, Path], expected_trace: ExpectedTrace, tmp_path: Path
) -> None:
    codes: dict[str, str] = {}
    views: list[tuple[str, str, dict[str, Any]]] = [
        *(
            ("translator", "model", {"at": at})
            for at in ("encoder.embed", "decoder.0.cross", "decoder.0.ffn", "head")
        ),
        ("translator", "model", {}),
        ("translator", "heads", {"link_q": 0, "link_k": 0}),
        ("translator", "change", {"changes": '[{"kind":"skip_layer","block":"encoder.blocks.0"}]'}),
        ("labels", "model", {"at": "head"}),
    ]
    for model, view, params in views:
        with open_page(address(model, view, **params)) as page:
            for code in page.locator("[data-python]").all():
                codes[code.get_attribute("data-python") or ""] = model
    assert len(codes) >= 10
    script = "\n".join(f"{code}\nprint(type(result).__name__)" for code in codes)
    parent = folders["translator"].parent
    run = subprocess.run([sys.executable, "-c", script], cwd=parent, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == len(codes) and "NoneType" not in run.stdout


def test_tensors_are_saved_as_numpy_files(
    open_page: OpenPage, expected_trace: ExpectedTrace, tmp_path: Path
) -> None:
    with open_page(address(RUN, text=TEXT, at="head", pos=1)) as page:
        with page.expect_download() as download:
            page.locator("[data-figure=why] button", has_text="NPY").click()
        download.value.save_as(tmp_path / "drops.npy")
        assert number(page.locator("[data-figure=contributions] .number").last)
    saved = np.load(tmp_path / "drops.npy")
    expected = read_tensor(expected_trace(RUN, text=TEXT), "occlusion.source").values.numpy()
    assert np.allclose(saved, expected, atol=1e-5)
