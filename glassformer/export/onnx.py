"""Export a model to ONNX files with dynamic batch size and length; masks and the KV cache are inputs.

Weights keep their names, and shared weights are stored once. `export.json` lists the inputs and outputs of
each file. A generating model is exported as a decode step, which takes the past keys and values and returns
them extended by those of the new tokens. The encoder's graph returns the keys and values for cross-attention.

Letters: B batch, T new tokens, S source tokens, P tokens so far, G key/value heads, K head width.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.heads import PooledOutput, SpanLogits
from glassformer.core.inputs import Masks, Memory, SeriesInputs, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.kv_cache import KVCache, LayerCache
from glassformer.core.masks import Mask
from glassformer.core.model import AnyModel, DecoderOnly, EncoderDecoder, EncoderOnly
from glassformer.core.positions import (
    AttentionPosition,
    DisentangledPositions,
    PositionTerms,
    RelativeBias,
    relative_position_bucket,
)
from glassformer.core.series.distributions import DISTRIBUTIONS
from glassformer.core.stack import Stack
from glassformer.core.vision.convolution.pixel_head import PixelOutput
from glassformer.core.vision.heads import BackboneOutput, DistilledLogits
from glassformer.errors import InvalidValueError, MissingDependencyError, UnsupportedError
from glassformer.export.folder import (
    ExportResult,
    end_tokens,
    language_note,
    require_new_folder,
    start_tokens,
    write_sidecars,
)
from glassformer.inference.prepare import evaluation_mode
from glassformer.weights.atomic_write import atomic_folder

Dtype = Literal["float32", "int8"]
OPSET = 18
MAX_EMBEDDED = 2_000_000_000  # bytes of weights in the .onnx file itself: a protobuf message has at most 2 GB

# Fully masked rows must give zeros in every runtime; a fused operator may give NaN, which would propagate
# from padding to other positions.
KERNEL: Kernel = "explicit"

# functions that return the names of a head's outputs, by its kind; a head that is missing here is refused
OUTPUT_NAMES: dict[str, Callable[[Any], tuple[str, ...]]] = {
    **dict.fromkeys(("LanguageModel", "MaskedLanguageModel"), lambda head: ("logits",)),
    **dict.fromkeys(
        ("Classify", "TokenClassify", "ReplacedToken", "SeriesClassify"), lambda head: ("logits",)
    ),
    "Pixels": lambda head: PixelOutput._fields if head.instances else ("logits",),
    "Features": lambda head: PooledOutput._fields if head.pooler or head.pool is not None else ("hidden",),
    "Embed": lambda head: ("embedding",),
    **dict.fromkeys(("Projection", "AttentionPool"), lambda head: PooledOutput._fields),
    "Backbone": lambda head: tuple(f"feature_maps.{n}" for n in range(len(head.layers))),
    "DistilledClassify": lambda head: DistilledLogits._fields,
    "Answer": lambda head: SpanLogits._fields,
    "Boxes": lambda head: ("logits", "boxes"),
    "Forecast": lambda head: _parameter_names(head) or ("forecast",),
    "SeriesRegress": lambda head: _parameter_names(head) or ("targets",),
    "PatchReconstruct": lambda head: ("patches",),
}
# example sizes to trace a graph with: all different, and none 0 or 1, which would be treated as constants
SIZES = {"batch": 2, "length": 3, "past": 4, "source": 5, "keys": 7, "height": 160, "width": 224}


def _require_exporter() -> None:
    try:
        import_module("onnx")
        import_module("onnxscript")
    except ImportError:
        raise MissingDependencyError("onnxscript", "export") from None


def export_onnx(bundle: Bundle, folder: str | Path, dtype: Dtype = "float32") -> ExportResult:
    """Export a model to a new or empty folder. dtype: "int8" stores the matrices as int8; see `onnx_int8`."""
    if dtype not in get_args(Dtype):
        raise InvalidValueError("dtype", dtype, f"{' or '.join(get_args(Dtype))} for ONNX")
    _require_exporter()
    path = require_new_folder(folder)
    model = _to_float32_cpu(bundle.model)
    graphs = graphs_of(model)
    files: dict[str, Any] = {}
    with atomic_folder(path) as temporary, evaluation_mode(model), _tabulated_positions(model):
        for graph in graphs:
            program = _program(graph)
            if dtype == "int8":
                from glassformer.export.onnx_int8 import Int8Graph

                Int8Graph(program.model.graph).quantize()
            name = f"{graph.name}.onnx"
            size = sum(value.const_value.nbytes for value in program.model.graph.initializers.values())
            program.save(temporary / name, external_data=size > MAX_EMBEDDED)
            files[name] = {
                "inputs": [asdict(port) for port in graph.inputs],
                "outputs": [asdict(_port(value)) for value in program.model.graph.outputs],
            }
        metadata: dict[str, Any] = {"format": "onnx", "dtype": dtype, "opset": OPSET, "files": files}
        if bundle.spec.yields == "next tokens":
            metadata |= {"starts": start_tokens(bundle, bundle.spec), "ends": end_tokens(bundle)}
        write_sidecars(bundle, temporary, metadata)
    return ExportResult(folder=path, notes=language_note(bundle))


def _to_float32_cpu(model: AnyModel) -> AnyModel:
    """Return the model in float32 on the CPU, without a copy if possible."""
    if not isinstance(model, nn.Module) or all(
        p.is_cpu and p.dtype == torch.float32 for p in model.parameters()
    ):
        return model
    return copy.deepcopy(model).float().cpu()


def _program(graph: Graph) -> Any:
    """Export one graph with torch, and clean it up."""
    sizes = tuple(
        {n: size for n, size in enumerate(port.shape) if isinstance(size, str)} for port in graph.inputs
    )
    # *args is a single entry of dynamic_shapes
    fixed = 0 if isinstance(graph.module, FullForward) else 2
    shapes = (*sizes[:fixed], sizes[fixed:]) if len(sizes) > fixed else sizes
    with torch.no_grad(), _silenced():
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
        _clean_up(program.model)
    return program


def _clean_up(model: Any) -> None:
    """Fold constants, but not transposed weights: shared weights would be stored twice, without a name."""
    import_module("onnxscript.optimizer").optimize_ir(
        model, should_fold=lambda node: False if node.op_type == "Transpose" else None
    )
    model.producer_name = "glassformer"
    for value in list(model.graph.initializers.values()):
        value.name = value.name.removeprefix("model.")  # the attribute of the graph's module
    # the metadata contains stack traces with local paths
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
def _silenced() -> Iterator[None]:
    """Suppress the exporter's warnings about optional packages."""
    logger = logging.getLogger("torch.onnx")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


