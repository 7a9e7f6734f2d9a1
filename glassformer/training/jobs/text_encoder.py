"""The base of jobs that fine-tune or train a text encoder with a head for one task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import Examples
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import TextCorpus, check_vocabulary
from glassformer.training.model_setup import (
    TaskSuffix,
    build_initialized,
    choose_size,
    max_input_length,
    new_model_spec,
    published_head,
    supported_options,
    with_head,
)
from glassformer.training.recipe import LabeledData, QuestionData, TaggedData

Data = TypeVar("Data", LabeledData, TaggedData, QuestionData)


class EncoderJob(Job[Data]):
    """Train a text encoder with the head `head_task` of its published architecture."""

    default_preset = "bert"
    head_task: ClassVar[TaskSuffix]
    corpus: TextCorpus

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            limit = max_input_length(self.encoder_spec(self.base.spec))
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    def check_base(self) -> None:
        """Reject a base model that is not a text encoder, and fill in `data.max_len`."""
        if self.base is not None:
            self.encoder_spec(self.base.spec)
        self.fill_max_len()

    def encoder_spec(self, spec: Any) -> specs.EncoderOnlySpec:
        """Return the spec of a text encoder; raise for any other model."""
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.TokensSpec):
            return spec
        raise self.unsupported_model("use a text encoder, e.g. bert, roberta or electra")

    def train_examples(self) -> Examples:
        """Return the training examples."""
        raise NotImplementedError

    def log_truncated(self, what: str) -> None:
        """Log how many texts were truncated. what: their name, e.g. "texts"."""
        if truncated := self.corpus.total("truncated"):
            self.facts[f"truncated {what}"] = truncated
            self.log(f"{truncated:,} {what} are longer than {self.max_len} tokens and are truncated")

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        tokens = store.sizes()[0]
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=1,
            epochs=min(40.0, max(3.0, 300_000 / len(store))),
            length_known=self.has_length,
        )
        self.fill_model(supported_options(self.preset, size.options()))
        batch = min(16_384 if hardware.on_gpu else 4096, 64 * max(16, tokens // len(store)), tokens // 20)
        return ([] if tuning else [reason]) + self.fill_training(
            self.train_examples(),
            batch=max(self.max_len, batch),
            epochs=3 if tuning else epochs,
            lr=3e-5 if tuning else min(2e-3, 0.1 / size.d_model),
        )

    def _new_spec(self) -> specs.EncoderOnlySpec:
        ids = {"vocab_size": self.corpus.tokenizer.vocab_size, "pad_id": self.corpus.pad_id}
        fixed = supported_options(self.preset, {**ids, "max_len": self.max_len})
        return self.encoder_spec(new_model_spec(replace(self.recipe.model, preset=self.preset), fixed))

    @property
    def reads_token_types(self) -> bool:
        """Whether the model distinguishes the two texts of a pair by token types."""
        spec = self.encoder_spec(self.base.spec) if self.base else self._new_spec()
        return (getattr(spec.input, "types", None) or 0) > 1

    def build_encoder(self, num_labels: int) -> tuple[Bundle, bool]:
        """Build or load the model with its head and tokenizer; return it, and whether the head is new."""
        base = self.base
        if base is None:
            spec = self._new_spec()
            head = published_head(spec, self.head_task, num_labels)
            bundle = Bundle(model=build_initialized(replace(spec, head=head, tied=())))
            if self.reads_token_types:  # transformers' tokenizer leaves them out by default
                self.corpus.tokenizer.set_model_input_names(("input_ids", "token_type_ids", "attention_mask"))
        else:
            spec = self.encoder_spec(base.spec)
            assert isinstance(spec.input, specs.TokensSpec)
            check_vocabulary(self.corpus, spec.input.vocab_size)
            bundle = with_head(base, published_head(spec, self.head_task, num_labels, base.family))
        new_head = base is None or bundle.model is not base.model
        return replace(bundle, tokenizer=self.corpus.tokenizer), new_head
