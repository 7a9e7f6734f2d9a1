"""A published family as data: its options, its config keys and the names of its weights."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from glassformer.core import spec
from glassformer.core.spec import HeadSpec, ModelSpec
from glassformer.families.config import Config
from glassformer.families.keys import Head, Keys, read_keys, write_keys
from glassformer.families.rows import model_prefixes
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op


def spec_options(model: ModelSpec) -> dict[str, Any]:
    """Return the build options of a spec; for an encoder-decoder, those of the encoder."""
    source: Any = model.inputs()[0]
    stack: Any = next(iter(model.stacks().values()))
    block, attention, ffn = stack.block, stack.block.attention, stack.block.feed_forward
    vocabulary = spec.LanguageModelSpec | spec.MaskedLanguageModelSpec
    options = {
        "d_model": stack.d_model,
        "num_heads": attention.num_heads,
        "num_kv_heads": attention.num_kv_heads or attention.num_heads,
        "head_dim": attention.head_dim or stack.d_model // attention.num_heads,
        "d_ff": ffn.d_ff,
        "num_layers": stack.num_layers,
        "max_len": getattr(model, "max_len", None),
        "window": attention.window,
        "activation": ffn.activation,
        "norm_eps": block.norm.eps,
        "dropout": block.dropout,
        "attention_dropout": attention.dropout,
        "ffn_dropout": ffn.dropout,
        "embed_dropout": getattr(source, "dropout", 0.0),
        "attention_bias": "out" in attention.biases,
        "qkv_bias": "q" in attention.biases,
        "ffn_bias": bool(ffn.biases),
        "wiring": block.wiring,
        "gated": ffn.gated,
        "layer_scale": block.layer_scale,
        "drop_path": stack.drop_path[0],
        "tied": "head" in model.tied or not isinstance(model.head, vocabulary),  # or has no head to tie
    }
    if isinstance(model, spec.EncoderDecoderSpec):
        options |= {
            "decoder_layers": model.decoder.num_layers,
            "decoder_heads": model.decoder.block.attention.num_heads,
            "decoder_d_ff": model.decoder.block.feed_forward.d_ff,
            "start_id": model.start_id,
        }
    if isinstance(source, spec.TokensSpec):
        options |= {"vocab_size": source.vocab_size, "types": source.types, "pad_id": source.pad_id}
        options["max_len"] = options["max_len"] or getattr(source.position, "max_len", None)
    elif isinstance(source, spec.ImagePatchesSpec | spec.SeriesPatchesSpec):
        options |= vars(source)
        options["dropout"] = block.dropout
    return options


TINY: dict[str, Any] = {"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64}


def preset(d_model: int, num_heads: int, num_layers: int, d_ff: int, **options: Any) -> dict[str, Any]:
    """Return the options of a preset."""
    return {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "d_ff": d_ff, **options}


@dataclass(frozen=True)
class Builder:
    """A function that creates specs from options, and its inverse; several families may share it.

    create: keyword-only options -> spec; every option has a default. invert: spec -> options.
    shared: a family offers the options that its keys express, not all.
    """

    create: Callable[..., ModelSpec]
    invert: Callable[[Any], dict[str, Any]]
    shared: bool = False


_HEAD_OPTIONS = {"head", "num_labels"}


@dataclass(frozen=True, kw_only=True)
class Family:
    """One published family.

    model_type: in the config; by default, the name.
    library: the library whose layout its folders have: names of the files, class in the config.
    builder: creates the specs. defaults: of its options, where they differ from the builder's own.
    keys: the published config. An option that no key expresses has its default in every model of the family.
    more_options: options that `build` accepts although the config of the family cannot express them.
    heads: class name in `config.json` -> head; of two classes with the same head, the first is saved.
    presets: name -> options of `build`. tiny: options of a model with a few thousand parameters.
    rows: spec -> names and shapes of the weights. prefixes: those of published names below a head.
    weight_table: the table in place of `rows`, for names that depend on the tensors of a file.
    reader, writer: convert a published config to a spec and back, where keys and heads are not enough.
    files: further JSON files of a saved folder, by name.
    generation: generation settings that its config has instead of `generation_config.json`: name -> (object,
    key).
    marker_files: files that distinguish its folders from those of a family with the same architecture.
    bare_architecture: the class of published configs that name none, if there are such configs.
    pipeline: the class of pipelines in diffusers whose denoisers are of this family.
    """

    name: str
    model_type: str = ""
    library: Literal["transformers", "diffusers"] = "transformers"
    builder: Builder
    defaults: Mapping[str, Any] = field(default_factory=dict)
    keys: Keys = ()
    more_options: tuple[str, ...] = ()
    heads: Mapping[str, Head]
    presets: Mapping[str, Mapping[str, Any]]
    tiny: Mapping[str, Any]
    rows: Callable[[Any], Sequence[Op]] = lambda _: ()
    prefixes: tuple[str, ...] = ()
    weight_table: Callable[[ModelSpec, Collection[str]], WeightTable] | None = None
    reader: Callable[[Config], ModelSpec] | None = None
    writer: Callable[[ModelSpec], dict[str, Any]] | None = None
    files: Callable[[ModelSpec], dict[str, Any]] = lambda _: {}
    generation: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    marker_files: tuple[str, ...] = ()
    bare_architecture: str = ""
    pipeline: str = ""

    @property
    def architectures(self) -> tuple[str, ...]:
        """The class names in `config.json` that the family reads."""
        return tuple(self.heads)

    @cached_property
    def build(self) -> Callable[..., Any]:
        """Function that creates a spec from options; its signature has the options of this family."""
        build = partial(self.builder.create, **self.defaults)
        offered = {*self._expressed, *_HEAD_OPTIONS, *self.more_options}
        signature = inspect.signature(build)
        options = [p for p in signature.parameters.values() if not self.builder.shared or p.name in offered]
        build.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
        return build

    def from_config(self, config: Config) -> ModelSpec:
        """Return the spec of a published config."""
        return self.derived_spec(config) if self.reader is None else self.reader(config)

    def derived_spec(self, config: Config) -> ModelSpec:
        """Return the spec of a published config by `keys` and `heads`."""
        return self.with_head(config, self.heads[config.architecture].read(config))

    def with_head(self, config: Config, head: HeadSpec | None) -> ModelSpec:
        """Return the spec of a published config with another head; None: the head that `build` creates."""
        options = read_keys(config, self.keys)
        return self.build(**options) if head is None else self.build(**options, head=head)

    def to_config(self, model: ModelSpec) -> dict[str, Any]:
        """Return the published config of a spec that matches; the inverse of `from_config`."""
        return self.derived_config(model) if self.writer is None else self.writer(model)

    def derived_config(self, model: ModelSpec) -> dict[str, Any]:
        """Return the config of a spec by `keys` and `heads`."""
        options, head = self.builder.invert(model), model.head
        ((name, entry), *_) = ((n, entry) for n, entry in self.heads.items() if isinstance(head, entry.kind))
        names: dict[str, Any] = {"model_type": self.model_type or self.name, "architectures": [name]}
        return {
            **(names if self.library == "transformers" else {"_class_name": name}),
            **write_keys(options, self.keys),
            **entry.write(head, options),
        }

    def table(self, model: ModelSpec, names: Collection[str]) -> WeightTable:
        """Return the weight table. names: tensors of the file, which may have one of several layouts."""
        if self.weight_table is not None:
            return self.weight_table(model, names)
        return WeightTable(tuple(self.rows(model)), base=model_prefixes(model.head, *self.prefixes))

    def read_generation(self, config: Config) -> dict[str, Any]:
        """Return the generation settings in a published config."""
        found = {name: config.nested(part).maybe(key, int) for name, (part, key) in self.generation.items()}
        return {name: value for name, value in found.items() if value is not None}

    def write_generation(self, config: dict[str, Any], generation: Mapping[str, Any]) -> None:
        """Put generation settings into a published config; the inverse of `read_generation`."""
        for name, (part, key) in self.generation.items():
            if type(generation.get(name)) is int:
                config[part] = {**config.get(part, {}), key: generation[name]}

    @cached_property
    def _expressed(self) -> set[str]:
        return {option for key in self.keys for option in key.options}

    def describes(self, model: ModelSpec) -> bool:
        """Return whether the published config of this family describes the spec exactly."""
        try:
            config = Config(self.to_config(model), files=self.files(model))
            return config.architecture in self.architectures and self.from_config(config) == model
        except Exception:  # the keys of a family may fail in any way for a spec that it cannot have
            return False
