"""What heads seem to do, on patterns matcher by hand and through an edited forward."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from glassformer.core.observe import observe
from glassformer.errors import GlassformerError
from glassformer.interpret.head_patterns import (
    PatternMatcher,
    cross_patterns,
    cross_sharpness,
    distances,
    match_heads,
    matcher_for,
    rank_links,
    self_patterns,
    thumbnails,
)
from glassformer.interpret.schema import TokenSequence, TraceToken
from tests.core.models import H, ids, model_of
from tests.interpret.models import tiny_bundle, trace_of

WORDS = ["the", "cat", ",", "the", "dog", "and", "a", "cat", "."]


def line(texts: Sequence[str | None], grid: tuple[int, int] | None = None, prefix: int = 0) -> TokenSequence:
    """Tokens with these texts; None: a special token, or a patch of a grid."""
    special = grid is None
    tokens = [TraceToken(piece=one or "", raw=one, special=special and one is None) for one in texts]
    return TokenSequence(name="input", kind="text", tokens=tuple(tokens), grid=grid, prefix=prefix)


TEXT = line([None, *WORDS, None])
T = len(TEXT)


def ruler(tokens: TokenSequence = TEXT, allowed: Tensor | None = None) -> PatternMatcher:
    full = torch.ones(len(tokens), len(tokens), dtype=torch.bool) if allowed is None else allowed
    return PatternMatcher(self_patterns(tokens), full, distances(tokens, tokens, "self"))


def exactly(marked: Tensor) -> Tensor:
    """Weights (1, 1, T, S) that lie on a pattern alone, and even where it marks nothing."""
    marked = torch.where(marked.any(-1, keepdim=True), marked, True).float()
    return (marked / marked.sum(-1, keepdim=True))[None, None]


@pytest.mark.parametrize(
    "name", ["previous", "next", "self", "first", "last", "same", "separator", "punctuation"]
)
def test_a_head_on_one_pattern_gets_its_role_with_a_share_of_one(name: str) -> None:
    pattern = self_patterns(TEXT)[name]
    (head,) = ruler().measure(exactly(pattern))
    # the last token is a separator as well, which is the more specific role
    assert head.role == ("separator" if name == "last" else name)
    assert head.scores[name] == pytest.approx(1.0, abs=1e-6)
    assert head.share == pytest.approx(1.0, abs=1e-6) and head.chance < 0.5


def test_induction_finds_what_followed_the_same_word_before() -> None:
    words = ["the", "red", "bird", "saw", "the", "red", "bird", "saw"]
    tokens = line(words)
    causal = torch.ones(8, 8, dtype=torch.bool).tril()
    weights = torch.eye(8)
    for query in range(4, 8):  # from the second "the" to the first "red", ...
        weights[query] = torch.eye(8)[query - 3]
    (head,) = ruler(tokens, causal).measure(weights[None, None])
    assert head.role == "induction" and head.share == pytest.approx(1.0) and head.chance < 0.3


def test_heads_on_one_word_and_sinks() -> None:
    weights = torch.zeros(1, 2, T, T)
    weights[0, 0, :, 2] = weights[0, 1, :, 0] = 1  # all queries on "cat", or on the first token
    norms = torch.ones(2, T)
    word, first = ruler().measure(weights, norms)
    assert (word.role, word.key, word.share) == ("word", 2, pytest.approx(1.0))
    assert word.chance == pytest.approx(1 / T) and (first.role, first.key) == ("first", 0)
    norms[:, 0] = 0.1
    assert [head.role for head in ruler().measure(weights, norms)] == ["word", "sink"]
    weights[0, 0] = 1 / T
    assert ruler().measure(weights, norms)[0].role == "spread"


def test_links_are_the_weights_of_all_heads_largest_first() -> None:
    trace = trace_of(tiny_bundle("original"), {"text": "the cat sat", "target": [5, 6, 7]})
    links = rank_links(trace, "target", 2, "source", 1).links
    weights = {
        (name, head): float(trace.record.weights(name, head)[0, 2, 1])
        for name in trace.record.attentions()
        if "cross" in name
        for head in range(trace.record[f"{name}.q"].shape[1])
    }
    assert {(link.attention, link.head): link.weight for link in links} == pytest.approx(weights)
    assert [link.weight for link in links] == sorted(weights.values(), reverse=True)
    for wrong in (("target", 99, "source", 1), ("nothing", 0, "source", 0)):
        with pytest.raises(GlassformerError):
            rank_links(trace, *wrong)


def test_uniform_attention_scores_chance_level_for_every_pattern() -> None:
    (head,) = ruler().measure(torch.full((1, 1, T, T), 1 / T))
    for name, chance in head.chances.items():
        if name != "spread":
            assert head.scores[name] == pytest.approx(chance, abs=1e-6), name
    assert head.role == "spread" and head.share == pytest.approx(1.0, abs=1e-5)
    assert head.entropy == pytest.approx(math.log(T), abs=1e-5)
    apart = (torch.arange(T)[None] - torch.arange(T)[:, None]).abs().float().mean()
    assert head.distance == pytest.approx(float(apart), abs=1e-4)


def test_causal_heads_are_scored_only_at_queries_with_a_choice() -> None:
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    before = torch.eye(T).roll(-1, 1)
    before[0] = torch.eye(T)[0]
    before[-1] = torch.eye(T)[-2]
    (head,) = ruler(allowed=causal).measure(before[None, None])
    assert head.role == "previous" and head.share == pytest.approx(1.0)
    assert "next" not in head.scores  # no query may look there
    # a query n tokens in has n + 1 keys; the first two have none or one besides the marked one
    expected = sum(1 / (n + 1) for n in range(1, T)) / (T - 1)
    assert head.chances["previous"] == pytest.approx(expected, abs=1e-6)


def test_row_and_column_patterns_of_an_image() -> None:
    image = line([None] * 13, grid=(3, 4), prefix=1)
    patterns = self_patterns(image)
    for name in ("row", "column"):
        (head,) = ruler(image).measure(exactly(patterns[name]))
        assert head.role == name and head.share == pytest.approx(1.0, abs=1e-6)
    # square 6 is in row 1, column 1 (token 0 is the prefix, squares are tokens 1 to 12)
    assert patterns["row"][6].nonzero().flatten().tolist() == [5, 7, 8]
    assert patterns["column"][6].nonzero().flatten().tolist() == [2, 10]
    assert not patterns["row"][0].any() and not patterns["local"][:, 0].any()


def test_only_monotone_cross_attention_counts_as_alignment() -> None:
    source, target = line([f"s{n}" for n in range(10)]), line([f"t{n}" for n in range(8)])
    full = torch.ones(8, 10, dtype=torch.bool)
    matcher = PatternMatcher(cross_patterns(target, source), full, distances(target, source, "cross"))
    rows = torch.arange(8)
    along, against = torch.zeros(1, 1, 8, 10), torch.zeros(1, 1, 8, 10)
    along[0, 0, rows, (rows * 9 / 7).round().long()] = 1
    against[0, 0, rows, 9 - (rows * 9 / 7).round().long()] = 1
    (monotone,), (reversed_head,) = matcher.measure(along), matcher.measure(against)
    assert monotone.role == "alignment" and monotone.share == 1.0 and monotone.distance < 0.5
    assert reversed_head.scores["alignment"] < 0.3 and reversed_head.role is None


def test_sharpness_counts_links_between_words_and_ignores_special_tokens() -> None:
    source, target = line([None, "어제", "친구", ".", None]), line([None, "friend", "yesterday", "."])
    weights = torch.zeros(1, 4, 5)
    weights[0, [0, 1, 2], [2, 1, 3]] = 1  # crossed: row t generates token t + 1
    assert cross_sharpness(weights, target, source) == 1.0
    diagonal = torch.zeros(1, 4, 5)
    diagonal[0, [0, 1, 2], [0, 0, 4]] = 1  # as sharp, but on the special tokens
    assert cross_sharpness(diagonal, target, source) == 0.0
    assert cross_sharpness(torch.full((2, 4, 5), 0.2), target, source) == pytest.approx(0.2)


@pytest.mark.parametrize("at_once", [1, 1 << 25])
def test_an_edited_previous_token_head_is_recognized(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glassformer.interpret.head_patterns.MAX_WEIGHTS", at_once)

    def looking_back(weights: Tensor) -> Tensor:
        weights = weights.clone()
        weights[:, 2] = torch.eye(weights.shape[-1]).roll(-1, 1)
        weights[:, 2, 0] = torch.eye(weights.shape[-1])[0]
        return weights

    name = "decoder.blocks.1.self_attn"
    model, row = model_of("decoder_only"), ids(1, 9)
    record = observe(model, row, edit={f"{name}.weights": looking_back})
    tokens = line([str(n) for n in row[0].tolist()])
    matcher = matcher_for(record, name, tokens, tokens, "self")
    heads = match_heads(record, name, matcher)
    assert [head.head for head in heads] == list(range(H))
    assert heads[2].role == "previous" and heads[2].scores["previous"] == pytest.approx(1.0)
    other = match_heads(record, "decoder.blocks.0.self_attn", matcher)
    weights = record.weights("decoder.blocks.0.self_attn")
    by_hand = weights[0, :, torch.arange(1, 9), torch.arange(8)].mean(-1)
    assert [head.scores["previous"] for head in other] == pytest.approx(by_hand.tolist(), abs=1e-6)


def test_thumbnails_show_the_largest_weight_of_each_tile() -> None:
    torch.manual_seed(0)
    weights = torch.rand(1, 3, 70, 50)
    small = thumbnails(weights)
    assert small.shape == (3, 32, 32) and small.dtype == torch.uint8
    weights[0, 1, 69, 49] = 1.0
    assert thumbnails(weights)[1, 31, 31] == 255
    small_weights = torch.tensor([[[[0.25, 0.75], [1.0, 0.0]]]])
    assert thumbnails(small_weights)[0].tolist() == [[128, 221], [255, 0]]
