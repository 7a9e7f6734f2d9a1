"""The small JSON files next to a model's weights, validated once when they are read.

`job.json` is ours and has a closed schema (`JobInfo`). In files that other libraries write, unknown keys are
ignored and kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from glassformer.core.schema import MOST
from glassformer.errors import FileProblemError, InvalidValueError, UnknownNameError
from glassformer.families.family import read_json

JOB_FILE = "job.json"
IMAGE_PROCESSOR_FILE = "preprocessor_config.json"  # how images are resized and normalized, as published
JOBS = ("translate", "lm", "classify", "images", "forecast", "restore")


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """What a model was trained to do, as `job.json` stores it. A published folder has none: all are None.

    name: one of JOBS (the key `job` in the file).
    classes: the labels of a classifier.
    languages: the target languages of a translator; `to`: the column its training data named them in.
    unit: "sentence" if it was trained on single sentences. usual_len: tokens of all but its longest sources.
    max_len: the most tokens of a text.
    gap, before: the gap token of a model that restores sentences, and what precedes each text part.
    columns, context, horizon, frequency: the series of a forecaster, and the steps it reads and predicts.
    mean, std: of each column or image channel in the training data. size, channels: of its images.
    example: an input that the explorer starts with.
    """

    name: str | None = None
    classes: tuple[str, ...] | None = None
    languages: tuple[str, ...] | None = None
    to: str | None = None
    unit: str | None = None
    usual_len: int | None = None
    max_len: int | None = None
    gap: str | None = None
    before: str | None = None
    columns: tuple[str, ...] | None = None
    context: int | None = None
    horizon: int | None = None
    frequency: str | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: tuple[int, ...] | None = None
    channels: int | None = None
    example: Mapping[str, Any] | None = None

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str | Path = JOB_FILE) -> JobInfo:
        """Validate what a `job.json` holds; null means that a key is absent.

        >>> JobInfo.from_dict({"job": "translate", "languages": ["de", "ko"]}).languages
        ('de', 'ko')
        """
        present = {key: value for key, value in values.items() if value is not None}
        for key in present:
            if key not in _JOB:
                raise UnknownNameError("key", key, _JOB, hint=f"fix {where}")
        _check(present, _JOB, where)
        mean, std = present.get("mean"), present.get("std")
        if mean and std and len(mean) != len(std):
            raise InvalidValueError(f"{where}: std", std, f"{len(mean)} numbers, as in mean")
        options: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in present.items()
        }
        return cls(name=options.pop("job", None), **options)

    def to_dict(self) -> dict[str, Any]:
        """What `from_dict` reads, without the fields that are None.

        >>> JobInfo(name="lm", max_len=64).to_dict()
        {'job': 'lm', 'max_len': 64}
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {
            "job" if name == "name" else name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value is not None
        }


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise FileProblemError(path, f"expected a JSON object, not {type(content).__name__}")
    return content


def read_config(path: Path) -> dict[str, Any]:
    """Read a published config, empty if there is no such file; its token ids (`eos_token_id`) are checked."""
    config = read_object(path) if path.is_file() else {}
    for name, value in config.items():
        ids = value if isinstance(value, list) else [] if value is None else [value]
        if name.endswith("_token_id") and not all(_is_int(one) and abs(one) <= MOST for one in ids):
            raise InvalidValueError(f"{path}: {name}", value, "a token id, several, or null")
    return config


def read_job(path: Path, channels: int | None) -> JobInfo:
    """Read `job.json`, empty if there is no such file. channels: how many the model reads, if it does."""
    job = JobInfo.from_dict(read_object(path), path) if path.is_file() else JobInfo()
    if channels is not None and job.mean is not None and len(job.mean) != channels:
        raise InvalidValueError(f"{path}: mean", job.mean, f"{channels} numbers, one per channel")
    return job


def read_image_processor(path: Path) -> dict[str, Any]:
    """Read `preprocessor_config.json`."""
    config = read_object(path)
    _check(config, _IMAGE_PROCESSOR, path)
    return config


def check_sentence_files(files: Mapping[str, Any], folder: Path) -> None:
    """Validate the further files of a sentence encoder: how its texts are truncated and prefixed."""
    for name, config in files.items():
        if isinstance(config, dict):
            _check(config, _SENTENCE_ENCODER, folder / name)


Checks = Mapping[str, tuple[str, Callable[[Any], bool]]]  # by key: what is expected, and whether a value is


def _check(values: Mapping[str, Any], known: Checks, where: str | Path) -> None:
    for name, value in values.items():
        expected, is_valid = known.get(name, ("", lambda _: True))
        if value is not None and not is_valid(value):
            raise InvalidValueError(f"{where}: {name}", value, expected)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_int(value) and 1 <= value <= MOST


def _is_number(value: Any, above: float = -math.inf) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and math.isfinite(value) and value > above


def _are_numbers(value: Any, above: float = -math.inf) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_is_number(one, above) for one in value)


def _are_names(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)


def _are_sizes(value: Any) -> bool:
    sizes = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return all(_is_size(size) for size in sizes if size is not None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_SIZE = ("an integer, 1 or more", _is_size)
_NAMES = ("a list of names", _are_names)
_TEXT = ("a string", _is_text)
_BOOL = ("true or false", lambda value: isinstance(value, bool))
_JOB: Checks = {
    "job": (f"one of {', '.join(JOBS)}", lambda value: value in JOBS),
    **dict.fromkeys(("classes", "columns", "languages"), _NAMES),
    "mean": ("a list of finite numbers", _are_numbers),
    "std": ("a list of positive numbers", lambda value: _are_numbers(value, above=0)),
    **dict.fromkeys(("context", "horizon", "max_len", "usual_len", "channels"), _SIZE),
    **dict.fromkeys(("unit", "to", "gap", "before", "frequency"), _TEXT),
    "size": ("a height and a width", lambda value: isinstance(value, list | tuple) and _are_sizes([*value])),
    "example": ("an object", lambda value: isinstance(value, dict)),
}
_SENTENCE_ENCODER: Checks = {
    "max_seq_length": _SIZE,
    "do_lower_case": _BOOL,
    "default_prompt_name": _TEXT,
    "prompts": (
        "an object of strings",
        lambda value: isinstance(value, dict) and all(_is_text(one) or one is None for one in value.values()),
    ),
}
_IMAGE_PROCESSOR: Checks = {
    "image_mean": ("a number, or one per channel", lambda value: _is_number(value) or _are_numbers(value)),
    "image_std": (
        "a positive number, or one per channel",
        lambda value: _is_number(value, above=0) or _are_numbers(value, above=0),
    ),
    "rescale_factor": ("a positive number", lambda value: _is_number(value, above=0)),
    **dict.fromkeys(("size", "crop_size"), ("numbers of pixels, 1 or more", _are_sizes)),
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_center_crop"), _BOOL),
}
