"""Recipes: YAML files that describe a training run, parsed into dataclasses. Unknown keys are errors.

A setting that is left out (or `null`) is chosen for the data and the type of the device. The run folder
stores the recipe with all settings filled in, which reproduces the training.
"""

from __future__ import annotations

import dataclasses
import json
import re
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import yaml

from glassformer.core.schema import describe_type, matches_type, union_members
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)

Paths = tuple[str, ...]
Columns = tuple[str | int, ...]  # names, or numbers from 1


REQUIRED: Any = dataclasses.MISSING
DURATION_UNITS = (86400, 3600, 60, 1)  # seconds of a day, hour, minute and second
DEFAULT_MAX_GRAD_NORM = 1.0
MIN_EVAL_STEPS = 10  # a validation takes longer than a few steps of a short run


def setting(
    default: Any, description: str, *, interval: str = "", unit: str = "", length: int | None = None
) -> Any:
    """Declare a key of a recipe with its default and its description.

    interval: valid numbers, e.g. `[0, 1)`. length: required length of a tuple.
    """
    metadata = {"description": description, "interval": interval, "unit": unit, "length": length}
    return field(default=default, metadata=metadata)


def in_interval(value: float, interval: str) -> bool:
    """Return whether a number lies in an interval.

    >>> in_interval(0, "[0, 1)"), in_interval(1, "[0, 1)"), in_interval(float("nan"), "[0, inf)")
    (True, False, False)
    """
    low, high = (float(end) for end in interval[1:-1].split(","))
    above = value >= low if interval[0] == "[" else value > low
    return above and (value <= high if interval[-1] == "]" else value < high)


class Section:
    """Base class of recipe sections; checks that numbers lie in the interval that their key declares."""

    section: typing.ClassVar[str]

    def __post_init__(self) -> None:
        for key in dataclasses.fields(self):  # type: ignore[arg-type]
            value, length = getattr(self, key.name), key.metadata["length"]
            interval = key.metadata["interval"]
            values = value.values() if isinstance(value, Mapping) else value
            numbers = (value,) if not isinstance(value, tuple | Mapping) else tuple(values)
            if interval and not all(in_interval(n, interval) for n in numbers if isinstance(n, int | float)):
                raise InvalidValueError(f"{self.section}.{key.name}", value, f"a number in {interval}")
            if length and isinstance(value, tuple) and len(value) != length:
                raise InvalidValueError(f"{self.section}.{key.name}", list(value), f"{length} numbers")


def parse_duration(text: str) -> float:
    """Return the seconds of a duration with units.

    >>> parse_duration("1h30m"), parse_duration("45s")
    (5400.0, 45.0)
    """
    parts = re.fullmatch(r"(?:([\d.]+)d)?(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s)?", text.replace(" ", ""))
    try:
        seconds = [float(n or 0) * unit for n, unit in zip(parts.groups(), DURATION_UNITS, strict=True)]  # type: ignore[union-attr]
        if sum(seconds) > 0:
            return sum(seconds)
    except (AttributeError, ValueError):
        pass
    raise InvalidValueError("training.time_limit", text, "a duration with units, e.g. 90s, 30m or 1h30m")


