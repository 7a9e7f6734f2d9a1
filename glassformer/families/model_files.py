"""Files of a saved folder in two layouts: the family's published one, and Glassformer's for any model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from glassformer.core.build import unique_state_dict
from glassformer.core.model import AnyModel
from glassformer.core.positions import SinusoidalPositions, sinusoids
from glassformer.core.spec import ModelSpec
from glassformer.errors import GlassformerError
from glassformer.families.config import Config
from glassformer.families.family import Family
from glassformer.families.keys import named_label_config
from glassformer.weights.convert import WeightTable, to_ours
from glassformer.weights.int8 import StoredWeights, quantize_state
from glassformer.weights.ops import Rename


def published_files(
    family: Family,
    model: AnyModel,
    *,
    config: Mapping[str, Any],
    files: Mapping[str, Any],
    generation: Mapping[str, Any],
    names: Collection[str],
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    """Return the JSON files of the published layout: the original ones if they still describe the model.

    config, files: the original ones. names: names of the saved tensors. classes: label names for a new
    config.
    """
    if config and _describes(family, Config(config, files=files, names=names), model.spec):
        new_config, further = dict(config), files
    else:
        new_config, further = family.to_config(model.spec), family.files(model.spec)
        if len(config.get("id2label", ())) == len(new_config.get("id2label", ())):
            new_config |= {key: config[key] for key in ("id2label", "label2id") if key in config}
        if classes is not None and len(classes) == len(new_config.get("id2label", ())):
            new_config |= named_label_config(classes)
    family.write_generation(new_config, generation)
    floats = {t.dtype for t in model.parameters() if t.is_floating_point()}
    if family.library == "diffusers":  # its configs have no dtype
        return {"config.json": new_config, **further}
    new_config.pop("torch_dtype", None)
    new_config["dtype"] = str(next(iter(floats))).removeprefix("torch.") if len(floats) == 1 else "float32"
    return {"config.json": new_config, **further}


def _describes(family: Family, config: Config, spec: ModelSpec) -> bool:
    try:
        return config.architecture in family.architectures and family.from_config(config) == spec
    except (AttributeError, GlassformerError):  # it refers to missing files
        return False


def read_own_layout(weights: Mapping[str, Tensor], model: nn.Module, where: Path) -> dict[str, Tensor]:
    """Read the tensors of a folder in Glassformer's layout: dequantize int8, compute missing tables."""
    shapes = tensor_shapes(model)
    stored = StoredWeights(weights, where)
    tables = {name: table for name, table in computed_tables(model).items() if name not in stored}
    rows = WeightTable(tuple([Rename(name, name) for name in shapes if name not in tables]))
    expected = {name: shape for name, shape in shapes.items() if name not in tables}
    to_ours(stored, rows, expected, where=where, config_file="spec.json")
    precision = _precision(stored) or torch.float32
    return {
        name: tables[name].to(precision) if name in tables else stored.dequantize(name) for name in shapes
    }


def tensor_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a model, by name."""
    return {name: tuple(tensor.shape) for name, tensor in unique_state_dict(model).items()}


def computed_tables(model: nn.Module) -> dict[str, Tensor]:
    """Compute the sinusoidal position tables of a model, by name."""
    return {
        f"{path}.table": sinusoids(part.max_len, part.d_model, part.layout, part.base)
        for path, part in model.named_modules()
        if isinstance(part, SinusoidalPositions)
    }


def without_computed_tables(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors to save, without tables that `read_own_layout` recomputes exactly."""
    tables = computed_tables(model) if _precision(state) is not None else {}
    return {
        name: tensor
        for name, tensor in state.items()
        if name not in tables or not torch.equal(tensor, tables[name].to(tensor.dtype))
    }


def quantized_state(model: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors to save, with matrices in int8; buffers are not quantized."""
    return quantize_state(
        without_computed_tables(model, state), exact={name for name, _ in model.named_buffers()}
    )


def _precision(state: Mapping[str, Tensor]) -> torch.dtype | None:
    """Return the common dtype of all floating-point tensors; None if they have several."""
    dtypes = {tensor.dtype for tensor in state.values() if tensor.is_floating_point()}
    return dtypes.pop() if len(dtypes) == 1 else None
