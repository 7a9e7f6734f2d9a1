"""Every promise by its name, with the function that proves it of a bundle."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

from glassformer.bundle import Bundle
from glassformer.verify.cached import cached_equals_uncached
from glassformer.verify.claims import Claim
from glassformer.verify.exported import ExportedFolder, exported_equals_native
from glassformer.verify.kernels import gradients_agree, kernels_agree
from glassformer.verify.laid_out import int8_near_loaded, laid_out_equals_loaded
from glassformer.verify.observed import observed_equals_unobserved, rows_sum_to_one, weights_make_heads
from glassformer.verify.reference import reference_equals_ours
from glassformer.verify.rows import batched_equals_single, padded_equals_unpadded
from glassformer.verify.saved import saved_equals_loaded

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
        "padded right = unpadded": partial(padded_equals_unpadded, side="right"),
        "padded left = unpadded": partial(padded_equals_unpadded, side="left"),
        "batched = single": batched_equals_single,
        "kernels agree": kernels_agree,
        "kernels' gradients agree": gradients_agree,
        "observed = unobserved": observed_equals_unobserved,
        "weights' rows sum to 1": rows_sum_to_one,
        "weights @ v = heads": weights_make_heads,
        "laid out = loaded": laid_out_equals_loaded,
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
