"""Head patterns over the corpus equal averages of single traces."""

from __future__ import annotations

import math
from statistics import mean, stdev

import pytest

import glassformer
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import corpus as corpus_module
from glassformer.interpret.corpus import CorpusPatterns, corpus, corpus_inputs
from glassformer.interpret.head_patterns import describe_heads
from glassformer.interpret.trace import trace_model
from tests.interpret.models import tiny_bundle


def test_every_language_has_every_sentence() -> None:
    assert list(corpus()) == ["en", "de", "fr", "ko"]
    for sentences in corpus().values():
        assert len(sentences) == len({*sentences}) == 24 and all(sentences)


def test_averages_equal_those_of_single_traces() -> None:
    bundle = glassformer.load("pocket")
    patterns = CorpusPatterns(bundle)
    patterns.measure(2)
    result = patterns.measure(3)
    inputs = corpus_inputs(bundle)
    assert result.total == len(inputs) and result.count == 3
    traces = [trace_model(bundle, input) for input in inputs[:3]]
    infos = [describe_heads(trace) for trace in traces]
    for n in (3, 7):
        for head in (0, 4):
            ours = result.attentions[n].heads[head]
            theirs = [info.attentions[n].heads[head] for info in infos]
            share = ours.shares[0]
            values = [one.scores[share.pattern] for one in theirs]
            assert share.mean == pytest.approx(mean(values))
            margin = 1.96 * stdev(values) / math.sqrt(3)
            assert share.low == pytest.approx(max(0, share.mean - margin))
            assert share.high == pytest.approx(min(1, share.mean + margin))
            assert sum(ours.roles.values()) == 3
            best = ours.examples[0]
            trace = next(
                t
                for t in traces
                if best.keys == tuple(token.piece for token in t.sequence(t.attentions()[n].keys).tokens)
            )
            weights = trace.record.weights(result.attentions[n].name)[0, head]
            assert float(weights[best.query, best.key]) == pytest.approx(best.weight)
    with pytest.raises(InvalidValueError):
        patterns.measure(100)


def test_a_sentence_that_fails_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns, strongest = CorpusPatterns(tiny_bundle("gpt2")), corpus_module._strongest
    monkeypatch.setattr(corpus_module, "_strongest", lambda trace: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        patterns.measure(1)
    monkeypatch.setattr(corpus_module, "_strongest", strongest)
    assert patterns.measure(2) == CorpusPatterns(tiny_bundle("gpt2")).measure(2)


def test_models_of_images_have_no_corpus() -> None:
    with pytest.raises(UnsupportedError):
        corpus_inputs(tiny_bundle("vit"))
