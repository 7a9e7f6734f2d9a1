"""Traces of tiny models without tokenizers: named inputs in, everything that was seen out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer import Bundle, tiny
from glassformer.core.observe import observe
from glassformer.interpret.inputs import PreparedInput
from glassformer.interpret.interventions import apply_interventions
from glassformer.interpret.schema import FillOutcome, Kind, TraceInput, TraceSeconds
from glassformer.interpret.trace import Trace
from tests.interpret.models import interventions


def drawn(family: str, **words: Any) -> Any:
    """A tiny model of the family, with numbers so large that a mistake shows."""
    torch.manual_seed(0)
    model: Any = tiny(family, **words).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2)
    return model


def inputs_for(model: Any, length: int = 9, seed: int = 1) -> dict[str, Tensor]:
    """Something to read."""
    made = torch.Generator().manual_seed(seed)
    match type(model).__name__:
        case "EncoderDecoder":
            return {
                "src": torch.randint(4, 50, (1, length), generator=made),
                "tgt": torch.randint(4, 50, (1, length - 2), generator=made),
            }
        case "DecoderOnly":
            return {"ids": torch.randint(4, 50, (1, length), generator=made)}
    embed = model.embed
    if hasattr(embed, "image_size"):
        return {"inputs": torch.randn(1, embed.channels, *embed.image_size, generator=made)}
    if hasattr(embed, "context_length"):
        return {"inputs": torch.randn(1, embed.context_length, embed.channels, generator=made)}
    return {"inputs": torch.randint(4, 50, (1, length), generator=made)}


def traced(
    model: Any, inputs: dict[str, Any], kind: Kind = "generate", changes: Sequence[Any] = (), id: str = "a"
) -> Trace:
    """The trace of one forward."""
    given = interventions(changes)
    made = apply_interventions(model, inputs, given)
    return Trace(
        id=id,
        model="model",
        bundle=Bundle(model=model),
        prepared=PreparedInput(kind=kind, input=TraceInput(), sequences=(), inputs=made.inputs),
        interventions=tuple(given),
        record=observe(made.model, made.inputs, edit=made.edit),
        outcome=FillOutcome(masks=()),
        seconds=TraceSeconds(),
    )
