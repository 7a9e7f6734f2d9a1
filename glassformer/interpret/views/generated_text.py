"""Views of models that generate text: from a text or an image, or after a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Literal, Unpack

import torch

from glassformer.core.inputs import tensor_of
from glassformer.core.observe import Record
from glassformer.generation import GenerationOptions
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.interpret.generated_text import (
    MAX_TOKENS,
    GenerationInput,
    check_length,
    encode_segment,
    generation_task,
    source_sequence,
    target_ids,
    target_sequence,
)
from glassformer.interpret.interventions import unpadded
from glassformer.interpret.outline import stack_names
from glassformer.interpret.prepared_input import PreparedInput
from glassformer.interpret.schema import Intervention, Outcome, TextOutcome, TokenSequence, TraceInput
from glassformer.interpret.tokens import (
    best_encoded,
    encoded_sequence,
    encoding_cost,
    generated_tokens,
    tokens_of,
)
from glassformer.interpret.views.base import OutputUnit, Result, View
from glassformer.interpret.views.images import prepare_image, shipped_example
from glassformer.processors.text import require_tokenizer, select_tokens
from glassformer.tasks.image_to_text import Captioner
from glassformer.tasks.text_generation import (
    Segment,
    TextGenerator,
    decode_continuation,
    target_languages,
    task_prefix,
)
from glassformer.tasks.translation import Translator, source_task

SAMPLE_TOKENS = 32  # of a snapshot
_TEXTS = ("A man is playing guitar on the street.", "2024-03-17", "한 남자가 거리에서 기타를 치고 있다.")
_PROMPTS = ("The capital of France is", "once upon a time", "프랑스의 수도는")
_SENTENCES = (  # for multilingual models: source language, target language, text
    # "it" refers to the animal or to the street, which differ in French: "il" or "elle"
    ("en", "fr", "The animal did not cross the street because it was too tired."),
    ("en", "fr", "The animal did not cross the street because it was too wide."),
    ("en", "ko", "Where is the nearest station?"),
    ("en", "de", "She opened the window because it was too hot."),
    ("de", "en", "Der alte Mann liest jeden Morgen die Zeitung."),
    ("fr", "en", "Je voudrais apprendre comment cela marche."),
    ("ko", "en", "나는 어제 친구와 함께 영화를 봤다."),
)
_STARTS = (
    "Once upon a time there was a small house",
    "The most important thing about water is that",
    "In the morning she opened the door and",
)
_MAX_FRAGMENTATION = 1.25  # maximum tokens per character of another prompt, relative to the first example


class EncoderDecoderView(View):
    """Base class of views of encoder-decoders, which generate a target from a source."""

    kind: ClassVar[Literal["translate", "caption"]]
    generates = True

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        """Prepare a source and its target: the given one, else the output of the intervened model."""
        generation = self.generation(input)
        source, starts, tokenizer = generation.source, generation.prefix, require_tokenizer(self.bundle)
        assert source is not None
        finish_reason: str | None = None
        if input.target is None:
            target, finish_reason = generation.target(interventions)
            text = generation.decode(target)
        else:
            target = target_ids(self.bundle, input)
            text = " ".join(tokenizer.decode(target).splitlines()).strip()
        check_length(len(starts) + len(target))
        spec: Any = self.bundle.spec
        tgt = torch.tensor([[*starts, *target]], device=self.bundle.device)
        sequence = target_sequence(tokenizer, [*starts, *target], len(starts), text)
        return replace(
            source,
            sequences=(*source.sequences, sequence),
            inputs={**source.inputs, "tgt": unpadded(tgt, spec.target, first=1)},
            start=len(starts),
            finish_reason=finish_reason,
        )

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        target = prepared.sequences[-1]
        text, count = target.text or "", len(target) - prepared.start
        reason = prepared.finish_reason
        return TextOutcome(kind=self.kind, text=text, num_tokens=count, finish_reason=reason), {}

    def outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return the generated tokens, each at the position that predicts it."""
        ids = tensor_of(prepared.inputs["tgt"])[0].tolist()
        return [OutputUnit(n - 1, ids[n]) for n in range(max(1, prepared.start), len(ids))]

    def languages(self) -> tuple[str, ...] | None:
        return tuple(target_languages(self.bundle)) or None

    def with_target(self, input: TraceInput) -> TraceInput:
        return input if input.target is not None else replace(input, target=self._generated(input))

    def prediction(self, input: TraceInput, outcome: Outcome) -> str | None:
        return self._generated(replace(input, target=None))

    def _generated(self, input: TraceInput) -> str | None:
        return self.prepare(input).sequences[-1].text


