"""How a fresh model's numbers are drawn."""

from __future__ import annotations

import math

import torch
from torch import nn

from glassformer.core import heads
from glassformer.core.embeddings import ImageInput
from glassformer.core.positions import LearnedPositions, RelativeBias
from glassformer.core.series import SeriesInput
from glassformer.core.spec import Init, Normal, Xavier

_TABLES = (
    nn.Embedding,
    LearnedPositions,
    RelativeBias,
    heads.LanguageModelHead,
    heads.MaskedLanguageModelHead,
)
_WRITERS = ("out_proj", "ffn.down")  # what adds to the residual stream


@torch.no_grad()
def initialise(model: nn.Module, init: Init) -> None:
    """Draw every weight anew, in the order of the modules; norms keep their ones and zeros."""
    depth = sum(name.endswith(_WRITERS) for name, _ in model.named_modules())
    for name, module in model.named_modules():
        match init:
            case Xavier():
                _xavier(module)
            case Normal(std=std, residual=residual):
                shrunk = residual == "shrunk" and name.endswith(_WRITERS)
                shrink = math.sqrt(depth) if shrunk else 1.0
                _normal(module, std, shrink)


def _xavier(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, heads.LanguageModelHead | heads.MaskedLanguageModelHead):
        nn.init.normal_(module.weight, std=module.weight.shape[1] ** -0.5)
    elif isinstance(module, LearnedPositions | RelativeBias):
        nn.init.normal_(module.weight, std=0.02)


def _normal(module: nn.Module, std: float, shrink: float) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.normal_(module.weight, std=std / shrink)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, _TABLES):
        nn.init.normal_(module.weight, std=std)
    elif isinstance(module, ImageInput | SeriesInput):
        for table in module.parameters(recurse=False):  # prefix tokens and learned positions
            nn.init.normal_(table, std=std)
