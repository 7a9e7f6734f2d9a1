"""Autoencoders of images: latents are normal distributions (VAE), or codes of a codebook (VQ).

    images (B, C, H, W) --encoder--> mean, log variance --sample--> latents (B, L, h, w) --decoder--> images
    images (B, C, H, W) --encoder--> vectors --nearest code--> latents (B, E, h, w) --decoder--> images

B batch, C channels, H and W height and width, L channels of the latents, h and w their rows and columns,
N codes, E width of a code.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.backend import normal_table
from glassformer.core.diffusion.levels import LevelContext, MapHead, Path
from glassformer.core.inputs import ImageInputs, tensor_of
from glassformer.core.kernels import Kernel
from glassformer.core.model import Model
from glassformer.core.observe import Observer, scope, tap
from glassformer.errors import InvalidValueError, ShapeError, UnsupportedError

MIN_LOG_VARIANCE, MAX_LOG_VARIANCE = -30.0, 20.0
KL_WEIGHT, COMMITMENT_WEIGHT = 1e-6, 0.25  # in the loss


class GaussianLatents(NamedTuple):
    """Normal distributions of latents: mean and log variance, (B, L, h, w) each.

    >>> found = GaussianLatents(torch.ones(1, 4, 2, 2), torch.zeros(1, 4, 2, 2))
    >>> found.sample(torch.full((1, 4, 2, 2), 0.5)).unique(), found.divergence()
    (tensor([1.5000]), tensor([8.]))
    """

    mean: Tensor
    log_variance: Tensor

    @property
    def latents(self) -> Tensor:
        """The most likely latents: the mean."""
        return self.mean

    def sample(self, noise: Tensor) -> Tensor:
        """Return latents for standard normal noise (B, L, h, w)."""
        return self.mean + (0.5 * self.log_variance).exp() * noise

    def divergence(self) -> Tensor:
        """Return the Kullback-Leibler divergence from the standard normal distribution: (B,)."""
        terms = self.mean.square() + self.log_variance.exp() - 1.0 - self.log_variance
        return 0.5 * terms.flatten(1).sum(1)

    def training_latents(self) -> Tensor:
        """Return the latents that the decoder is trained on: a sample."""
        return self.sample(torch.randn_like(self.mean))

    def penalty(self, values: int) -> Tensor:
        """Return the term of the loss besides the reconstruction: the divergence, with a small weight.

        values: number of values of an image, over which the reconstruction error is averaged
        """
        return KL_WEIGHT * self.divergence().mean() / values


class QuantizedLatents(NamedTuple):
    """Codes of latents.

    latents: the nearest codes (B, E, h, w); their gradient goes to the vectors before quantization
    ids: of the codes (B, h, w)
    vectors: before quantization (B, E, h, w)
    codebook_loss, commitment_loss: mean squared distance, with a gradient of the codes or of the vectors
    """

    latents: Tensor
    ids: Tensor
    vectors: Tensor
    codebook_loss: Tensor
    commitment_loss: Tensor

    def training_latents(self) -> Tensor:
        """Return the latents that the decoder is trained on: the codes."""
        return self.latents

    def penalty(self, values: int) -> Tensor:
        """Return the term of the loss besides the reconstruction; see `GaussianLatents.penalty`."""
        return self.codebook_loss + COMMITMENT_WEIGHT * self.commitment_loss


class GaussianBottleneck(nn.Module):
    """Map the encoder's output (B, 2L, h, w) to normal distributions, and latents to the decoder's input."""

    def __init__(self, spec: specs.GaussianLatentsSpec) -> None:
        super().__init__()
        channels = spec.channels
        self.project = nn.Conv2d(2 * channels, 2 * channels, 1) if spec.project else None
        self.unproject = nn.Conv2d(channels, channels, 1) if spec.unproject else None

    def encode(self, x: Tensor) -> GaussianLatents:
        mean, log_variance = (x if self.project is None else self.project(x)).chunk(2, 1)
        return GaussianLatents(mean, log_variance.clamp(MIN_LOG_VARIANCE, MAX_LOG_VARIANCE))

    def decode(self, latents: Tensor) -> Tensor:
        out: Tensor = latents if self.unproject is None else self.unproject(latents)
        return out


class Codebook(nn.Module):
    """Replace every vector of the encoder's output by the nearest code.

    >>> codebook = Codebook(specs.CodebookSpec(num_codes=5, code_dim=4))
    >>> codebook.encode(torch.randn(2, 3, 6, 7)).ids.shape
    torch.Size([2, 6, 7])
    """

    def __init__(self, spec: specs.CodebookSpec) -> None:
        super().__init__()
        self.project = nn.Conv2d(spec.channels, spec.code_dim, 1)
        self.codes = normal_table(spec.num_codes, spec.code_dim, std=1 / spec.num_codes)
        self.unproject = nn.Conv2d(spec.code_dim, spec.channels, 1)

    @torch.no_grad()
    def nearest(self, vectors: Tensor) -> Tensor:
        """Return the ids of the nearest codes of vectors (..., E)."""
        # in mixed precision too, the nearest code is found in float32
        with torch.autocast("cpu" if vectors.is_meta else vectors.device.type, enabled=False):
            codes = self.codes.to(torch.promote_types(self.codes.dtype, torch.float32))
            # |v - c|^2 without |v|^2, which is the same for all codes
            return (codes.square().sum(-1) - 2 * vectors.to(codes) @ codes.T).argmin(-1)

    def encode(self, x: Tensor) -> QuantizedLatents:
        vectors = self.project(x).movedim(1, -1)  # (B, h, w, E)
        ids = self.nearest(vectors)
        codes = F.embedding(ids, self.codes)
        latents = vectors + (codes - vectors).detach()
        return QuantizedLatents(
            latents.movedim(-1, 1),
            ids,
            vectors.movedim(-1, 1),
            codebook_loss=F.mse_loss(codes, vectors.detach()),
            commitment_loss=F.mse_loss(vectors, codes.detach()),
        )

    def decode(self, latents: Tensor) -> Tensor:
        # what a diffusion model draws lies between the codes, and the decoder knows only codes
        codes = self.lookup(self.nearest(latents.movedim(1, -1)))
        out: Tensor = self.unproject(latents + (codes - latents).detach())
        return out

    def lookup(self, ids: Tensor) -> Tensor:
        """Return the codes of ids (B, h, w) as latents (B, E, h, w)."""
        if ids.is_cpu and ids.numel() and not torch.compiler.is_compiling():
            low, high = (int(found) for found in ids.aminmax())
            if low < 0 or high >= len(self.codes):
                wrong = low if low < 0 else high
                raise InvalidValueError("code", wrong, f"an id from 0 to {len(self.codes) - 1}")
        return F.embedding(ids, self.codes).movedim(-1, 1)

    @torch.no_grad()
    def replace_unused(self, counts: Tensor, vectors: Tensor) -> int:
        """Move the codes that were never used to given vectors, one each; return their number.

        Call it now and then in training: a code that is far from all vectors gets no gradient.
        counts: how often each code was used (N,). vectors: before quantization (M, E), in random order
        """
        unused = (counts == 0).nonzero()[: len(vectors), 0]
        self.codes[unused] = vectors[: len(unused)].to(self.codes)
        return len(unused)


def code_usage(counts: Tensor) -> tuple[float, float]:
    """Return the share of codes in use, and the perplexity of their distribution, from counts (N,).

    >>> code_usage(torch.tensor([3, 3, 0, 0]))
    (0.5, 2.0)
    """
    shares = counts.double() / counts.sum().clamp(min=1)
    used = float((counts > 0).double().mean())
    return used, round(float(torch.special.entr(shares).sum().exp()), 6)


class Autoencoder(Model):
    """An autoencoder of images: `encode` to latents, `decode` back; the forward does both.

    embed, encoder, project: convolution, levels and the convolution to the latents
    bottleneck: normal distributions, or a codebook
    unproject, decoder, head: the way back

    >>> import glassformer
    >>> model = glassformer.tiny("autoencoder_kl")
    >>> images = torch.randn(1, 3, 32, 32)
    >>> model.encode(images).latents.shape, model(images).shape
    (torch.Size([1, 4, 16, 16]), torch.Size([1, 3, 32, 32]))
    """

    spec: specs.AutoencoderSpec

    def __init__(self, spec: specs.AutoencoderSpec) -> None:
        super().__init__()
        self.spec = spec
        latents, norm = spec.latents, spec.norm
        first, last = spec.encoder[0].width, spec.decoder[0].width
        gaussian = isinstance(latents, specs.GaussianLatentsSpec)
        self.embed = nn.Conv2d(spec.input.channels, first, 3, padding=1)
        self.encoder = Path(spec.encoder, first, norm=norm)
        self.project = MapHead(spec.encoder[-1].width, latents.channels * (1 + gaussian), norm)
        self.bottleneck: GaussianBottleneck | Codebook = (
            GaussianBottleneck(latents)
            if isinstance(latents, specs.GaussianLatentsSpec)
            else Codebook(latents)
        )
        self.unproject = nn.Conv2d(latents.channels, last, 3, padding=1)
        self.decoder = Path(spec.decoder, last, norm=norm)
        self.head = MapHead(spec.decoder[-1].width, spec.head.channels, norm)

    def forward(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Encode and decode images (B, C, H, W), without noise."""
        return self.decode(self.encode(images, kernel=kernel, obs=obs).latents, kernel=kernel, obs=obs)

    def encode(
        self, images: Tensor | ImageInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> GaussianLatents | QuantizedLatents:
        """Encode images (B, C, H, W) -> latents (B, L, h, w), h = H / stride rounded down."""
        images = tensor_of(images).to(self.embed.weight.dtype)
        channels, stride = self.spec.input.channels, self.spec.stride
        if images.dim() != 4 or images.shape[1] != channels or min(images.shape[2:]) < stride:
            raise ShapeError("images", images.shape, f"(B, {channels}, {stride} or more, {stride} or more)")
        context = LevelContext(kernel=kernel, obs=scope(obs, "encoder"))
        x = self.encoder(tap(scope(obs, "embed"), "out", self.embed(images)), context)
        found = self.bottleneck.encode(self.project(x))
        latents = tap(obs, "bottleneck", found.latents)
        return found if latents is found.latents else found._replace(**{found._fields[0]: latents})

    def decode(self, latents: Tensor, *, kernel: Kernel = "auto", obs: Observer | None = None) -> Tensor:
        """Decode latents (B, L, h, w) -> images (B, C, H, W)."""
        context = LevelContext(kernel=kernel, obs=scope(obs, "decoder"))
        latents = latents.to(self.embed.weight.dtype)
        x = self.decoder(self.unproject(self.bottleneck.decode(latents)), context)
        out: Tensor = self.head(x, obs=scope(obs, "head"))
        return out

    def decode_ids(self, ids: Tensor, *, kernel: Kernel = "auto") -> Tensor:
        """Decode the ids of codes (B, h, w) -> images (B, C, H, W)."""
        if not isinstance(self.bottleneck, Codebook):
            raise UnsupportedError("an autoencoder without a codebook", "ids of codes")
        return self.decode(self.bottleneck.lookup(ids), kernel=kernel)

    def scale_latents(self, latents: Tensor) -> Tensor:
        """Return latents as a diffusion model reads them."""
        return (latents - self.spec.shift_factor) * self.spec.scaling_factor

    def unscale_latents(self, latents: Tensor) -> Tensor:
        """Return latents as `decode` expects them; the inverse of `scale_latents`."""
        return latents / self.spec.scaling_factor + self.spec.shift_factor
