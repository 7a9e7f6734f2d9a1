"""A completion as server-sent events: pieces of text that joined are the whole, then how it ended."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from glassformer.errors import GlassformerError
from glassformer.server.answers import GaveUp, Refused, keyed, problem, told
from glassformer.server.completing import FINISHED, Completing
from glassformer.server.metrics import Metrics
from glassformer.server.passage import Client, Left
from glassformer.server.writing import Job, Token
from glassformer.tasks.writing.prompts import Pieces

SPARE = 0.5  # seconds before the end of a client's time, in which it is told so


def events(
    completing: Completing, about: dict[str, Any], client: Client, metrics: Metrics
) -> AsyncIterator[bytes]:
    """Begin to write, and give the events of it."""
    heard: asyncio.Queue[tuple[int, Token | None]] = asyncio.Queue()
    jobs = completing.begin(client, lambda index, token: heard.put_nowait((index, token)))
    for index, job in enumerate(jobs):
        job.done.add_done_callback(partial(_ended, heard, index))
    choices = [_Choice(completing, index) for index in range(len(jobs))]
    return _told(_Stream(completing, about, metrics, heard, jobs, choices), client)


def _ended(heard: asyncio.Queue[tuple[int, Token | None]], index: int, _: object) -> None:
    heard.put_nowait((index, None))


class _Choice:
    """One choice's text on its way out."""

    def __init__(self, completing: Completing, index: int) -> None:
        plan = completing.plan
        before = completing.prompt(index) if plan.ends.shape == "continues" else []
        self.index = index
        self.pieces = Pieces(completing.tokenizer, before, plan.settings.stop)
        self.held: list[Token] = []  # told with the next piece
        self.likely = completing.likelihoods()
        self.first = completing.echoed(index)

    def push(self, token: Token) -> dict[str, Any] | None:
        """The event that this token makes, where it makes one."""
        self.held.append(token)
        piece = self.pieces.push(token.id)
        return self.event(piece, None) if piece or self.first else None

    def event(self, piece: str, finished: str | None) -> dict[str, Any]:
        """A piece of text, and whether it is the last."""
        text, self.first = self.first + piece, ""
        logprobs = None if self.likely is None else self.likely.told(self.held)
        self.held = []
        return {"text": text, "index": self.index, "logprobs": logprobs, "finish_reason": finished}


class _Stream:
    """Everything that one stream's events are made of."""

    def __init__(
        self,
        completing: Completing,
        about: dict[str, Any],
        metrics: Metrics,
        heard: asyncio.Queue[tuple[int, Token | None]],
        jobs: list[Job],
        choices: list[_Choice],
    ) -> None:
        self.completing, self.about, self.metrics = completing, about, metrics
        self.heard, self.jobs, self.choices = heard, jobs, choices
        self.written = 0
        options = completing.asked.stream_options
        self.counts = options is not None and options.include_usage

    def line(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        told = {**self.about, "choices": choices}
        return _line({**told, "usage": usage} if self.counts else told)

    async def lines(self, until: float) -> AsyncIterator[bytes]:
        left = len(self.jobs)
        while left:
            async with asyncio.timeout(max(0.0, until - time.monotonic())):
                index, token = await self.heard.get()
                await asyncio.sleep(0)  # where much is there already, others have their turn meanwhile
            if token is not None:
                event = self.choices[index].push(token)
            else:
                left -= 1
                (written, *_) = self.jobs[index].done.result()
                self.written += len(written.ids)
                choice = self.choices[index]
                event = choice.event(choice.pieces.end(), FINISHED[written.ended])
            if event is not None:
                yield self.line([event])
        if self.counts:
            yield self.line([], self.completing.usage(self.written))


async def _told(stream: _Stream, client: Client) -> AsyncIterator[bytes]:
    try:
        async for line in stream.lines(client.until - SPARE):
            yield line
        yield b"data: [DONE]\n\n"
    except Left:
        return
    except TimeoutError:
        yield _line(told(GaveUp("the answer takes longer than anybody may wait; it ends here")))
    except Refused as error:
        yield _line(told(error))
    except GlassformerError as error:
        yield _line(problem(keyed(str(error))))
    finally:
        for job in stream.jobs:
            job.cancel()
        read = sum(map(len, stream.completing.ids))
        stream.metrics.tokens(stream.completing.model, read=read, written=stream.written)


def _line(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, separators=(",", ":")).encode() + b"\n\n"
