"""The view of a model that draws: its film, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from glassformer.core.observe import Record
from glassformer.errors import InvalidValueError
from glassformer.interpret.film import DenoisingFilm, Film
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import Intervention, TokenSequence, TraceInput, TraceToken
from glassformer.interpret.token_film import TokenFilm
from glassformer.interpret.tokens import encoded_sequence, encoding_cost
from glassformer.interpret.views.base import View, ViewRun
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.declarations.draw_images import make_generator

FILMS: dict[str, type[Film]] = {"diffusion model": DenoisingFilm, "image tokens model": TokenFilm}
SETTINGS = ("seed", "num_inference_steps", "guidance_scale", "num_frames", "temperature", "top_k", "top_p")
MAX_STEPS, MAX_FRAMES = 250, 1024
_TEXTS = ("a red apple", "빨간 사과", "a cat with a hat", "모자를 쓴 고양이")


class DrawView(View):
    """A model that draws. The trace takes the first step; the others are taken when they are looked at."""

    kind, needs = "draw", ("text",)

    def run(self, input: TraceInput, interventions: Sequence[Intervention]) -> ViewRun:
        begin = time.perf_counter()
        film_kind = FILMS[self.bundle.spec.architecture]
        given = {name: value for name in SETTINGS if (value := getattr(input, name)) is not None}
        options = {"seed": 0, **film_kind.defaults, **given}
        if not 1 <= (steps := options.get("num_inference_steps", 1)) <= MAX_STEPS:
            raise InvalidValueError("num_inference_steps", steps, f"1 to {MAX_STEPS}")
        task = make_generator(self.bundle, options)
        options = {**task.drawing_options(), **options}
        options = {name: options[name] for name in SETTINGS if name in options}
        input = replace(input, start_step=input.start_step or 0, **options)
        (prompt,) = task.load([input.text or ""])
        if isinstance(prompt, Exception):
            raise prompt
        words = self._words(input.text or "")
        film = film_kind(task, prompt, words=words, interventions=interventions, start=input.start_step or 0)
        outcome, tensors = film.outcome()
        prepared = PreparedInput(kind=self.kind, input=input, sequences=(words,), inputs={})
        return ViewRun(prepared, Record(), outcome, tensors, time.perf_counter() - begin, film)

    def _words(self, text: str) -> TokenSequence:
        """Return the tokens of a prompt, or its class."""
        if self.num_classes is not None:
            return TokenSequence(name="class", kind="text", text=text, tokens=(TraceToken(piece=text),))
        tokenizer = require_tokenizer(self.bundle)
        return encoded_sequence(tokenizer, tokenizer.encode(text), text, "text")

    @property
    def num_classes(self) -> int | None:
        """The number of classes that a model draws; None for texts."""
        return getattr(self.bundle.spec.inputs()[0], "num_classes", None)

    def example(self) -> TraceInput:
        return self._inputs()[0]

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        return self._inputs()

    def _inputs(self) -> list[TraceInput]:
        if self.num_classes is None:
            texts = sorted(_TEXTS, key=lambda text: encoding_cost(self.bundle, text))
        else:
            texts = list(self.bundle.job.classes or map(str, range(self.num_classes)))[:10]
        return [TraceInput(text=text) for text in texts]


VIEWS = (DrawView,)
