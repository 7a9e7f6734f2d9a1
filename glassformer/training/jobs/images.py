"""Learn to tell pictures apart: pictures and their classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.augment import Augment, ImageExamples, channel_statistics
from glassformer.data.image_sources import files_at, names_at, one_place
from glassformer.data.images import ImageSet, prepare_images
from glassformer.data.problems import Problems
from glassformer.data.sources import fingerprint_of
from glassformer.errors import GlassformerError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE
from glassformer.training.data_cache import Prepared
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.classification import classes_of, label_task, named
from glassformer.training.learner import PictureLearner
from glassformer.training.model_setup import Machine, accepted, fitting, fresh, fresh_spec, loaded, with_head
from glassformer.training.recipe import ImageData
from glassformer.training.task import Task

SQUARES = (49, 256)  # the fewest and the most that a picture is cut into
LARGEST_SQUARE = 16


class Images(Job):
    """Labelled pictures in, an encoder of their squares with a head of classes out."""

    usual = "vit"
    train_set: ImageSet
    valid_set: ImageSet
    rows: tuple[NDArray[np.int64] | None, NDArray[np.int64] | None]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    followed: Sequence[str] | None = None  # the classes of a model that is only measured

    @property
    def data(self) -> ImageData:
        assert isinstance(self.recipe.data, ImageData)
        return self.recipe.data

    @cached_property
    def base(self) -> Bundle | None:
        """The model to go on from, where the recipe names one."""
        folder = self.recipe.model.folder
        if folder is None:
            return None
        return loaded(folder)

    @property
    def reads(self) -> specs.ImagePatches | None:
        """What a model gone on from reads."""
        if self.base is None:
            return None
        spec = self.base.spec
        if isinstance(spec, specs.EncoderOnly) and isinstance(spec.input, specs.ImagePatches):
            return spec.input
        raise GlassformerError(
            f"model.folder '{self.recipe.model.folder}' is no encoder of pictures, which this job needs"
        )

    def follow_model(self) -> None:
        self.followed = classes_of(self.base) if self.base else None

    def gather(self) -> None:
        data, seed = self.data, self.recipe.seed
        train, valid = one_place(data.train), None if isinstance(data.valid, float) else one_place(data.valid)
        places = [path for path in (train, valid) if path is not None]
        prepared = Prepared(
            self.folder / "data",
            lambda stamp: (
                [fingerprint_of(files_at(path), stamp=stamp) for path in places],
                self._size(),
                self.recipe.model.folder,
            ),
            also={"names": fingerprint_of([], *map(names_at, places))},
        )
        about = prepared.about(self.say)
        if about is None:
            prepared.begin()
            problems = Problems()
            learned = prepare_images(
                train,
                prepared.folder / "train",
                problems=problems,
                size=self._size(),
                channels=self.reads.channels if self.reads is not None else None,
                classes=self.followed,
                split="test" if self.followed else "train",
            )
            if valid is not None and self.followed is None:
                held = prepare_images(
                    valid,
                    prepared.folder / "valid",
                    problems=problems,
                    size=learned.shape[:2],
                    channels=learned.shape[2],
                    split="test",
                    classes=learned.classes,
                )
                if held.shape != learned.shape:
                    raise GlassformerError(
                        f"{valid} has pictures of {held.shape[2]} channels, and {train} of "
                        f"{learned.shape[2]}; give grey ones to validate with, or learn from colour too"
                    )
            about = prepared.end(bad=problems.sentence())
        self.train_set = ImageSet(prepared.folder / "train")
        self.rows = (None, None)
        if isinstance(data.valid, float):
            self.valid_set = self.train_set
            self.rows = self.train_set.held_out(data.valid, seed=seed)
        else:
            self.valid_set = self.train_set if self.followed else ImageSet(prepared.folder / "valid")
        self.mean, self.std = self._statistics()
        self._tell(about["bad"])

    def _size(self) -> tuple[int, int] | None:
        """Height and width: the recipe's, or what a model gone on from reads."""
        size = self.data.size
        if size is not None and len(size) not in (1, 2):
            raise GlassformerError(f"data.size is {list(size)}; give height and width, as [32, 32]")
        if size is None and self.reads is not None:
            size = self.reads.image_size
        return None if size is None else (size[0], size[-1])

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What pixels are shifted and divided by: as a model gone on from had it, else the training set's."""
        known: Mapping[str, Any] = self.base.files.get(IMAGE_PROCESSOR_FILE, {}) if self.base else {}
        if "image_mean" in known and "image_std" in known:
            return tuple(known["image_mean"]), tuple(known["image_std"])
        return channel_statistics(self.train_set, self.rows[0])

    def _tell(self, bad: str) -> None:
        height, width, channels = self.train_set.shape
        learned, held = len(self.examples("train")), len(self.examples("valid"))
        self.facts = {
            "training pictures": learned,
            "validation pictures": held,
            "picture": f"{height} x {width}, {'grey' if channels == 1 else f'{channels} channels'}",
            "classes": list(self.train_set.classes),
        }
        self.say(
            f"{learned:,} pictures of {height} x {width} in {len(self.train_set.classes)} classes to learn "
            f"from, {held:,} to validate with"
        )
        if bad:
            self.facts["rows left out"] = bad
            self.say(bad)

    def examples(self, part: str) -> ImageExamples:
        """The pictures of "train", changed a little each time as the recipe asks, or of "valid"."""
        data, augment = self.data, None
        if part == "train" and (data.flip or data.shift or data.rotate or data.erase):
            augment = Augment(
                flip=data.flip,
                shift=data.shift,
                rotate=data.rotate,
                erase=data.erase,
                seed=self.recipe.seed,
            )
        images, rows = (self.train_set, self.rows[0]) if part == "train" else (self.valid_set, self.rows[1])
        return ImageExamples(images, rows=rows, mean=self.mean, std=self.std, augment=augment)

    def choose(self, machine: Machine) -> list[str]:
        height, width, _ = self.train_set.shape
        count, tuned = len(self.examples("train")), self.recipe.model.folder is not None
        patch = self.recipe.model.words.get("patch_size") or square(height, width)
        squares = height * width // (patch**2 if isinstance(patch, int) else math.prod(patch))
        size, passes, why = fitting(
            machine,
            units=count * squares,
            vocab_size=len(self.train_set.classes),
            passes=min(100.0, max(10.0, 2_000_000 / count)),
            given=self.length_given,
        )
        preset = self.preset
        self.settle_model(preset, {} if tuned else accepted(preset, {**size.words(), "patch_size": patch}))
        reasons = [] if tuned else [why, f"a picture is cut into {squares} squares of {patch} x {patch}"]
        return reasons + self.settle(
            self.examples("train"),
            batch=max(1, min(512 if machine.on_gpu else 128, count // 20)),
            passes=5 if tuned else passes,
            lr=1e-4 if tuned else min(1e-3, 0.1 / size.d_model),
            label_smoothing=0.1,
        )

    def build(self) -> Bundle:
        """The model of the recipe with its classes and how pictures are made ready, as it will be saved."""
        (height, width, channels), classes = self.train_set.shape, self.train_set.classes
        if self.base is None or self.reads is None:
            words = self.recipe.model
            fixed = {"image_size": (height, width), "channels": channels, "num_labels": len(classes)}
            if not accepted(words.preset or "", {"image_size": 1}):
                raise GlassformerError(
                    f"model.preset '{words.preset}' is no encoder of pictures, which this job needs; vit and "
                    "deit are"
                )
            bundle = Bundle(model=fresh(fresh_spec(words, fixed)))
        else:
            read = self.reads
            if (read.image_size, read.channels) != ((height, width), channels):
                raise GlassformerError(
                    f"the pictures are {height} x {width} with {channels} channels, and the model in "
                    f"'{self.recipe.model.folder}' reads {read.image_size[0]} x {read.image_size[1]} with "
                    f"{read.channels}"
                )
            bundle = with_head(self.base, specs.Classify(num_labels=len(classes)))
        ready = {
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
        bundle.files = {**bundle.files, IMAGE_PROCESSOR_FILE: ready}
        about = {
            "size": [height, width],
            "channels": channels,
            "mean": list(self.mean),
            "std": list(self.std),
        }
        return named(bundle, self.recipe.job, classes, **about)

    def task(self) -> Task:
        valid = self.examples("valid")
        shown = np.arange(min(len(valid), self.recipe.training.max_valid))
        words, bundle = self.recipe.training, self.build()
        learner = PictureLearner(
            bundle.model,
            cutmix=self.data.cutmix,
            smoothing=words.label_smoothing or 0.0,
            r_drop=words.r_drop,
        )
        return label_task(
            bundle,
            learner,
            train=self.examples("train"),
            valid=valid,
            true=valid.images.labels(valid.rows[shown]).tolist(),
            shown=[f"picture {row + 1}" for row in valid.rows[shown]],
            classes=self.train_set.classes,
            units="pictures",
            words=words,
        )


def square(height: int, width: int) -> int:
    """The side of the squares that a picture is cut into: the largest that leave enough of them.

    >>> square(28, 28), square(32, 32), square(8, 8), square(224, 224)
    (4, 4, 1, 16)
    """
    fewest, most = SQUARES
    sides = [n for n in range(1, LARGEST_SQUARE + 1) if height % n == 0 == width % n]
    counts = {side: height * width // side**2 for side in sides}
    fitting = [side for side, count in counts.items() if fewest <= count <= most]
    if fitting:
        return max(fitting)
    if counts[max(sides)] <= most:
        return 1  # a very small picture: each of its pixels
    raise GlassformerError(
        f"pictures of {height} x {width} cannot be cut into {fewest} to {most} equal squares; bring them to "
        f"another size, as --set data.size=[{-(-height // 16) * 16},{-(-width // 16) * 16}]"
    )
