"""A model as ONNX files: any batch, any length, padding and the KV cache as inputs.

Weights keep the names they have here, and a matrix that is shared is stored once. `export.json` lists the
inputs and outputs of each file. A model that generates takes the keys and values so far in each step and
returns them longer. With a source, the encoder's graph returns those that every step attends to, once.

Letters: B batch, T new tokens, S source tokens, P tokens so far, G key/value heads, K head width.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.distributions import DISTRIBUTIONS
from glassformer.core.heads import DistilledLogits, PooledOutput, SpanLogits
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.core.positions import PositionTerms, RelativeBias, relative_position_bucket
from glassformer.core.stack import Stack
from glassformer.errors import MissingDependencyError, UnsupportedError
from glassformer.export.folder import (
    Exported,
    atomic_folder,
    end_tokens,
    language_note,
    require_new_folder,
    start_tokens,
    write_sidecars,
)
from glassformer.inference.prepare import evaluation_mode

OPSET = 18
LARGE = 2_000_000_000  # bytes of weights from which they get a file of their own: one message holds 2 GB

# Written out step by step: a row that may attend to nothing then gives zeros, whatever an exporter or a
# runtime makes of a fused operator there; a NaN would spread from padding to everything after it.
KERNEL: Kernel = "explicit"

# what a head that gives one tensor gives; the others give scores
GIVEN: dict[type, str] = {
    spec.FeaturesSpec: "hidden",
    spec.EmbedSpec: "embedding",
    spec.ForecastSpec: "forecast",
    spec.SeriesRegressSpec: "targets",
    spec.PatchReconstructSpec: "patches",
}
# sizes to try a graph with: each its own, and none 0 or 1, which would be taken for fixed
SIZES = {"batch": 2, "length": 3, "past": 4, "source": 5, "keys": 7}


def _require_exporter() -> None:
    try:
        import_module("onnx")
        import_module("onnxscript")
    except ImportError:
        raise MissingDependencyError("onnxscript", "export") from None


def export_onnx(bundle: Bundle, folder: str | Path) -> Exported:
    """Write the folder, which must be new or empty, in float32; it is whole or not there."""
    _require_exporter()
    path = require_new_folder(folder)
    model = _plain(bundle.model)
    graphs = graphs_of(model)
    files: dict[str, Any] = {}
    with atomic_folder(path) as whole, evaluation_mode(model), _looked_up(model):
        for graph in graphs:
            program = _program(graph)
            name = f"{graph.name}.onnx"
            size = sum(value.const_value.nbytes for value in program.model.graph.initializers.values())
            program.save(whole / name, external_data=size > LARGE)
            files[name] = {
                "inputs": [asdict(port) for port in graph.inputs],
                "outputs": [asdict(_port(value)) for value in program.model.graph.outputs],
            }
        about = {"format": "onnx", "dtype": "float32", "opset": OPSET, "files": files}
        if isinstance(bundle.spec.head, spec.LanguageModelSpec):
            about |= {"starts": start_tokens(bundle, bundle.spec), "ends": end_tokens(bundle)}
        write_sidecars(bundle, whole, about)
    return Exported(folder=path, notes=language_note(bundle))


def _plain(model: AnyModel) -> AnyModel:
    """The model in float32 on the CPU; itself where it is that already."""
    if not isinstance(model, nn.Module) or all(
        p.is_cpu and p.dtype == torch.float32 for p in model.parameters()
    ):
        return model
    return copy.deepcopy(model).float().cpu()


def _program(graph: Graph) -> Any:
    """The graph as torch's exporter makes it, tidied."""
    sizes = tuple(
        {n: size for n, size in enumerate(port.shape) if isinstance(size, str)} for port in graph.inputs
    )
    # what a module takes as *args is one entry
    fixed = 0 if isinstance(graph.module, Whole) else 2
    shapes = (*sizes[:fixed], sizes[fixed:]) if len(sizes) > fixed else sizes
    with torch.no_grad(), _quietly():
        program = torch.onnx.export(
            graph.module.eval(),
            graph.sample(),
            dynamo=True,
            opset_version=OPSET,
            dynamic_shapes=shapes,
            input_names=[port.name for port in graph.inputs],
            output_names=list(graph.outputs),
            optimize=False,
            verbose=False,
        )
        assert program is not None
        _tidy(program.model)
    return program


