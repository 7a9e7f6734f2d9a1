"""Int8 matrices in an ONNX graph: a quarter of the size, and products of integers.

The matrices of linear layers and token embeddings are stored as int8 with one scale per row. A linear layer
rounds each row of its input to integers by the range of that row, so no row's result depends on the others,
and multiplies with MatMulInteger. Inputs have 7 bits (-63 to 63): without VNNI, pairs of products are summed
in 16 bits, which 8 bits would overflow.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from glassformer.weights.int8 import SCALE, quantize_rows

LEVELS = 63
OFFSET = 64  # zero point of the inputs, which are stored as uint8
SMALLEST = 1e-12  # size of a row of zeros


def is_quantized(name: str, shape: Sequence[Any]) -> bool:
    """Whether a matrix is stored as int8; tables of positions are small, and act on every score."""
    return len(shape) == 2 and "position" not in name


class Int8Graph:
    """Quantizes the matrices of a graph. Rounded inputs are shared by the layers that read them."""

    def __init__(self, graph: ir.Graph) -> None:
        self.graph = graph
        self.inputs: dict[ir.Value, tuple[ir.Value, ir.Value]] = {}
        self.constants: dict[str, ir.Value] = {}

    def quantize(self) -> None:
        for name, value in list(self.graph.initializers.items()):
            if is_quantized(name, tuple(value.shape or ())) and value.dtype == ir.DataType.FLOAT:
                self._quantize_matrix(name, value)

    def _quantize_matrix(self, name: str, value: ir.Value) -> None:
        """Store a matrix as int8 if all that reads it is a lookup of rows or a linear layer."""
        readers = [use.node for use in value.uses()]
        products = [
            use.node for node in readers if node.op_type == "Transpose" for use in node.outputs[0].uses()
        ]
        if {node.op_type for node in readers} - {"Gather", "Transpose", "Gemm"}:
            return
        if {node.op_type for node in products} - {"MatMul"} or not readers:
            return
        assert value.const_value is not None
        numbers, scale = quantize_rows(torch.from_numpy(value.const_value.numpy()))
        matrix, column = self._add(name, numbers.numpy()), self._add(name + SCALE, scale[:, None].numpy())
        for node in readers:
            if node.op_type == "Gather":
                self._replace(node, self._lookup(node, matrix, column))
            elif node.op_type == "Gemm":
                self._replace(node, self._linear(node, matrix, column, bias=node.inputs[2:]))
        for node in products:
            self._replace(node, self._linear(node, matrix, column))
        for node in readers:
            if node.op_type == "Transpose":
                self.graph.remove(node, safe=True)

    def _add(self, name: str, array: np.ndarray[Any, Any]) -> ir.Value:
        self.graph.initializers.pop(name, None)
        tensor = ir.tensor(array, name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype), const_value=tensor
        )
        self.graph.register_initializer(value)
        return value

    def _constant(self, name: str, value: Any) -> ir.Value:
        if name not in self.constants:
            self.constants[name] = self._add(f"int8.{name}", np.asarray(value))
        return self.constants[name]

    def _replace(self, node: ir.Node, nodes: list[ir.Node]) -> None:
        """Replace a node by nodes of which the last one has its output."""
        (old,), (new,) = node.outputs, nodes[-1].outputs
        ir.convenience.replace_nodes_and_values(self.graph, node, [node], nodes, [old], [new])

    def _lookup(self, node: ir.Node, matrix: ir.Value, column: ir.Value) -> list[ir.Node]:
        ids = node.inputs[1]
        rows, scale = ir.node("Gather", [matrix, ids]), ir.node("Gather", [column, ids])
        numbers = ir.node("Cast", rows.outputs, {"to": ir.DataType.FLOAT})
        return [rows, scale, numbers, ir.node("Mul", [numbers.outputs[0], scale.outputs[0]])]

    def _linear(
        self, node: ir.Node, matrix: ir.Value, column: ir.Value, bias: Sequence[ir.Value | None] = ()
    ) -> list[ir.Node]:
        (x, *_), nodes = node.inputs, []
        assert x is not None

        def add(kind: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
            nodes.append(ir.node(kind, inputs, attributes))
            return nodes[-1].outputs[0]

        if x not in self.inputs:
            largest = add("ReduceMax", add("Abs", x), self._constant("axes", [-1]))
            size = add("Max", largest, self._constant("smallest", np.float32(SMALLEST)))
            step = add("Div", size, self._constant("levels", np.float32(LEVELS)))
            rounded = add("Round", add("Div", x, step))
            shifted = add("Add", rounded, self._constant("offset", np.float32(OFFSET)))
            self.inputs[x] = add("Cast", shifted, to=ir.DataType.UINT8), step
        integers, step = self.inputs[x]
        zero = self._constant("zero_point", np.uint8(OFFSET))
        product = add("MatMulInteger", integers, add("Transpose", matrix, perm=[1, 0]), zero)
        scaled = add("Mul", add("Cast", product, to=ir.DataType.FLOAT), step)
        y = add("Mul", scaled, add("Transpose", column, perm=[1, 0]))
        for vector in filter(None, bias):
            y = add("Add", y, vector)
        return nodes


# ---- the same rounding in PyTorch -------------------------------------------------------------------------


class RoundedInputs(TorchFunctionMode):
    """Rounds the inputs of linear layers as an int8 graph does."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is nn.functional.linear:
            x, *rest = args
            step = x.abs().amax(-1, keepdim=True).clamp(min=SMALLEST) / LEVELS
            args = ((x / step).round() * step, *rest)
        return func(*args, **(kwargs or {}))


def round_matrices(model: Any) -> Any:
    """Return a copy of a model in float32 whose matrices have the values of an int8 graph."""
    model = copy.deepcopy(model).float()
    for name, parameter in model.named_parameters():
        if is_quantized(name, parameter.shape):
            numbers, scale = quantize_rows(parameter)
            rounded = numbers.to(scale) * scale[:, None]
            parameter.data = rounded.t().contiguous().t()  # oneDNN's operator would not be intercepted
    return model
