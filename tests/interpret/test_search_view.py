"""Steps and searches lead where the verbs lead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer.errors import InputTooLongError
from glassformer.interpret.search_view import next_step, search_tree
from glassformer.tasks.text_generation import TextGenerator
from glassformer.tasks.translation import Translator
from tests.tasks.tiny_models import KOREAN, ROWS, reversal_model, save_language_model


def walked(bundle: Any, text: str, settings: dict[str, Any]) -> tuple[str, list[int]]:
    """Always the first word, until nothing comes any more."""
    written: list[int] = []
    while not (
        step := next_step(bundle, text=text, generated_ids=written, top=3, parameters=settings)
    ).finished:
        assert step.position == len(written) and len(step.tokens) == len(written)
        written.append(step.predictions[0].id)
    return step.text, written


@pytest.mark.parametrize(
    "settings", [{}, {"repetition_penalty": 1.7}, {"min_new_tokens": 3}, {"max_new_tokens": 2}]
)
def test_first_candidate_of_every_step_equals_translate(settings: dict[str, Any]) -> None:
    bundle = glassformer.load(reversal_model())
    for text in ROWS[-3:]:
        (plain,) = bundle.translate([text], num_beams=1, **settings)
        assert walked(bundle, text, settings)[0] == plain


@pytest.mark.parametrize("settings", [{}, {"no_repeat_ngram_size": 2}, {"suppress_tokens": (40, 41)}])
def test_first_candidate_of_every_step_equals_generate(settings: dict[str, Any], tmp_path: Path) -> None:
    bundle = glassformer.load(save_language_model(tmp_path / "model", max_len=64))
    settings = {"max_new_tokens": 12, **settings}
    for text in ("the old", KOREAN[:6], ""):
        (plain,) = bundle.generate([text], **settings)
        assert walked(bundle, text, settings)[0] == plain


def test_steps_report_the_models_logits_and_the_end() -> None:
    bundle = glassformer.load(reversal_model())
    text = ROWS[-1]
    step = next_step(bundle, text=text, top=10_000)
    total = sum(word.probability for word in step.predictions)
    assert total == pytest.approx(1.0, abs=1e-5)
    best = step.predictions[0]
    assert best.logit - step.logsumexp == pytest.approx(
        search_tree(bundle, text=text, num_beams=1).nodes[0].logprob, abs=1e-5
    )
    assert bundle.tokenizer is not None and bundle.tokenizer.eos_id is not None
    over = next_step(bundle, text=text, generated_ids=[best.id, bundle.tokenizer.eos_id])
    assert over.finished and over.text == best.text.strip()
    # generation can continue from a token that is not the most likely one
    other = step.predictions[3].id
    assert next_step(bundle, text=text, generated_ids=[other]).tokens[0].id == other


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 0.6])
def test_search_results_equal_translate_and_scores_add_up(beams: int, penalty: float) -> None:
    bundle = glassformer.load(reversal_model())
    options: dict[str, Any] = {"num_beams": beams, "length_penalty": penalty}
    for text in (ROWS[-2], ROWS[5]):
        search = search_tree(bundle, text=text, **options)
        output = Translator(bundle, num_return_sequences=beams, **options)(text)
        reported = [(one.text, pytest.approx(one.score, abs=1e-5)) for one in search.results]
        assert reported == [(one.text, one.score) for one in (output, *output.alternatives)]
        nodes = search.nodes
        for result in search.results:
            (last,) = [node for node in nodes if node.result_rank == result.rank]
            path, node = [last], last
            while node.parent is not None:
                node = nodes[node.parent]
                path.insert(0, node)
            ids = [one.token for one in path]
            assert tuple(ids[: len(result.ids)]) == result.ids and result.reason == last.reason
            total = sum(one.logprob for one in path)
            assert last.score == pytest.approx(total, abs=1e-5)
            assert result.score == pytest.approx(total / last.length_term, abs=1e-5)
            assert "".join(one.text for one in path).strip().startswith(result.text)


def test_search_of_a_language_model_decodes_characters_of_several_tokens(tmp_path: Path) -> None:
    bundle = glassformer.load(save_language_model(tmp_path / "model", max_len=64))
    result = search_tree(bundle, text=KOREAN[:5], num_beams=2, max_new_tokens=6)
    output = TextGenerator(bundle, num_beams=2, max_new_tokens=6)(KOREAN[:5])
    assert result.results[0].text == output.text
    assert result.score_formula == "Σ log p / n^1"
    assert all(isinstance(node.text, str) and node.text for node in result.nodes)


def test_steps_end_at_stop_strings_and_at_the_length_limit(tmp_path: Path) -> None:
    bundle = glassformer.load(save_language_model(tmp_path / "model", max_len=4096))
    settings = {"max_new_tokens": 12, "stop_strings": bundle.generate(["the old"], max_new_tokens=12)[0][2:4]}
    (plain,) = bundle.generate(["the old"], **settings)
    assert walked(bundle, "the old", settings)[0] == plain
    for requested in (search_tree, next_step):
        with pytest.raises(InputTooLongError) as error:
            requested(bundle, text="the old " * 1000)
        assert error.value.limit == 1024
