"""Requests to a model that knows by itself how to write: each is written alone, in the order they came.

R rows, V vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from glassformer.generation.continuous.choosing import Lines, Search
from glassformer.generation.continuous.errors import RequestCancelledError, SchedulerClosedError, failure
from glassformer.generation.continuous.job import Request
from glassformer.generation.continuous.member import Counts, Next, results
from glassformer.generation.continuous.together import choices
from glassformer.generation.decoder import Decoder, reorder, widen
from glassformer.generation.inference_model import prefill
from glassformer.inference.prepare import evaluation_mode


class OneByOne:
    """One request at a time, a step a turn."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.counts = Counts()
        self._job: Request | None = None
        self._stopping = False

    @property
    def busy(self) -> bool:
        return self._job is not None

    @property
    def rows(self) -> int:
        job = self._job
        return 0 if job is None else job.asked.rows

    def stop(self) -> None:
        """Let go of everything at the next turn."""
        self._stopping = True

    def end(self) -> None:
        """Nothing more will be written."""
        self._finish(SchedulerClosedError())

    def turn(self, take: Next) -> None:
        """Go on with the request under way, or begin the next."""
        with evaluation_mode(self.model):
            try:
                if self._job is None:
                    self._begin(take)
                elif self._stopping:
                    self.end()
                elif self._job.cancelled:
                    self._finish(RequestCancelledError())
                else:
                    self._step()
            except Exception as error:
                self._finish(failure("decoding", error))

    def _finish(self, error: Exception | None = None) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.finish(results(self._chooser) if error is None else error)

    def _begin(self, take: Next) -> None:
        self._job = job = take(1 << 62, 1 << 62)
        if job is None:
            return
        self.counts.jobs += 1
        asked, device = job.asked, next(self.model.parameters()).device
        given = torch.tensor([asked.ids], dtype=torch.long, device=device)
        real = torch.ones_like(given, dtype=torch.bool)
        begun = prefill(self.model, given, real, start_ids=asked.starts or None, capacity=asked.limit)
        self.counts.read += len(asked.ids)
        self._steps: Decoder = begun.decoder
        searched = asked.settings.num_beams > 1
        self._chooser = (Search if searched else Lines)(asked, begun.logits.shape[-1], device)
        if not asked.limit:
            self._finish()
            return
        if searched:
            widen(self._steps, 1, asked.rows, device)
        elif asked.rows > 1:
            self._steps.select(torch.zeros(asked.rows, dtype=torch.long, device=device))
        self._choose(job, begun.logits.expand(asked.rows, -1))

    def _step(self) -> None:
        assert self._job is not None
        self.counts.steps += 1
        self._choose(self._job, self._steps.step(self._ids))

    def _choose(self, job: Request, logits: Tensor) -> None:
        """Logits (R, V) of the rows that go on."""
        chooser, device = self._chooser, logits.device
        if isinstance(chooser, Search):
            self.counts.written += 1
            found = chooser.choose(logits)
            if found is None:
                self._finish()
                return
            reorder(self._steps, found[1])
            self._ids = torch.tensor(found[0], device=device)
            return
        (choice,) = choices([chooser], [0], logits)
        told, over = chooser.take(*choice)
        self.counts.written += len(choice.ids)
        for token in told:
            job.tell(token)
        kept = [place for place in range(len(choice.ids)) if place not in over]
        if not kept:
            self._finish()
            return
        if over:
            self._steps.select(torch.tensor(kept, device=device))
        self._ids = torch.tensor([choice.ids[place] for place in kept], device=device)
