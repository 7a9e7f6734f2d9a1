"""Example inputs for every kind of model."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence
from typing import Any

from glassformer.bundle import Bundle
from glassformer.interpret.inputs import column_names
from glassformer.interpret.outline import model_kind
from glassformer.interpret.schema import SeriesColumns, TraceInput
from glassformer.processors.image import reads_images
from glassformer.processors.series import reads_series
from glassformer.tasks.text_generation import target_languages, task_prefix

_TEXTS = ("A man is playing guitar on the street.", "2024-03-17", "한 남자가 거리에서 기타를 치고 있다.")
_PROMPTS = ("The capital of France is", "once upon a time", "프랑스의 수도는")
_SENTENCES = (  # for multilingual models: source language, target language, text
    # "it" refers to the animal or to the street, which differ in French: "il" or "elle"
    ("en", "fr", "The animal did not cross the street because it was too tired."),
    ("en", "fr", "The animal did not cross the street because it was too wide."),
    ("en", "ko", "Where is the nearest station?"),
    ("en", "de", "She opened the window because it was too hot."),
    ("de", "en", "Der alte Mann liest jeden Morgen die Zeitung."),
    ("fr", "en", "Je voudrais apprendre comment cela marche."),
    ("ko", "en", "나는 어제 친구와 함께 영화를 봤다."),
)
_STARTS = (
    "Once upon a time there was a small house",
    "The most important thing about water is that",
    "In the morning she opened the door and",
)
_MASKED = ("The capital of France is [MASK].", "the cat [MASK] on the mat.", "프랑스의 수도는 [MASK]이다.")
_REVIEWS = (
    "A wonderful film: warm, funny, and never too long.",
    "정말 재미있는 영화였어요! 배우들의 연기도 훌륭했습니다.",
)
_MAX_FRAGMENTATION = 1.25  # maximum tokens per character of another prompt, relative to the first example
_QUESTION = "What is the tower made of?"
_CONTEXT = "The tower stands by the river. It is made of glass and can be seen from far away."


def example_input(bundle: Bundle) -> TraceInput:
    """Return an example input: the `example` in job.json, else a text that suits the tokenizer."""
    if bundle.job.example is not None:
        return TraceInput.from_json(bundle.job.example)
    match model_kind(bundle):
        case "translate":
            if bundle.job.name == "restore":
                return TraceInput(text=f"A man is playing {bundle.job.gap or ''} the street.")
            prefix = task_prefix(bundle, lambda name: name.startswith("translation_"))
            text = _best_encoded(bundle, _TEXTS)
            tags = [] if prefix else target_languages(bundle)
            own = "ko" if text == _TEXTS[-1] else "en"
            others = [tag for tag in tags if not tag.startswith(own)]
            return TraceInput(text=prefix + text, to=next(iter(others or tags), None))
        case "generate":
            return TraceInput(text=_best_encoded(bundle, _PROMPTS))
        case "fill":
            return TraceInput(text=_best_encoded(bundle, _MASKED))
        case "answer":
            return TraceInput(question=_QUESTION, context=_CONTEXT)
        case "similarity":
            return _shapes(bundle)[0]
        case "detect":
            return TraceInput(image=_scene())
        case "segment":
            return TraceInput(image=_scene(), points=((84.0, 92.0),))
    if reads_series(bundle):
        return TraceInput(series=_waves(bundle))
    if reads_images(bundle):
        return TraceInput(image=_drawing(bundle))
    return TraceInput(text=_best_encoded(bundle, _REVIEWS))


def example_inputs(bundle: Bundle) -> list[TraceInput]:
    """Return example inputs, the default first: sentences for each language of a translator, or prompts."""
    first = example_input(bundle)
    if first.text is None:
        return [first]
    others: Iterable[TraceInput] = ()
    match model_kind(bundle):
        case "translate":
            others = _translations(target_languages(bundle))
        case "similarity":
            others = _shapes(bundle)
        case "generate":
            unknown, fragmentation = _encoding_cost(bundle, first.text)
            limit = (unknown, fragmentation * _MAX_FRAGMENTATION)
            others = [TraceInput(text=text) for text in _STARTS if _encoding_cost(bundle, text) <= limit]
    return [first, *(example for example in others if example.text != first.text)]


def split_language_tag(bundle: Bundle, text: str) -> tuple[str, str | None]:
    """Split off the leading language tag (`>>de<< ...`, as in a run's samples); return text and language."""
    mark, end, rest = text.partition("<<")
    tag = mark.removeprefix(">>")
    if end and tag != mark and tag in target_languages(bundle):
        return rest.removeprefix(" "), tag
    return text, None


def _translations(tags: Sequence[str]) -> list[TraceInput]:
    """Return the example sentences in languages that the model supports."""
    return [TraceInput(text=text, to=to) for source, to, text in _SENTENCES if {source, to} <= set(tags)]


def _best_encoded(bundle: Bundle, texts: tuple[str, ...]) -> str:
    return min(texts, key=lambda text: _encoding_cost(bundle, text))


def _encoding_cost(bundle: Bundle, text: str) -> tuple[int, float]:
    """Return the number of unknown tokens, and the tokens per character."""
    if bundle.tokenizer is None:
        return 0, 0.0
    ids = bundle.tokenizer.encode(text, special=False).ids
    return sum(index == bundle.tokenizer.unk_id for index in ids), len(ids) / max(len(text), 1)


def _waves(bundle: Bundle) -> SeriesColumns:
    """Create daily plus weekly sine waves in the units of each column; the last steps are held out."""
    read: Any = getattr(bundle.spec, "input", None)
    names, job = column_names(bundle), bundle.job
    mean, std = job.mean or [0.0] * len(names), job.std or [1.0] * len(names)
    horizon = getattr(bundle.spec.head, "prediction_length", 0)
    steps = range(read.context_length + horizon)
    columns = {
        name: tuple(
            round(mean[n] + std[n] * (math.sin(t * math.pi / 12 + n) + 0.4 * math.sin(t * math.pi / 84)), 4)
            for t in steps
        )
        for n, name in enumerate(names)
    }
    return SeriesColumns(columns=columns, holdout=horizon)


def _shapes(bundle: Bundle) -> list[TraceInput]:
    """Draw three shapes; return each with a text that describes it."""
    from PIL import Image, ImageDraw

    side, inputs = 96, []
    for color, name in (("red", "circle"), ("blue", "square"), ("green", "triangle")):
        image = Image.new("RGB", (side, side), "white")
        draw, box = ImageDraw.Draw(image), (side // 5, side // 5, side * 4 // 5, side * 4 // 5)
        match name:
            case "circle":
                draw.ellipse(box, fill=color)
            case "square":
                draw.rectangle(box, fill=color)
            case _:
                draw.polygon([(side // 2, box[1]), (box[0], box[3]), (box[2], box[3])], fill=color)
        inputs.append(TraceInput(image=_data_url(image), text=f"a {color} {name}"))
    return inputs


def _scene() -> str:
    """Draw a circle, a square and a triangle into one image; return it as a data: URL."""
    from PIL import Image, ImageDraw

    image = Image.new("RGB", (320, 240), "#dfe7ef")
    draw = ImageDraw.Draw(image)
    draw.ellipse((32, 40, 136, 144), fill="#d7263d")
    draw.rectangle((180, 30, 290, 120), fill="#1b7fbd")
    draw.polygon([(210, 140), (140, 226), (286, 226)], fill="#2e933c")
    return _data_url(image)


def _data_url(image: Any) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _drawing(bundle: Bundle) -> str:
    """Draw a light seven on a dark background; return it as a data: URL."""
    from PIL import Image, ImageDraw

    read: Any = getattr(bundle.spec, "input", None)
    height, width = read.image_size
    image = Image.new("L", (width, height), 0)
    line = [(x * width, y * height) for x, y in ((0.28, 0.24), (0.74, 0.24), (0.44, 0.82))]
    ImageDraw.Draw(image).line(line, fill=255, width=max(1, round(min(height, width) / 11)), joint="curve")
    return _data_url(image)
