"""Job `autoencoder`: train an autoencoder of images, with a codebook (VQ) or normal distributions (VAE)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from glassformer.bundle import Bundle, build_from_spec
from glassformer.core.diffusion.autoencoder import code_usage
from glassformer.data.image_files import list_images
from glassformer.data.image_processing import ImageProcessor
from glassformer.data.images import Augment
from glassformer.data.pixels import PixelExamples, prepare_pixels
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Stamp, fingerprint_files
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.metrics.images import psnr
from glassformer.tasks.drawing import to_images
from glassformer.training import sections
from glassformer.training.callbacks import TrainerCallback
from glassformer.training.data_cache import DataCache
from glassformer.training.distributed import Fsdp
from glassformer.training.hardware import Hardware
from glassformer.training.job import Job
from glassformer.training.job_spec import JobSpec
from glassformer.training.learner import Learner, count_images
from glassformer.training.logging.sample_images import tile_images
from glassformer.training.model_setup import new_model_spec
from glassformer.training.recipe import BatchLimits
from glassformer.training.sections import DataSection, Paths
from glassformer.training.task import SampleImage, TrainingPlan, ValidationResult, evaluation_batches

EPOCH_IMAGES: Final = 1_000_000  # seen in training by default
REVIVAL_STEPS: Final = 50  # steps between two looks for unused codes
REVIVAL_END: Final = 0.8  # of the training; afterwards the codes settle
SAMPLED_IMAGES: Final = 512  # on which a code must be used
SAMPLED_BATCH: Final = 64
SHOWN_IMAGES: Final = 8  # in the report


@dataclass(frozen=True, kw_only=True)
class PixelData(Augment, DataSection):
    """Images without labels."""

    train: Paths = sections.train_files("folders of images, searched recursively", unit="folders or files")
    valid: Paths | float = sections.valid_split(0.05)
    image_size: tuple[int, ...] = sections.image_sides("the images become squares", (64, 64))


class AutoencoderLearner(Learner):
    """Train an autoencoder on the mean squared error, and on what its latents are penalized for."""

    def forward(self, images: Tensor) -> Tensor:
        found = self.model.encode(images)
        error = F.mse_loss(self.model.decode(found.training_latents()).float(), images)
        loss: Tensor = error + found.penalty(images[0].numel())
        return len(images) * loss


class CodeRevival(TrainerCallback):
    """After the first step and then now and then, move codes that no image uses to vectors that images have.

    The images are chosen by the seed and the step, so that a resumed run does the same.
    """

    def __init__(self, examples: PixelExamples, seed: int) -> None:
        self.examples, self.seed = examples, seed

    def on_train_begin(self, trainer: Any) -> None:
        if isinstance(trainer.parallel, Fsdp):
            raise UnsupportedError("the job autoencoder", "FSDP", hint="set training.parallel to ddp")

    @torch.no_grad()
    def on_step_end(self, trainer: Any, metrics: Any) -> None:
        step, codebook = metrics.step, trainer.model.bottleneck
        due = step == 1 or step % REVIVAL_STEPS == 0
        if not due or step > max(1, REVIVAL_END * trainer.max_steps):
            return
        draws = np.random.default_rng((self.seed, step))
        count = min(len(self.examples), SAMPLED_IMAGES)
        rows = draws.choice(len(self.examples), count, replace=False)
        vectors, counts = [], torch.zeros(len(codebook.codes), dtype=torch.long, device=trainer.device)
        for start in range(0, count, SAMPLED_BATCH):
            images = self.examples.batch(rows[start : start + SAMPLED_BATCH], epoch=step)["images"]
            found = trainer.model.encode(torch.from_numpy(images).to(trainer.device))
            counts += found.ids.flatten().bincount(minlength=len(counts))
            vectors.append(found.vectors.movedim(1, -1).flatten(0, -2))
        known = torch.cat(vectors)
        order = torch.from_numpy(draws.permutation(len(known))[: len(counts)]).to(trainer.device)
        if codebook.replace_unused(counts, known[order]):
            trainer.parallel.broadcast_weights(trainer.learner)
            if trainer.ema is not None:
                trainer.ema.tensors["bottleneck.codes"][counts == 0] = codebook.codes[counts == 0]


class AutoencoderJob(Job[PixelData]):
    """Train an autoencoder."""

    unit, count = "images", staticmethod(count_images)
    train_set: PixelExamples
    valid_set: PixelExamples

    def check_model(self) -> None:
        super().check_model()
        options = replace(self.recipe.model, preset=self.preset)
        if (self.base.spec if self.base else new_model_spec(options, {})).architecture != "autoencoder":
            raise self.unsupported_model("use vq_model, autoencoder_kl or one of their presets")

    @property
    def processor(self) -> ImageProcessor:
        height, *width = self.data.image_size
        if width and width != [height]:
            raise InvalidValueError("data.image_size", list(self.data.image_size), "a square")
        return ImageProcessor(size={"height": height, "width": height}, resample=3)

    def prepare_data(self) -> None:
        data, processor = self.data, self.processor
        paths = {"train": list_images(data.train)}
        if not isinstance(data.valid, float):
            paths["valid"] = list_images(data.valid)

        def fingerprints(stamp: Stamp) -> tuple[object, ...]:
            return *(fingerprint_files(part, stamp=stamp) for part in paths.values()), processor.size

        cache = DataCache(self.folder / "data", fingerprints)
        notes = cache.load(self.log)
        if notes is None:
            cache.start()
            problems = RowErrors()
            good = {
                name: prepare_pixels(cache.folder / name, part, processor, problems)
                for name, part in paths.items()
            }
            notes = cache.commit(bad=problems.summary(), good=good)
        folders = {name: cache.folder / name for name in paths}
        rows = {name: np.array(numbers, np.int64) for name, numbers in notes["good"].items()}
        if isinstance(data.valid, float):
            every = PixelExamples(folders["train"], processor, rows["train"])
            rows["train"], rows["valid"] = every.split(data.valid, seed=self.recipe.seed)
            folders["valid"] = folders["train"]
        self.train_set = self._examples(folders["train"], rows["train"], augment=data)
        self.valid_set = self._examples(folders["valid"], rows["valid"])
        self.log_counts("image", len(self.train_set), len(self.valid_set), skipped=notes["bad"])

    def _examples(self, folder: Path, rows: Any, augment: Augment | None = None) -> PixelExamples:
        return PixelExamples(folder, self.processor, rows, augment=augment, seed=self.recipe.seed)

    def train_examples(self) -> PixelExamples:
        return self.train_set

    def valid_examples(self) -> PixelExamples:
        return self.valid_set

    @property
    def callbacks(self) -> Sequence[TrainerCallback]:
        spec: Any = self.bundle.spec
        return [CodeRevival(self.train_set, self.recipe.seed)] if spec.num_codes else []

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        self.fill_model({})
        count = len(self.train_set)
        return self.fill_training(
            self.train_set,
            batch=max(2, min(128 if hardware.on_gpu else 32, count // 4)),
            epochs=min(300.0, max(1.0, EPOCH_IMAGES / count)),
            lr=1e-4 if self.fine_tuning else 1e-3,
        )

    def build(self) -> Bundle:
        bundle = self.base
        if bundle is None:
            fixed = {"image_size": self.processor.size["height"], "channels": 3}
            bundle = Bundle(model=build_from_spec(new_model_spec(self.recipe.model, fixed)))
        stride = bundle.spec.stride  # type: ignore[attr-defined]
        if self.processor.size["height"] % stride:
            raise InvalidValueError("data.image_size", list(self.data.image_size), f"a multiple of {stride}")
        files = {**bundle.files, IMAGE_PROCESSOR_FILE: self.processor.to_dict()}
        return replace(bundle, files=files, job=JobInfo(name=self.recipe.job))

    def learner(self, model: Any) -> AutoencoderLearner:
        return AutoencoderLearner(model)

    def plan(self) -> TrainingPlan:
        plan = super().plan()
        known = self.base is not None or "scaling_factor" in self.recipe.model.overrides
        return plan if known else replace(plan, save=partial(self.save_scaled, plan.save))

    @torch.no_grad()
    def save_scaled(self, save: Callable[[Path], object], folder: Path) -> None:
        """Save the model with the factor that scales its latents to a standard deviation of 1."""
        model: Any = self.bundle.model
        images = self.valid_set.batch(np.arange(min(len(self.valid_set), SAMPLED_BATCH)), epoch=0)["images"]
        std = model.encode(torch.from_numpy(images).to(model.embed.weight.device)).latents.std()
        if std.isfinite() and std > 0:
            model.spec = replace(model.spec, scaling_factor=float(f"{1 / float(std):.6g}"))
        save(folder)

    def validate(
        self, learner: AutoencoderLearner, valid: PixelExamples, device: torch.device
    ) -> ValidationResult:
        """Compute the loss, the quality of the reconstructed images, and the share of codes in use."""
        shown: list[SampleImage] = []
        total, quality, num_codes = 0.0, 0.0, learner.model.spec.num_codes
        counts = torch.zeros(num_codes or 0, dtype=torch.long, device=device)
        limits = self.recipe.training.batch_limits(BatchLimits(batch_size=64))
        for _, _, tensors in evaluation_batches(valid, device, limits):
            images = tensors["images"]
            found = learner.model.encode(images)
            restored = learner.model.decode(found.latents).float()
            total += len(images) * float(F.mse_loss(restored, images) + found.penalty(images[0].numel()))
            quality += float(psnr(restored.clamp(-1, 1), images, data_range=2.0).sum())
            if not shown and self.recipe.training.log_samples:
                shown = [compare_images(images[:SHOWN_IMAGES], restored[:SHOWN_IMAGES])]
            if num_codes:
                counts += found.ids.flatten().bincount(minlength=num_codes)
        metrics = {"loss": total / len(valid), "psnr": quality / len(valid)}
        if num_codes:
            metrics["codes_used"] = code_usage(counts)[0]
        return ValidationResult(metrics=metrics, images=shown)


def compare_images(images: Tensor, restored: Tensor) -> SampleImage:
    """Return a picture of images (B, 3, H, W), and below each what an autoencoder makes of it."""
    grid = tile_images(to_images(torch.cat((images, restored))), columns=len(images))
    caption = "images, and below them their reconstructions"
    return SampleImage(name="reconstructions", caption=caption, pixels=grid)


JOB = JobSpec(
    name="autoencoder",
    summary="Train an autoencoder of images, with a codebook (VQ) or normal distributions (VAE).",
    factory=AutoencoderJob,
    data=PixelData,
    metrics=("loss", "psnr", "codes_used"),
    metric="psnr",
    preset="vq-mini",
    batch_unit="examples",
    r_drop=False,
)