def default_intervals(steps: int, per_epoch: int, eval_steps: int | None) -> dict[str, int]:
    """Return the default warmup and the intervals of validation, checkpoints and logging, in steps.

    A run is validated once per epoch, but 20 to 40 times in all, and not more often than every ten steps.
    steps: of the run. per_epoch: steps of an epoch. eval_steps: as the recipe sets it.
    """
    often = max(min(MIN_EVAL_STEPS, steps), steps // 40, min(per_epoch, steps // 20))
    return {
        "warmup_steps": max(1, min(4000, steps // 10)),
        "eval_steps": eval_steps or often,
        "save_steps": eval_steps or often,
        "logging_steps": max(1, min(50, steps // 100)),
    }


class DataSection(Section):
    section = "data"


def _train_files(description: str) -> Any:
    return setting(REQUIRED, description, unit="files")


def _valid_split(fraction: float) -> Any:
    text = "validation split: files like the training files, or the fraction of the training data to hold out"
    return setting(fraction, text, interval="(0, 1)", unit="files or fraction")


def _max_len(of: str, default: int = 128) -> Any:
    text = f"maximum length of {of}; null is {default}, or less if the base model reads less"
    return setting(None, text, interval="[1, inf)", unit="tokens")


def _encoding() -> Any:
    return setting("utf-8", "encoding of text files, e.g. cp949 for a CSV from Korean Excel", unit="name")


def _bpe_dropout() -> Any:
    return setting(
        0.0,
        "BPE dropout (training only): in each of three passes, probability of splitting a token into two "
        "shorter ones",
        interval="[0, 1)",
        unit="probability",
    )


@dataclass(frozen=True, kw_only=True)
class PairData(DataSection):
    """Sentences and their translations, aligned line by line in two files or in the columns of tables."""

    train: Paths = _train_files("two line-aligned files, or tables with both sentences in a row")
    valid: Paths | float = _valid_split(0.02)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None, "source and target column, e.g. `[en, de]`; null detects them", unit="names or numbers"
    )
    language_column: str | int | None = setting(
        None, "column with the target language; null trains one target language", unit="name or number"
    )
    max_len: int | None = _max_len("source and target; longer pairs are skipped and counted")
    bpe_dropout: float = _bpe_dropout()


@dataclass(frozen=True, kw_only=True)
class TextData(DataSection):
    """Documents for language modeling."""

    train: Paths = _train_files("plain text, or tables with a text column")
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    sample_by: Literal["line", "paragraph", "file"] = setting(
        "paragraph",
        "what a document is in a plain file: a line, a paragraph (up to a blank line), or the file",
    )
    text_column: str | int | None = setting(
        None, "text column of a table; null detects it", unit="name or number"
    )
    context_length: int | None = setting(
        None, "tokens per example, packed end to end; null chooses 128 to 1024", unit="tokens"
    )


@dataclass(frozen=True, kw_only=True)
class LabeledData(DataSection):
    """Texts and their labels, one per row."""

    train: Paths = _train_files("tables with a text and a label in a row")
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None,
        "text and label column, or text, text_pair and label, e.g. `[premise, hypothesis, label]`; null "
        "detects them",
        unit="names or numbers",
    )
    problem_type: (
        Literal["single_label_classification", "multi_label_classification", "regression"] | None
    ) = setting(
        None,
        "single_label_classification, multi_label_classification (lists, or cells such as `warm|funny`) or "
        "regression (numbers with a fractional part); null detects it",
    )
    max_len: int | None = _max_len("a text; longer texts are truncated and counted")
    bpe_dropout: float = _bpe_dropout()
    mask_prob: float = setting(
        0.0, "probability of masking a token (training only)", interval="[0, 1)", unit="probability"
    )
    mlm_weight: float = setting(
        0.0,
        "weight of the masked-language-modeling loss, relative to the classification loss",
        interval="[0, inf)",
    )


@dataclass(frozen=True, kw_only=True)
class TaggedData(DataSection):
    """Sentences with a tag per word, e.g. named entities."""

    train: Paths = _train_files(
        "a word and its tag per line and a blank line between sentences, or JSON Lines with two lists"
    )
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None,
        "word and tag column; null is the first and the last, or lists with usual names (tokens, ner_tags)",
        unit="names or numbers",
    )
    max_len: int | None = _max_len("a sentence; longer ones are truncated and counted")


@dataclass(frozen=True, kw_only=True)
class QuestionData(DataSection):
    """Questions with answers in a context."""

    train: Paths = _train_files("JSON in SQuAD's format")
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    max_len: int | None = _max_len("a window of question and context", default=384)
    stride: int = setting(
        128, "tokens that two windows of a long context share", interval="[0, inf)", unit="tokens"
    )


@dataclass(frozen=True, kw_only=True)
class SummaryData(DataSection):
    """Texts and their summaries, one per row."""

    train: Paths = _train_files("tables with a text and its summary in a row, or two line-aligned files")
    valid: Paths | float = _valid_split(0.02)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None, "text and summary column; null detects them", unit="names or numbers"
    )
    prefix: str | None = setting(
        None, "text before every source, e.g. `summarize: ` for T5; null is that of the base model, or none"
    )
    max_len: int | None = _max_len("a text; longer texts are truncated and counted", default=512)
    max_summary_len: int = setting(
        128, "maximum length of a summary; longer ones are truncated", interval="[2, inf)", unit="tokens"
    )


@dataclass(frozen=True, kw_only=True)
class EmbeddingData(DataSection):
    """Pairs of similar texts, with hard negatives or with scores."""

    train: Paths = _train_files("tables with two texts in a row, and optionally a negative or a score")
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None,
        "anchor and positive column, and optionally a column of hard negatives or of scores; null detects "
        "them",
        unit="names or numbers",
    )
    max_len: int | None = _max_len("a text; longer texts are truncated")
    temperature: float = setting(0.05, "divisor of the cosine similarities in the loss", interval="(0, inf)")


@dataclass(frozen=True, kw_only=True)
class CaptionData(DataSection):
    """Images and their captions."""

    train: Paths = _train_files("tables with an image path and a caption in a row, or COCO caption files")
    valid: Paths | float = _valid_split(0.05)
    encoding: str = _encoding()
    columns: Columns | None = setting(
        None, "image and caption column, e.g. `[image, caption]`; null detects them", unit="names or numbers"
    )
    images: str | None = setting(
        None, "folder of the images; null is the folder of the file, or its subfolder images", unit="folder"
    )
    image_size: tuple[int, ...] = setting(
        (224, 224),
        "height and width to resize to; a base model keeps its own",
        interval="[1, inf)",
        unit="pixels",
    )
    max_len: int | None = _max_len("a caption; longer ones are truncated", default=64)
    flip_prob: float = setting(
        0.0, "augmentation: random horizontal flip", interval="[0, 1]", unit="probability"
    )
    max_shift: int = setting(0, "augmentation: maximum random shift", interval="[0, inf)", unit="pixels")
    max_rotation: float = setting(
        0.0, "augmentation: maximum random rotation", interval="[0, 180]", unit="degrees"
    )
    erase_prob: float = setting(
        0.0, "augmentation: random erasing of a rectangle", interval="[0, 1]", unit="probability"
    )


