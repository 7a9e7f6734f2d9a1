"""Decoding with a KV cache matches the full forward, for any chunks, positions and padding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.inputs import Masks, Memory, TextInputs
from glassformer.core.kv_cache import CacheFullError, ContiguousKVCache, KVCache
from glassformer.core.masks import Mask
from glassformer.core.model import DecoderOnly, EncoderDecoder
from glassformer.errors import ConflictError, UnsupportedError
from tests.core.models import LAYERS, POSITIONS, ids, model_of, spec_of

T, S, ROOM = 9, 7, 12
PIECES = {"one by one": [1] * T, "uneven": [3, 1, 4, 1], "at once": [T]}
SHAPES = ("decoder_only", "encoder_decoder")
CLOSE = {"atol": 2e-5, "rtol": 0}
LENGTHS = pytest.mark.parametrize("fixed", [False, True], ids=["int length", "fixed length"])
Step = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def prepared(shape: str, *, batch: int = 3, **options: Any) -> tuple[Any, Step, Step]:
    """A model; its full run of a target; and a step of it with a cache."""
    model = model_of(shape, **options)
    if isinstance(model, DecoderOnly):
        return model, model, model
    assert isinstance(model, EncoderDecoder)
    src = ids(batch, S, seed=8)
    real = torch.arange(S)[None] < torch.tensor([[S], [S - 2], [S - 4]])[:batch]
    memory = model.encode(src, real)

    def step(tgt: Tensor, mask: Tensor | None = None, *, rows: Tensor | None = None, **more: Any) -> Tensor:
        rows = torch.arange(len(tgt)) if rows is None else rows
        text = TextInputs(tgt, None if mask is None else Mask(padding=mask))
        out: Tensor = model.decode(text, Memory.of(memory[rows], real[rows]), **more)
        return out

    def full(tgt: Tensor, mask: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
        rows = torch.arange(len(tgt)) if rows is None else rows
        masks = Masks(real[rows], None if mask is None else Mask(padding=mask))
        out: Tensor = model(src[rows], tgt, masks)
        return out

    return model, full, step


def cache_for(model: Any, fixed: bool, batch: int = 3) -> ContiguousKVCache:
    cache = KVCache.allocate(model.spec, batch, ROOM)
    return cache.with_static_shapes() if fixed else cache


@LENGTHS
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decoding_matches_uncached(shape: str, position: str, fixed: bool) -> None:
    model, full, step = prepared(shape, position=position)
    tgt = ids(3, T)
    expected = full(tgt)
    for pieces in PIECES.values():
        cache = cache_for(model, fixed)
        actual = torch.cat([step(piece, cache=cache) for piece in tgt.split(pieces, 1)], 1)
        torch.testing.assert_close(actual, expected, **CLOSE)
        assert int(cache.length) == T


ATTENTIONS: list[dict[str, Any]] = [
    {"window": 3},
    {"num_kv_heads": 1},
    {"num_kv_heads": 2, "head_dim": 6, "value_dim": 5, "window": 2, "biases": ("q", "out")},
]


@LENGTHS
@pytest.mark.parametrize("attention", ATTENTIONS, ids=str)
@pytest.mark.parametrize("shape", SHAPES)
def test_cached_decoding_matches_uncached_with_windows_and_grouped_heads(
    shape: str, attention: dict[str, Any], fixed: bool
) -> None:
    model, full, step = prepared(shape, position="rotary", **attention)
    tgt = ids(3, T)
    expected = full(tgt)
    for kernel in ("explicit", "sdpa"):
        cache = cache_for(model, fixed)
        pieces = [step(p, cache=cache, kernel=kernel) for p in tgt.split(PIECES["uneven"], 1)]
        torch.testing.assert_close(torch.cat(pieces, 1), expected, **CLOSE)


@LENGTHS
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_left_padded_rows_match_unpadded_rows(shape: str, position: str, fixed: bool) -> None:
    model, full, step = prepared(shape, position=position)
    tgt = ids(3, T)
    pads = torch.tensor([0, 2, 5])
    real = torch.arange(T)[None] >= pads[:, None]
    tgt = tgt.masked_fill(~real, 0)
    cache = cache_for(model, fixed)
    inputs = torch.cat((real, torch.ones(3, ROOM - T, dtype=torch.bool)), 1)  # of every key there is room for
    done, actual = 0, []
    for piece in tgt.split([6, 1, 1, 1], 1):
        done += piece.shape[1]
        actual.append(step(piece, inputs if fixed else real[:, :done], cache=cache))
    together = torch.cat(actual, 1)
    for row, short in enumerate(pads.tolist()):
        if shape == "decoder_only":
            alone = full(tgt[row : row + 1, short:])
        else:
            alone = full(tgt[row : row + 1, short:], rows=torch.tensor([row]))
        torch.testing.assert_close(together[row : row + 1, short:], alone, **CLOSE)


@LENGTHS
@pytest.mark.parametrize("shape", SHAPES)
def test_select_reorders_duplicates_and_drops_rows(shape: str, fixed: bool) -> None:
    model, full, step = prepared(shape)
    tgt, more = ids(3, 5), ids(3, 4, seed=3)
    cache = cache_for(model, fixed)
    step(tgt, cache=cache)
    alive = torch.arange(3)
    so_far = tgt
    for n, chosen in enumerate(([2, 0, 0], [1, 2], [1])):
        rows = torch.tensor(chosen)
        cache.select(rows)
        alive, so_far = alive[rows], so_far[rows]
        new = more[: len(rows), n : n + 1]
        so_far = torch.cat((so_far, new), 1)
        if shape == "decoder_only":
            actual, expected = step(new, cache=cache), full(so_far)
        else:
            actual, expected = step(new, rows=alive, cache=cache), full(so_far, rows=alive)
        torch.testing.assert_close(actual[:, -1], expected[:, -1], **CLOSE)


def test_cross_attention_keys_are_projected_once() -> None:
    model, _, step = prepared("encoder_decoder")
    cache = cache_for(model, fixed=False)
    step(ids(3, 2), cache=cache)
    stored = [layer.cross for layer in cache.layers]
    calls = []
    for block in model.decoder.blocks:
        block.cross_attn.k_proj.register_forward_hook(lambda *_: calls.append(1))
    step(ids(3, 1), cache=cache)
    assert not calls
    assert len(stored) == LAYERS
    assert all(layer.cross is was for layer, was in zip(cache.layers, stored, strict=True))


def test_unfitting_cache_is_rejected() -> None:
    model = model_of("decoder_only")
    cache = cache_for(model, fixed=False)
    model(ids(3, 10), cache=cache)
    with pytest.raises(CacheFullError) as full:
        model(ids(3, 3), cache=cache)
    assert (full.value.capacity, full.value.length, full.value.steps) == (12, 10, 3)
    assert cache.length == 10  # and nothing was written
    with pytest.raises(ConflictError):
        model(ids(2, 1), cache=cache)
    with pytest.raises(ConflictError):
        model(ids(3, 1), cache=ContiguousKVCache(cache.layers[:1]))
    with pytest.raises(UnsupportedError):
        KVCache.allocate(model_of("encoder_only").spec, 1, 4)
    other = KVCache.allocate(model.spec, 3, 4, dtype=torch.float64)
    with pytest.raises(ConflictError):
        model(ids(3, 1), cache=other)


@LENGTHS
def test_head_receives_the_padding_of_the_new_positions(fixed: bool) -> None:
    torch.manual_seed(0)
    head = spec.ClassifySpec(num_labels=3, pool="last")
    model = build_model(replace(spec_of("decoder_only"), head=head)).eval()
    real = torch.ones(3, ROOM, dtype=torch.bool)
    real[1, 5:7] = False  # in the second piece, the last real token of row 1 stands at 4
    complete, cache = ids(3, 7), cache_for(model, fixed)
    with torch.no_grad():
        model(complete[:, :4], real if fixed else real[:, :4], cache=cache)
        actual = model(complete[:, 4:], real if fixed else real[:, :7], cache=cache)
        torch.testing.assert_close(actual, model(complete, real[:, :7]), **CLOSE)
