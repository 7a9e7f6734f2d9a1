"""Int8 ONNX files: matrices are stored as int8, and outputs differ by the rounding alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glassformer
from glassformer.bundle import Bundle
from glassformer.export import onnx_int8
from glassformer.export.onnx import export_onnx
from glassformer.verify import open_exported
from glassformer.verify.exported import exported_equals_native
from tests.export.randomized import randomize_parameters
from tests.faults.scale import sample

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

FAMILIES = sample(["original", "vit", "patchtst", "bert", "gpt2"], 3)  # only vit has a Gemm


def tiny_bundle(family: str) -> Bundle:
    model: Any = randomize_parameters(glassformer.tiny(family, num_layers=1))
    for name, parameter in model.head.named_parameters():
        if name.endswith("bias"):
            parameter.data += 1  # more than the rounding of the weights
    return Bundle(model=model, generation={"eos_token_id": 2, "decoder_start_token_id": 1})


@pytest.mark.parametrize("family", FAMILIES)
def test_int8_export_differs_by_the_rounding_alone(family: str, tmp_path: Path) -> None:
    bundle = tiny_bundle(family)
    folder = export_onnx(bundle, tmp_path / "out", "int8").folder
    result = exported_equals_native(bundle, "", exported=open_exported(folder))
    assert result.status == "passed" and result.worst, result
    for path in folder.glob("*.onnx"):
        graph = onnx.load(path).graph
        floats = {
            w.name for w in graph.initializer if len(w.dims) == 2 and w.data_type == onnx.TensorProto.FLOAT
        }
        assert not {
            n for n in floats if "position" not in n and not n.endswith(".scale") and "val_" not in n
        }  # constants
        assert not [node for node in graph.node if node.op_type == "Gemm"]
        assert sum(node.op_type == "MatMulInteger" for node in graph.node) >= 4


@pytest.mark.parametrize("wrong", ["scale", "offset"])
def test_wrong_rounding_fails(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tiny_bundle("patchtst")
    with monkeypatch.context() as patch:
        if wrong == "offset":
            patch.setattr(onnx_int8.Int8Graph, "_constant", wrong_zero_point)
        else:
            correct = onnx_int8.quantize_rows
            patch.setattr(onnx_int8, "quantize_rows", lambda x: (correct(x)[0], 1.25 * correct(x)[1]))
        folder = export_onnx(bundle, tmp_path / "out", "int8").folder
    result = exported_equals_native(bundle, "", exported=open_exported(folder))
    assert result.status == "failed", result


CONSTANT = onnx_int8.Int8Graph._constant


def wrong_zero_point(graph: onnx_int8.Int8Graph, name: str, value: Any) -> Any:
    return CONSTANT(graph, name, np.uint8(60) if name == "zero_point" else value)


def test_row_alone_equals_row_in_a_batch(tmp_path: Path) -> None:
    folder = export_onnx(tiny_bundle("bert"), tmp_path / "out", "int8").folder
    session = runtime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    names = [port.name for port in session.get_inputs()]
    inputs = {
        "ids": rng.integers(3, 60, (4, 9)),
        "mask": np.ones((4, 9), bool),
        "types": np.zeros((4, 9), int),
    }
    inputs = {name: inputs[name] for name in names}
    (together, *_) = session.run(None, inputs)
    (alone, *_) = session.run(None, {name: x[1:2] for name, x in inputs.items()})
    np.testing.assert_allclose(together[1:2], alone, atol=1e-5)
