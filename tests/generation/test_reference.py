"""Everything that is written, against the reference library: token for token, score for score."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.generation import GenerationConfig, GenerationOutput
from glassformer.generation.inference_model import prepare_for_inference
from tests.generation.references import CONFIGS, EOS, generated, lively_ends, padded, pair, rows
from tests.generation.test_greedy import ask

MOST = 14
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "greedy-penalty": {"repetition_penalty": 1.7, "no_repeat_ngram_size": 2},
    "greedy-least": {"min_new_tokens": 9},
    "greedy-forced": {"forced_eos_token_id": EOS},
    "beams-2": {"num_beams": 2, "num_return_sequences": 2},
    "beams-4": {"num_beams": 4, "num_return_sequences": 3},
    "beams-5": {"num_beams": 5, "length_penalty": 0.6, "num_return_sequences": 5},
    "never": {"num_beams": 4, "early_stopping": "never", "length_penalty": 2.0, "num_return_sequences": 4},
    "never-2": {"num_beams": 2, "early_stopping": "never", "length_penalty": 2.0, "num_return_sequences": 2},
    "never-short": {"num_beams": 3, "early_stopping": "never", "length_penalty": -0.5},
    "early": {"num_beams": 4, "early_stopping": True, "length_penalty": 2.0, "num_return_sequences": 4},
    "no-repeat": {"num_beams": 4, "no_repeat_ngram_size": 2, "num_return_sequences": 2},
    "penalty": {"num_beams": 4, "repetition_penalty": 1.5, "num_return_sequences": 2},
    "least": {"num_beams": 4, "min_new_tokens": 8, "num_return_sequences": 2},
    "marian's": {
        "num_beams": 4, "forced_eos_token_id": EOS, "renormalize_logits": True, "bad_words_ids": [[0], [9]],
        "num_return_sequences": 2,
    },
}  # fmt: skip


def ours_for(words: dict[str, Any]) -> GenerationConfig:
    words = dict(words)
    suppressed = tuple(token for (token,) in words.pop("bad_words_ids", ()))
    return GenerationConfig(**words, max_new_tokens=MOST, suppress_tokens=suppressed)


def with_end(words: dict[str, Any], end: int) -> dict[str, Any]:
    return {**words, "forced_eos_token_id": end} if "forced_eos_token_id" in words else words


def flat(found: list[list[GenerationOutput]]) -> list[GenerationOutput]:
    return [text for texts in found for text in texts]


@pytest.mark.parametrize("family", CONFIGS)
def test_the_reference_writes_the_same_with_the_same_scores(family: str) -> None:
    theirs, plain = pair(family)
    ours = prepare_for_inference(plain)
    config = theirs.config
    given = rows()
    side = "right" if config.is_encoder_decoder else "left"
    endings, lengths = set(), set()
    some = lively_ends(family)
    cases = [(name, with_end(words, some[0]), some[:1]) for name, words in SETTINGS.items()]
    cases += [
        (f"{name}, two ends", SETTINGS[name], some) for name in ("beams-4", "early", "never", "never-2")
    ]
    told: dict[str, list[list[int]]] = {}
    for name, words, ends in cases:
        batches = [given]
        if not config.is_encoder_decoder and ("repeat" in name or "penalty" in name):
            # the reference takes a prompt's padding for tokens that are repeated
            batches = [[row] for row in given]
        for batch in batches:
            ids, real = padded(batch, side, config.pad_token_id)
            expected, scores = generated(theirs, ids, real, ends, max_new_tokens=MOST, **words)
            found = flat(
                ask(
                    ours,
                    ids,
                    real,
                    config=ours_for(words),
                    eos_token_id=ends,
                    pad_token_id=config.pad_token_id,
                )
            )
            assert [text.ids for text in found] == expected, name
            torch.testing.assert_close(
                torch.tensor([text.score for text in found]), scores, atol=1e-4, rtol=1e-4, msg=name
            )
            told.setdefault(name, []).extend(expected)
            endings |= {text.finish_reason for text in found}
            lengths |= {len(text.ids) for text in found}
    assert endings == {"end", "length"} and len(lengths) > 4, "too little happened to compare anything"
    if config.is_encoder_decoder:  # then the stopping rules matter, which only happens with short texts
        assert told["early, two ends"] != told["never, two ends"]


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
@pytest.mark.parametrize("beams", [1, 4])
def test_a_forced_beginning_is_the_references(family: str, beams: int) -> None:
    theirs, ours = pair(family)
    config = theirs.config
    ids, real = padded(rows(), "right", config.pad_token_id)
    words: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams}
    options: dict[str, Any] = {"eos_token_id": EOS, "pad_token_id": config.pad_token_id}
    settings = GenerationConfig(**words, max_new_tokens=MOST)
    # one forced token is written; a longer start is only read
    expected, scores = generated(theirs, ids, real, max_new_tokens=MOST, forced_bos_token_id=17, **words)
    found = flat(ask(ours, ids, real, config=settings, prefix_ids=[17], **options))
    assert [text.ids for text in found] == expected
    assert {text.ids[0] for text in found} == {17} and {text.logprobs[0] for text in found} == {0.0}
    torch.testing.assert_close(torch.tensor([text.score for text in found]), scores, atol=1e-4, rtol=1e-4)
    told = GenerationConfig(**words, max_new_tokens=MOST, forced_bos_token_id=17)
    assert [text.ids for text in flat(ask(ours, ids, real, config=told, **options))] == expected

    start = [config.decoder_start_token_id, 17, 23]
    expected, scores = generated(
        theirs, ids, real, max_new_tokens=MOST, decoder_input_ids=torch.tensor([start] * len(ids)), **words
    )
    found = flat(ask(ours, ids, real, config=settings, start_ids=start, **options))
    assert [text.ids for text in found] == expected
    torch.testing.assert_close(torch.tensor([text.score for text in found]), scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
def test_chance_draws_what_the_reference_draws(family: str) -> None:
    """The same processors give the same probabilities, and so the same seed the same tokens."""
    theirs, ours = pair(family)
    config = theirs.config
    ids, real = padded(rows(), "right" if config.is_encoder_decoder else "left", config.pad_token_id)
    for words in (
        {"temperature": 1.4},
        {"top_k": 7, "num_return_sequences": 3},
        {"top_p": 0.6, "temperature": 0.8},
        {"min_p": 0.2, "top_k": 20, "top_p": 0.95, "temperature": 1.5},
        {"num_beams": 3, "top_k": 1},
        {"num_beams": 3, "top_p": 0.01},
        {"num_beams": 3, "min_p": 1.0},
        {"num_beams": 3, "top_p": 0.9, "temperature": 1.3, "num_return_sequences": 3},
    ):
        settings = GenerationConfig(
            **words, do_sample=True, max_new_tokens=MOST, seed=11, min_new_tokens=MOST
        )
        found = ask(ours, ids, real, config=settings, eos_token_id=EOS, pad_token_id=config.pad_token_id)
        torch.manual_seed(11)
        # no row ends early here, so that both draw for as many rows at every step
        expected, scores = generated(
            theirs, ids, real, max_new_tokens=MOST, min_new_tokens=MOST, **{**words, "do_sample": True}
        )
        best_first = []
        size = words.get("num_return_sequences", 1)
        for n in range(0, len(expected), size):
            group = zip(expected[n : n + size], scores[n : n + size].tolist(), strict=True)
            best_first.append(sorted(group, key=lambda one: -one[1]))
        assert [[text.ids for text in texts] for texts in found] == [
            [tokens for tokens, _ in group] for group in best_first
        ], words
        torch.testing.assert_close(
            torch.tensor([text.score for text in flat(found)]),
            torch.tensor([score for group in best_first for _, score in group]),
            atol=1e-4,
            rtol=1e-4,
        )
