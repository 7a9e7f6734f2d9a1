"""A model as graphs of named tensors: what an ONNX file reads and gives, and the module that computes it.

A model that writes text keeps its keys and values outside: each step takes those so far and gives them back
longer. With a source, the encoder's graph gives the keys and values that every step attends to, once.

Letters: B batch, T new tokens, S source tokens, P tokens so far, G key/value heads, K head width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core import spec
from glassformer.core.distributions import KINDS
from glassformer.core.heads import Pooled, Span, Twice
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.errors import UnsupportedError

# Written out step by step: a row that may attend to nothing then gives zeros, whatever an exporter or a
# runtime makes of a fused operator there; a NaN would spread from padding to everything after it.
KERNEL: Kernel = "explicit"

# what a head that gives one tensor gives; the others give scores
GIVEN: dict[type, str] = {
    spec.Features: "hidden",
    spec.Embed: "embedding",
    spec.Forecast: "forecast",
    spec.SeriesRegress: "targets",
    spec.PatchReconstruct: "patches",
}
# sizes to try a graph with: each its own, and none 0 or 1, which would be taken for fixed
SIZES = {"batch": 2, "length": 3, "past": 4, "source": 5, "keys": 7}


@dataclass(frozen=True, kw_only=True)
class Port:
    """A tensor that goes in or comes out: a word in its shape is a size that may change from run to run."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One file: the module that computes it, what it takes, and what it gives by name, in their order."""

    name: str
    module: nn.Module
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]

    def sample(self) -> tuple[Tensor, ...]:
        """Inputs of the sizes to try it with: nothing masked, ids 0."""
        kinds = {"bool": torch.bool, "int64": torch.int64, "float32": torch.float32}
        given = [
            torch.ones([SIZES[n] if isinstance(n, str) else n for n in port.shape], dtype=kinds[port.dtype])
            for port in self.inputs
        ]
        return tuple(x * 0 if x.dtype == torch.int64 else x for x in given)


def graphs_of(model: AnyModel) -> list[Graph]:
    """The graphs that a model becomes; what cannot become one is a sentence."""
    if isinstance(model, EncoderDecoder) and isinstance(model.spec.head, spec.LanguageModel):
        return [_encoder(model), _step(model, model.spec.target)]
    if isinstance(model, DecoderOnly) and isinstance(model.spec.head, spec.LanguageModel):
        return [_step(model, model.spec.input)]
    if isinstance(model, EncoderDecoder | DecoderOnly | EncoderOnly):
        return [_whole(model)]
    raise UnsupportedError("export to ONNX", f"a {type(model).__name__}")


# ---- writing, a step at a time ------------------------------------------------------------------------


class PastCache(KVCache):
    """Past keys and values are inputs of the graph; those with the new positions appended are its outputs."""

    def __init__(self, layers: list[LayerCache], past: int) -> None:
        super().__init__(layers, torch.full((), past))
        self.past = past

    def check_capacity(self, batch: int, steps: int) -> None:
        """Any number of steps fits."""

    def num_keys(self, steps: int) -> int:
        return self.past + steps

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        own = self.layers[layer]
        own.k, own.v = torch.cat((own.k, k), 2), torch.cat((own.v, v), 2)
        return own.k, own.v

    def advance(self, steps: int) -> None:
        """The layers are already longer."""


