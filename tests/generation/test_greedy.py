"""Greedy decoding against a loop without cache or batch."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from glassformer.core.build import build_model
from glassformer.core.inputs import Masks
from glassformer.core.model import EncoderDecoder
from glassformer.errors import EmptyInputError, MissingValueError, ShapeError, UnsupportedError
from glassformer.families.registry import tiny_spec
from glassformer.generation import GenerationOutput, GenerationParams, generate, generate_batched
from tests.core.models import model_of as core_model

EOS, PAD, START = 2, 0, 1
MAX_NEW_TOKENS = 12
LENGTHS = (7, 1, 4, 6, 2, 9)  # unequal, so that every batch is padded


def model_of(family: str, seed: int = 0, **kwargs: Any) -> Any:
    """A tiny model with a random head, so that it does not repeat itself."""
    torch.manual_seed(seed)
    model = build_model(tiny_spec(family, **kwargs)).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            large = 2.0 if name.endswith("embed.token.weight") else 0.25 if value.dim() > 1 else 0.05
            value.add_(torch.randn_like(value) * large)
        model.head.weight = nn.Parameter(torch.randn_like(model.head.weight))
    return model


def examples(count: int = len(LENGTHS), seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randint(3, 80, (LENGTHS[n % len(LENGTHS)],), generator=generator).tolist() for n in range(count)
    ]


def generate_with(
    model: Any, ids: Tensor, mask: Tensor | None = None, **params: Any
) -> list[list[GenerationOutput]]:
    """`generate` with the fields of `GenerationParams` as keywords."""
    return generate(model, ids, GenerationParams(**params), attention_mask=mask)


def greedy(model: nn.Module, ids: Tensor, mask: Tensor | None = None, **options: Any) -> list[list[int]]:
    outputs = generate_with(model, ids, mask, **options)
    return [best.ids for (best,) in outputs]


def greedy_batched(
    model: nn.Module, rows: list[list[int]], batch_tokens: int = 16_384, **options: Any
) -> list[list[int]]:
    outputs = generate_batched(model, rows, GenerationParams(**options), batch_tokens=batch_tokens)
    return [best.ids for (best,) in outputs]


def padded(rows: list[list[int]], side: str) -> Tensor:
    width = max(map(len, rows))
    fill = [[PAD] * (width - len(row)) for row in rows]
    pairs = zip(rows, fill, strict=True)
    return torch.tensor([f + r if side == "left" else r + f for r, f in pairs])


@torch.no_grad()
def uncached_greedy(
    model: nn.Module, row: list[int], ends: tuple[int, ...] = (), most: int = MAX_NEW_TOKENS
) -> list[int]:
    """Greedy decoding of one row without a cache."""
    source = torch.tensor([row])
    out = [START] if isinstance(model, EncoderDecoder) else list(row)
    start = len(out)
    while len(out) - start < most:
        ids = torch.tensor([out])
        masks = [torch.ones_like(x, dtype=torch.bool) for x in (source, ids)]
        logits = (
            model(source, ids, Masks(*masks)) if isinstance(model, EncoderDecoder) else model(ids, masks[1])
        )
        token = int(logits[0, -1].argmax())
        if token in ends:
            break
        out.append(token)
    return out[start:]


def ends_for(model: nn.Module, rows: list[list[int]]) -> tuple[int, ...]:
    """The two end tokens for which the rows have the most different lengths."""
    free = [uncached_greedy(model, row) for row in rows]
    used = sorted({token for row in free for token in row})
    assert len(used) > 4, "the model repeats itself; nothing is compared"

    def lengths(ends: tuple[int, ...]) -> set[int]:
        return {next((n for n, token in enumerate(row) if token in ends), MAX_NEW_TOKENS) for row in free}

    ends = max(itertools.combinations(used, 2), key=lambda pair: len(lengths(pair)))
    assert len(lengths(ends)) > 2, "the rows have one length; none leaves the batch early"
    return ends


@pytest.mark.parametrize("family", ("original", "t5", "marian", "gpt2", "mistral", "falcon", "gemma3"))
def test_greedy_decoding_matches_an_uncached_loop(family: str) -> None:
    model, rows = model_of(family), examples()
    ends = ends_for(model, rows)
    expected = [uncached_greedy(model, row, ends) for row in rows]
    options: dict[str, Any] = {"eos_token_id": ends, "pad_token_id": PAD, "max_new_tokens": MAX_NEW_TOKENS}
    if isinstance(model, EncoderDecoder):
        options["start_ids"] = START
    for side in ("right", "left"):
        assert greedy(model, padded(rows, side), **options) == expected, side
    assert [greedy(model, torch.tensor([row]), **options)[0] for row in rows] == expected
    limits = dict(zip(LENGTHS, (0, 1, 2, MAX_NEW_TOKENS, 3, MAX_NEW_TOKENS), strict=True))
    shortened = greedy(model, padded(rows, "right"), **{**options, "max_new_tokens": limits.__getitem__})
    assert shortened == [row[:most] for row, most in zip(expected, limits.values(), strict=True)]
    budgets = [greedy_batched(model, rows, tokens, **options) for tokens in (1, 50, 10_000)]
    assert budgets == [expected] * 3


@pytest.mark.parametrize("kwargs", [{"position": "relative"}, {"position": "alibi"}, {"window": 3}], ids=str)
def test_padding_does_not_shift_relative_positions_or_windows(kwargs: dict[str, Any]) -> None:
    """They count columns, so there must be no padding between a prompt and its continuation."""
    torch.manual_seed(0)
    model = core_model("decoder_only", **kwargs)
    rows = [[1 + token % 22 for token in row] for row in examples()]
    expected = [uncached_greedy(model, row) for row in rows]
    for side in ("right", "left"):
        outputs = greedy(
            model, padded(rows, side), eos_token_id=-5, pad_token_id=PAD, max_new_tokens=MAX_NEW_TOKENS
        )
        assert outputs == expected, side


def test_generation_ends_with_the_position_table() -> None:
    rows = examples()
    prompted = model_of("gpt2", max_len=10)
    outputs = greedy(prompted, padded(rows, "right"), eos_token_id=-5, pad_token_id=PAD, max_new_tokens=50)
    assert [len(row) for row in outputs] == [11 - len(row) for row in rows]
    assert outputs == [uncached_greedy(prompted, row, most=11 - len(row)) for row in rows]
    sourced = model_of("original", max_len=10)
    outputs = greedy(
        sourced,
        padded(rows, "right"),
        start_ids=[START, 7],
        eos_token_id=-5,
        pad_token_id=PAD,
        max_new_tokens=50,
    )
    assert {len(row) for row in outputs} == {9}


def test_training_mode_is_restored_after_generation() -> None:
    model, rows = model_of("gpt2"), examples()
    expected = greedy(
        model, padded(rows, "left"), eos_token_id=-5, pad_token_id=PAD, max_new_tokens=MAX_NEW_TOKENS
    )
    model.train()
    model.embed.eval()  # a part that someone froze
    before = [module.training for module in model.modules()]
    assert (
        greedy(model, padded(rows, "left"), eos_token_id=-5, pad_token_id=PAD, max_new_tokens=MAX_NEW_TOKENS)
        == expected
    )
    assert [module.training for module in model.modules()] == before


def test_invalid_inputs_raise() -> None:
    ids = torch.tensor([[5, 6], [PAD, PAD]])
    options: dict[str, Any] = {"eos_token_id": EOS, "pad_token_id": PAD, "max_new_tokens": 3}
    with pytest.raises(EmptyInputError):
        greedy(model_of("gpt2"), ids, **options)
    with pytest.raises(UnsupportedError):
        greedy(model_of("gpt2"), ids, start_ids=1, **options)
    with pytest.raises(MissingValueError):
        model = model_of("original")
        model.spec = replace(model.spec, start_id=None)
        greedy(model, ids, **options)
    with pytest.raises(UnsupportedError):
        greedy(model_of("bert"), ids, **options)
    with pytest.raises(ShapeError):
        greedy(model_of("gpt2"), ids, **options, mask=torch.ones(2, 3, dtype=torch.bool))
    assert greedy(model_of("gpt2"), ids[:0], **options) == []
    assert greedy_batched(model_of("gpt2"), [], **options) == []
