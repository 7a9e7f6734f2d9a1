"""Routes of the explorer: its page, models and runs, traces, and any tensor of a trace as raw bytes."""

from __future__ import annotations

from typing import Annotated, Any, Union, get_args

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.staticfiles import StaticFiles

from glassformer.errors import GlassformerError
from glassformer.explorer import FOLDER, page_files
from glassformer.explorer.stories import stories_of
from glassformer.interpret import schema
from glassformer.interpret.catalog import Catalog
from glassformer.interpret.comparison import compare_traces
from glassformer.interpret.head_ablation import ablate_heads
from glassformer.interpret.head_patterns import describe_heads, rank_links
from glassformer.interpret.logit_attribution import attribute_logit
from glassformer.interpret.logit_lens import logit_lens, next_tokens, unit_tokens
from glassformer.interpret.runs import MAX_SNAPSHOTS, SnapshotViewer, describe_run
from glassformer.interpret.search_view import next_step, search_tree
from glassformer.interpret.similarity import compare_images_texts
from glassformer.interpret.tensors import read_tensor
from glassformer.interpret.token_flow import token_flow
from glassformer.interpret.views import view_of
from glassformer.interpret.views.drawing import MAX_FRAMES, MAX_STEPS
from glassformer.server import schema as http
from glassformer.server.errors import UnavailableError
from glassformer.server.schema import Language, ModelName, RequestModel, Text, TokenId
from glassformer.server.task_schema import generation_parameters

