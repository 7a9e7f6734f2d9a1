"""OpenAI's routes: /v1/models, /v1/completions and /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import InputTooLongError, InvalidValueError
from glassformer.server.completions import Completion, CompletionStream, check_ids
from glassformer.server.metrics import Metrics
from glassformer.server.models import (
    ModelRegistry,
    ServedModel,
    continues,
    generates,
    holds,
    rewrites,
    translates,
)
from glassformer.server.schema import (
    CompletionRequest,
    CompletionResponse,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
    ModelCard,
    ModelList,
)
from glassformer.tasks.base import max_input_tokens, require_tokenizer, token_input
from glassformer.tasks.embedding import TextEmbedder, embedding_size
from glassformer.tokenization import Encoded

MAX_EMBEDDED = 8192  # tokens of a text to embed, if the model itself has no limit
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def openai_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models")
    async def list_models() -> ModelList:
        """List the models."""
        return ModelList(data=[_card(model) for model in models.values()])

    @router.get("/models/{name}")
    async def get_model(name: str) -> ModelCard:
        """Describe one model."""
        return _card(models.select(name))

    @router.post("/completions", response_model=CompletionResponse, responses=STREAM)
    async def complete(body: CompletionRequest, request: Request) -> Any:
        """Complete prompts; with `stream` as server-sent events."""
        preferences = (continues, generates) if body.to is None else (translates(body.to), rewrites)
        model = models.select(body.model, *preferences)
        completion = await asyncio.to_thread(Completion, model, body)
        if body.stream:
            events = CompletionStream(completion).events(request.scope["deadline"], metrics)
            headers = {"cache-control": "no-store"}
            return StreamingResponse(events, media_type="text/event-stream", headers=headers)
        response = await completion.respond()
        assert response.usage is not None
        read, generated = response.usage.prompt_tokens, response.usage.completion_tokens
        metrics.count_tokens(model.id, read=read, generated=generated)
        return response

    @router.post("/embeddings")
    async def embed(body: EmbeddingRequest) -> EmbeddingResponse:
        """Embed texts: one vector each."""
        model = models.select(body.model, holds(lambda bundle: token_input(bundle) and bundle.tokenizer))
        width = embedding_size(model.bundle)
        if body.dimensions not in (None, width):
            raise InvalidValueError("dimensions", body.dimensions, f"{width}, the model's own")
        vectors, tokens = await model.run(lambda bundle: _embed(bundle, body.input))
        metrics.count_tokens(model.id, read=tokens, generated=0)
        encode = _base64 if body.encoding_format == "base64" else Tensor.tolist
        return EmbeddingResponse(
            data=[Embedding(index=i, embedding=encode(vector)) for i, vector in enumerate(vectors)],
            model=model.id,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )

    return router


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.id, created=model.created)


def _embed(bundle: Bundle, inputs: Any) -> tuple[Tensor, int]:
    """The vectors (N, D) of texts or of token ids, and the number of tokens."""
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs[0], str):
        lengths = [len(encoded) for encoded in require_tokenizer(bundle).encode_batch(inputs)]
        if min(max(lengths), max_input_tokens(bundle)) > MAX_EMBEDDED:
            raise InputTooLongError(max(lengths), MAX_EMBEDDED)
        return torch.stack(TextEmbedder(bundle)(inputs)), sum(lengths)
    rows = [inputs] if isinstance(inputs[0], int) else inputs
    return _embed_ids(bundle, rows), sum(map(len, rows))


def _embed_ids(bundle: Bundle, rows: Sequence[list[int]]) -> Tensor:
    check_ids(
        rows, vocabulary=token_input(bundle).vocab_size, limit=min(max_input_tokens(bundle), MAX_EMBEDDED)
    )
    encoded = [
        Encoded(
            ids=ids,
            types=[0] * len(ids),
            offsets=[(0, 0)] * len(ids),
            sequences=[0] * len(ids),
            words=[None] * len(ids),
        )
        for ids in rows
    ]

    vectors = TextEmbedder(bundle).run_batches(encoded)
    return torch.stack([vector for vector in vectors if vector is not None])


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
