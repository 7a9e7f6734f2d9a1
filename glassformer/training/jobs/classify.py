"""Text classification: a text and its label in every row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.examples import BpeDropout, LabelledExamples
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, labelled_texts
from glassformer.data.store import Ragged
from glassformer.errors import InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import (
    classes_of,
    classification_task,
    sort_labels,
    with_classes,
)
from glassformer.training.jobs.text import TextCorpus, check_vocabulary, log_counts, max_id, prepare_corpus
from glassformer.training.learner import TextLabelLearner
from glassformer.training.model_setup import (
    choose_size,
    classification_head,
    fresh,
    fresh_spec,
    max_input_length,
    supported_options,
    with_head,
)
from glassformer.training.recipe import LabelledData
from glassformer.training.task import Task
from glassformer.training.text_encoding import (
    Progress,
    Row,
    encode_rows,
    read_texts,
    split_sources,
    token_splits,
)

LISTED_CLASSES = 20


class Classify(Job):
    """Labelled texts; measured by accuracy and macro F1."""

    default_preset = "bert"
    corpus: TextCorpus
    classes: Sequence[str] = ()

    @property
    def data(self) -> LabelledData:
        assert isinstance(self.recipe.data, LabelledData)
        return self.recipe.data

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            self.classes = classes_of(self.base) or ()
            limit = max_input_length(self._encoder(self.base.spec))
            max_len = min(limit, self.base_info.max_len or limit)
            self.recipe = replace(self.recipe, data=replace(self.data, max_len=max_len))

    def prepare_data(self) -> None:
        data = self.data
        if self.base is not None and data.max_len > max_input_length(self._encoder(self.base.spec)):
            limit = max_input_length(self.base.spec)
            raise InvalidValueError("data.max_len", data.max_len, f"at most {limit} for this model")
        train, valid = split_sources(
            lambda files: labelled_texts(files, columns=data.columns), data, seed=self.recipe.seed
        )
        self.corpus = corpus = prepare_corpus(
            self,
            train,
            valid,
            self._write,
            cache_key=(data.max_len, self.recipe.training.max_valid),
            marks="around",
            text_columns=1,
        )
        self.classes = corpus.notes["valid"]["classes"]
        log_counts(self, corpus, "texts")
        self.facts["classes"] = self.classes
        more = ", ..." if len(self.classes) > LISTED_CLASSES else ""
        self.log(f"{len(self.classes)} classes: {', '.join(self.classes[:LISTED_CLASSES])}{more}")
        if truncated := corpus.total("truncated"):
            self.facts["truncated texts"] = truncated
            self.log(f"{truncated:,} texts are longer than {data.max_len} tokens and are truncated")

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write ids and class numbers. The first split, or the model, determines the classes."""
        self.classes = self.classes or self._find_classes(source)
        numbers = {label: n for n, label in enumerate(self.classes)}
        max_len = self.data.max_len
        truncated: list[int] = []  # in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            for _, label in rows:
                if label not in numbers:
                    raise UnknownNameError("label in the validation data", label, numbers)
            ids = Ragged.of(tokenizer.encode_ids([text for text, _ in rows]))
            truncated.append(int((ids.lengths > max_len).sum()))
            return ids.truncate(max_len), Ragged.of([[numbers[label]] for _, label in rows])

        encode_rows(
            folder,
            source,
            source.fields,
            encode,
            max_id=max(max_id(tokenizer), len(self.classes)),
            max_len=None,
            problems=problems,
            progress=Progress("texts", self.log),
            keep_texts=self.recipe.training.max_valid,
        )
        return {"classes": self.classes, "truncated": sum(truncated)}

    def _find_classes(self, source: Source) -> Sequence[str]:
        """The labels of a split; in the order of the base model if it has the same."""
        found = sort_labels(list({row[1] for row in source.rows(RowErrors())}))
        if len(found) < 2:
            raise InvalidValueError("the labels of the training data", found, "at least two classes")
        before = classes_of(self.base) if self.base else None
        return before if before is not None and set(before) == set(found) else found

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.recipe.model.folder is not None
        tokens = store.sizes()[0]
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=len(self.classes),
            epochs=min(40.0, max(3.0, 300_000 / len(store))),
            length_known=self.has_length,
        )
        self.fill_model({} if tuning else supported_options(self.preset, size.options()))
        batch = min(16_384 if hardware.on_gpu else 4096, 64 * max(16, tokens // len(store)), tokens // 20)
        return ([] if tuning else [reason]) + self.fill_training(
            LabelledExamples(store, pad_id=self.corpus.pad_id),
            batch=max(self.data.max_len, batch),
            epochs=3 if tuning else epochs,
            lr=3e-5 if tuning else min(2e-3, 0.1 / size.d_model),
            schedule="linear" if tuning else "cosine",
        )

    def train_examples(self) -> LabelledExamples:
        """The training texts, with BPE dropout if the recipe asks for it."""
        dropout = None
        if self.data.bpe_dropout:
            splits = token_splits(self.corpus.tokenizer)
            dropout = BpeDropout(
                splits, self.data.bpe_dropout, max_length=self.data.max_len, seed=self.recipe.seed
            )
        return LabelledExamples(self.corpus.train, pad_id=self.corpus.pad_id, bpe_dropout=dropout)

    def _encoder(self, spec: Any) -> specs.EncoderOnly:
        if isinstance(spec, specs.EncoderOnly) and isinstance(spec.input, specs.Tokens):
            return spec
        model = self.recipe.model.folder or self.recipe.model.preset
        raise UnsupportedError(
            f"the model '{model}'", "the job classify", "use a text encoder: bert, roberta or distilbert"
        )

    def build(self) -> Bundle:
        """The model with its tokenizer and labels, as it will be saved."""
        corpus, base = self.corpus, self.base
        if base is None:
            fixed = {
                "vocab_size": corpus.tokenizer.vocab_size,
                "pad_id": corpus.pad_id,
                "max_len": self.data.max_len,
            }
            options = self.recipe.model
            spec = self._encoder(fresh_spec(options, supported_options(options.preset or "", fixed)))
            head = classification_head(spec, len(self.classes))
            bundle = Bundle(model=fresh(replace(spec, head=head, tied=())))
        else:
            spec = self._encoder(base.spec)
            assert isinstance(spec.input, specs.Tokens)
            check_vocabulary(self, corpus, spec.input.vocab_size)
            bundle = with_head(base, classification_head(spec, len(self.classes)))
        bundle.tokenizer = corpus.tokenizer
        return with_classes(bundle, self.recipe.job, self.classes, max_len=self.data.max_len)

    def task(self) -> Task:
        texts, training, bundle = read_texts(self.corpus.valid.folder), self.recipe.training, self.build()
        tokenizer, pad_id = self.corpus.tokenizer, self.corpus.pad_id
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id, pad_id)
        learner = TextLabelLearner(
            bundle.model,
            mask_prob=self.data.mask_prob,
            mlm_weight=self.data.mlm_weight,
            mask_id=self._mask_id(),
            unmaskable=tuple({number for number in special if number is not None}),
            smoothing=training.label_smoothing or 0.0,
            r_drop=training.r_drop,
        )
        return classification_task(
            bundle,
            learner,
            train=self.train_examples(),
            valid=LabelledExamples(self.corpus.valid, pad_id=pad_id),
            sample_inputs=[text for text, _ in texts],
            sample_labels=[self.classes.index(label) for _, label in texts],
            classes=self.classes,
            unit="texts",
            training=training,
        )

    def _mask_id(self) -> int:
        """The mask token, or the unknown token if there is none."""
        for number in (self.corpus.tokenizer.mask_id, self.corpus.tokenizer.unk_id):
            if number is not None:
                return number
        if self.data.mask_prob:
            raise UnsupportedError(
                "the tokenizer",
                "data.mask_prob, since it has neither a mask nor an unknown token",
                "set it to 0, or use another tokenizer.kind than byte",
            )
        return self.corpus.pad_id
