"""Settings as closed schemas: a frozen dataclass read from plain data, where every slip is one sentence."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from glassformer.core.schema import choices, fits, named, nearest
from glassformer.errors import GlassformerError

Settings = TypeVar("Settings")


def read_settings(kind: type[Settings], data: Any, where: str) -> Settings:
    """The settings a mapping holds; an unknown key names the nearest known one.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Tea:
    ...     cups: int = 1
    >>> read_settings(Tea, {"cups": 2}, "tea")
    Tea(cups=2)
    """
    if data is None:
        data = {}
    if not isinstance(data, Mapping):
        raise GlassformerError(f"{where} must be a section of keys and values; got {data!r:.60}")
    hints = typing.get_type_hints(kind)
    values: dict[str, Any] = {}
    for key, value in data.items():
        if key not in hints:
            raise GlassformerError(f"{where} has no setting '{key}'{nearest(str(key), hints)}")
        values[key] = fitted(value, hints[key], f"{where}.{key}")
    try:
        return kind(**values)
    except TypeError as error:
        missing = str(error).split(":")[-1].strip()
        raise GlassformerError(f"{where} lacks {missing}") from None


def fitted(value: Any, hint: Any, where: str) -> Any:
    """A value as its field declares it: lists become tuples, whole numbers pass for real ones."""
    given = tuple(value) if isinstance(value, list) else value
    many = [choice for choice in choices(hint) if typing.get_origin(choice) is tuple]
    one = [choice for choice in choices(hint) if typing.get_origin(choice) is not tuple]
    if many and not isinstance(given, tuple) and given is not None and not _any_fits(given, one):
        given = (given,)  # one file is a list of one
    if isinstance(given, bool):
        given = _word(given, one)
    if isinstance(given, str) and float in one and not _any_fits(given, one):
        given = _number(given)
    if isinstance(given, tuple) and many:
        inner = typing.get_args(many[0])[0]
        given = tuple(fitted(item, inner, where) for item in given)
    if not _any_fits(given, (*one, *many)):
        raise GlassformerError(f"{where} cannot be {value!r:.60}; it takes {named(hint)}")
    if isinstance(given, int) and not isinstance(given, bool) and float in one and int not in one:
        return float(given)
    return given


def _any_fits(value: Any, hints: typing.Iterable[Any]) -> bool:
    return any(fits(value, hint) for hint in hints)


def _word(given: bool, hints: list[Any]) -> Any:
    """`off` and `on`, which YAML 1.1 takes for no and yes, where a field has these words."""
    word = "on" if given else "off"
    return word if not _any_fits(given, hints) and _any_fits(word, hints) else given


def _number(text: str) -> Any:
    """1e-3, which YAML 1.1 takes for text because it has no dot."""
    try:
        return float(text)
    except ValueError:
        return text


MOST = 10**12  # of steps and what counts them: more is a slip of the pen


@dataclass(frozen=True, kw_only=True)
class Training:
    """The loop.

    steps, epochs: when to end; steps wins
    batch: the most one batch may hold on one device, padding counted: tokens, or images, or windows
    batching: "lengths" puts examples of like length together; "rows" packs several pairs into each row of one
        fixed width, which suits a compiled step on a GPU
    accumulate: batches to a step, on all devices together; the result is that of one big batch
    lr: the highest learning rate; schedule, warmup (steps), floor (share of lr at the end) say how it goes
    optimiser: adamw (decoupled decay on matrices), or adam as in the paper
    clip: gradients longer than this are shortened to it; 0 is off
    label_smoothing: how much of the target is spread over the vocabulary
    r_drop: above 0 every example is read twice, and the two readings, apart by dropout, are drawn together
        with this weight (5 is usual where data is scarce); for pairs and labels
    ema: decay of a running average of the weights, used for validation and the final model; 0 is off
    average: how many of the `last` or `best` validated weights are averaged into the final model; 0 is off
    final: which weights become the model where nothing is averaged: the `best` validated or the `last`
    metric: what is best; null is the job's own. patience: validations without a better one until the end
    validate_every, save_every, log_every: steps between; keep: checkpoints kept, at least 2
    film: how many times the weights are kept on the way, to be looked at later; 0 is off
    samples: how many outputs a validation shows; max_valid: most examples a validation decodes
    device: auto, cpu, cuda, cuda:1; precision: auto is bfloat16 on a GPU, float32 on a CPU
    compile: auto compiles on a GPU; default, reduce-overhead and max-autotune are torch's own modes
    parallel: ddp copies the model to each process, fsdp divides it; auto is ddp under torchrun
    checkpoint_activations: recompute blocks on the way back, for memory
    max_bad_steps: steps in a row with a loss that is not finite, or ten times the usual, until the run stops
    deterministic: bit-equal reruns on one GPU, somewhat slower
    """

    steps: int | None = None
    epochs: float | None = None
    batch: int | None = None
    batching: Literal["lengths", "rows"] | None = None
    accumulate: int = 1
    lr: float | None = None
    schedule: Literal["inverse_sqrt", "cosine", "linear", "constant"] | None = None
    warmup: int | None = None
    floor: float = 0.0
    optimiser: Literal["adamw", "adam"] = "adamw"
    betas: tuple[float, ...] = (0.9, 0.98)
    eps: float = 1e-9
    weight_decay: float = 0.01
    clip: float = 1.0
    label_smoothing: float | None = None
    r_drop: float = 0.0
    ema: float = 0.0
    average: int = 0
    average_of: Literal["last", "best"] = "last"
    final: Literal["best", "last"] = "best"
    metric: str | None = None
    patience: int | None = None
    validate_every: int | None = None
    save_every: int | None = None
    log_every: int | None = None
    keep: int = 2
    film: int = 0
    samples: int = 5
    max_valid: int = 1000
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    compile: Literal["auto", "off", "default", "reduce-overhead", "max-autotune"] = "auto"
    parallel: Literal["auto", "none", "ddp", "fsdp"] = "auto"
    checkpoint_activations: bool = False
    max_bad_steps: int = 10
    deterministic: bool = False

    def __post_init__(self) -> None:
        for name in (
            *("steps", "batch", "accumulate", "validate_every", "save_every", "log_every", "patience"),
            *("max_valid", "max_bad_steps"),
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise GlassformerError(f"training.{name} is {value}; it must be at least 1")
            if value is not None and value > MOST and name != "max_valid":
                raise GlassformerError(f"training.{name} is {value:,}; it must be at most {MOST:,}")
        for name in ("warmup", "average", "film", "samples"):
            if not 0 <= (getattr(self, name) or 0) <= MOST:
                raise GlassformerError(
                    f"training.{name} is {getattr(self, name):,}; it must be at least 0, and {MOST:,} at most"
                )
        if self.epochs is not None and not 0 < self.epochs <= 1e6:
            raise GlassformerError(f"training.epochs is {self.epochs}; it must be above 0, a million at most")
        if self.lr is not None and not 0 < self.lr < 100:
            raise GlassformerError(f"training.lr is {self.lr}; it must be above 0 and below 100, as 0.0003")
        for name in ("clip", "weight_decay", "r_drop"):
            if not 0 <= getattr(self, name) < math.inf:
                raise GlassformerError(f"training.{name} is {getattr(self, name)}; it must be at least 0")
        if not 0 < self.eps < 1:
            raise GlassformerError(f"training.eps is {self.eps}; it must be above 0 and below 1, as 1e-9")
        if not 0 <= self.floor <= 1:
            raise GlassformerError(f"training.floor is {self.floor}; it must be a share from 0 to 1")
        if not 0 <= (self.label_smoothing or 0) < 1:
            raise GlassformerError(
                f"training.label_smoothing is {self.label_smoothing}; it must be at least 0 and below 1"
            )
        if self.keep < 2:
            raise GlassformerError(f"training.keep is {self.keep}; at least 2 checkpoints are kept")
        if not 0 <= self.ema < 1:
            raise GlassformerError(f"training.ema is {self.ema}; it must be at least 0 and below 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise GlassformerError(f"training.betas is {list(self.betas)}; it takes two numbers below 1")


Paths = tuple[str, ...]
Columns = tuple[str | int, ...]  # names, or numbers from 1


def _refuse_no_chance(data: object, *names: str) -> None:
    for name in names:
        if not 0 <= getattr(data, name) < 1:
            raise GlassformerError(f"data.{name} is {getattr(data, name)}; it must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True)
class PairData:
    """Sentences and their translations.

    train: two line-aligned files, or TSV, CSV, JSONL or Parquet files with both in a row; each may be .gz
    valid: files of the same kind, or the share of the training pairs to hold out
    columns: names or numbers of the two columns; null finds them
    to: name or number of the column that names the language to write; null is a model of one
    max_len: pairs longer than this many tokens on either side are left out, and counted
    recut: the chance, drawn three times, that a token is read as two shorter ones that spell it, in training
    """

    train: Paths
    valid: Paths | float = 0.02
    columns: Columns | None = None
    to: str | int | None = None
    max_len: int = 128
    recut: float = 0.0

    def __post_init__(self) -> None:
        _refuse_no_chance(self, "recut")


@dataclass(frozen=True, kw_only=True)
class TextData:
    """Running text to continue.

    unit: where a document ends: every "line", a blank line ("document"), or the whole "file"
    column: the column of the text in TSV, CSV, JSONL or Parquet files
    length: how many tokens the model reads at once
    """

    train: Paths
    valid: Paths | float = 0.05
    unit: Literal["line", "document", "file"] = "document"
    column: str | int | None = None
    length: int | None = None


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Texts and their labels, a row each; columns: names or numbers of text and label.

    recut: the chance that a token is read as two shorter ones that spell it, in training
    hide: the chance that a token is hidden in training
    guess: the weight of guessing hidden tokens back, beside the label's 1
    """

    train: Paths
    valid: Paths | float = 0.05
    columns: Columns | None = None
    max_len: int = 128
    recut: float = 0.0
    hide: float = 0.0
    guess: float = 0.0

    def __post_init__(self) -> None:
        _refuse_no_chance(self, "recut", "hide")
        if not 0 <= self.guess < math.inf:
            raise GlassformerError(f"data.guess is {self.guess}; it must be at least 0")


