"""The view of a model that draws by removing noise: its film, step by step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from glassformer.core.observe import Record
from glassformer.errors import InvalidValueError
from glassformer.interpret.film import DenoisingFilm
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import Intervention, TokenSequence, TraceInput, TraceToken
from glassformer.interpret.tokens import encoded_sequence, encoding_cost
from glassformer.interpret.views.base import View, ViewRun
from glassformer.processors.text import require_tokenizer
from glassformer.tasks.declarations.draw_images import make_generator
from glassformer.tasks.drawing import DEFAULT_GUIDANCE

MAX_STEPS, DEFAULT_STEPS, MAX_FRAMES = 250, 20, 1024
OPTIONS = ("seed", "num_inference_steps", "guidance_scale", "num_frames")
_TEXTS = ("a red apple", "빨간 사과", "a cat with a hat", "모자를 쓴 고양이")


class DrawView(View):
    """A diffusion model. The trace takes the first step; the others are taken when they are looked at."""

    kind, needs = "draw", ("text",)

    def run(self, input: TraceInput, interventions: Sequence[Intervention]) -> ViewRun:
        begin = time.perf_counter()
        input = replace(
            input,
            seed=input.seed or 0,
            num_inference_steps=input.num_inference_steps or DEFAULT_STEPS,
            guidance_scale=DEFAULT_GUIDANCE if input.guidance_scale is None else input.guidance_scale,
            start_step=input.start_step or 0,
        )
        if not 1 <= (steps := input.num_inference_steps or 0) <= MAX_STEPS:
            raise InvalidValueError("num_inference_steps", steps, f"1 to {MAX_STEPS}")
        task: Any = make_generator(self.bundle, {name: getattr(input, name) for name in OPTIONS})
        (prompt,) = task.load([input.text or ""])
        if isinstance(prompt, Exception):
            raise prompt
        sequence = self._sequence(input.text or "")
        film = DenoisingFilm(
            task, prompt, words=sequence, interventions=interventions, start=input.start_step or 0
        )
        outcome, tensors = film.outcome()
        input = replace(input, num_frames=outcome.num_frames)
        prepared = PreparedInput(kind=self.kind, input=input, sequences=(sequence,), inputs={})
        return ViewRun(prepared, Record(), outcome, tensors, time.perf_counter() - begin, film)

    def _sequence(self, text: str) -> TokenSequence:
        """Return the tokens of a prompt, or its class."""
        spec: Any = self.bundle.spec
        if spec.text_encoder is None:
            return TokenSequence(name="class", kind="text", text=text, tokens=(TraceToken(piece=text),))
        tokenizer = require_tokenizer(self.bundle)
        return encoded_sequence(tokenizer, tokenizer.encode(text), text, "text")

    def example(self) -> TraceInput:
        return self._inputs()[0]

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        return self._inputs()

    def _inputs(self) -> list[TraceInput]:
        spec: Any = self.bundle.spec
        if spec.text_encoder is not None:
            texts = sorted(_TEXTS, key=lambda text: encoding_cost(self.bundle, text))
        else:
            count = spec.latents.num_classes
            texts = list(self.bundle.job.classes or map(str, range(count)))[:10]
        return [TraceInput(text=text) for text in texts]


VIEWS = (DrawView,)
