"""Glassformer: the Transformer you can see through."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.3.0.dev0"

if TYPE_CHECKING:
    from glassformer.api import Pipeline, build, load, tiny, train
    from glassformer.bundle import Bundle, save
    from glassformer.core import spec
    from glassformer.core.attention import MultiHeadAttention
    from glassformer.core.block import Block
    from glassformer.core.feedforward import FeedForward
    from glassformer.core.inputs import ImageInputs, LatentInputs, Masks, Memory, SeriesInputs, TextInputs
    from glassformer.core.kernels import attend
    from glassformer.core.kv_cache import KVCache
    from glassformer.core.masks import Mask
    from glassformer.core.model import DecoderOnly, EncoderDecoder, EncoderOnly
    from glassformer.core.norms import BatchNorm, LayerNorm, RMSNorm
    from glassformer.core.observe import Observer, Record, observe
    from glassformer.core.positions import (
        AlibiBias,
        DisentangledPositions,
        LearnedPositions,
        RelativeBias,
        RotaryPositions,
        SinusoidalPositions,
    )
    from glassformer.core.stack import Stack
    from glassformer.errors import GlassformerError
    from glassformer.families.sidecars import JobInfo
    from glassformer.torch_modules import from_torch
    from glassformer.training.callbacks import TrainerCallback
    from glassformer.training.task import TrainingTask
    from glassformer.training.trainer import Trainer
    from glassformer.transformer import (
        Decoder,
        DecoderLayer,
        Encoder,
        EncoderLayer,
        FeedForwardNetwork,
        PositionalEncoding,
        ScaledDotProductAttention,
        Transformer,
        TransformerEncoder,
        TransformerEncoderBlock,
    )

# the module of each public name; imported when first used, so that `glassformer --help` needs no torch
_HOME = {
    **dict.fromkeys(("Pipeline", "build", "load", "tiny", "train"), "api"),
    **dict.fromkeys(("Bundle", "JobInfo", "save"), "bundle"),
    "GlassformerError": "errors",
    "from_torch": "torch_modules",
    "MultiHeadAttention": "core.attention",
    "Block": "core.block",
    "FeedForward": "core.feedforward",
    **dict.fromkeys(
        ("ImageInputs", "LatentInputs", "Masks", "Memory", "SeriesInputs", "TextInputs"), "core.inputs"
    ),
    "attend": "core.kernels",
    "KVCache": "core.kv_cache",
    "Mask": "core.masks",
    **dict.fromkeys(("DecoderOnly", "EncoderDecoder", "EncoderOnly"), "core.model"),
    **dict.fromkeys(("BatchNorm", "LayerNorm", "RMSNorm"), "core.norms"),
    **dict.fromkeys(("Observer", "Record", "observe"), "core.observe"),
    **dict.fromkeys(
        (
            *("AlibiBias", "DisentangledPositions", "LearnedPositions", "RelativeBias", "RotaryPositions"),
            "SinusoidalPositions",
        ),
        "core.positions",
    ),
    "Stack": "core.stack",
    "Trainer": "training.trainer",
    "TrainerCallback": "training.callbacks",
    "TrainingTask": "training.task",
    **dict.fromkeys(
        (
            *("PositionalEncoding", "ScaledDotProductAttention", "FeedForwardNetwork", "EncoderLayer"),
            *("DecoderLayer", "Encoder", "Decoder", "TransformerEncoderBlock", "TransformerEncoder"),
            "Transformer",
        ),
        "transformer",
    ),
}
__all__ = sorted([*_HOME, "spec"])


def __getattr__(name: str) -> Any:
    if name == "spec":  # the dataclasses that describe a custom model
        return import_module("glassformer.core.spec")
    if name not in _HOME:
        raise AttributeError(f"module 'glassformer' has no attribute '{name}'")
    return getattr(import_module(f"glassformer.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
