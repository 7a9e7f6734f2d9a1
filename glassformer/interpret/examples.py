"""An input to begin with, for every kind of model: something that it can read and that shows what it does."""

from __future__ import annotations

import base64
import io
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import Given, SeriesGiven
from glassformer.interpret.outline import kind_of
from glassformer.interpret.series import names_of
from glassformer.interpret.tags import another
from glassformer.tasks.forecast import steps_of
from glassformer.tasks.picturing import reads_pictures
from glassformer.tasks.writing.languages import tags_of
from glassformer.tasks.writing.sources import task_prefix

_TEXTS = ("A man is playing guitar on the street.", "2024-03-17", "한 남자가 거리에서 기타를 치고 있다.")
_PROMPTS = ("The capital of France is", "once upon a time", "프랑스의 수도는")
_SENTENCES = (  # for a model of several languages, in each of them
    ("en", "Where is the nearest station?"),
    ("en", "She opened the window because it was too hot."),
    ("de", "Der alte Mann liest jeden Morgen die Zeitung."),
    ("fr", "Je voudrais apprendre comment cela marche."),
    ("ko", "나는 어제 친구와 함께 영화를 봤다."),
)
_STARTS = (
    "Once upon a time there was a small house",
    "The most important thing about water is that",
    "In the morning she opened the door and",
)
_HIDDEN = ("The capital of France is [MASK].", "the cat [MASK] on the mat.", "프랑스의 수도는 [MASK]이다.")
_OPINIONS = (
    "A wonderful film: warm, funny, and never too long.",
    "정말 재미있는 영화였어요! 배우들의 연기도 훌륭했습니다.",
)
STRANGER = 1.25  # how many more pieces a letter a further prompt may take than the example
_QUESTION = "What is the tower made of?"
_CONTEXT = "The tower stands by the river. It is made of glass and can be seen from far away."


def example_of(bundle: Bundle) -> Given:
    """An input for this model: its job.json's `example`, else one that its tokenizer knows best."""
    kind = kind_of(bundle)
    told = bundle.job.example
    if isinstance(told, Mapping):
        with suppress(GlassformerError):  # what cannot be read is no reason not to show the model
            return Given.of(told)
    match kind:
        case "translate":
            if bundle.job.name == "restore":
                return Given(text=f"A man is playing {bundle.job.gap or ''} the street.")
            prefix = task_prefix(bundle, lambda name: name.startswith("translation_"))
            text = _spelt(bundle, _TEXTS)
            tags = None if prefix else tags_of(bundle)
            language = "ko" if text == _TEXTS[-1] else "en"
            return Given(text=prefix + text, to=another(tags, language) if tags else None)
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


def examples_of(bundle: Bundle) -> list[Given]:
    """Inputs to choose from, the example first: sentences of each language of a translator, prompts."""
    first = example_of(bundle)
    if first.text is None:
        return [first]
    match kind_of(bundle):
        case "translate":
            tags = tags_of(bundle)
            return [first, *(one for one in _translations(tags) if one.text != first.text)]
        case "generate":
            known, pieces = _strangeness(bundle, first.text)
            most = (known, pieces * STRANGER)
            starts = (text for text in _STARTS if text != first.text and _strangeness(bundle, text) <= most)
            return [first, *(Given(text=text) for text in starts)]
    return [first]


def _translations(tags: Sequence[str]) -> Iterator[Given]:
    """Each sentence into another of the languages; from English each time into the next one."""
    others = itertools.cycle([tag for tag in tags if tag != "en"] or [""])
    for language, text in _SENTENCES:
        if language in tags and "en" in tags:
            yield Given(text=text, to=next(others) if language == "en" else "en")


def _spelt(bundle: Bundle, texts: tuple[str, ...]) -> str:
    """The text with the fewest pieces that the tokenizer cannot spell, and then the fewest for its length."""
    return min(texts, key=lambda text: _strangeness(bundle, text))


def _strangeness(bundle: Bundle, text: str) -> tuple[int, float]:
    """How many pieces of a text the tokenizer cannot spell, and how many pieces a letter it takes."""
    tokenizer = bundle.tokenizer
    if tokenizer is None or not text:
        return 0, 0.0
    ids = tokenizer.encode(text, special=False).ids
    return ids.count(-1 if tokenizer.unk_id is None else tokenizer.unk_id), len(ids) / len(text)


def _waves(bundle: Bundle) -> SeriesGiven:
    """A day's wave on a week's in every column, in the units the model learned; the future is held back."""
    read: Any = getattr(bundle.spec, "input", None)
    assert isinstance(read, specs.SeriesPatches)
    names = names_of(bundle) or tuple(f"series {n + 1}" for n in range(read.channels))
    job = bundle.job
    mean, std = job.mean or [0.0] * len(names), job.std or [1.0] * len(names)
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
