"""Classifier-free guidance of token models, against transformers' logits processor and by invariants."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers.generation.logits_process import (
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    UnbatchedClassifierFreeGuidanceLogitsProcessor,
)

import glassformer
from glassformer.errors import ConflictError, InvalidValueError, UnsupportedError
from glassformer.generation import (
    GenerationConfig,
    GenerationOutput,
    GenerationParams,
    Prompt,
    generate,
    generate_batched,
)
from glassformer.generation.config import merge_generation_config
from glassformer.generation.generators import RowGenerators
from glassformer.generation.guidance import GuidedDecoder
from glassformer.generation.inference_model import prepare_for_inference
from tests.generation.references import CONFIGS, EOS, VOCAB

NEW = 9
PROMPTS = ([7, 12, 40, 9, 33], [21, 8], [50, 44, 31])
NEGATIVES = ([7, 12], [21, 30, 8, 19], None)  # None: the last token of the prompt


@cache
def pair(family: str) -> tuple[Any, Any]:
    """The transformers model with all parameters redrawn, and ours."""
    torch.manual_seed(11)
    name, kwargs = CONFIGS[family]
    kind = getattr(transformers, name)
    theirs = kind(kind.config_class(**kwargs)).eval()
    with torch.no_grad():
        for value in theirs.parameters():
            value.copy_(torch.randn_like(value) * (1.2 / value.shape[-1] ** 0.5 if value.dim() > 1 else 0.5))
    with TemporaryDirectory() as folder:
        theirs.save_pretrained(Path(folder))
        return theirs, glassformer.load(Path(folder)).model


def prompts() -> list[Prompt]:
    return [
        Prompt(torch.tensor(ids), negative_ids=None if negative is None else torch.tensor(negative))
        for ids, negative in zip(PROMPTS, NEGATIVES, strict=True)
    ]


def run(model: Any, config: GenerationConfig, **options: Any) -> list[list[GenerationOutput]]:
    return generate(model, prompts(), GenerationParams(config=config, **options))


@torch.no_grad()
def guided_scores(theirs: Any, row: int, tokens: list[int], scale: float) -> Tensor:
    """Scores (n, V) of each of the tokens, by transformers' processor, without caches."""
    negative = NEGATIVES[row]
    processor = UnbatchedClassifierFreeGuidanceLogitsProcessor(
        scale, theirs, None if negative is None else torch.tensor([negative]), use_cache=False
    )
    scores = []
    for n in range(len(tokens)):
        ids = torch.tensor([[*PROMPTS[row], *tokens[:n]]])
        scores.append(processor(ids, theirs(ids).logits[:, -1])[0])
    return torch.stack(scores)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("scale", [0.0, 1.0, 3.5])
def test_greedy_guidance_matches_transformers(family: str, scale: float) -> None:
    theirs, ours = pair(family)
    config = GenerationConfig(guidance_scale=scale, max_new_tokens=NEW)
    outputs = run(prepare_for_inference(ours), config)
    for row, (output,) in enumerate(outputs):
        negative = NEGATIVES[row]
        expected = theirs.generate(
            torch.tensor([PROMPTS[row]]), attention_mask=torch.ones(1, len(PROMPTS[row])).long(), top_k=0,
            guidance_scale=scale, max_new_tokens=NEW, do_sample=False, eos_token_id=None, pad_token_id=0,
            negative_prompt_ids=None if negative is None else torch.tensor([negative]),
        )  # fmt: skip
        assert output.ids == expected[0, len(PROMPTS[row]) :].tolist()
        scores = guided_scores(theirs, row, output.ids, scale).log_softmax(-1)
        logprobs = scores.gather(1, torch.tensor(output.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.logprobs), logprobs, atol=1e-4, rtol=1e-4)
    plain = run(ours, GenerationConfig(max_new_tokens=NEW))
    assert ([o.ids for (o,) in plain] == [o.ids for (o,) in outputs]) == (scale == 1)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_sampling_matches_transformers_processors(family: str) -> None:
    theirs, ours = pair(family)
    kwargs: dict[str, Any] = {"temperature": 1.6, "top_k": 20, "top_p": 0.9}
    config = GenerationConfig(**kwargs, guidance_scale=2.0, do_sample=True, max_new_tokens=NEW)
    seeds = [5, 6, 7]
    warpers: list[Any] = [TemperatureLogitsWarper(1.6), TopKLogitsWarper(20), TopPLogitsWarper(0.9)]
    for row, (output,) in enumerate(run(ours, config, seeds=seeds)):
        scores = guided_scores(theirs, row, output.ids, 2.0)
        for warper in warpers:
            scores = warper(None, scores)
        noise = RowGenerators(seeds[row : row + 1])
        clocks = torch.cat([noise.exponential(step[None]) for step in scores])
        assert output.ids == (scores.softmax(-1) / clocks).argmax(-1).tolist()


