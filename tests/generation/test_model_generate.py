"""`model.generate` of the core models against transformers' `generate`."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from glassformer.errors import MissingValueError
from tests.generation.references import generated, lively_ends, padded, pair, rows


@pytest.mark.parametrize(
    "options", [{}, {"num_beams": 3, "num_return_sequences": 2}], ids=["greedy", "beams"]
)
@pytest.mark.parametrize("family", ["marian", "gpt2"])
def test_model_generate_matches_transformers(family: str, options: dict[str, Any]) -> None:
    theirs, ours = pair(family)
    side = "right" if theirs.config.is_encoder_decoder else "left"
    ids, mask = padded(rows(), side, theirs.config.pad_token_id)
    ends = lively_ends(family)
    expected, _ = generated(theirs, ids, mask, ends, max_new_tokens=9, **options)
    found = ours.generate(ids, attention_mask=mask.long(), eos_token_id=ends, max_new_tokens=9, **options)
    assert found == expected


def test_model_generate_needs_a_bound() -> None:
    with pytest.raises(MissingValueError):
        pair("gpt2")[1].generate(torch.tensor([[5, 6]]))
