"""Tiny models of the three shapes, and what to feed them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glassformer.core import spec
from glassformer.core.build import build_model
from glassformer.core.model import AnyModel

D, H, FF, LAYERS, VOCAB = 16, 4, 24, 2, 23

ADDED: dict[str, spec.InputPositionSpec] = {
    "sinusoidal": spec.SinusoidalSpec(max_len=32),
    "learned": spec.LearnedSpec(max_len=32),
}
INSIDE: dict[str, spec.AttentionPositionSpec] = {
    "rotary": spec.RotarySpec(),
    "relative": spec.RelativeSpec(buckets=8, max_distance=12),
    "alibi": spec.AlibiSpec(),
}
POSITIONS = (*ADDED, *INSIDE, "none")
SHAPES = ("encoder_decoder", "encoder_only", "decoder_only")


def stack(causal: bool, cross: bool, position: str, wiring: spec.Wiring, **attention: Any) -> spec.StackSpec:
    """A stack of two blocks with a final norm."""
    return spec.StackSpec(
        d_model=D,
        num_layers=LAYERS,
        causal=causal,
        position=INSIDE.get(position),
        final_norm=spec.LayerNormSpec() if wiring != "post" else None,
        block=spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=H, **attention),
            cross_attention=spec.AttentionSpec(num_heads=H) if cross else None,
            feed_forward=spec.FeedForwardSpec(d_ff=FF),
            wiring=wiring,
        ),
    )


def spec_of(
    shape: str, *, position: str = "sinusoidal", wiring: spec.Wiring = "pre", **attention: Any
) -> spec.ModelSpec:
    """The spec of a tiny model; further words go to its self-attention."""
    tokens = spec.TokensSpec(vocab_size=VOCAB, position=ADDED.get(position), pad_id=0)
    head = spec.LanguageModelSpec(vocab_size=VOCAB)
    match shape:
        case "encoder_decoder":
            return spec.EncoderDecoderSpec(
                source=tokens,
                target=tokens,
                encoder=stack(False, False, position, wiring, **attention),
                decoder=stack(True, True, position, wiring, **attention),
                head=head,
            )
        case "encoder_only":
            encoder = stack(False, False, position, wiring, **attention)
            return spec.EncoderOnlySpec(input=tokens, encoder=encoder, head=head, init=spec.XavierSpec())
    decoder = stack(True, False, position, wiring, **attention)
    return spec.DecoderOnlySpec(input=tokens, decoder=decoder, head=head, init=spec.XavierSpec())


def model_of(shape: str, seed: int = 0, **options: Any) -> AnyModel:
    """The model, in evaluation, with every number drawn so large that a mistake shows."""
    torch.manual_seed(seed)
    model = build_model(spec_of(shape, **options)).eval()
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value) * 0.2)
    return model


def ids(batch: int, length: int, seed: int = 0) -> Tensor:
    """Token ids (B, T), none of them padding."""
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def inputs_of(shape: str, batch: int = 3, seed: int = 0) -> tuple[Tensor, ...]:
    """What the model's forward takes: a source of 7 and a target of 6, or one sequence of 6."""
    if shape == "encoder_decoder":
        return ids(batch, 7, seed), ids(batch, 6, seed + 1)
    return (ids(batch, 6, seed),)
