"""What there is to say of a model before anything is read with it."""

from __future__ import annotations

from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.interpret.examples import examples_of
from glassformer.interpret.kinds import as_json
from glassformer.interpret.outline import kind_of, stacks_of
from glassformer.interpret.runs import run_of
from glassformer.interpret.series import names_of
from glassformer.tasks.classify import labels_of
from glassformer.tasks.reading import room_of
from glassformer.tasks.writing.ends import ends_of
from glassformer.tasks.writing.languages import tags_of

_SHAPES = {"EncoderDecoder": "encoder-decoder", "EncoderOnly": "encoder-only", "DecoderOnly": "decoder-only"}


def model_info(bundle: Bundle, id: str) -> dict[str, Any]:
    """The model in JSON's kinds: its outline, its sizes, and an input to begin with."""
    kind, spec = kind_of(bundle), bundle.spec
    stacks = stacks_of(bundle)
    numbers = list(bundle.model.parameters())
    labels = getattr(spec.head, "num_labels", None)
    examples = examples_of(bundle)
    read = spec.source if isinstance(spec, specs.EncoderDecoder) else spec.input
    told: dict[str, Any] = as_json(
        {
            "id": id,
            "name": _name(bundle, id),
            "family": bundle.family,
            "shape": _SHAPES[type(spec).__name__],
            "kind": kind,
            "parameters": sum(one.numel() for one in numbers),
            "bytes": sum(one.numel() * one.element_size() for one in numbers),
            "max_length": _room(bundle),
            "labels": None if labels is None else labels_of(bundle, labels),
            "languages": (tags_of(bundle) or None) if kind == "translate" else None,
            "outline": {
                "d_model": getattr(spec, stacks[-1].name).d_model,
                "stacks": stacks,
                "head": {
                    "kind": type(spec.head).__name__,
                    "vocab": getattr(spec.head, "vocab_size", None),
                    "labels": labels,
                    "tied": "head" in spec.tied,
                    "bias": getattr(spec.head, "bias", True),  # a head that has no choice has one
                },
            },
            "example": examples[0],
            "examples": examples if len(examples) > 1 else [],
            "image": _image(read),
            "series": _series(bundle, read),
        }
    )
    return told


def _name(bundle: Bundle, id: str) -> str:
    """What the model's folder is called, or the run that it is the result of."""
    if bundle.folder is None:
        return id
    where = bundle.folder.resolve()
    return (run_of(where) or where).name


def _room(bundle: Bundle) -> int | None:
    """The most tokens a model of texts reads."""
    kind = kind_of(bundle)
    if bundle.tokenizer is None or kind in ("image", "forecast"):
        return None
    if kind in ("translate", "generate"):
        return ends_of(bundle).reads
    read = getattr(bundle.spec, "source", None) or getattr(bundle.spec, "input", None)
    room = room_of(bundle) if isinstance(read, specs.Tokens) else 1 << 30
    return None if room >= 1 << 30 else room


def _image(read: specs.Input) -> dict[str, Any] | None:
    if not isinstance(read, specs.ImagePatches):
        return None
    (high, wide), (ph, pw) = read.image_size, read.patch_size
    return {
        "height": high,
        "width": wide,
        "channels": read.channels,
        "patch": (ph, pw),
        "grid": (high // ph, wide // pw),
    }


def _series(bundle: Bundle, read: specs.Input) -> dict[str, Any] | None:
    if not isinstance(read, specs.SeriesPatches):
        return None
    return {
        "context": read.context_length,
        "horizon": getattr(bundle.spec.head, "prediction_length", 0),
        "channels": names_of(bundle) or [f"series {n + 1}" for n in range(read.channels)],
        "patch": read.patch_length,
        "stride": read.stride,
        "scaling": read.scaling,
    }
