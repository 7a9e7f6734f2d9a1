"""Check a model's numerical guarantees on this machine; each check reports its largest difference."""

from collections.abc import Iterator
from functools import partial
from typing import Literal

from glassformer.bundle import Bundle
from glassformer.verify.comparison import CheckResult
from glassformer.verify.drawing import Check, checks_of_drawing
from glassformer.verify.exported import ExportedFolder, exported_equals_native, open_exported
from glassformer.verify.forward import (
    attention_weights_match_outputs,
    batched_equals_single,
    gradients_agree,
    kernels_agree,
    observed_equals_unobserved,
    rows_sum_to_one,
)
from glassformer.verify.generation import (
    cached_equals_uncached,
    prepared_equals_loaded,
    quantized_near_loaded,
)
from glassformer.verify.inputs import perturb_parameters
from glassformer.verify.reference import reference_equals_ours, saved_equals_loaded

__all__ = ["CheckResult", "all_checks", "open_exported", "perturb_parameters", "verify"]

Reference = Literal["auto", "required", "skipped"]


def all_checks(
    reference: Reference = "auto", exported: ExportedFolder | None = None, bundle: Bundle | None = None
) -> dict[str, Check]:
    """Return all checks by name, in order; each is called with the bundle and its name.

    reference: "auto" compares with transformers if it is installed, "required" raises if it is not, "skipped"
    omits the comparison.
    exported: an export of the model to compare with, from `open_exported`.
    bundle: a model that draws has further checks.
    """
    first: dict[str, Check] = {}
    if exported is not None:
        first["exported = native"] = partial(exported_equals_native, exported=exported)
    if reference != "skipped":
        first["reference = ours"] = partial(reference_equals_ours, required=reference == "required")
    checks = first | {
        "cached = uncached": cached_equals_uncached,
        "padded right = unpadded": partial(batched_equals_single, side="right"),
        "padded left = unpadded": partial(batched_equals_single, side="left"),
        "batched = single": batched_equals_single,
        "kernels agree": kernels_agree,
        "kernels' gradients agree": gradients_agree,
        "observed = unobserved": observed_equals_unobserved,
        "weights' rows sum to 1": rows_sum_to_one,
        "weights @ v = heads": attention_weights_match_outputs,
        "prepared = loaded": prepared_equals_loaded,
        "int8 near loaded": partial(quantized_near_loaded, weights="int8"),
        "int4 near loaded": partial(quantized_near_loaded, weights="int4"),
        "saved = loaded": saved_equals_loaded,
    }
    return checks_of_drawing(checks, bundle) if bundle is not None and bundle.models() else checks


def verify(bundle: Bundle, reference: Reference = "auto") -> Iterator[CheckResult]:
    """Run every check on a bundle, one after another.

    A difference above the tolerance of float32 is judged by the model's rounding error, measured in float64.

    >>> import glassformer
    >>> results = verify(Bundle(model=glassformer.tiny("original")), reference="skipped")
    >>> {result.status for result in results}
    {'passed'}
    """
    bundle.model.eval()
    for name, check in all_checks(reference, None, bundle).items():
        yield check(bundle, name)
