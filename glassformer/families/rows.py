"""Rows of weight tables that families share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glassformer.core import spec
from glassformer.core.spec import HeadSpec
from glassformer.weights.ops import Op, Rename, Tied, expand


def model_prefixes(head: HeadSpec, *prefixes: str) -> tuple[str, ...]:
    """Return the possible prefixes of published tensor names; the first one ("" if bare) is for saving."""
    bare = spec.FeaturesSpec | spec.BackboneSpec | spec.EmbedSpec
    return ("", *prefixes) if isinstance(head, bare) else (*prefixes, "")


def rename_modules(*pairs: tuple[str, str]) -> tuple[Op, ...]:
    """Return operations that rename weight and bias of modules; pairs: (published name, Glassformer name)."""
    rows = tuple(Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in pairs)
    return expand(rows, p=("weight", "bias"))


def box_head_rows(head: spec.BoxesSpec) -> tuple[Op, ...]:
    """Return the operations of a box head."""
    label, box = "class_labels_classifier", "bbox_predictor"
    labels = [(f"{label}.layers.{n}", f"head.out.layers.{n}") for n in range(head.class_layers)]
    boxes = [(f"{box}.layers.{n}", f"head.box.layers.{n}") for n in range(head.box_layers)]
    return rename_modules(*([(label, "head.out.layers.0")] if head.class_layers == 1 else labels), *boxes)


def layer_rows(
    theirs: str,
    ours: str,
    layers: int,
    modules: Mapping[str, str],
    parts: Sequence[str] = ("weight", "bias"),
) -> tuple[Op, ...]:
    """Return operations that rename the tensors (`parts`) of the modules of all layers.

    theirs, ours: prefixes of the layers, with `{i}` for the layer index. modules: published name ->
    Glassformer name.
    """
    rows = tuple(Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}") for a, b in modules.items())
    return expand(rows, i=layers, p=parts)


def layer_ops(
    modules: Sequence[tuple[str, str, str]],
    parts: Sequence[str] = ("weight", "bias"),
    *,
    old: str,
    new: str,
    ours: str,
) -> tuple[Op, ...]:
    """Return operations for modules of a layer, in two published spellings.

    old, new, ours: prefixes of the layer in both spellings and in Glassformer.
    """
    rows = tuple(Tied((f"{old}.{a}.{{p}}", f"{new}.{b}.{{p}}"), f"{ours}.{c}.{{p}}") for a, b, c in modules)
    return expand(rows, p=parts)
