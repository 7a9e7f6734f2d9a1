"""Checks of weights: outputs equal those of transformers; saving and loading is bit-identical."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle, Layout, load, save
from glassformer.core import spec
from glassformer.core.build import unique_state_dict
from glassformer.core.model import AnyModel
from glassformer.core.observe import Observer
from glassformer.core.series.distributions import DISTRIBUTIONS
from glassformer.errors import MissingDependencyError, UnknownNameError, UnsupportedError
from glassformer.families.config import Config
from glassformer.families.registry import families, family_of_spec
from glassformer.json_text import read_object
from glassformer.verify.comparison import (
    CheckResult,
    Tolerance,
    bitwise_difference,
    check_result,
    relative_error,
    skipped,
)
from glassformer.verify.inputs import RandomInputs, drop_padding, has_tokens, random_inputs

# output names of this package -> those of the reference; the first one present is used
_MAIN = """logits prediction_outputs prediction_logits regression_outputs prediction_output last_hidden_state
    sample"""
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
# argument names of the reference, by what a model reads
INPUT_NAMES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("text",): ("input_ids",),
    ("image",): ("pixel_values", "input_points"),
    ("image", "text"): ("pixel_values", "input_ids"),
    ("text", "image"): ("input_ids",),
    ("series",): ("past_values",),
    ("latents",): ("hidden_states",),
}
CONDITION_NAMES = {
    "timesteps": "timestep",
    "labels": "class_labels",
    "text": "encoder_hidden_states",
    "text_mask": "encoder_attention_mask",
}

SEVERAL_IMAGES = ("idefics3", "smolvlm")  # references that read several images for each text


def reference_equals_ours(bundle: Bundle, name: str, *, required: bool = False) -> CheckResult:
    """Compare with the reference on the same inputs: single rows, and right-padded if there is a pad id."""
    family = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    if family is None:
        return _unavailable(name, "this model has no published layout", required)
    library = family.library
    if importlib.util.find_spec(library) is None:
        if required:
            raise MissingDependencyError(library)
        return skipped(name, f"{library} is not installed")
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as temporary:
        folder = bundle.folder
        if (
            folder is None or not (folder / "config.json").is_file()
        ):  # built in memory, or saved in our own layout
            folder = save(bundle, Path(temporary) / "model", layout="hf")
        reference = _reference(folder, bundle.model, library)
        if isinstance(reference, str):
            return _unavailable(name, reference, required)
    note = f"{type(reference).__name__} of {library} {version(library)}"
    if bundle.spec.yields == "embedding":
        note += ", vectors before the pooling"
    with torch.no_grad():
        batch = random_inputs(bundle.model, "right")
        try:
            differences = [*_differences(reference, bundle.model, batch)]
        except UnsupportedError as error:
            return _unavailable(name, str(error), required)
        return check_result(name, differences, Tolerance.of_model(bundle.model, batch, _all_outputs), note)


def _unavailable(name: str, reason: str, required: bool) -> CheckResult:
    if required:
        raise UnsupportedError("this model", "a comparison with the reference library", hint=reason)
    return skipped(name, reason)


def _reference(folder: Path, model: AnyModel, library: str) -> Any:
    """Load the library's model of a folder in evaluation mode, or return the reason why it cannot."""
    module: Any = import_module(library)
    architecture = Config(read_object(folder / "config.json")).architecture
    kind = getattr(module, architecture, None)
    if kind is None:
        return f"{library} {module.__version__} has no {architecture}"
    logging = import_module(f"{library}.utils.logging")
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    first = next(model.parameters())
    dtype = {"dtype" if library == "transformers" else "torch_dtype": first.dtype}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference = kind.from_pretrained(folder, use_safetensors=True, local_files_only=True, **dtype)
    return reference.to(first.device).eval()


def _samples(model: AnyModel, batch: RandomInputs) -> list[RandomInputs]:
    """Return each row alone and, if the model has a pad id, the padded batch."""
    rows = [batch.single_row(row) for row in range(len(batch))]
    source = getattr(model.spec, "source", getattr(model.spec, "input", None))
    return [*rows, batch] if has_tokens(model) and getattr(source, "pad_id", None) is not None else rows


def _differences(reference: Any, model: AnyModel, batch: RandomInputs) -> Iterator[float]:
    for sample in _samples(model, batch):
        ours = _outputs(model, sample)
        theirs = _parameters(model.spec.head, reference(**_named_inputs(model.spec, sample, reference)))
        expected = drop_padding(model, sample, {key: _reference_output(theirs, key) for key in ours})
        yield from (relative_error(ours[key], expected[key]) for key in ours)


def _all_outputs(model: AnyModel, batch: RandomInputs) -> list[Tensor]:
    return [x for sample in _samples(model, batch) for x in _outputs(model, sample).values()]


def _outputs(model: AnyModel, sample: RandomInputs) -> dict[str, Tensor]:
    """Return our outputs without padding; the last hidden states if the reference has no pooling."""
    is_embedder = model.spec.yields == "embedding"
    named = {"hidden": _last_hidden_states(model, sample)} if is_embedder else sample.run(model)
    return drop_padding(model, sample, named)


def _parameters(head: Any, result: Any) -> Any:
    """Return the reference's output; for a distribution, its parameters in the units of the series."""
    if head.yields == "next tokens" and "logits" not in result:
        raise UnsupportedError(f"the output of the reference, {type(result).__name__},", "logits")
    match head:
        case spec.ForecastSpec(distribution=kind) if kind != "none":
            scaled = DISTRIBUTIONS[kind](*result["prediction_outputs"])
            return scaled.unscale(result["loc"], result["scale"])._asdict()
        case spec.SeriesRegressSpec(distribution=kind) if kind != "none":
            return DISTRIBUTIONS[kind](*result["regression_outputs"])._asdict()
    return result


def _named_inputs(model_spec: spec.ModelSpec, sample: RandomInputs, reference: Any) -> dict[str, Tensor]:
    """Return the inputs by the reference's argument names."""
    names = INPUT_NAMES[model_spec.modalities]
    arguments = signature(reference.forward).parameters
    if "sample" in arguments:  # diffusers' autoencoders and UNets
        names = ("sample",)
    if model_spec.architecture == "encoder-decoder":
        target = "decoder_input_ids" if "decoder_input_ids" in arguments else "input_ids"
        names = (names[0], target)
    named = dict(zip(names, sample.inputs, strict=False))  # of a pair, one row without padding
    if model_spec.modalities[:1] == ("text",) and (mask := sample.masks[0]) is not None:
        named["attention_mask"] = mask.long()
    named |= {CONDITION_NAMES[key]: x for key, x in sample.conditions.items()}
    if sample.images is not None:
        several = reference.config.model_type in SEVERAL_IMAGES
        named["pixel_values"] = sample.images[:, None] if several else sample.images
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
    note = f"{len(before)} tensors, bit for bit; layout {' and '.join(layouts)}"
    return check_result(name, differences, Tolerance(0.0), note)


def _layouts(bundle: Bundle) -> list[Layout]:
    published = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    return ["glassformer"] if published is None and not bundle.parts else ["hf", "glassformer"]