@dataclass(frozen=True, kw_only=True)
class SentenceData(DataSection):
    """Sentences to corrupt and restore (denoising)."""

    train: Paths = _train_files("one sentence per line, or a column of a table")
    valid: Paths | float = _valid_split(0.02)
    encoding: str = _encoding()
    text_column: str | int | None = setting(
        None, "sentence column of a table; null detects it", unit="name or number"
    )
    max_len: int | None = _max_len("a sentence; longer ones are skipped and counted", default=64)
    trim_prob: float = setting(0.3, "corruption: cut off the beginning or the end", unit="probability")
    gap_prob: float = setting(
        0.3, "corruption: text infilling, i.e. replace words by a gap token", unit="probability"
    )
    shuffle_prob: float = setting(0.3, "corruption: shuffle words locally", unit="probability")


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSection):
    """Images and their classes."""

    train: Paths = setting(
        REQUIRED,
        "a folder with a subfolder per class, IDX, npz, CIFAR .bin or Parquet",
        unit="folder or file",
    )
    valid: Paths | float = _valid_split(0.1)
    image_size: tuple[int, ...] | None = setting(
        None,
        "height and width to resize to; null keeps the most common size",
        interval="[1, inf)",
        unit="pixels",
    )
    flip_prob: float = setting(
        0.0, "augmentation: random horizontal flip", interval="[0, 1]", unit="probability"
    )
    max_shift: int = setting(0, "augmentation: maximum random shift", interval="[0, inf)", unit="pixels")
    max_rotation: float = setting(
        0.0, "augmentation: maximum random rotation", interval="[0, 180]", unit="degrees"
    )
    erase_prob: float = setting(
        0.0, "augmentation: random erasing of a rectangle", interval="[0, 1]", unit="probability"
    )
    cutmix_prob: float = setting(
        0.0, "augmentation: CutMix, decided per batch", interval="[0, 1]", unit="probability"
    )
    mixup_prob: float = setting(
        0.0, "augmentation: mixup, in batches without CutMix", interval="[0, 1]", unit="probability"
    )


@dataclass(frozen=True, kw_only=True)
class ObjectData(DataSection):
    """Images with the boxes of objects."""

    train: Paths = setting(
        REQUIRED,
        "COCO JSON, a YOLO data.yaml, a Pascal VOC folder, or a folder with `train` and `train_mask`",
        unit="file or folder",
    )
    valid: Paths | float | None = setting(
        None,
        "validation split: a path like `train`, or the fraction of the training images to hold out; "
        "null is the val split of the training data, or 0.1",
        interval="(0, 1)",
        unit="file, folder or fraction",
    )
    images: str | None = setting(
        None, "folder of the images of COCO JSON; null looks beside the file", unit="folder"
    )
    image_size: tuple[int, ...] | None = setting(
        None,
        "height and width to resize to; null is the usual size, at most 512, or that of the base model",
        interval="[1, inf)",
        unit="pixels",
    )
    flip_prob: float = setting(
        0.5, "augmentation: random horizontal flip", interval="[0, 1]", unit="probability"
    )
    vertical_flip_prob: float = setting(
        0.0, "augmentation: random vertical flip", interval="[0, 1]", unit="probability"
    )
    scale_jitter: float = setting(
        0.3, "augmentation: zoom by up to exp(+-scale_jitter), at a random position", interval="[0, 2]"
    )
    color_jitter: float = setting(
        0.2,
        "augmentation: change of brightness, contrast and saturation",
        interval="[0, 1]",
        unit="fraction",
    )
    copy_paste_prob: float = setting(
        0.0,
        "augmentation: paste objects of another image, cut out by masks (segment) or as ellipses (detect)",
        interval="[0, 1]",
        unit="probability",
    )


@dataclass(frozen=True, kw_only=True)
class SegmentData(ObjectData):
    """Images with the masks of objects or classes."""

    segmentation: Literal["semantic", "instance"] | None = setting(
        None,
        "semantic: a class per pixel; instance: a mask per object; null is instance if an image has several "
        "masks of one class",
    )
    mask_loss: Literal["cross_entropy", "focal"] = setting(
        "cross_entropy",
        "loss of the masks of object queries, added to the dice loss: cross_entropy as in Mask2Former, or "
        "focal as in MaskFormer",
    )


