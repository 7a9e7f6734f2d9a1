"""Classifiers and regressors of texts and of text pairs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.data.examples import LabeledExamples, float_bits
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import LABEL_SEPARATOR, LabeledSource, ProblemType, Source, labeled_texts
from glassformer.data.store import Ragged, Store
from glassformer.errors import ConflictError, UnknownNameError, UnsupportedError
from glassformer.processors.text import truncate_longest_first
from glassformer.schema import setting
from glassformer.tasks.classification import problem_type_of
from glassformer.tokenization import Tokenizer
from glassformer.training import sections
from glassformer.training.classify_job import SKEWED_RATIO, ClassifyJob
from glassformer.training.encoder_job import LabeledTextJob
from glassformer.training.encoding import Encoded, Row
from glassformer.training.hardware import Hardware
from glassformer.training.job_spec import JobSpec
from glassformer.training.labels import order_classes
from glassformer.training.learner import TextLabelLearner
from glassformer.training.sections import Columns, Paths, TableSection

LISTED_LABELS = 20
MAX_FLOAT_BITS = 2**32 - 1  # of `float_bits`
METRICS_OF: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("loss", "accuracy", "f1"),
    "multi_label_classification": ("loss", "accuracy", "f1", "micro_f1"),
    "regression": ("loss", "mse", "mae", "pearson", "spearman"),
}


@dataclass(frozen=True, kw_only=True)
class LabeledData(TableSection):
    """Texts and their labels, one per row."""

    input: Literal["text"] = sections.input_kind("text")
    train: Paths = sections.train_files("tables with a text and a label in a row")
    valid: Paths | float = sections.valid_split(0.05)
    columns: Columns | None = sections.column_names(
        "text and label column, or text, text_pair and label, e.g. `[premise, hypothesis, label]`"
    )
    problem_type: (
        Literal["single_label_classification", "multi_label_classification", "regression"] | None
    ) = setting(
        None,
        "single_label_classification, multi_label_classification (lists, or cells such as `warm|funny`) or "
        "regression (numbers with a fractional part); null detects it",
    )
    max_len: int | None = sections.maximum_length("a text; longer texts are truncated and counted")
    bpe_dropout: float = sections.bpe_dropout_probability()
    mask_prob: float = setting(
        0.0, "probability of masking a token (training only)", interval="[0, 1)", unit="probability"
    )
    mlm_weight: float = setting(
        0.0,
        "weight of the masked-language-modeling loss, relative to the classification loss",
        interval="[0, inf)",
    )


class ClassifyTexts(ClassifyJob[LabeledData], LabeledTextJob[LabeledData]):
    """Train a text classifier or regressor, also of text pairs."""

    head_task = "ForSequenceClassification"
    unit = "texts"
    fields: tuple[str, ...] = ()
    target_name = "score"  # of a regressor: the name of its column
    columns: tuple[str, ...] = ()  # fields of the source

    @property
    def problem_type(self) -> ProblemType:  # type: ignore[override]
        kind = self.data.problem_type
        assert kind is not None
        return kind

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        if self.base is not None:
            self.update_data(problem_type=problem_type_of(self.base))

    def open_files(self, files: Sequence[str]) -> LabeledSource:
        data = self.data
        source = labeled_texts(
            files, columns=data.columns, problem_type=data.problem_type, **data.table_options
        )
        self.log_columns(files, source)
        if self.columns and source.fields != self.columns:
            expected = f"the columns {', '.join(self.columns)}"
            raise ConflictError(("data.train", "data.valid"), f"both need {expected}", "set data.columns")
        if not self.columns and isinstance(source.columns[-1], str):
            self.target_name = source.columns[-1]
        self.columns = source.fields
        self.fields = ("text", "types", "label") if len(source.fields) == 3 else ("text", "label")
        if data.problem_type is None:
            self.update_data(problem_type=source.problem_type)
            self.log(f"problem type: {source.problem_type}")
        return source

    def texts(self, row: Row) -> Sequence[str]:
        return row[:-1]

    def max_value(self) -> int:
        return MAX_FLOAT_BITS if self.regression else super().max_value()

    def encode(self, tokenizer: Tokenizer, rows: list[Row]) -> Encoded:
        targets = self._targets([row[-1] for row in rows])
        counts = Counter[Any]() if self.regression else Counter[Any](targets.ids.tolist())
        if not self._reads_pairs:
            ids = Ragged.of(tokenizer.encode_ids([row[0] for row in rows]))
            counts["truncated"] = int((ids.lengths > self.max_len).sum())
            return (ids.truncate(self.max_len), targets), counts
        encoded = tokenizer.encode_batch([row[0] for row in rows], [row[1] for row in rows])
        counts["truncated"] = sum(len(text) > self.max_len for text in encoded)
        fitting = [truncate_longest_first(text, self.max_len) for text in encoded]
        types = Ragged.of([text.type_ids for text in fitting])
        return (Ragged.of([text.ids for text in fitting]), types, targets), counts

    def notes(self, counts: Counter[Any]) -> dict[str, Any]:
        numbers = [counts[n] for n in range(len(self.classes))]
        return {"classes": list(self.classes), "counts": numbers, "truncated": counts["truncated"]}

    def _targets(self, labels: Sequence[str]) -> Ragged:
        """Return the class numbers of each text, or the bits of its regression target."""
        if self.regression:
            bits = float_bits([float(label) for label in labels])
            return Ragged(ids=bits, lengths=np.ones(len(labels), np.int64))
        numbers = {label: n for n, label in enumerate(self.classes)}
        rows = []
        for label in labels:
            names = [name for name in label.split(LABEL_SEPARATOR) if name] if self.multi_label else [label]
            if unknown := [name for name in names if name not in numbers]:
                hint = "every class needs examples in the training data"
                raise UnknownNameError("label", unknown[0], numbers, hint, where="the validation data")
            rows.append([numbers[name] for name in names])
        return Ragged.of(rows)

    def find_classes(self, source: Source) -> Sequence[str]:
        if self.regression:
            return [self.target_name]
        labels = {row[-1] for row in source.rows(RowErrors())}
        if self.multi_label:
            labels = {name for label in labels for name in label.split(LABEL_SEPARATOR) if name}
        return order_classes(labels, self.base, minimum=1 if self.multi_label else 2)

    def _check_options(self) -> None:
        """Reject options that the problem type or text pairs do not support."""
        training, unsupported = self.recipe.training, list[str]()
        if self.problem_type != "single_label_classification":
            unsupported += [name for name in ("r_drop", "label_smoothing") if getattr(training, name)]
        if self.regression and training.class_weights not in (None, "none"):
            unsupported.append("class_weights")
        if unsupported:
            raise UnsupportedError(self.problem_type, f"training.{unsupported[0]}")
        if self._reads_pairs and self.data.bpe_dropout:
            raise UnsupportedError("a classifier of text pairs", "data.bpe_dropout", "set it to 0")
        metric, known = training.metric_for_best_model, METRICS_OF[self.problem_type]
        if metric is not None and metric not in known:
            raise UnknownNameError("metric", metric, known, where=self.problem_type)

    @property
    def _reads_pairs(self) -> bool:
        return len(self.fields) == 3

    def log_data(self) -> None:
        self._check_options()
        super().log_data()
        self._log_labels()

    def _log_labels(self) -> None:
        """Log the number of training texts of each label, and warn if they are skewed."""
        if self.regression:
            values = self._all_targets()
            self.facts["targets"] = f"{values.min():g} to {values.max():g}, mean {values.mean():.4g}"
            self.log(f"targets ({self.classes[0]}): {self.facts['targets']}")
            return
        counts = dict(zip(self.classes, self.label_counts, strict=True))
        self.facts |= {"classes": list(self.classes), "label counts": counts}
        total = max(1, len(self.corpus.train))
        listed = [f"{name} {count:,} ({count / total:.1%})" for name, count in counts.items()]
        more = f", ... ({len(listed):,} in all)" if len(listed) > LISTED_LABELS else ""
        self.log(f"labels: {', '.join(listed[:LISTED_LABELS])}{more}")
        if self.skewed:
            self.log("warning: the labels are skewed, so the best model is chosen by macro F1, not accuracy")

    @property
    def label_counts(self) -> list[int]:
        return list(self.corpus.train_notes["counts"])

    @property
    def skewed(self) -> bool:
        counts = [count for count in self.label_counts if count]
        single = self.problem_type == "single_label_classification"
        return single and max(counts) >= SKEWED_RATIO * min(counts)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        reasons = super().choose_defaults(hardware)
        training = self.recipe.training
        if training.class_weights is None and self.skewed:
            self.recipe = replace(self.recipe, training=replace(training, class_weights="balanced"))
            reasons.append("training: class_weights balanced, since the labels are skewed")
        return reasons

    def examples(self, store: Store, *, augment: bool = False) -> LabeledExamples:
        return LabeledExamples(
            store,
            pad_id=self.corpus.pad_id,
            bpe_dropout=self.bpe_dropout() if augment and self.data.bpe_dropout else None,
            num_labels=len(self.classes) if self.multi_label else 0,
            regression=self.regression,
            token_types=self._reads_pairs and self.reads_token_types,
        )

    def _all_targets(self) -> NDArray[np.float64]:
        """Return the regression targets of the training texts."""
        store = self.corpus.train
        examples = LabeledExamples(store, pad_id=self.corpus.pad_id, regression=True)
        return examples.labels().astype(np.float64)

    @property
    def _target_std(self) -> float:
        """The standard deviation of the training targets; 1 if they are constant."""
        return float(self._all_targets().std()) or 1.0

    def build(self) -> Bundle:
        bundle, new_head = self.build_labeled(
            self.classes,
            config={"problem_type": self.problem_type},
            problem_type=self.problem_type,
            text_pair=self._reads_pairs or None,
            data_columns=self.corpus.data_columns,
        )
        if self.regression and new_head:  # predict the mean of the targets at first, in their unit
            out: Any = bundle.model.head.out
            with torch.no_grad():
                out.weight.mul_(self._target_std)
                if out.bias is not None:
                    out.bias.fill_(self._all_targets().mean())
        return bundle

    def learner(self, model: Any) -> TextLabelLearner:
        tokenizer, pad_id = self.corpus.tokenizer, self.corpus.pad_id
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id, pad_id)
        return TextLabelLearner(
            model,
            mask_prob=self.data.mask_prob,
            mlm_weight=self.data.mlm_weight,
            mask_id=self._mask_id(),
            unmaskable=tuple({number for number in special if number is not None}),
            problem_type=self.problem_type,
            target_std=self._target_std if self.regression else 1.0,
            **self.learner_options,
        )

    def valid_samples(self, valid: LabeledExamples) -> list[tuple[str, str]]:
        return [(" | ".join(row[:-1]), row[-1].replace(LABEL_SEPARATOR, " | ")) for row in self.valid_texts()]

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


TEXTS = JobSpec(
    name="classify",
    input="text",
    summary="Train a classifier or regressor of texts or text pairs.",
    factory=ClassifyTexts,
    data=LabeledData,
    metrics=tuple(dict.fromkeys(name for names in METRICS_OF.values() for name in names)),
    metric="accuracy",
    preset="bert",
)
