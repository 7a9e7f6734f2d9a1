"""Prompts with the same beginning are prefilled once, with the same results."""

from __future__ import annotations

import pytest
import torch

from glassformer.generation import GenerationConfig, GenerationParams
from glassformer.generation.continuous import Scheduler
from glassformer.generation.continuous.prefix_cache import BLOCK, PrefixCache
from glassformer.inference.attention import DynamicKVCache
from tests.generation.test_greedy import model_of

SYSTEM = [(7 * n) % 90 + 5 for n in range(3 * BLOCK + 5)]
PROMPTS = [
    [*SYSTEM, 9, 11],
    [*SYSTEM, 8],
    [*SYSTEM, 9, 11],
    SYSTEM[:BLOCK],
    [*SYSTEM[: BLOCK + 3], 6],
    [5, 6],
]


def _run(model, **options):
    scheduler = Scheduler(model, slots=4, **options)
    try:
        results = []
        for seed, ids in enumerate(PROMPTS):  # one after another, so that later prompts find earlier ones
            for own in ({}, {"do_sample": True, "seed": seed}, {"num_beams": 2}):
                config = GenerationConfig(max_new_tokens=6, **own)
                results.append(scheduler.submit(ids, GenerationParams(config=config)).result(60)[0])
        return results, scheduler.stats()
    finally:
        scheduler.close()


@pytest.mark.parametrize("family", ["llama", "mistral", "falcon"])
def test_results_equal_those_without_the_cache(family):
    model = model_of(family)
    cached, stats = _run(model)
    plain, without = _run(model, enable_prefix_caching=False)
    assert [output.ids for output in cached] == [output.ids for output in plain]
    for first, second in zip(cached, plain, strict=True):
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert without.prefix_cache_hits == without.prefix_cache_queries == 0
    read = 3 * sum(map(len, PROMPTS))
    assert stats.prefix_cache_queries == read == without.prompt_tokens
    assert stats.prompt_tokens == read - stats.prefix_cache_hits
    # whole blocks are found, but never the last token, and nothing by the first request
    assert stats.prefix_cache_hits == BLOCK * (3 * (3 + 3 + 3 + 0 + 1 + 0) - 3)


def test_least_recently_used_blocks_are_dropped():
    cache = PrefixCache(4 * BLOCK)

    def past(length):
        filled = DynamicKVCache()
        filled.append(0, torch.zeros(1, 1, length, 2), torch.zeros(1, 1, length, 2))
        return filled

    first, second = list(range(3 * BLOCK)), list(range(1000, 1000 + 2 * BLOCK))
    cache.store(first, past(len(first)))
    assert cache.find([*first, 1]).length == 3 * BLOCK and cache.find(first).length == 2 * BLOCK
    cache.store(second, past(len(second)))
    assert len(cache) == 4 * BLOCK
    assert cache.find([*first, 1]).length == 2 * BLOCK and cache.find([*second, 1]).length == 2 * BLOCK
    cache.store(list(range(5000, 5000 + 9 * BLOCK)), past(9 * BLOCK))
    assert len(cache) == 4 * BLOCK
