"""A trace as an exported page stores it: 16-bit numbers, compressed, and no tensor that the page can compute.

Large tensors are float16, which keeps three digits (the third may differ by one). A tensor that follows from
others, such as a sum, a norm or the weighted values, is stored as a formula, which is checked against the
recorded tensor. Chunks hold one layer each, so that a site can load them when needed.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.core.backend import ACTIVATIONS
from glassformer.core.norms import LayerNorm, RMSNorm
from glassformer.errors import GlassformerError, UnknownNameError, UnsupportedError
from glassformer.interpret.schema import (
    AttentionInfo,
    ModelInfo,
    StackPass,
    Stage,
    TokenFlow,
    TooLargeError,
    TraceInfo,
    to_json,
)
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.trace import Trace

EXACT = 4096  # numbers; tensors with more have 16 bits
MAX_FLOAT16 = 65504.0
NEXT_TOKENS = 50
MAX_FLOWS = 64  # tokens of a text that can be followed
SCORES = ("dot", "scaled", "masked")  # of attention, before the softmax
FIRST_ROWS = 256  # of a position table; the page draws as many
LAST = ("up", "gate", "act", "logits", *SCORES)  # the first to be left out if space is short


@dataclass
class StoredTrace:
    """index: the JSON that describes the trace. chunks: compressed tensors by name of the chunk."""

    index: dict[str, Any]
    chunks: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)

    def add(self, name: str, values: np.ndarray[Any, Any], chunk: str, space: int) -> int:
        """Add a tensor to a chunk if it fits into the space; return the bytes that it takes."""
        data, before = zlib.compress(_planes(values), 9), self.chunks.get(chunk, b"")
        if len(data) > space:
            self.left_out.append(name)
            return 0
        self.chunks[chunk] = before + data
        entry = {"shape": values.shape, "dtype": values.dtype.name, "chunk": chunk}
        self.index["tensors"][name] = entry | {"start": len(before), "end": len(before) + len(data)}
        return len(data)

    def texts(self) -> dict[str, str]:
        """Return the index and the chunks as base64, by name; the index has the name ""."""
        index = json.dumps(to_json(self.index), ensure_ascii=False, allow_nan=False)
        parts = {"": zlib.compress(index.encode(), 9), **self.chunks}
        return {name: base64.b64encode(part).decode() for name, part in parts.items()}


def store_trace(trace: Trace, model: ModelInfo, max_bytes: int) -> StoredTrace:
    """Store a trace with all data that the page may request about it, in at most `max_bytes` of tensors."""
    from glassformer.interpret.head_patterns import describe_heads
    from glassformer.interpret.logit_lens import logit_lens, next_tokens
    from glassformer.interpret.search_view import search_tree
    from glassformer.interpret.views import view_of

    info, input = trace.info(), trace.prepared.input
    has_texts = trace.bundle.tokenizer is not None or input.text is None  # to name what the head predicts
    lens: list[Any] = []
    following: list[Any] = []
    with suppress(UnsupportedError, UnknownNameError):  # no tokens or labels, or not recorded
        positions = range(len(info.sequences[-1]) if has_texts else 0)
        lens = [logit_lens(trace, at) for at in positions]
        following = [next_tokens(trace, at, NEXT_TOKENS) for at in positions]
    search = None
    if has_texts and view_of(trace.bundle).generates:
        search = search_tree(trace.bundle, text=input.text, image=input.image, to=input.to)
    heads = describe_heads(trace)
    index = {"model": model, "trace": info, "heads": heads, "lens": lens, "next": following, "search": search}
    index |= {"flows": _flows(trace), "tensors": {}, "stories": (), "start": ""}
    stored = StoredTrace(index)
    _TensorWriter(trace, info, model, stored, max_bytes).write()
    return stored


def _flows(trace: Trace) -> list[TokenFlow]:
    """Return the flows of the default token and of a text, without their vectors, which are tensors."""
    from glassformer.interpret.token_flow import token_flow

    last = trace.sequences[-1]
    positions = range(len(last)) if last.kind == "text" and len(last) <= MAX_FLOWS else ()
    try:
        flows = [token_flow(trace), *(token_flow(trace, last.name, position) for position in positions)]
    except (UnsupportedError, UnknownNameError):
        return []

    def without_vectors(one: StackPass) -> StackPass:
        return replace(one, vectors=dict.fromkeys(one.vectors, ()))

    return [replace(flow, passes=tuple(without_vectors(one) for one in flow.passes)) for flow in flows]


def store_run(stored: StoredTrace) -> None:
    """Add the example run, with the heads of its snapshots."""
    from glassformer.interpret.runs import EXAMPLE_RUN, SnapshotViewer, describe_run
    from glassformer.interpret.trace import TraceStore

    traces, id = TraceStore(), EXAMPLE_RUN.name
    snapshots = SnapshotViewer(traces).view(EXAMPLE_RUN, id=id)
    stored.index |= {"run": describe_run(EXAMPLE_RUN, id=id), "snapshots": snapshots}
    for snapshot in snapshots.snapshots:
        trace = traces.get(snapshot.trace_id)
        for attention in trace.attentions():
            values = read_tensor(trace, f"{attention.name}.thumbnails").values.numpy()
            stored.add(f"{trace.id}/{attention.name}.thumbnails", values, "run", len(values.tobytes()))


class _TensorWriter:
    """Write the tensors of a trace into the chunks of a stored trace."""

    def __init__(
        self, trace: Trace, info: TraceInfo, model: ModelInfo, stored: StoredTrace, max_bytes: int
    ) -> None:
        self.trace, self.info, self.model, self.stored = trace, info, model, stored
        self.space = max_bytes
        self.extra: dict[str, Tensor] = {}  # parameters and masks that a formula needs
        self.formulas: dict[str, dict[str, Any]] = {}
        self.matrices: dict[str, dict[str, Any]] = {}

    def write(self) -> None:
        for attention in self.info.attentions:
            if attention.windows is None:
                self._add_matrix(attention)
        for stage in self.info.stages:
            self._add_formulas(stage)
        self._add_repeated()
        self.stored.index["tensors"] |= self.formulas
        names = dict.fromkeys((*self._tensor_names(), *self.trace.derived, *self.extra))
        for name in sorted(names.keys() - self.formulas.keys(), key=self._order):
            if self._raw_bytes(name) > 8 * self.space:  # saves the time to compute it
                self.stored.left_out.append(name)
                continue
            try:
                values = self._read(name)
            except TooLargeError:
                self.stored.left_out.append(name)
                continue
            except GlassformerError:
                continue  # this model has no such tensor
            self.space -= self.stored.add(name, values, _chunk_of(name), self.space)
        self.stored.index |= {"matrices": self.matrices, "left_out": len(self.stored.left_out)}

    def _raw_bytes(self, name: str) -> int:
        """The size of a tensor of the record in float16, or of an attention matrix; 0 if it is not known."""
        if name in self.info.tensors:
            return 2 * math.prod(self.info.tensors[name])
        owner, _, tail = name.rpartition(".")
        if tail not in (*SCORES, "weights") or f"{owner}.q" not in self.info.tensors:
            return 0
        q, k = (self.info.tensors[f"{owner}.{part}"] for part in "qk")
        return 2 * math.prod(q[:3]) * k[2]

    def _order(self, name: str) -> tuple[bool, bool, str]:
        """Small tensors first, then queries and keys, which give the weights, and the widest last."""
        size = self._raw_bytes(name)
        return (
            size > 2 * EXACT and name.endswith(LAST),
            size > 2 * EXACT and name[-2:] not in (".q", ".k"),
            name,
        )

    def _read(self, name: str) -> np.ndarray[Any, Any]:
        if name in self.extra:
            tensor = self.extra[name].detach().cpu()
        else:
            first = f"0:{FIRST_ROWS}" if name.endswith(".position.table") else ""
            try:
                tensor = read_tensor(self.trace, name, first).values
            except ValueError:  # fewer rows
                tensor = read_tensor(self.trace, name).values
        values = tensor.contiguous().numpy()
        is_large = values.size > EXACT and values.dtype == np.float32
        if (
            is_large
            and np.abs(values, where=np.isfinite(values), out=np.zeros_like(values)).max() < MAX_FLOAT16
        ):
            values = values.astype(np.float16)
        return values

    def _add_matrix(self, attention: AttentionInfo) -> None:
        """Describe how the page computes the matrices of an attention layer from queries and keys."""
        name, context = attention.name, self.trace.record.attention_contexts[attention.name]
        q, k = (self.trace.record[f"{name}.{part}"] for part in "qk")
        allowed = context.mask.to_dense(q.shape[2], k.shape[2], q.device)
        matrix: dict[str, Any] = {"scale": context.scale, "softcap": context.softcap}
        if allowed is not None and not bool(allowed.all()):
            matrix["mask"] = f"{name}.mask"
            shape = (*allowed.shape[:2], q.shape[2], k.shape[2])
            self.extra[f"{name}.mask"] = allowed.expand(shape).to(torch.uint8)
        if context.bias is not None:
            matrix["bias"] = f"{name}.bias"
            shape = (*context.bias.shape[:2], q.shape[2], k.shape[2])
            self.extra[f"{name}.bias"] = context.bias.float().expand(shape)
        self.matrices[name] = matrix

    def _add_formulas(self, stage: Stage) -> None:
        """Propose formulas for the tensors of a stage; those that give the recorded values are kept."""
        roles = stage.tensors
        if stage.kind == "attention":
            owner = roles["q"].removesuffix(".q") if "q" in roles else ""
            if owner in self.matrices and {"v", "heads"} <= roles.keys():
                self.formulas[roles["heads"]] = {"of": "heads", "from": [owner, roles["v"]]}
        elif stage.kind == "feed_forward" and {"up", "act"} <= roles.keys():
            activation = next(one for one in self.model.outline.stacks if one.name == stage.stack).activation
            inputs = [roles[role] for role in ("gate", "up") if role in roles]
            first, *rest = (self.trace.record[name] for name in inputs)
            value = ACTIVATIONS[activation](first)  # type: ignore[index]
            for other in rest:
                value = value * other
            self._keep(roles["act"], {"of": activation, "from": inputs}, value)
        elif stage.kind in ("add_norm", "final_norm"):
            added = [roles[role] for role in ("before", "sublayer", "sublayer_ffn") if role in roles]
            if "sum" in roles and len(added) > 1:
                value = torch.stack([self.trace.record[name] for name in added]).sum(0)
                self._keep(roles["sum"], {"of": "sum", "from": added}, value)
            for target in (roles[role] for role in ("normed", "normed_ffn", "after") if role in roles):
                for source in (roles[role] for role in ("before", "sum", "sublayer") if role in roles):
                    self._add_norm(target, source)

    def _add_norm(self, target: str, source: str) -> None:
        try:
            norm = self.trace.bundle.model.get_submodule(target)
        except AttributeError:  # the tensor is not the output of a module
            return
        parameters: dict[str, Tensor | None]
        match norm:
            case LayerNorm():
                kind, parameters = "layer_norm", {"weight": norm.weight, "bias": norm.bias}
            case RMSNorm():
                kind, parameters = "rms_norm", {"weight": norm.scale}
            case _:
                return
        used = {f"{target}.{name}": tensor for name, tensor in parameters.items() if tensor is not None}
        if self.trace.record[target].numel() < 2 * sum(tensor.numel() for tensor in used.values()):
            return  # the parameters would take as much space
        formula = {"of": kind, "from": [source, *used], "eps": norm.eps}
        with torch.inference_mode():
            value = norm(self.trace.record[source])
        if self._keep(target, formula, value):
            self.extra |= used

    def _keep(self, name: str, formula: dict[str, Any], value: Any) -> bool:
        """Keep a formula if its value is the recorded tensor, and if no other formula gives it."""
        recorded = self.trace.record[name].float()
        if name in self.formulas or value.shape != recorded.shape:
            return False
        tolerance = 1e-4 * float(recorded.abs().max())
        if not torch.allclose(value.float(), recorded, rtol=1e-4, atol=tolerance):
            return False
        self.formulas[name] = formula
        return True

    def _add_repeated(self) -> None:
        """Store tensors that share memory once, such as the output of a layer and the input of the next."""
        first: dict[tuple[Any, ...], str] = {}
        for name in self.info.tensors:
            tensor = self.trace.record[name]
            other = first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name)
            if other != name:
                self.formulas[name] = {"of": "same", "from": [other]}

    def _tensor_names(self) -> Iterator[str]:
        yield from self.info.tensors
        yield "head.confidence"
        for attention in self.info.attentions:
            yield f"{attention.name}.thumbnails"
            if attention.name not in self.matrices:
                yield from (f"{attention.name}.{tail}" for tail in (*SCORES, "weights"))
            if attention.bias_table is not None:
                yield attention.bias_table
        for stack in self.model.outline.stacks:
            yield from (f"{stack.name}.{tail}" for tail in ("growth", "lens.top", "lens.prob"))
            if stack.position.name:
                yield from (
                    f"{stack.position.name}.{tail}" for tail in ("table", "table_ahead", "similarity")
                )
        if self.trace.film is not None:
            yield from self.trace.film.names()


def _chunk_of(name: str) -> str:
    """Return the chunk of a tensor: those of a layer, of its queries and keys, or of everything else.

    >>> [_chunk_of(name) for name in ("encoder.blocks.3.self_attn.q", "encoder.blocks.3.ffn.up")]
    ['encoder-3-attention', 'encoder-3']
    """
    owner, separator, rest = name.partition(".blocks.")
    if not separator or rest.endswith(".thumbnails"):
        return "rest"
    layer = f"{owner.replace('.', '-')}-{rest.partition('.')[0]}"
    return f"{layer}-attention" if rest.endswith((".q", ".k", ".mask", "_attn.bias")) else layer


def _planes(values: np.ndarray[Any, Any]) -> bytes:
    """Return the first bytes of all numbers, then the second, ...: they compress better than the numbers."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return little.reshape(-1).view(np.uint8).reshape(-1, values.itemsize).T.tobytes()