def _tidy(model: Any) -> None:
    """Fold what is constant, but no weight: turned over, a shared one would be stored twice and nameless."""
    import_module("onnxscript.optimizer").optimize_ir(
        model, should_fold=lambda node: False if node.op_type == "Transpose" else None
    )
    model.producer_name = "glassformer"
    for value in list(model.graph.initializers.values()):
        value.name = value.name.removeprefix("model.")  # the graph's own name for the model it holds
    # the traces of where each node came from name this machine's folders
    model.graph.metadata_props.clear()
    for node in model.graph.all_nodes():
        node.metadata_props.clear()
        for value in node.outputs:
            value.metadata_props.clear()


def _port(value: Any) -> Port:
    shape = tuple(size if isinstance(size, int) else str(size) for size in value.shape)
    kinds = {"FLOAT": "float32", "BOOL": "bool", "INT64": "int64"}
    return Port(value.name, kinds[value.dtype.name], shape)


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the exporter's remarks on packages it can do without."""
    talker = logging.getLogger("torch.onnx")
    before = talker.level
    talker.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        talker.setLevel(before)


class LookedUp(nn.Module):
    """A `RelativeBias` whose buckets are a table: elsewhere a logarithm may round to another."""

    table: Tensor

    def __init__(self, own: RelativeBias) -> None:
        super().__init__()
        self.weight, self.most = own.weight, own.max_distance
        distances = torch.arange(-self.most, self.most + 1)
        table = relative_position_bucket(
            distances, buckets=own.buckets, max_distance=own.max_distance, bidirectional=own.bidirectional
        )
        self.register_buffer("table", table, persistent=False)

    def forward(self, positions: Tensor, keys: Tensor) -> PositionTerms:
        """query positions (1, T) and key positions (1, S) -> bias (1, H, T, S)."""
        distance = keys[:, None, :] - positions[:, :, None]  # (1, T, S)
        rows = self.table[distance.clamp(-self.most, self.most) + self.most]
        return PositionTerms(bias=nn.functional.embedding(rows, self.weight).permute(0, 3, 1, 2))


@contextmanager
def _looked_up(model: AnyModel) -> Iterator[None]:
    """The model with its relative positions looked up, meanwhile."""
    stacks: list[Any] = [part for part in model.modules() if isinstance(part, Stack)]
    own = {stack: stack.position for stack in stacks if isinstance(stack.position, RelativeBias)}
    for stack, position in own.items():
        stack.position = LookedUp(position)
    try:
        yield
    finally:
        for stack, position in own.items():
            stack.position = position


# ---- graphs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
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
    if isinstance(model, EncoderDecoder) and isinstance(model.spec.head, spec.LanguageModelSpec):
        return [_encoder(model), _step(model, model.spec.target)]
    if isinstance(model, DecoderOnly) and isinstance(model.spec.head, spec.LanguageModelSpec):
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
        memory = self.model.encode(ids, Mask(padding=mask, offset=0), kernel=KERNEL)
        given = [memory]
        for attention in self.model.decoder.cross_attentions:
            given += [part.transpose(1, 2) for part in attention.keys_values(memory)]  # (B, G, S, K)
        return tuple(given)


class DecodeStep(nn.Module):
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


def _step(model: EncoderDecoder | DecoderOnly, tokens: spec.InputSpec) -> Graph:
    what = model.spec
    if not what.decoder.num_layers:
        raise UnsupportedError("export to ONNX", "a decoder without layers")
    ids = _read(tokens, "length")[0]
    mask = Port("mask", "bool", ("batch", "keys"))
    past = _kept(what.decoder, "attention", "past", "past")
    before: tuple[Port, ...] = ()
    if isinstance(what, spec.EncoderDecoderSpec):
        before = (Port("memory_mask", "bool", ("batch", "source")), *_across(what))
    return Graph(
        name="decoder" if before else "model",
        module=DecodeStep(model),
        inputs=(ids, mask, *before, *past),
        outputs=("logits", *(port.name.replace("past", "present") for port in past)),
    )


