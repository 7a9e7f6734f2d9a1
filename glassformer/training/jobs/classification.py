"""Jobs that train classifiers of texts and images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.core.model import TwoTower
from glassformer.data.bpe_dropout import BpeDropout
from glassformer.data.examples import Examples, LabeledExamples, float_bits
from glassformer.data.image_files import list_files, list_names, single_path
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment, ImageExamples, ImageSet, channel_statistics, prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import (
    LABEL_SEPARATOR,
    LabeledSource,
    ProblemType,
    Source,
    Stamp,
    fingerprint_files,
    labeled_texts,
)
from glassformer.data.store import Ragged, Store
from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.messages import plural
from glassformer.metrics.labels import ConfusionMatrix, multi_label_scores
from glassformer.metrics.regression import regression_scores
from glassformer.tasks.base import truncate_longest_first
from glassformer.tasks.classification import problem_type_of
from glassformer.tokenization import Tokenizer
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.labels import classes_of, sort_labels, with_classes
from glassformer.training.jobs.text import (
    Row,
    encode_rows,
    log_counts,
    max_id,
    prepare_corpus,
    read_texts,
    token_splits,
)
from glassformer.training.jobs.text_encoder import EncoderJob
from glassformer.training.learner import (
    ImageLearner,
    LabelLearner,
    TextLabelLearner,
    count_examples,
    count_labels,
)
from glassformer.training.model_setup import (
    build_initialized,
    choose_size,
    image_head,
    is_hierarchical,
    new_model_spec,
    supported_options,
    with_head,
)
from glassformer.training.recipe import ImageData, LabeledData, TrainingOptions
from glassformer.training.task import (
    LearnerTask,
    Sample,
    ValidationResult,
    classification_metrics,
    evaluation_batches,
)

LISTED_LABELS = 20
MAX_FLOAT_BITS = 2**32 - 1  # of `float_bits`
SKEWED_RATIO = 4  # of the counts of the most and the least frequent class
METRICS_OF: dict[ProblemType, tuple[str, ...]] = {
    "single_label_classification": ("loss", "accuracy", "f1"),
    "multi_label_classification": ("loss", "accuracy", "f1", "micro_f1"),
    "regression": ("loss", "mse", "mae", "pearson", "spearman"),
}
MAX_SMALL_SIDE = 64  # largest image for the smallest hierarchical encoder; larger ones get these options
LARGE_STAGES = {
    "patch_size": 4,
    "embed_dim": 96,
    "depths": (2, 2, 6, 2),
    "num_heads": (3, 6, 12, 24),
    "window_size": 7,
}
PATCH_COUNTS = (49, 256)  # fewest and most patches of an image
MAX_PATCH_SIZE = 16


def classification_task(
    bundle: Bundle,
    learner: LabelLearner,
    *,
    train: Examples,
    valid: Examples,
    sample_inputs: Sequence[str],
    sample_labels: Sequence[int],
    classes: Sequence[str],
    unit: str,
    training: TrainingOptions,
) -> LearnerTask:
    """Build the training task of a classifier.

    sample_inputs, sample_labels: text and class number of the first validation examples, to log predictions.
    """

    def validate(device: torch.device) -> ValidationResult:
        loss, matrix, predicted = classification_metrics(
            learner, valid, device, classes=classes, batch=training.batch or 4096
        )
        return ValidationResult(
            metrics={"loss": loss, "accuracy": matrix.accuracy, "f1": matrix.macro_f1},
            samples=[
                Sample(source=text, expected=classes[label], got=classes[predicted[n]])
                for n, (text, label) in enumerate(zip(sample_inputs, sample_labels, strict=True))
            ],
            tables={"classes": [row._asdict() for row in matrix.table()]},
        )

    return LearnerTask(
        learner=learner,
        train=train,
        unit=unit,
        count=count_labels,
        metric="accuracy",
        validate=validate,
        save=partial(save, bundle),
    )


class ClassifyJob(EncoderJob[LabeledData]):
    """Train a text classifier or regressor, also of text pairs.

    Evaluated with accuracy and macro F1, or with the errors and correlations of predicted numbers.
    """

    head_task = "ForSequenceClassification"
    classes: Sequence[str] = ()
    fields: tuple[str, ...] = ()
    target_name = "score"  # of a regressor: the name of its column

    @property
    def problem_type(self) -> ProblemType:
        kind = self.data.problem_type
        assert kind is not None
        return kind

    @property
    def multi_label(self) -> bool:
        return self.problem_type == "multi_label_classification"

    @property
    def regression(self) -> bool:
        return self.problem_type == "regression"

    def adopt_base_settings(self) -> None:
        super().adopt_base_settings()
        if self.base is not None:
            self.classes = classes_of(self.base) or ()
            self.update_data(problem_type=problem_type_of(self.base))

    def prepare_data(self) -> None:
        self.check_base()
        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=(self.max_len, self.recipe.training.max_generate_samples),
            template="cls_sep",
            texts=lambda row: row[:-1],
        )
        self.classes = corpus.notes["valid"]["classes"]
        self._check_options()
        log_counts(self, corpus, "texts")
        self._log_labels()
        self.log_truncated("texts")

    def _read(self, files: Sequence[str]) -> LabeledSource:
        data = self.data
        source = labeled_texts(
            files, columns=data.columns, problem_type=data.problem_type, encoding=data.encoding
        )
        if files == self.data.train and self.data.columns is None and source.unused_columns:
            self.log(source.column_summary)
        if self.fields and source.fields != self.fields:
            expected = f"the columns {', '.join(self.fields)}"
            raise ConflictError(("data.train", "data.valid"), f"both need {expected}", "set data.columns")
        if not self.fields and isinstance(source.columns[-1], str):
            self.target_name = source.columns[-1]
        self.fields = source.fields
        if self.data.problem_type is None:
            self.update_data(problem_type=source.problem_type)
            self.log(f"problem type: {source.problem_type}")
        return source

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids and labels; the classes come from the base model or the first split."""
        self.classes = self.classes or self._find_classes(source)
        numbers = {label: n for n, label in enumerate(self.classes)}
        max_len, pair = self.max_len, len(source.fields) == 3
        truncated: list[int] = []  # number of truncated texts in each group of rows
        counts: Counter[int] = Counter()

        def encode(rows: list[Row]) -> tuple[Ragged, ...]:
            targets = self._targets([row[-1] for row in rows], numbers)
            if not self.regression:
                counts.update(targets.ids.tolist())
            if not pair:
                ids = Ragged.of(tokenizer.encode_ids([row[0] for row in rows]))
                truncated.append(int((ids.lengths > max_len).sum()))
                return ids.truncate(max_len), targets
            encoded = tokenizer.encode_batch([row[0] for row in rows], [row[1] for row in rows])
            truncated.append(sum(len(text) > max_len for text in encoded))
            fitting = [truncate_longest_first(text, max_len) for text in encoded]
            types = Ragged.of([text.type_ids for text in fitting])
            return Ragged.of([text.ids for text in fitting]), types, targets

        largest = MAX_FLOAT_BITS if self.regression else max(max_id(tokenizer), len(self.classes))
        fields = ("text", "types", "label") if pair else ("text", "label")
        encode_rows(self, folder, source.rows(problems), fields, encode, what="texts", max_id=largest)
        return {
            "classes": list(self.classes),
            "counts": [counts[n] for n in range(len(self.classes))],
            "truncated": sum(truncated),
        }

    def _targets(self, labels: Sequence[str], numbers: Mapping[str, int]) -> Ragged:
        """Return the class numbers of each text, or the bits of its regression target."""
        if self.regression:
            bits = float_bits([float(label) for label in labels])
            return Ragged(ids=bits, lengths=np.ones(len(labels), np.int64))
        rows = []
        for label in labels:
            names = [name for name in label.split(LABEL_SEPARATOR) if name] if self.multi_label else [label]
            if unknown := [name for name in names if name not in numbers]:
                hint = "every class needs examples in the training data"
                raise UnknownNameError("label", unknown[0], numbers, hint, where="the validation data")
            rows.append([numbers[name] for name in names])
        return Ragged.of(rows)

    def _find_classes(self, source: Source) -> Sequence[str]:
        """Return the labels of a split, in the order of the base model if it has the same labels."""
        if self.regression:
            return [self.target_name]
        labels = {row[-1] for row in source.rows(RowErrors())}
        if self.multi_label:
            labels = {name for label in labels for name in label.split(LABEL_SEPARATOR) if name}
        classes = sort_labels(list(labels))
        if len(classes) < (1 if self.multi_label else 2):
            raise InvalidValueError("the set of labels", classes, "at least two labels")
        before = classes_of(self.base) if self.base else None
        return before if before is not None and set(before) == labels else classes

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
        return len(self.corpus.train.fields) == 3

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
        """The number of training texts of each class."""
        return list(self.corpus.train_notes["counts"])

    @property
    def skewed(self) -> bool:
        """Whether one class is several times as frequent as another, which makes accuracy misleading."""
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

    def class_weights(self) -> list[float] | None:
        """Return the weight of each class; the mean weight of the training texts is 1."""
        option, counts, total = self.recipe.training.class_weights, self.label_counts, len(self.corpus.train)
        if option is None or option == "none":
            return None
        if option == "balanced":
            if self.multi_label:
                return [(total - count) / max(1, count) for count in counts]
            return [total / (len(counts) * max(1, count)) for count in counts]
        if isinstance(option, Mapping):
            named = {str(name): float(weight) for name, weight in option.items()}
            for name in named:
                if name not in self.classes:
                    raise UnknownNameError("class", name, self.classes, where="training.class_weights")
            weights = [named.get(name, 1.0) for name in self.classes]
        else:
            assert isinstance(option, tuple)
            weights = list(option)
        if len(weights) != len(self.classes):
            expected = f"{len(self.classes)} weights, one per class"
            raise InvalidValueError("training.class_weights", weights, expected)
        if self.multi_label:
            return weights
        mean = sum(weight * count for weight, count in zip(weights, counts, strict=True)) / max(1, total)
        return [weight / mean for weight in weights]

    def _examples(self, store: Store, bpe_dropout: BpeDropout | None = None) -> LabeledExamples:
        return LabeledExamples(
            store,
            pad_id=self.corpus.pad_id,
            bpe_dropout=bpe_dropout,
            num_labels=len(self.classes) if self.multi_label else 0,
            regression=self.regression,
            token_types=self._reads_pairs and self.reads_token_types,
        )

    def train_examples(self) -> LabeledExamples:
        """Return the training texts, with BPE dropout if the recipe enables it."""
        dropout = None
        if self.data.bpe_dropout:
            splits = token_splits(self.corpus.tokenizer)
            dropout = BpeDropout(
                splits, self.data.bpe_dropout, max_length=self.max_len, seed=self.recipe.seed
            )
        return self._examples(self.corpus.train, dropout)

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
        """Build or load the model with its tokenizer and labels, as it will be saved."""
        bundle, new_head = self.build_encoder(len(self.classes))
        if self.regression and new_head:  # predict the mean of the targets at first, in their unit
            out: Any = bundle.model.head.out
            with torch.no_grad():
                out.weight.mul_(self._target_std)
                if out.bias is not None:
                    out.bias.fill_(self._all_targets().mean())
        return with_classes(
            bundle,
            self.recipe.job,
            self.classes,
            config={"problem_type": self.problem_type},
            problem_type=self.problem_type,
            text_pair=self._reads_pairs or None,
            max_len=self.max_len,
            data_columns=self.corpus.data_columns,
        )

    def task(self) -> LearnerTask:
        texts, training, bundle = read_texts(self.corpus.valid.folder), self.recipe.training, self.build()
        tokenizer, pad_id = self.corpus.tokenizer, self.corpus.pad_id
        special = (tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id, tokenizer.mask_id, pad_id)
        learner = TextLabelLearner(
            bundle.model,
            mask_prob=self.data.mask_prob,
            mlm_weight=self.data.mlm_weight,
            mask_id=self._mask_id(),
            unmaskable=tuple({number for number in special if number is not None}),
            label_smoothing=training.label_smoothing or 0.0,
            r_drop=training.r_drop,
            problem_type=self.problem_type,
            class_weights=self.class_weights(),
            target_std=self._target_std if self.regression else 1.0,
        )
        return LearnerTask(
            learner=learner,
            train=self.train_examples(),
            unit="texts",
            count=count_examples,
            metric="mse" if self.regression else "f1" if self.multi_label or self.skewed else "accuracy",
            validate=partial(self._validate, learner, self._examples(self.corpus.valid), texts),
            save=partial(save, bundle),
        )

    def _validate(
        self,
        learner: TextLabelLearner,
        valid: LabeledExamples,
        texts: Sequence[Sequence[str]],
        device: torch.device,
    ) -> ValidationResult:
        """Compute the metrics of the problem type. texts: rows of the first validation texts."""
        logits, total = np.zeros((len(valid), len(self.classes)), np.float32), 0.0
        for rows, _, tensors in evaluation_batches(valid, device, self.recipe.training.batch or 4096):
            output = learner.logits(tensors["inputs"], tensors.get("types"))
            total += float(learner.loss(output, tensors["labels"]))
            logits[rows] = output.float().cpu().numpy()
        metrics, labels, tables = {"loss": total / len(valid)}, valid.labels(), dict[str, Any]()
        constant = False
        if self.regression:
            metrics |= regression_scores(logits[:, 0], labels)._asdict()
            outputs = [f"{value:.4f}" for value in logits[: len(texts), 0]]
        elif self.multi_label:
            scores = multi_label_scores(self.classes, logits > 0, labels)
            metrics |= {"accuracy": scores.accuracy, "f1": scores.macro_f1, "micro_f1": scores.micro_f1}
            tables["classes"] = [row._asdict() for row in scores.table]
            names = [[self.classes[int(n)] for n in np.flatnonzero(row > 0)] for row in logits[: len(texts)]]
            outputs = [" | ".join(row) for row in names]
        else:
            matrix, predicted = ConfusionMatrix(self.classes), logits.argmax(-1)
            matrix.add(predicted=predicted, true=labels)
            constant = self.skewed and len(set(predicted.tolist())) == 1
            metrics |= {"accuracy": matrix.accuracy, "f1": matrix.macro_f1}
            tables["classes"] = [row._asdict() for row in matrix.table()]
            outputs = [self.classes[n] for n in predicted[: len(texts)]]
        samples = [
            Sample(source=" | ".join(row[:-1]), expected=row[-1].replace(LABEL_SEPARATOR, " | "), got=output)
            for row, output in zip(texts, outputs, strict=True)
        ]
        return ValidationResult(metrics=metrics, samples=samples, tables=tables, constant=constant)

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


