"""Text while it is being written: the engine runs in a thread of its own and hands over each token."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace

import torch

from glassformer.errors import GlassformerError
from glassformer.generation import GenerationOutput, Token, generate
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.batches import Plan
from glassformer.tasks.writing.checks import within_bounds
from glassformer.tasks.writing.doubts import Doubt
from glassformer.tasks.writing.pieces import Place
from glassformer.tasks.writing.prompts import Pieces


@dataclass(frozen=True)
class _Failed:
    error: BaseException


class _Stopped(Exception):
    """Nobody asks any more."""


class Stream(Iterator[str]):
    """Pieces of text as they come; afterwards `written` says what they were made of, and how it ended.

    doubts: what the prompt has that the model has not learnt to read; known with the first piece.
    """

    def __init__(self, plan: Plan, prompt: str) -> None:
        self.written: GenerationOutput | None = None
        self.doubts: tuple[Doubt, ...] = ()
        self._pieces = self._run(plan, prompt)

    def __next__(self) -> str:
        return next(self._pieces)

    def close(self) -> None:
        """Stop writing."""
        self._pieces.close()

    def _run(self, plan: Plan, prompt: str) -> Generator[str, None, None]:
        (layout,) = plan.layouts([prompt])
        (place,) = layout
        assert isinstance(place, Place)
        self.doubts = plan.doubts(layout)
        before = place.ids if plan.ends.shape == "continues" else []
        pieces = Pieces(tokenizer_of(plan.bundle), before, plan.settings.stop_strings)
        for token in self._tokens(plan, place.ids):
            if piece := pieces.push(token):
                yield piece
        if piece := pieces.end():
            yield piece

    def _tokens(self, plan: Plan, ids: list[int]) -> Iterator[int]:
        ready: queue.SimpleQueue[int | GenerationOutput | _Failed] = queue.SimpleQueue()
        left = threading.Event()
        device = next(plan.bundle.model.parameters()).device

        def on_token(token: Token) -> None:
            # a program that ends while it writes waits for the thread, so that none is cut off in mid-kernel
            if left.is_set() or not threading.main_thread().is_alive():
                raise _Stopped
            ready.put(token.id)

        def work() -> None:
            try:
                found = generate(
                    plan.bundle.ready(),
                    torch.tensor([ids], device=device),
                    replace(plan.request, on_token=on_token),
                    attention_mask=torch.ones(1, len(ids), dtype=torch.bool, device=device),
                )
                ready.put(found[0][0])
            except _Stopped:
                pass
            except BaseException as error:  # told where the text is asked for
                ready.put(_Failed(error))

        thread = threading.Thread(target=work)
        thread.start()
        try:
            while not isinstance(found := ready.get(), GenerationOutput):
                if isinstance(found, _Failed):
                    with within_bounds():
                        raise found.error
                yield found
            self.written = found
        finally:
            left.set()
            thread.join()


def streamed(plan: Plan, prompt: str) -> Stream:
    """One prompt's text in pieces; beams, which settle on nothing before the end, are refused."""
    if not isinstance(prompt, str):
        raise GlassformerError(f"a stream goes on from one prompt, a string, not a {type(prompt).__name__}")
    if plan.settings.num_beams > 1 or plan.settings.num_return_sequences > 1:
        raise GlassformerError(
            "beams and several texts settle on nothing before the end, so they cannot be streamed; "
            "use num_beams 1 and num_return_sequences 1"
        )
    return Stream(plan, prompt)
