"""POST /v1/completions: prompts to token ids, generation, and the texts with their log-probabilities."""

from __future__ import annotations

import asyncio
import codecs
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError, InputTooLongError, InvalidValueError
from glassformer.generation import GenerationOutput, Token
from glassformer.server.errors import (
    PayloadTooLargeError,
    RequestTimeoutError,
    error_body,
    unsupported,
)
from glassformer.server.generation import GenerationTask, wait_for
from glassformer.server.metrics import Metrics
from glassformer.server.models import ServedModel, check_generates
from glassformer.server.schema import (
    CompletionChoice,
    CompletionRequest,
    CompletionResponse,
    Logprobs,
    Usage,
)
from glassformer.tasks.base import require_tokenizer
from glassformer.tasks.streaming import IncrementalDecoder
from glassformer.tasks.text_generation import Segment, TextGenerator, generation_architecture, segments_of
from glassformer.tokenization import Tokenizer

DEFAULT_TOKENS = 16  # as OpenAI has it
MAX_ROWS = 128  # texts of one request
FINISH_REASONS: dict[str, Literal["stop", "length"]] = {"end": "stop", "stop": "stop", "length": "length"}
RESERVE = 0.5  # seconds before the deadline at which a stream ends with an error


class Completion:
    """A validated request: the prompts as ids and the generation plan. Choice i belongs to prompt i // n."""

    def __init__(self, model: ServedModel, request: CompletionRequest) -> None:
        _check_supported(request)
        check_generates(model.bundle)
        assert model.generation is not None  # every model that generates has one
        self.request, self.generation, self.model = request, model.generation, model.id
        self.tokenizer = require_tokenizer(model.bundle)
        self.task = self._task(model.bundle)
        self.n = request.n or 1
        self._pieces = TokenTexts(self.tokenizer)
        self.ids, self.texts = self._prompts(request.prompt)
        self.header: dict[str, Any] = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "created": int(time.time()),
            "model": model.id,
        }

    def _task(self, bundle: Bundle) -> TextGenerator:
        """Token ids contain the tag of the target language themselves."""
        request, is_text = self.request, _is_text(self.request.prompt)
        if request.to is not None and generation_architecture(bundle) == "decoder-only":
            raise unsupported(self.model, "`to`: it does not translate")
        if request.to is not None and not is_text:
            raise unsupported(self.model, "`to` with token ids", "put the language's tag into the ids")
        return TextGenerator(
            bundle,
            special_in_text="plain" if is_text else "keep",
            to=request.to,
            **_generation_options(request),
        )

    def _prompts(self, prompt: Any) -> tuple[list[list[int]], list[str]]:
        """The prompts as ids and as text."""
        prompts: Any = [prompt] if isinstance(prompt, str) or isinstance(prompt[0], int) else prompt
        if len(prompts) * self.n > MAX_ROWS:
            raise PayloadTooLargeError("texts to generate (prompts times n)", MAX_ROWS)
        if isinstance(prompts[0], str):
            documents = self.task.preprocess(prompts)
            return [segment.ids for document in documents for segment in segments_of(document)], prompts
        check_ids(prompts, vocabulary=self.tokenizer.vocab_size, limit=self.task.max_input_tokens)
        return prompts, [self.tokenizer.decode(ids, side="source") for ids in prompts]

    def start(self, on_token: Callable[[int, Token], None] | None = None) -> list[GenerationTask]:
        """Start all choices, or none. on_token: called with the index of the choice."""
        tasks: list[GenerationTask] = []
        try:
            for index in range(len(self.ids) * self.n):
                request = self.task.request
                if request.config.seed is not None:
                    config = replace(request.config, seed=request.config.seed + index)
                    request = replace(request, config=config)
                listener = None if on_token is None else partial(on_token, index)
                tasks.append(
                    self.generation.submit(
                        request, self.prompt(index), self, listener, top=self.request.logprobs
                    )
                )
        except BaseException:
            for task in tasks:
                task.cancel()
            raise
        return tasks

    async def respond(self) -> CompletionResponse:
        """Generate all choices."""
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
        """The prompt of a choice."""
        return self.ids[index // self.n]

    def echo(self, index: int) -> str:
        """What the text of a choice begins with."""
        return self.texts[index // self.n] if self.request.echo else ""

    def logprobs(self) -> TokenLogprobs | None:
        """A fresh collector of log-probabilities, if they are requested."""
        if self.request.logprobs is None:
            return None
        return TokenLogprobs(
            self._pieces, self.request.logprobs, bare=self.task.architecture == "encoder-decoder"
        )

    def usage(self, generated: int) -> Usage:
        """Tokens read and generated."""
        read = sum(map(len, self.ids))
        return Usage(prompt_tokens=read, completion_tokens=generated, total_tokens=read + generated)


def check_ids(prompts: Sequence[Sequence[int]], *, vocabulary: int, limit: int | None) -> None:
    """Raise an error if ids are outside the vocabulary, or too many."""
    for ids in prompts:
        if max(ids) >= vocabulary:
            raise InvalidValueError("prompt", max(ids), f"token ids below {vocabulary:,}")
        if limit is not None and len(ids) > limit:
            raise InputTooLongError(len(ids), limit)


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], str)


def _generation_options(request: CompletionRequest) -> dict[str, Any]:
    """The request's parameters under the library's names; the model's folder gives the rest."""
    sampled = request.temperature is None or request.temperature > 0
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    options = {
        "max_new_tokens": request.max_tokens or DEFAULT_TOKENS,
        "num_beams": 1,
        "num_return_sequences": 1,
        "do_sample": sampled,
        "seed": request.seed,
        "stop_strings": stop or None,
        "repetition_penalty": request.repetition_penalty,
    }
    if sampled:
        options |= {name: getattr(request, name) for name in ("temperature", "top_p", "top_k", "min_p")}
    return options


