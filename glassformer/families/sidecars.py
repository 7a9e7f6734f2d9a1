"""The small JSON files next to a model's weights, validated once when they are read.

`job.json` is Glassformer's own and has a closed schema (`JobInfo`). In files that other libraries write,
unknown keys are ignored and kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_type_hints

from glassformer.errors import InvalidValueError, UnknownNameError
from glassformer.json_text import as_list, read_object
from glassformer.schema import MAX_INT, describe_type, matches_type, union_members

JOB_FILE = "job.json"
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"  # how images are resized and normalized, as published
PROCESSOR_FILE = "processor_config.json"
SCHEDULER_FILE = "scheduler_config.json"  # the noise schedule and sampler of a diffusion model
INDEX_FILE = "model_index.json"  # names the models of a folder, each in a folder of its own
SIDECARS = (IMAGE_PROCESSOR_FILE, SCHEDULER_FILE)


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """Description of a model's training job, stored as `job.json`; without that file all fields are None.

    name: of the training job (the key `job` in the file).
    classes: the labels of a classifier. problem_type: as in transformers' config. text_pair: whether it reads
    two texts.
    data_columns: column of the training table, a name or a number from 1, by field, e.g. source or label.
    languages: the target languages of a translator. to: the column of its training data that named them.
    unit: "sentence" if it was trained on single sentences.
    usual_len: length in tokens that 99.5 % of the training sources do not exceed.
    max_len: maximum number of tokens of a text.
    prefix: text before every source of a summarizer.
    gap, before: for a model that restores sentences, the gap token and the string before each text part.
    columns: channels of the series. frequency: step of the series of a forecaster. fill_missing: how gaps in
    its training data were filled, "linear" or "last".
    known_covariates, calendar_features: known covariates of a forecaster: columns, and features of the time;
    covariate_mean, covariate_std: of the columns in the training data.
    difference: whether a classifier of series reads first differences as additional channels.
    context, horizon: number of steps it reads and predicts.
    mean, std: statistics of each column or image channel in the training data. size, channels: of the images.
    segmentation: "semantic", "instance" or "panoptic", of a segmenter.
    example: the input that the explorer shows first.
    """

    name: str | None = None
    classes: tuple[str, ...] | None = None
    problem_type: str | None = None
    text_pair: bool | None = None
    data_columns: Mapping[str, str | int] | None = None
    languages: tuple[str, ...] | None = None
    to: str | int | None = None
    unit: str | None = None
    usual_len: int | None = None
    max_len: int | None = None
    prefix: str | None = None
    gap: str | None = None
    before: str | None = None
    columns: tuple[str, ...] | None = None
    context: int | None = None
    horizon: int | None = None
    difference: bool | None = None
    known_covariates: tuple[str, ...] | None = None
    calendar_features: tuple[str, ...] | None = None
    covariate_mean: tuple[float, ...] | None = None
    covariate_std: tuple[float, ...] | None = None
    frequency: str | None = None
    fill_missing: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: tuple[int, ...] | None = None
    channels: int | None = None
    segmentation: str | None = None
    example: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str | Path = JOB_FILE) -> JobInfo:
        """Validate the content of a `job.json`; null means that a key is absent.

        >>> JobInfo.from_dict({"job": "translate", "languages": ["de", "ko"]}).languages
        ('de', 'ko')
        """
        present: dict[str, Any] = {
            "name" if key == "job" else key: tuple(value) if isinstance(value, list) else value
            for key, value in values.items()
            if value is not None
        }
        hints = get_type_hints(cls)
        for key in present:
            if key not in hints:
                raise UnknownNameError("key", key, hints, hint=f"fix {where}")
        _check(present, hints, where)
        job = cls(**present)
        if job.mean and job.std and len(job.mean) != len(job.std):
            raise InvalidValueError(f"{where}: std", job.std, f"{len(job.mean)} numbers, as in mean")
        return job

    def to_dict(self) -> dict[str, Any]:
        """Convert to the format of `from_dict`, without fields that are None.

        >>> JobInfo(name="lm", max_len=64).to_dict()
        {'job': 'lm', 'max_len': 64}
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "job" if name == "name" else name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


