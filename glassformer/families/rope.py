"""How published configs spell rotary positions: `rope_theta` and `rope_scaling`, or `rope_parameters`."""

from __future__ import annotations

from typing import Any

from glassformer.core import spec
from glassformer.families.family import Config, UnsupportedConfigError

Scaling = spec.LinearScaling | spec.BandScaling | None


def read_rotary(config: Config, *, base: float = 10000.0, max_len: int) -> spec.Rotary:
    """The rotary positions of a config in either spelling; `base` and `max_len` fill what it leaves out."""
    base = config.get("rope_theta", base)
    old: dict[str, Any] = config.get("rope_scaling", {})
    new: dict[str, Any] = config.get("rope_parameters", {})
    key, values = ("rope_scaling", old) if old else ("rope_parameters", new)
    if any(isinstance(value, dict) for value in values.values()):
        raise UnsupportedConfigError(config.where, key, "per layer", "one value for all layers")
    rope = Config(values, f"{config.where} ({key})")
    for level in (config, rope):
        level.only("partial_rotary_factor", None, 1.0)
    known = {"default": "none", "linear": "linear", "llama3": "bands"}
    kind = rope.choose("rope_type", known, values.get("type", "default"))
    base = rope.get("rope_theta", base)
    scaling: Scaling = None
    if kind == "linear":
        scaling = spec.LinearScaling(factor=rope.need("factor", float))
    elif kind == "bands":
        original = rope.get("original_max_position_embeddings", max_len)
        scaling = spec.BandScaling(
            factor=rope.need("factor", float),
            low_freq_factor=rope.need("low_freq_factor", float),
            high_freq_factor=rope.need("high_freq_factor", float),
            original_max_len=config.get("original_max_position_embeddings", original),
        )
    return spec.Rotary(base=base, scaling=scaling)


def write_rotary(rotary: spec.Rotary) -> dict[str, Any]:
    """The older spelling, which readers of either spelling understand."""
    scaling: dict[str, Any] | None = None
    match rotary.scaling:
        case spec.LinearScaling(factor=factor):
            scaling = {"rope_type": "linear", "factor": factor}
        case spec.BandScaling() as bands:
            scaling = {
                "rope_type": "llama3",
                "factor": bands.factor,
                "low_freq_factor": bands.low_freq_factor,
                "high_freq_factor": bands.high_freq_factor,
                "original_max_position_embeddings": bands.original_max_len,
            }
    return {"rope_theta": rotary.base, "rope_scaling": scaling}
