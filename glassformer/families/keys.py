"""Keys of a published config as data: each maps to an option or a field of a head, in both directions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import UnionType
from typing import Any

from glassformer.core import spec
from glassformer.core.spec import Activation, HeadSpec
from glassformer.families.config import Config

_SAME: tuple[Activation, ...] = ("relu", "gelu", "silu", "quick_gelu", "tanh")
ACTIVATION_NAMES: dict[Activation, str] = {**{name: name for name in _SAME}, "gelu_tanh": "gelu_new"}
ACTIVATIONS: dict[str, Activation] = {
    **{theirs: ours for ours, theirs in ACTIVATION_NAMES.items()},
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}


# ---- keys ------------------------------------------------------------------------------------------------

REQUIRED: Any = object()  # default of a key that must be present
ABSENT: Any = object()  # null in a config has the same meaning as an absent key
Options = Mapping[str, Any]


@dataclass(frozen=True)
class Key:
    """Maps a published config key (`theirs`) to an option of `Family.build` (`ours`, if the name differs).

    default: value if the key is absent; without one, it is a required integer. None: an optional integer.
    aliases: further names of the key. null: the option if the key is present and null, if that differs.
    values: the option for each published value; of several values for one option, the first is saved.
    """

    theirs: str
    ours: str = ""
    default: Any = REQUIRED
    aliases: tuple[str, ...] = ()
    null: Any = ABSENT
    values: Mapping[Any, Any] | None = None

    @property
    def options(self) -> tuple[str, ...]:
        return (self.ours or self.theirs,)

    def read(self, config: Config, options: Options) -> dict[str, Any]:
        """Return the option of a published config. options: those of the keys before this one."""
        return {self.options[0]: self._read(config)}

    def _read(self, config: Config) -> Any:
        if self.values is not None:
            return config.choose(self.theirs, self.values, self.default)
        if self.null is not ABSENT and config.values.get(self.theirs, ABSENT) is None:
            return self.null
        if self.default is REQUIRED:
            return config.need(self.theirs, int, *self.aliases)
        if self.default is None:
            return config.maybe(self.theirs, int)
        return config.get(self.theirs, self.default, *self.aliases)

    def write(self, options: Options) -> dict[str, Any]:
        """Return the published key and value; the inverse of `read`."""
        (name,) = self.options
        value = options[name] if self.default is REQUIRED else options.get(name, self.default)
        if self.values is not None and name in options:
            value = next(theirs for theirs, ours in self.values.items() if ours == value)
        return {self.theirs: value}


@dataclass(frozen=True)
class Rule:
    """Maps keys to options (`options` lists their names) by functions, where a `Key` is not enough.

    read: config and the options of the keys before this rule -> options. write: options -> config keys.
    """

    options: tuple[str, ...]
    read: Callable[[Config, Options], dict[str, Any]]
    write: Callable[[Options], dict[str, Any]] = lambda options: {}


Keys = tuple[Key | Rule, ...]


def fixed(theirs: str, *supported: Any, default: Any = ABSENT) -> Rule:
    """Return a rule for a key that must have a supported value.

    default: the published default, if it is not the first supported value; that one is then saved.
    """
    same = default is ABSENT

    def read(config: Config, options: Options) -> dict[str, Any]:
        config.only(theirs, *supported, default=supported[0] if same else default)
        return {}

    return Rule((), read, lambda options: {} if same else {theirs: supported[0]})


def nested(name: str, keys: Keys, **constants: Any) -> Rule:
    """Return a rule for keys in an object under `name`. constants: further keys of the object."""
    return Rule(
        tuple(option for key in keys for option in key.options),
        lambda config, _: read_keys(config.nested(name), keys),
        lambda options: {name: {**constants, **write_keys(options, keys)}},
    )


def read_keys(config: Config, keys: Keys) -> dict[str, Any]:
    """Return the options of a published config."""
    options: dict[str, Any] = {}
    for key in keys:
        options |= key.read(config, options)
    return options


def write_keys(options: Options, keys: Keys) -> dict[str, Any]:
    """Return the published config of options; the inverse of `read_keys`."""
    return {theirs: value for key in keys for theirs, value in key.write(options).items()}


def with_defaults(keys: Keys, **defaults: Any) -> Keys:
    """Return the keys with other defaults. defaults: by option."""
    return tuple(
        replace(key, default=defaults[key.options[0]])
        if isinstance(key, Key) and key.options[0] in defaults
        else key
        for key in keys
    )


def activation(
    theirs: str, default: str, names: Mapping[str, Activation] = ACTIVATIONS, ours: str = ""
) -> Key:
    """Return the key of an activation function. default, names: published names."""
    return Key(theirs, ours or "activation", default, values=names)


# ---- heads ------------------------------------------------------------------------------------------------

_LABELED = (
    spec.ClassifySpec,
    spec.DistilledClassifySpec,
    spec.TokenClassifySpec,
    spec.PoolerClassifySpec,
    spec.BoxesSpec,
    spec.MasksSpec,
)


@dataclass(frozen=True)
class Head:
    """The head of a published class.

    kind: its spec. keys: config keys of its fields, besides the labels. values: fields that are always the
    same. from_options: the head follows from the options of the family, e.g. the size of the vocabulary.
    """

    kind: type | UnionType
    keys: Keys = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    from_options: bool = False

    def read(self, config: Config) -> Any:
        """Return the head of a published config; None if the options of the family define it."""
        if self.from_options:
            return None
        assert isinstance(self.kind, type)
        labels = {"num_labels": config.num_labels} if issubclass(self.kind, _LABELED) else {}
        return self.kind(**labels, **read_keys(config, self.keys), **self.values)

    def write(self, head: HeadSpec, options: Options) -> dict[str, Any]:
        """Return the config keys of a head; the inverse of `read`. options: of the family."""
        return {**write_keys({**options, **vars(head)}, self.keys), **label_config(head)}


def label_config(head: HeadSpec) -> dict[str, Any]:
    """Return config keys with numbered labels, if the head has labels."""
    return (
        named_label_config([f"LABEL_{n}" for n in range(head.num_labels)])
        if isinstance(head, _LABELED)
        else {}
    )


def named_label_config(names: Sequence[str]) -> dict[str, Any]:
    """Return config keys with these label names."""
    return {
        "id2label": {str(n): name for n, name in enumerate(names)},
        "label2id": {name: n for n, name in enumerate(names)},
    }