def _across(what: spec.EncoderDecoderSpec) -> tuple[Port, ...]:
    return _kept(what.decoder, "cross_attention", "cross", "source")


def _kept(stack: spec.StackSpec, kind: str, word: str, length: str) -> tuple[Port, ...]:
    """Keys and values of every layer; kind: `attention` or `cross_attention`."""
    ports = []
    for n in range(stack.num_layers):
        attention: spec.AttentionSpec = getattr(stack.block_at(n), kind)
        heads = attention.num_kv_heads or attention.num_heads
        width = attention.head_dim or stack.d_model // attention.num_heads
        for part, wide in {"key": width, "value": attention.value_dim or width}.items():
            shape = ("batch", heads, length, wide)
            ports.append(Port(f"{word}_{n}_{part}", "float32", shape))
    return tuple(ports)


# ---- reading, all at once -----------------------------------------------------------------------------


class Whole(nn.Module):
    """Everything the model takes, in its ports' order -> what its head gives."""

    def __init__(self, model: AnyModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, given, strict=True))
        # an offset, or the queries' positions would be fixed at the sizes tried
        masks = [Mask(padding=named[n], offset=0) for n in ("mask", "target_mask") if n in named]
        inputs = [given[0], named["target"]] if isinstance(self.model, EncoderDecoder) else [given[0]]
        more = {name: named[name] for name in ("types", "observed", "masked_patches") if name in named}
        found = self.model(*inputs, *masks, kernel=KERNEL, **more)
        return (found,) if isinstance(found, Tensor) else tuple(found)


def _whole(model: AnyModel) -> Graph:
    what = model.spec
    if isinstance(what, spec.EncoderDecoderSpec):
        inputs = _read(what.source, "source")
        same = "length" if isinstance(what.head, spec.FeaturesSpec) else "source"
        for port, name in zip(_read(what.target, same), ("target", "target_mask"), strict=False):
            inputs += (replace(port, name=name),)
    else:
        inputs = _read(what.input, "length", what.head)
    module = Whole(model, tuple(port.name for port in inputs))
    return Graph(name="model", module=module, inputs=inputs, outputs=_given(what.head))


def _given(head: spec.HeadSpec) -> tuple[str, ...]:
    """The names of what a head gives."""
    match head:
        case spec.FeaturesSpec(pooler=True):
            return PooledOutput._fields
        case spec.DistilledClassifySpec():
            return DistilledLogits._fields
        case spec.AnswerSpec():
            return SpanLogits._fields
        case spec.ForecastSpec() | spec.SeriesRegressSpec() if head.distribution != "none":
            return DISTRIBUTIONS[head.distribution]._fields
    return (GIVEN.get(type(head), "logits"),)


def _read(what: spec.InputSpec, length: str, head: spec.HeadSpec | None = None) -> tuple[Port, ...]:
    """What an input takes."""
    ports: tuple[Port, ...]
    match what:
        case spec.TokensSpec():
            ports = (Port("ids", "int64", ("batch", length)), Port("mask", "bool", ("batch", length)))
            return ports if what.types is None else (*ports, Port("types", "int64", ("batch", length)))
        case spec.ImagePatchesSpec():
            return (Port("images", "float32", ("batch", what.channels, *what.image_size)),)
        case spec.SeriesPatchesSpec():
            size = ("batch", what.context_length, what.channels)
            ports = (Port("values", "float32", size), Port("observed", "bool", size))
            if isinstance(head, spec.PatchReconstructSpec):
                ports += (Port("masked_patches", "bool", ("batch", what.channels, what.num_patches)),)
            return ports
    raise UnsupportedError("export to ONNX", "models that read vectors")
