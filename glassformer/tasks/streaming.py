"""Stream text while it is generated: the model runs in a thread that passes on each token."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace

from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.engine import generate
from glassformer.generation.params import GeneratedToken, GenerationOutput
from glassformer.generation.prompt import Prompt
from glassformer.generation.stopping_criteria import truncate_at_stop
from glassformer.tasks.base import In
from glassformer.tasks.text_generation import (
    CONTEXT_TOKENS,
    GeneratedText,
    PromptTask,
    Segment,
    common_prefix,
    memory_errors,
    segments_of,
)
from glassformer.tokenization import Tokenizer

_WINDOW = 128  # tokens decoded at once


class IncrementalDecoder:
    """Decode tokens one by one into pieces of text; the joined pieces are the text of all tokens.

    `push` returns the text of the token, and `end` the rest. Held back are only incomplete characters, the
    possible start of a stop string, and what the tokenizer may still clean up. The text ends before the first
    stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int] = (), stop_strings: Sequence[str] = ()
    ) -> None:
        self._tokenizer, self._stop_strings = tokenizer, stop_strings
        self._ids = list(prompt[-CONTEXT_TOKENS:])
        self._text = self._prompt = tokenizer.decode(self._ids)
        self._has_started = False
        self._sent = len(self._text)  # characters of the text that were returned

    def push(self, token: int) -> str:
        """Add a token; return the new text that later tokens cannot change."""
        if len(self._ids) >= _WINDOW and self._has_started:
            self._shrink()
        self._ids.append(token)
        self._text = self._tokenizer.decode(self._ids)
        if not self._has_started:
            self._sent = common_prefix(self._prompt, self._text)
        return self._send(len(self._text) - max(self._tokenizer.unstable_characters, self._stop_prefix()))

    def end(self) -> str:
        """Return the remaining text."""
        return self._send(len(self._text))

    def _stop_prefix(self) -> int:
        """Return how many characters at the end may be the start of a stop string."""
        unsent = self._text[self._sent :]
        lengths = (n for stop in self._stop_strings for n in range(1, len(stop)) if unsent.endswith(stop[:n]))
        return max(lengths, default=0)

    def _send(self, end: int) -> str:
        # generation ends with a stop string, so any text after it belongs to the same token
        before_stop = len(truncate_at_stop(self._text[self._sent :], self._stop_strings))
        end = min(max(end, self._sent), self._sent + before_stop)
        piece = self._text[self._sent : end]
        self._sent = end
        self._has_started = self._has_started or bool(piece)
        return piece

    def _shrink(self) -> None:
        """Drop the first half of the tokens, if that leaves the unsent text unchanged."""
        owed = len(self._text) - self._sent
        ids = self._ids[_WINDOW // 2 :]
        text = self._tokenizer.decode(ids)
        if owed <= len(text) and text.endswith(self._text[self._sent :]):
            self._ids, self._text, self._sent = ids, text, len(text) - owed


class _Stopped(Exception):
    """The reader closed the stream."""


class TextStream(Iterator[str]):
    """Continue one prompt or conversation and yield pieces of text; joined, they equal the task's output.

    result: the result of the task, set when the stream has ended. warnings: set with the first piece.
    """

    def __init__(self, task: PromptTask[In], prompt: In) -> None:
        config = task.params.config
        if not task.is_single(prompt):
            raise InvalidValueError("prompt", type(prompt).__name__, "a single input")
        if config.num_beams > 1 or config.num_return_sequences > 1:
            raise UnsupportedError(
                "streaming", "multiple sequences", hint="set num_beams and num_return_sequences to 1"
            )
        (self._document,) = task.preprocess([prompt])
        self.result: GeneratedText | None = None
        self.warnings = task.warnings(self._document)
        self._pieces = self._run(task)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop generating."""
        self._pieces.close()

    def _run(self, task: PromptTask[In]) -> Generator[str, None, None]:
        (segment,) = segments_of(self._document)
        prompt = segment.ids if task.architecture == "decoder-only" else []
        decoder = IncrementalDecoder(task.tokenizer, prompt, task.params.config.stop_strings)
        for token in self._tokens(task, segment):
            if piece := decoder.push(token):
                yield piece
        if piece := decoder.end():
            yield piece

    def _tokens(self, task: PromptTask[In], segment: Segment) -> Iterator[int]:
        tokens: queue.SimpleQueue[int | list[GenerationOutput] | BaseException] = queue.SimpleQueue()
        closed = threading.Event()

        def on_token(token: GeneratedToken) -> None:
            # at exit the program waits for the thread, so that no running kernel is interrupted
            if closed.is_set() or not threading.main_thread().is_alive():
                raise _Stopped
            tokens.put(token.id)

        def work() -> None:
            try:
                params = replace(task.params, on_token=on_token)
                (output,) = generate(task.bundle.inference_model(), [Prompt.of(segment.source)], params)
                tokens.put(output)
            except _Stopped:
                pass
            except BaseException as error:  # raised again in the thread that reads the stream
                tokens.put(error)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while not isinstance(item := tokens.get(), list):
                if isinstance(item, BaseException):
                    with memory_errors():
                        raise item
                yield item
            self.result = task.postprocess(self._document, [item])
        finally:
            closed.set()
            thread.join()