@dataclass(frozen=True, kw_only=True)
class SentenceData:
    """Sentences to damage and restore: trim, gap and shuffle are the chances of each damage."""

    train: Paths
    valid: Paths | float = 0.02
    column: str | int | None = None
    max_len: int = 64
    trim: float = 0.3
    gap: float = 0.3
    shuffle: float = 0.3


@dataclass(frozen=True, kw_only=True)
class ImageData:
    """Pictures and their classes: a folder per class, IDX, npz, CIFAR binary or Parquet.

    size: height and width that all are brought to; null keeps the commonest
    flip, shift, rotate, erase: in training only, the chance of a mirror image, the most pixels it moves and
        degrees it turns, and the chance that a rectangle is painted over
    cutmix: the chance that a batch's pictures get a rectangle of others, and their labels in proportion
    """

    train: Paths
    valid: Paths | float = 0.1
    size: tuple[int, ...] | None = None
    flip: float = 0.0
    shift: int = 0
    rotate: float = 0.0
    erase: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "erase", "cutmix"):
            if not 0 <= getattr(self, name) <= 1:
                raise GlassformerError(f"data.{name} is {getattr(self, name)}; it must be from 0 to 1")
        if self.shift < 0:
            raise GlassformerError(f"data.shift is {self.shift}; it must be at least 0")
        if not 0 <= self.rotate <= 180:
            raise GlassformerError(f"data.rotate is {self.rotate}; it must be from 0 to 180 degrees")


