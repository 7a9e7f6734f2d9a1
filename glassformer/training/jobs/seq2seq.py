"""Jobs that read one sequence and write another: the model, its training and its validation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from glassformer import baselines
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.examples import PairExamples
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationRequest, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.bleu import Case, bleu, chrf
from glassformer.metrics.exact import Exact
from glassformer.metrics.perplexity import perplexity
from glassformer.training.jobs.text import TextJob
from glassformer.training.learner import PairLearner, tokens_learned
from glassformer.training.logging.run_log import Sample
from glassformer.training.model_setup import Machine, accepted, fitting, room
from glassformer.training.task import Task, Validation, mean_loss

ROW = 128  # tokens of a row that several short pairs share


class Rewriting(TextJob):
    """Pairs of sequences in, an encoder-decoder (or its LSTM baseline) out."""

    metric = "bleu"
    usual = "original"

    @abstractmethod
    def learned(self) -> PairExamples:
        """What is trained on."""

    @abstractmethod
    def held(self) -> PairExamples:
        """What is validated with."""

    @abstractmethod
    def shown(self) -> list[tuple[str, str]]:
        """The texts of the first held rows: what is read, and what is to be written."""

    def about(self) -> Mapping[str, Any]:
        """What whoever uses the model must know besides its tokenizer."""
        return {}

    def follow_model(self) -> None:
        data: Any = self.recipe.data
        if self.base is not None:
            self.recipe = replace(self.recipe, data=replace(data, max_len=room(self.base.spec)))

    def choose(self, machine: Machine) -> list[str]:
        units = self.train.sizes()[-1]
        size, passes, why = fitting(
            machine,
            units=units,
            vocab_size=self.tokenizer.target_vocab_size,
            stacks=2,
            given=self.length_given,
        )
        preset, tuned = self.preset, self.recipe.model.folder is not None
        self.settle_model(preset, accepted(preset, {**size.words(), "norm": "pre"}))
        return ([] if tuned else [why]) + self.settle(
            self.learned(),
            batch=max(512, min(25_000 if machine.on_gpu else 4096, units // 25)),
            passes=3 if tuned else passes,
            lr=5e-5 if tuned else min(2e-3, 0.7 / size.d_model + 3e-4),
            schedule="linear" if tuned else "inverse_sqrt",
            label_smoothing=0.1,
            # one shape compiles once; a CPU would rather have no token it need not look at
            batching="rows" if machine.on_gpu and self.row_width is not None else "lengths",
        )

    @property
    def row_width(self) -> int | None:
        """How wide a row of several pairs is; a recurrent model reads one pair a row."""
        if self.recipe.model.preset == "lstm" or (
            self.base is not None and not isinstance(self.base.spec, specs.EncoderDecoder)
        ):
            return None
        data: Any = self.recipe.data
        return max(ROW, data.max_len)

    @property
    def start_id(self) -> int:
        """What a target starts with: the end token, unless a model gone on from says otherwise."""
        if self.base is None:
            return self.eos_id
        spec: Any = self.base.spec
        if not isinstance(spec, specs.EncoderDecoder | baselines.spec.LSTMEncoderDecoder):
            raise GlassformerError(
                f"model.folder '{self.recipe.model.folder}' is no encoder-decoder, which this job needs"
            )
        return self.eos_id if spec.start_id is None else spec.start_id

    def build(self) -> Bundle:
        """The model of the recipe with the tokenizer, as it will be saved."""
        tokenizer = self.tokenizer
        sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
        tied = ("source", "head") if self._joint else ("head",)
        fixed = {"pad_id": self.pad_id, "start_id": self.start_id}
        return self.bundle(
            words=lambda: {**self._vocabulary(sizes, tied), **fixed},
            lstm=("LSTMEncoderDecoder", {**sizes, "tied": tied, **fixed}),
            generation={
                "decoder_start_token_id": self.start_id,
                "eos_token_id": self.eos_id,
                "pad_token_id": self.pad_id,
            },
            about=self.about(),
        )

    @property
    def _joint(self) -> bool:
        return self.recipe.tokenizer.sides == "joint"

    def _vocabulary(self, sizes: Mapping[str, int], tied: tuple[str, ...]) -> dict[str, Any]:
        """The words of a family for its vocabularies, which not all spell alike."""
        preset = self.recipe.model.preset or ""
        if not accepted(preset, {"start_id": 0}):
            raise GlassformerError(
                f"model.preset '{preset}' is no encoder-decoder, which this job needs; original, marian, "
                "bart, t5 and lstm are"
            )
        if preset.startswith("original"):
            return {**sizes, "tied": self.recipe.model.words.get("tied", tied)}
        if not self._joint:
            raise GlassformerError(
                f"tokenizer.sides is separate, which the preset '{preset}' lacks; use joint or original"
            )
        return {"vocab_size": self.tokenizer.vocab_size}

    def task(self) -> Task:
        bundle = self.build()
        words = self.recipe.training
        learner = PairLearner(bundle.model, smoothing=words.label_smoothing or 0.0, r_drop=words.r_drop)
        return Task(
            learner=learner,
            train=self.learned(),
            units="tokens",
            count=tokens_learned,
            metric=self.metric,
            better="higher",
            row_width=self.row_width,
            validate=self.validation(learner),
            save=lambda path: save(bundle, path),
        )

    def validation(self, learner: PairLearner) -> Callable[[torch.device], Validation]:
        """Loss on all rows held out; BLEU, chrF and exact matches of what is written for the first."""
        held, shown = self.held(), self.shown()
        sources = [held.row(n, 0)[0].tolist() for n in range(len(shown))]
        expected = [target for _, target in shown]
        batch = self.recipe.training.batch or 4096
        # A model that never saw a capital is not to be blamed for writing none; the signature says so.
        case: Case = "lower" if self.recipe.tokenizer.lowercase else "mixed"

        def validate(device: torch.device) -> Validation:
            loss = mean_loss(learner, held, device, batch=batch)
            request = GenerationRequest(
                start_ids=self.start_id,
                eos_token_id=self.eos_id,
                pad_token_id=self.pad_id,
                max_new_tokens=lambda length: 2 * length + 20,
            )
            found = generate_batched(
                prepare_for_inference(learner.model), sources, request, check_finite=False
            )
            got = [self.tokenizer.decode(best.ids).strip() for best, *_ in found]
            scores, signatures = likeness(got, expected, case=case)
            return Validation(
                metrics={"loss": loss, "perplexity": perplexity(loss), **scores},
                samples=[
                    Sample(source=source, expected=target, got=answer)
                    for (source, target), answer in zip(shown, got, strict=True)
                ],
                signatures=signatures,
            )

        return validate


def likeness(
    got: list[str], expected: list[str], *, case: Case = "mixed"
) -> tuple[dict[str, float], dict[str, str]]:
    """How near texts come to those expected, and how the scores were reckoned."""
    words, letters, same = bleu(got, expected, case=case), chrf(got, expected, case=case), Exact()
    same.add(got, [text.lower() for text in expected] if case == "lower" else expected)
    scores = {"bleu": words.score, "chrf": letters.score, "exact": same.match}
    return scores, {"bleu": words.signature, "chrf": letters.signature}
