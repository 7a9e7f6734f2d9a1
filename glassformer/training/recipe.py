"""Recipes: one YAML file that describes a training run, read into dataclasses with a closed schema.

A setting that is left out (or `null`) is chosen for the data and the hardware. The run folder keeps the
recipe with all choices filled in, and that file runs the same training again.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from glassformer.core.schema import choices, fits, named
from glassformer.errors import (
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
)

Paths = tuple[str, ...]
Columns = tuple[str | int, ...]  # names, or numbers from 1


def setting(default: Any, interval: str, *, length: int | None = None) -> Any:
    """A numeric field with its default, the interval it must lie in, e.g. `[0, 1)`, and a tuple's length."""
    return field(default=default, metadata={"interval": interval, "length": length})


def in_interval(value: float, interval: str) -> bool:
    """Whether a number lies in an interval.

    >>> in_interval(0, "[0, 1)"), in_interval(1, "[0, 1)"), in_interval(float("nan"), "[0, inf)")
    (True, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


class Section:
    """Base of the sections of a recipe: numbers must lie in the interval their field declares."""

    section: typing.ClassVar[str]

    def __post_init__(self) -> None:
        for one in dataclasses.fields(self):  # type: ignore[arg-type]
            value, length = getattr(self, one.name), one.metadata.get("length")
            interval = one.metadata.get("interval")
            numbers = value if isinstance(value, tuple) else (value,)
            if interval and not all(in_interval(n, interval) for n in numbers if isinstance(n, int | float)):
                raise InvalidValueError(f"{self.section}.{one.name}", value, f"a number in {interval}")
            if length and isinstance(value, tuple) and len(value) != length:
                raise InvalidValueError(f"{self.section}.{one.name}", list(value), f"{length} numbers")


class DataSection(Section):
    section = "data"


@dataclass(frozen=True, kw_only=True)
class PairData(DataSection):
    """Sentences and their translations, aligned line by line in two files or in the columns of tables.

    valid: files of the same kind, or the fraction of the training data to hold out, as in every section
    columns: names or numbers of the two columns; to: the column with the target language, if several
    """

    train: Paths
    valid: Paths | float = setting(0.02, "(0, 1)")
    columns: Columns | None = None
    to: str | int | None = None
    max_len: int = 128
    bpe_dropout: float = setting(0.0, "[0, 1)")


@dataclass(frozen=True, kw_only=True)
class TextData(DataSection):
    """Documents for language modelling, each a line, a paragraph or a file; length: the context in tokens."""

    train: Paths
    valid: Paths | float = setting(0.05, "(0, 1)")
    unit: Literal["line", "document", "file"] = "document"
    column: str | int | None = None
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class LabelledData(DataSection):
    """Texts and their labels, one per row; columns: names or numbers of text and label."""

    train: Paths
    valid: Paths | float = setting(0.05, "(0, 1)")
    columns: Columns | None = None
    max_len: int = 128
    bpe_dropout: float = setting(0.0, "[0, 1)")
    mask_prob: float = setting(0.0, "[0, 1)")
    mlm_weight: float = setting(0.0, "[0, inf)")


@dataclass(frozen=True, kw_only=True)
class SentenceData(DataSection):
    """Sentences to corrupt and restore; trim, gap and shuffle are the probabilities of each corruption."""

    train: Paths
    valid: Paths | float = setting(0.02, "(0, 1)")
    column: str | int | None = None
    max_len: int = 64
    trim: float = 0.3
    gap: float = 0.3
    shuffle: float = 0.3


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSection):
    """Images and their classes: a folder per class, IDX, npz, CIFAR binary or Parquet.

    size: height and width to resize to; null keeps the most common size
    """

    train: Paths
    valid: Paths | float = setting(0.1, "(0, 1)")
    size: tuple[int, ...] | None = setting(None, "[1, inf)")
    flip: float = setting(0.0, "[0, 1]")
    shift: int = setting(0, "[0, inf)")
    rotate: float = setting(0.0, "[0, 180]")
    erase: float = setting(0.0, "[0, 1]")
    cutmix: float = setting(0.0, "[0, 1]")


@dataclass(frozen=True, kw_only=True)
class SeriesData(DataSection):
    """Time series: CSV or Parquet, wide (a column each) or long (unique_id, ds, y).

    split: fractions of the rows for training, validation and test, or the row numbers where they end
    """

    train: Paths
    time: str | None = None
    target: Paths | None = None
    context: int | None = None
    horizon: int = 96
    split: tuple[float, ...] = setting((0.7, 0.1, 0.2), "[0, inf)", length=3)
    fill: Literal["linear", "last"] | None = None


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(Section):
    """The tokenizer to train; folder: use the trained tokenizer there instead."""

    section = "tokenizer"

    kind: Literal["bpe", "unigram", "byte", "word", "char"] = "bpe"
    vocab_size: int = setting(8000, "[1, inf)")
    sides: Literal["joint", "separate"] = "joint"
    lowercase: bool = False
    folder: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """A preset, family or baseline, or a folder to fine-tune; overrides: settings of the family."""

    section = "model"

    preset: str | None = None
    folder: str | None = None
    overrides: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Section):
    """The training loop; docs/guides/train.md explains every setting."""

    section = "training"

    steps: int | None = setting(None, "[1, inf)")
    epochs: float | None = setting(None, "(0, inf)")
    batch: int | None = setting(None, "[1, inf)")
    batching: Literal["lengths", "rows"] | None = None
    accumulate: int = setting(1, "[1, inf)")
    lr: float | None = setting(None, "(0, inf)")
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] | None = None
    warmup: int | None = setting(None, "[0, inf)")
    floor: float = setting(0.0, "[0, 1]")
    optimizer: Literal["adamw", "adam"] = "adamw"
    betas: tuple[float, ...] = setting((0.9, 0.98), "[0, 1)", length=2)
    eps: float = setting(1e-9, "(0, 1)")
    weight_decay: float = setting(0.01, "[0, inf)")
    max_grad_norm: float = setting(1.0, "[0, inf)")
    label_smoothing: float | None = setting(None, "[0, 1)")
    r_drop: float = setting(0.0, "[0, inf)")
    ema: float = setting(0.0, "[0, 1)")
    average: int = setting(0, "[0, inf)")
    average_of: Literal["last", "best"] = "last"
    final: Literal["best", "last"] = "best"
    metric: str | None = None
    patience: int | None = setting(None, "[1, inf)")
    validate_every: int | None = setting(None, "[1, inf)")
    save_every: int | None = setting(None, "[1, inf)")
    log_every: int | None = setting(None, "[1, inf)")
    keep: int = setting(2, "[2, inf)")
    snapshots: int = setting(0, "[0, inf)")
    samples: int = setting(5, "[0, inf)")
    max_valid: int = setting(1000, "[1, inf)")
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "off", "default", "reduce-overhead", "max-autotune"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    checkpoint_activations: bool = False
    max_bad_steps: int = setting(10, "[1, inf)")
    deterministic: bool = False


JobData = PairData | TextData | LabelledData | SentenceData | ImageData | SeriesData
DATA_SECTIONS: dict[str, type[JobData]] = {
    "translate": PairData,
    "lm": TextData,
    "classify": LabelledData,
    "images": ImageData,
    "forecast": SeriesData,
    "restore": SentenceData,
}
METRICS = {  # what each job measures
    "translate": "loss perplexity bleu chrf exact",
    "lm": "loss perplexity bits_per_character bits_per_byte",
    "classify": "loss accuracy f1",
    "images": "loss accuracy f1",
    "forecast": "loss mse mae",
    "restore": "loss perplexity bleu chrf exact",
}
SECTIONS = ("job", "seed", "data", "tokenizer", "model", "training")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run: the job, its data, tokenizer, model and training."""

    job: str
    data: JobData
    seed: int = 1
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        training, metrics = self.training, METRICS[self.job].split()
        if training.metric is not None and training.metric not in metrics:
            raise UnknownNameError(f"metric of {self.job}", training.metric, metrics)
        if training.r_drop and self.job in ("lm", "forecast"):
            raise InvalidValueError("training.r_drop", training.r_drop, f"0 for {self.job}")

    def to_dict(self) -> dict[str, Any]:
        """The recipe as its file has it."""
        found: dict[str, Any] = {"job": self.job, "seed": self.seed}
        for section in SECTIONS[2:]:
            found[section] = _section_dict(getattr(self, section))
        if self.job in ("images", "forecast"):
            del found["tokenizer"]
        return found

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None)


