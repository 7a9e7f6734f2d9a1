"""What a model writes for the server: begun at once, told token by token, given up when nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch

from glassformer.api import Bundle
from glassformer.decoding.engine import write
from glassformer.decoding.written import Written
from glassformer.serve.passage import Client, Left
from glassformer.verbs.writing.batches import Plan


@dataclass(frozen=True)
class Token:
    """A token as it is written: its log-probability, and those of the likeliest at its place."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


OnToken = Callable[[Token], None]


class Job:
    """One text that is being written: `done` gives what it came to, the best first.

    tokens: those written so far, where somebody listens to them.
    """

    def __init__(self) -> None:
        self._left = threading.Event()
        self.tokens: list[Token] = []
        self.done: asyncio.Future[list[Written]]

    def cancel(self) -> None:
        """Nobody wants it any more."""
        self._left.set()


class Writing:
    """One model's writing."""

    def __init__(self, bundle: Bundle, *, slots: int, queue: int) -> None:
        self._bundle = bundle
        self._thread = ThreadPoolExecutor(1)
        bundle.ready()

    def begin(
        self, plan: Plan, ids: list[int], on_token: OnToken | None = None, *, top: int | None = None
    ) -> Job:
        """Begin to write from these ids; `on_token` is called in the loop that is running now."""
        job, loop = Job(), asyncio.get_running_loop()

        def take(token: Token) -> None:
            job.tokens.append(token)
            if on_token is not None:
                on_token(token)

        def heard(_: int, token: int) -> None:
            if job._left.is_set():
                raise Left
            if on_token is not None or top is not None:
                loop.call_soon_threadsafe(take, Token(token))

        def work() -> list[Written]:
            if job._left.is_set():
                raise Left
            device = next(self._bundle.model.parameters()).device
            return write(
                self._bundle.ready(),
                torch.tensor([ids], device=device),
                settings=plan.settings,
                start_ids=plan.ends.start_ids,
                eos_id=plan.ends.eos_ids,
                pad_id=plan.ends.pad_id,
                mask=torch.ones(1, len(ids), dtype=torch.bool, device=device),
                max_new_tokens=plan.most(len(ids)) if plan.most is not None else None,
                decode=plan.decode,
                on_token=heard if plan.settings.num_beams == 1 else None,
            )[0]

        job.done = asyncio.wrap_future(self._thread.submit(work))
        return job

    def begin_all(self, plan: Plan, sources: Sequence[list[int]], client: Client) -> list[Job]:
        """Begin with each of these; all are given up when the client leaves, or one cannot be begun."""
        jobs: list[Job] = []
        try:
            for ids in sources:
                jobs.append(self.begin(plan, ids))
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        for job in jobs:
            client.on_leave(job.cancel)
        return jobs

    def rows(self) -> int:
        """Texts that are being written now."""
        return 0

    def waiting(self) -> int:
        """Texts that wait for their turn."""
        return self._thread._work_queue.qsize()

    def close(self) -> None:
        """Finish what was begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)


async def gathered(jobs: Sequence[Job]) -> list[list[Written]]:
    """What all of them come to; where one fails, the others are given up."""
    try:
        return list(await asyncio.gather(*(job.done for job in jobs)))
    finally:
        for job in jobs:
            job.cancel()
