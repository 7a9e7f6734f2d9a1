"""Masks match their definition in every form; mismatched ones are rejected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from glassformer.core.kernels import prepare_mask
from glassformer.core.masks import Mask
from glassformer.errors import GlassformerError, InvalidValueError, MissingValueError, ShapeError
from tests.core.attention_cases import masks, may_attend

SIZES = st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 7), st.integers(1, 7))
EITHER = torch.tensor([[True, True, False, True], [False, True, True, True]])
NUMBERS = torch.tensor([[0, 0, 1, 1], [5, 6, 6, 6]])
KINDS = {
    "none": Mask(),
    "causal": Mask(causal=True),
    "window": Mask(window=2),
    "causal window": Mask(causal=True, window=2),
    "padding": Mask(padding=EITHER),
    "segments": Mask(segments=NUMBERS),
    "two-sided segments": Mask(segments=NUMBERS, query_segments=torch.tensor([[1, 0, 7], [6, 5, 5]])),
    "allowed for all": Mask(allowed=torch.arange(12).view(1, 1, 3, 4) % 5 > 1),
    "allowed by head": Mask(allowed=torch.arange(72).view(2, 3, 3, 4) % 7 > 2),
    "offset": Mask(causal=True, offset=0),
    "offset tensor": Mask(causal=True, window=3, offset=torch.tensor(1), segments=NUMBERS),
}


def brute(mask: Mask, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    table = torch.empty(batch, heads, queries, keys, dtype=torch.bool)
    for b, h, t, s in [tuple(i) for i in torch.ones_like(table).nonzero().tolist()]:
        table[b, h, t, s] = may_attend(mask, b, h, t, s, queries, keys)
    return table


def full(actual: Tensor | None, batch: int, heads: int, queries: int, keys: int) -> Tensor:
    actual = torch.ones(1, 1, 1, 1, dtype=torch.bool) if actual is None else actual
    return actual.expand(batch, heads, queries, keys)


@pytest.mark.parametrize("kind", KINDS)
def test_dense_mask_matches_its_definition(kind: str) -> None:
    assert torch.equal(full(KINDS[kind].dense(3, 4), 2, 3, 3, 4), brute(KINDS[kind], 2, 3, 3, 4))


def test_causal_mask_is_aligned_bottom_right_and_window_includes_the_query() -> None:
    assert Mask(causal=True).dense(2, 4)[0, 0].int().tolist() == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert Mask(causal=True, window=2).dense(2, 4)[0, 0].int().tolist() == [[0, 1, 1, 0], [0, 0, 1, 1]]
    assert Mask(window=2).dense(3, 3)[0, 0].int().tolist() == [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    assert Mask(causal=True).dense(3, 1)[0, 0].int().tolist() == [[0], [0], [1]]


@settings(max_examples=150)
@given(data=st.data(), sizes=SIZES)
def test_prepared_and_simplified_masks_are_equivalent(
    data: st.DataObject, sizes: tuple[int, int, int, int]
) -> None:
    batch, heads, queries, keys = sizes
    mask = data.draw(masks(batch, heads, queries, keys))
    mask.check(batch=batch, heads=heads, queries=queries, keys=keys)
    expected = brute(mask, batch, heads, queries, keys)
    assert torch.equal(full(mask.dense(queries, keys), *sizes), expected)
    cpu = torch.device("cpu")
    for kernel in ("explicit", "sdpa"):
        prepared = prepare_mask(
            mask, batch=batch, queries=queries, keys=keys, device=cpu, dtype=torch.float32, kernel=kernel
        )
        assert torch.equal(full(prepared.to_dense(queries, keys, cpu), *sizes), expected)


WRONG: list[tuple[Any, type[GlassformerError], dict[str, Any]]] = [
    (torch.arange(12).view(3, 4), InvalidValueError, {"name": "mask", "value": "torch.int64"}),
    (Mask(padding=torch.ones(2, 4)), InvalidValueError, {"name": "mask.dtype", "value": "torch.float32"}),
    ([[True] * 4] * 2, InvalidValueError, {"name": "mask", "value": "list"}),
    (torch.ones(4).bool(), ShapeError, {"what": "mask", "shape": [4]}),
    (torch.ones(2, 4).bool(), ShapeError, {"shape": [2, 4]}),
    (Mask(padding=torch.ones(1, 4).bool()), ShapeError, {"shape": [1, 4]}),
    (torch.ones(2, 5, 3, 4).bool(), ShapeError, {"shape": [2, 5, 3, 4]}),
    (Mask(segments=torch.ones(2, 3)), ShapeError, {"what": "segments", "shape": [2, 3]}),
    (Mask(query_segments=torch.ones(2, 3)), MissingValueError, {"name": "segments"}),
]


@pytest.mark.parametrize(("value", "kind", "fields"), WRONG)
def test_mismatched_masks_are_rejected(
    value: Any, kind: type[GlassformerError], fields: dict[str, Any]
) -> None:
    with pytest.raises(kind) as caught:
        Mask.of(value).check(batch=2, heads=6, queries=3, keys=4)
    assert caught.value.fields.items() >= fields.items()


def test_narrower_window_of_mask_and_layer_holds() -> None:
    pairs = ((5, 2, 2), (2, 5, 2), (None, 3, 3), (4, None, 4))
    assert all(Mask(window=own).with_window(layer).window == least for own, layer, least in pairs)