class TabulatedRelativeBias(AttentionPosition):
    """A `RelativeBias` with a bucket table, because other runtimes may round the logarithm differently."""

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
        """Return the bias (1, H, T, S) for query positions (1, T) and key positions (1, S)."""
        distance = keys[:, None, :] - positions[:, :, None]  # (1, T, S)
        rows = self.table[distance.clamp(-self.most, self.most) + self.most]
        return PositionTerms(bias=nn.functional.embedding(rows, self.weight).permute(0, 3, 1, 2))


class TabulatedDisentangledPositions(DisentangledPositions):
    """`DisentangledPositions` with a table of rows, for the same reason."""

    table: Tensor

    def __init__(self, own: DisentangledPositions) -> None:
        nn.Module.__init__(self)
        self.weight, self.norm = own.weight, own.norm
        self.max_distance, self.kinds, self.dropout = own.max_distance, own.kinds, own.dropout
        distances = torch.arange(-self.max_distance, self.max_distance + 1)  # farther ones have the same row
        self.register_buffer("table", own.rows(distances), persistent=False)

    def rows(self, distance: Tensor) -> Tensor:
        return self.table[distance.clamp(-self.max_distance, self.max_distance) + self.max_distance]


_TABULATED: dict[type, Callable[[Any], nn.Module]] = {
    RelativeBias: TabulatedRelativeBias,
    DisentangledPositions: TabulatedDisentangledPositions,
}


@contextmanager
def _tabulated_positions(model: AnyModel) -> Iterator[None]:
    """Replace a model's relative positions with tabulated ones inside the block."""
    stacks: list[Any] = [part for part in model.modules() if isinstance(part, Stack)]
    own = {stack: stack.position for stack in stacks if type(stack.position) in _TABULATED}
    for stack, position in own.items():
        stack.position = _TABULATED[type(position)](position)
    try:
        yield
    finally:
        for stack, position in own.items():
            stack.position = position