class Encoding(nn.Module):
    """ids (B, S), mask (B, S) -> memory (B, S, D), and each decoder layer's keys and values of it."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(ids, _seen(mask), kernel=KERNEL)
        given = [memory]
        for attention in self.model.decoder.cross_attentions:
            given += [part.transpose(1, 2) for part in attention.keys_values(memory)]  # (B, G, S, K)
        return tuple(given)


class Step(nn.Module):
    """ids (B, T), mask (B, P+T) and keys and values so far -> logits (B, T, V), keys and values with the new.

    With a source, its mask and its keys and values stand between the mask and those so far.
    """

    def __init__(self, model: EncoderDecoder | DecoderOnly) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor, *kept: Tensor) -> tuple[Tensor, ...]:
        count = 2 * len(self.model.decoder.blocks)
        past = kept[-count:]
        layers: list[LayerCache] = [LayerCache(k=past[n], v=past[n + 1]) for n in range(0, count, 2)]
        cache = PastCache(layers, past[0].shape[2])
        if isinstance(self.model, DecoderOnly):
            logits = self.model(ids, mask, cache=cache, kernel=KERNEL)
        else:
            there, across = kept[0], kept[1 : 1 + count]
            for n, layer in enumerate(layers):
                layer.cross = (across[2 * n], across[2 * n + 1])
            memory = across[0].new_zeros(ids.shape[0], there.shape[1], 1)  # its keys and values are known
            logits = self.model.decode(ids, memory, mask, there, cache=cache, kernel=KERNEL)
        return (logits, *(part for layer in layers for part in (layer.k, layer.v)))


def _encoder(model: EncoderDecoder) -> Graph:
    what = model.spec
    return Graph(
        name="encoder",
        module=Encoding(model),
        inputs=_read(what.source, "source"),
        outputs=("memory", *(port.name for port in _across(what))),
    )


def _step(model: EncoderDecoder | DecoderOnly, tokens: spec.Input) -> Graph:
    what = model.spec
    if not what.decoder.num_layers:
        raise UnsupportedError("export to ONNX", "a decoder without layers")
    ids = _read(tokens, "length")[0]
    mask = Port(name="mask", dtype="bool", shape=("batch", "keys"))
    past = _kept(what.decoder, "attention", "past", "past")
    before: tuple[Port, ...] = ()
    if isinstance(what, spec.EncoderDecoder):
        before = (Port(name="memory_mask", dtype="bool", shape=("batch", "source")), *_across(what))
    return Graph(
        name="decoder" if before else "model",
        module=Step(model),
        inputs=(ids, mask, *before, *past),
        outputs=("logits", *(port.name.replace("past", "present") for port in past)),
    )


def _across(what: spec.EncoderDecoder) -> tuple[Port, ...]:
    return _kept(what.decoder, "cross_attention", "cross", "source")


def _kept(stack: spec.Stack, kind: str, word: str, length: str) -> tuple[Port, ...]:
    """Keys and values of every layer; kind: `attention` or `cross_attention`."""
    ports = []
    for n in range(stack.num_layers):
        attention: spec.Attention = getattr(stack.block_at(n), kind)
        heads = attention.num_kv_heads or attention.num_heads
        width = attention.head_dim or stack.d_model // attention.num_heads
        for part, wide in {"key": width, "value": attention.value_dim or width}.items():
            shape = ("batch", heads, length, wide)
            ports.append(Port(name=f"{word}_{n}_{part}", dtype="float32", shape=shape))
    return tuple(ports)


# ---- reading, all at once -----------------------------------------------------------------------------


class Whole(nn.Module):
    """Everything the model takes, in its ports' order -> what its head gives."""

    def __init__(self, model: AnyModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        found = self._found(given)
        return (found,) if isinstance(found, Tensor) else tuple(found)

    def _found(self, given: tuple[Tensor, ...]) -> Any:
        told = dict(zip(self.names, given, strict=True))
        if isinstance(self.model, EncoderDecoder):
            return self.model(
                told["ids"], told["target"], _seen(told["mask"]), _seen(told["target_mask"]), kernel=KERNEL
            )
        first, mask = given[0], told.get("mask")
        more = {name: told[name] for name in ("types", "observed", "hidden") if name in told}
        return self.model(first, None if mask is None else _seen(mask), kernel=KERNEL, **more)


def _seen(padding: Tensor) -> Mask:
    """The padding as a mask; where its queries stand is said, or it would be fixed at the sizes tried."""
    return Mask(padding=padding, offset=0)


def _whole(model: AnyModel) -> Graph:
    what = model.spec
    if isinstance(what, spec.EncoderDecoder):
        inputs = _read(what.source, "source")
        same = "length" if isinstance(what.head, spec.Features) else "source"
        for port, name in zip(_read(what.target, same), ("target", "target_mask"), strict=False):
            inputs += (Port(name=name, dtype=port.dtype, shape=port.shape),)
    else:
        inputs = _read(what.input, "length", what.head)
    module = Whole(model, tuple(port.name for port in inputs))
    return Graph(name="model", module=module, inputs=inputs, outputs=_given(what.head))


def _given(head: spec.Head) -> tuple[str, ...]:
    """The names of what a head gives."""
    match head:
        case spec.Features(pooler=True):
            return Pooled._fields
        case spec.ClassifyTwice():
            return Twice._fields
        case spec.Answer():
            return Span._fields
        case spec.Forecast() | spec.SeriesRegress() if head.distribution != "none":
            return KINDS[head.distribution]._fields
    return (GIVEN.get(type(head), "logits"),)


def _read(what: spec.Input, length: str, head: spec.Head | None = None) -> tuple[Port, ...]:
    """What an input takes."""
    match what:
        case spec.Tokens():
            ports = [Port(name="ids", dtype="int64", shape=("batch", length))]
            ports += [Port(name="mask", dtype="bool", shape=("batch", length))]
            if what.types is not None:
                ports += [Port(name="types", dtype="int64", shape=("batch", length))]
            return tuple(ports)
        case spec.ImagePatches():
            return (Port(name="images", dtype="float32", shape=("batch", what.channels, *what.image_size)),)
        case spec.SeriesPatches():
            size = ("batch", what.context_length, what.channels)
            read = [Port(name="values", dtype="float32", shape=size)]
            read += [Port(name="observed", dtype="bool", shape=size)]
            if isinstance(head, spec.PatchReconstruct):
                patches = ("batch", what.channels, what.num_patches)
                read += [Port(name="hidden", dtype="bool", shape=patches)]
            return tuple(read)
    raise UnsupportedError("export to ONNX", "models that read vectors")
