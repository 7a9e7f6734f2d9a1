"""The figure of a search shows every node with its scores, and the path to the best result."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch

import glassformer
from glassformer import plotting
from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams, SearchTree, generate
from glassformer.plotting.canvas import ORANGE
from glassformer.plotting.tree import MAX_ROWS, layout

END = 1
WORDS = ["<pad>", "</s>", "<s>", " 파란", " 셔츠를", " 입은", " 남자가", "$", "\n", " a", "b"]


def spelled(ids: list[int]) -> list[str]:
    return [f"{WORDS[n % len(WORDS)]}{n}" if n > 2 else WORDS[n] for n in ids]


def search(**settings: object) -> list[GenerationOutput]:
    """What a model of random numbers, fond of ending, writes."""
    torch.manual_seed(5)
    model = glassformer.tiny("original")
    with torch.no_grad():
        model.tgt_embed.token.weight[END] *= 3
    words = {"max_new_tokens": 12, **settings}
    source = torch.arange(3, 9)[None]
    return generate(
        model,
        source,
        GenerationParams(
            config=GenerationConfig(**words), eos_token_id=END, pad_token_id=0, start_ids=2, return_tree=True
        ),
    )[0]


def tree_of(**settings: object) -> SearchTree:
    tree = search(**settings)[0].tree
    assert tree is not None
    return tree


def texts(figure: Figure) -> Counter[str]:
    return Counter(text.get_text() for text in figure.axes[0].texts)


WAYS = [
    {"num_beams": 4, "num_return_sequences": 3},
    {"num_beams": 3, "length_penalty": 0.6, "length_formula": "paper"},
    {"num_beams": 2, "length_penalty": 0.0, "early_stopping": True},
    {},
    {"do_sample": True, "seed": 3},
]


@pytest.mark.parametrize("settings", WAYS, ids=lambda one: "-".join(one) or "greedy")
def test_every_candidate_is_drawn_with_its_numbers(settings: dict) -> None:
    found = search(**settings)
    tree = found[0].tree
    assert tree is not None and {node.state for node in tree.nodes} > {"kept"}
    figure = plotting.search_tree(tree, spelled)
    shown = texts(figure)
    sums = Counter(f"{n.logprob + 0.0:.2f}   Σ {n.score:.2f}".replace("-", "−") for n in tree.nodes)
    assert sums <= shown
    bands, _ = layout(tree, columns=7, max_steps=48)
    boxes = [one for one in figure.axes[0].patches if isinstance(one, FancyBboxPatch)]
    assert len(boxes) == sum(len(band.columns) for band in bands)
    # the engine's own scores stand at the results, and in the list below
    divided = settings.get("num_beams", 1) > 1 and settings.get("length_penalty") != 0
    for rank, text in enumerate(found):
        score = f"{text.score:.3f}".replace("-", "−")
        node = tree.result(rank)
        assert not divided or shown[f"÷ {node.length_term:.4g} = {score}"]
        assert any(line.startswith(f"{rank + 1}:   {score}   ") for line in shown)
        ended = {"end": "end token", "length": "limit"}[text.finish_reason]
        assert shown[f"{rank + 1}: {ended}"] == 1


@pytest.mark.parametrize("settings", WAYS, ids=lambda one: "-".join(one) or "greedy")
def test_the_thick_line_leads_to_the_best_result(settings: dict) -> None:
    tree = tree_of(**settings)
    drawn = plotting.search_tree(tree, spelled, columns=40).axes[0].patches
    lines = [one for one in drawn if isinstance(one, PathPatch)]
    thick = [one for one in lines if to_hex(one.get_edgecolor()) == ORANGE]
    assert len(lines) == len(tree.nodes)
    rows = [
        one.get_path().vertices[-1][1] for one in sorted(thick, key=lambda n: n.get_path().vertices[0][0])
    ]
    ranks = [node.rank for node in tree.path(tree.result())]
    first = min(one.get_path().vertices[-1][1] for one in lines)
    assert rows == pytest.approx([first + 0.66 * rank for rank in ranks])


@pytest.mark.parametrize("columns", [2, 3, 5, 7, 11, 12, 40])
def test_bands_hold_every_candidate_once_and_the_parent_of_each(columns: int) -> None:
    tree = tree_of(num_beams=4)
    bands, _ = layout(tree, columns=columns, max_steps=48)
    assert max(len(band.steps) for band in bands) <= columns
    own = [n for band in bands for n in band.columns if not band.repeats(tree.nodes[n])]
    assert sorted(own) == list(range(len(tree.nodes)))
    for band in bands:
        for n in band.columns:
            parent = tree.nodes[n].parent
            assert band.repeats(tree.nodes[n]) or parent in band.columns or (parent is None and n in own)


def test_omitted_candidates_are_noted() -> None:
    tree = tree_of(num_beams=12, min_new_tokens=9, max_new_tokens=9)
    shown = texts(plotting.search_tree(tree, spelled, max_steps=5))
    assert shown["(steps 6 to 9 are not drawn)"] == 1
    hidden = sum(n.step < 5 and n.rank >= MAX_ROWS and n.state == "pruned" for n in tree.nodes)
    assert hidden and shown[f"({hidden} candidates below rank {MAX_ROWS} are not drawn)"] == 1
    assert not shown["step 6"]


def test_files_are_deterministic_and_have_all_glyphs(tmp_path: Path) -> None:
    tree = tree_of(num_beams=4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a letter that no font has is a warning
        for kind in ("svg", "png"):
            files = [
                plotting.save(
                    plotting.search_tree(tree, spelled, title="파란 $1 셔츠"), tmp_path / f"{n}.{kind}"
                )
                for n in range(2)
            ]
            assert files[0].read_bytes() == files[1].read_bytes()
    assert ElementTree.parse(tmp_path / "0.svg").getroot().tag.endswith("svg")
    assert (tmp_path / "0.png").read_bytes().startswith(b"\x89PNG")
