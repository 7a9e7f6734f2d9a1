"""The small JSON files beside a model, looked at once, when they are read: whoever uses them need not again.

Unknown keys are let be: other libraries and later versions write their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from glassformer.core.spec.checks import MOST
from glassformer.errors import GlassformerError
from glassformer.families.family import read_json

Known = Mapping[str, tuple[str, Callable[[Any], bool]]]  # by key: what must stand there, and whether it does
JOBS = ("translate", "lm", "classify", "images", "forecast", "restore")


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object from a file; anything else there is a sentence."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise GlassformerError(f"{path} must hold a JSON object, not {type(content).__name__}")
    return content


def read_settings(path: Path) -> dict[str, Any]:
    """A config's words, or those for writing, none where there is no such file.

    Under the names of ids of tokens (`eos_token_id`, ...) stands such an id, several, or null.
    """
    words = read_object(path) if path.is_file() else {}
    for name, value in words.items():
        given = value if isinstance(value, list) else [] if value is None else [value]
        if name.endswith("_token_id") and not all(_is_whole(one) and abs(one) <= MOST for one in given):
            raise GlassformerError(
                f"{path} sets {name} to {value!r:.60}; it must be the id of a token, several, or null"
            )
    return words


def checked_job(about: Mapping[str, Any], where: Path, what: Any) -> dict[str, Any]:
    """What job.json says of a model of this spec; null says nothing."""
    told = {name: value for name, value in about.items() if value is not None}
    _check(told, _JOB, where)
    channels = getattr(getattr(what, "input", None), "channels", None)
    scale = [len(told[name]) for name in ("mean", "std") if name in told]
    if len({*scale, *([channels] if scale and channels is not None else [])}) > 1:
        read = "" if channels is None else f", and the model reads {channels} channels"
        raise GlassformerError(
            f"{where} gives a mean and a std of {' and '.join(map(str, scale))} numbers{read}; both must "
            "have one for each channel"
        )
    return told


def checked_pictures(about: dict[str, Any], where: Path) -> dict[str, Any]:
    """How pictures are made ready, as preprocessor_config.json says."""
    _check({name: value for name, value in about.items() if value is not None}, _PICTURES, where)
    return about


def checked_sentences(files: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Further files by name, of which some say how a sentence encoder's texts are cut and begun."""
    for name, about in files.items():
        if isinstance(about, dict):
            told = {key: value for key, value in about.items() if value is not None}
            _check(told, _SENTENCES, folder / name)
    return files


def _check(told: Mapping[str, Any], known: Known, where: Path) -> None:
    for name, value in told.items():
        wanted, fits = known.get(name, ("", lambda _: True))
        if not fits(value):
            raise GlassformerError(f"{where} sets {name} to {value!r:.60}; it must be {wanted}")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    return _is_whole(value) and 1 <= value <= MOST


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _are_numbers(value: Any, above: float = -math.inf) -> bool:
    return isinstance(value, list) and all(_is_number(one) and one > above for one in value) and bool(value)


def _are_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _are_sides(value: Any) -> bool:
    sides = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return all(_is_size(side) for side in sides if side is not None)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LENGTH = ("a whole number, 1 or more", _is_size)
_NAMES = ("a list of names", _are_words)
_TEXT = ("a text", _is_text)
_SWITCH = ("true or false", lambda value: isinstance(value, bool))

_JOB: Known = {
    "job": (f"one of {', '.join(JOBS)}", lambda value: value in JOBS),
    "classes": _NAMES,
    "columns": _NAMES,
    "languages": _NAMES,
    "mean": ("a list of finite numbers", _are_numbers),
    "std": ("a list of finite numbers above 0", lambda value: _are_numbers(value, above=0)),
    **dict.fromkeys(("context", "horizon", "max_len", "usual_len", "channels"), _LENGTH),
    **dict.fromkeys(("unit", "to", "gap", "before", "frequency"), _TEXT),
    "example": ("an object", lambda value: isinstance(value, dict)),
}
_SENTENCES: Known = {
    "max_seq_length": _LENGTH,
    "do_lower_case": _SWITCH,
    "default_prompt_name": _TEXT,
    "prompts": (
        "an object of texts by name",
        lambda value: isinstance(value, dict) and all(_is_text(one) or one is None for one in value.values()),
    ),
}
_PICTURES: Known = {
    "image_mean": (
        "a finite number, or one for each channel",
        lambda value: _is_number(value) or _are_numbers(value),
    ),
    "image_std": (
        "a finite number above 0, or one for each channel",
        lambda value: (_is_number(value) and value > 0) or _are_numbers(value, above=0),
    ),
    "rescale_factor": ("a finite number above 0", lambda value: _is_number(value) and value > 0),
    **dict.fromkeys(("size", "crop_size"), ("whole numbers of pixels, 1 or more", _are_sides)),
    **dict.fromkeys(("do_resize", "do_rescale", "do_normalize", "do_center_crop"), _SWITCH),
}
