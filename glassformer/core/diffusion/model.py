"""A diffusion model: the denoiser, the text encoder whose vectors it attends to, and the autoencoder.

    text (B, S) --text encoder--> vectors (B, S, E) --+
    noise (B, L, h, w) -------------------------------+--denoiser, step by step--> latents (B, L, h, w)
    latents (B, L, h, w) --autoencoder--> images (B, C, H, W)

B batch, S text tokens, E width of their vectors, L channels of the latents, C of the images, F frames.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from glassformer.core import spec as specs
from glassformer.core.diffusion.autoencoder import Autoencoder
from glassformer.core.inputs import LatentInputs, TextInputs
from glassformer.core.kernels import Kernel
from glassformer.core.model import EncoderOnly, Model
from glassformer.core.observe import Observer, scope


class DiffusionModel(Model):
    """A denoiser with the models around it; the forward is that of the denoiser.

    >>> import torch
    >>> import glassformer
    >>> from glassformer.core.build import build_model
    >>> dit, vae = glassformer.tiny("dit").spec, glassformer.tiny("autoencoder_kl").spec
    >>> model = build_model(specs.DiffusionModelSpec(denoiser=dit, autoencoder=vae))
    >>> model.decode(torch.randn(1, 4, 8, 8)).shape
    torch.Size([1, 3, 16, 16])
    """

    spec: specs.DiffusionModelSpec

    def __init__(
        self,
        spec: specs.DiffusionModelSpec,
        *,
        denoiser: Model,
        autoencoder: Autoencoder | None = None,
        text_encoder: EncoderOnly | None = None,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.denoiser, self.autoencoder, self.text_encoder = denoiser, autoencoder, text_encoder

    def tie(self) -> None:
        """Tie the weights of each part; call again after parameters are replaced."""
        for part in self.children():
            part.tie()  # type: ignore[operator]

    def forward(self, inputs: LatentInputs, *, kernel: Kernel = "auto", obs: Observer | None = None) -> Any:
        """Predict the noise, or velocity, in latents."""
        return self.denoiser(inputs, kernel=kernel, obs=scope(obs, "denoiser"))

    def encode_text(
        self, texts: Tensor | TextInputs, *, kernel: Kernel = "auto", obs: Observer | None = None
    ) -> Tensor:
        """Return the vectors (B, S, E) of texts (B, S)."""
        assert self.text_encoder is not None
        return self.text_encoder.hidden_states(texts, kernel=kernel, obs=scope(obs, "text_encoder"))[0]

    def text_condition(self, ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
        """Return the fields of `LatentInputs` for texts (B, S) with a mask of their tokens (B, S).

        A model that reads padding attends to all of them.
        """
        if not self.spec.mask_padding:
            return {"text": self.encode_text(TextInputs(ids, mask=torch.ones_like(mask)))}
        return {"text": self.encode_text(TextInputs(ids, mask=mask)), "text_mask": mask}

    def encode(self, images: Tensor) -> Tensor:
        """Encode images (B, C, H, W) from -1 to 1 -> latents as the denoiser reads them.

        The frames of a video (B, C, F, H, W) are encoded one by one.
        """
        if self.autoencoder is None:
            return images
        if images.dim() == 5:  # (B, C, F, H, W)
            return torch.stack([self.encode(frame) for frame in images.unbind(2)], 2)
        return self.autoencoder.scale_latents(self.autoencoder.encode(images).latents)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode the denoiser's latents (B, L, h, w) -> images (B, C, H, W) from -1 to 1.

        The frames of a video (B, L, F, h, w) are decoded one by one.
        """
        if self.autoencoder is None:
            return latents
        if latents.dim() == 5:  # (B, L, F, h, w)
            return torch.stack([self.decode(frame) for frame in latents.unbind(2)], 2)
        return self.autoencoder.decode(self.autoencoder.unscale_latents(latents))
