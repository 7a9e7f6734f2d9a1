"""The base of jobs that train sequence-to-sequence models: translate, summarize, restore."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glassformer import baselines
from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import PairExamples
from glassformer.data.store import Ragged, Store
from glassformer.errors import ConflictError
from glassformer.generation import GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.text import Case, bleu, chrf, perplexity
from glassformer.tokenization import Tokenizer, tag_ids, tag_position
from glassformer.training.encoding import Row
from glassformer.training.hardware import Hardware
from glassformer.training.job import Data
from glassformer.training.learner import PairLearner
from glassformer.training.model_setup import max_input_length, supported_options
from glassformer.training.task import Sample, ValidationResult, mean_loss
from glassformer.training.text_job import TextJob, build_text_bundle

MIN_ROW_WIDTH = 128  # tokens of a row that packs several pairs
TAG = ">>{}<<"  # the target-language tag before a source


class Seq2SeqJob(TextJob[Data]):
    """Train an encoder-decoder or its LSTM baseline."""

    template, text_pairs = "eos", True
    fields: tuple[str, ...] = ("source", "target")
    row = "pair"
    unit = "tokens"
    text_cost = 5 / 3

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            self.update_data(max_len=max_input_length(self.base.spec))

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        tokens = self.corpus.train.sizes()[-1]
        size, epochs, reasons = self.choose_size(
            hardware, units=tokens, vocab_size=self.corpus.tokenizer.target_vocab_size, stacks=2
        )
        tuning, by_tokens = self.fine_tuning, self.recipe.training.batch_size is None
        self.fill_model(supported_options(self.preset, {**size.options(), "norm": "pre"}))
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(512, min(25_000 if hardware.on_gpu else 4096, tokens // 25)),
            epochs=3 if tuning else epochs,
            lr=5e-5 if tuning else min(2e-3, 0.7 / size.d_model + 3e-4),
            lr_scheduler="linear" if tuning else "inverse_sqrt",
            # with one shape torch compiles once; a CPU is faster without the padding of fixed-width rows
            packing=hardware.on_gpu and by_tokens and self.row_width is not None,
        )

    @property
    def row_width(self) -> int | None:  # type: ignore[override]
        """Width of a row of packed pairs; None for an LSTM, which does not support packing."""
        if self.recipe.model.preset == "lstm" or (
            self.base is not None and self.base.spec.architecture != "encoder-decoder"
        ):
            return None
        return max(MIN_ROW_WIDTH, self.max_len)

    @property
    def start_id(self) -> int:
        """The decoder start token: that of the base model, else the end token."""
        if self.base is None:
            return self.corpus.eos_id
        spec: Any = self.base.spec
        if not isinstance(spec, specs.EncoderDecoderSpec | baselines.spec.LSTMEncoderDecoderSpec):
            raise self.unsupported_model("use an encoder-decoder")
        return self.corpus.eos_id if spec.start_id is None else spec.start_id

    def build(self) -> Bundle:
        tokenizer = self.corpus.tokenizer
        sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
        tied = ("head",) if self.recipe.tokenizer.separate_vocabs else ("source", "head")
        ids = {"pad_id": self.corpus.pad_id, "start_id": self.start_id}
        return build_text_bundle(
            self,
            overrides=lambda: {**self._vocabulary_options(sizes, tied), **ids},
            lstm=("LSTMEncoderDecoder", {**sizes, "tied": tied, **ids}),
            start_id=self.start_id,
            info=self.info(),
        )

    def _vocabulary_options(self, sizes: Mapping[str, int], tied: tuple[str, ...]) -> dict[str, Any]:
        """Return the vocabulary options of the preset; their names differ between families."""
        if not supported_options(self.preset, {"start_id": 0}):
            raise self.unsupported_model("use an encoder-decoder: original, marian, bart, t5 or lstm")
        if self.preset.startswith("original"):
            return {**sizes, "tied": self.recipe.model.overrides.get("tied", tied)}
        if self.recipe.tokenizer.separate_vocabs:
            raise ConflictError(
                ("tokenizer.separate_vocabs", "model.preset"),
                f"{self.preset} has a single vocabulary",
                "set tokenizer.separate_vocabs to false, or model.preset to original",
            )
        return {"vocab_size": self.corpus.tokenizer.vocab_size}

    def info(self) -> Mapping[str, Any]:
        """Return further entries of `job.json`."""
        return {}

    @property
    def marks(self) -> dict[str, int]:
        """The padding token and the decoder start token."""
        return {"pad_id": self.corpus.pad_id, "start_id": self.start_id}

    def examples(self, store: Store, *, augment: bool = False) -> PairExamples:
        return PairExamples(store, **self.marks)

    def learner(self, model: Any) -> PairLearner:
        options = self.recipe.training
        return PairLearner(model, label_smoothing=options.label_smoothing or 0.0, r_drop=options.r_drop)

    def max_new_tokens(self, length: int) -> int:
        """Return the maximum number of tokens that a validation generates for a source of this length."""
        return 2 * length + 20

    def valid_pairs(self, valid: PairExamples) -> list[tuple[str, str]]:
        """Return source and target text of the first validation examples, which are decoded."""
        return [(source, target) for source, target, *_ in self.valid_texts()]

    def score(
        self, outputs: list[str], expected: list[str], case: Case
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the metrics of generated texts, and their signatures."""
        return score_texts(outputs, expected, case=case)

    def validate(self, learner: PairLearner, valid: PairExamples, device: torch.device) -> ValidationResult:
        """Compute the loss on all examples, and the scores of the first ones, which are decoded."""
        tokenizer, recipe, pairs = self.corpus.tokenizer, self.recipe, self.valid_pairs(valid)
        # a lowercase model is scored on lowercase text; the signature says so
        case: Case = "lower" if recipe.tokenizer.lowercase else "mixed"
        params = GenerationParams(
            start_ids=self.start_id,
            eos_token_id=self.corpus.eos_id,
            pad_token_id=self.corpus.pad_id,
            max_new_tokens=self.max_new_tokens,
        )
        loss = mean_loss(learner, valid, device, batch=recipe.training.batch_limits())
        sources = [valid.row(n, 0)[0].tolist() for n in range(len(pairs))]
        decoded = generate_batched(prepare_for_inference(learner.model), sources, params, check_finite=False)
        outputs = [tokenizer.decode(best.ids).strip() for best, *_ in decoded]
        scores, signatures = self.score(outputs, [target for _, target in pairs], case)
        return ValidationResult(
            metrics={"loss": loss, "perplexity": perplexity(loss), **scores},
            samples=[
                Sample(source=source, expected=target, got=output)
                for (source, target), output in zip(pairs, outputs, strict=True)
            ],
            signatures=signatures,
        )


