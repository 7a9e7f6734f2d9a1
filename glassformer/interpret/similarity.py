"""Compare several images with several texts, with a model that has an image and a text tower."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.data.image_files import decode_base64
from glassformer.errors import UnsupportedError
from glassformer.interpret import schema
from glassformer.tasks.base import RejectedInputError
from glassformer.tasks.embedding import Embedder


@torch.inference_mode()
def compare_images_texts(
    bundle: Bundle, images: Sequence[str], texts: Sequence[str]
) -> schema.SimilarityInfo:
    """Return the cosine of every image and text, and how the model turns cosines into probabilities.

    images: data: URLs or base64
    """
    if not bundle.spec.children():
        raise UnsupportedError(bundle.display_name, "comparing images with texts")
    try:
        image_vectors = Embedder(bundle.tower("image")).run([decode_base64(image) for image in images])
        text_vectors = Embedder(bundle.tower("text")).run(texts)
        cosines: Tensor = torch.stack(list(image_vectors)) @ torch.stack(list(text_vectors)).T
    except RejectedInputError as error:
        raise error.reason from None
    head = bundle.model.head
    own: Any = bundle.spec.head
    return schema.SimilarityInfo(
        cosines=tuple(tuple(row) for row in cosines.tolist()),
        scale=float(head.scale.float().exp()),
        bias=0.0 if head.bias is None else float(head.bias),
        activation=own.activation,
    )
