"""What /v1/completions asks for, checked, begun and put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.written import Written
from glassformer.server.answers import Refused
from glassformer.server.likelihoods import Likelihoods, Spelling
from glassformer.server.limits import ROWS
from glassformer.server.models import Served, check_writes
from glassformer.server.passage import Client
from glassformer.server.schema import Completion
from glassformer.server.writing import Job, Token, gathered
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.batches import Plan
from glassformer.tasks.writing.continuing import continuing
from glassformer.tasks.writing.ends import shape_of
from glassformer.tasks.writing.pieces import Place

TOKENS = 16  # written where nothing says how many, as OpenAI has it
FINISHED = {"end": "stop", "stop": "stop", "length": "length"}


@dataclass(frozen=True, kw_only=True)
class Choice:
    """One answer to one prompt; tokens: how many were written."""

    index: int
    text: str
    logprobs: dict[str, Any] | None
    finished: str
    tokens: int


class Completing:
    """A request for completions: its prompts as ids, and the plan by which they are gone on from."""

    def __init__(self, served: Served, asked: Completion) -> None:
        _done_here(asked)
        try:
            check_writes(served.bundle)
        except GlassformerError as error:
            raise Refused(str(error), param="model") from None
        assert served.writing is not None  # as every model has that writes
        self.asked, self.writing, self.model = asked, served.writing, served.id
        self.tokenizer = tokenizer_of(served.bundle)
        self.plan = self._planned(served.bundle)
        self.many = asked.n or 1
        self._spelling = Spelling(self.tokenizer)
        self.ids, self.texts = self._prompts(asked.prompt)

    def _planned(self, bundle: Bundle) -> Plan:
        """How it is written; ids hold the mark of their language themselves."""
        asked = self.asked
        if asked.to is not None and shape_of(bundle) == "continues":
            raise Refused(f"{self.model} translates nothing; leave out to", param="to")
        ids = not _is_text(asked.prompt)
        if asked.to is not None and ids:
            raise Refused(
                "ids begin with the mark of their language; leave out to, or give texts", param="to"
            )
        return continuing(bundle, _settings(asked), "keep" if ids else "plain", to=asked.to, by="`to`")

    def _prompts(self, given: Any) -> tuple[list[list[int]], list[str]]:
        """The prompts' ids, and their texts where they are told again."""
        prompts: Any = [given] if isinstance(given, str) or isinstance(given[0], int) else given
        if len(prompts) * self.many > ROWS:
            raise Refused(
                f"{len(prompts)} prompts with n = {self.many} are more than {ROWS} answers; ask for fewer"
            )
        if isinstance(prompts[0], str):
            layouts = self.plan.layouts(prompts)
            return [part.ids for layout in layouts for part in layout if isinstance(part, Place)], prompts
        _check_ids(prompts, vocabulary=self.tokenizer.vocab_size, room=self.plan.ends.reads)
        return prompts, [self.tokenizer.decode(ids, side="source") for ids in prompts]

    def begin(self, client: Client, on_token: Callable[[int, Token], None] | None = None) -> list[Job]:
        """Begin every choice; where one cannot be begun, all are given up."""
        jobs: list[Job] = []
        try:
            for index in range(len(self.ids) * self.many):
                settings = self.plan.settings
                if settings.seed is not None:
                    settings = replace(settings, seed=settings.seed + index)
                hear = None if on_token is None else _numbered(on_token, index)
                plan = replace(self.plan, settings=settings)
                jobs.append(
                    self.writing.begin(plan, self.prompt(index), client, hear, top=self.asked.logprobs)
                )
        except BaseException:
            for job in jobs:
                job.cancel()
            raise
        return jobs

    async def whole(self, client: Client) -> list[Choice]:
        """All choices, when they are done."""
        jobs = self.begin(client)
        found = await gathered(jobs)
        return await asyncio.to_thread(self._choices, found, jobs)

    def _choices(self, found: list[list[Written]], jobs: list[Job]) -> list[Choice]:
        pairs = zip(found, jobs, strict=True)
        return [self.choice(index, texts[0], job) for index, (texts, job) in enumerate(pairs)]

    def prompt(self, index: int) -> list[int]:
        """The ids that a choice goes on from."""
        return self.ids[index // self.many]

    def echoed(self, index: int) -> str:
        """What a choice's text begins with."""
        return self.texts[index // self.many] if self.asked.echo else ""

    def choice(self, index: int, written: Written, job: Job) -> Choice:
        """One answer as it is told."""
        text = self.plan.compose([Place(self.prompt(index))], [written.ids])
        likely = self.likelihoods()
        return Choice(
            index=index,
            text=self.echoed(index) + text,
            logprobs=None if likely is None else likely.told(job.tokens[: len(written.ids)]),
            finished=FINISHED[written.ended],
            tokens=len(written.ids),
        )

    def likelihoods(self) -> Likelihoods | None:
        """What tells how likely a choice's tokens were, where that is asked for."""
        if self.asked.logprobs is None:
            return None
        return Likelihoods(self._spelling, self.asked.logprobs, bare=self.plan.ends.shape == "rewrites")

    def usage(self, tokens: int) -> dict[str, int]:
        """How much was read and written."""
        read = sum(map(len, self.ids))
        return {"prompt_tokens": read, "completion_tokens": tokens, "total_tokens": read + tokens}


def _is_text(prompt: Any) -> bool:
    return isinstance(prompt, str) or isinstance(prompt[0], str)


def _numbered(on_token: Callable[[int, Token], None], index: int) -> Callable[[Token], None]:
    return lambda token: on_token(index, token)


def _settings(asked: Completion) -> dict[str, Any]:
    """The request's words as settings of decoding; what it leaves open, the model's folder says."""
    sampled = asked.temperature is None or asked.temperature > 0
    stop = (asked.stop,) if isinstance(asked.stop, str) else tuple(asked.stop or ())
    chance = {
        "temperature": asked.temperature,
        "top_p": asked.top_p,
        "top_k": asked.top_k,
        "min_p": asked.min_p,
    }
    return {
        "max_new_tokens": asked.max_tokens or TOKENS,
        "num_beams": 1,
        "num_return_sequences": 1,
        "do_sample": sampled,
        "seed": asked.seed,
        "stop": stop or None,
        "repetition_penalty": asked.repetition_penalty,
        **(chance if sampled else {}),
    }


def _done_here(asked: Completion) -> None:
    """Refuse what OpenAI describes and this server does not do."""
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(asked, name):
            raise Refused(f"{name} is not done here; leave it at 0, or use repetition_penalty", param=name)
    if asked.logit_bias:
        raise Refused("logit_bias is not done here; leave it out", param="logit_bias")
    if asked.suffix:
        raise Refused("suffix is not done here: nothing is written between two texts", param="suffix")
    if asked.best_of is not None and asked.best_of != (asked.n or 1):
        raise Refused("best_of is not done here; leave it out, or make it n", param="best_of")
    if asked.echo and asked.logprobs is not None:
        raise Refused("the prompt's own logprobs are not told; leave out echo or logprobs", param="echo")
    if asked.stream_options is not None and not asked.stream:
        raise Refused("stream_options is only for stream", param="stream_options")


def _check_ids(prompts: Sequence[Sequence[int]], *, vocabulary: int, room: int | None) -> None:
    for number, ids in enumerate(prompts, 1):
        if max(ids) >= vocabulary:
            raise GlassformerError(
                f"prompt {number} holds the token {max(ids)}, and the model knows {vocabulary:,}"
            )
        if room is not None and len(ids) > room:
            raise GlassformerError(
                f"prompt {number} has {len(ids):,} tokens, and the model reads at most {room:,}; shorten it"
            )
