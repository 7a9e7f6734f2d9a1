"""A model as ONNX files: any batch, any length, padding and the keys and values so far as inputs.

Weights keep the names they have here, and a matrix that is shared is stored once. `export.json` beside the
files lists what each takes and gives.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.model import AnyModel
from glassformer.core.positions import PositionTerms, RelativeBias, buckets_of
from glassformer.core.stack import Stack
from glassformer.errors import MissingDependencyError
from glassformer.export.folder import Exported, atomic_folder, require_new_folder, write_sidecars
from glassformer.export.generation_metadata import end_tokens, language_note, start_tokens
from glassformer.export.onnx_graphs import Graph, Port, Whole, graphs_of
from glassformer.inference.prepare import evaluation_mode

OPSET = 18
LARGE = 2_000_000_000  # bytes of weights from which they lie in a file of their own: one message holds 2 GB


def library() -> None:
    """Say so where what torch exports with is not installed."""
    try:
        import_module("onnx")
        import_module("onnxscript")
    except ImportError:
        raise MissingDependencyError("onnxscript", "export") from None


def export_onnx(bundle: Bundle, folder: str | Path) -> Exported:
    """Write the folder, which must be new or empty, in float32; it is whole or not there."""
    library()
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
        if isinstance(bundle.spec.head, spec.LanguageModel):
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
    return Port(name=value.name, dtype=kinds[value.dtype.name], shape=shape)


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
        table = buckets_of(
            distances, buckets=own.buckets, max_distance=own.max_distance, both_ways=own.both_ways
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
