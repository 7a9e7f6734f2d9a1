"""Job `lm`: train a causal language model on packed documents."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from glassformer import baselines
from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import PackedBlocks
from glassformer.data.readers import file_format
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TextSource, texts
from glassformer.data.split import splits_documents
from glassformer.data.store import Store, write_chunks
from glassformer.errors import EmptyInputError, InvalidValueError
from glassformer.generation import GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.messages import plural
from glassformer.metrics.text import perplexity
from glassformer.schema import setting
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.encoding import (
    DocumentEncoder,
    Encoded,
    Progress,
    Row,
    eos_id,
    max_id,
    sample_prompts,
)
from glassformer.training.hardware import Hardware
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import TextLearner
from glassformer.training.model_setup import (
    MAX_CONTEXT,
    choose_context_length,
    max_input_length,
    supported_options,
)
from glassformer.training.sections import Paths, TableSection
from glassformer.training.task import Sample, ValidationResult, mean_loss
from glassformer.training.text_job import TextJob, build_text_bundle

MAX_SAMPLE_TOKENS = 64  # of a prompt, and of its continuation


@dataclass(frozen=True, kw_only=True)
class TextData(TableSection):
    """Documents for language modeling."""

    train: Paths = sections.train_files("plain text, or tables with a text column")
    valid: Paths | float = sections.valid_split(0.05)
    sample_by: Literal["line", "paragraph", "file"] = setting(
        "paragraph",
        "what a document is in a plain file: a line, a paragraph (up to a blank line), or the file",
    )
    text_column: str | int | None = sections.column_name("text column of a table; null detects it")
    context_length: int | None = setting(
        None,
        "tokens per example, packed end to end; null chooses 128 to 1024",
        interval="[1, inf)",
        unit="tokens",
    )


class LanguageModelingJob(TextJob[TextData]):
    """Train a language model."""

    template = "none"
    unit = "tokens"
    cache_key = ()

    @property
    def context_length(self) -> int:
        return self.data.context_length or MAX_CONTEXT

    def adopt_base_settings(self) -> None:
        if self.base is not None and self.data.context_length is None:
            self.update_data(context_length=min(max_input_length(self.base.spec), MAX_CONTEXT))

    def fill_max_len(self) -> None:
        """Do nothing: documents have no maximum length."""

    def open_files(self, files: Sequence[str]) -> TextSource:
        data = self.data
        # in a table every row is a document
        sample_by = data.sample_by if file_format(data.train[0]) == "plain" else "line"
        return texts(files, sample_by=sample_by, column=data.text_column, **data.table_options)

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        raise NotImplementedError("documents are encoded in pieces")

    def log_data(self) -> None:
        corpus, data = self.corpus, self.data
        for split, counts in (("training", corpus.train_notes), ("validation", corpus.notes["valid"])):
            tokens, documents = counts["tokens"], counts["documents"]
            self.facts |= {f"{split} documents": documents, f"{split} tokens": tokens}
            self.log(f"{tokens:,} tokens in {documents:,} {plural('document', documents)} for {split}")
        if isinstance(data.valid, float) and splits_documents(self.open_files(data.train)):
            self.log(f"the last {data.valid:.1%} of the text is held out")

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        assert isinstance(source, TextSource)
        encoder = DocumentEncoder(tokenizer, end=eos_id(tokenizer), progress=Progress("characters", self.log))
        store = write_chunks(
            folder, ("text",), encoder.parts(source.pieces(problems)), max_id=max_id(tokenizer)
        )
        (tokens,) = store.sizes()
        if tokens <= len(store):
            raise EmptyInputError(f"{folder.name} text", "provide more text")
        return {
            "documents": len(store),
            "tokens": tokens,
            "characters": encoder.characters,
            "bytes": encoder.bytes,
        }

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        (tokens,) = store.sizes()
        size, epochs, reasons = self.choose_size(
            hardware, units=tokens, vocab_size=self.corpus.tokenizer.vocab_size
        )
        if self.data.context_length is None:
            limit = MAX_CONTEXT if self.base is None else max_input_length(self.base.spec)
            chosen = choose_context_length(tokens, store.max_length("text"))
            self.update_data(context_length=min(chosen, limit))
            reasons.append(f"context length {self.context_length} tokens")
        length = self.context_length
        # with so few epochs the model does not overfit
        dropout = size.dropout if epochs > 2 else 0.0
        dropouts = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), dropout)
        options: dict[str, Any] = {**size.options(), **dropouts, "max_len": length}
        if self.preset.startswith("mistral"):  # as many as heads, which the preset's number might not divide
            options["num_kv_heads"] = None
        self.fill_model(supported_options(self.preset, options))
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(length, min(32_768 if hardware.on_gpu else 4096, tokens // 25)),
            epochs=3 if tuning else epochs,
            lr=5e-5 if tuning else min(2e-3, 0.3 / size.d_model + 2e-4),
        )

    def examples(self, store: Store, *, augment: bool = False) -> PackedBlocks:
        """Return the blocks of a store; their boundaries change from epoch to epoch in training only."""
        recurrent = self.recipe.model.preset == "lstm" or (
            self.base is not None and self.base.spec.architecture != "decoder-only"
        )
        # a single document needs no segment ids, and all its batches then have the same arrays
        segments = not recurrent and len(store) > 1
        return PackedBlocks(
            store,
            length=self.context_length,
            seed=self.recipe.seed if augment else None,
            pad_id=self.corpus.pad_id,
            segments=segments,
        )

    def build(self) -> Bundle:
        tokenizer = self.corpus.tokenizer
        fixed = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id}
        bundle = build_text_bundle(
            self,
            overrides=lambda: supported_options(self.preset, fixed),
            lstm=("LSTMLanguageModel", {**fixed, "tied": ("head",)}),
        )
        spec: Any = bundle.spec
        if not isinstance(spec, specs.DecoderOnlySpec | baselines.spec.LSTMLanguageModelSpec):
            raise self.unsupported_model("use e.g. gpt2, llama or lstm")
        if self.context_length > max_input_length(spec):
            raise InvalidValueError(
                "data.context_length",
                self.context_length,
                f"at most {max_input_length(spec)} tokens for this model",
            )
        return bundle

    def learner(self, model: Any) -> TextLearner:
        return TextLearner(model, label_smoothing=self.recipe.training.label_smoothing or 0.0)

    def validate(self, learner: TextLearner, valid: PackedBlocks, device: torch.device) -> ValidationResult:
        """Compute the loss per token, character and byte on all held-out text, and continue a few prompts."""
        corpus, training, counts = self.corpus, self.recipe.training, self.corpus.notes["valid"]
        decode, sample_tokens = corpus.tokenizer.decode, min(MAX_SAMPLE_TOKENS, max(1, valid.length // 2))
        prompts = list(sample_prompts(corpus.valid, training.log_samples, max_tokens=sample_tokens))
        tokens = counts["tokens"] - counts["documents"]  # the first of a document is not predicted
        params = GenerationParams(
            eos_token_id=corpus.eos_id, pad_token_id=corpus.pad_id, max_new_tokens=sample_tokens
        )
        loss = mean_loss(learner, valid, device, batch=training.batch_limits())
        bits = loss * tokens / math.log(2)  # per character or byte, they can be compared between tokenizers
        model = prepare_for_inference(learner.model)
        outputs = generate_batched(model, [prompt for prompt, _ in prompts], params, check_finite=False)
        return ValidationResult(
            metrics={
                "loss": loss,
                "perplexity": perplexity(loss),
                "bits_per_character": bits / max(1, counts["characters"]),
                "bits_per_byte": bits / max(1, counts["bytes"]),
            },
            samples=[
                Sample(source=decode(prompt), expected=decode(following), got=decode(best.ids))
                for (prompt, following), (best, *_) in zip(prompts, outputs, strict=True)
            ],
        )


JOB = JobSpec(
    name="lm",
    summary="Train a language model.",
    factory=LanguageModelingJob,
    data=TextData,
    metrics=("loss", "perplexity", "bits_per_character", "bits_per_byte"),
    metric="loss",
    preset="gpt2",
    r_drop=False,
)