# ---- graphs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Port:
    """An input or output tensor; strings in its shape are dynamic sizes."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """One ONNX file: the module to trace, its inputs, and the names of its outputs, in order."""

    name: str
    module: nn.Module
    inputs: tuple[Port, ...]
    outputs: tuple[str, ...]

    def sample(self) -> tuple[Tensor, ...]:
        """Create example inputs: all ids 0, nothing masked."""
        kinds = {"bool": torch.bool, "int64": torch.int64, "float32": torch.float32}
        inputs = [
            torch.ones([SIZES[n] if isinstance(n, str) else n for n in port.shape], dtype=kinds[port.dtype])
            for port in self.inputs
        ]
        return tuple(x * 0 if x.dtype == torch.int64 else x for x in inputs)


def graphs_of(model: AnyModel) -> list[Graph]:
    """Return the graphs to export for a model."""
    known: Any = model
    if isinstance(model, EncoderDecoder | DecoderOnly | EncoderOnly):
        if model.spec.yields != "next tokens" or model.spec.architecture == "encoder-only":
            return [_forward_graph(known)]
        if model.spec.modalities != ("text",):
            raise UnsupportedError("export to ONNX", "models that read images, with a text decoder")
        pair = len(model.spec.embeddings()) == 2
        return [_encoder_graph(known), _decode_step_graph(known)] if pair else [_decode_step_graph(known)]
    hint = 'in Python, export one of them: export_onnx(pipeline.tower("image"), folder), or "text"'
    hint = hint if "image" in model.spec.children() else ""
    raise UnsupportedError("export to ONNX", model.spec.architecture, hint=hint)


# ---- decode steps ------------------------------------------------------------------------


class PastCache(KVCache):
    """A KV cache for tracing: past keys and values are graph inputs, the extended ones outputs."""

    def __init__(self, layers: list[LayerCache], past: int) -> None:
        self.layers, self.length, self.past = layers, torch.full((), past), past

    def begin_step(self, batch: int, steps: int) -> int:
        return self.past + steps

    def append(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        own = self.layers[layer]
        own.k, own.v = torch.cat((own.k, k), 2), torch.cat((own.v, v), 2)
        return own.k, own.v

    def advance(self, steps: int = 1) -> None:
        """Do nothing: keys and values were already appended."""


class EncodeSource(nn.Module):
    """Encoder: ids and mask (B, S) -> memory (B, S, D) and the cross-attention keys and values per layer."""

    def __init__(self, model: EncoderDecoder) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        memory = self.model.encode(ids, Mask(padding=mask, offset=0), kernel=KERNEL)
        outputs = [memory]
        for attention in self.model.decoder.cross_attentions:
            outputs += [part.transpose(1, 2) for part in attention.keys_values(memory)]  # (B, G, S, K)
        return tuple(outputs)


class DecodeStep(nn.Module):
    """ids (B, T), mask (B, P+T), past keys and values -> logits (B, T, V), extended keys and values.

    In an encoder-decoder, the source mask and the cross-attention keys and values come before the past.
    """

    def __init__(self, model: EncoderDecoder | DecoderOnly) -> None:
        super().__init__()
        self.model: Any = model

    def forward(self, ids: Tensor, mask: Tensor, *cache_tensors: Tensor) -> tuple[Tensor, ...]:
        count = 2 * len(self.model.decoder.blocks)
        past = cache_tensors[-count:]
        layers: list[LayerCache] = [LayerCache(k=past[n], v=past[n + 1]) for n in range(0, count, 2)]
        cache = PastCache(layers, past[0].shape[2])
        if len(self.model.spec.embeddings()) == 1:
            logits = self.model(ids, mask, cache=cache, kernel=KERNEL)
        else:
            memory_mask, cross = cache_tensors[0], cache_tensors[1 : 1 + count]
            for n, layer in enumerate(layers):
                layer.cross = (cross[2 * n], cross[2 * n + 1])
            # only its shape matters: the keys and values are inputs
            width = self.model.spec.encoder.d_model
            vectors = cross[0].new_zeros(ids.shape[0], memory_mask.shape[1], width)
            memory = Memory(vectors, Mask(padding=memory_mask))
            text = TextInputs(ids, Mask(padding=mask))
            logits = self.model.decode(text, memory, cache=cache, kernel=KERNEL)
        return (logits, *(part for layer in layers for part in (layer.k, layer.v)))


def _encoder_graph(model: EncoderDecoder) -> Graph:
    model_spec = model.spec
    return Graph(
        name="encoder",
        module=EncodeSource(model),
        inputs=_input_ports(model_spec.source, "source"),
        outputs=("memory", *(port.name for port in _cross_ports(model_spec))),
    )


def _decode_step_graph(model: EncoderDecoder | DecoderOnly) -> Graph:
    model_spec: Any = model.spec
    *sources, tokens = model_spec.embeddings().values()
    if not model_spec.decoder.num_layers:
        raise UnsupportedError("export to ONNX", "a decoder without layers")
    ids = _input_ports(tokens, "length")[0]
    mask = Port("mask", "bool", ("batch", "keys"))
    past = _kv_ports(model_spec.decoder, "attention", "past", "past")
    source: tuple[Port, ...] = ()
    if sources:
        source = (Port("memory_mask", "bool", ("batch", "source")), *_cross_ports(model_spec))
    return Graph(
        name="decoder" if source else "model",
        module=DecodeStep(model),
        inputs=(ids, mask, *source, *past),
        outputs=("logits", *(port.name.replace("past", "present") for port in past)),
    )


def _cross_ports(model_spec: spec.EncoderDecoderSpec) -> tuple[Port, ...]:
    return _kv_ports(model_spec.decoder, "cross_attention", "cross", "source")


def _kv_ports(stack: spec.StackSpec, kind: str, prefix: str, length: str) -> tuple[Port, ...]:
    """Return the ports of the keys and values of every layer. kind: `attention` or `cross_attention`."""
    ports = []
    for n in range(stack.num_layers):
        attention: spec.AttentionSpec = getattr(stack.block_at(n), kind)
        heads = attention.num_kv_heads or attention.num_heads
        width = attention.head_dim or stack.d_model // attention.num_heads
        for part, wide in {"key": width, "value": attention.value_dim or width}.items():
            shape = ("batch", heads, length, wide)
            ports.append(Port(f"{prefix}_{n}_{part}", "float32", shape))
    return tuple(ports)


# ---- full forward pass -----------------------------------------------------------------------------


class FullForward(nn.Module):
    """The full forward pass: from all inputs, in the order of the ports, to the outputs of the head."""

    def __init__(self, model: AnyModel, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.names, inputs, strict=True))
        # with an offset, or tracing would make the query positions constants
        masks = [Mask(padding=named[n], offset=0) for n in ("mask", "target_mask") if n in named]
        if "target" in named:
            output = self.model(inputs[0], named["target"], Masks(*masks), kernel=KERNEL)
        elif "observed" in named:
            output = self.model(SeriesInputs(**named), kernel=KERNEL)
        elif masks:
            text = TextInputs(inputs[0], masks[0], named.get("types"))
            output = self.model(text, kernel=KERNEL)
        else:
            output = self.model(inputs[0], kernel=KERNEL)
        if isinstance(output, BackboneOutput):
            return output.feature_maps
        return (output,) if isinstance(output, Tensor) else tuple(t for t in output if isinstance(t, Tensor))


def _forward_graph(model: EncoderDecoder | DecoderOnly | EncoderOnly) -> Graph:
    model_spec = model.spec
    *sources, read = model_spec.embeddings().values()
    if sources:
        inputs = _input_ports(sources[0], "source")
        same = "length" if model_spec.yields == "hidden states" else "source"
        for port, name in zip(_input_ports(read, same), ("target", "target_mask"), strict=False):
            inputs += (replace(port, name=name),)
    else:
        inputs = _input_ports(read, "length", model_spec.head)
    module = FullForward(model, tuple(port.name for port in inputs))
    return Graph(name="model", module=module, inputs=inputs, outputs=_output_names(model_spec.head))


def _parameter_names(head: Any) -> tuple[str, ...]:
    """Return the names of the parameters of a predicted distribution; none without one."""
    return () if head.distribution == "none" else DISTRIBUTIONS[head.distribution]._fields


def _output_names(head: spec.HeadSpec) -> tuple[str, ...]:
    """Return the names of a head's outputs."""
    if head.kind not in OUTPUT_NAMES:
        raise UnsupportedError("export to ONNX", f"the head {head.kind}")
    return OUTPUT_NAMES[head.kind](head)