def _section_dict(section: Any) -> dict[str, Any]:
    values = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    values |= values.pop("overrides", {})
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe file."""
    return parse_recipe(read_recipe_dict(path))


def read_recipe_dict(path: str | Path) -> dict[str, Any]:
    """The content of a recipe file, not yet checked."""
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileMissingError(path, "recipe", "`glassformer recipes` lists those included") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise FileProblemError(path, f"cannot be read ({problem})", mark.line + 1 if mark else None) from None
    if not isinstance(content, dict):
        raise FileProblemError(path, f"is not a recipe with the sections {', '.join(SECTIONS)}")
    return content


def with_overrides(data: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A recipe's content with overrides such as `training.lr=3e-4` or `seed=2` applied.

    >>> with_overrides({"training": {"lr": 1.0}}, ["training.lr=0.5", "seed=2"])
    {'training': {'lr': 0.5}, 'seed': 2}
    """
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        section, _, key = name.strip().partition(".")
        if not equals or not section:
            raise InvalidValueError("override", override, "section.key=value, e.g. training.lr=0.001")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if not key:
            changed[section] = value
        elif isinstance(changed.setdefault(section, {}), dict):
            changed[section][key] = value
        else:
            raise InvalidValueError("override", override, f"{section}=value, since {section} has no keys")
    return changed


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """Check the content of a recipe: unknown keys, wrong types and values out of range are errors."""
    for key in data:
        if key not in SECTIONS:
            raise UnknownNameError("recipe section", str(key), SECTIONS)
    job = data.get("job")
    if not isinstance(job, str) or job not in DATA_SECTIONS:
        raise UnknownNameError("job", str(job), DATA_SECTIONS)
    if "data" not in data:
        raise MissingValueError("data", "in a recipe", "name the files to train on, e.g. data.train")
    model = data.get("model") or {}
    if not isinstance(model, Mapping):
        model = {"preset": model}  # `model: lstm` for short
    own = {name: model[name] for name in ("preset", "folder") if name in model}
    overrides = {name: value for name, value in model.items() if name not in own}
    seed = convert(data.get("seed", 1), int, "seed")
    if not 0 <= seed < 1 << 63:
        raise InvalidValueError("seed", seed, "an integer from 0 to 2**63 - 1")
    return Recipe(
        job=job,
        seed=seed,
        data=parse_section(DATA_SECTIONS[job], data["data"]),
        tokenizer=parse_section(TokenizerOptions, data.get("tokenizer")),
        model=dataclasses.replace(parse_section(ModelOptions, own), overrides=overrides),
        training=parse_section(TrainingOptions, data.get("training")),
    )