@dataclass(frozen=True, kw_only=True)
class SeriesData(DataSection):
    """Time series."""

    train: Paths = setting(
        REQUIRED, "CSV or Parquet, wide (a column per series) or long (unique_id, ds, y)", unit="file"
    )
    encoding: str = _encoding()
    time_column: str | None = setting(
        None, "time column; null detects it, and numbers the rows if there is none", unit="name"
    )
    target_columns: Paths | None = setting(
        None, "columns to forecast; null takes all numeric columns", unit="names"
    )
    known_covariates: Paths | None = setting(
        None, "columns whose future is known, e.g. prices or holidays (futr_exog_list)", unit="names"
    )
    calendar_features: (
        tuple[Literal["hour", "day_of_week", "day_of_month", "day_of_year", "month"], ...] | None
    ) = setting(None, "known covariates computed from the time column, e.g. [hour, day_of_week]")
    context_length: int | None = setting(
        None, "number of past steps that the model reads; null chooses it", unit="time steps"
    )
    horizon: int = setting(96, "number of steps to forecast", unit="time steps")
    split: tuple[float, ...] = setting(
        (0.7, 0.1, 0.2),
        "training, validation and test split in time: fractions, or the rows where they end",
        interval="[0, inf)",
        unit="fractions or rows",
        length=3,
    )
    fill_missing: Literal["linear", "last"] | None = setting(
        None, "how to fill missing rows: linear interpolation or the last value; null rejects them"
    )