GenerationParameters: Any = generation_parameters()
NOT_BUILT = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Glassformer</title>
<p>This installation of Glassformer does not include the explorer page.
The <a href="docs">HTTP API</a> works.</p></html>
"""

TraceId = Annotated[str, Path(max_length=64)]
RunId = Annotated[str, Path(max_length=200)]
Position = Annotated[int | None, Query(ge=0, lt=2**31)]
ImageData = Annotated[str, Field(max_length=http.MAX_IMAGE)]
Name = Annotated[str, Query(max_length=200)]
Count = Annotated[int, Query(ge=1, le=1000)]


class TraceSeries(RequestModel):
    """Columns of numbers; the last `holdout` values of each are hidden from the model."""

    columns: Annotated[
        dict[str, Annotated[list[float], Field(max_length=http.MAX_STEPS)]],
        Field(min_length=1, max_length=http.MAX_COLUMNS),
    ]
    holdout: Annotated[int, Field(ge=0, le=http.MAX_STEPS)] | None = None


class TraceInputValues(RequestModel):
    """An input; which keys are used depends on the model."""

    model_config = ConfigDict(strict=False)  # JSON has no tuples

    text: Text | None = None
    target: Text | Annotated[list[TokenId], Field(max_length=http.MAX_IDS)] | None = None
    image: ImageData | None = None
    series: TraceSeries | None = None
    to: Language | None = None
    question: Text | None = None
    context: Text | None = None
    points: Annotated[list[http.PointXY], Field(max_length=64)] | None = None
    background_points: Annotated[list[http.PointXY], Field(max_length=64)] | None = None
    box: http.BoxXYXY | None = None
    seed: Annotated[int, Field(ge=0, lt=2**53)] | None = None
    num_inference_steps: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = None
    guidance_scale: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    num_frames: Annotated[int, Field(ge=1, le=MAX_FRAMES)] | None = None
    temperature: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    start_step: Annotated[int, Field(ge=0, lt=10_000)] | None = None

    def input(self) -> schema.TraceInput:
        values = self.model_dump(include={*TraceInputValues.model_fields}, exclude_none=True)
        return schema.TraceInput.from_json(values)


class PatchRequest(schema.PatchActivation):
    """Activation patching with a source that has the limits of any input."""

    source: Annotated[TraceInputValues, AfterValidator(TraceInputValues.input)]  # type: ignore[assignment]


Intervention: Any = Union[  # noqa: UP007
    tuple(PatchRequest if one is schema.PatchActivation else one for one in get_args(schema.Intervention))
]


class TraceRequest(TraceInputValues):
    """POST /trace: an input and interventions."""

    model: ModelName
    interventions: Annotated[
        list[Annotated[Intervention, Field(discriminator="kind")]],
        Field(max_length=schema.MAX_INTERVENTIONS),
    ] = Field(default_factory=list)


class SentencesRequest(RequestModel):
    model: ModelName
    text: Text
    to: Language | None = None


class StepRequest(RequestModel):
    """POST /trace/step: the candidates for the token after `generated_ids`, for a text or an image."""

    model: ModelName
    text: Text | None = None
    image: ImageData | None = None
    to: Language | None = None
    generated_ids: Annotated[list[TokenId], Field(max_length=http.MAX_IDS)] | None = None
    top: Annotated[int, Field(ge=1, le=1000)] = 50
    parameters: GenerationParameters | None = None


class SimilarityRequest(RequestModel):
    """POST /trace/similarity: images and texts to compare, each with each."""

    model: ModelName
    images: Annotated[list[ImageData], Field(min_length=1, max_length=32)]
    texts: Annotated[list[Text], Field(min_length=1, max_length=64)]


class SearchRequest(GenerationParameters):
    """POST /trace/search: a beam search to show as a tree, for a text or an image."""

    model: ModelName
    text: Text | None = None
    image: ImageData | None = None
    to: Language | None = None


class ModelsResponse(BaseModel):
    models: list[schema.ModelInfo]
    runs: list[schema.RunInfo]
    stories: list[schema.StoryInfo]


class SentencesResponse(BaseModel):
    sentences: list[str]


def trace_router(catalog: Catalog) -> APIRouter:
    router = APIRouter(tags=["trace"])
    viewer = SnapshotViewer(catalog.store)

    @router.get("/models", response_model=ModelsResponse)
    def models() -> JSONResponse:
        """List the models and training runs, and what is worth seeing in the shipped models."""
        stories = stories_of(catalog.bundles)
        return _json({"models": catalog.models(), "runs": catalog.runs(), "stories": stories})

    @router.post("/trace", response_model=schema.TraceInfo)
    def trace(body: TraceRequest) -> JSONResponse:
        """Run a model on an input and record every tensor; a repeated request is answered from the store."""
        return _json(catalog.take(body.model, body.input(), body.interventions).info())

    @router.get("/trace/{id}", response_model=schema.TraceInfo)
    def get_trace(id: TraceId) -> JSONResponse:
        """Return a stored trace."""
        return _json(catalog.store.get(id).info())

    @router.get("/trace/{id}/tensor", response_class=Response)
    def tensor(
        id: TraceId,
        name: Name,
        slices: Annotated[str, Query(alias="slice", max_length=200)] = "",
        pool: Annotated[int | None, Query(ge=1, le=4096)] = None,
        minus: Annotated[str | None, Query(max_length=64)] = None,
    ) -> Response:
        """Return a slice of a tensor, little-endian and row-major; the headers have its shape and dtype."""
        trace, other = catalog.store.get(id), None if minus is None else catalog.store.get(minus)
        part = read_tensor(trace, name, slices, pool=pool, minus=other)
        for read in filter(None, (trace, other)):
            catalog.store.measure(read)
        headers = {"X-Shape": ",".join(map(str, part.shape)), "X-Dtype": part.dtype}
        return Response(part.data(), media_type="application/octet-stream", headers=headers)

    @router.get("/trace/{id}/next", response_model=schema.NextTokenInfo)
    def next_predictions(id: TraceId, position: Position = None, top: Count = 50) -> JSONResponse:
        """Return the most likely next tokens at a position."""
        return _json(next_tokens(catalog.store.get(id), position, top))

    @router.get("/trace/{id}/heads", response_model=schema.HeadsInfo)
    def heads(id: TraceId) -> JSONResponse:
        """Return the attention pattern and role of every head, compared with chance."""
        return _json(describe_heads(catalog.store.get(id)))

    @router.get("/trace/{id}/ablation", response_model=schema.HeadAblation)
    def ablation(
        id: TraceId,
        attention: Name,
        mode: schema.AblationMode = "zero",
        metric: schema.AblationMetric = "kl",
        at: Position = None,
        position: Position = None,
        token: Position = None,
        reference: Annotated[str | None, Query(max_length=64)] = None,
    ) -> JSONResponse:
        """Head ablation: measure the effect of replacing the output of each head of an attention layer."""
        other = None if reference is None else catalog.store.get(reference)
        return _json(
            ablate_heads(
                catalog.store.get(id),
                attention,
                mode=mode,
                metric=metric,
                at=at,
                position=position,
                id=token,
                reference=other,
            )
        )

    @router.get("/trace/{id}/links", response_model=schema.LinksInfo)
    def links(
        id: TraceId,
        queries: Name,
        query: Annotated[int, Query(ge=0, lt=2**31)],
        keys: Name,
        key: Annotated[int, Query(ge=0, lt=2**31)],
    ) -> JSONResponse:
        """Rank all heads by the weight with which they attend from one token to another."""
        return _json(rank_links(catalog.store.get(id), queries, query, keys, key))

    @router.get("/trace/{id}/logit_attribution", response_model=schema.LogitAttribution)
    def logit_attribution(
        id: TraceId, position: Position = None, token: Position = None, against: Position = None
    ) -> JSONResponse:
        """Direct logit attribution: what each head and feed-forward layer adds to a logit."""
        return _json(attribute_logit(catalog.store.get(id), position, token, against=against))

    @router.get("/trace/{id}/patching/{other}", response_model=schema.PatchingSetup)
    def patching(id: TraceId, other: TraceId) -> JSONResponse:
        """Activation patching: compare the outputs of a clean and a corrupted input."""
        return _json(catalog.patching(id, other).setup())

    @router.get("/trace/{id}/patching/{other}/site", response_model=schema.PatchedSite)
    def patched_site(id: TraceId, other: TraceId, name: Name) -> JSONResponse:
        """Activation patching: patch each token or head of one tensor of the clean input."""
        return _json(catalog.patching(id, other).patch(name))

    @router.get("/models/{model}/corpus", response_model=schema.CorpusInfo)
    def corpus(model: RunId, count: Annotated[int, Query(ge=1, le=1000)]) -> JSONResponse:
        """Return the patterns of all heads, averaged over the first sentences of a small corpus."""
        if (info := catalog.corpus(model, count)) is None:
            raise UnavailableError(f"the model {model!r} is busy with its corpus; try again later")
        return _json(info)

    @router.get("/trace/{id}/logit_lens", response_model=schema.LensInfo)
    def lens(id: TraceId, position: Position = None, top: Count = 10) -> JSONResponse:
        """Logit lens: return the predictions of the output head after each layer."""
        return _json(logit_lens(catalog.store.get(id), position, top))

    @router.get("/trace/{id}/flow", response_model=schema.TokenFlow)
    def flow(
        id: TraceId,
        sequence: Annotated[str | None, Query(max_length=64)] = None,
        position: Position = None,
        row: Annotated[int, Query(ge=0, lt=2**31)] = 0,
    ) -> JSONResponse:
        """Follow a token: its residual vector after every sum, what was added, and what the head reads."""
        return _json(token_flow(catalog.store.get(id), sequence, position, row))

    @router.get("/trace/{id}/unit", response_model=schema.FeedForwardUnitInfo)
    def unit(
        id: TraceId,
        ffn: Name,
        unit: Annotated[int, Query(ge=0, lt=2**31)],
        top: Annotated[int, Query(ge=1, le=200)] = 12,
    ) -> JSONResponse:
        """Return the tokens that a feed-forward unit promotes and suppresses."""
        return _json(unit_tokens(catalog.store.get(id), ffn, unit, top))

    @router.get("/trace/{id}/difference/{other}", response_model=schema.DifferenceInfo)
    def difference(id: TraceId, other: TraceId) -> JSONResponse:
        """Compare two traces: outcome, predictions and residual stream."""
        return _json(compare_traces(catalog.store.get(id), catalog.store.get(other)))

    @router.post("/trace/sentences", response_model=SentencesResponse)
    def sentences(body: SentencesRequest) -> JSONResponse:
        """Split a text into the sentences that `translate` translates one by one."""
        bundle = catalog.bundle(body.model)
        return _json({"sentences": view_of(bundle).split(body.text, body.to)})

    @router.post("/trace/step", response_model=schema.StepInfo)
    def step(body: StepRequest) -> JSONResponse:
        """Return the candidates of one generation step."""
        parameters = body.parameters or GenerationParameters()
        return _json(
            next_step(
                catalog.bundle(body.model),
                text=body.text,
                image=body.image,
                to=body.to,
                generated_ids=body.generated_ids or (),
                top=body.top,
                parameters=parameters.generation_options(),
            )
        )

    @router.post("/trace/similarity", response_model=schema.SimilarityInfo)
    def similarity(body: SimilarityRequest) -> JSONResponse:
        """Compare images with texts, with a model that has an image and a text tower."""
        return _json(compare_images_texts(catalog.bundle(body.model), body.images, body.texts))

    @router.post("/trace/search", response_model=schema.SearchInfo)
    def search(body: SearchRequest) -> JSONResponse:
        """Run a beam search and return it as a tree."""
        bundle = catalog.bundle(body.model)
        options = body.generation_options()
        return _json(search_tree(bundle, text=body.text, image=body.image, to=body.to, **options))

    @router.get("/runs/{id}", response_model=schema.RunInfo)
    def run(id: RunId) -> JSONResponse:
        """Return the state of a training run: curves, samples and checkpoints."""
        return _json(describe_run(catalog.run_folder(id), id=id))

    @router.get("/runs/{id}/snapshots", response_model=schema.RunSnapshots)
    def run_snapshots(
        id: RunId,
        text: Annotated[str | None, Query(max_length=4000)] = None,
        target: Annotated[str | None, Query(max_length=4000)] = None,
        limit: Annotated[int, Query(ge=2, le=MAX_SNAPSHOTS)] = MAX_SNAPSHOTS,
    ) -> JSONResponse:
        """Trace one input with the weights of successive checkpoints."""
        return _json(viewer.view(catalog.run_folder(id), id=id, text=text, target=target, limit=limit))

    return router


def _json(content: Any) -> JSONResponse:
    return JSONResponse(schema.to_json(content))


def mount_page(app: FastAPI) -> None:
    """Serve the built page: /, /index.html, /assets/... and a route for each other file."""
    try:
        names = page_files()
    except GlassformerError:

        def not_built() -> HTMLResponse:
            return HTMLResponse(NOT_BUILT)

        app.add_api_route("/", not_built, methods=["GET", "HEAD"], include_in_schema=False)
        return
    static = StaticFiles(directory=FOLDER)

    async def file(request: Request) -> Response:
        name = request.url.path.lstrip("/") or "index.html"
        response = await static.get_response(name, request.scope)
        immutable = name.startswith("assets/")  # their names contain a hash of their content
        response.headers["cache-control"] = "public, max-age=31536000, immutable" if immutable else "no-cache"
        return response

    for name in ("", *names):
        app.add_api_route(f"/{name}", file, methods=["GET", "HEAD"], include_in_schema=False)
