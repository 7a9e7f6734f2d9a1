"""Texts in, what a model writes for them out, in order: pieces go to the engine in batches and come back."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

from glassformer.bundle import Bundle
from glassformer.generation import (
    GenerationConfig,
    GenerationOutput,
    GenerationRequest,
    SearchTree,
    generate_batched,
)
from glassformer.tasks.watch import UNWATCHED, Watch
from glassformer.tasks.writing.checks import within_bounds
from glassformer.tasks.writing.doubts import Doubt
from glassformer.tasks.writing.ends import Ends
from glassformer.tasks.writing.pieces import Layout, Place

ON_GPU, ON_CPU = 16_384, 4096  # tokens of a batch; a CPU gains nothing by more, and answers later


class LayOut(Protocol):
    """Texts to layouts, in order: an empty one of what is refused, where that is heard, or left."""

    def __call__(self, texts: Iterable[str], watch: Watch = UNWATCHED) -> Iterator[Layout]: ...


@dataclass(frozen=True, kw_only=True)
class Passage:
    """What was written for one text.

    score: as the engine gives it, summed over the pieces that the text was read in. tokens: how many were
    written. seconds: from the text's being read until this was there, waiting for its batch included.
    ended: by the end token, the limit, or a stop text; "length" where the limit ended any of its pieces.
    doubts: what was read and the model has not learnt to read (`doubts`).
    others: the next best, as many as num_return_sequences asks for. trees: how each piece was found, where
    that was asked for.
    fresh: whether batches began with this text, so that all from it on come out the same to the bit where the
    writing is begun with it.
    """

    text: str
    score: float
    tokens: int
    seconds: float
    ended: Literal["end", "length", "stop"]
    doubts: tuple[Doubt, ...] = ()
    others: tuple[Passage, ...] = ()
    trees: tuple[SearchTree, ...] = ()
    fresh: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How texts become places for answers, and answers texts.

    limit: the most tokens written, by how many were read, where the settings do not say. doubts: what there
    is to doubt of a text. keep_tree: whether passages tell how they were found.
    """

    bundle: Bundle
    ends: Ends
    settings: GenerationConfig
    layouts: LayOut
    compose: Callable[[Layout, list[list[int]]], str]
    decode: Callable[[list[int]], str]
    limit: Callable[[int], int]
    doubts: Callable[[Layout], tuple[Doubt, ...]]
    keep_tree: bool = False

    @property
    def most(self) -> Callable[[int], int] | None:
        """The limit, where it counts."""
        bounded = self.settings.max_new_tokens is not None or self.settings.max_length is not None
        return None if bounded else self.limit

    @property
    def request(self) -> GenerationRequest:
        """What `generate` is given."""
        return GenerationRequest(
            config=self.settings,
            start_ids=self.ends.start_ids,
            eos_token_id=self.ends.eos_ids,
            pad_token_id=self.ends.pad_id,
            max_new_tokens=self.most,
            decode=self.decode,
            return_tree=self.keep_tree,
        )


@dataclass
class _Waiting:
    """A text whose answers are on their way."""

    layout: Layout
    since: float
    left: int
    unwritten: int
    found: list[list[GenerationOutput]]
    fresh: bool
    times: int = 1


def passages(
    plan: Plan, texts: Iterable[str], *, batch_tokens: int | None, watch: Watch = UNWATCHED
) -> Iterator[Passage]:
    """One passage a text, in order; no more texts are held than the engine looks ahead."""
    if batch_tokens is None:
        on_cpu = next(plan.bundle.model.parameters()).device.type == "cpu"
        batch_tokens = ON_CPU if on_cpu else ON_GPU
    waiting: deque[_Waiting] = deque()
    asked_by: dict[int, _Waiting] = {}  # examples not yet written, as they are counted

    def written(examples: Sequence[int]) -> None:
        whole = 0
        for number in examples:
            text = asked_by.pop(number)
            text.unwritten -= 1
            whole += text.unwritten == 0
        watch.answered(whole)

    def examples() -> Iterator[list[int]]:
        count = 0
        for layout in plan.layouts(texts, watch):
            places = [part for part in layout if isinstance(part, Place)]
            if not places:
                watch.answered(1)
            if not places and waiting and waiting[-1].layout == layout:
                waiting[-1].times += 1  # of a million empty lines in a row one is held
                continue
            one = _Waiting(layout, time.perf_counter(), len(places), len(places), [], fresh=not waiting)
            waiting.append(one)
            for place in places:
                asked_by[count] = one
                count += 1
                yield place.ids

    def finished() -> Iterator[Passage]:
        while waiting and waiting[0].left == 0:
            done = waiting.popleft()
            passage = _passage(plan, done)
            yield passage
            for _ in range(done.times - 1):
                yield replace(passage, fresh=False)

    answers = generate_batched(
        plan.bundle.ready(), examples(), plan.request, batch_tokens=batch_tokens, on_batch=written
    )
    for answer in _bounded(answers):
        yield from finished()  # texts with nothing to ask, such as empty lines
        waiting[0].found.append(answer)
        waiting[0].left -= 1
        yield from finished()
    yield from finished()


def _bounded(answers: Iterator[list[GenerationOutput]]) -> Iterator[list[GenerationOutput]]:
    while True:
        with within_bounds():
            answer = next(answers, None)
        if answer is None:
            return
        yield answer


def _passage(plan: Plan, done: _Waiting) -> Passage:
    seconds = time.perf_counter() - done.since
    many = len(done.found[0]) if done.found else 1
    ranked = [_ranked(plan, done, rank, seconds) for rank in range(many)]
    return replace(ranked[0], others=tuple(ranked[1:]), fresh=done.fresh)


def _ranked(plan: Plan, done: _Waiting, rank: int, seconds: float) -> Passage:
    found = [answers[rank] for answers in done.found]
    endings = {one.finish_reason for one in found}
    return Passage(
        text=plan.compose(done.layout, [one.ids for one in found]),
        score=sum((one.score for one in found), 0.0),
        tokens=sum(len(one.ids) for one in found),
        seconds=seconds,
        doubts=plan.doubts(done.layout),
        ended="length" if "length" in endings else "stop" if "stop" in endings else "end",
        trees=tuple(one.tree for one in found if one.tree is not None),
    )
