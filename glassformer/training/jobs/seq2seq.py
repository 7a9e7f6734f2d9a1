"""What sequence-to-sequence jobs are composed of: defaults, model, training task and validation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from glassformer import baselines
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.examples import PairExamples
from glassformer.errors import ConflictError, UnsupportedError
from glassformer.generation import GenerationRequest, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.text import Case, Exact, bleu, chrf, perplexity
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import TextCorpus, build_text_bundle
from glassformer.training.learner import PairLearner, count_labels
from glassformer.training.model_setup import choose_size, supported_options
from glassformer.training.task import Sample, Task, Validation, mean_loss

MIN_ROW_WIDTH = 128  # tokens of a row that packs several pairs


@dataclass(frozen=True)
class Seq2Seq:
    """An encoder-decoder (or its LSTM baseline) for a job whose corpus is prepared."""

    job: Job
    corpus: TextCorpus

    def choose_defaults(self, hardware: Hardware, examples: PairExamples) -> list[str]:
        job = self.job
        tokens = self.corpus.train.sizes()[-1]
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=self.corpus.tokenizer.target_vocab_size,
            stacks=2,
            length_known=job.has_length,
        )
        tuning = job.recipe.model.folder is not None
        job.fill_model(supported_options(job.preset, {**size.options(), "norm": "pre"}))
        return ([] if tuning else [reason]) + job.fill_training(
            examples,
            batch=max(512, min(25_000 if hardware.on_gpu else 4096, tokens // 25)),
            epochs=3 if tuning else epochs,
            lr=5e-5 if tuning else min(2e-3, 0.7 / size.d_model + 3e-4),
            schedule="linear" if tuning else "inverse_sqrt",
            label_smoothing=0.1,
            # one shape compiles once; a CPU is faster without the padding of fixed rows
            batching="rows" if hardware.on_gpu and self.row_width is not None else "lengths",
        )

    @property
    def row_width(self) -> int | None:
        """Width of a row of packed pairs; None for a recurrent model, which reads one pair per row."""
        job = self.job
        if job.recipe.model.preset == "lstm" or (
            job.base is not None and not isinstance(job.base.spec, specs.EncoderDecoder)
        ):
            return None
        data: Any = job.recipe.data
        return max(MIN_ROW_WIDTH, data.max_len)

    @property
    def start_id(self) -> int:
        """The decoder start token: the end token, unless the base model says otherwise."""
        if self.job.base is None:
            return self.corpus.eos_id
        spec: Any = self.job.base.spec
        if not isinstance(spec, specs.EncoderDecoder | baselines.spec.LSTMEncoderDecoder):
            raise UnsupportedError(
                f"the model in '{self.job.recipe.model.folder}'",
                f"the job {self.job.recipe.job}",
                "use an encoder-decoder",
            )
        return self.corpus.eos_id if spec.start_id is None else spec.start_id

    def build(self, info: Mapping[str, Any]) -> Bundle:
        """The model with its tokenizer, as it will be saved. info: further entries of `job.json`."""
        tokenizer = self.corpus.tokenizer
        sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
        joint = self.job.recipe.tokenizer.sides == "joint"
        tied = ("source", "head") if joint else ("head",)
        ids = {"pad_id": self.corpus.pad_id, "start_id": self.start_id}
        return build_text_bundle(
            self.job,
            self.corpus,
            overrides=lambda: {**self._vocabulary_options(sizes, tied), **ids},
            lstm=("LSTMEncoderDecoder", {**sizes, "tied": tied, **ids}),
            generation={
                "decoder_start_token_id": self.start_id,
                "eos_token_id": self.corpus.eos_id,
                "pad_token_id": self.corpus.pad_id,
            },
            info=info,
        )

    def _vocabulary_options(self, sizes: Mapping[str, int], tied: tuple[str, ...]) -> dict[str, Any]:
        """A family's options for the vocabularies, whose names differ between families."""
        recipe = self.job.recipe
        preset = recipe.model.preset or ""
        if not supported_options(preset, {"start_id": 0}):
            raise UnsupportedError(
                f"the preset '{preset}'",
                f"the job {recipe.job}",
                "use an encoder-decoder: original, marian, bart, t5 or lstm",
            )
        if preset.startswith("original"):
            return {**sizes, "tied": recipe.model.overrides.get("tied", tied)}
        if recipe.tokenizer.sides != "joint":
            raise ConflictError(
                ("tokenizer.sides", "model.preset"),
                f"{preset} has one vocabulary",
                "use joint sides, or the preset original",
            )
        return {"vocab_size": self.corpus.tokenizer.vocab_size}

    def task(
        self,
        *,
        train: PairExamples,
        valid: PairExamples,
        texts: Sequence[tuple[str, str]],
        metric: str,
        info: Mapping[str, Any],
    ) -> Task:
        """The training task. texts: source and target of the first validation examples."""
        bundle, options = self.build(info), self.job.recipe.training
        learner = PairLearner(bundle.model, smoothing=options.label_smoothing or 0.0, r_drop=options.r_drop)
        return Task(
            learner=learner,
            train=train,
            unit="tokens",
            count=count_labels,
            metric=metric,
            row_width=self.row_width,
            validate=self.validation(learner, valid, texts),
            save=lambda path: save(bundle, path),
        )

    def validation(
        self, learner: PairLearner, valid: PairExamples, texts: Sequence[tuple[str, str]]
    ) -> Callable[[torch.device], Validation]:
        """Loss on all validation examples; BLEU, chrF and exact match of the decoded first ones."""
        corpus, recipe = self.corpus, self.job.recipe
        sources = [valid.row(n, 0)[0].tolist() for n in range(len(texts))]
        expected = [target for _, target in texts]
        # a model that never saw capitals is scored without them; the signature says so
        case: Case = "lower" if recipe.tokenizer.lowercase else "mixed"

        def validate(device: torch.device) -> Validation:
            loss = mean_loss(learner, valid, device, batch=recipe.training.batch or 4096)
            request = GenerationRequest(
                start_ids=self.start_id,
                eos_token_id=corpus.eos_id,
                pad_token_id=corpus.pad_id,
                max_new_tokens=lambda length: 2 * length + 20,
            )
            decoded = generate_batched(
                prepare_for_inference(learner.model), sources, request, check_finite=False
            )
            outputs = [corpus.tokenizer.decode(best.ids).strip() for best, *_ in decoded]
            scores, signatures = score_texts(outputs, expected, case=case)
            return Validation(
                metrics={"loss": loss, "perplexity": perplexity(loss), **scores},
                samples=[
                    Sample(source=source, expected=target, got=output)
                    for (source, target), output in zip(texts, outputs, strict=True)
                ],
                signatures=signatures,
            )

        return validate


def score_texts(
    outputs: list[str], expected: list[str], *, case: Case = "mixed"
) -> tuple[dict[str, float], dict[str, str]]:
    """BLEU, chrF and exact match of texts, and the signatures of the scores."""
    words, characters, same = bleu(outputs, expected, case=case), chrf(outputs, expected, case=case), Exact()
    same.add(outputs, [text.lower() for text in expected] if case == "lower" else expected)
    scores = {"bleu": words.score, "chrf": characters.score, "exact": same.match}
    return scores, {"bleu": words.signature, "chrf": characters.signature}
