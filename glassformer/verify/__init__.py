"""Prove on this machine what Glassformer promises of a model: each claim with its worst difference."""

from glassformer.verify.claims import Claim
from glassformer.verify.inputs import stir
from glassformer.verify.proofs import proofs, verify

__all__ = ["Claim", "proofs", "stir", "verify"]
