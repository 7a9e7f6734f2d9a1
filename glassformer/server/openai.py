"""OpenAI's routes: /v1/models, /v1/completions and /v1/embeddings, as its own clients use them."""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections.abc import Sequence
from typing import Any

import torch
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.server.answers import NotFound, Refused
from glassformer.server.completing import Choice, Completing
from glassformer.server.limits import READ
from glassformer.server.metrics import Metrics
from glassformer.server.models import Models, Served, goes_on, rewrites, translates, writes
from glassformer.server.passage import KEY
from glassformer.server.schema import Completion, Embeddings
from glassformer.server.streaming import events
from glassformer.tasks import embed as embedding
from glassformer.tasks.reading import in_order, reads, room_of, together, tokenizer_of
from glassformer.tokenization import Encoded


def routes(models: Models, metrics: Metrics) -> APIRouter:
    """The routes below /v1."""
    router = APIRouter(prefix="/v1", tags=["as OpenAI's"])

    @router.get("/models")
    async def listed() -> dict[str, Any]:
        """The models that are served."""
        return {"object": "list", "data": [_model(one) for one in models.values()]}

    @router.get("/models/{name}")
    async def one_model(name: str) -> dict[str, Any]:
        """One of them."""
        if name not in models:
            raise NotFound("there is no model of that name here", param="model", code="model_not_found")
        return _model(models[name])

    @router.post("/completions", response_model=None)
    async def completions(asked: Completion, request: Request) -> Response:
        """Go on from prompts; as server-sent events with `stream`."""
        best = goes_on if asked.to is None else translates(asked.to)
        served = models.asked(asked.model, best, writes if asked.to is None else rewrites)
        completing = await asyncio.to_thread(Completing, served, asked)
        about = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": served.id,
        }
        client = request.scope[KEY]
        if asked.stream:
            # begun before the answer is, so that a refusal has its own status
            stream = events(completing, about, client, metrics)
            return StreamingResponse(
                stream, media_type="text/event-stream", headers={"cache-control": "no-store"}
            )
        choices = await completing.whole(client)
        usage = completing.usage(sum(one.tokens for one in choices))
        metrics.tokens(served.id, read=usage["prompt_tokens"], written=usage["completion_tokens"])
        return JSONResponse({**about, "choices": [_choice(one) for one in choices], "usage": usage})

    @router.post("/embeddings", response_model=None)
    async def embeddings(asked: Embeddings, request: Request) -> Response:
        """A vector for each text."""
        served = models.asked(asked.model, _embeds)
        width = embedding.width_of(served.bundle)
        if asked.dimensions not in (None, width):
            raise Refused(
                f"{served.id} gives vectors of {width} numbers; leave dimensions out", param="dimensions"
            )
        vectors, tokens = await served.read(request.scope[KEY], lambda bundle: _vectors(bundle, asked.input))
        metrics.tokens(served.id, read=tokens, written=0)
        told = _base64 if asked.encoding_format == "base64" else Tensor.tolist
        return JSONResponse(
            {
                "object": "list",
                "data": [
                    {"object": "embedding", "index": n, "embedding": told(vector)}
                    for n, vector in enumerate(vectors)
                ],
                "model": served.id,
                "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
            }
        )

    return router


def _model(one: Served) -> dict[str, Any]:
    return {"id": one.id, "object": "model", "created": one.created, "owned_by": "glassformer"}


def _choice(one: Choice) -> dict[str, Any]:
    return {"text": one.text, "index": one.index, "logprobs": one.logprobs, "finish_reason": one.finished}


def _embeds(bundle: Bundle) -> bool:
    try:
        reads(bundle)
    except GlassformerError:
        return False
    return bundle.tokenizer is not None


def _vectors(bundle: Bundle, given: Any) -> tuple[Tensor, int]:
    """The vectors (N, D) of texts, or of ids, and how many tokens those were."""
    if isinstance(given, str):
        given = [given]
    if isinstance(given[0], str):
        lengths = [len(one) for one in tokenizer_of(bundle).encode_batch(given)]
        longest = max(lengths)
        if min(longest, room_of(bundle)) > READ:
            raise Refused(f"an input has {longest:,} tokens, and at most {READ:,} are read", param="input")
        return embedding.embed(bundle, given), sum(lengths)
    rows = [given] if isinstance(given[0], int) else given
    return _of_ids(bundle, rows), sum(map(len, rows))


@torch.inference_mode()
def _of_ids(bundle: Bundle, rows: Sequence[list[int]]) -> Tensor:
    room, vocabulary = min(room_of(bundle), READ), reads(bundle).vocab_size
    for number, ids in enumerate(rows, 1):
        if max(ids) >= vocabulary or len(ids) > room:
            raise Refused(
                f"input {number} has {len(ids):,} tokens up to {max(ids)}; the model reads {room:,} below "
                f"{vocabulary:,}",
                param="input",
            )
    made = [
        Encoded(
            ids=ids,
            types=[0] * len(ids),
            offsets=[(0, 0)] * len(ids),
            sequences=[0] * len(ids),
            words=[None] * len(ids),
        )
        for ids in rows
    ]

    def answer(some: list[int]) -> list[Tensor]:
        batch = together([made[n] for n in some], bundle)
        return list(embedding.text_vectors(bundle, batch).float().cpu())

    return torch.stack(in_order([len(ids) for ids in rows], answer))


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()
