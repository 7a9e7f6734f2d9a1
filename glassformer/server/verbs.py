"""The library's own verbs over HTTP: /translate, /classify and /forecast."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections import Counter
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.written import Written
from glassformer.server.answers import Refused, TooLarge
from glassformer.server.limits import PIECES
from glassformer.server.metrics import Metrics
from glassformer.server.models import Models, Served, rewrites, translates
from glassformer.server.passage import KEY, Client
from glassformer.server.schema import Classify, Forecast, Translate
from glassformer.tasks.classify import classify as classified
from glassformer.tasks.classify import labels_of
from glassformer.tasks.forecast import forecast as forecasted
from glassformer.tasks.forecast import steps_of
from glassformer.tasks.picturing import reads_pictures
from glassformer.tasks.unlike import Unlike, unlike_told
from glassformer.tasks.writing.batches import Plan
from glassformer.tasks.writing.pieces import Layout, Place
from glassformer.tasks.writing.rewriting import translating

STAMPS = "ds"


def routes(models: Models, metrics: Metrics) -> APIRouter:
    """The routes of the verbs."""
    router = APIRouter(tags=["verbs"])

    @router.post("/translate")
    async def translate(asked: Translate, request: Request) -> dict[str, Any]:
        """Translate a text or several; lines stay lines."""
        served = models.asked(asked.model, translates(asked.to), rewrites)
        texts = _texts(asked.text, asked.texts)
        plan, layouts = await asyncio.to_thread(_planned, served, asked, texts)
        found, read = await _written(served, plan, layouts, request.scope[KEY])
        metrics.tokens(served.id, read=read, written=sum(len(one.ids) for row in found for one in row))
        return {
            "model": served.id,
            "translations": [
                {
                    "text": plan.compose(layout, [one.ids for one in row]),
                    "score": sum(one.score for one in row),
                    "tokens": sum(len(one.ids) for one in row),
                    "ended": _ended(row),
                    "doubts": list(plan.doubts(layout)),
                }
                for layout, row in zip(layouts, found, strict=True)
            ],
        }

    @router.post("/classify")
    async def classify(asked: Classify, request: Request) -> dict[str, Any]:
        """Tell the labels of texts or images, the likeliest first."""
        served = models.asked(asked.model, _tells(pictures=asked.images is not None))
        if (asked.texts is None) == (asked.images is None):
            raise Refused("give texts or images, one of them", param="texts")
        pictures = reads_pictures(served.bundle)
        if pictures != (asked.images is not None):
            wanted = "images" if pictures else "texts"
            raise Refused(f"{served.id} reads {wanted}; give those", param=wanted)
        inputs: Any = asked.texts
        if asked.images is not None:
            inputs = [_picture(number, image) for number, image in enumerate(asked.images, 1)]

        def work(bundle: Bundle) -> dict[str, Any]:
            return _classified(bundle, inputs, asked)

        return {"model": served.id, **await served.read(request.scope[KEY], work)}

    @router.post("/forecast")
    async def forecast(asked: Forecast, request: Request) -> dict[str, Any]:
        """Tell how series go on."""
        served = models.asked(asked.model, _fits(lambda bundle: steps_of(bundle) is not None))

        def work(bundle: Bundle) -> dict[str, Any]:
            return _forecast(bundle, asked)

        return {"model": served.id, **await served.read(request.scope[KEY], work)}

    return router


def _fits(test: Callable[[Bundle], bool]) -> Callable[[Bundle], bool]:
    def fits(bundle: Bundle) -> bool:
        try:
            return test(bundle)
        except GlassformerError:
            return False

    return fits


def _tells(*, pictures: bool) -> Callable[[Bundle], bool]:
    def test(bundle: Bundle) -> bool:
        head: Any = getattr(bundle.spec, "head", None)
        labels_of(bundle, getattr(head, "num_labels", 0))
        return hasattr(head, "num_labels") and reads_pictures(bundle) == pictures

    return _fits(test)


def _texts(text: str | None, texts: list[str] | None) -> list[str]:
    if (text is None) == (texts is None):
        raise Refused("give text or texts, one of them", param="text")
    return [text] if text is not None else texts or []


def _planned(served: Served, asked: Translate, texts: list[str]) -> tuple[Plan, list[Layout]]:
    settings = {**asked.settings(), "num_return_sequences": 1}
    if isinstance(settings.get("stop"), list):
        settings["stop"] = tuple(settings["stop"])
    plan = translating(served.bundle, settings, to=asked.to, prefix=asked.prefix, split=asked.split)
    return plan, list(plan.layouts(texts))


async def _written(
    served: Served, plan: Plan, layouts: list[Layout], client: Client
) -> tuple[list[list[Written]], int]:
    """For each text what was written for its pieces, and how many tokens were read."""
    places = [[part.ids for part in layout if isinstance(part, Place)] for layout in layouts]
    if served.writing is None:
        raise Refused(f"{served.id} has no tokenizer to write with", param="model")
    pieces = [ids for row in places for ids in row]
    if len(pieces) > PIECES:
        raise TooLarge(f"the texts come to {len(pieces):,} sentences, and {PIECES:,} are taken at once")
    answers = iter(await served.writing.all(plan, pieces, client))
    found = [[next(answers)[0] for _ in row] for row in places]
    return found, sum(len(ids) for row in places for ids in row)


def _ended(row: list[Written]) -> str:
    """How a text ended: as the least complete of its pieces."""
    endings = {one.ended for one in row}
    return next((end for end in ("length", "stop") if end in endings), "end")


def _picture(number: int, image: str) -> bytes:
    """The bytes of a picture from a data: URL, or from base64 alone."""
    head, comma, rest = image.partition(",")
    if comma and not (head.startswith("data:image/") and head.endswith(";base64")):
        raise Refused(f"image {number} must be base64, or a data:image/png;base64,... URL", param="images")
    try:
        return base64.b64decode(rest if comma else image, validate=True)
    except (binascii.Error, ValueError):
        raise Refused(f"image {number} is not base64", param="images") from None


def _classified(bundle: Bundle, inputs: Any, asked: Classify) -> dict[str, Any]:
    """The labels of each input, and in what pictures are unlike those that the model has learnt."""
    heard: Counter[Unlike] = Counter()
    found = classified(
        bundle, inputs, top=asked.top, truncate=asked.truncate, hear=lambda what: heard.update([what])
    )
    results = [[{"label": one.label, "score": one.score} for one in labels] for labels in found]
    return {"results": results, "notes": [unlike_told(bundle, what, n) for what, n in heard.items()]}


def _forecast(bundle: Bundle, asked: Forecast) -> dict[str, Any]:
    length = len(next(iter(asked.series.columns.values())))
    stamps: Any = range(length) if asked.series.ds is None else asked.series.ds
    columns: dict[str, Any] = {STAMPS: stamps, **asked.series.columns}
    words: dict[str, Any] = {} if asked.levels is None else {"levels": sorted(asked.levels)}
    names = list(asked.series.columns) if bundle.job.columns is None else None
    told = forecasted(bundle, columns, time=STAMPS, columns=names, fill=asked.fill, **words)
    steps = told.values.shape[1]
    return {
        "columns": list(told.names),
        "stamps": [told.when(0, step) for step in range(steps)],
        "values": {name: told.values[0, :, n].tolist() for n, name in enumerate(told.names)},
        "quantiles": {
            name: {f"{level:g}": told.quantiles[q, 0, :, n].tolist() for q, level in enumerate(told.levels)}
            for n, name in enumerate(told.names)
        }
        if told.levels
        else None,
        "notes": list(told.notes),
    }
