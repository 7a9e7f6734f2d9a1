"""The names of parameters and observed tensors, which saved files depend on."""

from __future__ import annotations

import pytest

from glassformer.core import spec
from glassformer.core.observe import observe
from tests.core.models import LAYERS, inputs_of, model_of

EMBED = ["token", "position", "out"]
PRE = """
    resid_in norm_self self_attn.q self_attn.k self_attn.v self_attn.heads self_attn.out resid_self
    norm_ffn ffn.up ffn.act ffn.down resid_out
""".split()
PRE_CROSS = """
    resid_in norm_self self_attn.q self_attn.k self_attn.v self_attn.heads self_attn.out resid_self
    norm_cross cross_attn.q cross_attn.k cross_attn.v cross_attn.heads cross_attn.out resid_cross
    norm_ffn ffn.up ffn.act ffn.down resid_out
""".split()
POST = """
    resid_in self_attn.q self_attn.k self_attn.v self_attn.heads self_attn.out norm_self_in norm_self
    resid_self ffn.up ffn.act ffn.down norm_ffn_in norm_ffn resid_out
""".split()
ATTENTION = """
    q_proj.weight q_proj.bias k_proj.weight k_proj.bias v_proj.weight v_proj.bias
    out_proj.weight out_proj.bias
""".split()
FFN = "ffn.up.weight ffn.up.bias ffn.down.weight ffn.down.bias".split()


def under(prefix: str, names: list[str]) -> list[str]:
    return [f"{prefix}.{name}" for name in names]


def blocks(stack: str, names: list[str]) -> list[str]:
    return [f"{stack}.blocks.{n}.{name}" for n in range(LAYERS) for name in names]


def norm(name: str) -> list[str]:
    return [f"{name}.weight", f"{name}.bias"]


OWN = [*under("self_attn", ATTENTION), *norm("norm_self")]
CROSS = [*under("cross_attn", ATTENTION), *norm("norm_cross")]
FEED = [*FFN, *norm("norm_ffn")]

OBSERVED = {
    ("encoder_decoder", "pre"): [
        *under("src_embed", EMBED),
        *blocks("encoder", PRE),
        "encoder.final_norm",
        *under("tgt_embed", EMBED),
        *blocks("decoder", PRE_CROSS),
        "decoder.final_norm",
        "head.logits",
    ],
    ("decoder_only", "post"): [*under("embed", EMBED), *blocks("decoder", POST), "head.logits"],
}
PARAMETERS = {
    "encoder_decoder": [
        "src_embed.token.weight",
        "tgt_embed.token.weight",
        *blocks("encoder", OWN + FEED),
        *norm("encoder.final_norm"),
        *blocks("decoder", OWN + CROSS + FEED),
        *norm("decoder.final_norm"),
        "head.weight",
    ],
    "decoder_only": [
        "embed.token.weight",
        *blocks("decoder", OWN + FEED),
        *norm("decoder.final_norm"),
        "head.weight",
    ],
}


@pytest.mark.parametrize(("shape", "wiring"), OBSERVED)
def test_observed_names_follow_the_forward_pass(shape: str, wiring: spec.Wiring) -> None:
    record = observe(model_of(shape, wiring=wiring), inputs_of(shape))
    assert record.names() == OBSERVED[shape, wiring]


def test_observed_names_of_inputs_and_heads() -> None:
    parallel = observe(
        model_of("decoder_only", wiring="parallel", position="none"), inputs_of("decoder_only")
    )
    assert parallel.names("decoder.blocks.0.*") == [
        f"decoder.blocks.0.{name}" for name in PRE if name not in ("resid_self", "norm_ffn")
    ]
    assert parallel.names("embed.*") == ["embed.token", "embed.out"]


@pytest.mark.parametrize("shape", PARAMETERS)
def test_parameter_names(shape: str) -> None:
    model = model_of(shape)
    assert [name for name, _ in model.named_parameters()] == PARAMETERS[shape]
    saved = set(model.state_dict()) - set(PARAMETERS[shape])
    embeds = ("src_embed", "tgt_embed") if shape == "encoder_decoder" else ("embed",)
    assert saved == {f"{embed}.position.table" for embed in embeds}