def score_texts(
    outputs: list[str], expected: list[str], *, case: Case = "mixed"
) -> tuple[dict[str, float], dict[str, str]]:
    """Return BLEU, chrF and exact match of the outputs, and the signatures of the scores."""
    bleu_score, chrf_score = bleu(outputs, expected, case=case), chrf(outputs, expected, case=case)
    targets = [text.lower() for text in expected] if case == "lower" else expected
    equal = sum(output == target for output, target in zip(outputs, targets, strict=True))
    scores = {"bleu": bleu_score.score, "chrf": chrf_score.score, "exact": equal / max(1, len(outputs))}
    return scores, {"bleu": bleu_score.signature, "chrf": chrf_score.signature}


def encode_pairs(tokenizer: Tokenizer, rows: Sequence[Row]) -> tuple[Ragged, Ragged]:
    """Return the token ids of the sources and of the targets.

    If rows have a third field, it is the target language, whose tag is inserted before the source.
    """
    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    if tokenizer.sides_differ:
        ids = [*tokenizer.encode_ids(sources), *tokenizer.encode_ids(targets, side="target")]
    else:  # a text that occurs as source and target is encoded once
        ids = tokenizer.encode_ids(sources + targets)
    encoded = Ragged.of(ids[: len(rows)])
    if len(rows[0]) > 2:
        languages = {row[2] for row in rows}
        tags = dict(zip(languages, tag_ids(tokenizer, map(TAG.format, languages)), strict=True))
        encoded = encoded.insert(np.array([tags[row[2]] for row in rows]), tag_position(tokenizer))
    return encoded, Ragged.of(ids[len(rows) :])
