"""Checks of models that draw: their parts one by one, and images that do not depend on their batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.diffusion import SAMPLERS, ImageNoise, denoise, read_scheduler_config
from glassformer.diffusion.step_cache import StepCache
from glassformer.errors import ConflictError
from glassformer.families.sidecars import SCHEDULER_FILE
from glassformer.tasks.drawing import with_sampler
from glassformer.tasks.image_tokens import TokenImageGenerator
from glassformer.verify.comparison import (
    TOLERANCES,
    CheckResult,
    Status,
    Tolerance,
    check_result,
    relative_error,
    skipped,
)
from glassformer.verify.inputs import random_inputs

Check = Callable[[Bundle, str], CheckResult]

STEPS, SEEDS, GUIDANCE, EVERY = 4, (7, 8), 3.0, 2
NUM_STEPS = (1, 4, 20, 50)  # of the samplers
MAX_CACHE_ERROR = 2.0  # twice as far as another seed
WHOLE = ("exported = native", "saved = loaded")  # checks of the model, not of each part


def on_each_part(bundle: Bundle, name: str, *, check: Check) -> CheckResult:
    """Run a check on every model that a model consists of; the result has the largest difference."""
    results = {part: check(one, name) for part, one in bundle.models().items()}
    parts: dict[str, list[str]] = {}  # by their note
    for part, result in results.items():
        parts.setdefault(result.note, []).append(part)
    note = "; ".join(f"{', '.join(names)}: {note}" for note, names in parts.items())
    run = [result for result in results.values() if result.status != "skipped"]
    if not run:
        return skipped(name, note)
    worst = max(run, key=lambda result: (result.status == "failed", _share(result)))
    status: Status = "failed" if any(result.status == "failed" for result in run) else "passed"
    return CheckResult(
        name=name,
        status=status,
        worst=worst.worst,
        tolerance=worst.tolerance,
        rounding_error=worst.rounding_error,
        note=note,
    )


def _share(result: CheckResult) -> float:
    """Return the largest difference as a share of the tolerance."""
    worst, tolerance = result.worst or 0.0, result.tolerance or 0.0
    return worst / tolerance if tolerance else float("inf") if worst else 0.0


def checks_of_drawing(checks: Mapping[str, Check], bundle: Bundle) -> dict[str, Check]:
    """Return the checks of a model that draws: of each part, of the whole, and of its images."""
    found = {
        name: check if name in WHOLE else partial(on_each_part, check=check) for name, check in checks.items()
    }
    if "denoiser" in bundle.models() and SCHEDULER_FILE in bundle.files:
        found |= {
            "samplers are finite": samplers_are_finite,
            "together = alone": together_equals_alone,
            "step cache near exact": step_cache_near_exact,
        }
    elif "decoder" in bundle.models():
        found["together = alone"] = tokens_together_equal_alone
    return found


def samplers_are_finite(bundle: Bundle, name: str) -> CheckResult:
    """Check steps of all samplers that the noise schedule of the model is for."""
    settings = read_scheduler_config(bundle.files[SCHEDULER_FILE])
    differences, names = [], []
    for sampler_name in SAMPLERS:
        try:
            chosen = with_sampler(settings, sampler_name)
        except ConflictError:  # for another kind of schedule
            continue
        names.append(sampler_name)
        for count in NUM_STEPS:
            sampler = chosen.sampler(count)
            x = torch.ones(1, 1, 2, 2) * sampler.init_noise_sigma
            for index in {0, len(sampler) // 2, len(sampler) - 1}:
                step = sampler.step(sampler.model_input(x, index), index, x, torch.ones_like(x), x)
                finite = all(bool(tensor.isfinite().all()) for tensor in step)
                differences.append(0.0 if finite else float("inf"))
    note = f"{', '.join(names)}, each with {', '.join(map(str, NUM_STEPS))} steps"
    return check_result(name, differences, Tolerance(0.0), note)


def together_equals_alone(bundle: Bundle, name: str) -> CheckResult:
    """Draw images together, and each alone from its seed, without the padding of its text."""
    model: Any = bundle.model
    together = _draw(model, bundle)
    alone = torch.cat([_draw(model, bundle, row) for row in range(len(SEEDS))])

    def rounding_error() -> float:
        return relative_error(together, _draw(copy.deepcopy(model).double(), bundle))

    tolerance = Tolerance.of_dtype(next(model.parameters()).dtype, rounding_error)
    distance = relative_error(together[0], together[1])
    differences = [relative_error(together, alone), 0.0 if distance else float("inf")]
    note = f"{len(SEEDS)} seeds, {STEPS} steps, guidance {GUIDANCE:g}; two seeds differ by {distance:.1e}"
    return check_result(name, differences, tolerance, note)


@torch.inference_mode()
def tokens_together_equal_alone(bundle: Bundle, name: str) -> CheckResult:
    """Sample the codes of images together, and each alone from its seed; the texts have unequal lengths."""
    model: Any = bundle.model
    if next(model.parameters()).dtype != torch.float32:
        return skipped(name, "in half precision, rounding may change which code is sampled")
    spec = model.spec
    texts = [[0], [0] * min(3, spec.max_text_len)]
    classes = [[0], [(spec.num_classes or 1) - 1]]
    prompts = [spec.prompt(ids) for ids in (texts if spec.num_classes is None else classes)]
    generator = TokenImageGenerator(bundle, guidance_scale=GUIDANCE)
    together = generator.draw(prompts, SEEDS)
    pairs = zip(prompts, SEEDS, strict=True)
    alone = torch.cat([generator.draw([prompt], [seed]) for prompt, seed in pairs])
    differences = [relative_error(together, alone)]
    note = f"{len(SEEDS)} seeds, sampled with guidance {GUIDANCE:g}"
    return check_result(name, differences, Tolerance(TOLERANCES[torch.float32]), note)


def step_cache_near_exact(bundle: Bundle, name: str) -> CheckResult:
    """Measure how far a step cache moves images from the exact ones, relative to how far two seeds are."""
    model: Any = bundle.model
    exact, cached = _draw(model, bundle), _draw(model, bundle, every=EVERY)
    distance = float((exact[0] - exact[1]).norm()) or 1.0
    moved = [float((ours - row).norm()) / distance for ours, row in zip(cached, exact, strict=True)]
    note = f"lossy: the inside of the denoiser runs in {STEPS // EVERY} of {STEPS} steps"
    return check_result(name, moved, Tolerance(MAX_CACHE_ERROR), f"{note}; 1 is another seed")


@torch.inference_mode()
def _draw(model: Any, bundle: Bundle, row: int | None = None, *, every: int = 1) -> Tensor:
    """Return latents (B, C, ...) for random conditions; of one row, alone and without padding of its text.

    every: of the step cache.
    """
    sample = random_inputs(model.denoiser, batch=len(SEEDS))
    sample = sample if row is None else sample.single_row(row)
    condition = {name: x for name, x in sample.conditions.items() if name != "timesteps"}
    empty = {name: x if name == "text_mask" else torch.zeros_like(x) for name, x in condition.items()}
    if "labels" in empty:
        empty["labels"] += model.spec.latents.num_classes
    return denoise(
        StepCache(model.denoiser, every) if every > 1 else model.denoiser,
        read_scheduler_config(bundle.files[SCHEDULER_FILE]).sampler(STEPS),
        ImageNoise(SEEDS if row is None else SEEDS[row : row + 1], sample.inputs[0].shape[1:], bundle.device),
        condition,
        negative=empty,
        guidance_scale=GUIDANCE,
    )
