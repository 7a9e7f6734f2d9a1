"""Random requests to tiny models, and the output of each when generated alone."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams
from glassformer.generation.continuous import Request as Job
from glassformer.generation.continuous import Scheduler
from tests.generation.test_greedy import PAD, generate_with

Request = tuple[list[int], dict[str, Any]]


def decode(ids: list[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def settings(rng: random.Random, most: int) -> GenerationConfig:
    """A random generation config: greedy, sampling or beams, with some logits processors."""
    kwargs: dict[str, Any] = {"max_new_tokens": rng.randint(0, most)}
    kind = rng.choice(("greedy", "greedy", "sample", "samples", "beams", "sampled beams"))
    if "sample" in kind:
        kwargs |= {
            "do_sample": True,
            "seed": rng.randrange(1000),
            "temperature": rng.choice((0.7, 1.0, 1.3)),
        }
        kwargs |= {"top_k": rng.choice((0, 5, 20)), "top_p": rng.choice((1.0, 0.9))}
    if kind == "samples":
        kwargs["num_return_sequences"] = rng.randint(2, 4)
    if "beams" in kind:
        kwargs["num_beams"] = rng.randint(2, 4)
        kwargs["num_return_sequences"] = rng.randint(1, kwargs["num_beams"])
        kwargs |= {
            "length_penalty": rng.choice((1.0, 0.6, 0.0)),
            "early_stopping": rng.choice((True, False)),
        }
    processors: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.3}, {"presence_penalty": 1.5}, {"frequency_penalty": -0.5},
        {"logit_bias": ((7, 4.0), (11, -100.0))}, {"no_repeat_ngram_size": 2}, {"stop_strings": ("a", "bc")},
        {"min_new_tokens": min(3, kwargs["max_new_tokens"])}, {"suppress_tokens": (7, 9)},
        {"forced_eos_token_id": 5}, {"min_p": 0.05} if kwargs.get("do_sample") else {},
    )  # fmt: skip
    for processor in processors:
        kwargs |= processor if rng.random() < 0.15 else {}
    return GenerationConfig(**kwargs)


def requests(
    count: int, start_kwargs: dict[str, Any], *, vocab: int = 80, seed: int = 0, most: int = 24
) -> list[Request]:
    """Prompts or sources of any length, each with the fields of its `GenerationParams`."""
    rng = random.Random(seed)
    requests = []
    for _ in range(count):
        ids = [rng.randrange(3, vocab) for _ in range(rng.randint(1, 20))]
        kwargs = {
            "config": settings(rng, most),
            "eos_token_id": rng.choice(([5], [5, 11, 12, 13])),
            "decode": decode,
        }
        kwargs |= {"prefix_ids": [6, 8]} if rng.random() < 0.1 else {}
        requests.append((ids, {**kwargs, **start_kwargs}))
    return requests


def generate_alone(model: nn.Module, request: Request) -> list[GenerationOutput]:
    """What `generate` returns for this request alone."""
    ids, kwargs = request
    inputs = torch.tensor([ids], device=next(model.parameters()).device)
    return generate_with(
        model, inputs, torch.ones_like(inputs, dtype=torch.bool), pad_token_id=PAD, **kwargs
    )[0]


def send(
    scheduler: Scheduler, ids: list[int], *, caller: str | None = None, on_done: Any = None, **params: Any
) -> Job:
    """`submit` with the fields of `GenerationParams` as keywords."""
    return scheduler.submit(ids, GenerationParams(**params), caller=caller, on_done=on_done)
