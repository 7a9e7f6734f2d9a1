"""Our numbers against the reference library's, where it is installed and knows the architecture."""

from __future__ import annotations

import importlib.util
import tempfile
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle, save
from glassformer.core import spec
from glassformer.core.distributions import KINDS
from glassformer.core.model import AnyModel
from glassformer.core.observe import Observer
from glassformer.errors import GlassformerError
from glassformer.families.registry import families, family_for
from glassformer.families.sidecars import read_object
from glassformer.verify.claims import Claim, gap, measured, skipped, tolerance_of
from glassformer.verify.inputs import Sample, at_real, has_tokens, pad_of, per_token, sample_for

LIBRARY = "transformers"
# what the reference calls our outputs; the first that it gave counts
THEIR_NAMES = {
    "output": (
        "logits",
        "prediction_outputs",
        "prediction_logits",
        "regression_outputs",
        "prediction_output",
        "last_hidden_state",
    ),
    "hidden": ("last_hidden_state",),
    "pooled": ("pooler_output",),
    "logits": ("logits",),
    "first": ("cls_logits",),
    "second": ("distillation_logits",),
    "start": ("start_logits",),
    "end": ("end_logits",),
}


def reference_equals_ours(bundle: Bundle, name: str, *, required: bool = False) -> Claim:
    """The same inputs through both: each row alone, and padded on the right where there is a pad id."""
    if importlib.util.find_spec(LIBRARY) is None:
        if required:
            raise GlassformerError(
                f"the reference library is not installed; `pip install {LIBRARY}`, or leave --reference out"
            )
        return skipped(name, f"{LIBRARY} is not installed")
    family = families()[bundle.family] if bundle.family else family_for(bundle.spec)
    if family is None:
        return _unavailable(name, "this model has no published layout", required)
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as place:
        folder = bundle.folder
        if folder is None or not (folder / "config.json").is_file():  # made here, or kept in our own layout
            folder = save(bundle, Path(place) / "model", layout="hf")
        reference = _reference(folder, bundle.model)
        if isinstance(reference, str):
            return _unavailable(name, reference, required)
        with torch.no_grad():
            gaps = list(_gaps(reference, bundle.model))
    note = f"{type(reference).__name__} of {LIBRARY} {version(LIBRARY)}"
    if isinstance(bundle.spec.head, spec.Embed):
        note += ", vectors before the pooling"
    return measured(name, gaps, tolerance_of(bundle.model), note)


def _unavailable(name: str, why: str, required: bool) -> Claim:
    if required:
        raise GlassformerError(f"{why}, so there is nothing to compare with; leave --reference out")
    return skipped(name, why)


def _reference(folder: Path, model: AnyModel) -> Any:
    """The reference's model of a folder in evaluation mode, or why there is none."""
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
    sample = sample_for(model, "right")
    for row in range(len(sample)):
        yield from _compare(reference, model, sample.alone(row))
    source = model.spec.source if isinstance(model.spec, spec.EncoderDecoder) else model.spec.input
    if has_tokens(model) and pad_of(source) is not None:
        yield from _compare(reference, model, sample)


def _compare(reference: Any, model: AnyModel, sample: Sample) -> Iterator[float]:
    theirs = _parameters(model.spec.head, reference(**_named(model.spec, sample)))
    real = sample.real[-1]
    if isinstance(model.spec.head, spec.Embed):  # the reference's model ends before the pooling
        yield gap(_last_vectors(model, sample)[real], theirs["last_hidden_state"][real])
        return
    for key, mine in at_real(model, sample, sample.run(model)).items():
        other = _their(theirs, key)
        if real is not None and per_token(model.spec.head, key):
            other = other[real]
        yield gap(mine, other)


def _parameters(head: Any, result: Any) -> Any:
    """The reference's answer; of a distribution its parameters, in the series' own units as ours are."""
    match head:
        case spec.Forecast(distribution=kind) if kind != "none":
            told = KINDS[kind](*result["prediction_outputs"])
            return told.undone(result["loc"], result["scale"])._asdict()
        case spec.SeriesRegress(distribution=kind) if kind != "none":
            return KINDS[kind](*result["regression_outputs"])._asdict()
    return result


def _named(what: spec.Model, sample: Sample) -> dict[str, Tensor]:
    """Our inputs under the reference's names."""
    first, real = sample.inputs[0], sample.real[0]
    source = what.source if isinstance(what, spec.EncoderDecoder) else what.input
    match source:
        case spec.ImagePatches():
            return {"pixel_values": first}
        case spec.SeriesPatches():
            return {"past_values": first}
    assert real is not None
    named = {"input_ids": first, "attention_mask": real.long()}
    if isinstance(what, spec.EncoderDecoder):
        named["decoder_input_ids"] = sample.inputs[1]
    return named


def _their(result: Any, key: str) -> Tensor:
    """The reference's output that answers to our name."""
    for name in THEIR_NAMES.get(key, (key,)):
        found = result.get(name)
        if isinstance(found, Tensor):
            return found
    raise GlassformerError(
        f"the reference gave {', '.join(result.keys())}, and none of these is our '{key}'; "
        "run with --no-reference"
    )


def _last_vectors(model: AnyModel, sample: Sample) -> Tensor:
    """The last layer's vectors, before the head: (B, T, D)."""
    observer = Observer(want=("*.resid_out", "*.final_norm"))
    sample.run(model, obs=observer)
    return list(observer.record.tensors.values())[-1]
