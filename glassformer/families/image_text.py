"""Shared by the families with an image tower and a text tower: pre-norm stacks with learned positions."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.families.family import Builder, spec_options
from glassformer.families.image_encoder import Size, as_pair
from glassformer.families.keys import ACTIVATIONS, Key, Keys, Options, Rule, activation, read_keys, write_keys
from glassformer.families.rows import layer_rows, rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Ignored, Op, Rename, Reshape, expand

TINY_TOWERS: dict[str, Any] = {
    **{"image_size": 16, "patch_size": 4, "d_model": 32, "num_heads": 4, "d_ff": 64, "num_layers": 2},
    **{"text_d_model": 24, "text_num_heads": 4, "text_d_ff": 48, "text_num_layers": 2},
    **{"vocab_size": 101, "max_len": 16},
}


def _stack(
    *,
    d_model: int,
    num_heads: int,
    d_ff: int,
    num_layers: int,
    activation: spec.Activation,
    norm_eps: float,
    attention_dropout: float,
    causal: bool = False,
    final_norm: bool = True,
) -> spec.StackSpec:
    """Create the stack of a tower."""
    norm = spec.LayerNormSpec(eps=norm_eps)
    return spec.StackSpec(
        d_model=d_model,
        num_layers=num_layers,
        block=spec.BlockSpec(
            attention=spec.AttentionSpec(num_heads=num_heads, dropout=attention_dropout),
            feed_forward=spec.FeedForwardSpec(d_ff=d_ff, activation=activation),
            norm=norm,
            wiring="pre",
        ),
        causal=causal,
        final_norm=norm if final_norm else None,
    )


def two_towers(
    *,
    similarity: Literal["softmax", "sigmoid"] = "softmax",
    image_size: Size = 224,
    patch_size: Size = 16,
    channels: int = 3,
    d_model: int = 768,
    num_heads: int = 12,
    d_ff: int = 3072,
    num_layers: int = 12,
    activation: spec.Activation = "quick_gelu",
    norm_eps: float = 1e-5,
    attention_dropout: float = 0.0,
    pooling: bool = True,
    vocab_size: int = 49408,
    max_len: int = 77,
    end_id: int | None = None,
    text_d_model: int = 512,
    text_num_heads: int = 8,
    text_d_ff: int = 2048,
    text_num_layers: int = 12,
    text_activation: spec.Activation = "quick_gelu",
    text_norm_eps: float = 1e-5,
    text_attention_dropout: float = 0.0,
    projection_dim: int | None = None,
    logit_scale: float = 2.6592,
    tower: Literal["both", "image", "text"] = "both",
) -> spec.TwoTowerSpec | spec.EncoderOnlySpec:
    """Create the spec of an image tower and a text tower, or one of them; `tower` says which.

    Options without the prefix text_ belong to the image tower.
    similarity: "softmax" is CLIP: class token, causal text tower that is pooled at the end token. "sigmoid"
    is SigLIP: attention pooling of images, bidirectional text tower that is pooled at the last position.
    pooling: whether a SigLIP image tower has its attention pooling; without a text tower it may lack it.
    end_id: the end token; None: a text is pooled at its largest id.
    projection_dim: width of the embeddings, of SigLIP those of texts; None: no projection, of SigLIP a
    projection to the width of the image tower. logit_scale: initial log of the inverse temperature.
    """
    softmax, norm = similarity == "softmax", spec.LayerNormSpec(eps=norm_eps)
    image_head: spec.HeadSpec = spec.FeaturesSpec()
    if softmax:
        image_head = spec.ProjectionSpec(pool="first", norm=norm, projection_dim=projection_dim)
    elif pooling:
        attention = spec.AttentionSpec(num_heads=num_heads)
        ffn = spec.FeedForwardSpec(d_ff=d_ff, activation=activation)
        image_head = spec.AttentionPoolSpec(attention=attention, feed_forward=ffn, norm=norm)
    image = spec.EncoderOnlySpec(
        input=spec.ImagePatchesSpec(
            image_size=as_pair(image_size),
            patch_size=as_pair(patch_size),
            channels=channels,
            prefix=1 if softmax else 0,
            bias=not softmax,
            norm=norm if softmax else None,
            interpolate=True,
        ),
        encoder=_stack(
            d_model=d_model,
            num_heads=num_heads,
            d_ff=d_ff,
            num_layers=num_layers,
            activation=activation,
            norm_eps=norm_eps,
            attention_dropout=attention_dropout,
            final_norm=not softmax,
        ),
        head=image_head,
    )
    text_head = spec.ProjectionSpec(
        pool="last_position",
        projection_dim=projection_dim or (text_d_model if tower == "text" else d_model),
        bias=True,
    )
    if softmax:
        text_head = spec.ProjectionSpec(
            pool="largest_id" if end_id is None else "first_end",
            end_id=-1 if end_id is None else end_id,
            projection_dim=projection_dim,
        )
    # without a pad id: padding is masked by the caller, or read
    text = spec.EncoderOnlySpec(
        input=spec.TokensSpec(vocab_size=vocab_size, position=spec.LearnedSpec(max_len=max_len)),
        encoder=_stack(
            d_model=text_d_model,
            num_heads=text_num_heads,
            d_ff=text_d_ff,
            num_layers=text_num_layers,
            activation=text_activation,
            norm_eps=text_norm_eps,
            attention_dropout=text_attention_dropout,
            causal=softmax,
        ),
        head=text_head,
    )
    if tower != "both":
        return image if tower == "image" else text
    head = spec.SoftmaxSimilaritySpec(scale=logit_scale) if softmax else spec.SigmoidSimilaritySpec()
    return spec.TwoTowerSpec(image=image, text=text, head=head)


# ---- the published config ---------------------------------------------------------------------------

STACK_KEYS = (
    Key("hidden_size", "d_model", 768),
    Key("num_attention_heads", "num_heads", 12),
    Key("intermediate_size", "d_ff", 3072),
    Key("num_hidden_layers", "num_layers", 12),
    activation("hidden_act", "gelu", {"gelu_pytorch_tanh": "gelu_tanh", **ACTIVATIONS}),
    Key("layer_norm_eps", "norm_eps", 1e-5),
    Key("attention_dropout", default=0.0),
)
IMAGE_KEYS = (*STACK_KEYS, Key("num_channels", "channels", 3))
TEXT_KEYS = (*STACK_KEYS, Key("vocab_size", default=32000), Key("max_position_embeddings", "max_len", 77))
_SHARED = ("vocab_size", "max_len", "end_id", "projection_dim")  # options of the text tower without a prefix


TWO_TOWERS = Builder(two_towers, lambda model: {"model": model}, shared=True)


def towers(stem: str, image: Keys, text: Keys) -> Rule:
    """Return the rule of both towers together, or of one alone. stem: of the class names.

    image, text: keys of the towers. The options of the text tower get the prefix text_.
    """

    def read(config: Config, _: Options) -> dict[str, Any]:
        name = config.architecture
        if name == f"{stem}Model":
            parts = (_tower_config(config, part) for part in ("vision_config", "text_config"))
            return read_keys(next(parts), image) | read_text(next(parts))
        if name.startswith(f"{stem}Text"):
            return {**read_text(config), "tower": "text"}
        return {**read_keys(config, image), "tower": "image"}

    def read_text(config: Config) -> dict[str, Any]:
        options = read_keys(config, text)
        return {name if name in _SHARED else f"text_{name}": value for name, value in options.items()}

    def write(options: Options) -> dict[str, Any]:
        model = options["model"]
        if isinstance(model, spec.TwoTowerSpec):
            parts = {"text_config": model.text, "vision_config": model.image}
            configs = {name: write({"model": tower}) for name, tower in parts.items()}
            for config in configs.values():
                del config["architectures"]
            return {"architectures": [f"{stem}Model"], **configs}
        is_text = isinstance(model.input, spec.TokensSpec)
        return {
            "model_type": f"{stem.lower()}_{'text' if is_text else 'vision'}_model",
            "architectures": [f"{stem}{'Text' if is_text else 'Vision'}Model"],
            **write_keys({"head": model.head, **spec_options(model)}, text if is_text else image),
        }

    named = tuple(f"text_{option}" for key in text for option in key.options)
    return Rule((*(o for key in (*image, *text) for o in key.options), *named, "tower"), read, write)


def _tower_config(config: Config, name: str) -> Config:
    """Return the config of a tower; the older key with the suffix _dict replaces it."""
    return config.nested(f"{name}_dict" if config.get(f"{name}_dict", {}) else name)


TowerRows = Callable[[spec.EncoderOnlySpec, str, str], tuple[Op, ...]]


def towers_table(
    model: spec.ModelSpec, names: Collection[str], *, image: TowerRows, text: TowerRows, pair: tuple[Op, ...]
) -> WeightTable:
    """Return the weight table of one or both towers. image, text: (tower, prefixes) -> operations.

    pair: further operations of both together.
    """
    if isinstance(model, spec.TwoTowerSpec):
        rows = (*image(model.image, "vision_model.", "image."), *text(model.text, "text_model.", "text."))
        return WeightTable((*rows, *pair))
    assert isinstance(model, spec.EncoderOnlySpec)
    is_text = isinstance(model.input, spec.TokensSpec)
    rows = (text if is_text else image)(model, "{base}", "")
    prefix = "text_model." if is_text else "vision_model."
    above = any(not name.startswith("{base}") for row in rows for name in row.theirs)  # a projection
    return WeightTable(rows, base=(prefix, "") if above else ("", prefix))


_LAYER = {
    **{f"self_attn.{name}_proj": f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")},
    **{"layer_norm1": "norm_self", "layer_norm2": "norm_ffn", "mlp.fc1": "ffn.up", "mlp.fc2": "ffn.down"},
}


def text_rows(tower: spec.EncoderOnlySpec, theirs: str, ours: str) -> tuple[Op, ...]:
    """Return the weight operations of a text tower without its head. theirs, ours: prefixes."""
    return (
        *layer_rows(
            f"{theirs}encoder.layers.{{i}}", f"{ours}encoder.blocks.{{i}}", tower.encoder.num_layers, _LAYER
        ),
        *expand(
            (Rename(f"{theirs}embeddings.{{n}}_embedding.weight", f"{ours}embed.{{n}}.weight"),),
            n=("token", "position"),
        ),
        *rename_modules((f"{theirs}final_layer_norm", f"{ours}encoder.final_norm")),
        Ignored(f"{theirs}embeddings.position_ids"),
    )


def image_rows(tower: Any, theirs: str, ours: str, norms: Mapping[str, str]) -> tuple[Op, ...]:
    """Return the weight operations of an image tower without its head.

    theirs, ours: prefixes. norms: published name -> Glassformer name of the norms around the stack.
    """
    read = tower.input
    width, tokens = tower.encoder.d_model, read.prefix + read.num_patches
    rows: list[Op] = [
        *layer_rows(
            f"{theirs}encoder.layers.{{i}}", f"{ours}encoder.blocks.{{i}}", tower.encoder.num_layers, _LAYER
        ),
        *expand(
            (Rename(f"{theirs}embeddings.patch_embedding.{{p}}", f"{ours}embed.patch.{{p}}"),),
            p=("weight", "bias") if read.bias else ("weight",),
        ),
        Reshape(
            f"{theirs}embeddings.position_embedding.weight",
            f"{ours}embed.position",
            their_shape=(tokens, width),
            our_shape=(1, tokens, width),
        ),
        *rename_modules(*((f"{theirs}{name}", f"{ours}{norm}") for name, norm in norms.items())),
        Ignored(f"{theirs}embeddings.position_ids"),
    ]
    if read.prefix:
        rows.append(
            Reshape(
                f"{theirs}embeddings.class_embedding",
                f"{ours}embed.prefix",
                their_shape=(width,),
                our_shape=(1, 1, width),
            )
        )
    return tuple(rows)
