"""Shared by the vision-language families: an image encoder, a connector and a decoder of other families.

The config nests the configs of both families as `vision_config` and `text_config`, and the tensors have their
names with a prefix. The families differ in the connector, its config keys and the prefixes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from glassformer.core import spec
from glassformer.families import clip, llama, mistral, qwen2, siglip
from glassformer.families.config import Config
from glassformer.families.family import Builder, Family
from glassformer.families.image_encoder import Size
from glassformer.families.keys import Head
from glassformer.families.parts import Part, find_part
from glassformer.families.rows import rename_modules
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, rename_op

DECODERS = {
    "llama": Part(llama.FAMILY, "LlamaForCausalLM"),
    "mistral": Part(mistral.FAMILY, "MistralForCausalLM"),
    "qwen2": Part(qwen2.FAMILY, "Qwen2ForCausalLM"),
}
ENCODERS = {
    "clip_vision_model": Part(clip.FAMILY, "CLIPVisionModel"),
    "siglip_vision_model": Part(siglip.FAMILY, "SiglipVisionModel"),
}
_TOWERS: dict[str, dict[str, Any]] = {
    "clip": {"similarity": "softmax"},
    "siglip": {"similarity": "sigmoid", "pooling": False, "norm_eps": 1e-6, "activation": "gelu_tanh"},
}
Interpolation = Literal["bicubic", "bilinear", "nearest"]
_TOKENS = tuple(field.name for field in fields(spec.TokensSpec))


class Prefixes(NamedTuple):
    """Prefixes of published tensors. text: of the decoder, with the head under `head`."""

    text: str
    head: str
    image: str
    connector: str


def join(image: Any, text: spec.DecoderOnlySpec, **source: Any) -> spec.DecoderOnlySpec:
    """Put an image encoder into the input of a decoder. source: further fields of `ImageTokensSpec`."""
    tokens = {name: getattr(text.input, name) for name in _TOKENS}
    return replace(text, input=spec.ImageTokensSpec(**tokens, image=image, **source))


def split(model: Any) -> tuple[spec.EncoderOnlySpec, spec.DecoderOnlySpec]:
    """Return the image encoder and the decoder of a spec; the inverse of `join`."""
    tokens = {name: getattr(model.input, name) for name in _TOKENS}
    return model.input.image, replace(model, input=spec.TokensSpec(**tokens))


def interpolated(image: Any, how: Interpolation) -> Any:
    """Return the spec of an image encoder with this interpolation of its trained positions."""
    return replace(image, input=replace(image.input, interpolation=how))


def vision_language(
    *,
    image_size: Size = 224,
    patch_size: Size = 16,
    image_d_model: int = 768,
    image_num_heads: int = 12,
    image_d_ff: int = 3072,
    image_num_layers: int = 12,
    image_tower: Literal["siglip", "clip"] = "siglip",
    image_layer: int | None = None,
    interpolation: Interpolation = "bicubic",
    shuffle: int = 1,
    connector_activation: spec.Activation | None = None,
    connector_bias: bool = False,
    vocab_size: int = 49280,
    d_model: int = 576,
    num_heads: int = 9,
    num_kv_heads: int | None = None,
    d_ff: int = 1536,
    num_layers: int = 30,
    max_len: int = 8192,
    norm_eps: float = 1e-5,
    rope_base: float = 100000.0,
    tied: bool = False,
    pad_id: int | None = None,
    image_id: int = 49190,
) -> spec.DecoderOnlySpec:
    """Create the spec of an image encoder and a LLaMA decoder, which reads its vectors among the tokens.

    Options with the prefix image_ belong to the image encoder; image_id is the placeholder token.
    image_layer: hidden states of the image encoder to use, e.g. -2; None: its output.
    interpolation: of the trained positions, for images of other sizes.
    shuffle, connector_activation, connector_bias: of the connector, see `ConnectorSpec`.
    """
    image = clip.TWO_TOWERS.create(
        **_TOWERS[image_tower],
        tower="image",
        image_size=image_size,
        patch_size=patch_size,
        d_model=image_d_model,
        num_heads=image_num_heads,
        d_ff=image_d_ff,
        num_layers=image_num_layers,
    )
    text = llama.FAMILY.build(
        vocab_size=vocab_size,
        d_model=d_model,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        d_ff=d_ff,
        num_layers=num_layers,
        max_len=max_len,
        norm_eps=norm_eps,
        rope_base=rope_base,
        tied=tied,
        pad_id=pad_id,
    )
    connector = spec.ConnectorSpec(shuffle=shuffle, activation=connector_activation, bias=connector_bias)
    image = interpolated(image, interpolation)
    return join(image, text, image_id=image_id, connector=connector, layer=image_layer)


@dataclass(frozen=True)
class Layout:
    """What distinguishes a vision-language family.

    encoders: image encoders by their model_type. image_id_key: config key of the placeholder token.
    prefixes: of its files, the first for saving. connector: published names of its modules.
    read: config and image encoder -> further fields of the input. write: the inverse.
    interpolation: of the trained positions; the family of the image encoder has bicubic interpolation.
    tied: whether the decoder shares its token matrix with the head.
    """

    encoders: Mapping[str, Part]
    image_id_key: str
    prefixes: Sequence[Prefixes]
    connector: Mapping[str, str]
    read: Callable[[Config], dict[str, Any]]
    write: Callable[[spec.ImageTokensSpec], dict[str, Any]]
    interpolation: Interpolation = "bicubic"
    tied: Callable[[Config, Config], bool] = lambda config, text: config.get("tie_word_embeddings", False)


def vision_language_family(
    name: str,
    architecture: str,
    layout: Layout,
    *,
    build: Callable[..., spec.DecoderOnlySpec],
    presets: Mapping[str, Mapping[str, Any]],
    tiny: Mapping[str, Any],
) -> Family:
    """Return the family of a layout."""

    def read(config: Config) -> spec.ModelSpec:
        def part(name: str, parts: Mapping[str, Part], **changes: Any) -> Any:
            chosen: Part = config.nested(name).choose("model_type", parts, next(iter(parts)))
            values = {**(chosen.defaults or {}), **config.nested(name).values, **changes}
            return chosen.family.from_config(
                config.nested(name, **values, architectures=[chosen.architecture])
            )

        tied = layout.tied(config, config.nested("text_config"))
        text = part("text_config", DECODERS, tie_word_embeddings=tied)
        image = interpolated(part("vision_config", layout.encoders), layout.interpolation)
        image_id = config.need(layout.image_id_key, int, "image_token_id", "image_token_index")
        return join(image, text, image_id=image_id, **layout.read(config))

    def write(model: spec.ModelSpec) -> dict[str, Any]:
        image, text = split(model)
        nested = {}
        for key, parts, own in (
            ("vision_config", layout.encoders, interpolated(image, "bicubic")),
            ("text_config", DECODERS, text),
        ):
            model_type, part = find_part(parts, own)
            nested[key] = {**part.family.to_config(own), "model_type": model_type}
            del nested[key]["architectures"]
        source: Any = model.inputs()[0]
        return {
            "model_type": name,
            "architectures": [architecture],
            "tie_word_embeddings": "head" in model.tied,
            layout.image_id_key: source.image_id,
            **nested,
            **layout.write(source),
        }

    def table(model: spec.ModelSpec, names: Collection[str]) -> WeightTable:
        image, text = split(model)
        image = interpolated(image, "bicubic")
        tables = {
            "image": find_part(layout.encoders, image)[1].family.table(image, ()).rows(""),
            "text": find_part(DECODERS, text)[1].family.table(text, ()).rows("model."),
        }
        connector = rename_modules(*((theirs, ours) for theirs, ours in layout.connector.items()))
        if not model.inputs()[0].connector.bias:  # type: ignore[attr-defined]
            connector = tuple(row for row in connector if not row.ours[0].endswith("bias"))
        present = {*names}
        candidates = [_named(prefixes, tables, connector) for prefixes in layout.prefixes]
        best = max(candidates, key=lambda rows: sum(n in present for row in rows for n in row.theirs))
        return WeightTable(best)

    return Family(
        name=name,
        builder=Builder(build, lambda model: {}),  # both parts have their own
        heads={architecture: Head(spec.LanguageModelSpec, from_options=True)},
        presets=presets,
        tiny=tiny,
        weight_table=table,
        reader=read,
        writer=write,
    )


def _named(prefixes: Prefixes, tables: Mapping[str, Sequence[Op]], connector: Sequence[Op]) -> tuple[Op, ...]:
    """Return the rows of all parts with the names of one layout of files."""

    def text(name: str) -> str:
        inner = name.removeprefix("model.")
        return prefixes.text + inner if inner != name else prefixes.head + name

    def ours(path: str) -> str:
        return f"embed.image.{path}"

    return (
        *(rename_op(row, text, str) for row in tables["text"]),
        *(rename_op(row, prefixes.image.__add__, ours) for row in tables["image"]),
        *(rename_op(row, prefixes.connector.__add__, str) for row in connector),
    )