def _input_ports(
    input_spec: spec.InputSpec, length: str, head: spec.HeadSpec | None = None
) -> tuple[Port, ...]:
    """Return the ports of one model input."""
    if input_spec.kind not in INPUT_PORTS:
        raise UnsupportedError("export to ONNX", f"models that read {input_spec.kind}")
    return INPUT_PORTS[input_spec.kind](input_spec, length, head)


def _token_ports(tokens: spec.TokensSpec, length: str, head: spec.HeadSpec | None) -> tuple[Port, ...]:
    dtypes = {"ids": "int64", "mask": "bool"} | ({} if tokens.types is None else {"types": "int64"})
    return tuple(Port(name, dtype, ("batch", length)) for name, dtype in dtypes.items())


def _series_ports(
    patches: spec.SeriesPatchesSpec, length: str, head: spec.HeadSpec | None
) -> tuple[Port, ...]:
    size = ("batch", patches.context_length, patches.channels)
    ports = (Port("values", "float32", size), Port("observed", "bool", size))
    if head is None or head.yields != "patches":
        return ports
    return (*ports, Port("masked_patches", "bool", ("batch", patches.channels, patches.num_patches)))


def _image_ports(*size: int | str) -> tuple[Port, ...]:
    return (Port("images", "float32", ("batch", *size)),)


# functions that return the ports of an input, by its kind
INPUT_PORTS: dict[str, Callable[[Any, str, spec.HeadSpec | None], tuple[Port, ...]]] = {
    "Tokens": _token_ports,
    "ImagePatches": lambda image, length, head: _image_ports(image.channels, *image.image_size),
    "FeatureMap": lambda image, length, head: _image_ports(image.backbone.channels, "height", "width"),
    "ObjectQueries": lambda queries, length, head: (),
    "SeriesPatches": _series_ports,
}
