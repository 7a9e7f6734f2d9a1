"""The shape at every station of one forward, and what the model weighs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.kv_cache import KVCache
from glassformer.core.observe import observe
from glassformer.verify.inputs import fitting_length, outputs, sample_for

# the blocks of a stack are alike, so the first speaks for all
SEEN = ("*embed.*", "*.blocks.0.*", "*.final_norm", "head.*")
PARTS = ("embedding", "positions", "self-attention", "cross-attention", "feed-forward", "norms", "head")

LENGTH = 16

Shape = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one forward of a model showed: shapes by observation name, parameters by part, bytes."""

    inputs: tuple[Shape, ...]
    stations: dict[str, Shape]
    outputs: dict[str, Shape]
    parameters: dict[str, int]
    dtypes: tuple[str, ...]
    weight_bytes: int
    cache_bytes: int | None
    kernels: dict[str, str]

    @property
    def total(self) -> int:
        return sum(self.parameters.values())


def report(bundle: Bundle, batch: int, length: int | None) -> Report:
    """Run the model once on made-up inputs (on the meta device: shapes alone) and weigh it."""
    model = bundle.model
    length = length or fitting_length(model.spec, LENGTH)
    sample = sample_for(model, batch=batch, length=length, target_length=length)
    record = observe(model, (*sample.inputs, *sample.real), want=SEEN)
    stations = {name: tuple(record[name].shape) for name in record}
    for name in record.attentions():
        q, k = stations[f"{name}.q"], stations[f"{name}.k"]
        stations[f"{name}.weights"] = (*q[:3], k[2])
    parameters = list(model.named_parameters())
    counts = {part: sum(p.numel() for n, p in parameters if part_of(n) == part) for part in PARTS}
    return Report(
        inputs=tuple(tuple(x.shape) for x in sample.inputs),
        stations=stations,
        outputs={name: tuple(t.shape) for name, t in outputs(record.output).items()},
        parameters={part: count for part, count in counts.items() if count},
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for _, p in parameters})),
        weight_bytes=sum(p.numel() * p.element_size() for _, p in parameters),
        cache_bytes=_cache_bytes(bundle, batch, sample.inputs[-1].shape[1], stations),
        kernels=dict(bundle.kernels(max((s[2] for n, s in stations.items() if n.endswith(".k")), default=1))),
    )


def positions_of(what: spec.Model, batch: int, length: int) -> int:
    """How many positions a forward has: those of pictures and series follow from the spec alone."""
    match getattr(what, "input", None):
        case spec.ImagePatches() as read:
            return batch * (read.prefix + read.num_patches)
        case spec.SeriesPatches() as read:
            return batch * read.channels * max(read.prefix + read.num_patches, read.context_length)
    return batch * length


def part_of(name: str) -> str:
    """The part of the model that a parameter belongs to, by its name.

    >>> part_of("decoder.blocks.0.norm_self.weight"), part_of("embed.token.weight")
    ('norms', 'embedding')
    """
    path = name.split(".")
    if path[0] == "head":
        return "head"
    if any(step.startswith("norm_") or step in ("norm", "final_norm") for step in path):
        return "norms"
    for step, part in (
        ("self_attn", "self-attention"),
        ("cross_attn", "cross-attention"),
        ("ffn", "feed-forward"),
        ("position", "positions"),
    ):
        if step in path:
            return part
    return "embedding"


def _cache_bytes(bundle: Bundle, batch: int, length: int, stations: dict[str, Shape]) -> int | None:
    """Keys and values of all decoder layers: their own for `length` positions, and the encoder's."""
    if not isinstance(bundle.spec, spec.EncoderDecoder | spec.DecoderOnly):
        return None
    dtype = next(bundle.model.parameters()).dtype
    cache = KVCache.allocate(bundle.spec, batch, length, dtype=dtype, device="meta")
    numbers = sum(layer.k.numel() + layer.v.numel() for layer in cache.layers)
    for name in ("decoder.blocks.0.cross_attn.k", "decoder.blocks.0.cross_attn.v"):
        if name in stations:
            numbers += math.prod(stations[name]) * len(cache.layers)
    return numbers * dtype.itemsize
