"""The base of jobs that fine-tune or train a text encoder with a head for one task."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.job import Data
from glassformer.training.labels import classes_of, with_classes
from glassformer.training.model_setup import (
    TaskSuffix,
    build_initialized,
    max_input_length,
    new_model_spec,
    published_head,
    supported_options,
    with_head,
)
from glassformer.training.text_job import TextJob, check_vocabulary


class EncoderJob(TextJob[Data]):
    """Train a text encoder with the head `head_task` of its published architecture.

    num_labels: outputs of the head. num_texts: fields of the store that are texts.
    texts_seen, max_epochs: in all, when a new model is trained on many or on few texts.
    """

    template = "cls_sep"
    head_task: ClassVar[TaskSuffix]
    num_labels = 2
    num_texts = 1
    texts_seen, max_epochs = 300_000, 40.0
    encoders = "bert, roberta or electra"  # examples of suitable models

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            limit = max_input_length(self.encoder_spec(self.base.spec))
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    def fill_max_len(self) -> None:
        if self.base is not None:
            self.encoder_spec(self.base.spec)
        super().fill_max_len()

    def encoder_spec(self, spec: Any) -> specs.EncoderOnlySpec:
        """Return the spec of a text encoder; raise for any other model."""
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.TokensSpec):
            return spec
        raise self.unsupported_model(f"use a text encoder, e.g. {self.encoders}")

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        tokens = sum(store.sizes()[: self.num_texts])
        size, epochs, reasons = self.choose_size(
            hardware,
            units=tokens,
            vocab_size=1,
            epochs=min(self.max_epochs, max(3.0, self.texts_seen / len(store))),
        )
        self.fill_model(supported_options(self.preset, size.options()))
        return reasons + self.fill_training(
            self.train_examples(),
            batch=self.choose_batch(16_384 if hardware.on_gpu else 4096, tokens),
            epochs=3 if tuning else epochs,
            lr=3e-5 if tuning else min(2e-3, 0.1 / size.d_model),
        )

    def choose_batch(self, most: int, tokens: int) -> int:
        """Return the number of tokens of a batch. most: for the device. tokens: of the training texts."""
        return max(self.max_len, min(most, 64 * max(16, tokens // len(self.corpus.train)), tokens // 20))

    def _new_spec(self) -> specs.EncoderOnlySpec:
        ids = {"vocab_size": self.corpus.tokenizer.vocab_size, "pad_id": self.corpus.pad_id}
        fixed = supported_options(self.preset, {**ids, "max_len": self.max_len})
        return self.encoder_spec(new_model_spec(replace(self.recipe.model, preset=self.preset), fixed))

    @property
    def reads_token_types(self) -> bool:
        """Whether the model distinguishes the two texts of a pair by token types."""
        spec = self.encoder_spec(self.base.spec) if self.base else self._new_spec()
        return (getattr(spec.input, "types", None) or 0) > 1

    def head_spec(self, spec: specs.EncoderOnlySpec, family: str | None) -> specs.HeadSpec:
        """Return the head of the model. family: that the encoder was loaded as."""
        return published_head(spec, self.head_task, self.num_labels, family)

    def build_encoder(self) -> tuple[Bundle, bool]:
        """Build or load the model with its head and tokenizer; return it, and whether the head is new."""
        base, tokenizer = self.base, self.corpus.tokenizer
        if base is None:
            spec = self._new_spec()
            bundle = Bundle(model=build_initialized(replace(spec, head=self.head_spec(spec, None), tied=())))
        else:
            spec = self.encoder_spec(base.spec)
            assert isinstance(spec.input, specs.TokensSpec)
            check_vocabulary(self.corpus, spec.input.vocab_size)
            bundle = with_head(base, self.head_spec(spec, base.family))
        new_head = base is None or bundle.model is not base.model
        return replace(bundle, tokenizer=tokenizer), new_head

    def build_labeled(self, classes: Sequence[str] = (), **info: Any) -> tuple[Bundle, bool]:
        """Build or load the model as `build_encoder`, with class names. info: entries of `job.json`."""
        bundle, new_head = self.build_encoder()
        if self.base is None and self.reads_token_types:  # transformers' tokenizer leaves them out by default
            self.corpus.tokenizer.set_model_input_names(("input_ids", "token_type_ids", "attention_mask"))
        return with_classes(bundle, self.recipe.job, classes, max_len=self.max_len, **info), new_head


class LabeledTextJob(EncoderJob[Data]):
    """Train a text encoder on labels that the data names. classes: their names, in the order of the head."""

    classes: Sequence[str] = ()

    @property
    def num_labels(self) -> int:  # type: ignore[override]
        return len(self.classes)

    @abstractmethod
    def find_classes(self, source: Source) -> Sequence[str]:
        """Return the labels of a split, in the order of the base model if it has the same labels."""

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        self.classes = classes_of(self.base) or ()

    def max_value(self) -> int:
        return len(self.classes)

    def write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids and labels; the classes come from the base model or the first split."""
        self.classes = self.classes or self.find_classes(source)
        return super().write(tokenizer, folder, source, problems)

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        return {"classes": list(self.classes), **counts}

    def log_data(self) -> None:
        self.classes = self.corpus.notes["valid"]["classes"]
        super().log_data()
