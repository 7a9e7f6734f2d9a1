"""Text generation for the event loop: requests of all clients share one batch per model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace

from glassformer.bundle import Bundle
from glassformer.errors import InputTooLongError
from glassformer.generation import GenerationOutput, GenerationRequest, Token
from glassformer.generation.continuous import Request, Scheduler, Stats
from glassformer.tasks.text_generation import generation_architecture

OnToken = Callable[[Token], None]
MAX_SOURCE = 4096  # tokens of a source, which is encoded in one step while other requests wait
MAX_QUEUED = 16_384  # texts that wait for a slot
MAX_CONCURRENT = 32  # texts of one request that are submitted at a time, so that others get their turn


class GenerationTask:
    """One text that is being generated. tokens: those generated so far, if somebody listens to them."""

    def __init__(self) -> None:
        self.tokens: list[Token] = []
        self.outputs: asyncio.Future[list[GenerationOutput]] = asyncio.get_running_loop().create_future()
        self.request: Request | None = None

    def cancel(self) -> None:
        """Stop generating."""
        if self.request is not None:
            self.request.cancel()

    def finish(self, result: list[GenerationOutput] | Exception) -> None:
        """Store the result; called in the event loop."""
        if self.outputs.done():
            return
        if isinstance(result, list):
            self.outputs.set_result(result)
        else:
            self.outputs.set_exception(result)
        self.outputs.exception()  # mark it as retrieved: nobody may be waiting any more


class GenerationService:
    """The scheduler of one model."""

    def __init__(self, bundle: Bundle, *, slots: int) -> None:
        self._scheduler = Scheduler(bundle.inference_model(), slots=slots, queue=MAX_QUEUED)
        self._reads_source = generation_architecture(bundle) == "encoder-decoder"

    def submit(
        self,
        request: GenerationRequest,
        ids: list[int],
        caller: Hashable,
        on_token: OnToken | None = None,
        *,
        top: int | None = None,
    ) -> GenerationTask:
        """Start to generate from these ids.

        caller: identifies the HTTP request; requests take turns. on_token: called in the running event loop.
        top: how many of the most likely tokens to report at each step; None: no probabilities.
        """
        if self._reads_source and len(ids) > MAX_SOURCE:
            raise InputTooLongError(len(ids), MAX_SOURCE, hint="split the text")
        task, loop = GenerationTask(), asyncio.get_running_loop()

        def receive(token: Token) -> None:
            task.tokens.append(token)
            if on_token is not None:
                on_token(token)

        listening = on_token is not None or top is not None
        request = replace(
            request,
            top_logprobs=top or 0,
            on_token=(lambda token: loop.call_soon_threadsafe(receive, token)) if listening else None,
        )
        task.request = self._scheduler.submit(
            ids,
            request,
            caller=caller,
            on_done=lambda result: loop.call_soon_threadsafe(task.finish, result),
        )
        return task

    async def generate_all(
        self, request: GenerationRequest, sources: Sequence[list[int]]
    ) -> list[list[GenerationOutput]]:
        """Generate from each source, some at a time; if one fails, the others are cancelled."""
        free, caller = asyncio.Semaphore(MAX_CONCURRENT), object()

        async def generate(ids: list[int]) -> list[GenerationOutput]:
            async with free:
                return (await wait_for([self.submit(request, ids, caller)]))[0]

        tasks = [asyncio.ensure_future(generate(ids)) for ids in sources]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()

    def stats(self) -> Stats:
        """The scheduler's counters."""
        return self._scheduler.stats()

    def close(self) -> None:
        """Finish the requests in progress."""
        self._scheduler.close()


async def wait_for(tasks: Sequence[GenerationTask]) -> list[list[GenerationOutput]]:
    """The outputs of all tasks; if one fails or the caller is cancelled, all are cancelled."""
    try:
        return list(await asyncio.gather(*(task.outputs for task in tasks)))
    finally:
        for task in tasks:
            task.cancel()