def test_a_seed_gives_the_same_tokens_alone_and_in_a_batch() -> None:
    _, ours = pair("llama")
    config = GenerationConfig(guidance_scale=2.0, do_sample=True, max_new_tokens=40)
    free = GenerationParams(config=config, seeds=[5, 6, 7])
    # rows that end early are dropped, which must not move the noise of the others
    ends = {
        next(iter(output.ids[3:]))
        for output, *_ in generate(ours, prompts()[:2], replace_seeds(free, [5, 6]))
    }
    params = GenerationParams(config=config, seeds=[5, 6, 7], eos_token_id=sorted(ends))
    together = generate(ours, prompts(), params)
    assert len({len(output.ids) for (output,) in together}) > 1
    for row, seed in enumerate((5, 6, 7)):
        alone = generate(ours, [prompts()[row]], replace_seeds(params, [seed]))
        assert alone[0][0].ids == together[row][0].ids
    other = generate(ours, prompts(), replace_seeds(params, [1, 2, 3]))
    assert [output.ids for (output,) in other] != [output.ids for (output,) in together]


def replace_seeds(params: GenerationParams, seeds: list[int]) -> GenerationParams:
    return GenerationParams(config=params.config, seeds=seeds, eos_token_id=params.eos_token_id)


def test_beam_search_finds_the_best_guided_sequences() -> None:
    theirs, ours = pair("gpt2")
    width = VOCAB  # all first tokens, so that the search over two tokens is exhaustive
    config = GenerationConfig(
        guidance_scale=2.5, num_beams=width, num_return_sequences=5, max_new_tokens=2, length_penalty=0.0
    )
    for row, outputs in enumerate(run(ours, config)):
        totals: dict[tuple[int, int], float] = {}
        for first in range(VOCAB):
            scores = guided_scores(theirs, row, [first, 0], 2.5).log_softmax(-1)
            for second in range(VOCAB):
                totals[first, second] = float(scores[0, first] + scores[1, second])
        best = sorted(totals.items(), key=lambda item: -item[1])[:5]
        assert [tuple(output.ids) for output in outputs] == [ids for ids, _ in best]
        found = torch.tensor([output.score for output in outputs])
        torch.testing.assert_close(found, torch.tensor([score for _, score in best]), atol=1e-4, rtol=1e-4)


def test_beams_stay_together_with_their_negative_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, ours = pair("llama")
    config = GenerationConfig(guidance_scale=2.5, num_beams=4, max_new_tokens=NEW, length_penalty=0.0)
    scores = [outputs[0].score for outputs in run(ours, config)]

    def recomputed() -> list[float]:
        found = []
        for row, outputs in enumerate(run(ours, config)):
            ids = outputs[0].ids
            steps = guided_scores(theirs, row, ids, 2.5).log_softmax(-1)
            found.append(float(steps.gather(1, torch.tensor(ids)[:, None]).sum()))
        return found

    torch.testing.assert_close(torch.tensor(scores), torch.tensor(recomputed()), atol=1e-3, rtol=1e-4)
    # a decoder that reorders only the rows of the prompts reports scores of other sequences
    kept = lambda self, rows: torch.cat((rows, torch.arange(len(rows)) + self.rows))  # noqa: E731
    monkeypatch.setattr(GuidedDecoder, "_both", kept)
    wrong = [outputs[0].score for outputs in run(ours, config)]
    assert max(abs(a - b) for a, b in zip(wrong, recomputed(), strict=True)) > 0.01


def test_batches_of_many_lengths_carry_the_negative_prompts() -> None:
    _, ours = pair("gpt2")
    params = GenerationParams(config=GenerationConfig(guidance_scale=3.0, max_new_tokens=NEW))
    batched = [outputs[0].ids for outputs in generate_batched(ours, prompts() * 2, params, batch_tokens=40)]
    assert batched == [outputs[0].ids for outputs in generate(ours, prompts() * 2, params)]


def test_published_guidance_is_honored() -> None:
    config = merge_generation_config({"guidance_scale": 1.5}, {})
    assert config.guidance_scale == 1.5 and config.decoder_rows == 2


def test_unsupported_combinations_are_refused() -> None:
    _, ours = pair("gpt2")
    config = GenerationConfig(guidance_scale=2.0, max_new_tokens=2)
    with pytest.raises(InvalidValueError, match="3 seeds"):
        run(ours, config, seeds=[1])
    with pytest.raises(ConflictError, match="seed"):
        GenerationParams(config=GenerationConfig(num_beams=2), seeds=[1])
    with pytest.raises(UnsupportedError, match="seeds"):
        list(generate_batched(ours, prompts(), GenerationParams(config=config, seeds=[1, 2, 3])))
    marian = glassformer.tiny("marian")
    with pytest.raises(UnsupportedError, match="guidance"):
        generate(
            marian, torch.tensor([[5, 6]]), GenerationParams(config=config, start_ids=0, eos_token_id=EOS)
        )
