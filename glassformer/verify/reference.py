"""Checks of weights: outputs equal those of transformers; saving and loading is bit-identical."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle, Layout, load, save
from glassformer.core import spec
from glassformer.core.build import unique_state_dict
from glassformer.core.distributions import DISTRIBUTIONS
from glassformer.core.model import AnyModel
from glassformer.core.observe import Observer
from glassformer.errors import MissingDependencyError, UnknownNameError, UnsupportedError
from glassformer.families.registry import families, family_of_spec
from glassformer.families.sidecars import read_object
from glassformer.verify.comparison import (
    CheckResult,
    bitwise_difference,
    check_result,
    dtype_tolerance,
    relative_error,
    skipped,
)
from glassformer.verify.inputs import RandomInputs, drop_padding, has_tokens, is_per_token, random_inputs

LIBRARY = "transformers"
# output names of this package -> those of the reference; the first one present is used
_MAIN = "logits prediction_outputs prediction_logits regression_outputs prediction_output last_hidden_state"
REFERENCE_NAMES = {
    "output": _MAIN,
    "hidden": "last_hidden_state",
    "pooled": "pooler_output text_embeds image_embeds",
    "first": "cls_logits",
    "second": "distillation_logits",
    "start": "start_logits",
    "end": "end_logits",
    "logits": "logits class_queries_logits",
    "masks": "pred_masks masks_queries_logits",
    "boxes": "pred_boxes",
    "iou": "iou_scores",
}


def reference_equals_ours(bundle: Bundle, name: str, *, required: bool = False) -> CheckResult:
    """Compare with transformers on the same inputs: single rows, and right-padded if there is a pad id."""
    if importlib.util.find_spec(LIBRARY) is None:
        if required:
            raise MissingDependencyError(LIBRARY, "dev")
        return skipped(name, f"{LIBRARY} is not installed")
    family = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    if family is None:
        return _unavailable(name, "this model has no published layout", required)
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as temporary:
        folder = bundle.folder
        if (
            folder is None or not (folder / "config.json").is_file()
        ):  # built in memory, or saved in our own layout
            folder = save(bundle, Path(temporary) / "model", layout="hf")
        reference = _reference(folder, bundle.model)
        if isinstance(reference, str):
            return _unavailable(name, reference, required)
        with torch.no_grad():
            differences = list(_gaps(reference, bundle.model))
    note = f"{type(reference).__name__} of {LIBRARY} {version(LIBRARY)}"
    if isinstance(bundle.spec.head, spec.EmbedSpec):
        note += ", vectors before the pooling"
    return check_result(name, differences, dtype_tolerance(bundle.model), note)


def _unavailable(name: str, reason: str, required: bool) -> CheckResult:
    if required:
        raise UnsupportedError("this model", "a comparison with the reference library", hint=reason)
    return skipped(name, reason)


def _reference(folder: Path, model: AnyModel) -> Any:
    """Load transformers' model of a folder in evaluation mode, or return the reason why it cannot."""
    import transformers as library

    architecture = (read_object(folder / "config.json").get("architectures") or ["?"])[0]
    kind = getattr(library, architecture, None)
    if kind is None:
        return f"{LIBRARY} {library.__version__} has no {architecture}"
    library.logging.set_verbosity_error()
    library.logging.disable_progress_bar()
    first = next(model.parameters())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = kind.from_pretrained(
            folder, dtype=first.dtype, use_safetensors=True, local_files_only=True
        )
    return reference.to(first.device).eval()


def _gaps(reference: Any, model: AnyModel) -> Iterator[float]:
    sample = random_inputs(model, "right")
    for row in range(len(sample)):
        yield from _compare(reference, model, sample.single_row(row))
    source = getattr(model.spec, "source", getattr(model.spec, "input", None))
    if has_tokens(model) and getattr(source, "pad_id", None) is not None:
        yield from _compare(reference, model, sample)


def _compare(reference: Any, model: AnyModel, sample: RandomInputs) -> Iterator[float]:
    theirs = _parameters(model.spec.head, reference(**_named_inputs(model.spec, sample)))
    mask = sample.masks[-1]
    if isinstance(model.spec.head, spec.EmbedSpec):  # the reference model has no pooling
        yield relative_error(_last_hidden_states(model, sample)[mask], theirs["last_hidden_state"][mask])
        return
    for key, ours in drop_padding(model, sample, sample.run(model)).items():
        expected = _reference_output(theirs, key)
        if mask is not None and is_per_token(model.spec.head, key):
            expected = expected[mask]
        yield relative_error(ours, expected)


