"""A lossy speed-up of the denoising loop: the inside of the denoiser runs at every k-th step only.

The outside is cheap and follows the step: the first block of a diffusion Transformer and its head, or the
finest level of a UNet. What the inside adds changes slowly from step to step, so its last value is used in
between. Which steps run it does not depend on the values, so an image is the same alone and in a batch, and
nothing waits for the device.

    step 0:  outside - inside - outside      step 1:  outside - kept - outside      (every = 2)
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from glassformer.core.block import LayerContext
from glassformer.core.diffusion.levels import LevelContext, Path
from glassformer.core.inputs import LatentInputs
from glassformer.core.stack import LayerHook, Stack
from glassformer.errors import InvalidValueError, UnsupportedError


class StepCache:
    """A denoiser for one run of the denoising loop, whose inside runs at every k-th step.

    every: 1 is exact. The model is not changed; the copy shares its weights.
    measured_call: a call whose prediction is also computed exactly, once; `distance` is then the difference,
    relative to the exact prediction.

    >>> import glassformer, torch
    >>> from glassformer.diffusion import DDIM, ImageNoise, denoise
    >>> model, labels = glassformer.tiny("dit"), {"labels": torch.tensor([3])}
    >>> denoise(StepCache(model, every=2), DDIM().sampler(4), ImageNoise([1], (4, 8, 8)), labels).shape
    torch.Size([1, 4, 8, 8])
    """

    def __init__(self, model: nn.Module, every: int, measured_call: int | None = None) -> None:
        if every < 1:
            raise InvalidValueError("every", every, "at least 1")
        self.every, self.calls = every, 0
        self.measured_call = measured_call
        self.value: Tensor | None = None
        self.distance: Tensor | None = None
        self.model = _cached_copy(model, self)

    @property
    def reuses(self) -> bool:
        """Whether the step that runs now takes the value of an earlier one."""
        return (self.calls - 1) % self.every > 0

    def __call__(self, inputs: LatentInputs) -> Tensor:
        self.calls += 1
        output: Tensor = self.model(inputs)
        if self.calls == self.measured_call:
            self.distance = self._distance(output, inputs)
        return output

    def _distance(self, output: Tensor, inputs: LatentInputs) -> Tensor:
        value, calls = self.value, self.calls
        self.calls = 1  # as in the first call, nothing is reused
        exact: Tensor = self.model(inputs)
        self.value, self.calls = value, calls
        distance: Tensor = (output - exact).norm() / exact.norm()
        return distance


class _CachedStack(Stack):
    """The first block, and what all others added to its output."""

    step_cache: StepCache

    def run(self, x: Tensor, layers: Sequence[LayerContext], hook: LayerHook | None = None) -> Tensor:
        first = x
        for n, block in enumerate(self.blocks):
            context = layers[n]
            if hook is not None:
                x, context = hook(n, x, context)
            x = block(x, context)
            if n == 0:
                first = x
                if self.step_cache.reuses and self.step_cache.value is not None:
                    return x + self.step_cache.value
        self.step_cache.value = x - first
        return x


class _CachedEncoder(Path):
    """The finest level, and all others if they are not reused."""

    step_cache: StepCache

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        if not self.step_cache.reuses:
            return super().forward(x, context)
        out: Tensor = self.levels[0](x, context)
        return out


class _CachedDecoder(Path):
    """The finest level of the way up; its input is that of an earlier step if it is reused."""

    step_cache: StepCache

    def forward(self, x: Tensor, context: LevelContext) -> Tensor:
        last: Any = self.levels[-1]
        if not self.step_cache.reuses or self.step_cache.value is None:
            for level in self.levels[:-1]:
                x = level(x, context)
            self.step_cache.value = x
        elif context.skips is not None:
            del context.skips[len(last.layers) :]  # the map after downsampling
        out: Tensor = last(self.step_cache.value, context)
        return out


def _cached_copy(model: nn.Module, cache: StepCache) -> nn.Module:
    """Return a copy of a denoiser that shares all modules, except those that the cache is for."""
    parts = {name: module for name, module in model.named_children() if name in ("encoder", "decoder")}
    kinds: dict[str, type[nn.Module]] = {"encoder": _CachedEncoder, "decoder": _CachedDecoder}
    if isinstance(parts.get("encoder"), Stack):
        kinds = {"encoder": _CachedStack}
    if kinds.keys() != parts.keys():
        raise UnsupportedError(
            type(model).__name__, "a step cache", hint="use a diffusion Transformer or a UNet"
        )
    copies = {name: _shallow(module, kinds[name]) for name, module in parts.items()}
    for module in copies.values():
        vars(module)["step_cache"] = cache
    result: nn.Module = _shallow(model, type(model))
    result._modules |= copies
    return result


def _shallow(module: nn.Module, kind: type[nn.Module]) -> Any:
    result = copy.copy(module)
    result._modules = dict(module._modules)
    result.__class__ = kind
    return result