@dataclass(frozen=True, kw_only=True)
class SeriesData:
    """Series of numbers over time: CSV or Parquet, wide (a column each) or long (unique_id, ds, y).

    time, target: names of the time column and of the columns to forecast; null finds them
    context, horizon: how many steps are read, and how many foretold
    split: shares of the rows for training, validation and test, or their ends as row numbers
    fill: how missing rows are filled; null refuses them
    """

    train: Paths
    time: str | None = None
    target: Paths | None = None
    context: int | None = None
    horizon: int = 96
    split: tuple[float, ...] = (0.7, 0.1, 0.2)
    fill: Literal["linear", "last"] | None = None


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """How text becomes tokens.

    kind: "bpe", "unigram", "byte" (byte-level BPE), "word" or "char"
    sides: one vocabulary for both languages ("joint") or one each ("separate")
    folder: take a trained one from here instead
    """

    kind: Literal["bpe", "unigram", "byte", "word", "char"] = "bpe"
    vocab_size: int = 8000
    sides: Literal["joint", "separate"] = "joint"
    lowercase: bool = False
    folder: str | None = None

    def __post_init__(self) -> None:
        if self.vocab_size < 1:
            raise GlassformerError(f"tokenizer.vocab_size is {self.vocab_size}; it must be at least 1")


@dataclass(frozen=True, kw_only=True)
class Model:
    """preset: a preset or family (`glassformer inspect` knows them), or a baseline: lstm, linear, repeat.
    folder: a model folder to go on from (fine-tuning). words: any settings of the family, as d_model."""

    preset: str | None = None
    folder: str | None = None
    words: Mapping[str, Any] = field(default_factory=dict)


