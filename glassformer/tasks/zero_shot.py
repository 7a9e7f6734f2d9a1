"""Zero-shot classification: the labels of an image are texts, compared with it by a model with two towers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from glassformer.bundle import Bundle
from glassformer.errors import EmptyInputError, InvalidValueError, UnsupportedError
from glassformer.json_text import as_list
from glassformer.tasks.base import check_at_least, check_finite
from glassformer.tasks.classification import LabelScorer
from glassformer.tasks.declarations.classify import Classification
from glassformer.tasks.embedding import Embedder
from glassformer.tasks.encoder import EncoderTask, EncoderTaskOptions

TEMPLATE = "a photo of a {}"


class ZeroShotClassifier(EncoderTask[Classification]):
    """Classify images by labels that are given as texts.

    labels: names of the classes. template: text with {} in place of a label; the embeddings of several
    are averaged. top: number of labels; None: all.
    The probabilities of the labels sum to 1, unless the model was trained with a sigmoid for each pair.
    """

    def __init__(
        self,
        bundle: Bundle,
        labels: Sequence[str],
        *,
        template: str | Sequence[str] = TEMPLATE,
        top: int | None = None,
        **options: Unpack[EncoderTaskOptions],
    ) -> None:
        if not bundle.spec.children():
            raise UnsupportedError(bundle.display_name, "labels given as texts", hint="it has its own labels")
        check_at_least("top", top)
        templates = as_list(template)
        for text in templates:
            if not isinstance(text, str) or "{}" not in text:
                raise InvalidValueError("template", text, "a text with {} in place of the label")
        if not labels or not templates:
            raise EmptyInputError("list of labels" if templates else "list of templates")
        if isinstance(labels, str) or not all(isinstance(label, str) and label.strip() for label in labels):
            raise InvalidValueError("labels", labels, "a list of texts that are not empty")
        if len(set(labels)) < len(labels):
            raise InvalidValueError("labels", list(labels), "different labels")
        super().__init__(bundle.tower("image"), **options)
        similarity: Any = bundle.spec.head
        self.head: nn.Module = bundle.model.head
        self.scorer = LabelScorer(list(labels), similarity.activation, top)
        self.embedder = Embedder(bundle.tower("image"), **options)
        self.vectors = self._label_vectors(bundle, labels, templates, options)

    @torch.inference_mode()
    def _label_vectors(
        self, bundle: Bundle, labels: Sequence[str], templates: Sequence[str], options: Any
    ) -> Tensor:
        """Return the mean vector of each label (L, E), of length 1."""
        texts = [template.replace("{}", label) for label in labels for template in templates]
        vectors = torch.stack(list(Embedder(bundle.tower("text"), **options).run(texts)))
        return F.normalize(vectors.unflatten(0, (len(labels), -1)).mean(1), dim=-1)

    def forward(self, items: Sequence[Any]) -> Sequence[Tensor]:
        images = torch.stack(list(self.embedder.forward(items)))  # (B, E)
        device = next(self.head.parameters()).device
        logits: Tensor = self.head(images.to(device), self.vectors.to(device))  # (B, L)
        return list(check_finite(self.bundle, logits.float().cpu()))

    def postprocess(self, input: Any, item: Any, raw: Tensor | None) -> Classification:
        return Classification(labels=self.scorer(raw), warnings=getattr(item, "warnings", ()))
