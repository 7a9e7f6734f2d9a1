"""The input and the head of a diffusion Transformer: noisy latents with a condition -> the noise in them.

B batch, C channels of the latents, T patches, D d_model, S text vectors, E their width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import Linear, normal_table
from glassformer.core.diffusion.modulation import NUM_SHARED, AdaptiveNorm
from glassformer.core.embeddings import EmbeddingOutput, check_vectors
from glassformer.core.heads import HeadContext, image_patches
from glassformer.core.image_text import Connector
from glassformer.core.inputs import LatentInputs, Memory
from glassformer.core.observe import Observer, scope, tap
from glassformer.core.positions import SinusoidalPositions
from glassformer.core.vision.embeddings import ImageInput
from glassformer.errors import InvalidValueError, MissingValueError, ShapeError, UnsupportedError


def timestep_sines(timesteps: Tensor, spec: specs.TimestepSpec) -> Tensor:
    """Return sines and cosines of time steps (B,) at frequencies from 1 to about 1/10000: (B, width).

    >>> timestep_sines(torch.tensor([0, 500]), specs.TimestepSpec(width=4)).shape
    torch.Size([2, 4])
    """
    half = spec.width // 2
    exponents = torch.arange(half, dtype=torch.float32, device=timesteps.device)
    frequencies = torch.exp(-math.log(10000.0) * exponents / (half - (spec.divisor == "half_minus_1")))
    angles = timesteps[:, None].float() * frequencies
    parts = (angles.cos(), angles.sin()) if spec.cosines_first else (angles.sin(), angles.cos())
    return torch.cat(parts, -1)


class TimestepEmbedding(nn.Module):
    """Embed time steps: sines and cosines, then two dense layers with SiLU: (B,) -> (B, D)."""

    def __init__(self, d_model: int, spec: specs.TimestepSpec) -> None:
        super().__init__()
        self.spec = spec
        self.up, self.down = Linear(spec.width, d_model), Linear(d_model, d_model)

    def forward(self, timesteps: Tensor) -> Tensor:
        sines = timestep_sines(timesteps, self.spec).to(self.up.weight.dtype)
        x: Tensor = self.down(F.silu(self.up(sines)))
        return x


class LabelEmbedding(nn.Module):
    """Embed class labels: (B,) -> (B, D). The last row of the table is the empty label.

    dropout: probability with which a label becomes the empty one in training
    """

    def __init__(self, num_classes: int, d_model: int, *, dropout: float) -> None:
        super().__init__()
        self.num_classes, self.dropout = num_classes, dropout
        weight = normal_table(num_classes + 1, d_model)
        self.table = nn.Embedding(num_classes + 1, d_model, _weight=weight)

    def forward(self, labels: Tensor) -> Tensor:
        if labels.is_cpu and labels.numel() and not torch.compiler.is_compiling():
            low, high = (int(label) for label in labels.aminmax())
            if low < 0 or high > self.num_classes:
                expected = f"0 to {self.num_classes - 1}, or {self.num_classes} for no class"
                raise InvalidValueError("label", low if low < 0 else high, expected)
        if self.training and self.dropout:
            dropped = torch.rand(labels.shape, device=labels.device) < self.dropout
            labels = labels.masked_fill(dropped, self.num_classes)
        x: Tensor = self.table(labels)
        return x


class LatentConditions(nn.Module):
    """Embed what noise is predicted from besides the latents: a time step and a class -> (B, E).

    width: of the condition, E. time, label: embeddings
    """

    def __init__(self, width: int, spec: specs.ConditionedLatentsSpec) -> None:
        super().__init__()
        self.time = TimestepEmbedding(width, spec.time)
        classes = spec.num_classes
        self.label = None if classes is None else LabelEmbedding(classes, width, dropout=spec.label_dropout)
        self.text_dim = spec.text_dim

    def condition(self, inputs: LatentInputs, obs: Observer | None) -> Tensor:
        """Return the condition (B, E) of latents, after checking what belongs to them."""
        if not isinstance(inputs, LatentInputs):
            raise MissingValueError("a time step", "by a diffusion model", hint="use LatentInputs")
        self._check(inputs)
        batch, timesteps = len(inputs.latents), inputs.timesteps
        condition = tap(obs, "time", self.time(timesteps.expand(batch)))
        if self.label is not None:
            empty = timesteps.new_full((batch,), self.label.num_classes, dtype=torch.long)
            labels = empty if inputs.labels is None else inputs.labels
            condition = condition + tap(obs, "label", self.label(labels))
        return tap(obs, "condition", condition)

    def memory(self, inputs: LatentInputs) -> Memory | None:
        """Return the text vectors (B, S, W) that cross-attention attends to, with their mask."""
        if inputs.text is None:
            return None
        text = inputs.text.to(self.time.up.weight.dtype)
        return Memory.of(text, inputs.text_mask)

    def _check(self, inputs: LatentInputs) -> None:
        """Raise unless what belongs to the latents fits, and has as many rows."""
        batch = len(inputs.latents)
        if inputs.timesteps.shape not in ((), (batch,)):
            raise ShapeError("timesteps", inputs.timesteps.shape, f"one time step, or {batch}")
        if inputs.labels is not None and self.label is None:
            raise UnsupportedError("this model", "class labels", hint="leave `labels` out")
        if inputs.labels is not None and inputs.labels.shape != (batch,):
            raise ShapeError("labels", inputs.labels.shape, f"({batch},), one for each row of the latents")
        if self.text_dim is None:
            if inputs.text is not None:
                raise UnsupportedError("this model", "a text", hint="leave `text` out")
            return
        if inputs.text is None:
            raise MissingValueError("a text", "by this model", hint="pass the vectors of a text encoder")
        check_vectors("text", inputs.text, self.text_dim)
        if len(inputs.text) != batch:
            raise ShapeError("text", inputs.text.shape, f"{batch} texts, one for each row of the latents")


class NoisyLatentsInput(LatentConditions):
    """Embed the patches of noisy latents, with their condition for adaptive norms and their text as memory.

    patches: embedding of the latents. time, label, text: of what the noise is predicted from
    shared: computes the six vectors that all layers share, if they do
    frames: positions of the frames of a video, which are added after the first layer

    >>> patches = specs.ImagePatchesSpec(image_size=(8, 8), patch_size=(2, 2), channels=4, prefix=0)
    >>> embed = NoisyLatentsInput(16, specs.NoisyLatentsSpec(patches=patches, num_classes=10))
    >>> labels = torch.tensor([3, 7])
    >>> embedded = embed(LatentInputs(torch.randn(2, 4, 8, 8), torch.tensor(500), labels=labels))
    >>> embedded.x.shape, embedded.condition.shape
    (torch.Size([2, 16, 16]), torch.Size([2, 16]))
    """

    def __init__(self, d_model: int, spec: specs.NoisyLatentsSpec) -> None:
        super().__init__(d_model, spec)
        self.patches = ImageInput(d_model, spec.patches)
        layers, width = specs.ConnectorSpec(activation="gelu_tanh"), spec.text_dim
        self.text = Connector(width, d_model, layers) if width and spec.project_text else None
        self.shared = Linear(d_model, NUM_SHARED * d_model) if spec.modulation == "shared" else None
        self.frames: SinusoidalPositions | None = None
        if spec.num_frames is not None:
            self.frames = SinusoidalPositions(d_model, max_len=spec.num_frames, layout="halves")

    def forward(self, inputs: LatentInputs, *, obs: Observer | None = None) -> EmbeddingOutput:
        condition, memory = self.condition(inputs, obs), self.memory(inputs)
        embedded = self._embed(inputs.latents, scope(obs, "patches"))
        if self.shared is not None:  # (B, 7 * D): the head reads the condition itself
            condition = torch.cat((self.shared(F.silu(condition)), condition), -1)
        if memory is not None and self.text is not None:
            grid = (1, memory.x.shape[1])
            memory = memory._replace(x=self.text(memory.x, grid, obs=scope(obs, "text")))
        return embedded._replace(condition=condition, memory=memory)

    def _embed(self, latents: Tensor, obs: Observer | None) -> EmbeddingOutput:
        """Embed the patches of an image (B, C, height, width), or of all frames (B, C, frames, ...)."""
        if self.frames is None:
            return self.patches(latents, obs=obs)  # type: ignore[no-any-return]
        count = latents.shape[2]
        images = latents.transpose(1, 2).flatten(0, 1)  # (B * frames, C, height, width)
        embedded: EmbeddingOutput = self.patches(images, obs=obs)
        x, places = embedded.x.unflatten(0, (-1, count)).flatten(1, 2), embedded.x.shape[1]
        times = None
        if count > 1:  # (1, 1, frames * places, D), for the output of the first layer
            times = self.frames(torch.arange(count, device=x.device), last=count)
            times = times.repeat_interleave(places, 0, output_size=x.shape[1])[None, None]
        assert embedded.grid is not None
        return embedded._replace(x=x, grid=(count, *embedded.grid), layer_positions=times)

    def _check(self, inputs: LatentInputs) -> None:
        """Raise unless latents are whole patches, and what belongs to them fits."""
        patch, shape = self.patches.patch_size, inputs.latents.shape
        most = 0 if self.frames is None else self.frames.max_len
        if len(shape) != (5 if most else 4):
            raise ShapeError("latents", shape, f"(B, C, {'frames, ' if most else ''}height, width)")
        if most and not 1 <= shape[2] <= most:
            raise ShapeError("latents", shape, f"1 to {most} frames")
        if any(side % size for side, size in zip(shape[-2:], patch, strict=True)):
            raise ShapeError("latents", shape, f"whole patches of {patch[0]} x {patch[1]}")
        super()._check(inputs)


class UnpatchifyHead(nn.Module):
    """Predict every latent pixel from its patch: (B, T, D) -> (B, channels, height, width).

    The pixels of a video are (B, channels, frames, height, width).

    norm: adaptive norm. out: dense layer to the pixels of a patch; it starts as zeros
    """

    initializes_itself = True

    def __init__(self, d_model: int, spec: specs.UnpatchifySpec) -> None:
        super().__init__()
        self.patch_size, self.channels = spec.patch_size, spec.channels
        shared = slice(NUM_SHARED, NUM_SHARED + 1) if spec.modulation == "shared" else None
        self.norm = AdaptiveNorm(d_model, eps=spec.eps, shared=shared)
        self.out = Linear(d_model, math.prod(spec.patch_size) * spec.channels)

    def reset_parameters(self) -> None:
        """Set the dense layer to zeros."""
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, context: HeadContext, *, obs: Observer | None = None) -> Tensor:
        x = tap(obs, "norm", self.norm(image_patches(x, context.grid), context.condition))
        assert context.grid is not None
        pixels = self.out(x).unflatten(-1, (*self.patch_size, self.channels)).unflatten(1, context.grid)
        # (B, ..., rows, columns, patch height, patch width, C)
        # -> (B, C, ..., rows, patch height, columns, patch width)
        pixels = pixels.movedim(-1, 1).transpose(-3, -2)
        return tap(obs, "noise", pixels.flatten(-2).flatten(-3, -2))
