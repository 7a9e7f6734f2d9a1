"""Prove on this machine what Glassformer promises of a model: each claim with its worst difference."""

from glassformer.verify.claims import Claim
from glassformer.verify.exported import open_exported
from glassformer.verify.inputs import stir
from glassformer.verify.proofs import proofs, verify

__all__ = ["Claim", "open_exported", "proofs", "stir", "verify"]