Data = PairData | TextData | LabelledData | SentenceData | ImageData | SeriesData
JOBS: dict[str, type[Data]] = {
    "translate": PairData,
    "lm": TextData,
    "classify": LabelledData,
    "images": ImageData,
    "forecast": SeriesData,
    "restore": SentenceData,
}
_LABELS = ("loss", "accuracy", "f1")
_REWRITES = ("loss", "perplexity", "bleu", "chrf", "exact")
METRICS: dict[str, tuple[str, ...]] = {  # what each job measures
    "translate": _REWRITES,
    "lm": ("loss", "perplexity", "bits_per_character", "bits_per_byte"),
    "classify": _LABELS,
    "images": _LABELS,
    "forecast": ("loss", "mse", "mae"),
    "restore": _REWRITES,
}
READ_TWICE = ("translate", "restore", "classify", "images")  # jobs that can learn from two readings
SECTIONS = ("job", "seed", "data", "tokenizer", "model", "training")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run: the job, its data, tokenizer, model and training."""

    job: str
    data: Data
    seed: int = 1
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    model: Model = field(default_factory=Model)
    training: Training = field(default_factory=Training)

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data, as its file has it."""
        found: dict[str, Any] = {"job": self.job, "seed": self.seed}
        for section in SECTIONS[2:]:
            found[section] = _plain(getattr(self, section))
        if self.job in ("images", "forecast"):
            del found["tokenizer"]
        return found

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None)


def _plain(section: Any) -> dict[str, Any]:
    values = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    values |= values.pop("words", {})
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read_recipe(path: str | Path) -> Recipe:
    """The recipe of a file."""
    return recipe_from(read_data(path), str(path))


def read_data(path: str | Path) -> dict[str, Any]:
    """What a recipe's file holds, not yet checked."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise GlassformerError(
            f"the recipe '{path}' cannot be read ({error.strerror}); `glassformer recipes` lists ready ones"
        ) from None
    except UnicodeDecodeError:
        raise GlassformerError(f"the recipe '{path}' is not UTF-8 text") from None
    where = str(path)
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        at = f" line {mark.line + 1}" if mark else ""
        told = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise GlassformerError(f"{where}{at} is not YAML ({told})") from None
    except RecursionError:
        raise GlassformerError(f"{where} is nested too deeply for a recipe") from None
    if not isinstance(data, dict):
        raise GlassformerError(f"{where} must hold the sections {', '.join(SECTIONS)}")
    return data


def changed(data: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The recipe's data with changes such as `training.lr=3e-4` or `seed=2`.

    >>> changed({"training": {"lr": 1.0}}, ["training.lr=0.5", "seed=2"])
    {'training': {'lr': 0.5}, 'seed': 2}
    """
    made = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    for change in changes:
        name, equals, text = change.partition("=")
        section, _, key = name.strip().partition(".")
        if not equals or not section:
            raise GlassformerError(f"the change '{change}' is not of the form section.key=value")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if not key:
            made[section] = value
            continue
        if not isinstance(made.setdefault(section, {}), dict):
            raise GlassformerError(f"the change '{change}' names a section, but '{section}' is a value")
        made[section][key] = value
    return made


def recipe_from(data: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """The recipe that plain data describes; every slip is one sentence."""
    for key in data:
        if key not in SECTIONS:
            raise GlassformerError(f"{where} has no section '{key}'{nearest(str(key), SECTIONS)}")
    job = data.get("job")
    if not isinstance(job, str) or job not in JOBS:
        raise GlassformerError(f"{where} has job {job!r:.40}{nearest(str(job), JOBS)}")
    model = dict(data.get("model") or {}) if isinstance(data.get("model") or {}, Mapping) else None
    if model is None:
        # `model: lstm` for short
        model = {"preset": data["model"]}
    own = {name: model.pop(name) for name in ("preset", "folder") if name in model}
    hints = typing.get_type_hints(Model)
    named = {name: fitted(value, hints[name], f"{where}: model.{name}") for name, value in own.items()}
    training = read_settings(Training, data.get("training"), f"{where}: training")
    if training.metric is not None and training.metric not in METRICS[job]:
        raise GlassformerError(
            f"training.metric is '{training.metric}', which {job} does not measure; it has "
            f"{', '.join(METRICS[job])}"
        )
    if training.r_drop and job not in READ_TWICE:
        raise GlassformerError(
            f"training.r_drop is {training.r_drop}, which {job} does not have; leave it out or 0"
        )
    seed = fitted(data.get("seed", 1), int, f"{where}: seed")
    if not 0 <= seed < 1 << 63:
        raise GlassformerError(f"{where}: seed is {seed}; it must be from 0 to 2^63 - 1")
    if "data" not in data:
        raise GlassformerError(f"{where} has no section 'data'; it names the files to learn from")
    return Recipe(
        job=job,
        seed=seed,
        data=read_settings(JOBS[job], data["data"], f"{where}: data"),
        tokenizer=read_settings(Tokenizer, data.get("tokenizer"), f"{where}: tokenizer"),
        model=Model(**named, words=model),
        training=training,
    )
