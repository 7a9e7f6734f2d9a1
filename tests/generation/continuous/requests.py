"""Random requests to tiny models, and what each of them is answered alone."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from glassformer.generation import GenerationConfig, GenerationOutput, GenerationParams
from glassformer.generation.continuous import Request as Job
from glassformer.generation.continuous import Scheduler
from tests.generation.test_greedy import PAD, ask

Request = tuple[list[int], dict[str, Any]]


def decode(ids: list[int]) -> str:
    return "".join(chr(97 + token % 26) for token in ids)


def settings(draw: random.Random, most: int) -> GenerationConfig:
    """Every way to write, and a few of the words that bend it."""
    words: dict[str, Any] = {"max_new_tokens": draw.randint(0, most)}
    kind = draw.choice(("greedy", "greedy", "sample", "samples", "beams", "drawn beams"))
    if "sample" in kind or "drawn" in kind:
        words |= {
            "do_sample": True,
            "seed": draw.randrange(1000),
            "temperature": draw.choice((0.7, 1.0, 1.3)),
        }
        words |= {"top_k": draw.choice((0, 5, 20)), "top_p": draw.choice((1.0, 0.9))}
    if kind == "samples":
        words["num_return_sequences"] = draw.randint(2, 4)
    if "beams" in kind:
        words["num_beams"] = draw.randint(2, 4)
        words["num_return_sequences"] = draw.randint(1, words["num_beams"])
        words |= {
            "length_penalty": draw.choice((1.0, 0.6, 0.0)),
            "early_stopping": draw.choice((True, False)),
        }
    bends: tuple[dict[str, Any], ...] = (
        {"repetition_penalty": 1.3}, {"no_repeat_ngram_size": 2}, {"stop_strings": ("a", "bc")},
        {"min_new_tokens": min(3, words["max_new_tokens"])}, {"suppress_tokens": (7, 9)},
        {"forced_eos_token_id": 5}, {"min_p": 0.05} if words.get("do_sample") else {},
    )  # fmt: skip
    for bend in bends:
        words |= bend if draw.random() < 0.15 else {}
    return GenerationConfig(**words)


def requests(
    count: int, begins: dict[str, Any], *, vocab: int = 80, seed: int = 0, most: int = 24
) -> list[Request]:
    """Prompts or sources of any lengths, with the words that `write` and `submit` share."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        ids = [draw.randrange(3, vocab) for _ in range(draw.randint(1, 20))]
        words = {
            "config": settings(draw, most),
            "eos_token_id": draw.choice(([5], [5, 11, 12, 13])),
            "decode": decode,
        }
        words |= {"prefix_ids": [6, 8]} if draw.random() < 0.1 else {}
        found.append((ids, {**words, **begins}))
    return found


def alone(model: nn.Module, request: Request) -> list[GenerationOutput]:
    """What the engine writes for this request, and nothing else."""
    ids, words = request
    here = torch.tensor([ids], device=next(model.parameters()).device)
    return ask(model, here, torch.ones_like(here, dtype=torch.bool), pad_token_id=PAD, **words)[0]


def send(
    scheduler: Scheduler, ids: list[int], *, caller: str | None = None, on_done: Any = None, **request: Any
) -> Job:
    """`submit` with the fields of the request as keywords."""
    return scheduler.submit(ids, GenerationParams(**request), caller=caller, on_done=on_done)