def _check_supported(request: CompletionRequest) -> None:
    """Refuse what OpenAI defines and this server does not do."""
    server = "this server"
    for name in ("presence_penalty", "frequency_penalty", "logit_bias", "suffix"):
        if value := getattr(request, name):
            hint = "use repetition_penalty" if name.endswith("penalty") else "leave it out"
            raise InvalidValueError(name, value, f"no value: {server} does not support it", hint)
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise InvalidValueError("best_of", request.best_of, "the value of n")
    if request.echo and request.logprobs is not None:
        raise InvalidValueError("echo", True, "false together with logprobs")
    if request.stream_options is not None and not request.stream:
        raise InvalidValueError("stream_options", "set", "no value without stream")


# Streaming


class CompletionStream:
    """A completion as server-sent events. Generation starts here, so that errors get their own status."""

    def __init__(self, completion: Completion) -> None:
        self.completion, self.generated = completion, 0
        self.queue: asyncio.Queue[tuple[int, Token | None]] = asyncio.Queue()
        self.tasks = completion.start(lambda index, token: self.queue.put_nowait((index, token)))
        for index, task in enumerate(self.tasks):
            task.outputs.add_done_callback(lambda _, index=index: self.queue.put_nowait((index, None)))  # type: ignore[misc]
        self.choices = [_StreamedChoice(completion, index) for index in range(len(self.tasks))]
        options = completion.request.stream_options
        self.with_usage = options is not None and options.include_usage

    async def events(self, deadline: float, metrics: Metrics) -> AsyncIterator[bytes]:
        """All events, an error as the last if something goes wrong."""
        started = time.monotonic()
        try:
            async for event in self._events(deadline - RESERVE):
                yield event
            yield b"data: [DONE]\n\n"
        except TimeoutError:
            error: GlassformerError = RequestTimeoutError(round(time.monotonic() - started))
            yield b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"
        except GlassformerError as error:
            yield b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"
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
    """The text of one choice, piece by piece."""

    def __init__(self, completion: Completion, index: int) -> None:
        task = completion.task
        prompt = completion.prompt(index) if task.architecture == "decoder-only" else []
        self.index = index
        self.pieces = IncrementalDecoder(completion.tokenizer, prompt, task.request.config.stop_strings)
        self.pending: list[Token] = []  # reported with the next piece
        self.logprobs = completion.logprobs()
        self.echo = completion.echo(index)

    def push(self, token: Token) -> CompletionChoice | None:
        """The next piece, if this token completes one."""
        self.pending.append(token)
        piece = self.pieces.push(token.id)
        return self._choice(piece, None) if piece or self.echo else None

    def end(self, output: GenerationOutput) -> CompletionChoice:
        """The last piece."""
        return self._choice(self.pieces.end(), FINISH_REASONS[output.finish_reason])

    def _choice(self, piece: str, reason: Literal["stop", "length"] | None) -> CompletionChoice:
        text, self.echo = self.echo + piece, ""
        logprobs = None if self.logprobs is None else self.logprobs.of(self.pending)
        self.pending = []
        return CompletionChoice(text=text, index=self.index, logprobs=logprobs, finish_reason=reason)


# Log-probabilities


class TokenTexts:
    """The text of single tokens, cached for all choices of a request."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._pieces: dict[int, str] = {}

    def piece(self, token: int) -> str:
        """The token as it is shown; part of a character as its bytes."""
        if token not in self._pieces:
            (self._pieces[token],) = self._tokenizer.pieces([token], side="target")
        return self._pieces[token]

    def part(self, token: int, *, bare: bool) -> str | bytes:
        """What the token adds to a text: characters, or bytes of some. bare: without its leading space."""
        (part,) = self._tokenizer.parts([token], side="target")
        alone = self._tokenizer.decode([token], side="target")
        if isinstance(part, bytes):
            return part.removeprefix(b" ") if bare and not alone.startswith(" ") else part
        return alone if bare or not alone else part  # a special token adds nothing


class TokenLogprobs:
    """Log-probabilities and text offsets of one choice, some tokens at a time.

    top: how many of the most likely tokens to report. bare: the text begins without its first token's space.
    """

    def __init__(self, texts: TokenTexts, top: int, *, bare: bool) -> None:
        self._texts, self._top, self._bare = texts, top, bare
        self._length = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")

    def of(self, tokens: Sequence[Token]) -> Logprobs:
        """The next tokens."""
        return Logprobs(
            tokens=[self._texts.piece(token.id) for token in tokens],
            token_logprobs=[token.logprob for token in tokens],
            top_logprobs=[self._top_of(token) for token in tokens] if self._top else None,
            text_offset=[self._offset(token.id) for token in tokens],
        )

    def _top_of(self, token: Token) -> dict[str, float]:
        """The most likely tokens, and the generated one if it is not among them."""
        return {self._texts.piece(one): value for one, value in (*token.top, (token.id, token.logprob))}

    def _offset(self, token: int) -> int:
        """Where the token begins in the text; bytes that never complete a character are not counted."""
        begin = self._length
        part = self._texts.part(token, bare=self._bare)
        self._bare = False
        if isinstance(part, str):
            self._decoder.reset()
            self._length += len(part)
        else:
            self._length += len(self._decoder.decode(part))
        return begin