class ImagesJob(Job[ImageData]):
    """Train an image classifier; evaluated with accuracy and macro F1."""

    default_preset = "vit"
    train_set: ImageSet
    valid_set: ImageSet
    train_rows: NDArray[np.int64] | None = None  # None means all
    valid_rows: NDArray[np.int64] | None = None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    base_classes: Sequence[str] | None = None  # classes of the model to evaluate

    @property
    def base_input(self) -> specs.ImagePatchesSpec | None:
        """The input layer of the base model."""
        if self.base is None:
            return None
        if isinstance(self.base.model, TwoTower):  # only its image encoder is trained
            self.base = replace(self.base, model=self.base.model.image, family=None, config={})
        spec = self.base.spec
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.ImagePatchesSpec):
            return spec.input
        raise self.unsupported_model("use an image encoder")

    def adopt_base_settings(self) -> None:
        self.base_classes = classes_of(self.base) if self.base else None

    def prepare_data(self) -> None:
        data = self.data
        train = single_path(data.train)
        valid = None if isinstance(data.valid, float) else single_path(data.valid)
        paths = [path for path in (train, valid) if path is not None]

        def fingerprints(stamp: Stamp) -> tuple[object, ...]:
            files = [fingerprint_files(list_files(path), stamp=stamp) for path in paths]
            return files, self._size(), self.recipe.model.folder

        names = fingerprint_files([], *map(list_names, paths))
        cache = DataCache(self.folder / "data", fingerprints, extra={"names": names})
        notes = cache.load(self.log)
        if notes is None:
            cache.start()
            problems = RowErrors()
            images = prepare_images(
                train,
                cache.folder / "train",
                errors=problems,
                size=self._size(),
                channels=self.base_input.channels if self.base_input is not None else None,
                classes=self.base_classes,
                split="test" if self.base_classes else "train",
            )
            if valid is not None and self.base_classes is None:
                valid_images = prepare_images(
                    valid,
                    cache.folder / "valid",
                    errors=problems,
                    size=images.shape[:2],
                    channels=images.shape[2],
                    split="test",
                    classes=images.classes,
                )
                if valid_images.shape != images.shape:
                    raise ConflictError(
                        ("data.train", "data.valid"),
                        f"the images have {images.shape[2]} and {valid_images.shape[2]} channels",
                    )
            notes = cache.commit(bad=problems.summary())
        self.train_set = self.valid_set = ImageSet(cache.folder / "train")
        if isinstance(data.valid, float):
            self.train_rows, self.valid_rows = self.train_set.split(data.valid, seed=self.recipe.seed)
        elif not self.base_classes:
            self.valid_set = ImageSet(cache.folder / "valid")
        self.mean, self.std = self._statistics()
        self._log_counts(notes["bad"])

    def _size(self) -> tuple[int, int] | None:
        """Return height and width of the recipe, else of the base model."""
        size, read = self.data.image_size, self.base_input
        if size is None and read is not None:
            size = read.image_size
            if read.interpolate and self.base is not None and IMAGE_PROCESSOR_FILE in self.base.files:
                processor = ImageProcessor.from_dict(self.base.files[IMAGE_PROCESSOR_FILE])
                size = processor.fixed_size or size
        return None if size is None else (size[0], size[-1])

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation per channel, of the base model or of the training set."""
        known: Mapping[str, Any] = self.base.files.get(IMAGE_PROCESSOR_FILE, {}) if self.base else {}
        if "image_mean" in known and "image_std" in known:
            return tuple(known["image_mean"]), tuple(known["image_std"])
        return channel_statistics(self.train_set, self.train_rows)

    def _log_counts(self, skipped: str) -> None:
        height, width, channels = self.train_set.shape
        train, valid = len(self.train_examples()), len(self.valid_examples())
        classes = self.train_set.classes
        self.facts = {
            "training images": train,
            "validation images": valid,
            "image size": f"{height} x {width}, {channels} {plural('channel', channels)}",
            "classes": list(classes),
        }
        self.log(
            f"{train:,} images of {height} x {width} in {len(classes)} classes for training, "
            f"{valid:,} for validation"
        )
        if skipped:
            self.facts["skipped"] = skipped
            self.log(skipped)

    def train_examples(self) -> ImageExamples:
        """Return the training images, augmented as the recipe specifies."""
        data = self.data
        augment = None
        if data.flip_prob or data.max_shift or data.max_rotation or data.erase_prob:
            augment = Augment(
                flip=data.flip_prob,
                shift=data.max_shift,
                rotate=data.max_rotation,
                erase=data.erase_prob,
                seed=self.recipe.seed,
            )
        return ImageExamples(
            self.train_set, rows=self.train_rows, mean=self.mean, std=self.std, augment=augment
        )

    def valid_examples(self) -> ImageExamples:
        return ImageExamples(self.valid_set, rows=self.valid_rows, mean=self.mean, std=self.std)

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        height, width, _ = self.train_set.shape
        count, tuning = len(self.train_examples()), self.fine_tuning
        patch = self.recipe.model.overrides.get("patch_size")
        if self.base_input is not None:
            patch = self.base_input.patch_size
        elif patch is None and is_hierarchical(self.preset):
            patch = 2
            if max(height, width) > MAX_SMALL_SIDE:
                patch = 4
                self.fill_model(LARGE_STAGES)
        elif patch is None:
            patch = choose_patch_size(height, width)
        patches = height * width // (patch**2 if isinstance(patch, int) else math.prod(patch))
        size, epochs, reason = choose_size(
            hardware,
            units=count * patches,
            unit="image patches",
            vocab_size=len(self.train_set.classes),
            epochs=min(100.0, max(10.0, 2_000_000 / count)),
            length_known=self.has_length,
        )
        self.fill_model(supported_options(self.preset, {**size.options(), "patch_size": patch}))
        reasons = [] if tuning else [reason, f"{patches} patches of {patch} x {patch} per image"]
        if not tuning and is_hierarchical(self.preset):
            reasons = reasons[1:]  # the preset determines the size
        return reasons + self.fill_training(
            self.train_examples(),
            batch=max(1, min(512 if hardware.on_gpu else 128, count // 20)),
            epochs=5 if tuning else epochs,
            lr=1e-4 if tuning else min(1e-3, 0.1 / size.d_model),
            label_smoothing=0.1,
        )

    def build(self) -> Bundle:
        """Build or load the model with its classes and image preprocessing, as it will be saved."""
        (height, width, channels), classes = self.train_set.shape, self.train_set.classes
        if self.base is None or self.base_input is None:
            fixed = {"image_size": (height, width), "channels": channels, "num_labels": len(classes)}
            if not supported_options(self.preset, {"image_size": 1}):
                raise self.unsupported_model("use vit, swin, dinov2 or another image encoder")
            bundle = Bundle(model=build_initialized(new_model_spec(self.recipe.model, fixed)))
        else:
            expected = (*self.base_input.image_size, self.base_input.channels)
            if self.base_input.interpolate:
                expected = (height, width, self.base_input.channels)
            if expected != (height, width, channels):
                raise ConflictError(
                    ("data.image_size", "model.folder"),
                    f"the images are {height} x {width} x {channels}, the model reads "
                    f"{' x '.join(map(str, expected))}",
                )
            bundle = with_head(self.base, image_head(self.base, len(classes)))
        processor = ImageProcessor(
            size={"height": height, "width": width}, image_mean=self.mean, image_std=self.std
        ).to_dict()
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: processor}
        info: dict[str, Any] = {
            "size": (height, width),
            "channels": channels,
            "mean": self.mean,
            "std": self.std,
        }
        return with_classes(bundle, self.recipe.job, classes, **info)

    def task(self) -> LearnerTask:
        training, bundle, valid = self.recipe.training, self.build(), self.valid_examples()
        learner = ImageLearner(
            bundle.model,
            cutmix=self.data.cutmix_prob,
            mixup=self.data.mixup_prob,
            label_smoothing=training.label_smoothing or 0.0,
            r_drop=training.r_drop,
        )
        rows = valid.rows[: training.max_generate_samples]
        return classification_task(
            bundle,
            learner,
            train=self.train_examples(),
            valid=valid,
            sample_inputs=[f"image {row + 1}" for row in rows],
            sample_labels=valid.images.labels(rows).tolist(),
            classes=self.train_set.classes,
            unit="images",
            training=training,
        )


def choose_patch_size(height: int, width: int) -> int:
    """Choose the largest patch size that leaves enough patches.

    >>> [choose_patch_size(side, side) for side in (28, 32, 8, 224)]
    [4, 4, 1, 16]
    """
    fewest, most = PATCH_COUNTS
    sizes = [n for n in range(1, MAX_PATCH_SIZE + 1) if height % n == 0 == width % n]
    counts = {size: height * width // size**2 for size in sizes}
    suitable = [size for size, count in counts.items() if fewest <= count <= most]
    if suitable:
        return max(suitable)
    if counts[max(sizes)] <= most:
        return 1  # a very small image: each pixel is a patch
    rounded = [-(-side // 16) * 16 for side in (height, width)]
    raise InvalidValueError(
        "the image size",
        f"{height} x {width}",
        f"a size divisible into {fewest} to {most} equal patches",
        f"resize the images, e.g. data.image_size={rounded}",
    )
