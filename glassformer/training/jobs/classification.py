"""Jobs that train classifiers of texts and images."""

from __future__ import annotations

import math
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
from glassformer.data.bpe_dropout import BpeDropout
from glassformer.data.examples import Examples, LabeledExamples, class_names
from glassformer.data.image_files import list_files, list_names, single_path
from glassformer.data.images import Augment, ImageExamples, ImageSet, channel_statistics, prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, Stamp, TableSource, fingerprint_files, labeled_texts
from glassformer.data.store import Ragged
from glassformer.errors import ConflictError, InvalidValueError, UnknownNameError, UnsupportedError
from glassformer.families.family import named_label_config
from glassformer.families.registry import families, family_of_spec
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.tokenization import Tokenizer
from glassformer.training.data_cache import DataCache
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import (
    Row,
    TextCorpus,
    check_vocabulary,
    encode_rows,
    log_counts,
    max_id,
    prepare_corpus,
    read_texts,
    token_splits,
)
from glassformer.training.learner import ImageLearner, LabelLearner, TextLabelLearner, count_labels
from glassformer.training.model_setup import (
    build_initialized,
    choose_size,
    classification_head,
    max_input_length,
    new_model_spec,
    supported_options,
    with_head,
)
from glassformer.training.recipe import ImageData, LabeledData, TrainingOptions
from glassformer.training.task import LearnerTask, Sample, ValidationResult, classification_metrics