def read_config(path: Path) -> dict[str, Any]:
    """Read a published config and validate its token ids; return {} if the file does not exist."""
    config = read_object(path, missing_ok=True)
    for name, value in config.items():
        ids = as_list(value)
        if name.endswith("_token_id") and not all(matches_type(i, int) and abs(i) <= MAX_INT for i in ids):
            raise InvalidValueError(f"{path}: {name}", value, "a token id, several, or null")
    return config


def read_job(path: Path, channels: int | None) -> JobInfo:
    """Read `job.json`; return an empty `JobInfo` if it does not exist. channels: number of input channels."""
    job = JobInfo.from_dict(read_object(path), path) if path.is_file() else JobInfo()
    if channels is not None and job.mean is not None and len(job.mean) != channels:
        raise InvalidValueError(f"{path}: mean", job.mean, f"{channels} numbers, one per channel")
    return job


def read_image_processor(folder: Path) -> dict[str, Any] | None:
    """Read how images are resized and normalized; None if the folder does not say.

    It is in `preprocessor_config.json`, or in the key `image_processor` of `processor_config.json`, which
    transformers 5 writes for models that also read texts.
    """
    path = folder / PROCESSOR_FILE
    config = read_object(path, missing_ok=True).get("image_processor")
    if not isinstance(config, dict):
        path = folder / IMAGE_PROCESSOR_FILE
        if not path.is_file():
            return None
        config = read_object(path)
    _check(config, _IMAGE_PROCESSOR, path)
    return config


def check_sentence_files(files: Mapping[str, Any], folder: Path) -> None:
    """Validate the JSON files that set the maximum length and prompts of a sentence encoder."""
    for name, config in files.items():
        if isinstance(config, dict):
            _check(config, _SENTENCE_ENCODER, folder / name)


Hints = Mapping[str, Any]  # the type of each known key
_SENTENCE_ENCODER: Hints = {
    "max_seq_length": int,
    "do_lower_case": bool,
    "default_prompt_name": str,
    "prompts": dict,
}
_IMAGE_PROCESSOR: Hints = {
    **dict.fromkeys(("image_mean", "image_std"), float | tuple[float, ...]),
    "rescale_factor": float,
    "max_size": int,
    **dict.fromkeys(("size", "crop_size", "pad_size"), int | tuple[int, ...] | dict),
    **dict.fromkeys(
        "do_resize do_rescale do_normalize do_center_crop do_pad do_split_image".split(),
        bool,
    ),
}
_ANY_SIGN = ("mean", "image_mean", "covariate_mean")


def _check(values: Mapping[str, Any], known: Hints, where: str | Path) -> None:
    """Raise if a value does not have the type of its key, or if a number is not positive but must be."""
    for name, value in values.items():
        if value is None or name not in known:
            continue
        value = tuple(value) if isinstance(value, list) else value
        if not any(matches_type(value, choice) for choice in union_members(known[name])):
            raise InvalidValueError(f"{where}: {name}", value, describe_type(known[name]))
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, tuple) else (value,)
        items = [item for item in parts if item is not None]
        if isinstance(value, dict) and name != "example":
            kind = {"prompts": str, "data_columns": str | int}.get(name, int)
            choices = union_members(kind)
            if not all(any(matches_type(item, choice) for choice in choices) for item in items):
                raise InvalidValueError(f"{where}: {name}", value, f"an object of {describe_type(kind)}")
        numbers = [item for item in items if matches_type(item, float)]
        if name not in _ANY_SIGN and any(not 0 < number <= MAX_INT for number in numbers):
            raise InvalidValueError(f"{where}: {name}", value, "positive numbers")
