"""Going on from a cache gives what the whole sequence gives at once."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.kv_cache import KVCache
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.verify.claims import Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import Sample, at_real, has_tokens, outputs, per_token, sample_for


def cached_equals_uncached(bundle: Bundle, name: str) -> Claim:
    """Token by token, in uneven pieces, and in buffers of fixed size, against one run without a cache."""
    model = bundle.model
    if isinstance(model, EncoderOnly):
        return skipped(name, "an encoder keeps no cache")
    if not has_tokens(model):
        return skipped(name, "only tokens are read step by step")
    sample = sample_for(model, "left")
    with torch.no_grad():
        whole = at_real(model, sample, sample.run(model))
        if not all(per_token(model.spec.head, key) for key in whole):
            return skipped(name, "this head reads the whole sequence at once")
        length = sample.inputs[-1].shape[1]
        gaps = []
        for pieces, fixed in (([1] * length, False), (_uneven(length), False), ([1] * length, True)):
            stepped = at_real(model, sample, _stepped(model, sample, pieces, fixed))
            gaps += [gap(stepped[key], whole[key]) for key in whole]
    return measured(name, gaps, tolerance_of(model), "one by one, in uneven pieces, in fixed buffers")


def _uneven(length: int) -> list[int]:
    """Pieces 4, 1, 3, 1, 4, ... that make up `length`."""
    pieces: list[int] = []
    while (left := length - sum(pieces)) > 0:
        pieces.append(min((4, 1, 3, 1)[len(pieces) % 4], left))
    return pieces


def _stepped(model: AnyModel, sample: Sample, pieces: Sequence[int], fixed: bool) -> dict[str, Tensor]:
    """The sample's last input fed piece by piece into a cache; the outputs joined again."""
    ids, real = sample.inputs[-1], sample.real[-1]
    assert real is not None
    parameter = next(model.parameters())
    room = ids.shape[1] if fixed else ids.shape[1] + 3
    cache = KVCache.allocate(model.spec, len(sample), room, dtype=parameter.dtype, device=parameter.device)
    cache = cache.with_static_shapes() if fixed else cache
    memory = model.encode(sample.inputs[0], sample.real[0]) if isinstance(model, EncoderDecoder) else None
    parts: list[dict[str, Tensor]] = []
    done = 0
    for size in pieces:
        piece, done = ids[:, done : done + size], done + size
        keys = real if fixed else real[:, :done]  # a fixed buffer is seen whole, its end hidden as the future
        if isinstance(model, DecoderOnly):
            result = model(piece, keys, cache=cache)
        else:
            assert isinstance(model, EncoderDecoder) and memory is not None
            result = model.decode(piece, memory, keys, sample.real[0], cache=cache)
        parts.append(outputs(result))
    return {key: torch.cat([part[key] for part in parts], 1) for key in parts[0]}
