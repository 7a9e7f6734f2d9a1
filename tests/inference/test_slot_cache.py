"""The slot KV cache matches attention over lists while requests come, go and move."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from glassformer.core.kv_cache import KVCache
from glassformer.core.positions import RotaryPositions, rotate
from glassformer.inference.prepare import fused_copy
from glassformer.inference.slot_cache import MIN_SLOTS, Slot, SlotKVCache, capacity_for
from tests.core.models import D, H
from tests.core.models import model_of as core_model

Seen = list[tuple[Tensor, Tensor, int]]  # key (G, K), value (G, V), where it stands
KINDS: tuple[dict[str, Any], ...] = (
    {"position": "none"},
    {"position": "rotary", "num_kv_heads": 1},
    {"position": "relative", "num_kv_heads": 2},
    {"position": "alibi"},
    {"position": "alibi", "window": 5},
)


@dataclass
class Text:
    """One slot, and for each of its beams all that it may look at."""

    slot: Slot
    source: Slot
    beams: list[Seen]
    read: tuple[Tensor, Tensor]  # of the source (G, S, K), of the first layer
    place: int


def defined(attention: Any, position: Any, q: Tensor, recorded: Seen, at: int) -> Tensor:
    """softmax(q k * scale + bias) v for one query (H, K) at a place, written out."""
    keys = torch.stack([k for k, _, _ in recorded], 1)  # (G, S, K)
    values = torch.stack([v for _, v, _ in recorded], 1)
    position_ids = torch.tensor([where for _, _, where in recorded])
    repeats = attention.num_heads // keys.shape[0]
    keys, values = (x.repeat_interleave(repeats, 0) for x in (keys, values))
    if isinstance(position, RotaryPositions):
        q = rotate(q[None, :, None], position(torch.tensor([[at]])).rotary)[0, :, 0]
        keys = rotate(keys[None], position(position_ids[None]).rotary)[0]
    scores = (keys @ q[:, :, None])[..., 0] * attention.scale  # (H, S)
    if position is not None and not isinstance(position, RotaryPositions):
        scores = scores + position(torch.tensor([[at]]), position_ids[None]).bias[0, :, 0]
    if attention.window is not None:
        scores = scores.masked_fill(position_ids <= at - attention.window, -torch.inf)
    return (scores.softmax(-1)[:, None] @ values)[:, 0].reshape(-1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@torch.inference_mode()
def test_slot_cache_rows_are_independent(kind: dict[str, Any]) -> None:
    model: Any = core_model("encoder_decoder", **kind)
    decoder = fused_copy(model.decoder, None)
    own = SlotKVCache(decoder, torch.empty(0))
    across = SlotKVCache(decoder, torch.empty(0), cross=True)
    assert isinstance(own, KVCache)
    attention, cross = decoder.attentions[0], decoder.cross_attentions[0]
    position = model.decoder.position
    groups, width, layers = attention.num_kv_heads, attention.head_dim, len(decoder.blocks)
    draw = random.Random(0)
    torch.manual_seed(0)
    texts: list[Text] = []
    most = 0
    for _ in range(120):
        if draw.random() < 0.25 and len(texts) < 9:
            beams, read = draw.choice((1, 1, 1, 3)), draw.choice((0, 1, 7, 31))
            k, v = torch.randn(groups, read, width), torch.randn(groups, read, width)
            turned = k
            if isinstance(position, RotaryPositions) and read:
                turned = rotate(k[None], position(torch.arange(read)[None]).rotary)[0]
            # the second layer holds other numbers, so that it shows when one takes the other's
            slot = own.add(beams, *([x * (1 + n) for n in range(layers)] for x in (turned, v)))
            source = torch.randn(H, draw.choice((0, 3, 40)), cross.head_dim)
            there = across.add(beams, [source] * layers, [source + 1] * layers)
            recorded: Seen = [(k[:, s], v[:, s], s) for s in range(read)]
            texts.append(
                Text(slot, there, [list(recorded) for _ in range(beams)], (source, source + 1), read)
            )
        elif draw.random() < 0.08 and texts:
            gone = texts.pop(draw.randrange(len(texts)))
            own.remove(gone.slot)
            across.remove(gone.source)
        if not texts:
            continue
        order: list[int] = []
        for text in texts:
            moved = list(range(text.slot.width))
            if draw.random() < 0.5:
                moved = [draw.randrange(text.slot.width) for _ in moved]
            text.beams = [list(text.beams[beam]) for beam in moved]
            first = len(order)
            order += [first + beam for beam in moved]
        own.reorder(torch.tensor(order))
        rows = [(text, beam) for text in texts for beam in range(text.slot.width)]
        most = max(most, len(own.buckets))
        assert own.next_positions().tolist() == [text.place for text, _ in rows]
        qkv = torch.randn(len(rows), (attention.num_heads + 2 * groups) * width)
        own.prepare()
        across.prepare()
        widths = [attention.num_heads * width, groups * width, groups * width]
        actual, _ = (
            own.attend(
                n, attention, *(x.unflatten(-1, (-1, width)) for x in (qkv * (1 + n)).split(widths, -1))
            )
            for n in range(layers)
        )
        requested = torch.randn(len(rows), H * cross.head_dim)
        looked = across.attend(0, cross, requested.unflatten(-1, (H, -1)), None, None)
        own.advance()
        for row, (text, beam) in enumerate(rows):
            q, k, v = qkv[row].split([attention.num_heads * width, groups * width, groups * width])
            text.beams[beam].append((k.view(groups, width), v.view(groups, width), text.place))
            expected = defined(attention, position, q.view(-1, width), text.beams[beam], text.place)
            assert torch.allclose(actual[row].flatten(), expected, atol=1e-5)
            memory: Seen = [(*pair, 0) for pair in zip(*(x.unbind(1) for x in text.read), strict=True)]
            zeros = torch.zeros(H * cross.value_dim)
            query = requested[row].view(H, -1)
            expected = defined(cross, None, query, memory, 0) if memory else zeros
            assert torch.allclose(looked[row].flatten(), expected, atol=1e-5)
        for text in texts:
            text.place += 1
    assert most > 2  # texts were in several buckets at once
    own.select(torch.empty(0, dtype=torch.long))
    across.select(torch.empty(0, dtype=torch.long))
    assert not own.buckets and not across.buckets and own.rows == 0


def test_buckets_waste_little_capacity() -> None:
    model: Any = core_model("decoder_only")
    own = SlotKVCache(fused_copy(model.decoder, None), torch.empty(0))
    nothing = [torch.empty(H, 0, D // H)] * len(model.decoder.blocks)
    held = [own.add(1, nothing, nothing) for _ in range(40)]
    (bucket,) = own.buckets.values()
    assert len(bucket.visible) == 64 and capacity_for(1) == bucket.capacity == own.capacity // 40
    own.select(torch.arange(2))
    assert len(bucket.visible) <= 2 * MIN_SLOTS and own.slots == held[:2]
