"""OpenAI-compatible routes: /v1/models, /v1/chat/completions, /v1/completions and /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError
from glassformer.json_text import as_list
from glassformer.processors.text import max_input_tokens, token_input
from glassformer.server.api_keys import reserve_tokens
from glassformer.server.chat import ChatCompletion
from glassformer.server.completions import Completion, EventStream, Generation, check_ids, prepare
from glassformer.server.metrics import Metrics
from glassformer.server.models import (
    ModelRegistry,
    ServedModel,
    generates,
    is_decoder_only,
    is_encoder_decoder,
    translates,
    without_errors,
)
from glassformer.server.schema import (
    ChatCompletionRequest,
    ChatCompletionResponse,
    CompletionRequest,
    CompletionResponse,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    ModelCard,
    ModelList,
    Usage,
)
from glassformer.tasks.base import Callbacks
from glassformer.tasks.chat import has_chat_template
from glassformer.tasks.embedding import Embedder, embedding_size, text_bundle
from glassformer.tokenization import Encoded

MAX_EMBEDDED = 8192  # tokens of a text to embed, if the model itself has no limit
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def openai_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    async def list_models() -> ModelList:
        """List the models."""
        names = (*models, *models.aliases)
        return ModelList(data=[_card(name, models.select(name)) for name in names])

    @router.get("/models/{name:path}")
    async def get_model(name: str) -> ModelCard:
        """Describe one model."""
        return _card(name, models.select(name))

    @router.post("/completions", response_model=CompletionResponse, responses=STREAM)
    async def complete(body: CompletionRequest, request: Request) -> Any:
        """Complete prompts; with `stream`, as server-sent events."""
        preferences = (
            (is_decoder_only, generates) if body.to is None else (translates(body.to), is_encoder_decoder)
        )
        model = models.select(body.model, *preferences)
        completion = await prepare(Completion, model, body)
        return await respond(completion, body.stream, request)

    @router.post("/chat/completions", response_model=ChatCompletionResponse, responses=STREAM)
    async def chat(body: ChatCompletionRequest, request: Request) -> Any:
        """Answer a conversation; with `stream`, as server-sent events."""
        model = models.select(body.model, without_errors(has_chat_template), is_decoder_only)
        completion = await prepare(ChatCompletion, model, body)
        return await respond(completion, body.stream, request)

    async def respond(completion: Generation, stream: bool | None, request: Request) -> Any:
        if stream:
            events = EventStream(completion).events(request.scope["deadline"], metrics)
            headers = {"cache-control": "no-store"}
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        response = await completion.respond()
        read, generated = response.usage.prompt_tokens, response.usage.completion_tokens
        metrics.count_tokens(completion.model, read=read, generated=generated)
        return response

    @router.post("/embeddings")
    async def embed(body: EmbeddingRequest) -> EmbeddingResponse:
        """Embed texts, each as one vector."""
        model = models.select(
            body.model, without_errors(lambda bundle: token_input(text_bundle(bundle)) and bundle.tokenizer)
        )
        width = embedding_size(model.bundle)
        if (body.dimensions or 1) > width:
            raise InvalidValueError("dimensions", body.dimensions, f"at most {width}, the model's own")
        embedder, items = await model.run_steps(lambda *thread: _encode(body.input, *thread))
        tokens = sum(map(len, items))
        reserve_tokens(tokens)
        vectors = torch.stack(
            await model.run_steps(lambda _, callbacks: embedder.run_batches(items, callbacks))
        )
        if (body.dimensions or width) < width:
            vectors = F.normalize(vectors[:, : body.dimensions], dim=-1)
        metrics.count_tokens(model.id, read=tokens, generated=0)
        encode = _base64 if body.encoding_format == "base64" else Tensor.tolist
        return EmbeddingResponse(
            data=[Embedding(index=i, embedding=encode(vector)) for i, vector in enumerate(vectors)],
            model=model.id,
            usage=Usage(prompt_tokens=tokens, completion_tokens=0, total_tokens=tokens),
        )

    return router


def _card(name: str, model: ServedModel) -> ModelCard:
    return ModelCard(id=name, created=model.created)


def _encode(inputs: Any, bundle: Bundle, callbacks: Callbacks) -> tuple[Embedder, list[Encoded]]:
    """Return the embedder of a model, and texts or token ids of a bounded length in its form."""
    bundle = text_bundle(bundle)
    vocab_size = token_input(bundle).vocab_size  # strings must never be opened as image files
    embedder, limit = Embedder(bundle), min(max_input_tokens(bundle), MAX_EMBEDDED)
    inputs = as_list(inputs)
    inputs = [inputs] if isinstance(inputs[0], int) else inputs
    if isinstance(inputs[0], str):
        processor: Any = embedder.processor
        processor.max_tokens = min(processor.max_tokens, MAX_EMBEDDED)
        return embedder, [item for chunk in embedder.read(inputs, callbacks) for _, item in chunk]
    check_ids(inputs, vocab_size=vocab_size, limit=limit)
    return embedder, [
        Encoded(ids=ids, type_ids=[0] * n, offsets=[(0, 0)] * n, sequence_ids=[0] * n, word_ids=[None] * n)
        for ids in inputs
        for n in [len(ids)]
    ]


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
