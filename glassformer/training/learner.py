"""Learners combine a model with its loss: `forward` returns the loss of a batch, summed over its units.

The loss is summed, not averaged, so that the sums of micro-batches, devices and processes can be added and
divided once by the total count. Masking, CutMix and R-Drop happen here, on the device, in training mode only.
Letters: B examples, T tokens, D d_model, V vocabulary, L labels; H height, W width.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from glassformer.core.block import Block, LayerContext
from glassformer.core.heads import LanguageModelHead
from glassformer.core.inputs import Masks, SeriesInputs, TextInputs
from glassformer.core.masks import Mask
from glassformer.core.model import EncoderOnly
from glassformer.core.series.distributions import DistributionParameters, map_parameters
from glassformer.data.examples import IGNORE_INDEX
from glassformer.training.losses import contrastive_loss, cosent_loss, cross_entropy, projected_cross_entropy

EXCLUDED_LOGIT = -1e4  # of padding
MAX_SCALE = 4.6052  # upper bound of the trained scale of a contrastive model: log(100)
CUTMIX_SIDE = (0.25, 0.75)  # smallest and largest rectangle, as a fraction of the image's side


def count_values(batch: Mapping[str, Any]) -> int:
    """Return the number of values to forecast in a batch."""
    return int(batch["future"].size)


def count_labels(batch: Mapping[str, Any]) -> int:
    """Return the number of labels in a batch, without padding."""
    return int((batch["labels"] != IGNORE_INDEX).sum())


def count_examples(batch: Mapping[str, Any]) -> int:
    """Return the number of examples in a batch."""
    return len(batch["labels"])


def count_images(batch: Mapping[str, Any]) -> int:
    """Return the number of images in a batch."""
    return len(batch["images" if "images" in batch else "inputs"])


def count_pairs(batch: Mapping[str, Any]) -> int:
    """Return the number of pairs in a batch."""
    return len(batch["anchors" if "anchors" in batch else "ids"])


class Learner(nn.Module):
    """A model and its loss; `forward` takes the arrays of a batch as keyword arguments."""

    model: Any  # a core model or a baseline

    def __init__(self, model: nn.Module, *, label_smoothing: float = 0.0, r_drop: float = 0.0) -> None:
        super().__init__()
        self.model = model
        self._label_smoothing = label_smoothing
        self.r_drop = r_drop

    @property
    def label_smoothing(self) -> float:
        """Label smoothing; 0 in evaluation mode."""
        return self._label_smoothing if self.training else 0.0

    @property
    def uses_r_drop(self) -> bool:
        return self.training and self.r_drop > 0

    def repeat(self, *inputs: Tensor | None) -> tuple[Any, ...]:
        """Return the inputs, twice in a batch for R-Drop."""
        if not self.uses_r_drop:
            return inputs
        return tuple(part if part is None else torch.cat((part, part)) for part in inputs)

    def cross_entropy(self, logits: Tensor, labels: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the summed cross-entropy, or the R-Drop loss, of the logits for repeated inputs."""
        smoothing = self.label_smoothing
        if not self.uses_r_drop:
            return cross_entropy(logits, labels, label_smoothing=smoothing, weight=weight)
        return r_drop_loss(
            logits, labels, label_smoothing=smoothing, weight=self.r_drop, class_weights=weight
        )


def r_drop_loss(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float,
    weight: float,
    class_weights: Tensor | None = None,
) -> Tensor:
    """Return the summed R-Drop loss of logits (2B, ..., V) from two forward passes and labels (B, ...).

    It is the mean of both cross-entropies plus `weight` / 4 times the sum of both KL divergences. This is
    half of the paper's loss, so that it equals the plain loss if both passes agree.

    >>> logits, labels = torch.randn(3, 5, 7), torch.randint(7, (3, 5))
    >>> same = r_drop_loss(torch.cat((logits, logits)), labels, label_smoothing=0.1, weight=5.0)
    >>> bool(torch.isclose(same, cross_entropy(logits, labels, label_smoothing=0.1)))
    True
    """
    twice = torch.cat((labels, labels))
    loss = cross_entropy(logits, twice, label_smoothing=label_smoothing, weight=class_weights) / 2
    p, q = F.log_softmax(logits.float(), -1).chunk(2)  # log-probabilities (B, ..., V) of each pass
    # KL(p, q) + KL(q, p) = sum (p - q) (log p - log q)
    divergence = ((p.exp() - q.exp()) * (p - q)).sum(-1)  # (B, ...)
    return loss + weight / 4 * torch.where(labels != IGNORE_INDEX, divergence, 0.0).sum()


