"""Prove on this machine what Glassformer promises of a model: each claim with its worst difference."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from glassformer.bundle import Bundle
from glassformer.verify.claims import Claim
from glassformer.verify.exported import ExportedFolder, exported_equals_native, open_exported
from glassformer.verify.forward import (
    batched_equals_single,
    gradients_agree,
    kernels_agree,
    observed_equals_unobserved,
    rows_sum_to_one,
    weights_make_heads,
)
from glassformer.verify.generation import cached_equals_uncached, int8_near_loaded, prepared_equals_loaded
from glassformer.verify.inputs import stir
from glassformer.verify.reference import reference_equals_ours, saved_equals_loaded

__all__ = ["Claim", "open_exported", "proofs", "stir", "verify"]

Proof = Callable[[Bundle, str], Claim]
Reference = Literal["auto", "required", "skipped"]


def proofs(reference: Reference = "auto", exported: ExportedFolder | None = None) -> dict[str, Proof]:
    """The promises in the order they are proved; each function takes the bundle and the promise's name.

    reference: "auto" compares with the reference library where it is installed, "required" makes its
    absence an error, "skipped" leaves it out.
    exported: an export of the model, from `open_exported`, to be run beside it.
    """
    first: dict[str, Proof] = {}
    if exported is not None:
        first["exported = native"] = partial(exported_equals_native, exported=exported)
    if reference != "skipped":
        first["reference = ours"] = partial(reference_equals_ours, required=reference == "required")
    return first | {
        "cached = uncached": cached_equals_uncached,
        "padded right = unpadded": partial(batched_equals_single, side="right"),
        "padded left = unpadded": partial(batched_equals_single, side="left"),
        "batched = single": batched_equals_single,
        "kernels agree": kernels_agree,
        "kernels' gradients agree": gradients_agree,
        "observed = unobserved": observed_equals_unobserved,
        "weights' rows sum to 1": rows_sum_to_one,
        "weights @ v = heads": weights_make_heads,
        "prepared = loaded": prepared_equals_loaded,
        "int8 near loaded": int8_near_loaded,
        "saved = loaded": saved_equals_loaded,
    }


def verify(bundle: Bundle, reference: Reference = "auto") -> Iterator[Claim]:
    """Prove every promise of a bundle, one after another.

    >>> import glassformer
    >>> claims = verify(Bundle(model=glassformer.tiny("original")), reference="skipped")
    >>> {claim.status for claim in claims}
    {'holds'}
    """
    bundle.model.eval()
    for name, prove in proofs(reference).items():
        yield prove(bundle, name)
