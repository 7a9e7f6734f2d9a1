"""A published family as data: its options, its config keys and the names of its weights."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from glassformer.core import spec
from glassformer.core.spec import Activation, HeadSpec, ModelSpec
from glassformer.errors import FileProblemError, GlassformerError, InvalidValueError, MissingValueError
from glassformer.weights.convert import WeightTable
from glassformer.weights.ops import Op, Rename, expand
from glassformer.weights.store import open_weights

Value = TypeVar("Value")

# keys of a published config that do not change the output of a forward pass
IGNORED_KEYS = frozenset(
    """
    _name_or_path architectures model_type transformers_version torch_dtype dtype use_cache
    output_attentions output_hidden_states return_dict id2label label2id num_labels problem_type
    finetuning_task task_specific_params tokenizer_class prefix pad_token_id bos_token_id eos_token_id
    sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id forced_bos_token_id
    forced_eos_token_id is_encoder_decoder chunk_size_feed_forward initializer_range initializer_factor
    max_length min_length num_beams early_stopping length_penalty no_repeat_ngram_size temperature
    do_sample top_k top_p repetition_penalty auto_map gradient_checkpointing
    """.split()
)


# further such keys, of the loss of object detection
DETECTION_LOSS_KEYS = frozenset(
    """
    class_cost bbox_cost giou_cost mask_loss_coefficient dice_loss_coefficient bbox_loss_coefficient
    giou_loss_coefficient eos_coefficient
    """.split()
)


@dataclass(eq=False)
class UnsupportedConfigError(GlassformerError):
    """A published config requires something unsupported. supported: the values that are."""

    path: str
    key: str
    value: Any
    supported: str
    hint: str = ""
    template: ClassVar[str] = "{path}: {key} = {value!r:.60} is not supported; supported: {supported}"


class Config:
    """A published `config.json`, read key by key; missing, ill-typed or unsupported values are errors.

    Some properties of a model are in other JSON files (`read_sibling`) or in the names of its tensors
    (`names`). Both are read from `folder` on demand, or passed in.
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        where: str = "config.json",
        folder: Path | None = None,
        *,
        files: Mapping[str, Any] | None = None,
        names: Collection[str] | None = None,
    ) -> None:
        self.values = dict(values)
        self.where = where
        self.folder = folder
        self.files = dict(files or {})  # other JSON files of the folder, passed in or read so far
        self.read: set[str] = set()
        self._names = names
        if self.values.get("quantization_config") is not None:
            raise UnsupportedConfigError(where, "quantization_config", "...", "an unquantized checkpoint")

    @property
    def architecture(self) -> str:
        names = self.values.get("architectures") or []
        if not isinstance(names, list) or not names or not isinstance(names[0], str):
            raise MissingValueError(f"{self.where}: architectures", "to know the model's class")
        return names[0]

    def read_sibling(self, name: str) -> Any:
        """Return the content of the JSON file `name` in the same folder; None if there is none."""
        if name not in self.files and self.folder is not None and (self.folder / name).is_file():
            self.files[name] = read_json(self.folder / name)
        return self.files.get(name)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names of the folder's tensors; empty without a folder."""
        if self._names is not None or self.folder is None:
            return frozenset(self._names or ())
        with open_weights(self.folder) as weights:
            return frozenset(weights)

    @property
    def num_labels(self) -> int:
        return len(self.get("id2label", {})) or self.get("num_labels", 2)

    @property
    def has_pooler(self) -> bool:
        """Whether a bare encoder has a pooler, which many published files leave out.

        The tensors decide; the key `add_pooling_layer` is used only if there are none.
        """
        declared = self.get("add_pooling_layer", True)
        if not self.names:
            return declared
        return any(name.endswith(("pooler.dense.weight", "pooler.weight")) for name in self.names)

    def get(self, key: str, default: Value, *aliases: str) -> Value:
        """Return the value of `key` or an alias, or the default if absent; checks for the default's type."""
        for name in (key, *aliases):
            self.read.add(name)
        for name in (key, *aliases):
            if name in self.values and (self.values[name] is not None or default is None):
                return self._typed(name, self.values[name], default)
        return default

    def nested(self, key: str, **changes: Any) -> Config:
        """Return the config of a part, an object under `key`, with some changes; empty if it is absent."""
        return Config({**self.get(key, {}), **changes}, f"{self.where}: {key}")

    def maybe(self, key: str, kind: type[Value]) -> Value | None:
        """Return the value of an optional key of type `kind`; None if it is null or absent."""
        self.read.add(key)
        value = self.values.get(key)
        return None if value is None else self._typed(key, value, kind())

    def need(self, key: str, kind: type[Value], *aliases: str) -> Value:
        """Return the value of a required key of type `kind`."""
        for name in (key, *aliases):
            self.read.add(name)
            if self.values.get(name) is not None:
                return self._typed(name, self.values[name], kind())
        raise MissingValueError(f"{self.where}: {key}", "for this architecture")

    def only(self, key: str, *supported: Any, default: Any = None) -> Any:
        """Return the value of a key; raise if it is not one of the supported values."""
        self.read.add(key)
        value = self.values.get(key, default)
        if value not in supported:
            raise UnsupportedConfigError(self.where, key, value, " or ".join(repr(s) for s in supported))
        return value

    def choose(self, key: str, table: Mapping[Any, Value], default: Any) -> Value:
        """Return `table[value of key]`; raise if the table has no such entry."""
        self.read.add(key)
        value = self.values.get(key, default)
        if not isinstance(value, Hashable) or value not in table:
            raise UnsupportedConfigError(self.where, key, value, ", ".join(str(name) for name in table))
        return table[value]

    def _typed(self, key: str, value: Any, like: Value) -> Value:
        if like is None or value is None:
            return value
        kind = type(like)
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(value, float) and not math.isfinite(value):
            raise InvalidValueError(f"{self.where}: {key}", value, "a finite number")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise InvalidValueError(f"{self.where}: {key}", value, f"a value of type {kind.__name__}")
        return value


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise FileProblemError(path, f"is not valid JSON ({error})") from None