def vocabulary_loss(model: Any, x: Tensor, context: Any, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the summed cross-entropy for hidden states (B, T, D) and labels (B, T).

    A language-model head is applied in chunks, without storing all logits. context: passed to other heads.
    """
    head = model.head
    if not isinstance(head, LanguageModelHead):
        return cross_entropy(head(x, context), labels, label_smoothing=label_smoothing)
    return projected_cross_entropy(
        head.transform(x),
        head.weight,
        labels,
        bias=head.bias,
        label_smoothing=label_smoothing,
        softcap=head.softcap,
    )


class PairLearner(Learner):
    """Train an encoder-decoder to predict each target token from the source and the previous tokens."""

    def forward(
        self,
        src: Tensor,
        tgt: Tensor,
        labels: Tensor,
        src_segments: Tensor | None = None,
        tgt_segments: Tensor | None = None,
    ) -> Tensor:
        src, tgt, src_segments, tgt_segments = self.repeat(src, tgt, src_segments, tgt_segments)
        # targets are padded on the right, so the causal mask already hides padding from real tokens
        src_mask = None if src_segments is None else Mask(segments=src_segments)
        x, context = self.model.hidden_states(src, tgt, Masks(src_mask, Mask(segments=tgt_segments)))
        if self.uses_r_drop:
            return self.cross_entropy(self.model.head(x, context), labels)
        return vocabulary_loss(self.model, x, context, labels, self.label_smoothing)


class TextLearner(Learner):
    """Train a model to predict each token from the previous tokens of the same document."""

    def forward(self, ids: Tensor, labels: Tensor, segments: Tensor | None = None) -> Tensor:
        x, context = self.model.hidden_states(ids, Mask(segments=segments))
        return vocabulary_loss(self.model, x, context, labels, self.label_smoothing)


def point_forecast(forecast: Tensor | DistributionParameters) -> Tensor:
    """Return a point forecast (B, N, C): the values themselves, or the mean of a predicted distribution."""
    return (forecast if isinstance(forecast, Tensor) else forecast.mean).float()


class SeriesLearner(Learner):
    """Train a forecaster on the squared error, or the negative log-likelihood of a distribution."""

    def forward(self, past: Tensor, future: Tensor, covariates: Tensor | None = None) -> Tensor:
        return self.loss(self.forecast(past, covariates), future)

    def forecast(self, past: Tensor, covariates: Tensor | None = None) -> Tensor | DistributionParameters:
        """Return the forecast of the model; a baseline ignores covariates."""
        uses_covariates = covariates is not None and isinstance(self.model, EncoderOnly)
        inputs = SeriesInputs(past, covariates=covariates) if uses_covariates else past
        output: Tensor | DistributionParameters = self.model(inputs)
        return output

    def loss(self, forecast: Tensor | DistributionParameters, future: Tensor) -> Tensor:
        """Return the summed loss of a forecast."""
        if isinstance(forecast, Tensor):
            return F.mse_loss(forecast.float(), future, reduction="sum")
        forecast = map_parameters(forecast, lambda _, tensor: tensor.float())
        return -forecast.log_prob(future).sum()


class LabelLearner(Learner):
    """Train a classifier or regressor of texts (ids) or images, or a classifier of tokens.

    problem_type: as in transformers: single_label_classification, multi_label_classification or regression.
    class_weights: weight of each class (L,), in training only; for multi-label, of its positive examples.
    target_std: standard deviation of regression targets; the squared error is divided by its square, so that
    the learning rate does not depend on the unit of the targets.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        problem_type: str = "single_label_classification",
        class_weights: Sequence[float] | None = None,
        target_std: float = 1.0,
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.problem_type, self.target_std = problem_type, target_std
        weights = None if class_weights is None else torch.tensor(class_weights, dtype=torch.float32)
        self._class_weights: Tensor | None
        self.register_buffer("_class_weights", weights, persistent=False)

    @property
    def class_weights(self) -> Tensor | None:
        """Class weights; None in evaluation mode."""
        return self._class_weights if self.training else None

    def logits(self, inputs: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the logits (B, L), or (B, T, L) of a token classifier. types: token types of text pairs."""
        output = self.model(inputs if types is None else TextInputs(inputs, types=types))
        logits: Tensor = output if isinstance(output, Tensor) else output.logits
        return logits

    def forward(self, inputs: Tensor, labels: Tensor, types: Tensor | None = None) -> Tensor:
        return self.loss(self.logits(*self.repeat(inputs, types)), labels)

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the summed loss of logits (B, L), or (2B, L) with R-Drop."""
        weights = self.class_weights
        match self.problem_type:
            case "multi_label_classification":  # the mean over the labels of each example
                total = F.binary_cross_entropy_with_logits(
                    logits.float(), labels, pos_weight=weights, reduction="sum"
                )
                return total / labels.shape[-1]
            case "regression":
                error = F.mse_loss(logits.float().squeeze(-1), labels, reduction="sum")
                return error / self.target_std**2
        return self.cross_entropy(logits, labels, weights)


class SpanLearner(Learner):
    """Train a model to find the first and the last token of an answer. pad_id: the padding token."""

    def __init__(self, model: nn.Module, *, pad_id: int, r_drop: float = 0.0) -> None:
        super().__init__(model, r_drop=r_drop)
        self.pad_id = pad_id

    def logits(self, inputs: Tensor, types: Tensor | None = None) -> Tensor:
        """Return the logits (B, 2, T) of the first and the last token; padding is excluded."""
        span = self.model(inputs if types is None else TextInputs(inputs, types=types))
        logits = torch.stack((span.start, span.end), 1).float()
        return logits.masked_fill((inputs == self.pad_id)[:, None], EXCLUDED_LOGIT)

    def forward(self, inputs: Tensor, labels: Tensor, types: Tensor | None = None) -> Tensor:
        return self.cross_entropy(self.logits(*self.repeat(inputs, types)), labels)


class TextLabelLearner(LabelLearner):
    """Train a text classifier; each input token is masked with the probability `mask_prob`.

    mlm_weight: weight of the mean masked-language-modeling loss, relative to the classification loss
    mask_id: the mask token; unmaskable: ids that are never masked (padding and special tokens)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mask_prob: float,
        mlm_weight: float,
        mask_id: int,
        unmaskable: tuple[int, ...],
        **options: Any,
    ) -> None:
        super().__init__(model, **options)
        self.mask_prob, self.mlm_weight = mask_prob, mlm_weight
        self.mask_id, self.unmaskable = mask_id, unmaskable

    def forward(self, inputs: Tensor, labels: Tensor, types: Tensor | None = None) -> Tensor:
        if not (self.training and self.mask_prob):
            return super().forward(inputs, labels, types)
        ids, types = self.repeat(inputs, types)
        masked = torch.rand(ids.shape, device=ids.device) < self.mask_prob
        for special in self.unmaskable:
            masked = masked & (ids != special)
        x, context = self.model.hidden_states(TextInputs(torch.where(masked, self.mask_id, ids), types=types))
        loss = self.loss(self.model.head(x, context), labels)
        if not self.mlm_weight:
            return loss
        targets = torch.where(masked, ids, IGNORE_INDEX)
        mlm_loss = projected_cross_entropy(x, self.model.embed.token.weight, targets)
        return loss + self.mlm_weight * len(labels) * mlm_loss / masked.sum().clamp(min=1)


class MixLearner(LabelLearner):
    """Train a classifier of images or time series on mixtures of two examples.

    CutMix is applied to a batch with the probability `cutmix`, mixup to the others with the probability
    `mixup`. cutmix: None for time series.
    """

    def __init__(self, model: nn.Module, *, cutmix: float | None, mixup: float = 0.0, **options: Any) -> None:
        super().__init__(model, **options)
        self.cutmix, self.mixup = cutmix, mixup

    def forward(self, inputs: Tensor, labels: Tensor, types: Tensor | None = None) -> Tensor:
        if not (self.training and (self.cutmix or self.mixup)):
            return super().forward(inputs, labels)
        mixed, ratio = inputs, torch.ones((), device=inputs.device)
        if self.cutmix is not None:
            mixed, ratio = cutmix(inputs, self.cutmix)
        if self.mixup:
            share = mixup_ratio(self.mixup, inputs.device)
            share = torch.where(ratio < 1, 1.0, share)  # nothing was pasted
            mixed, ratio = share * mixed + (1 - share) * inputs.roll(1, 0), ratio * share
        logits = self.logits(*self.repeat(mixed))
        return ratio * self.loss(logits, labels) + (1 - ratio) * self.loss(logits, labels.roll(1, 0))


def cutmix(images: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    """CutMix: paste a rectangle of another image of the batch into each image (B, C, H, W).

    Returns the mixed images, and the fraction of each image that is left. The rectangle is the same for all
    images; with the probability 1 - `probability` nothing is pasted.
    """
    height, width = images.shape[2:]
    random = torch.rand(5, device=images.device)
    rows, columns = _interval(height, random[0], random[1]), _interval(width, random[2], random[3])
    inside = rows[:, None] & columns & (random[4] < probability)  # (H, W)
    return torch.where(inside, images.roll(1, 0), images), 1 - inside.float().mean()


def mixup_ratio(probability: float, device: torch.device) -> Tensor:
    """Return a random share of the first example in mixup, or 1 with the probability 1 - `probability`."""
    random = torch.rand(2, device=device)
    ratio = torch.sin(torch.pi / 2 * random[0]).square()  # the distribution Beta(0.5, 0.5)
    return torch.where(random[1] < probability, ratio, 1.0)


def _interval(side: int, offset: Tensor, length: Tensor) -> Tensor:
    """Return a mask (side,) of a random interval; `offset` and `length` are random numbers in [0, 1)."""
    smallest, largest = CUTMIX_SIDE
    pixels = (smallest + length * (largest - smallest)) * side
    start = offset * (side - pixels)
    position = torch.arange(side, device=offset.device)
    return (position >= start) & (position < start + pixels)


class SentencePairLearner(Learner):
    """Train a sentence encoder on pairs, against the other pairs of a batch, or on scored pairs.

    temperature: cosine similarities are divided by it.
    """

    def __init__(self, model: torch.nn.Module, *, temperature: float) -> None:
        super().__init__(model)
        self.temperature = temperature

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings (B, D), scaled to length 1."""
        return F.normalize(self.model(ids).float(), dim=-1)

    def forward(
        self,
        anchors: Tensor,
        positives: Tensor,
        negatives: Tensor | None = None,
        scores: Tensor | None = None,
    ) -> Tensor:
        queries, keys = self.embed(anchors), self.embed(positives)  # (B, D) each
        if scores is not None:
            return len(scores) * cosent_loss((queries * keys).sum(-1), scores, self.temperature)
        # another pair with the same positive is no negative example
        same = (positives[:, None] == positives).all(-1)
        same = same & ~torch.eye(len(same), dtype=torch.bool, device=same.device)
        logits = (queries @ keys.T).masked_fill(same, -torch.inf)
        if negatives is not None:
            logits = torch.cat((logits, queries @ self.embed(negatives).T), dim=-1)
        targets = torch.arange(len(queries), device=queries.device)
        return F.cross_entropy(logits / self.temperature, targets, reduction="sum")


class ContrastiveLearner(Learner):
    """Train two towers so that each image is most similar to its caption, and each caption to its image.

    The negatives of a pair are the other pairs of the same micro-batch on the same device, so accumulation
    does not add negatives. A pair with the same image or the same caption is not a negative.
    """

    def forward(self, images: Tensor, ids: Tensor, numbers: Tensor) -> Tensor:
        with torch.no_grad():
            self.model.head.scale.clamp_(max=MAX_SCALE)
        pictures, texts = self.model.embed_images(images), self.model.embed_texts(ids)
        with torch.autocast(ids.device.type, enabled=False):  # a scale of 100 would magnify rounding errors
            logits = self.model.head(pictures.float(), texts.float())
        same = (ids[:, None] == ids).all(-1) | (numbers[:, None] == numbers)
        targets = torch.arange(len(ids), device=ids.device)
        if self.model.spec.head.activation == "sigmoid":
            return contrastive_loss(logits, targets, same, sigmoid=True)
        return (contrastive_loss(logits, targets, same) + contrastive_loss(logits.T, targets, same)) / 2


def model_parameters(learner: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters by name, without the prefix `model.`; tied ones appear once."""
    return {
        name.removeprefix("model."): parameter
        for name, parameter in learner.named_parameters()
        if parameter.requires_grad
    }


class BatchNormState:
    """Save the running statistics of batch norms, to restore them if a step is discarded."""

    def __init__(self, learner: nn.Module) -> None:
        self.tensors = batch_norm_buffers(learner)
        self._saved: list[Tensor] = []

    def save(self) -> None:
        """Save the statistics; call it before a step."""
        self._saved = [tensor.clone() for tensor in self.tensors]

    @torch.no_grad()
    def restore(self, condition: Tensor | None = None) -> None:
        """Restore the saved statistics, or only if the scalar `condition` is true."""
        for tensor, saved in zip(self.tensors, self._saved, strict=True):
            tensor.copy_(saved if condition is None else torch.where(condition, saved, tensor))


def batch_norm_buffers(module: nn.Module) -> list[Tensor]:
    """Return the running means, variances and counts of all batch norms."""
    norms = [part for part in module.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)]
    return [buffer for norm in norms for buffer in norm.buffers(recurse=False)]


def flops_per_token(learner: nn.Module) -> float:
    """Estimate the FLOPs of forward and backward per token: six per parameter, without embedding lookups."""
    tables = {id(m.weight): m.weight.numel() for m in learner.modules() if isinstance(m, nn.Embedding)}
    heads = {id(m.weight) for m in learner.modules() if isinstance(m, LanguageModelHead)}
    lookups = sum(count for table, count in tables.items() if table not in heads)
    return 6.0 * (sum(p.numel() for p in learner.parameters()) - lookups)


class CheckpointedForward:
    """The forward pass of a block with gradient checkpointing.

    Only the inputs of the block are stored, and the backward pass recomputes it.
    """

    training_only = True  # copies for inference run the block itself

    def __init__(self, block: Block) -> None:
        self.block, self.forward = block, block.forward

    def __call__(self, x: Tensor, context: LayerContext) -> Tensor:
        # with a KV cache or an observer the block must run once; both are used in inference only
        inference = getattr(context.attend, "cache", None) is not None or context.obs is not None
        if not torch.is_grad_enabled() or inference:
            return self.forward(x, context)
        options: dict[str, Any] = {}
        state = BatchNormState(self.block)
        if state.tensors and not torch.compiler.is_compiling():
            options["context_fn"] = lambda: (nullcontext(), _preserve_statistics(state))
        out: Tensor = checkpoint(
            self.forward, x, context, use_reentrant=False, preserve_rng_state=True, **options
        )
        return out


@contextmanager
def _preserve_statistics(state: BatchNormState) -> Iterator[None]:
    """Restore batch-norm statistics after the recomputation, which would update them a second time."""
    state.save()
    try:
        yield
    finally:
        state.restore()


def enable_gradient_checkpointing(model: nn.Module) -> int:
    """Enable gradient checkpointing (activation recomputation) for all blocks; return their number.

    Call it before `Parallel.wrap`. Only the `forward` of each block is replaced, so module paths and
    checkpoint keys stay the same.
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    for block in blocks:
        block.forward = CheckpointedForward(block)  # type: ignore[method-assign]
    return len(blocks)
