"""Train a denoiser: mix noise with images, and let the model predict it.

B images, C channels of the images or latents, S text tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import SamplerSettings
from glassformer.diffusion.objectives import DenoisingObjective, NoiseLevel
from glassformer.training.learner import Learner

TEXT_DROPOUT = 0.1  # probability of the empty text, for guidance; a class has its own in the embedding


class DiffusionLearner(Learner):
    """Train the denoiser of a diffusion model, and its text encoder unless that is frozen.

    settings: the scheduler of the model. empty_text: token ids of the empty text. pad_id: the padding token.
    """

    empty_ids: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        *,
        settings: SamplerSettings,
        empty_text: Sequence[int] | None = None,
        pad_id: int = 0,
    ) -> None:
        super().__init__(model)
        self.objective = DenoisingObjective(settings)
        self.empty_length, self.pad_id = len(empty_text or ()), pad_id
        ids = None if empty_text is None else torch.tensor(empty_text, dtype=torch.long)
        self.register_buffer("empty_ids", ids, persistent=False)

    def train(self, mode: bool = True) -> DiffusionLearner:
        """Set the training mode; frozen parts stay in evaluation mode, without dropout."""
        super().train(mode)
        for part in self.model.children():
            if not _is_trained(part):
                part.eval()
        return self

    def forward(
        self,
        inputs: Tensor,
        labels: Tensor | None = None,
        ids: Tensor | None = None,
        lengths: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of images or latents (B, C, h, w) at random noise levels."""
        level = self.objective.level(self.objective.random_times(len(inputs), inputs.device))
        condition = self.condition(labels, ids, lengths)
        return self.loss(inputs, torch.randn_like(inputs), level, condition)

    def loss(self, clean: Tensor, noise: Tensor, level: NoiseLevel, condition: dict[str, Tensor]) -> Tensor:
        """Return the sum over the images of their mean squared error; a predicted variance is not trained."""
        noisy = self.objective.mix(clean, noise, level)
        output: Tensor = self.model(LatentInputs(noisy, level.timesteps, **condition))
        error = output[:, : clean.shape[1]].float() - self.objective.target(clean, noise, level)
        return error.square().flatten(1).mean(1).sum()

    def condition(
        self, labels: Tensor | None = None, ids: Tensor | None = None, lengths: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Return the fields of `LatentInputs` for classes (B,), or texts (B, S) and their lengths (B,)."""
        if labels is not None:
            return {"labels": labels}
        assert ids is not None and lengths is not None
        if self.training and self.empty_ids is not None:
            dropped = torch.rand(len(ids), device=ids.device) < TEXT_DROPOUT
            empty = F.pad(self.empty_ids, (0, ids.shape[1] - self.empty_length), value=self.pad_id)
            ids = torch.where(dropped[:, None], empty, ids)
            lengths = torch.where(dropped, self.empty_length, lengths)
        mask = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        with torch.set_grad_enabled(torch.is_grad_enabled() and _is_trained(self.model.text_encoder)):
            condition: dict[str, Tensor] = self.model.text_condition(ids, mask)
        return condition


def _is_trained(part: nn.Module) -> bool:
    return any(parameter.requires_grad for parameter in part.parameters())
