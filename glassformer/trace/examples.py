"""An input to begin with, for every kind of model: something that it can read and that shows what it does."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from glassformer.api import JOB, Bundle
from glassformer.core import spec as specs
from glassformer.core.errors import GlassformerError
from glassformer.trace.kinds import Given, SeriesGiven
from glassformer.trace.outline import kind_of
from glassformer.trace.series import names_of
from glassformer.trace.tags import another, tags_of
from glassformer.verbs.forecast import steps_of
from glassformer.verbs.picturing import reads_pictures
from glassformer.verbs.writing.sources import task_prefix

_TEXTS = ("A man is playing guitar on the street.", "2024-03-17", "한 남자가 거리에서 기타를 치고 있다.")
_PROMPTS = ("The capital of France is", "once upon a time", "프랑스의 수도는")
_HIDDEN = ("The capital of France is [MASK].", "the cat [MASK] on the mat.", "프랑스의 수도는 [MASK]이다.")
_OPINIONS = (
    "A wonderful film: warm, funny, and never too long.",
    "정말 재미있는 영화였어요! 배우들의 연기도 훌륭했습니다.",
)
_QUESTION = "What is the tower made of?"
_CONTEXT = "The tower stands by the river. It is made of glass and can be seen from far away."


def example_of(bundle: Bundle) -> Given:
    """An input for this model: its job.json's `example`, else one that its tokenizer knows best."""
    kind = kind_of(bundle)
    told = bundle.files.get(JOB, {}).get("example")
    if isinstance(told, Mapping):
        with suppress(GlassformerError):  # what cannot be read is no reason not to show the model
            return Given.of(told)
    match kind:
        case "translate":
            if bundle.files.get(JOB, {}).get("job") == "restore":
                return Given(text=f"A man is playing {bundle.files[JOB].get('gap', '')} the street.")
            prefix = task_prefix(bundle, lambda name: name.startswith("translation_"))
            text = _spelt(bundle, _TEXTS)
            tags = None if prefix else tags_of(bundle)
            language = "ko" if text == _TEXTS[-1] else "en"
            return Given(text=prefix + text, tag=another(tags, language) if tags else None)
        case "generate":
            return Given(text=_spelt(bundle, _PROMPTS))
        case "fill":
            return Given(text=_spelt(bundle, _HIDDEN))
        case "answer":
            return Given(question=_QUESTION, context=_CONTEXT)
        case "forecast":
            return Given(series=_waves(bundle))
        case "image":
            return Given(image=_drawn(bundle))
        case "embed" if reads_pictures(bundle):
            return Given(image=_drawn(bundle))
    return Given(text=_spelt(bundle, _OPINIONS))


def _spelt(bundle: Bundle, texts: tuple[str, ...]) -> str:
    """The text with the fewest pieces that the tokenizer cannot spell, and then the fewest for its length."""
    tokenizer = bundle.tokenizer
    if tokenizer is None:
        return texts[0]

    def strangeness(text: str) -> tuple[int, float]:
        ids = tokenizer.encode(text, special=False).ids
        return ids.count(-1 if tokenizer.unk_id is None else tokenizer.unk_id), len(ids) / len(text)

    return min(texts, key=strangeness)


def _waves(bundle: Bundle) -> SeriesGiven:
    """A day's wave on a week's in every column, in the units the model learned; the future is held back."""
    read: Any = getattr(bundle.spec, "input", None)
    assert isinstance(read, specs.SeriesPatches)
    names = names_of(bundle) or tuple(f"series {n + 1}" for n in range(read.channels))
    job = bundle.files.get(JOB, {})
    mean, std = job.get("mean") or [0.0] * len(names), job.get("std") or [1.0] * len(names)
    _, horizon = steps_of(bundle)
    steps = range(read.context_length + horizon)
    columns = {
        name: tuple(
            round(mean[n] + std[n] * (math.sin(t * math.pi / 12 + n) + 0.4 * math.sin(t * math.pi / 84)), 4)
            for t in steps
        )
        for n, name in enumerate(names)
    }
    return SeriesGiven(columns=columns, truth=horizon)


def _drawn(bundle: Bundle) -> str | None:
    """A seven drawn in light on dark, as a data: URL; none where no library can draw it."""
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        return None
    read: Any = getattr(bundle.spec, "input", None)
    assert isinstance(read, specs.ImagePatches)
    high, wide = read.image_size
    picture = Image.new("L", (wide, high), 0)
    corners = [(0.28, 0.24), (0.74, 0.24), (0.44, 0.82)]
    line = [(x * wide, y * high) for x, y in corners]
    ImageDraw.Draw(picture).line(line, fill=255, width=max(1, round(min(high, wide) / 11)), joint="curve")
    file = io.BytesIO()
    picture.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
