"""The slot KV cache matches attention over lists while requests join, leave and reorder their beams."""

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

Entries = list[tuple[Tensor, Tensor, int]]  # key (G, K), value (G, V), position
KINDS: tuple[dict[str, Any], ...] = (
    {"position": "none"},
    {"position": "rotary", "num_kv_heads": 1},
    {"position": "relative", "num_kv_heads": 2},
    {"position": "alibi"},
    {"position": "alibi", "window": 5},
)


@dataclass
class Sequence:
    """One slot, and the entries that each of its beams attends to."""

    slot: Slot
    source: Slot
    beams: list[Entries]
    read: tuple[Tensor, Tensor]  # of the source (G, S, K), of the first layer
    position: int


def reference_attention(attention: Any, position: Any, q: Tensor, recorded: Entries, at: int) -> Tensor:
    """softmax(q k * scale + bias) v for one query (H, K) at one position."""
    keys = torch.stack([k for k, _, _ in recorded], 1)  # (G, S, K)
    values = torch.stack([v for _, v, _ in recorded], 1)
    position_ids = torch.tensor([position_id for _, _, position_id in recorded])
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
    sources = SlotKVCache(decoder, torch.empty(0), cross=True)
    assert isinstance(own, KVCache)
    attention, cross = decoder.attentions[0], decoder.cross_attentions[0]
    position = model.decoder.position
    groups, width, layers = attention.num_kv_heads, attention.head_dim, len(decoder.blocks)
    rng = random.Random(0)
    torch.manual_seed(0)
    sequences: list[Sequence] = []
    most = 0
    for _ in range(120):
        if rng.random() < 0.25 and len(sequences) < 9:
            beams, read = rng.choice((1, 1, 1, 3)), rng.choice((0, 1, 7, 31))
            k, v = torch.randn(groups, read, width), torch.randn(groups, read, width)
            rotated = k
            if isinstance(position, RotaryPositions) and read:
                rotated = rotate(k[None], position(torch.arange(read)[None]).rotary)[0]
            # the layers differ, so that a mix-up of layers is detected
            slot = own.add(beams, *([x * (1 + n) for n in range(layers)] for x in (rotated, v)))
            source = torch.randn(H, rng.choice((0, 3, 40)), cross.head_dim)
            source_slot = sources.add(beams, [source] * layers, [source + 1] * layers)
            recorded: Entries = [(k[:, s], v[:, s], s) for s in range(read)]
            sequences.append(
                Sequence(
                    slot, source_slot, [list(recorded) for _ in range(beams)], (source, source + 1), read
                )
            )
        elif rng.random() < 0.08 and sequences:
            finished = sequences.pop(rng.randrange(len(sequences)))
            own.remove(finished.slot)
            sources.remove(finished.source)
        if not sequences:
            continue
        order: list[int] = []
        for sequence in sequences:
            parents = list(range(sequence.slot.width))
            if rng.random() < 0.5:
                parents = [rng.randrange(sequence.slot.width) for _ in parents]
            sequence.beams = [list(sequence.beams[beam]) for beam in parents]
            first = len(order)
            order += [first + beam for beam in parents]
        own.reorder(torch.tensor(order))
        rows = [(sequence, beam) for sequence in sequences for beam in range(sequence.slot.width)]
        most = max(most, len(own.buckets))
        assert own.next_positions().tolist() == [sequence.position for sequence, _ in rows]
        qkv = torch.randn(len(rows), (attention.num_heads + 2 * groups) * width)
        own.prepare()
        sources.prepare()
        widths = [attention.num_heads * width, groups * width, groups * width]
        actual, _ = (
            own.attend(
                n, attention, *(x.unflatten(-1, (-1, width)) for x in (qkv * (1 + n)).split(widths, -1))
            )
            for n in range(layers)
        )
        queries = torch.randn(len(rows), H * cross.head_dim)
        cross_output = sources.attend(0, cross, queries.unflatten(-1, (H, -1)), None, None)
        own.advance()
        for row, (sequence, beam) in enumerate(rows):
            q, k, v = qkv[row].split([attention.num_heads * width, groups * width, groups * width])
            sequence.beams[beam].append((k.view(groups, width), v.view(groups, width), sequence.position))
            expected = reference_attention(
                attention, position, q.view(-1, width), sequence.beams[beam], sequence.position
            )
            assert torch.allclose(actual[row].flatten(), expected, atol=1e-5)
            memory: Entries = [(*pair, 0) for pair in zip(*(x.unbind(1) for x in sequence.read), strict=True)]
            zeros = torch.zeros(H * cross.value_dim)
            query = queries[row].view(H, -1)
            expected = reference_attention(cross, None, query, memory, 0) if memory else zeros
            assert torch.allclose(cross_output[row].flatten(), expected, atol=1e-5)
        for sequence in sequences:
            sequence.position += 1
    assert most > 2  # sequences were in several buckets at once
    own.select(torch.empty(0, dtype=torch.long))
    sources.select(torch.empty(0, dtype=torch.long))
    assert not own.buckets and not sources.buckets and own.rows == 0


def test_buckets_waste_little_capacity() -> None:
    model: Any = core_model("decoder_only")
    own = SlotKVCache(fused_copy(model.decoder, None), torch.empty(0))
    nothing = [torch.empty(H, 0, D // H)] * len(model.decoder.blocks)
    slots = [own.add(1, nothing, nothing) for _ in range(40)]
    (bucket,) = own.buckets.values()
    assert len(bucket.visible) == 64 and capacity_for(1) == bucket.capacity == own.capacity // 40
    own.select(torch.arange(2))
    assert len(bucket.visible) <= 2 * MIN_SLOTS and own.slots == slots[:2]
