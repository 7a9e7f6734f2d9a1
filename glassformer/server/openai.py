"""OpenAI-compatible routes: /v1/models, /v1/completions and /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import codecs
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import (
    ConflictError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    UnsupportedError,
)
from glassformer.generation import GeneratedToken, GenerationOutput
from glassformer.server.errors import PayloadTooLargeError, RequestTimeoutError, error_body
from glassformer.server.metrics import Metrics
from glassformer.server.models import (
    GenerationTask,
    ModelRegistry,
    ServedModel,
    architecture,
    generates,
    is_decoder_only,
    is_encoder_decoder,
    translates,
    wait_for,
    without_errors,
)
from glassformer.server.schema import (
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    Logprobs,
    ModelCard,
    ModelList,
    Usage,
)
from glassformer.tasks.base import max_input_tokens, require_tokenizer, token_input
from glassformer.tasks.embedding import Embedder, embedding_size
from glassformer.tasks.streaming import IncrementalDecoder
from glassformer.tasks.text_generation import Segment, TextGenerator, segments_of
from glassformer.tokenization import Encoded, Tokenizer

DEFAULT_TOKENS = 16  # OpenAI's default
MAX_ROWS = 128  # maximum texts per request
FINISH_REASONS: dict[str, Literal["stop", "length"]] = {"end": "stop", "stop": "stop", "length": "length"}
RESERVE = 0.5  # seconds before the deadline at which a stream ends with an error
MAX_EMBEDDED = 8192  # tokens of a text to embed, if the model itself has no limit
STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}


def openai_router(models: ModelRegistry, metrics: Metrics) -> APIRouter:
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
        """Complete prompts; with `stream`, as server-sent events."""
        preferences = (
            (is_decoder_only, generates) if body.to is None else (translates(body.to), is_encoder_decoder)
        )
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
        """Embed texts, each as one vector."""
        model = models.select(
            body.model, without_errors(lambda bundle: token_input(bundle) and bundle.tokenizer)
        )
        width = embedding_size(model.bundle)
        if body.dimensions not in (None, width):
            raise InvalidValueError("dimensions", body.dimensions, f"{width}, the model's own")
        vectors, tokens = await model.run(lambda bundle: _embed(bundle, body.input))
        metrics.count_tokens(model.id, read=tokens, generated=0)
        encode = _base64 if body.encoding_format == "base64" else Tensor.tolist
        return EmbeddingResponse(
            data=[Embedding(index=i, embedding=encode(vector)) for i, vector in enumerate(vectors)],
            model=model.id,
            usage=Usage(prompt_tokens=tokens, completion_tokens=0, total_tokens=tokens),
        )

    return router


def _card(model: ServedModel) -> ModelCard:
    return ModelCard(id=model.id, created=model.created)


def _embed(bundle: Bundle, inputs: Any) -> tuple[Tensor, int]:
    token_input(bundle)  # strings must never be opened as image files
    if isinstance(inputs, str):
        inputs = [inputs]
    if isinstance(inputs[0], str):
        lengths = [len(encoded) for encoded in require_tokenizer(bundle).encode_batch(inputs)]
        if min(max(lengths), max_input_tokens(bundle)) > MAX_EMBEDDED:
            raise InputTooLongError(max(lengths), MAX_EMBEDDED)
        return torch.stack(Embedder(bundle)(inputs)), sum(lengths)
    rows = [inputs] if isinstance(inputs[0], int) else inputs
    return _embed_ids(bundle, rows), sum(map(len, rows))


def _embed_ids(bundle: Bundle, rows: Sequence[list[int]]) -> Tensor:
    check_ids(
        rows, vocab_size=token_input(bundle).vocab_size, limit=min(max_input_tokens(bundle), MAX_EMBEDDED)
    )
    encoded = []
    for ids in rows:
        n = len(ids)
        encoded.append(
            Encoded(
                ids=ids, type_ids=[0] * n, offsets=[(0, 0)] * n, sequence_ids=[0] * n, word_ids=[None] * n
            )
        )
    vectors = Embedder(bundle).run_batches(encoded)
    return torch.stack([vector for vector in vectors if vector is not None])


def _base64(vector: Tensor) -> str:
    return base64.b64encode(vector.numpy().astype("<f4").tobytes()).decode()


# Completions


class Completion:
    """A validated request: the prompts as ids and the generation plan. Choice i belongs to prompt i // n."""

    def __init__(self, model: ServedModel, request: CompletionRequest) -> None:
        _check_supported(request)
        kind = architecture(model.bundle)
        assert model.generation is not None  # every model that generates has one
        self.request, self.generation, self.model = request, model.generation, model.id
        self.tokenizer = require_tokenizer(model.bundle)
        self.task = self._task(model.bundle, kind)
        self.n = request.n or 1
        self.ids, self.texts = self._prompts(request.prompt)
        self.header: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.id,
        }

    def _task(self, bundle: Bundle, kind: str) -> TextGenerator:
        request, prompt = self.request, self.request.prompt
        is_text = isinstance(prompt, str) or isinstance(prompt[0], str)
        if request.to is not None and kind == "decoder-only":
            raise UnsupportedError(f"the model {self.model!r}", "`to`: it does not translate")
        if request.to is not None and not is_text:  # token ids contain the tag of the target language
            hint = "put the language's tag into the ids"
            raise UnsupportedError(f"the model {self.model!r}", "`to` with token ids", hint)
        options = _generation_options(request)
        return TextGenerator(bundle, parse_special=not is_text, to=request.to, **options)

    def _prompts(self, prompt: Any) -> tuple[list[list[int]], list[str]]:
        prompts: Any = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        if len(prompts) * self.n > MAX_ROWS:
            raise PayloadTooLargeError("texts to generate (prompts times n)", MAX_ROWS)
        if isinstance(prompts[0], str):
            documents = self.task.preprocess(prompts)
            return [segment.ids for document in documents for segment in segments_of(document)], prompts
        check_ids(prompts, vocab_size=self.tokenizer.vocab_size, limit=self.task.max_input_tokens)
        return prompts, [self.tokenizer.decode(ids, side="source") for ids in prompts]

    def start(self, on_token: Callable[[int, GeneratedToken], None] | None = None) -> list[GenerationTask]:
        """Start all choices, or none if one fails. on_token: called with the index of the choice."""
        tasks: list[GenerationTask] = []
        try:
            for index in range(len(self.ids) * self.n):
                params = self.task.params
                if params.config.seed is not None:
                    config = replace(params.config, seed=params.config.seed + index)
                    params = replace(params, config=config)
                listener = None if on_token is None else partial(on_token, index)
                prompt, top = self.prompt(index), self.request.logprobs
                tasks.append(self.generation.submit(params, prompt, self, listener, top=top))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return tasks

    async def respond(self) -> CompletionResponse:
        tasks = self.start()
        outputs = await wait_for(tasks)
        choices = await asyncio.to_thread(
            lambda: [self._choice(i, *pair) for i, pair in enumerate(zip(outputs, tasks, strict=True))]
        )
        usage = self.usage(sum(len(texts[0].ids) for texts in outputs))
        return CompletionResponse(**self.header, choices=choices, usage=usage)

    def _choice(self, index: int, outputs: list[GenerationOutput], task: GenerationTask) -> CompletionChoice:
        output, logprobs = outputs[0], self.logprobs()
        return CompletionChoice(
            index=index,
            text=self.echo(index) + self.task.decode(Segment(self.prompt(index)), output.ids),
            logprobs=None if logprobs is None else logprobs.of(task.tokens[: len(output.ids)]),
            finish_reason=FINISH_REASONS[output.finish_reason],
        )

    def prompt(self, index: int) -> list[int]:
        return self.ids[index // self.n]

    def echo(self, index: int) -> str:
        return self.texts[index // self.n] if self.request.echo else ""

    def logprobs(self) -> TokenLogprobs | None:
        if self.request.logprobs is None:
            return None
        strip_space = self.task.architecture == "encoder-decoder"
        return TokenLogprobs(self.tokenizer, self.request.logprobs, strip_space=strip_space)

    def usage(self, generated: int) -> Usage:
        read = sum(map(len, self.ids))
        return Usage(prompt_tokens=read, completion_tokens=generated, total_tokens=read + generated)


def check_ids(prompts: Sequence[Sequence[int]], *, vocab_size: int, limit: int | None) -> None:
    for ids in prompts:
        if max(ids) >= vocab_size:
            raise InvalidValueError("prompt", max(ids), f"token ids below {vocab_size:,}")
        if limit is not None and len(ids) > limit:
            raise InputTooLongError(len(ids), limit)


def _generation_options(request: CompletionRequest) -> dict[str, Any]:
    """Map the request's parameters to the library's names; defaults come from the model folder."""
    do_sample = request.temperature is None or request.temperature > 0
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    options = {
        "max_new_tokens": request.max_tokens or DEFAULT_TOKENS,
        "num_beams": 1,
        "num_return_sequences": 1,
        "do_sample": do_sample,
        "seed": request.seed,
        "stop_strings": stop or None,
        "repetition_penalty": request.repetition_penalty,
    }
    if do_sample:
        options |= {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return options


def _check_supported(request: CompletionRequest) -> None:
    """Reject OpenAI parameters that this server does not support."""
    for name in ("presence_penalty", "frequency_penalty", "logit_bias", "suffix"):
        if value := getattr(request, name):
            hint = "use repetition_penalty" if name.endswith("penalty") else "leave it out"
            raise InvalidValueError(name, value, "it to be unset, as this server does not support it", hint)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidValueError("best_of", request.best_of, "the value of n")
    if request.echo and request.logprobs is not None:
        raise ConflictError(("echo", "logprobs"), "log-probabilities of the prompt are not computed")
    if request.stream_options is not None and not request.stream:
        raise InvalidValueError("stream_options", "set", "no value without stream")


# Streaming


class CompletionStream:
    """A completion as server-sent events. The constructor starts generation, so errors set the status."""

    def __init__(self, completion: Completion) -> None:
        self.completion, self.generated = completion, 0
        self.queue: asyncio.Queue[tuple[int, GeneratedToken | None]] = asyncio.Queue()
        self.tasks = completion.start(lambda index, token: self.queue.put_nowait((index, token)))
        for index, task in enumerate(self.tasks):
            task.outputs.add_done_callback(lambda _, index=index: self.queue.put_nowait((index, None)))  # type: ignore[misc]
        self.choices = [_StreamedChoice(completion, index) for index in range(len(self.tasks))]
        options = completion.request.stream_options
        self.with_usage = options is not None and options.include_usage

    async def events(self, deadline: float, metrics: Metrics) -> AsyncIterator[bytes]:
        """Yield all events; the last one is an error if generation fails."""
        start = time.monotonic()
        try:
            async for event in self._events(deadline - RESERVE):
                yield event
            yield b"data: [DONE]\n\n"
        except (TimeoutError, GlassformerError) as error:
            if not isinstance(error, GlassformerError):
                error = RequestTimeoutError(round(time.monotonic() - start))
            yield f"data: {json.dumps(error_body(error))}\n\n".encode()
        finally:
            for task in self.tasks:
                task.cancel()
            read = sum(map(len, self.completion.ids))
            metrics.count_tokens(self.completion.model, read=read, generated=self.generated)

    async def _events(self, deadline: float) -> AsyncIterator[bytes]:
        running = len(self.tasks)
        while running:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                index, token = await self.queue.get()
                await asyncio.sleep(0)  # a full queue must not starve other requests
            if token is not None:
                choice = self.choices[index].push(token)
            else:
                running -= 1
                output = self.tasks[index].outputs.result()[0]
                self.generated += len(output.ids)
                choice = self.choices[index].end(output)
            if choice is not None:
                yield self._event([choice])
        if self.with_usage:
            yield self._event([], self.completion.usage(self.generated))

    def _event(self, choices: list[CompletionChoice], usage: Usage | None = None) -> bytes:
        event = CompletionResponse(**self.completion.header, choices=choices, usage=usage)
        return f"data: {event.model_dump_json(exclude=None if self.with_usage else {'usage'})}\n\n".encode()


class _StreamedChoice:
    def __init__(self, completion: Completion, index: int) -> None:
        task = completion.task
        prompt = completion.prompt(index) if task.architecture == "decoder-only" else []
        self.index = index
        self.pieces = IncrementalDecoder(completion.tokenizer, prompt, task.params.config.stop_strings)
        self.pending: list[GeneratedToken] = []  # reported with the next piece
        self.logprobs = completion.logprobs()
        self.echo = completion.echo(index)

    def push(self, token: GeneratedToken) -> CompletionChoice | None:
        self.pending.append(token)
        piece = self.pieces.push(token.id)
        return self._choice(piece, None) if piece or self.echo else None

    def end(self, output: GenerationOutput) -> CompletionChoice:
        return self._choice(self.pieces.end(), FINISH_REASONS[output.finish_reason])

    def _choice(self, piece: str, reason: Literal["stop", "length"] | None) -> CompletionChoice:
        text, self.echo = self.echo + piece, ""
        logprobs = None if self.logprobs is None else self.logprobs.of(self.pending)
        self.pending = []
        return CompletionChoice(text=text, index=self.index, logprobs=logprobs, finish_reason=reason)


# Log-probabilities


class TokenLogprobs:
    """Log-probabilities and text offsets of one choice, computed incrementally.

    top: number of most likely tokens to report. strip_space: the text starts without the leading space of the
    first token.
    """

    def __init__(self, tokenizer: Tokenizer, top: int, *, strip_space: bool) -> None:
        self._tokenizer, self._top, self._strip_space = tokenizer, top, strip_space
        self._length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def of(self, tokens: Sequence[GeneratedToken]) -> Logprobs:
        """Return the log-probabilities of the next tokens; the top tokens include the generated one."""
        top = [{self._piece(n): p for n, p in (*token.top, (token.id, token.logprob))} for token in tokens]
        return Logprobs(
            tokens=[self._piece(token.id) for token in tokens],
            token_logprobs=[token.logprob for token in tokens],
            top_logprobs=top if self._top else None,
            text_offset=[self._offset(token.id) for token in tokens],
        )

    def _piece(self, token: int) -> str:
        return self._tokenizer.pieces([token], side="target")[0]

    def _offset(self, token: int) -> int:
        """Return where the token starts in the text; bytes that complete no character are not counted."""
        start, strip_space, self._strip_space = self._length, self._strip_space, False
        (part,) = self._tokenizer.parts([token], side="target")
        alone = self._tokenizer.decode([token], side="target")
        if isinstance(part, bytes):
            part = part.removeprefix(b" ") if strip_space and not alone.startswith(" ") else part
            self._length += len(self._decoder.decode(part))
        else:
            self._decoder.reset()
            self._length += len(alone if strip_space or not alone else part)  # a special token adds nothing
        return start