@dataclass(frozen=True, kw_only=True)
class LabeledSeriesData(DataSection):
    """Time series and their labels."""

    train: Paths = setting(
        REQUIRED,
        ".ts (UEA), label and values in a row (UCR), or a table, wide (a row per series with a label "
        "column) or long (unique_id, ds, values, label)",
        unit="file",
    )
    valid: Paths | float = _valid_split(0.2)
    encoding: str = _encoding()
    label_column: str | None = setting(None, "label column of a table; null detects it", unit="name")
    time_column: str | None = setting(None, "time column of a long table; null detects it", unit="name")
    value_columns: Paths | None = setting(
        None, "columns of values; null takes all other columns", unit="names"
    )
    context_length: int | None = setting(
        None,
        "length that all series are resampled to; null is the longest training series, at most 1024",
        interval="[4, inf)",
        unit="time steps",
    )
    difference: bool = setting(True, "add the first difference of each channel as a channel")
    jitter_std: float = setting(
        0.03, "augmentation: noise, relative to a channel's std", interval="[0, inf)", unit="std"
    )
    scale_std: float = setting(0.1, "augmentation: std of a random factor", interval="[0, inf)")
    time_warp: float = setting(
        0.1, "augmentation: the local speed changes by up to exp(+-time_warp)", interval="[0, inf)"
    )
    max_shift: float = setting(
        0.0, "augmentation: maximum random shift in time", interval="[0, 1)", unit="fraction of the length"
    )
    max_mask: float = setting(
        0.1, "augmentation: longest masked span", interval="[0, 1)", unit="fraction of the length"
    )
    mixup_prob: float = setting(
        1.0, "augmentation: mixup, decided per batch", interval="[0, 1]", unit="probability"
    )


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(Section):
    """The tokenizer to train or to use."""

    section = "tokenizer"

    kind: Literal["bpe", "unigram", "byte", "word", "char"] = setting(
        "bpe", "tokenizer algorithm; byte is byte-level BPE"
    )
    vocab_size: int = setting(8000, "maximum vocabulary size", interval="[1, inf)", unit="tokens")
    separate_vocabs: bool = setting(False, "train one vocabulary per language instead of a joint one")
    lowercase: bool = setting(False, "lowercase the text")
    folder: str | None = setting(None, "use the tokenizer in this folder instead of training one")


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Section):
    """A preset, family or baseline, or a model to fine-tune."""

    section = "model"

    preset: str | None = setting(
        None,
        "preset or family (`glassformer inspect` lists them), or a baseline: lstm, linear, repeat, seasonal; "
        "null suits the job",
    )
    folder: str | None = setting(None, "model folder to fine-tune, instead of a preset")
    overrides: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={
            "description": "option of the family: d_model, num_heads, d_ff, num_layers, dropout, ...",
            "interval": "",
            "unit": "",
            "length": None,
        },
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Section):
    """The optimizer, the learning-rate schedule and the training loop."""

    section = "training"

    max_steps: int | None = setting(
        None,
        "number of optimizer steps; null computes it from epochs",
        interval="[1, inf)",
        unit="optimizer steps",
    )
    epochs: float | None = setting(
        None,
        "number of passes over the training data; max_steps takes precedence; null chooses it",
        interval="(0, inf)",
    )
    time_limit: str | None = setting(
        None,
        "maximum time, e.g. 90s, 30m or 1h30m; then a checkpoint and the model are saved, and the same "
        "command resumes the run; null is unlimited",
    )
    batch_tokens: int | None = setting(
        None,
        "text jobs: maximum batch size per device, padding included; null chooses it",
        interval="[1, inf)",
        unit="tokens",
    )
    batch_size: int | None = setting(
        None,
        "images and time series: maximum batch size per device; null chooses it",
        interval="[1, inf)",
        unit="images, windows or series",
    )
    packing: bool | None = setting(
        None,
        "pack sentence pairs into rows of a fixed width (for compiled GPU steps) instead of bucketing by "
        "length; null packs on a GPU",
    )
    gradient_accumulation_steps: int = setting(
        1,
        "gradient accumulation: batches per optimizer step, summed over all devices; equals one big batch",
        interval="[1, inf)",
        unit="batches",
    )
    lr: float | None = setting(None, "peak learning rate; null chooses it", interval="(0, inf)")
    lr_scheduler: Literal["inverse_sqrt", "cosine", "linear", "constant"] | None = setting(
        None, "learning-rate schedule after the warmup; null chooses it"
    )
    warmup_steps: int | None = setting(
        None,
        "linear learning-rate warmup; null is a tenth of all steps, at most 4000",
        interval="[0, inf)",
        unit="optimizer steps",
    )
    min_lr_ratio: float = setting(
        0.0, "final learning rate of a cosine or linear schedule", interval="[0, 1]", unit="fraction of lr"
    )
    optimizer: Literal["adamw", "adam"] = setting("adamw", "AdamW, or Adam without weight decay")
    betas: tuple[float, ...] = setting(
        (0.9, 0.98),
        "Adam betas: decay rates of the first and second moment",
        interval="[0, 1)",
        length=2,
    )
    eps: float = setting(1e-9, "Adam epsilon", interval="(0, 1)")
    weight_decay: float = setting(
        0.01,
        "decoupled weight decay of AdamW, applied to matrices only, not to biases and norms",
        interval="[0, inf)",
    )
    max_grad_norm: float | None = setting(
        None,
        "gradient clipping: maximum gradient norm; 0 disables it; null is 0.1 for object queries, else 1",
        interval="[0, inf)",
    )
    label_smoothing: float | None = setting(
        None,
        "label smoothing: probability mass spread over all classes; null is 0.1 for translate, restore and "
        "images, else 0",
        interval="[0, 1)",
        unit="probability",
    )
    class_weights: Literal["balanced", "none"] | tuple[float, ...] | Mapping[str, float] | None = setting(
        None,
        "classify: weight of each class in the loss: balanced (inversely proportional to its frequency, as "
        "in scikit-learn), a list in the order of the classes, or a mapping; for multi-label, weights of the "
        "positive examples; null is balanced if the labels of a single-label job are skewed, else none",
        interval="(0, inf)",
    )
    r_drop: float = setting(
        0.0,
        "R-Drop: weight of the divergence between two forward passes with different dropout; 0 disables it",
        interval="[0, inf)",
    )
    ema: float = setting(
        0.0,
        "decay of an exponential moving average (EMA) of the weights, used for validation and the final "
        "model; 0 disables it",
        interval="[0, 1)",
    )
    average_checkpoints: int = setting(
        0,
        "checkpoint averaging: number of validated models averaged into the final one; 0 disables it",
        interval="[0, inf)",
        unit="models",
    )
    average_selection: Literal["last", "best"] = setting("last", "which validated models are averaged")
    load_best_model_at_end: bool = setting(
        True, "without averaging, the final model is the best one; if false, the last one"
    )
    metric_for_best_model: str | None = setting(
        None,
        "metric that defines the best model; null is bleu for translate, chrf for restore, accuracy for "
        "images, classify-series and classify (f1 for skewed or multiple labels, mse for regression), f1 for "
        "ner and answer, ap for detect, ap or miou for segment, mse for forecast, loss for lm",
    )
    greater_is_better: bool | None = setting(
        None,
        "whether a higher value of that metric is better; null is false for a loss, perplexity or error",
    )
    early_stopping_patience: int | None = setting(
        None,
        "early stopping: validations without improvement before training ends; 0 disables it; null is 8 if "
        "the length is chosen for the data and is more than 10 epochs, else 0",
        interval="[0, inf)",
        unit="validations",
    )
    eval_steps: int | None = setting(
        None,
        "validation interval; null is about once per epoch",
        interval="[1, inf)",
        unit="optimizer steps",
    )
    save_steps: int | None = setting(
        None, "checkpoint interval; null is eval_steps", interval="[1, inf)", unit="optimizer steps"
    )
    logging_steps: int | None = setting(
        None, "logging interval; null chooses it", interval="[1, inf)", unit="optimizer steps"
    )
    save_total_limit: int = setting(2, "number of checkpoints kept", interval="[2, inf)", unit="checkpoints")
    snapshots: int = setting(
        0,
        "number of models saved along the run for the explorer; 0 disables them",
        interval="[0, inf)",
        unit="models",
    )
    log_samples: int = setting(
        5, "sample outputs logged per validation", interval="[0, inf)", unit="examples"
    )
    max_generate_samples: int = setting(
        1000,
        "maximum number of examples decoded per validation; the loss is computed on all",
        interval="[1, inf)",
        unit="examples",
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:1; auto is a GPU if there is one")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "bfloat16 and float16 are mixed precision (autocast), float16 with dynamic loss scaling; auto is "
        "bfloat16 on a GPU, float32 on a CPU",
    )
    compile: Literal["auto", "off", "default", "reduce-overhead", "max-autotune"] = setting(
        "auto", "mode of torch.compile; auto compiles on a GPU"
    )
    parallel: Literal["auto", "none", "ddp", "fsdp"] = setting(
        "auto", "distributed training: DDP, or FSDP, which shards the model; auto is ddp under torchrun"
    )
    lora_r: int | None = setting(
        None, "fine-tuning: rank of LoRA adapters; null trains all weights", interval="[1, inf)"
    )
    lora_alpha: float = setting(
        16.0, "LoRA: the adapters are scaled by lora_alpha / lora_r", interval="(0, inf)"
    )
    lora_dropout: float = setting(
        0.05, "LoRA: dropout of the input of the adapters", interval="[0, 1)", unit="probability"
    )
    lora_target_modules: Paths = setting(
        ("q_proj", "v_proj"),
        "LoRA: adapted linear layers (q_proj, k_proj, v_proj, out_proj, up, gate, down), or all-linear",
        unit="names",
    )
    freeze: Paths = setting(
        (),
        "parameters that are not trained: prefixes of their names, e.g. embed or encoder.blocks.0",
        unit="names",
    )
    lr_factors: Mapping[str, float] | None = setting(
        None,
        "factors of the learning rate by prefixes of parameter names, e.g. {embed.backbone: 0.1}; the "
        "longest prefix counts",
        interval="[0, inf)",
    )
    drop_path_rate: float | None = setting(
        None,
        "stochastic depth: probability of skipping a sublayer for a whole example in the last layer, linear "
        "from 0 in the first; null: as the model says",
        interval="[0, 1)",
        unit="probability",
    )
    layer_lr_decay: float = setting(
        1.0,
        "factor of the learning rate from each layer to the one below it; 1 trains all layers alike",
        interval="(0, 1]",
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    max_skipped_steps: int = setting(
        10,
        "consecutive steps skipped for a non-finite or exploding loss before the run fails",
        interval="[1, inf)",
        unit="optimizer steps",
    )
    deterministic: bool = setting(False, "bit-identical reruns on one GPU, slightly slower")
    report_to: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = setting(
        ("tensorboard",),
        "where metrics are logged besides metrics.jsonl: TensorBoard, Weights & Biases, MLflow",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time_limit is not None:
            parse_duration(self.time_limit)

    @property
    def batch(self) -> int | None:
        """Return the batch size in the unit of the job: `batch_tokens` or `batch_size`."""
        return self.batch_tokens or self.batch_size


JobData = (
    PairData
    | TextData
    | LabeledData
    | TaggedData
    | QuestionData
    | SentenceData
    | SummaryData
    | EmbeddingData
    | CaptionData
    | ImageData
    | ObjectData
    | SegmentData
    | SeriesData
    | LabeledSeriesData
)
DATA_SECTIONS: dict[str, type[JobData]] = {
    "translate": PairData,
    "lm": TextData,
    "classify": LabeledData,
    "ner": TaggedData,
    "answer": QuestionData,
    "images": ImageData,
    "detect": ObjectData,
    "segment": SegmentData,
    "forecast": SeriesData,
    "classify-series": LabeledSeriesData,
    "restore": SentenceData,
    "summarize": SummaryData,
    "embed": EmbeddingData,
    "contrastive": CaptionData,
}
METRICS = {  # validation metrics of each job
    "translate": "loss perplexity bleu chrf exact",
    "lm": "loss perplexity bits_per_character bits_per_byte",
    "classify": "loss accuracy f1 micro_f1 mse mae pearson spearman",
    "ner": "loss accuracy precision recall f1",
    "answer": "loss exact_match f1",
    "images": "loss accuracy f1",
    "detect": "loss ap ap50 ap75 ap_small ap_medium ap_large",
    "segment": "loss ap ap50 ap75 ap_small ap_medium ap_large pq sq rq miou pixel_accuracy",
    "forecast": "loss mse mae",
    "classify-series": "loss accuracy f1",
    "restore": "loss perplexity bleu chrf exact",
    "summarize": "loss perplexity rouge1 rouge2 rougeL",
    "embed": "loss spearman recall_at_1",
    "contrastive": "loss recall_at_1 image_to_text_recall_at_1 image_to_text_recall_at_5 "
    "image_to_text_recall_at_10 text_to_image_recall_at_1 text_to_image_recall_at_5 "
    "text_to_image_recall_at_10",
}
NO_TEXT_JOBS = ("images", "detect", "segment", "forecast", "classify-series")  # jobs without a tokenizer
SECTIONS = ("job", "seed", "data", "tokenizer", "model", "training")


def batch_key(job: str) -> str:
    """Return the training key for the batch size: text jobs count tokens, other jobs examples."""
    return "batch_size" if job in (*NO_TEXT_JOBS, "contrastive") else "batch_tokens"


class KeyDescription(NamedTuple):
    """A key of a recipe, for the reference. job: the job of a data key; None for the other sections.

    default: as in YAML, or "required". interval: valid numbers, e.g. `[0, 1)`.
    """

    section: str
    job: str | None
    key: str
    type: str
    default: str
    unit: str
    interval: str
    description: str


def describe_keys() -> Iterator[KeyDescription]:
    """Return the descriptions of all keys of all sections of a recipe.

    >>> next(key.description for key in describe_keys() if key.key == "eps")
    'Adam epsilon'
    """
    sections: list[tuple[str | None, type[Section]]] = [*DATA_SECTIONS.items()]
    for job, section in [*sections, *((None, s) for s in (TokenizerOptions, ModelOptions, TrainingOptions))]:
        types = typing.get_type_hints(section)
        for key in dataclasses.fields(section):  # type: ignore[arg-type]
            info = key.metadata
            yield KeyDescription(
                section=section.section,
                job=job,
                key=key.name,
                type=describe_type(types[key.name]),
                default=_format_default(key),
                unit=info["unit"],
                interval=info["interval"],
                description=info["description"],
            )


def _format_default(key: dataclasses.Field[Any]) -> str:
    if key.default_factory is not dataclasses.MISSING:
        return ""
    if key.default is REQUIRED:
        return "required"
    return json.dumps(key.default) if not isinstance(key.default, str) else key.default


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one run: job, data, tokenizer, model and training."""

    job: str
    data: JobData
    seed: int = 1
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        training, metrics = self.training, METRICS[self.job].split()
        metric = training.metric_for_best_model
        if metric is not None and metric not in metrics:
            raise UnknownNameError("metric", metric, metrics, where=f"the job {self.job}")
        for key in {"batch_tokens", "batch_size"} - {batch_key(self.job)}:
            if getattr(training, key) is not None:
                hint = f"use training.{batch_key(self.job)}"
                raise UnsupportedError(f"the job {self.job}", f"training.{key}", hint=hint)
        if training.lora_r is not None and self.model.folder is None:
            raise MissingValueError("model.folder", "to train LoRA adapters of a model")
        if training.lora_r is not None and training.average_checkpoints:
            names = ("training.lora_r", "training.average_checkpoints")
            raise ConflictError(names, "an average of adapters is not an adapter")
        if training.r_drop and self.job in ("lm", "forecast"):
            raise UnsupportedError(f"the job {self.job}", "R-Drop", hint="set training.r_drop to 0")

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, in the structure of the file."""
        data: dict[str, Any] = {"job": self.job, "seed": self.seed}
        for section in SECTIONS[2:]:
            data[section] = section_dict(getattr(self, section))
        if self.job in NO_TEXT_JOBS:
            del data["tokenizer"]
        return data

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True, default_flow_style=None)


def section_dict(section: Any) -> dict[str, Any]:
    """Return a section as plain data."""
    values = {f.name: getattr(section, f.name) for f in dataclasses.fields(section)}
    values |= values.pop("overrides", {})
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def read_recipe(path: str | Path) -> Recipe:
    """Read and check a recipe file."""
    return parse_recipe(read_recipe_dict(path))


def read_recipe_dict(path: str | Path) -> dict[str, Any]:
    """Read the content of a recipe file without checking it."""
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
    """Return the content of a recipe with overrides such as `training.lr=3e-4` or `seed=2` applied.

    >>> with_overrides({"training": {"lr": 1.0}}, ["training.lr=0.5", "seed=2"])
    {'training': {'lr': 0.5}, 'seed': 2}
    """
    changed = {key: dict(value) if isinstance(value, Mapping) else value for key, value in data.items()}
    for override in overrides:
        name, equals, text = override.partition("=")
        section, _, key = name.strip().partition(".")
        if not equals or not section:
            raise InvalidValueError("the override", override, "section.key=value, e.g. training.lr=0.001")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = text
        if not key:
            changed[section] = value
        elif isinstance(changed.setdefault(section, {}), dict):
            changed[section][key] = value
        else:
            raise InvalidValueError("the override", override, f"{section}=value, since {section} has no keys")
    return changed


def parse_recipe(data: Mapping[str, Any]) -> Recipe:
    """Parse the content of a recipe; unknown keys, wrong types and values out of range are errors."""
    for key in data:
        if key not in SECTIONS:
            raise UnknownNameError("recipe section", str(key), *_section_of_key(str(key), data.get("job")))
    job = data.get("job")
    if not isinstance(job, str) or job not in DATA_SECTIONS:
        raise UnknownNameError("job", str(job), DATA_SECTIONS)
    if "data" not in data:
        raise MissingValueError("data", "in a recipe", "set data.train to the training files")
    model = data.get("model") or {}
    if not isinstance(model, Mapping):
        model = {"preset": model}  # `model: lstm` for short
    own = {name: model[name] for name in ("preset", "folder") if name in model}
    overrides = {name: value for name, value in model.items() if name not in own}
    seed = coerce_value(data.get("seed", 1), int, "seed")
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
# Names that other libraries use for our keys.
SYNONYMS: dict[str, tuple[str, ...]] = {
    "learning_rate": ("lr",),
    "num_train_epochs": ("epochs",),
    "num_epochs": ("epochs",),
    "steps": ("max_steps",),
    "r": ("lora_r",),
    "rank": ("lora_r",),
    "lora_rank": ("lora_r",),
    "target_modules": ("lora_target_modules",),
    "layerwise_lr_decay": ("layer_lr_decay",),
    "layer_decay": ("layer_lr_decay",),
    "clip": ("max_grad_norm",),
    "grad_clip": ("max_grad_norm",),
    "gradient_clip_val": ("max_grad_norm",),
    "accumulate_grad_batches": ("gradient_accumulation_steps",),
    "grad_accum": ("gradient_accumulation_steps",),
    "max_time": ("time_limit",),
    "max_train_time": ("time_limit",),
    "early_stopping": ("early_stopping_patience",),
    "patience": ("early_stopping_patience",),
    "warmup": ("warmup_steps",),
    "schedule": ("lr_scheduler",),
    "lr_scheduler_type": ("lr_scheduler",),
    "batch": ("batch_tokens", "batch_size"),
    "per_device_train_batch_size": ("batch_tokens", "batch_size"),
    "max_length": ("max_len",),
    "max_seq_length": ("max_len",),
    "futr_exog_list": ("known_covariates",),
    "future_covariates": ("known_covariates",),
    "known_covariates_names": ("known_covariates",),
}


def _section_of_key(name: str, job: Any) -> tuple[Sequence[str], str]:
    """Return the known sections and no hint, or no sections and a hint with the section of the key."""
    kinds: list[type[Section]] = [TrainingOptions, TokenizerOptions, ModelOptions]
    if job in DATA_SECTIONS:
        kinds.append(DATA_SECTIONS[job])
    for kind in kinds:
        keys = {key.name for key in dataclasses.fields(kind)}  # type: ignore[arg-type]
        matches = [key for key in (name, *SYNONYMS.get(name, ())) if key in keys]
        if matches:
            return (), "use " + " or ".join(f"{kind.section}.{key}" for key in matches)
    return SECTIONS, ""


def parse_section(kind: type[SectionType], data: Any) -> SectionType:
    """Parse a section from plain data. kind: its class.

    >>> parse_section(TokenizerOptions, {"kind": "char"}).kind
    'char'
    """
    data = {} if data is None else data
    if not isinstance(data, Mapping):
        raise InvalidValueError(kind.section, data, "a section of keys and values")
    types = typing.get_type_hints(kind)
    fields = dataclasses.fields(kind)  # type: ignore[arg-type]
    hints = {key.name: types[key.name] for key in fields}
    values = {}
    for key, value in data.items():
        if key not in hints:
            synonyms = [name for name in SYNONYMS.get(str(key), ()) if name in hints]
            known, hint = ((), f"use {' or '.join(synonyms)}") if synonyms else (hints, "")
            raise UnknownNameError("key", str(key), known, hint, where=kind.section)
        values[key] = coerce_value(value, hints[key], f"{kind.section}.{key}")
    for key in fields:
        required = key.default is REQUIRED and key.default_factory is dataclasses.MISSING
        if required and key.name not in values:
            raise MissingValueError(f"{kind.section}.{key.name}", "in a recipe")
    return kind(**values)


def coerce_value(value: Any, hint: Any, name: str) -> Any:
    """Convert a value to the type `hint` of its field: a list to a tuple, a single path to a tuple of one.

    YAML 1.1 parses `off` as a boolean and `1e-3` as a string; both are converted if the field requires it.
    name: the key, for errors.
    """
    known = union_members(hint)
    scalars = [choice for choice in known if typing.get_origin(choice) is not tuple]
    sequence = next((choice for choice in known if typing.get_origin(choice) is tuple), None)
    if isinstance(value, bool) and not any(matches_type(value, choice) for choice in scalars):
        word = "on" if value else "off"
        value = word if any(matches_type(word, choice) for choice in scalars) else value
    if isinstance(value, str) and float in scalars and str not in scalars:
        with suppress(ValueError):
            value = float(value)
    if any(matches_type(value, choice) for choice in scalars):
        is_int = isinstance(value, int) and not isinstance(value, bool)
        return float(value) if is_int and float in scalars and int not in scalars else value
    if sequence is not None and value is not None:
        inner = typing.get_args(sequence)[0]
        items = value if isinstance(value, list | tuple) else [value]
        return tuple(coerce_value(item, inner, name) for item in items)
    raise InvalidValueError(name, value, describe_type(hint))
