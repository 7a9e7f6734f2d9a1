"""What a writer does between two looks at its queue: let go, admit, read a little, and take one step.

R rows of one request, V vocabulary.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import ExitStack
from math import isnan
from typing import Final

import torch
from torch import Tensor, nn

from glassformer.generation.continuous.asked import vocabulary
from glassformer.generation.continuous.batch import Batch, Seat
from glassformer.generation.continuous.choosing import Lines, Search
from glassformer.generation.continuous.errors import RequestCancelledError, SchedulerClosedError, failure
from glassformer.generation.continuous.job import Request
from glassformer.generation.continuous.member import PIECE, Counts, Member, Newcomer, Next, results
from glassformer.generation.continuous.together import Choice, choices
from glassformer.generation.inference_model import InferenceModel
from glassformer.inference.prepare import evaluation_mode

WHILE_IDLE: Final = 1024  # tokens that are read at once where nobody waits for the next step
_log = logging.getLogger("glassformer.writer")


class Round:
    """The requests under way with one model, and their steps."""

    def __init__(self, model: nn.Module, slots: int, tokens: int) -> None:
        assert isinstance(model, InferenceModel)
        self.ready, self.slots, self.tokens = model, slots, tokens
        self.batch = Batch(model)
        self.members: list[Member] = []
        self.reading: deque[Newcomer] = deque()
        self.counts = Counts()
        self._between: list[Newcomer] = []  # read, and about to join
        self._resting = ExitStack()  # no dropout while anything is under way
        self._stopping = False

    @property
    def busy(self) -> bool:
        return bool(self.members or self.reading)

    @property
    def rows(self) -> int:
        """Rows in use, or soon to be."""
        return self.batch.slots.rows + sum(one.job.asked.rows for one in list(self.reading))

    def stop(self) -> None:
        """Let go of everything at the next turn."""
        self._stopping = True

    def turn(self, take: Next) -> None:
        """Let go of those who left, admit, read a little, and take a step."""
        with torch.cuda.device_of(self.batch.parameter):
            try:
                if not self.busy:
                    self._begin()
                self._turn(take)
            except Exception as error:  # what the rows held cannot be trusted any more
                _log.exception("a step failed")
                failed = failure("decoding", error)
                if not self._under_way() and (first := take(self.slots, self.tokens)) is not None:
                    first.finish(failed)  # nothing can be begun: who is first must hear of it
                self._lose(failed)
        if not self.busy:
            self._resting.close()

    def _begin(self) -> None:
        """After a pause: the model may have changed, or moved."""
        self._resting.enter_context(evaluation_mode(self.ready.model))
        self.ready.refresh()
        self.batch = Batch(self.ready)

    def _turn(self, take: Next) -> None:
        if self._stopping:
            self.end()
        self._let_go()
        self._admit(take)
        self._read()
        if self.members:
            logits = self.batch.step([token for member in self.members for token in member.ids])
            self.counts.steps += 1
            self._choose(list(self.members), logits)

    def end(self) -> None:
        """Nothing more will be written."""
        self._lose(SchedulerClosedError())

    def _under_way(self) -> list[Request]:
        return [one.job for one in (*self._between, *self.reading)] + [one.job for one in self.members]

    def _lose(self, error: Exception) -> None:
        """Everything under way comes to nothing."""
        jobs = self._under_way()
        self.members, self.reading, self._between = [], deque(), []
        self.batch = Batch(self.ready)
        for job in jobs:
            job.finish(error)

    # ---- coming and going ----------------------------------------------------------------------------

    def _let_go(self) -> None:
        for one in [one for one in self.reading if one.job.cancelled]:
            self.reading.remove(one)
            one.job.finish(RequestCancelledError())
        for member in [member for member in self.members if member.job.cancelled]:
            self._finish(member, RequestCancelledError())

    def _admit(self, take: Next) -> None:
        tokens = self.tokens - sum(job.asked.tokens for job in self._under_way())
        while (job := take(self.slots - self.rows, tokens)) is not None:
            self.counts.jobs += 1
            try:
                newcomer = Newcomer(job, self._chooser(job))
            except Exception as error:  # by its own settings
                job.finish(failure("prefill", error))
                continue
            tokens -= job.asked.tokens
            self.reading.append(newcomer)

    def _chooser(self, job: Request) -> Lines | Search:
        kind = Search if job.asked.settings.num_beams > 1 else Lines
        return kind(job.asked, vocabulary(self.ready), self.batch.parameter.device)

    def _finish(self, member: Member, error: Exception | None = None) -> None:
        """Its rows are free from now on."""
        for seat in member.seats:
            self.batch.leave(seat)
        self.members.remove(member)
        member.job.finish(results(member.chooser) if error is None else error)

    # ---- reading -------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Read what fits between two steps: each newcomer a piece, in turn."""
        for one in [one for one in self.reading if not one.job.asked.limit]:
            one.job.finish(results(one.chooser))
            self.reading.remove(one)
        taken: list[Newcomer] = []
        room = PIECE if self.members else WHILE_IDLE
        while self.reading and (not taken or len(self.reading[0].piece()) <= room):
            taken.append(self.reading.popleft())
            room -= len(taken[-1].piece())
        if not taken:
            return
        pieces = [one.piece() for one in taken]
        try:
            if self.batch.sources is not None:
                sources = self.batch.read_sources(pieces)
            else:
                last = self.batch.read_pieces(pieces, [one.past for one in taken])  # (M, D)
        except Exception as error:
            _log.exception("reading failed")
            for one in taken:
                one.job.finish(failure("prefill", error))
            return
        for one, piece in zip(taken, pieces, strict=True):
            one.done += len(piece)
            self.counts.read += len(piece)
        self._between = taken
        if self.batch.sources is not None:
            for one, (k, v) in zip(taken, sources, strict=True):
                seats = [self.batch.join_with_source(width, k, v) for width in _widths(one.job)]
                self._join(one, seats)
        else:
            self._go_on_from(taken, last)
        self._between = []

    def _go_on_from(self, taken: list[Newcomer], last: Tensor) -> None:
        """The vectors (M, D) of the last tokens read: those whose prompt is read whole choose their first."""
        whole = [n for n, one in enumerate(taken) if one.done == len(one.job.asked.ids)]
        self.reading.extend(one for one in taken if one.done < len(one.job.asked.ids))
        if not whole:
            return
        logits = self.ready.logits(last.index_select(0, torch.tensor(whole, device=last.device)))
        joined = []
        for n in whole:
            one = taken[n]
            seats = [self.batch.join_after(width, one.past) for width in _widths(one.job)]
            joined.append(self._join(one, seats))
        each = torch.tensor([member.job.asked.rows for member in joined], device=logits.device)
        self._choose(joined, logits.repeat_interleave(each, 0))

    def _join(self, one: Newcomer, seats: list[Seat]) -> Member:
        asked = one.job.asked
        first, more = asked.starts[:1], asked.starts[1:]
        member = Member(one.job, one.chooser, seats, list(first) * asked.rows, list(more))
        self.members.append(member)
        return member

    # ---- writing -------------------------------------------------------------------------------------

    def _choose(self, members: list[Member], logits: Tensor) -> None:
        """Logits (R, V) of the rows of these members, one after another."""
        at = 0
        lines: list[tuple[Member, Lines, int]] = []
        searches: list[tuple[Member, Search, Tensor]] = []
        for member in members:
            count = sum(seat.slot.width for seat in member.seats)
            if member.starts:
                member.ids = [member.starts.pop(0)] * count
            elif isinstance(member.chooser, Lines):
                lines.append((member, member.chooser, at))
            else:
                searches.append((member, member.chooser, logits[at : at + count]))
            at += count
        if lines:
            found = choices([chooser for _, chooser, _ in lines], [begin for _, _, begin in lines], logits)
            for (member, chooser, _), choice in zip(lines, found, strict=True):
                self._take(member, chooser, choice)
        for member, search, own in searches:
            self._search(member, search, own)

    def _take(self, member: Member, chooser: Lines, choice: Choice) -> None:
        try:
            told, over = chooser.take(*choice)
        except Exception as error:  # a stop text is looked for with the caller's own function
            self._finish(member, failure("decoding", error))
            return
        self.counts.written += len(choice.ids)
        if any(map(isnan, choice.logprobs)):
            self._finish(member)
            return
        for token in told:
            member.job.tell(token)
        for place in reversed(over):
            self.batch.leave(member.seats.pop(place))
        member.ids = [token for place, token in enumerate(choice.ids) if place not in over]
        if not member.ids:
            self._finish(member)

    def _search(self, member: Member, search: Search, logits: Tensor) -> None:
        try:
            found = search.choose(logits)
        except Exception as error:
            self._finish(member, failure("decoding", error))
            return
        self.counts.written += 1
        if found is None:
            self._finish(member)
            return
        member.ids, moved = found
        if moved.tolist() != list(range(len(moved))):
            self.batch.reorder(member.seats[0], moved)


def _widths(job: Request) -> list[int]:
    """The seats that a request takes: one for all its beams, or one a text."""
    rows = job.asked.rows
    return [rows] if job.asked.settings.num_beams > 1 else [1] * rows
