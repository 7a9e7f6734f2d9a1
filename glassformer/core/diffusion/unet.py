"""A UNet that predicts noise: convolutions at falling and rising resolution, with skips between them.

    latents --embed--+--level--+--level--+--middle--level--level--head--> noise
                     |         |         +------------^      ^
                     |         +----------------------------/|
                     +--------------------------------------/

A time step, and a class, are added inside of every convolutional layer; cross-attention reads the text.
B batch, C channels of the latents, h and w rows and columns, E width of the condition.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core import spec as specs
from glassformer.core.diffusion.latents import LatentConditions
from glassformer.core.diffusion.levels import LevelContext, MapHead, Path
from glassformer.core.inputs import LatentInputs
from glassformer.core.kernels import Kernel
from glassformer.core.model import Model
from glassformer.core.observe import Observer, scope, tap
from glassformer.errors import ShapeError

CONDITION_FACTOR = 4  # the condition is so many times as wide as the first level


class NoisyMapInput(LatentConditions):
    """Embed noisy latents by a convolution, and what their noise is predicted from."""

    def __init__(self, width: int, spec: specs.NoisyMapSpec) -> None:
        super().__init__(CONDITION_FACTOR * width, spec)
        self.conv = nn.Conv2d(spec.channels, width, 3, padding=1)

    def forward(self, inputs: LatentInputs, *, obs: Observer | None = None) -> Tensor:
        """Latents (B, C, h, w) -> (B, width, h, w)."""
        latents, channels = inputs.latents, self.conv.in_channels
        if latents.dim() != 4 or latents.shape[1] != channels:
            raise ShapeError("latents", latents.shape, f"(B, {channels}, rows, columns)")
        return tap(obs, "out", self.conv(latents.to(self.conv.weight.dtype)))


class UNet(Model):
    """A UNet: `LatentInputs` -> the noise in the latents (B, C, h, w).

    embed: convolution, and embeddings of time and class
    encoder, decoder: levels down to the middle, and up
    head: group norm, SiLU and convolution

    >>> import torch, glassformer
    >>> model = glassformer.tiny("unet_2d_condition")
    >>> text = torch.randn(1, 5, 16)
    >>> model(LatentInputs(torch.randn(1, 4, 8, 8), torch.tensor(500), text=text)).shape
    torch.Size([1, 4, 8, 8])
    """

    spec: specs.UNetSpec

    def __init__(self, spec: specs.UNetSpec) -> None:
        super().__init__()
        self.spec = spec
        first = spec.encoder[0].width
        options = {
            "norm": spec.norm,
            "condition_dim": CONDITION_FACTOR * first,
            "memory_dim": spec.input.text_dim,
            "pad_end": False,
        }
        self.embed = NoisyMapInput(first, spec.input)
        self.encoder = Path(spec.encoder, first, **options)  # type: ignore[arg-type]
        middle = spec.encoder[-1].width
        self.decoder = Path(spec.decoder, middle, skips=spec.skip_widths, **options)  # type: ignore[arg-type]
        self.head = MapHead(spec.decoder[-1].width, spec.head.channels, spec.norm)

    def forward(
        self, inputs: LatentInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Predict the noise in latents (B, C, h, w) of any size."""
        within = scope(obs, "embed")
        condition = F.silu(self.embed.condition(inputs, within))
        x = self.embed(inputs, obs=within)
        maps = [x]
        context = LevelContext(condition, self.embed.memory(inputs), kernel=kernel)
        x = self.encoder(x, context._replace(maps=maps, obs=scope(obs, "encoder")))
        del maps[len(self.spec.skip_widths) :]  # those of the middle
        x = self.decoder(x, context._replace(skips=maps, obs=scope(obs, "decoder")))
        out: Tensor = self.head(x, obs=scope(obs, "head"))
        return out