LISTED_CLASSES = 20
PATCH_COUNTS = (49, 256)  # fewest and most patches of an image
MAX_PATCH_SIZE = 16


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Sort labels: numbers by value, other text alphabetically.

    >>> sort_labels(["10", "9"]), sort_labels(["sad", "10", "9"])
    (['9', '10'], ['10', '9', 'sad'])
    """
    if all(label.lstrip("-").isdecimal() for label in labels):
        return sorted(labels, key=int)
    return sorted(labels)


def classes_of(bundle: Bundle) -> list[str] | None:
    """Return the class names of a saved classifier; None if it has none."""
    return class_names(bundle.job.classes, bundle.config)


def with_classes(bundle: Bundle, job: str, classes: Sequence[str], **info: Any) -> Bundle:
    """Return the bundle with class names in its config and `job.json`. info: more entries of `job.json`."""
    family = families()[bundle.family] if bundle.family else family_of_spec(bundle.spec)
    config: dict[str, Any] = {}
    if family is not None:
        config = {**(bundle.config or family.to_config(bundle.spec)), **named_label_config(classes)}
    job_info = JobInfo(name=job, classes=tuple(classes), **info)
    return replace(bundle, family=family.name if family else None, config=config, job=job_info)


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


class ClassifyJob(Job[LabeledData]):
    """Train a text classifier; evaluated with accuracy and macro F1."""

    default_preset = "bert"
    corpus: TextCorpus
    classes: Sequence[str] = ()

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            self.classes = classes_of(self.base) or ()
            limit = max_input_length(self._encoder(self.base.spec))
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    def prepare_data(self) -> None:
        if self.base is not None:
            self._encoder(self.base.spec)
        self.fill_max_len()
        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=(self.max_len, self.recipe.training.max_generate_samples),
            template="cls_sep",
            text_columns=1,
        )
        self.classes = corpus.notes["valid"]["classes"]
        log_counts(self, corpus, "texts")
        self.facts["classes"] = self.classes
        more = ", ..." if len(self.classes) > LISTED_CLASSES else ""
        self.log(f"{len(self.classes)} classes: {', '.join(self.classes[:LISTED_CLASSES])}{more}")
        if truncated := corpus.total("truncated"):
            self.facts["truncated texts"] = truncated
            self.log(f"{truncated:,} texts are longer than {self.max_len} tokens and are truncated")

    def _read(self, files: Sequence[str]) -> TableSource:
        source = labeled_texts(files, columns=self.data.columns, encoding=self.data.encoding)
        if files == self.data.train and self.data.columns is None and source.unused_columns:
            self.log(source.column_summary)
        return source

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        """Write token ids and class numbers; the classes come from the base model or the first split."""
        self.classes = self.classes or self._find_classes(source)
        numbers = {label: n for n, label in enumerate(self.classes)}
        max_len = self.max_len
        truncated: list[int] = []  # number of truncated texts in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            for _, label in rows:
                if label not in numbers:
                    hint = "every class needs examples in the training data"
                    raise UnknownNameError("label", label, numbers, hint, where="the validation data")
            ids = Ragged.of(tokenizer.encode_ids([text for text, _ in rows]))
            truncated.append(int((ids.lengths > max_len).sum()))
            return ids.truncate(max_len), Ragged.of([[numbers[label]] for _, label in rows])

        largest = max(max_id(tokenizer), len(self.classes))
        encode_rows(self, folder, source.rows(problems), source.fields, encode, what="texts", max_id=largest)
        return {"classes": self.classes, "truncated": sum(truncated)}

    def _find_classes(self, source: Source) -> Sequence[str]:
        """Return the labels of a split, in the order of the base model if it has the same labels."""
        labels = sort_labels(list({row[1] for row in source.rows(RowErrors())}))
        if len(labels) < 2:
            raise InvalidValueError("the set of labels", labels, "at least two labels")
        before = classes_of(self.base) if self.base else None
        return before if before is not None and set(before) == set(labels) else labels

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        tokens = store.sizes()[0]
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=len(self.classes),
            epochs=min(40.0, max(3.0, 300_000 / len(store))),
            length_known=self.has_length,
        )
        self.fill_model(supported_options(self.preset, size.options()))
        batch = min(16_384 if hardware.on_gpu else 4096, 64 * max(16, tokens // len(store)), tokens // 20)
        return ([] if tuning else [reason]) + self.fill_training(
            LabeledExamples(store, pad_id=self.corpus.pad_id),
            batch=max(self.max_len, batch),
            epochs=3 if tuning else epochs,
            lr=3e-5 if tuning else min(2e-3, 0.1 / size.d_model),
        )

    def train_examples(self) -> LabeledExamples:
        """Return the training texts, with BPE dropout if the recipe enables it."""
        dropout = None
        if self.data.bpe_dropout:
            splits = token_splits(self.corpus.tokenizer)
            dropout = BpeDropout(
                splits, self.data.bpe_dropout, max_length=self.max_len, seed=self.recipe.seed
            )
        return LabeledExamples(self.corpus.train, pad_id=self.corpus.pad_id, bpe_dropout=dropout)

    def _encoder(self, spec: Any) -> specs.EncoderOnlySpec:
        if isinstance(spec, specs.EncoderOnlySpec) and isinstance(spec.input, specs.TokensSpec):
            return spec
        raise self.unsupported_model("use a text encoder, e.g. bert, roberta or electra")

    def build(self) -> Bundle:
        """Build or load the model with its tokenizer and labels, as it will be saved."""
        corpus, base = self.corpus, self.base
        if base is None:
            ids = {"vocab_size": corpus.tokenizer.vocab_size, "pad_id": corpus.pad_id}
            fixed = supported_options(self.preset, {**ids, "max_len": self.max_len})
            spec = self._encoder(new_model_spec(self.recipe.model, fixed))
            head = classification_head(spec, len(self.classes))
            bundle = Bundle(model=build_initialized(replace(spec, head=head, tied=())))
        else:
            spec = self._encoder(base.spec)
            assert isinstance(spec.input, specs.TokensSpec)
            check_vocabulary(corpus, spec.input.vocab_size)
            bundle = with_head(base, classification_head(spec, len(self.classes), base.family))
        bundle.tokenizer = corpus.tokenizer
        return with_classes(
            bundle,
            self.recipe.job,
            self.classes,
            max_len=self.max_len,
            data_columns=corpus.data_columns,
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
        )
        return classification_task(
            bundle,
            learner,
            train=self.train_examples(),
            valid=LabeledExamples(self.corpus.valid, pad_id=pad_id),
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
        size = self.data.image_size
        if size is None and self.base_input is not None:
            size = self.base_input.image_size
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
            "image size": f"{height} x {width}, {channels} channel{'s' * (channels > 1)}",
            "classes": list(classes),
        }
        self.log(
            f"{train:,} images of {height} x {width} in {len(classes)} classes for training, "
            f"{valid:,} for validation"
        )
        if skipped:
            self.facts["skipped rows"] = skipped
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
        patch = self.recipe.model.overrides.get("patch_size") or choose_patch_size(height, width)
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
                raise self.unsupported_model("use vit or deit")
            bundle = Bundle(model=build_initialized(new_model_spec(self.recipe.model, fixed)))
        else:
            expected = (*self.base_input.image_size, self.base_input.channels)
            if expected != (height, width, channels):
                raise ConflictError(
                    ("data.image_size", "model.folder"),
                    f"the images are {height} x {width} x {channels}, the model reads "
                    f"{' x '.join(map(str, expected))}",
                )
            bundle = with_head(self.base, specs.ClassifySpec(num_labels=len(classes)))
        processor = {
            "image_processor_type": "ViTImageProcessor",
            "do_resize": True,
            "size": {"height": height, "width": width},
            "resample": 2,
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: processor}
        info = {"size": (height, width), "channels": channels, "mean": self.mean, "std": self.std}
        return with_classes(bundle, self.recipe.job, classes, **info)

    def task(self) -> LearnerTask:
        training, bundle, valid = self.recipe.training, self.build(), self.valid_examples()
        learner = ImageLearner(
            bundle.model,
            cutmix=self.data.cutmix_prob,
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
