"""What a model writes for the server: begun at once, told token by token, given up when nobody waits.

All of a model's texts are written together (`decoding.continuous`), in a thread of the model's own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from glassformer.bundle import Bundle
from glassformer.generation.continuous import Busy as Full
from glassformer.generation.continuous import Cancelled, Closed, Failed, Stats, Token, Unsound, Writer
from glassformer.generation.continuous import Job as Running
from glassformer.generation.written import Written
from glassformer.server.answers import Busy, GaveUp, Refused
from glassformer.server.limits import SOURCE
from glassformer.server.passage import Client, Left
from glassformer.tasks.writing.batches import Plan

OnToken = Callable[[Token], None]
WAITING = 16_384  # texts that wait for a place; requests are bounded before
TOGETHER = 32  # texts of one request that are begun at a time, so that others have their turn


class Job:
    """One text that is being written: `done` gives what it came to, the best first.

    tokens: those written so far, where somebody listens to them.
    """

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.done: asyncio.Future[list[Written]] = asyncio.get_running_loop().create_future()
        self.running: Running | None = None

    def cancel(self) -> None:
        """Nobody wants it any more."""
        if self.running is not None:
            self.running.cancel()

    def end(self, found: list[Written] | Exception) -> None:
        """It came to this; called in the loop."""
        if self.done.done():
            return
        match found:
            case list():
                self.done.set_result(found)
            case Cancelled():
                self.done.set_exception(Left())
            case Unsound():  # by what was asked for, so it is told as such
                self.done.set_exception(Refused(str(found)))
            case Failed() | Closed():
                self.done.set_exception(GaveUp(str(found)))
            case _:
                self.done.set_exception(found)
        self.done.exception()  # heard, even where nobody waits any more


class Writing:
    """One model's writing."""

    def __init__(self, bundle: Bundle, *, slots: int) -> None:
        self._writer = Writer(bundle.ready(), slots=slots, queue=WAITING)

    def begin(
        self,
        plan: Plan,
        ids: list[int],
        client: Client,
        on_token: OnToken | None = None,
        *,
        top: int | None = None,
    ) -> Job:
        """Begin to write from these ids; it is given up when the client leaves.

        `on_token` is called in the loop that is running now. top: how many of the likeliest tokens are told
        beside each; None: nobody asks for probabilities.
        """
        if plan.ends.shape == "rewrites" and len(ids) > SOURCE:
            raise Refused(
                f"a text has {len(ids):,} tokens, and at most {SOURCE:,} are read at once; split it"
            )
        job, loop = Job(), asyncio.get_running_loop()

        def take(token: Token) -> None:
            job.tokens.append(token)
            if on_token is not None:
                on_token(token)

        heard = on_token is not None or top is not None
        try:
            job.running = self._writer.submit(
                ids,
                settings=plan.settings,
                eos_id=plan.ends.eos_ids,
                start_ids=plan.ends.start_ids,
                max_new_tokens=plan.most(len(ids)) if plan.most is not None else None,
                decode=plan.decode,
                top=top or 0,
                caller=client,
                on_token=(lambda token: loop.call_soon_threadsafe(take, token)) if heard else None,
                on_done=lambda found: loop.call_soon_threadsafe(job.end, found),
            )
        except Full as error:
            raise Busy(str(error)) from None
        except Closed as error:
            raise GaveUp(str(error)) from None
        client.on_leave(job.cancel)
        return job

    async def all(self, plan: Plan, sources: Sequence[list[int]], client: Client) -> list[list[Written]]:
        """What is written for each of these, some at a time; where one fails, the others are given up."""
        free = asyncio.Semaphore(TOGETHER)
        jobs: list[Job] = []

        async def one(ids: list[int]) -> list[Written]:
            async with free:
                if client.gone:
                    raise Left
                job = self.begin(plan, ids, client)
                jobs.append(job)
                return await job.done

        tasks = [asyncio.ensure_future(one(ids)) for ids in sources]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            for job in jobs:
                job.cancel()

    def stats(self) -> Stats:
        """How it stands."""
        return self._writer.stats()

    def close(self) -> None:
        """Finish what was begun."""
        self._writer.close()


async def gathered(jobs: Sequence[Job]) -> list[list[Written]]:
    """What all of them come to; where one fails, the others are given up."""
    try:
        return list(await asyncio.gather(*(job.done for job in jobs)))
    finally:
        for job in jobs:
            job.cancel()
