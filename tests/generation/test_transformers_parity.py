"""Greedy decoding, beam search and sampling match transformers: tokens and scores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.generation import GenerationConfig, GenerationOutput
from glassformer.generation.inference_model import prepare_for_inference
from tests.generation.references import CONFIGS, EOS, padded, pair, reference_generate, rows, varied_eos_ids
from tests.generation.test_greedy import generate_with

MAX_NEW_TOKENS = 14
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
    "bias": {"sequence_bias": {(7,): 6.0, (30,): -4.5}, "repetition_penalty": 1.7},
    "beam-bias": {"sequence_bias": {(7,): 1.0, (30,): -4.5}, "num_beams": 3, "num_return_sequences": 2},
    "penalty": {"num_beams": 4, "repetition_penalty": 1.5, "num_return_sequences": 2},
    "least": {"num_beams": 4, "min_new_tokens": 8, "num_return_sequences": 2},
    "marian's": {
        "num_beams": 4, "forced_eos_token_id": EOS, "renormalize_logits": True, "bad_words_ids": [[0], [9]],
        "num_return_sequences": 2,
    },
}  # fmt: skip


def our_config(kwargs: dict[str, Any]) -> GenerationConfig:
    kwargs = dict(kwargs)
    suppressed = tuple(token for (token,) in kwargs.pop("bad_words_ids", ()))
    bias = tuple((token, value) for (token,), value in kwargs.pop("sequence_bias", {}).items())
    return GenerationConfig(
        **kwargs, max_new_tokens=MAX_NEW_TOKENS, suppress_tokens=suppressed, logit_bias=bias
    )


def with_end(kwargs: dict[str, Any], end: int) -> dict[str, Any]:
    return {**kwargs, "forced_eos_token_id": end} if "forced_eos_token_id" in kwargs else kwargs


def flatten(outputs: list[list[GenerationOutput]]) -> list[GenerationOutput]:
    return [text for texts in outputs for text in texts]


@pytest.mark.parametrize("family", CONFIGS)
def test_generation_matches_transformers(family: str) -> None:
    theirs, plain = pair(family)
    ours = prepare_for_inference(plain)
    config = theirs.config
    prompts = rows()
    side = "right" if config.is_encoder_decoder else "left"
    endings, lengths = set(), set()
    eos_ids = varied_eos_ids(family)
    cases = [(name, with_end(kwargs, eos_ids[0]), eos_ids[:1]) for name, kwargs in SETTINGS.items()]
    cases += [
        (f"{name}, two ends", SETTINGS[name], eos_ids) for name in ("beams-4", "early", "never", "never-2")
    ]
    reported: dict[str, list[list[int]]] = {}
    for name, kwargs, ends in cases:
        batches = [prompts]
        if not config.is_encoder_decoder and ("repeat" in name or "penalty" in name or name == "bias"):
            # transformers counts a prompt's padding as repeated tokens
            batches = [[row] for row in prompts]
        for batch in batches:
            ids, mask = padded(batch, side, config.pad_token_id)
            expected, scores = reference_generate(
                theirs, ids, mask, ends, max_new_tokens=MAX_NEW_TOKENS, **kwargs
            )
            outputs = flatten(
                generate_with(
                    ours,
                    ids,
                    mask,
                    config=our_config(kwargs),
                    eos_token_id=ends,
                    pad_token_id=config.pad_token_id,
                )
            )
            assert [text.ids for text in outputs] == expected, name
            torch.testing.assert_close(
                torch.tensor([text.score for text in outputs]), scores, atol=1e-4, rtol=1e-4, msg=name
            )
            reported.setdefault(name, []).extend(expected)
            endings |= {text.finish_reason for text in outputs}
            lengths |= {len(text.ids) for text in outputs}
    assert endings == {"end", "length"} and len(lengths) > 4, "the outputs are too uniform to compare"
    if config.is_encoder_decoder:  # the stopping criteria only matter for short outputs
        assert reported["early, two ends"] != reported["never, two ends"]


@pytest.mark.parametrize("family", ["marian", "bart", "t5"])
@pytest.mark.parametrize("beams", [1, 4])
def test_forced_prefix_matches_transformers(family: str, beams: int) -> None:
    theirs, ours = pair(family)
    config = theirs.config
    ids, mask = padded(rows(), "right", config.pad_token_id)
    kwargs: dict[str, Any] = {"num_beams": beams, "num_return_sequences": beams}
    options: dict[str, Any] = {"eos_token_id": EOS, "pad_token_id": config.pad_token_id}
    settings = GenerationConfig(**kwargs, max_new_tokens=MAX_NEW_TOKENS)
    # a forced token is part of the output; start tokens are not
    expected, scores = reference_generate(
        theirs, ids, mask, max_new_tokens=MAX_NEW_TOKENS, forced_bos_token_id=17, **kwargs
    )
    outputs = flatten(generate_with(ours, ids, mask, config=settings, prefix_ids=[17], **options))
    assert [text.ids for text in outputs] == expected
    assert {text.ids[0] for text in outputs} == {17} and {text.logprobs[0] for text in outputs} == {0.0}
    torch.testing.assert_close(torch.tensor([text.score for text in outputs]), scores, atol=1e-4, rtol=1e-4)
    forced = GenerationConfig(**kwargs, max_new_tokens=MAX_NEW_TOKENS, forced_bos_token_id=17)
    assert [
        text.ids for text in flatten(generate_with(ours, ids, mask, config=forced, **options))
    ] == expected

    start = [config.decoder_start_token_id, 17, 23]
    expected, scores = reference_generate(
        theirs,
        ids,
        mask,
        max_new_tokens=MAX_NEW_TOKENS,
        decoder_input_ids=torch.tensor([start] * len(ids)),
        **kwargs,
    )
    outputs = flatten(generate_with(ours, ids, mask, config=settings, start_ids=start, **options))
    assert [text.ids for text in outputs] == expected
    torch.testing.assert_close(torch.tensor([text.score for text in outputs]), scores, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", CONFIGS)
def test_sampling_matches_transformers(family: str) -> None:
    """The same processors and the same seed give the same tokens."""
    theirs, ours = pair(family)
    config = theirs.config
    ids, mask = padded(rows(), "right" if config.is_encoder_decoder else "left", config.pad_token_id)
    for kwargs in (
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
            **kwargs, do_sample=True, max_new_tokens=MAX_NEW_TOKENS, seed=11, min_new_tokens=MAX_NEW_TOKENS
        )
        outputs = generate_with(
            ours, ids, mask, config=settings, eos_token_id=EOS, pad_token_id=config.pad_token_id
        )
        torch.manual_seed(11)
        # no row ends early, so both sample the same number of rows at every step
        expected, scores = reference_generate(
            theirs,
            ids,
            mask,
            max_new_tokens=MAX_NEW_TOKENS,
            min_new_tokens=MAX_NEW_TOKENS,
            **{**kwargs, "do_sample": True},
        )
        best_first = []
        size = kwargs.get("num_return_sequences", 1)
        for n in range(0, len(expected), size):
            group = zip(expected[n : n + size], scores[n : n + size].tolist(), strict=True)
            best_first.append(sorted(group, key=lambda pair: -pair[1]))
        assert [[text.ids for text in texts] for texts in outputs] == [
            [tokens for tokens, _ in group] for group in best_first
        ], kwargs
        torch.testing.assert_close(
            torch.tensor([text.score for text in flatten(outputs)]),
            torch.tensor([score for group in best_first for _, score in group]),
            atol=1e-4,
            rtol=1e-4,
        )