class TranslateView(EncoderDecoderView):
    """A translator, or another model that generates a text from a text."""

    kind, needs = "translate", ("text",)

    def generation(self, input: TraceInput, **options: Unpack[GenerationOptions]) -> GenerationInput:
        task = generation_task(self.bundle, input.to, **options)
        segment = encode_segment(task, input.text or "")
        spec: Any = self.bundle.spec
        src = torch.tensor([segment.ids], device=self.bundle.device)
        return GenerationInput(
            bundle=self.bundle,
            params=task.params,
            prefix=decoder_start_ids(self.bundle.model, task.params.start_ids),
            decode=partial(task.decode, segment),
            source=PreparedInput(
                kind=self.kind,
                input=input,
                sequences=(source_sequence(task, segment, input.to),),
                inputs={"src": unpadded(src, spec.source)},
            ),
        )

    def example(self) -> TraceInput:
        if self.bundle.job.gap is not None:
            return TraceInput(text=f"A man is playing {self.bundle.job.gap} the street.")
        prefix = task_prefix(self.bundle, lambda name: name.startswith("translation_"))
        text = best_encoded(self.bundle, _TEXTS)
        tags = [] if prefix else target_languages(self.bundle)
        own = "ko" if text == _TEXTS[-1] else "en"
        others = [tag for tag in tags if not tag.startswith(own)]
        return TraceInput(text=prefix + text, to=next(iter(others or tags), None))

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        """Return the example sentences in languages that the model supports."""
        tags = {*target_languages(self.bundle)}
        return [TraceInput(text=text, to=to) for source, to, text in _SENTENCES if {source, to} <= tags]

    def split(self, text: str, to: str | None = None) -> list[str]:
        """Split a text into the segments that `translate` translates.

        Symbols outside the vocabulary, which are copied next to the translation, stay with their segment.
        """
        task = source_task(self.bundle, to)
        if not isinstance(task, Translator):
            return [text]
        (document,) = task.preprocess([text])
        sentences, copied = list[str](), ""
        for part in document:
            if isinstance(part, Segment):
                sentences.append(copied + part.text)
                copied = ""
            elif part.strip() and sentences:
                sentences[-1] += part
            elif part.strip():
                copied += part
        return sentences or [text]


class CaptionView(EncoderDecoderView):
    """A model that describes an image."""

    kind, needs = "caption", ("image",)

    def generation(self, input: TraceInput, **options: Unpack[GenerationOptions]) -> GenerationInput:
        task, model = Captioner(self.bundle, to=input.to, **options), self.bundle.model
        grids = len([one for one in stack_names(model) if one.path.startswith("encoder")])
        return GenerationInput(
            bundle=self.bundle,
            params=task.params,
            prefix=decoder_start_ids(model, task.params.start_ids),
            decode=task.decode,
            source=prepare_image(task.processor, self.kind, input, grids),
        )

    def example(self) -> TraceInput:
        languages = self.languages() or (None,)
        to = "en" if "en" in languages else languages[0]
        return replace(shipped_example("pocket-captioner"), to=to)


class GenerateView(View):
    """A language model that continues a prompt."""

    kind, needs, generates = "generate", ("text",), True

    def generation(self, input: TraceInput, **options: Unpack[GenerationOptions]) -> GenerationInput:
        task = generation_task(self.bundle, input.to, **options)
        segment = encode_segment(task, input.text or "")
        decode = partial(task.decode, segment)
        return GenerationInput(bundle=self.bundle, params=task.params, prefix=segment.ids, decode=decode)

    def prepare(self, input: TraceInput, interventions: Sequence[Intervention] = ()) -> PreparedInput:
        task, text = generation_task(self.bundle), input.text or ""
        tokenizer, prompt = task.tokenizer, encode_segment(task, text).ids
        target = target_ids(self.bundle, input)
        check_length(len(prompt) + len(target), min(task.max_input_tokens or MAX_TOKENS, MAX_TOKENS))
        encoded = tokenizer.encode(text)
        if text and encoded.ids[: len(prompt)] == prompt:
            encoded = select_tokens(encoded, range(len(prompt)))
            read = encoded_sequence(tokenizer, encoded, text, "input").tokens
        else:  # an empty prompt starts with a special token
            read = tuple(replace(token, special=True) for token in tokens_of(tokenizer, prompt))
        whole = text + decode_continuation(tokenizer, prompt, target)
        after = generated_tokens(tokenizer, target, whole, "target", first=len(text))
        spec: Any = self.bundle.spec
        ids = torch.tensor([[*prompt, *target]], device=self.bundle.device)
        return PreparedInput(
            kind=self.kind,
            input=input,
            sequences=(TokenSequence(name="input", kind="text", text=whole, tokens=(*read, *after)),),
            inputs={"inputs": unpadded(ids, spec.input)},
            start=len(prompt),
            finish_reason="end" if target and target[-1] in task.params.eos_ids else None,
        )

    def outcome(self, prepared: PreparedInput, record: Record) -> Result:
        ids = prepared.inputs["inputs"].ids[0].tolist()
        prompt, generated = ids[: prepared.start], ids[prepared.start :]
        text, count = decode_continuation(require_tokenizer(self.bundle), prompt, generated), len(generated)
        return TextOutcome(
            kind="generate", text=text, num_tokens=count, finish_reason=prepared.finish_reason
        ), {}

    def outputs(self, prepared: PreparedInput, record: Record) -> list[OutputUnit]:
        """Return the next token of each position; after the last, the most likely one."""
        ids = tensor_of(prepared.inputs["inputs"])[0].tolist()
        return [
            OutputUnit(n, id) for n, id in enumerate([*ids[1:], int(record["head.logits"][0, -1].argmax())])
        ]

    def example(self) -> TraceInput:
        return TraceInput(text=best_encoded(self.bundle, _PROMPTS))

    def examples(self, first: TraceInput) -> Sequence[TraceInput]:
        unknown, fragmentation = encoding_cost(self.bundle, first.text or "")
        limit = (unknown, fragmentation * _MAX_FRAGMENTATION)
        return [TraceInput(text=text) for text in _STARTS if encoding_cost(self.bundle, text) <= limit]

    def prediction(self, input: TraceInput, outcome: Outcome) -> str | None:
        task = TextGenerator(self.bundle, max_new_tokens=SAMPLE_TOKENS, do_sample=False, num_beams=1)
        return task(input.text or "").text

    def main_position(self, outcome: Outcome) -> int | None:
        return -1


VIEWS = (TranslateView, CaptionView, GenerateView)