_SAME: tuple[Activation, ...] = ("relu", "gelu", "silu", "quick_gelu", "tanh")
ACTIVATION_NAMES: dict[Activation, str] = {**{name: name for name in _SAME}, "gelu_tanh": "gelu_new"}
ACTIVATIONS: dict[str, Activation] = {
    **{theirs: ours for ours, theirs in ACTIVATION_NAMES.items()},
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}


# ---- build options and keys of a published config ---------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """Maps a published config key (`theirs`) to an option of `Family.build` (`ours`, if the name differs).

    default: the published default; a key without one is a required integer.
    """

    theirs: str
    ours: str = ""
    default: Any = None
    aliases: tuple[str, ...] = ()

    @property
    def option(self) -> str:
        return self.ours or self.theirs


def read_options(config: Config, keys: Sequence[Key], **defaults: Any) -> dict[str, Any]:
    """Read build options, by name, from a published config. `defaults` override those of the keys."""
    options: dict[str, Any] = {}
    for key in keys:
        default = defaults.get(key.option, key.default)
        if key.option == "activation":
            options["activation"] = config.choose(key.theirs, ACTIVATIONS, default)
        elif default is None:
            options[key.option] = config.need(key.theirs, int, *key.aliases)
        else:
            options[key.option] = config.get(key.theirs, default, *key.aliases)
    return options


def write_options(model: ModelSpec, keys: Sequence[Key]) -> dict[str, Any]:
    """Return the published config keys of a spec; the inverse of `read_options`."""
    options = spec_options(model)
    options["activation"] = ACTIVATION_NAMES[options["activation"]]
    return {key.theirs: options[key.option] for key in keys}


def spec_options(model: ModelSpec) -> dict[str, Any]:
    """Return the build options of a spec; for an encoder-decoder, those of the encoder."""
    assert not isinstance(model, spec.TwoTowerSpec | spec.PromptedSegmenterSpec)
    source: Any = model.source if isinstance(model, spec.EncoderDecoderSpec) else model.input
    stack = model.decoder if isinstance(model, spec.DecoderSpec) else model.encoder
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
        "tied": "head" in model.tied or not isinstance(model.head, vocabulary),  # or has no head to tie
    }
    if isinstance(source, spec.TokensSpec):
        options |= {"vocab_size": source.vocab_size, "types": source.types, "pad_id": source.pad_id}
        options["max_len"] = options["max_len"] or getattr(source.position, "max_len", None)
    elif isinstance(source, spec.ImagePatchesSpec | spec.SeriesPatchesSpec):
        options |= vars(source)
        options["dropout"] = block.dropout
    return options


def variant(build: Callable[..., Any], exclude: str, **defaults: Any) -> Callable[..., Any]:
    """Return a `build` function with other defaults.

    exclude: options, separated by spaces, that the published config of the family cannot express.
    """
    family_build = partial(build, **defaults)
    parameters = inspect.signature(family_build).parameters.values()
    options = [parameter for parameter in parameters if parameter.name not in exclude.split()]
    family_build.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return family_build


TINY: dict[str, Any] = {"vocab_size": 101, "d_model": 32, "num_heads": 4, "num_layers": 2, "max_len": 64}


def preset(d_model: int, num_heads: int, num_layers: int, d_ff: int, **options: Any) -> dict[str, Any]:
    """Return the options of a preset."""
    return {"d_model": d_model, "num_heads": num_heads, "num_layers": num_layers, "d_ff": d_ff, **options}


# ---- heads ------------------------------------------------------------------------------------------------


def label_config(head: HeadSpec) -> dict[str, Any]:
    """Return config keys with numbered labels, if the head has labels."""
    labeled = spec.ClassifySpec | spec.DistilledClassifySpec | spec.TokenClassifySpec
    if not isinstance(head, labeled | spec.BoxesSpec | spec.MasksSpec):
        return {}
    return named_label_config([f"LABEL_{n}" for n in range(head.num_labels)])


def named_label_config(names: Sequence[str]) -> dict[str, Any]:
    """Return config keys with these label names."""
    return {
        "id2label": {str(n): name for n, name in enumerate(names)},
        "label2id": {name: n for n, name in enumerate(names)},
    }


def model_prefixes(head: HeadSpec, *prefixes: str) -> tuple[str, ...]:
    """Return the possible prefixes of published tensor names; the first one ("" if bare) is for saving."""
    bare = spec.FeaturesSpec | spec.BackboneSpec | spec.EmbedSpec
    return ("", *prefixes) if isinstance(head, bare) else (*prefixes, "")


def rename_modules(*pairs: tuple[str, str]) -> tuple[Op, ...]:
    """Return operations that rename weight and bias of modules; pairs: (published name, Glassformer name)."""
    rows = tuple(Rename(f"{theirs}.{{p}}", f"{ours}.{{p}}") for theirs, ours in pairs)
    return expand(rows, p=("weight", "bias"))


def box_head_rows(head: spec.BoxesSpec) -> tuple[Op, ...]:
    """Return the operations of a box head."""
    label, box = "class_labels_classifier", "bbox_predictor"
    labels = [(f"{label}.layers.{n}", f"head.out.layers.{n}") for n in range(head.class_layers)]
    boxes = [(f"{box}.layers.{n}", f"head.box.layers.{n}") for n in range(head.box_layers)]
    return rename_modules(*([(label, "head.out.layers.0")] if head.class_layers == 1 else labels), *boxes)


def layer_rows(
    theirs: str,
    ours: str,
    layers: int,
    modules: Mapping[str, str],
    parts: Sequence[str] = ("weight", "bias"),
) -> tuple[Op, ...]:
    """Return operations that rename the tensors (`parts`) of the modules of all layers.

    theirs, ours: prefixes of the layers, with `{i}` for the layer index. modules: published name ->
    Glassformer name.
    """
    rows = tuple(Rename(f"{theirs}.{a}.{{p}}", f"{ours}.{b}.{{p}}") for a, b in modules.items())
    return expand(rows, i=layers, p=parts)


@dataclass(frozen=True, kw_only=True)
class Family:
    """One published family.

    build: keyword-only options -> spec; every option has a default.
    presets: name -> options of `build`. tiny: options of a model with a few thousand parameters.
    architectures: the class names in `config.json` that it reads.
    from_config, to_config: convert a published config to a spec and back. table: weight names and shapes.
    ignored_keys: further keys of the published config (see `IGNORED_KEYS`) that do not change the output.
    files: further JSON files of a saved folder, by name.
    marker_files: files that distinguish its folders from those of a family with the same architecture.
    bare_architecture: the class of published configs that name none, if there are such configs.
    """

    name: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    build: Callable[..., ModelSpec]
    presets: Mapping[str, Mapping[str, Any]]
    tiny: Mapping[str, Any]
    from_config: Callable[[Config], ModelSpec]
    to_config: Callable[[ModelSpec], dict[str, Any]]
    table: Callable[[ModelSpec, Collection[str]], WeightTable]
    ignored_keys: frozenset[str] = frozenset()
    files: Callable[[ModelSpec], dict[str, Any]] = lambda _: {}
    marker_files: tuple[str, ...] = ()
    bare_architecture: str = ""

    def describes(self, model: ModelSpec) -> bool:
        """Whether the published config of this family describes the spec exactly."""
        try:
            config = Config(self.to_config(model), files=self.files(model))
            return config.architecture in self.architectures and self.from_config(config) == model
        except (AssertionError, AttributeError, KeyError, TypeError, GlassformerError):
            return False  # not this family
