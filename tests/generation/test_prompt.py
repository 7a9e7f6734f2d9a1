"""Prompts with embeddings in place of tokens, and with explicit position ids."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.core.inputs import TextInputs
from glassformer.errors import (
    ConflictError,
    InputTooLongError,
    InvalidValueError,
    ShapeError,
    UnsupportedError,
)
from glassformer.generation import (
    EmbeddingSpan,
    GenerationConfig,
    GenerationOutput,
    GenerationParams,
    Prompt,
    generate,
    generate_batched,
    prefill,
)
from glassformer.generation.continuous import Scheduler
from glassformer.generation.continuous.prefix_cache import BLOCK, PrefixCache
from glassformer.generation.continuous.runner import CHUNK
from glassformer.inference.attention import DynamicKVCache
from tests.generation.test_engine import model_for
from tests.generation.test_greedy import model_of

# a position table; scaled embeddings and windows; rotary positions, alone, with windows and of two kinds
FAMILIES = ("gpt2", "gemma2", "llama", "mistral", "gemma3")
PLACEHOLDER = 3
SEARCHES: tuple[dict[str, Any], ...] = (
    {},
    {"do_sample": True, "seed": 1, "num_return_sequences": 2},
    {"num_beams": 3},
)


def ids_of(length: int, seed: int = 0) -> Tensor:
    return torch.randint(4, 80, (length,), generator=torch.Generator().manual_seed(seed))


def with_spans(
    model: Any, ids: Tensor, *ranges: tuple[int, int], move: int = 0, key: Any = None, **fields: Any
) -> Prompt:
    """The same prompt with the embeddings of some ids as spans, at offsets moved by `move`."""
    vectors, placeholders = model.embed.token_vectors(ids[None])[0].detach(), ids.clone()
    spans = []
    for start, end in ranges:
        placeholders[start + move : end + move] = PLACEHOLDER
        spans.append(EmbeddingSpan(start + move, vectors[start:end], key))
    if move:
        placeholders[ranges[0][0]] = ids[ranges[0][0]]
    return Prompt(placeholders, tuple(spans), **fields)


def params(**config: Any) -> GenerationParams:
    return GenerationParams(config=GenerationConfig(max_new_tokens=6, **config))


def continuous(model: Any, prompts: list[Any], search: GenerationParams, **options: Any) -> Any:
    """Outputs of the scheduler, for all prompts at once, and its counts."""
    scheduler = Scheduler(model, slots=16, **options)
    try:
        with scheduler._changed:  # admitted together, so that every call has the same batches
            requests = [scheduler.submit(prompt, search) for prompt in prompts]
        return [request.result(120) for request in requests], scheduler.stats()
    finally:
        scheduler.close()


def plain(outputs: list[list[GenerationOutput]]) -> list[Any]:
    return [[(output.ids, output.logprobs, output.score) for output in group] for group in outputs]


@pytest.mark.parametrize("search", SEARCHES, ids=("greedy", "samples", "beams"))
@pytest.mark.parametrize("family", FAMILIES)
def test_spans_of_token_embeddings_give_the_same_output_as_ids(family: str, search: dict[str, Any]) -> None:
    model, options = model_of(family), params(**search)
    rows = [ids_of(length, seed) for seed, length in enumerate((9, 5, 12))]
    ranges = ([(2, 5), (5, 7)], [(0, 5)], [])
    spans = [with_spans(model, ids, *own) for ids, own in zip(rows, ranges, strict=True)]
    texts = [Prompt(ids) for ids in rows]
    expected = plain(generate(model, texts, options))
    assert plain(generate(model, spans, options)) == expected
    assert plain(list(generate_batched(model, spans, options))) == plain(
        list(generate_batched(model, [ids.tolist() for ids in rows], options))
    )
    moved = [with_spans(model, rows[0], (2, 5), move=1), *texts[1:]]
    different = plain(generate(model, moved, options))
    assert different[0] != expected[0] and different[2] == expected[2]
    outputs, _ = continuous(model, spans, options)
    assert plain(outputs) == plain(continuous(model, [ids.tolist() for ids in rows], options)[0])


@pytest.mark.parametrize("prefix_caching", [False, True])
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_spans_cut_by_chunks_and_found_in_the_prefix_cache(family: str, prefix_caching: bool) -> None:
    model, options = model_of(family), params(do_sample=True, seed=2)
    ids = ids_of(2 * CHUNK + 20)
    span = (CHUNK - 7, 2 * CHUNK + 18)  # cut by two chunk boundaries
    prompt, moved = (with_spans(model, ids, span, move=move, key=b"%d" % move) for move in (0, 1))

    def one_after_another(prompts: list[Any]) -> tuple[list[Any], list[int]]:
        scheduler, outputs, hits = Scheduler(model, slots=4, enable_prefix_caching=prefix_caching), [], []
        try:
            for item in prompts:
                outputs.append(scheduler.submit(item, options).result(120))
                hits.append(scheduler.stats().prefix_cache_hits)
        finally:
            scheduler.close()
        return plain(outputs), hits

    expected, _ = one_after_another([ids, ids])
    outputs, hits = one_after_another([prompt, prompt, moved])
    assert outputs[:2] == expected
    assert outputs[2] != expected[0]
    assert one_after_another([moved])[0][0][0][0] == outputs[2][0][0]
    whole, before = (len(ids) - 1) // BLOCK * BLOCK, span[0] // BLOCK * BLOCK
    assert hits == ([0, whole, whole + before] if prefix_caching else [0, 0, 0])


def test_prompts_with_equal_ids_and_different_spans_share_only_blocks_before_them() -> None:
    ids, span = ids_of(4 * BLOCK + 1), EmbeddingSpan(BLOCK + 5, torch.zeros(7, 4))

    def keys(key: bytes | None, positions: Tensor | None = None) -> Any:
        return Prompt(ids, (replace(span, key=key),), positions).cache_keys()

    cache, past = PrefixCache(64 * BLOCK), DynamicKVCache()
    past.append(0, torch.zeros(1, 1, len(ids), 2), torch.zeros(1, 1, len(ids), 2))
    cache.store(keys(b"a"), past)
    assert cache.find(keys(b"a")).length == 4 * BLOCK
    shared = (keys(b"b"), keys(None), ids.tolist())
    assert [cache.find(other).length for other in shared] == [BLOCK] * 3
    assert cache.find(keys(b"a", torch.arange(len(ids)))).length == 0
    cache.store(keys(None), past)
    cache.store(ids.tolist(), past)
    assert cache.find(keys(b"b")).length == cache.find(keys(None)).length == BLOCK


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2"])
def test_explicit_positions_are_those_of_the_model(family: str) -> None:
    model = model_of(family)
    rows = [ids_of(9), ids_of(6, 1)]
    gaps = torch.tensor([0, 1, 2, 2, 2, 3, 7, 8, 9])
    usual = [Prompt(ids, positions=torch.arange(len(ids))) for ids in rows]
    prompts = [Prompt(rows[0], positions=gaps), Prompt(rows[1])]
    for search in SEARCHES:
        options = params(**search)
        expected = generate(model, [Prompt(ids) for ids in rows], options)
        assert plain(generate(model, usual, options)) == plain(expected)
        spread = generate(model, prompts, options)
        assert plain(spread[:1]) != plain(expected[:1]) and plain(spread[1:]) == plain(expected[1:])
        if not options.config.do_sample:  # the seed of a request is its own
            outputs, _ = continuous(model, prompts, options)
            assert [[o.ids for o in group] for group in outputs] == [
                [o.ids for o in group] for group in spread
            ]
    # every step against the model without a cache, whose positions go on after the largest
    (output,) = generate(model, prompts[:1], params())[0]
    for n, logprob in enumerate(output.logprobs):
        ids = torch.cat((rows[0], torch.tensor(output.ids[:n], dtype=torch.long)))[None]
        positions = torch.cat((gaps, torch.arange(10, 10 + n)))[None]
        with torch.no_grad():
            logits = model(TextInputs(ids, positions=positions))[0, -1]
        assert logits.log_softmax(-1).max().item() == pytest.approx(logprob, abs=1e-4)


def test_generation_ends_with_the_position_table() -> None:
    model, ids = model_of("gpt2"), ids_of(6)
    prompt = Prompt(ids, positions=torch.arange(6) + model.embed.position.max_len - 8)  # two are left
    outputs = generate(model, [prompt], params()), continuous(model, [prompt], params())[0]
    assert [len(output.logprobs) for ((output,),) in outputs] == [3, 3]  # the last one is never an input


def test_positions_are_kept_when_chunks_are_cut() -> None:
    model, ids = model_of("llama"), ids_of(CHUNK + 40)
    prompt = Prompt(ids, positions=torch.arange(len(ids)) // 2)
    outputs, _ = continuous(model, [prompt, Prompt(ids)], params())
    spread, usual = generate(model, [prompt, Prompt(ids)], params())
    assert [group[0].ids for group in outputs] == [spread[0].ids, usual[0].ids]
    assert outputs[0][0].logprobs == pytest.approx(spread[0].logprobs, abs=1e-4)
    assert spread[0].logprobs != usual[0].logprobs


def test_invalid_prompts_raise_typed_errors() -> None:
    ids, model = ids_of(6), model_of("gpt2")
    width = model.embed.token.embedding_dim
    for offset in (-1, 5, 7):
        with pytest.raises(InvalidValueError, match=r"EmbeddingSpan\.offset"):
            Prompt(ids, (EmbeddingSpan(offset, torch.zeros(2, width)),))
    spans = EmbeddingSpan(0, torch.zeros(3, width)), EmbeddingSpan(2, torch.zeros(2, width))
    for overlapping in (spans, spans[::-1]):
        with pytest.raises(ConflictError, match="overlap"):
            Prompt(ids, overlapping)
    with pytest.raises(ShapeError, match=r"Prompt\.positions"):
        Prompt(ids, positions=torch.arange(5))
    with pytest.raises(InvalidValueError, match=r"Prompt\.positions"):
        Prompt(ids, positions=torch.arange(6) - 1)
    with pytest.raises(ShapeError, match=r"Prompt\.ids"):
        Prompt(ids[None])
    wrong = Prompt(ids, (EmbeddingSpan(1, torch.zeros(2, width + 1)),))
    far = Prompt(ids, positions=torch.arange(6) + model.embed.position.max_len - 5)
    scheduler = Scheduler(model, slots=2)
    try:
        for prompt, error in ((wrong, ShapeError), (far, InputTooLongError)):
            with pytest.raises(error):
                generate(model, [prompt], params())
            with pytest.raises(error):
                scheduler.submit(prompt, params())
    finally:
        scheduler.close()
    prompt = Prompt(ids, (spans[0],))
    for family in ("t5", "lstm-text"):
        other, _ = model_for(family)
        with pytest.raises(UnsupportedError, match="in a prompt"):
            prefill(
                other,
                ids[None],
                torch.ones(1, 6, dtype=torch.bool),
                start_ids=None,
                capacity=1,
                prompts=[prompt],
            )