SectionType = TypeVar("SectionType", bound=Section)


def parse_section(kind: type[SectionType], data: Any) -> SectionType:
    """A section from plain data.

    >>> parse_section(TokenizerOptions, {"kind": "char"}).kind
    'char'
    """
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise InvalidValueError(kind.section, data, "a section of keys and values")
    types = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    hints = {one.name: types[one.name] for one in fields}
    values = {}
    for key, value in data.items():
        if key not in hints:
            raise UnknownNameError(f"key in {kind.section}", str(key), hints)
        values[key] = convert(value, hints[key], f"{kind.section}.{key}")
    for one in fields:
        required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        if required and one.name not in values:
            raise MissingValueError(f"{kind.section}.{one.name}", "in a recipe")
    return kind(**values)


def convert(value: Any, hint: Any, name: str) -> Any:
    """A value as its field declares it: a list becomes a tuple, a single path a tuple of one.

    YAML 1.1 reads `off` as a boolean and `1e-3` as text; both are converted where the field expects them.
    """
    known = choices(hint)
    scalars = [choice for choice in known if typing.get_origin(choice) is not tuple]
    sequence = next((choice for choice in known if typing.get_origin(choice) is tuple), None)
    if isinstance(value, bool) and not any(fits(value, choice) for choice in scalars):
        word = "on" if value else "off"
        value = word if any(fits(word, choice) for choice in scalars) else value
    if isinstance(value, str) and float in scalars and str not in scalars:
        with suppress(ValueError):
            value = float(value)
    if any(fits(value, choice) for choice in scalars):
        whole = isinstance(value, int) and not isinstance(value, bool)
        return float(value) if whole and float in scalars and int not in scalars else value
    if sequence is not None and value is not None:
        inner = typing.get_args(sequence)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(convert(item, inner, name) for item in items)
    raise InvalidValueError(name, value, named(hint))