def _parameters(head: Any, result: Any) -> Any:
    """Return the reference's output; for a distribution, its parameters in the units of the series."""
    match head:
        case spec.ForecastSpec(distribution=kind) if kind != "none":
            scaled = DISTRIBUTIONS[kind](*result["prediction_outputs"])
            return scaled.unscale(result["loc"], result["scale"])._asdict()
        case spec.SeriesRegressSpec(distribution=kind) if kind != "none":
            return DISTRIBUTIONS[kind](*result["regression_outputs"])._asdict()
    return result


def _named_inputs(model_spec: spec.ModelSpec, sample: RandomInputs) -> dict[str, Tensor]:
    """Return the inputs by the reference's argument names."""
    first, mask = sample.inputs[0], sample.masks[0]
    if isinstance(model_spec, spec.TwoTowerSpec):
        return {"pixel_values": first, "input_ids": sample.inputs[1]}  # of one row, without padding
    source = model_spec.source if isinstance(model_spec, spec.EncoderDecoderSpec) else model_spec.input
    match source:
        case spec.ImagePatchesSpec() if isinstance(model_spec, spec.PromptedSegmenterSpec):
            return {"pixel_values": first, "input_points": sample.inputs[1]}
        case (
            spec.ImagePatchesSpec()
            | spec.FeatureMapSpec()
            | spec.FeaturePyramidSpec()
            | spec.DeformablePixelDecoderSpec()
        ):
            return {"pixel_values": first}
        case spec.SeriesPatchesSpec():
            return {"past_values": first}
    assert mask is not None
    named = {"input_ids": first, "attention_mask": mask.long()}
    if isinstance(model_spec, spec.EncoderDecoderSpec):
        named["decoder_input_ids"] = sample.inputs[1]
    return named


def _reference_output(result: Any, key: str) -> Tensor:
    """Look up the reference's output for the output `key` of this package."""
    if key.startswith("feature_maps."):
        feature_map: Tensor = result["feature_maps"][int(key.removeprefix("feature_maps."))]
        return feature_map
    for name in REFERENCE_NAMES.get(key, key).split():
        output = result.get(name)
        if isinstance(output, Tensor):
            return output
    raise UnknownNameError("output", key, list(result.keys()), where="the reference")


def _last_hidden_states(model: AnyModel, sample: RandomInputs) -> Tensor:
    """Return the last layer's hidden states (B, T, D), before the head."""
    observer = Observer(want=("*.resid_out", "*.final_norm"))
    sample.run(model, obs=observer)
    return list(observer.record.tensors.values())[-1]


# ---- saved = loaded --------------------------------------------------------------------------------------


def saved_equals_loaded(bundle: Bundle, name: str) -> CheckResult:
    """Save and reload the model in a temporary folder, and compare the spec and every tensor."""
    before = unique_state_dict(bundle.model)
    size = sum(t.numel() * t.element_size() for t in before.values())
    differences: list[float] = []
    layouts = _layouts(bundle)
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as temporary:
        if shutil.disk_usage(temporary).free < 1.1 * size:
            return skipped(
                name, f"{temporary} has less than {size / 1e9:.1f} GB free; set TMPDIR to another disk"
            )
        for layout in layouts:
            folder = Path(temporary) / layout
            save(bundle, folder, layout=layout)
            first = next(bundle.model.parameters())
            reloaded = load(folder, dtype="stored", device=first.device)
            after = unique_state_dict(reloaded.model)
            if reloaded.spec != bundle.spec or after.keys() != before.keys():
                differences.append(float("inf"))
            else:
                differences += [bitwise_difference(after[key], before[key]) for key in before]
            del reloaded, after
            shutil.rmtree(folder)  # the next layout needs the space
    return check_result(
        name, differences, 0.0, f"{len(before)} tensors, bit for bit; layout {' and '.join(layouts)}"
    )


def _layouts(bundle: Bundle) -> list[Layout]:
    published = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    return ["glassformer"] if published is None else ["hf", "glassformer"]
