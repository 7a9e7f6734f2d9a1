"""The explorer's routes: models, traces, and any tensor of a trace as raw bytes."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import Field

from glassformer.errors import GlassformerError
from glassformer.interpret.changes import MOST as MOST_CHANGES
from glassformer.interpret.explored import Explored
from glassformer.interpret.kinds import TooLargeError, UnknownNameError, as_json
from glassformer.interpret.tensors import cut
from glassformer.server.answers import NotFound, TooLarge
from glassformer.server.limits import COLUMNS, IDS, IMAGE_LETTERS, STEPS
from glassformer.server.schema import Closed, Id, Language, ModelName, Text

__all__ = ["Explored", "Telling", "TraceWords", "routes", "sent"]

TraceId = Annotated[str, Path(max_length=64)]
Name = Annotated[str, Field(max_length=200)]
Place = Annotated[int, Field(ge=0, lt=2**31)]


class SeriesWords(Closed):
    """Columns of numbers; the last `truth` of each are held back."""

    columns: Annotated[
        dict[str, Annotated[list[float], Field(max_length=STEPS)]], Field(min_length=1, max_length=COLUMNS)
    ]
    truth: Annotated[int, Field(ge=0, le=STEPS)] | None = None


class HeadOff(Closed):
    """A head whose output becomes zero."""

    kind: Literal["head_off"]
    attention: Name
    head: Place


class LayerOff(Closed):
    """A layer that is passed by."""

    kind: Literal["layer_off"]
    block: Name


class MaskToken(Closed):
    """A place that nobody may look at."""

    kind: Literal["mask_token"]
    sequence: Name
    position: Place


class Swap(Closed):
    """Two places that change their tokens."""

    kind: Literal["swap"]
    sequence: Name
    positions: Annotated[list[Place], Field(min_length=2, max_length=2)]


class Residual(Closed):
    """A vector of the residual stream that is multiplied."""

    kind: Literal["residual"]
    name: Name
    position: Place
    scale: float


class Positions(Closed):
    """Where each token stands is multiplied."""

    kind: Literal["positions"]
    stack: Name
    stretch: float


Change = Annotated[HeadOff | LayerOff | MaskToken | Swap | Residual | Positions, Field(discriminator="kind")]


class InputWords(Closed):
    """What a trace is of; which words count is a matter of the model."""

    text: Text | None = None
    target: Text | Annotated[list[Id], Field(max_length=IDS)] | None = None
    image: Annotated[str, Field(max_length=IMAGE_LETTERS)] | None = None
    series: SeriesWords | None = None
    to: Language | None = None
    question: Text | None = None
    context: Text | None = None


class TraceWords(InputWords):
    """POST /trace."""

    model: ModelName
    changes: Annotated[list[Change], Field(max_length=MOST_CHANGES)] | None = None


class Telling(APIRoute):
    """A route on which what is not there is 404, and what is too large to send is 413."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def told(request: Request) -> Response:
            try:
                return await inner(request)
            except UnknownNameError as error:
                raise NotFound(str(error)) from None
            except TooLargeError as error:
                raise TooLarge(str(error)) from None

        return told


def sent(told: Any) -> JSONResponse:
    """An answer as JSON, in which a number that is none, as an overflowing model gives, is null."""
    return JSONResponse(as_json(told))


def routes(explored: Explored) -> APIRouter:
    """The routes over these models, runs and traces."""
    made = APIRouter(tags=["trace"], route_class=Telling)

    @made.get("/models")
    def models() -> JSONResponse:
        """Every model and every run that can be looked into."""
        return sent({"models": explored.models(), "runs": _runs(explored)})

    @made.post("/trace")
    def take(words: TraceWords) -> JSONResponse:
        """Read an input once and keep what was seen; the same question is answered from what is kept."""
        return JSONResponse(explored.take(words.model_dump(exclude_none=True)).info())

    @made.get("/trace/{id}")
    def trace(id: TraceId) -> JSONResponse:
        """A trace that was taken."""
        return JSONResponse(explored.trace(id).info())

    @made.get("/trace/{id}/tensor", response_class=Response)
    def tensor(
        id: TraceId,
        name: Annotated[str, Query(max_length=200)],
        slices: Annotated[str, Query(alias="slice", max_length=200)] = "",
        pool: Annotated[int | None, Query(ge=1, le=4096)] = None,
        minus: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:
        """A part of a tensor, little-endian and row by row; its shape and kind are in the headers."""
        other = None if minus is None else explored.trace(minus)
        found = cut(explored.trace(id), name, slices, pool=pool, minus=other)
        headers = {"X-Shape": ",".join(map(str, found.shape)), "X-Dtype": found.dtype}
        return Response(found.data(), media_type="application/octet-stream", headers=headers)

    @made.get("/trace/{id}/next")
    def following(
        id: TraceId,
        position: Annotated[int | None, Query(ge=0, lt=2**31)] = None,
        count: Annotated[int, Query(ge=1, le=1000)] = 50,
    ) -> JSONResponse:
        """What the model would put next at a place, likeliest first."""
        from glassformer.interpret.lens import next_info

        return sent(next_info(explored.trace(id), position, count))

    return made


def _runs(explored: Explored) -> list[dict[str, Any]]:
    """Every run in short; a folder that is gone, or that training has not filled yet, is left out."""
    if not explored.runs:
        return []
    from glassformer.interpret.film import run_info

    found = []
    for id, folder in explored.runs.items():
        with suppress(GlassformerError):
            found.append(run_info(folder, id=id, curves=False))
    return found
