"""Generations behind the OpenAI routes: plain completions, and what chat completions share with them."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel

from glassformer.bundle import Bundle
from glassformer.errors import (
    ConflictError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    UnsupportedError,
)
from glassformer.generation import GeneratedToken, GenerationOutput
from glassformer.json_text import as_list
from glassformer.processors.text import require_tokenizer
from glassformer.server.api_keys import reserve_tokens
from glassformer.server.errors import PayloadTooLargeError, RequestTimeoutError, error_body
from glassformer.server.metrics import Metrics
from glassformer.server.models import GenerationTask, ServedModel, architecture, wait_for
from glassformer.server.schema import (
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    FinishReason,
    GenerationRequest,
    JSONObjectFormat,
    JSONSchemaFormat,
    Logprobs,
    ResponseFormat,
    Usage,
)
from glassformer.tasks.streaming import IncrementalDecoder
from glassformer.tasks.structured_output import ANY_OBJECT, SchemaCheck
from glassformer.tasks.text_generation import PromptTask, Segment, TextGenerator, segments_of
from glassformer.tokenization import Tokenizer

DEFAULT_TOKENS = 16  # OpenAI's default
MAX_ROWS = 128  # maximum texts per request
FINISH_REASONS: dict[str, FinishReason] = {"end": "stop", "stop": "stop", "length": "length"}
SCHEMA_THREADS = ThreadPoolExecutor(4, thread_name_prefix="schemas")  # each waits for a compiler process
RESERVE = 0.5  # seconds before the deadline at which a stream ends with an error; less if it is near


class Generation(ABC):
    """A validated request: the encoded prompts and the generation plan. Choice i belongs to prompt i // n.

    max_tokens: requested maximum number of new tokens.
    top_logprobs: number of most likely tokens to report with each token; None: no probabilities.
    """

    task: PromptTask[Any]
    segments: list[Segment]
    id_prefix: ClassVar[str]

    def __init__(
        self,
        model: ServedModel,
        request: GenerationRequest,
        *,
        max_tokens: int | None,
        top_logprobs: int | None,
    ) -> None:
        if request.stream_options is not None and not request.stream:
            raise InvalidValueError("stream_options", "set", "no value without stream")
        architecture(model.bundle)  # raises for a model that does not generate text
        assert model.generation is not None  # every model that generates has one
        self.generation, self.model, self.n = model.generation, model.id, request.n or 1
        self.tokenizer = require_tokenizer(model.bundle)
        self.max_tokens, self.top_logprobs = max_tokens, top_logprobs
        self.stream_options = request.stream_options
        self.header: dict[str, Any] = {
            "id": f"{self.id_prefix}-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.id,
        }

    def start(self, on_token: Callable[[int, GeneratedToken], None] | None = None) -> list[GenerationTask]:
        """Start all choices, or none if one fails. on_token: called with the index of the choice."""
        for segment in self.segments:
            self.generation.check_length(segment.ids, self.max_tokens)
        tasks: list[GenerationTask] = []
        try:
            for index in range(len(self.segments) * self.n):
                params = self.task.params
                if params.config.seed is not None:
                    config = replace(params.config, seed=params.config.seed + index)
                    params = replace(params, config=config)
                listener = None if on_token is None else partial(on_token, index)
                prompt, top = self.segment(index).source, self.top_logprobs
                tasks.append(self.generation.submit(params, prompt, self, listener, top=top))
            reserve_tokens(self.num_prompt_tokens + sum(task.limit for task in tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return tasks

    async def respond(self) -> Any:
        """Generate all choices; return the response."""
        tasks = self.start()
        outputs = await wait_for(tasks)
        choices = await asyncio.to_thread(
            lambda: [self.choice(i, *pair) for i, pair in enumerate(zip(outputs, tasks, strict=True))]
        )
        usage = self.usage(sum(len(texts[0].ids) for texts in outputs))
        return self.response(choices, usage)

    @abstractmethod
    def choice(self, index: int, outputs: list[GenerationOutput], task: GenerationTask) -> Any:
        """Build a choice of the response."""

    @abstractmethod
    def streamed_choice(self, index: int) -> StreamedChoice:
        """Return an object that builds the pieces of a streamed choice."""

    @abstractmethod
    def response(self, choices: list[Any], usage: Usage | None, *, streamed: bool = False) -> BaseModel:
        """Build the response, or one event of a stream."""

    def segment(self, index: int) -> Segment:
        """Return the prompt of a choice."""
        return self.segments[index // self.n]

    @property
    def num_prompt_tokens(self) -> int:
        return sum(len(segment.ids) for segment in self.segments)

    def text(self, index: int, output: GenerationOutput) -> str:
        """Return the generated text of a choice."""
        return self.task.decode(self.segment(index), output.ids)

    def usage(self, generated: int) -> Usage:
        read = self.num_prompt_tokens
        return Usage(prompt_tokens=read, completion_tokens=generated, total_tokens=read + generated)


G = TypeVar("G", bound=Generation)


async def prepare(kind: Callable[[ServedModel, Any], G], model: ServedModel, request: GenerationRequest) -> G:
    """Validate a request in a thread; a schema is checked first, until the client disconnects."""
    schema = _json_schema(request.response_format)
    if schema is not None:
        check = SchemaCheck(schema)
        try:
            await asyncio.get_running_loop().run_in_executor(SCHEMA_THREADS, check.run)
        finally:
            check.cancel()
    return await asyncio.to_thread(kind, model, request)


class Completion(Generation):
    """A request of /v1/completions."""

    id_prefix = "cmpl"
    task: TextGenerator

    def __init__(self, model: ServedModel, request: CompletionRequest) -> None:
        super().__init__(model, request, max_tokens=request.max_tokens, top_logprobs=request.logprobs)
        _check_completion(request)
        self.request = request
        self.task = self._task(model.bundle, architecture(model.bundle))
        self.segments, self.texts = self._prompts(request.prompt)

    def _task(self, bundle: Bundle, kind: str) -> TextGenerator:
        request, prompt = self.request, self.request.prompt
        is_text = isinstance(as_list(prompt)[0], str)
        if request.to is not None and kind == "decoder-only":
            raise UnsupportedError(f"the model {self.model!r}", "`to`: it does not translate")
        if request.to is not None and not is_text:  # token ids contain the tag of the target language
            hint = "put the language's tag into the ids"
            raise UnsupportedError(f"the model {self.model!r}", "`to` with token ids", hint)
        options = generation_options(request, request.max_tokens or DEFAULT_TOKENS)
        return TextGenerator(bundle, parse_special=not is_text, to=request.to, **options)

    def _prompts(self, prompt: Any) -> tuple[list[Segment], list[str]]:
        prompts: Any = as_list(prompt)
        prompts = [prompts] if isinstance(prompts[0], int) else prompts
        if len(prompts) * self.n > MAX_ROWS:
            raise PayloadTooLargeError("texts to generate (prompts times n)", MAX_ROWS)
        if isinstance(prompts[0], str):
            documents = self.task.preprocess(prompts)
            return [segment for document in documents for segment in segments_of(document)], prompts
        check_ids(prompts, vocab_size=self.tokenizer.vocab_size, limit=self.task.max_input_tokens)
        texts = [self.tokenizer.decode(ids, side="source") for ids in prompts]
        return [Segment(ids) for ids in prompts], texts

    def choice(self, index: int, outputs: list[GenerationOutput], task: GenerationTask) -> CompletionChoice:
        output, logprobs = outputs[0], self.logprobs()
        return CompletionChoice(
            index=index,
            text=self.echo(index) + self.text(index, output),
            logprobs=None if logprobs is None else logprobs.of(task.tokens[: len(output.ids)]),
            finish_reason=FINISH_REASONS[output.finish_reason],
        )

    def echo(self, index: int) -> str:
        return self.texts[index // self.n] if self.request.echo else ""

    def logprobs(self) -> TokenLogprobs | None:
        if self.request.logprobs is None:
            return None
        strip_space = self.task.architecture == "encoder-decoder"
        return TokenLogprobs(self.tokenizer, self.request.logprobs, strip_space=strip_space)

    def streamed_choice(self, index: int) -> StreamedChoice:
        return _StreamedText(self, index)

    def response(
        self, choices: list[Any], usage: Usage | None, *, streamed: bool = False
    ) -> CompletionResponse:
        return CompletionResponse(**self.header, choices=choices, usage=usage)


def check_ids(prompts: Sequence[Sequence[int]], *, vocab_size: int, limit: int | None) -> None:
    for ids in prompts:
        if max(ids) >= vocab_size:
            raise InvalidValueError("prompt", max(ids), f"token ids below {vocab_size:,}")
        if limit is not None and len(ids) > limit:
            raise InputTooLongError(len(ids), limit)


def generation_options(request: GenerationRequest, max_new_tokens: int | None) -> dict[str, Any]:
    """Map the request's parameters to the library's names; defaults come from the model folder."""
    do_sample = request.temperature is None or request.temperature > 0
    stop = tuple(as_list(request.stop))
    options = {
        "max_new_tokens": max_new_tokens,
        "num_beams": 1,
        "num_return_sequences": 1,
        "do_sample": do_sample,
        "seed": request.seed,
        "stop_strings": stop or None,
        "repetition_penalty": request.repetition_penalty,
        "presence_penalty": request.presence_penalty,
        "frequency_penalty": request.frequency_penalty,
        "logit_bias": request.logit_bias,
        "json_schema": _json_schema(request.response_format),
    }
    if do_sample:
        options |= {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return options


def _json_schema(response_format: ResponseFormat | None) -> Mapping[str, Any] | None:
    """Return the JSON schema that the output has to follow."""
    match response_format:
        case JSONObjectFormat():
            return ANY_OBJECT
        case JSONSchemaFormat():
            return response_format.json_schema.schema_
    return None


def _check_completion(request: CompletionRequest) -> None:
    """Reject OpenAI parameters that this server does not support."""
    if request.suffix:
        raise InvalidValueError("suffix", request.suffix, "no value, as text cannot be inserted")
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidValueError("best_of", request.best_of, "the value of n")
    if request.echo and request.logprobs is not None:
        raise ConflictError(("echo", "logprobs"), "log-probabilities of the prompt are not computed")


# Streaming


class EventStream:
    """A generation as server-sent events. The constructor starts it, so errors set the status."""

    def __init__(self, completion: Generation) -> None:
        self.completion = completion
        self.queue: asyncio.Queue[tuple[int, GeneratedToken | None]] = asyncio.Queue()
        self.tasks = completion.start(lambda index, token: self.queue.put_nowait((index, token)))
        for index, task in enumerate(self.tasks):
            task.outputs.add_done_callback(lambda _, index=index: self.queue.put_nowait((index, None)))  # type: ignore[misc]
        self.choices = [completion.streamed_choice(index) for index in range(len(self.tasks))]
        self.counts = [0] * len(self.tasks)  # tokens generated so far, by choice
        options = completion.stream_options
        self.with_usage = options is not None and options.include_usage

    async def events(self, deadline: float, metrics: Metrics) -> AsyncIterator[bytes]:
        """Yield all events; the last one is an error if generation fails."""
        seconds = deadline - time.monotonic()
        try:
            async for event in self._events(deadline - min(RESERVE, seconds / 4)):
                yield event
            yield b"data: [DONE]\n\n"
        except (TimeoutError, GlassformerError) as error:
            if not isinstance(error, GlassformerError):
                error = RequestTimeoutError(round(seconds, 2))
            yield f"data: {json.dumps(error_body(error))}\n\n".encode()
        finally:
            for task in self.tasks:
                task.cancel()
            read = self.completion.num_prompt_tokens
            metrics.count_tokens(self.completion.model, read=read, generated=sum(self.counts))

    async def _events(self, deadline: float) -> AsyncIterator[bytes]:
        running = len(self.tasks)
        for choice in [first for one in self.choices if (first := one.begin()) is not None]:
            yield self._event([choice])
        while running:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                index, token = await self.queue.get()
                await asyncio.sleep(0)  # a full queue must not starve other requests
            if token is not None:
                self.counts[index] += 1
                choice = self.choices[index].push(token)
            else:
                running -= 1
                output = self.tasks[index].outputs.result()[0]
                self.counts[index] = len(output.ids)
                choice = self.choices[index].end(output)
            if choice is not None:
                yield self._event([choice])
        if self.with_usage:
            yield self._event([], self.completion.usage(sum(self.counts)))

    def _event(self, choices: list[Any], usage: Usage | None = None) -> bytes:
        event = self.completion.response(choices, usage, streamed=True)
        return f"data: {event.model_dump_json(exclude=None if self.with_usage else {'usage'})}\n\n".encode()


class StreamedChoice(ABC):
    """Builds the pieces of one streamed choice."""

    def __init__(self, completion: Generation, index: int) -> None:
        task = completion.task
        prompt = completion.segment(index).ids if task.architecture == "decoder-only" else []
        self.index = index
        self.pieces = IncrementalDecoder(completion.tokenizer, prompt, task.params.config.stop_strings)
        self.pending: list[GeneratedToken] = []  # reported with the next piece

    def begin(self) -> Any | None:
        """Return what is sent before the first token."""
        return None

    def push(self, token: GeneratedToken) -> Any | None:
        """Add a token; return the next piece, if there is one."""
        self.pending.append(token)
        piece = self.pieces.push(token.id)
        return self._next(piece, None) if piece else None

    def end(self, output: GenerationOutput) -> Any:
        """Return the last piece."""
        return self._next(self.pieces.end(), FINISH_REASONS[output.finish_reason])

    def _next(self, piece: str, reason: FinishReason | None) -> Any:
        pending, self.pending = self.pending, []
        return self.piece(piece, pending, reason)

    @abstractmethod
    def piece(self, text: str, tokens: list[GeneratedToken], reason: FinishReason | None) -> Any:
        """Build the next piece of the choice."""


class _StreamedText(StreamedChoice):
    def __init__(self, completion: Completion, index: int) -> None:
        super().__init__(completion, index)
        self.logprobs, self.echo = completion.logprobs(), completion.echo(index)

    def begin(self) -> CompletionChoice | None:
        return self.piece(self.echo, [], None) if self.echo else None

    def piece(self, text: str, tokens: list[GeneratedToken], reason: FinishReason | None) -> CompletionChoice:
        logprobs = None if self.logprobs is None else self.logprobs.of(tokens)
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
