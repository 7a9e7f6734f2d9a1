"""The explorer's further routes: heads, lens, units, differences, steps, searches, and the films of runs."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query
from fastapi.responses import JSONResponse
from pydantic import Field

from glassformer.interpret.difference import difference_info
from glassformer.interpret.explored import Explored
from glassformer.interpret.film import FRAMES, Films
from glassformer.interpret.heads import heads_info
from glassformer.interpret.kinds import UnknownNameError
from glassformer.interpret.lens import lens_info
from glassformer.interpret.units import unit_info
from glassformer.server.limits import TOKENS
from glassformer.server.schema import Closed, DecodingWords, Id, Language, ModelName, Text
from glassformer.server.tracing import Telling, TraceId, sent

__all__ = ["routes"]

RunId = Annotated[str, Path(max_length=200)]
Place = Annotated[int | None, Query(ge=0, lt=2**31)]


class StepWords(Closed):
    """POST /trace/step: what would come after what was written."""

    model: ModelName
    text: Text
    to: Language | None = None
    written: Annotated[list[Id], Field(max_length=TOKENS)] | None = None
    count: Annotated[int, Field(ge=1, le=1000)] = 50
    settings: DecodingWords | None = None


class SentenceWords(Closed):
    """POST /trace/sentences: a text of which a translator may read one sentence at a time."""

    model: ModelName
    text: Text
    to: Language | None = None


class SearchWords(DecodingWords):
    """POST /trace/search: a search to be shown as a tree."""

    model: ModelName
    text: Text
    to: Language | None = None


def routes(explored: Explored) -> APIRouter:
    """The routes over these models, runs and traces."""
    made = APIRouter(tags=["trace"], route_class=Telling)
    films = Films(explored.store)

    @made.get("/trace/{id}/heads")
    def heads(id: TraceId) -> JSONResponse:
        """What every head seems to do, against chance."""
        return sent(heads_info(explored.trace(id)))

    @made.get("/trace/{id}/lens")
    def lens(
        id: TraceId, position: Place = None, top: Annotated[int, Query(ge=1, le=1000)] = 10
    ) -> JSONResponse:
        """What the head would say after each layer."""
        return sent(lens_info(explored.trace(id), position, top))

    @made.get("/trace/{id}/unit")
    def unit(
        id: TraceId,
        ffn: Annotated[str, Query(max_length=200)],
        unit: Annotated[int, Query(ge=0, lt=2**31)],
        top: Annotated[int, Query(ge=1, le=200)] = 12,
    ) -> JSONResponse:
        """The words that a unit of a feed-forward makes likelier and less likely."""
        return sent(unit_info(explored.trace(id), ffn, unit, top))

    @made.get("/trace/{id}/difference/{other}")
    def difference(id: TraceId, other: TraceId) -> JSONResponse:
        """What changed from one trace to another."""
        return sent(difference_info(explored.trace(id), explored.trace(other)))

    @made.post("/trace/sentences")
    def sentences(words: SentenceWords) -> JSONResponse:
        """What `translate` would read one by one of a text; each may be traced alone."""
        from glassformer.interpret.sentences import sentences_of

        return sent({"sentences": sentences_of(explored.bundle(words.model), words.text, words.to)})

    @made.post("/trace/step")
    def step(words: StepWords) -> JSONResponse:
        """One step of writing."""
        from glassformer.interpret.search import step_info

        settings = words.settings.model_dump(exclude_none=True) if words.settings is not None else {}
        told = step_info(
            explored.bundle(words.model),
            text=words.text,
            written=words.written or (),
            to=words.to,
            count=words.count,
            settings=settings,
        )
        return sent(told)

    @made.post("/trace/search")
    def search(words: SearchWords) -> JSONResponse:
        """A whole search, as a tree."""
        from glassformer.interpret.search import search_info

        asked = words.model_dump(exclude_none=True)
        return sent(search_info(explored.bundle(asked.pop("model")), **asked))

    @made.get("/runs/{id}")
    def run(id: RunId) -> JSONResponse:
        """A run so far: its curves, samples and checkpoints."""
        from glassformer.interpret.film import run_info

        return sent(run_info(_run(explored, id), id=id))

    @made.get("/runs/{id}/film")
    def film(
        id: RunId,
        text: Annotated[str | None, Query(max_length=4000)] = None,
        target: Annotated[str | None, Query(max_length=4000)] = None,
        most: Annotated[int, Query(ge=2, le=FRAMES)] = FRAMES,
    ) -> JSONResponse:
        """One input read with the weights of one step after another."""
        return sent(films.film(_run(explored, id), id=id, text=text, target=target, most=most))

    return made


def _run(explored: Explored, id: str) -> Any:
    if id not in explored.runs:
        known = ", ".join(explored.runs) or "none"
        raise UnknownNameError(f"there is no run '{id[:80]}'; there are: {known}")
    return explored.runs[id]
