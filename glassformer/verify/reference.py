"""Claims about weights: our numbers are the reference library's, and saving and loading changes no bit."""

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
from glassformer.verify.claims import Claim, gap, measured, same_bits, skipped, tolerance_of
from glassformer.verify.inputs import RandomInputs, at_real, has_tokens, per_token, random_inputs

LIBRARY = "transformers"
# what the reference calls our outputs; the first that it returned counts
_MAIN = "logits prediction_outputs prediction_logits regression_outputs prediction_output last_hidden_state"
THEIR_NAMES = {
    "output": _MAIN,
    "hidden": "last_hidden_state",
    "pooled": "pooler_output",
    "first": "cls_logits",
    "second": "distillation_logits",
    "start": "start_logits",
    "end": "end_logits",
}


def reference_equals_ours(bundle: Bundle, name: str, *, required: bool = False) -> Claim:
    """The same inputs through both: each row alone, and padded on the right where there is a pad id."""
    if importlib.util.find_spec(LIBRARY) is None:
        if required:
            raise MissingDependencyError(LIBRARY, "dev")
        return skipped(name, f"{LIBRARY} is not installed")
    family = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
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
    if isinstance(bundle.spec.head, spec.EmbedSpec):
        note += ", vectors before the pooling"
    return measured(name, gaps, tolerance_of(bundle.model), note)


def _unavailable(name: str, why: str, required: bool) -> Claim:
    if required:
        raise UnsupportedError("this model", "a comparison with the reference library", hint=why)
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
    sample = random_inputs(model, "right")
    for row in range(len(sample)):
        yield from _compare(reference, model, sample.alone(row))
    source = model.spec.source if isinstance(model.spec, spec.EncoderDecoderSpec) else model.spec.input
    if has_tokens(model) and getattr(source, "pad_id", None) is not None:
        yield from _compare(reference, model, sample)


def _compare(reference: Any, model: AnyModel, sample: RandomInputs) -> Iterator[float]:
    theirs = _parameters(model.spec.head, reference(**_named(model.spec, sample)))
    real = sample.real[-1]
    if isinstance(model.spec.head, spec.EmbedSpec):  # the reference's model ends before the pooling
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
        case spec.ForecastSpec(distribution=kind) if kind != "none":
            told = DISTRIBUTIONS[kind](*result["prediction_outputs"])
            return told.unscale(result["loc"], result["scale"])._asdict()
        case spec.SeriesRegressSpec(distribution=kind) if kind != "none":
            return DISTRIBUTIONS[kind](*result["regression_outputs"])._asdict()
    return result


def _named(what: spec.ModelSpec, sample: RandomInputs) -> dict[str, Tensor]:
    """Our inputs under the reference's names."""
    first, real = sample.inputs[0], sample.real[0]
    source = what.source if isinstance(what, spec.EncoderDecoderSpec) else what.input
    match source:
        case spec.ImagePatchesSpec():
            return {"pixel_values": first}
        case spec.SeriesPatchesSpec():
            return {"past_values": first}
    assert real is not None
    named = {"input_ids": first, "attention_mask": real.long()}
    if isinstance(what, spec.EncoderDecoderSpec):
        named["decoder_input_ids"] = sample.inputs[1]
    return named


def _their(result: Any, key: str) -> Tensor:
    """The reference's output that answers to our name."""
    for name in THEIR_NAMES.get(key, key).split():
        found = result.get(name)
        if isinstance(found, Tensor):
            return found
    raise UnknownNameError("output of the reference", key, list(result.keys()))


def _last_vectors(model: AnyModel, sample: RandomInputs) -> Tensor:
    """The last layer's vectors, before the head: (B, T, D)."""
    observer = Observer(want=("*.resid_out", "*.final_norm"))
    sample.run(model, obs=observer)
    return list(observer.record.tensors.values())[-1]


# ---- saved = loaded --------------------------------------------------------------------------------------


def saved_equals_loaded(bundle: Bundle, name: str) -> Claim:
    """Every tensor and the spec after a round trip through a temporary folder."""
    before = unique_state_dict(bundle.model)
    size = sum(t.numel() * t.element_size() for t in before.values())
    gaps: list[float] = []
    layouts = _layouts(bundle)
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as place:
        if shutil.disk_usage(place).free < 1.1 * size:
            return skipped(name, f"{place} has no room for {size / 1e9:.1f} GB; point TMPDIR elsewhere")
        for layout in layouts:
            folder = Path(place) / layout
            save(bundle, folder, layout=layout)
            first = next(bundle.model.parameters())
            again = load(folder, dtype="stored", device=first.device)
            after = unique_state_dict(again.model)
            if again.spec != bundle.spec or after.keys() != before.keys():
                gaps.append(float("inf"))
            else:
                gaps += [same_bits(after[key], before[key]) for key in before]
            del again, after
            shutil.rmtree(folder)  # the next layout may need the room
    return measured(name, gaps, 0.0, f"{len(before)} tensors, bit for bit; layout {' and '.join(layouts)}")


def _layouts(bundle: Bundle) -> list[Layout]:
    published = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    return ["glassformer"] if published is None else ["hf", "glassformer"]
