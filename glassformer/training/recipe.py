"""Recipes: YAML files that describe a training run, parsed into dataclasses. Unknown keys are errors.

A setting that is left out (or `null`) is chosen for the data and the type of the device. The run folder
stores the recipe with all settings filled in, which reproduces the training.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from glassformer.core.precision import DTYPE_ALIASES
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)
from glassformer.schema import (
    Settings,
    SettingsType,
    coerce_value,
    parse_settings,
    setting,
)
from glassformer.training.job_spec import JobSpec
from glassformer.training.jobs import all_jobs, current_name, find_job, job_names
from glassformer.training.sections import DataSection, Paths

DURATION_UNITS = (86400, 3600, 60, 1)  # seconds of a day, hour, minute and second
DEFAULT_MAX_GRAD_NORM = 1.0
MIN_EVAL_STEPS = 10  # a validation takes longer than a few steps of a short run
UNUSUAL_BATCH_SIZE = 1024  # of texts: a larger number is probably meant as tokens
SECTIONS = ("job", "seed", "data", "tokenizer", "model", "training")


# intervals and units of several settings
STEPS: dict[str, Any] = {"interval": "[1, inf)", "unit": "optimizer steps"}
EXAMPLES: dict[str, Any] = {"interval": "[1, inf)", "unit": "examples"}
MODELS: dict[str, Any] = {"interval": "[0, inf)", "unit": "models"}
PROBABILITY: dict[str, Any] = {"interval": "[0, 1)", "unit": "probability"}


class BatchLimits(NamedTuple):
    """Maximum size of a batch in examples, and in tokens with padding; None is unlimited."""

    batch_size: int | None = None
    batch_tokens: int | None = None


DEFAULT_EVALUATION_BATCH = BatchLimits(batch_tokens=4096)  # an image or a series counts as one token


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


@dataclass(frozen=True, kw_only=True)
class TokenizerOptions(Settings):
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
class ModelOptions(Settings):
    """A preset, family or baseline, or a model to fine-tune."""

    section = "model"

    preset: str | None = setting(
        None,
        "preset or family (`glassformer inspect` lists them), or a baseline: lstm, linear, repeat, seasonal; "
        "null suits the job",
    )
    folder: str | None = setting(None, "model folder to fine-tune, instead of a preset")
    image_encoder: str | None = setting(
        None, "job vqa: folder of an image encoder or captioner to connect to the language model in folder"
    )
    autoencoder: str | None = setting(
        None,
        "jobs diffusion and image_tokens: folder of an autoencoder, whose latents or codes are drawn; null "
        "draws pixels",
    )
    text_encoder: str | None = setting(
        None,
        "job diffusion: folder of a text encoder, which is not trained; null trains a small one with the "
        "denoiser",
    )
    overrides: Mapping[str, Any] = field(
        default_factory=dict,
        metadata=setting(
            None, "option of the family: d_model, num_heads, d_ff, num_layers, dropout, ..."
        ).metadata,
    )


@dataclass(frozen=True, kw_only=True)
class TrainingOptions(Settings):
    """The optimizer, the learning-rate schedule and the training loop."""

    section = "training"

    max_steps: int | None = setting(None, "number of optimizer steps; null computes it from epochs", **STEPS)
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
        "text jobs: maximum number of tokens in a batch per device, padding included; null chooses it, "
        "unless batch_size is set",
        interval="[1, inf)",
        unit="tokens",
    )
    batch_size: int | None = setting(
        None,
        "maximum number of examples in a batch per device, in every job; null chooses it, or in a text job "
        "batch_tokens instead",
        **EXAMPLES,
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
        "label smoothing: probability mass spread over all classes; null is the default of the job, or 0",
        **PROBABILITY,
    )
    class_weights: Literal["balanced", "none"] | tuple[float, ...] | Mapping[str, float] | None = setting(
        None,
        "classify: weight of each class in the loss: balanced (inversely proportional to its frequency, as "
        "in scikit-learn), a list in the order of the classes, or a mapping; for multi-label, weights of the "
        "positive examples; null is balanced if each text has one label and they are skewed, else none",
        interval="(0, inf)",
    )
    r_drop: float = setting(
        0.0,
        "R-Drop: weight of the divergence between two forward passes with different dropout; 0 disables it",
        interval="[0, inf)",
    )
    ema: float | None = setting(
        None,
        "decay of an exponential moving average (EMA) of the weights, used for validation and the final "
        "model; 0 disables it; null is the default of the job, or 0",
        interval="[0, 1)",
    )
    average_checkpoints: int = setting(
        0,
        "checkpoint averaging: number of validated models averaged into the final one; 0 disables it",
        **MODELS,
    )
    average_selection: Literal["last", "best"] = setting("last", "which validated models are averaged")
    load_best_model_at_end: bool = setting(
        True, "without averaging, the final model is the best one; if false, the last one"
    )
    metric_for_best_model: str | None = setting(
        None,
        "metric that defines the best model, one of those of the job; null is its default",
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
    eval_steps: int | None = setting(None, "validation interval; null is about once per epoch", **STEPS)
    save_steps: int | None = setting(None, "checkpoint interval; null is eval_steps", **STEPS)
    logging_steps: int | None = setting(None, "logging interval; null chooses it", **STEPS)
    save_total_limit: int = setting(2, "number of checkpoints kept", interval="[2, inf)", unit="checkpoints")
    snapshots: int = setting(
        0, "number of models saved along the run for the explorer; 0 disables them", **MODELS
    )
    log_samples: int = setting(
        5, "sample outputs logged per validation", interval="[0, inf)", unit="examples"
    )
    max_generate_samples: int = setting(
        1000, "maximum number of examples decoded per validation; the loss is computed on all", **EXAMPLES
    )
    device: str = setting("auto", "auto, cpu, cuda or cuda:1; auto is a GPU if there is one")
    precision: Literal["auto", "float32", "bfloat16", "float16"] = setting(
        "auto",
        "bfloat16 (bf16) and float16 (fp16) are mixed precision (autocast), float16 with dynamic loss "
        "scaling; auto is bfloat16 on a GPU, float32 on a CPU",
        aliases=DTYPE_ALIASES,
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
    lora_dropout: float = setting(0.05, "LoRA: dropout of the input of the adapters", **PROBABILITY)
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
        **PROBABILITY,
    )
    layer_lr_decay: float = setting(
        1.0,
        "factor of the learning rate from each layer to the one below it; 1 trains all layers alike",
        interval="(0, 1]",
    )
    gradient_checkpointing: bool = setting(False, "recompute activations in the backward pass to save memory")
    max_skipped_steps: int = setting(
        10, "consecutive steps skipped for a non-finite or exploding loss before the run fails", **STEPS
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

    def batch_limits(self, default: BatchLimits = DEFAULT_EVALUATION_BATCH) -> BatchLimits:
        """Return the maximum size of a batch. default: if the recipe sets none."""
        chosen = BatchLimits(self.batch_size, self.batch_tokens)
        return default if chosen == BatchLimits() else chosen


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of one run: job, data, tokenizer, model and training."""

    job: str
    data: DataSection
    seed: int = 1
    tokenizer: TokenizerOptions = field(default_factory=TokenizerOptions)
    model: ModelOptions = field(default_factory=ModelOptions)
    training: TrainingOptions = field(default_factory=TrainingOptions)

    def __post_init__(self) -> None:
        training, job = self.training, self.spec
        metric = training.metric_for_best_model
        if metric is not None and metric not in job.metrics:
            raise UnknownNameError("metric", metric, job.metrics, where=f"the job {self.job}")
        if training.batch_tokens is not None and job.batch_unit != "tokens":
            hint = "use training.batch_size"
            raise UnsupportedError(f"the job {self.job}", "training.batch_tokens", hint=hint)
        if training.packing and training.batch_size is not None:
            names = ("training.packing", "training.batch_size")
            raise ConflictError(names, "a packed row holds several examples", "use training.batch_tokens")
        if training.lora_r is not None and self.model.folder is None:
            raise MissingValueError("model.folder", "to train LoRA adapters of a model")
        if training.lora_r is not None and training.average_checkpoints:
            names = ("training.lora_r", "training.average_checkpoints")
            raise ConflictError(names, "an average of adapters is not an adapter")
        if training.r_drop and not job.r_drop:
            raise UnsupportedError(f"the job {self.job}", "R-Drop", hint="set training.r_drop to 0")

    @property
    def spec(self) -> JobSpec:
        """The declaration of the job, of its variant for this data."""
        job = find_job(self.job)
        return next((variant for variant in job.variants if variant.data is type(self.data)), job)

    @property
    def batch_warning(self) -> str:
        """A warning if the batch size of a text job looks like a number of tokens; else empty."""
        size = self.training.batch_size or 0
        if size <= UNUSUAL_BATCH_SIZE or self.spec.batch_unit != "tokens":
            return ""
        return f"batch_size {size:,} counts examples; batch_tokens (--batch-tokens) counts tokens"

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain data, in the structure of the file."""
        data: dict[str, Any] = {"job": self.job, "seed": self.seed}
        for section in SECTIONS[2:]:
            data[section] = section_dict(getattr(self, section))
        if not self.spec.tokenizer:
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
            value = text if len(text) == 1 and not text.isalnum() else yaml.safe_load(text)  # e.g. | or a tab
        except yaml.YAMLError:
            value = text
        if not key:
            changed[section] = value
        elif isinstance(changed.setdefault(section, {}), dict):
            changed[section][key] = value
        else:
            raise InvalidValueError("the override", override, f"{section}=value, since {section} has no keys")
    return changed


def parse_recipe(data: Mapping[str, Any], *, warn: bool = True) -> Recipe:
    """Parse the content of a recipe; unknown keys, wrong types and values out of range are errors.

    data: what the file holds. warn: warn if the job has a name of a former version.
    """
    for key in data:
        if key not in SECTIONS:
            raise UnknownNameError("recipe section", str(key), *_section_of_key(str(key), data.get("job")))
    job, renamed = current_name(str(data.get("job")), warn=warn)
    spec = find_job(job)
    if "data" not in data:
        raise MissingValueError("data", "in a recipe", "set data.train to the training files")
    section = data["data"]
    if renamed and isinstance(section, Mapping):
        section = {**renamed, **section}
    model = data.get("model") or {}
    if not isinstance(model, Mapping):
        model = {"preset": model}  # `model: lstm` for short
    own = {
        key.name: model[key.name]
        for key in dataclasses.fields(ModelOptions)
        if key.name in model and key.name != "overrides"
    }
    overrides = {name: value for name, value in model.items() if name not in own}
    seed = coerce_value(data.get("seed", 1), int, "seed")
    if not 0 <= seed < 1 << 63:
        raise InvalidValueError("seed", seed, "an integer from 0 to 2**63 - 1")
    return Recipe(
        job=job,
        seed=seed,
        data=parse_section(spec.variant(section).data, section),
        tokenizer=parse_section(TokenizerOptions, data.get("tokenizer")),
        model=dataclasses.replace(parse_section(ModelOptions, own), overrides=overrides),
        training=parse_section(TrainingOptions, data.get("training")),
    )


# Our keys, and the names that other libraries use for them.
_SYNONYMS = """
lr: learning_rate
epochs: num_train_epochs num_epochs
max_steps: steps
lora_r: r rank lora_rank
lora_target_modules: target_modules
layer_lr_decay: layerwise_lr_decay layer_decay
max_grad_norm: clip grad_clip gradient_clip_val
gradient_accumulation_steps: accumulate_grad_batches grad_accum
time_limit: max_time max_train_time
early_stopping_patience: early_stopping patience
warmup_steps: warmup
lr_scheduler: schedule lr_scheduler_type
batch_size batch_tokens: batch
batch_size: per_device_train_batch_size
batch_tokens: max_tokens
max_len: max_length max_seq_length
known_covariates: futr_exog_list future_covariates known_covariates_names
"""
SYNONYMS: dict[str, tuple[str, ...]] = {
    name: tuple(keys.split())
    for keys, _, names in (line.partition(":") for line in _SYNONYMS.split("\n"))
    for name in names.split()
}


def _section_of_key(name: str, job: Any) -> tuple[Sequence[str], str]:
    """Return the known sections and no hint, or no sections and a hint with the section of the key."""
    kinds: list[type[Settings]] = [TrainingOptions, TokenizerOptions, ModelOptions]
    if job in job_names():
        kinds += [variant.data for variant in all_jobs() if variant.name == job]
    for kind in kinds:
        keys = {key.name for key in dataclasses.fields(kind)}  # type: ignore[arg-type]
        matches = [key for key in (name, *SYNONYMS.get(name, ())) if key in keys]
        if matches:
            return (), "use " + " or ".join(f"{kind.section}.{key}" for key in matches)
    return SECTIONS, ""


def parse_section(kind: type[SettingsType], data: Any) -> SettingsType:
    """Parse a section from plain data. kind: its class.

    >>> parse_section(TokenizerOptions, {"kind": "char"}).kind
    'char'
    """
    return parse_settings(kind, data, needed="in a recipe", synonyms=SYNONYMS)
