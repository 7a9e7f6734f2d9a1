"""Data classes of the explorer: the request for a trace, and everything that is reported about it.

Field names are those of the JSON that the page reads. These classes do not validate: the server validates
HTTP requests with its pydantic models. `to_json` converts any of these objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, ClassVar, Final, Literal, dataclass_transform

from glassformer.errors import GlassformerError, UnknownNameError
from glassformer.json_text import convert_json, is_not_finite

Kind = Literal[
    "translate",
    "generate",
    "caption",
    "ask",
    "fill",
    "embed",
    "classify",
    "answer",
    "image",
    "forecast",
    "similarity",
    "detect",
    "segment",
    "draw",
]
SequenceName = str  # "source", "target" or "input"; of later stages and of towers, the name of their stack
StackName = str  # "encoder", "decoder", "image", "text", or the stages of an encoder: "stage1", ...
SequenceKind = Literal["text", "patches", "series", "queries", "prompts"]


@dataclass(eq=False)
class ItemNotFoundError(UnknownNameError):
    """A model, run, trace, tensor or layer does not exist."""


@dataclass(eq=False)
class TooLargeError(GlassformerError):
    """A trace or tensor exceeds the limit for storing or sending it."""

    what: str
    size: int
    limit: int
    unit: str
    hint: str = ""
    template: ClassVar[str] = "{what} has {size:,} {unit}; the limit is {limit:,}"


MAX_INTERVENTIONS: Final = 256  # in one trace
OMIT: Final = {"omit_none": True}  # metadata of a field that is left out of the JSON if it is None


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class Schema:
    """Base class that makes every subclass a frozen, keyword-only dataclass."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)


# Requests


class SeriesColumns(Schema):
    """Columns of equal length; the last `holdout` values of each are hidden from the model."""

    columns: Mapping[str, tuple[float, ...]]
    holdout: int | None = None


class TraceInput(Schema):
    """The input of one trace; which fields are used depends on the kind of the model.

    text: the source, prompt or text. target: the target so far, as ids or text; without it, an
    encoder-decoder generates the target. image: a data: URL or base64. to: the target language. A model with
    two towers compares an image with a text.
    question, context: the input of a question-answering model; a question about an image has no context.
    points, background_points, box: what a promptable model segments, (x, y) and (x_min, y_min, x_max, y_max)
    in pixels of the image; by default its center.
    seed, num_inference_steps, guidance_scale, num_frames, temperature, top_k, top_p: of a drawing; its text
    is a prompt or a class. Interventions apply from start_step on.
    """

    text: str | None = field(default=None, metadata=OMIT)
    target: str | tuple[int, ...] | None = field(default=None, metadata=OMIT)
    image: str | None = field(default=None, metadata=OMIT)
    series: SeriesColumns | None = field(default=None, metadata=OMIT)
    to: str | None = field(default=None, metadata=OMIT)
    question: str | None = field(default=None, metadata=OMIT)
    context: str | None = field(default=None, metadata=OMIT)
    points: tuple[tuple[float, float], ...] | None = field(default=None, metadata=OMIT)
    background_points: tuple[tuple[float, float], ...] | None = field(default=None, metadata=OMIT)
    box: tuple[float, float, float, float] | None = field(default=None, metadata=OMIT)
    seed: int | None = field(default=None, metadata=OMIT)
    num_inference_steps: int | None = field(default=None, metadata=OMIT)
    guidance_scale: float | None = field(default=None, metadata=OMIT)
    num_frames: int | None = field(default=None, metadata=OMIT)
    temperature: float | None = field(default=None, metadata=OMIT)
    top_k: int | None = field(default=None, metadata=OMIT)
    top_p: float | None = field(default=None, metadata=OMIT)
    start_step: int | None = field(default=None, metadata=OMIT)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TraceInput:
        """Create an input from parsed JSON: the example of a model card, or a validated request.

        >>> TraceInput.from_json({"text": "a", "target": [5, 6]}).target
        (5, 6)
        """
        known = [field.name for field in fields(cls)]
        for name in values.keys() - known:
            raise UnknownNameError("input field", name, known)
        result: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in values.items()}
        for name in ("points", "background_points"):
            if result.get(name) is not None:
                result[name] = tuple((x, y) for x, y in result[name])
        if isinstance(series := result.get("series"), Mapping):
            columns = {name: tuple(column) for name, column in series["columns"].items()}
            result["series"] = SeriesColumns(columns=columns, holdout=series.get("holdout"))
        return cls(**result)


class InterventionBase(Schema):
    """Base class of the interventions; the server validates them with pydantic."""

    __pydantic_config__: ClassVar = {"extra": "forbid", "allow_inf_nan": False}


class AblateHead(InterventionBase):
    """Set the output of one attention head to zero."""

    kind: Literal["ablate_head"] = "ablate_head"
    attention: str
    head: int


class SkipLayer(InterventionBase):
    """Skip a block, e.g. `encoder.blocks.3`: its output is its input."""

    kind: Literal["skip_layer"] = "skip_layer"
    block: str


class MaskToken(InterventionBase):
    """Mask a token, so that no query attends to it; the position ids stay the same."""

    kind: Literal["mask_token"] = "mask_token"
    sequence: str
    position: int


class SwapTokens(InterventionBase):
    """Swap two tokens or image patches."""

    kind: Literal["swap_tokens"] = "swap_tokens"
    sequence: str
    positions: tuple[int, int]


class ScaleResidual(InterventionBase):
    """Multiply the residual stream at one position of a site, e.g. `decoder.blocks.2.resid_out`."""

    kind: Literal["scale_residual"] = "scale_residual"
    name: str
    position: int
    scale: float


class ScalePositions(InterventionBase):
    """Multiply all position ids of a stack."""

    kind: Literal["scale_positions"] = "scale_positions"
    stack: str
    scale: float


class PatchActivation(InterventionBase):
    """Replace an activation by that of another input: activation patching.

    name: a site of the residual stream, or `.heads` or `.weights` of an attention layer. head: which head.
    position: which token of the residual stream, or which query; None: all. source: the other input; its
    tokens are aligned with those of this input.
    """

    kind: Literal["patch"] = "patch"
    name: str
    source: TraceInput
    head: int | None = None
    position: int | None = None


class ForceToken(InterventionBase):
    """Give a drawing this code at a step, whatever was sampled; the random numbers of later steps stay."""

    kind: Literal["force_token"] = "force_token"
    step: int
    token: int


Intervention = (
    AblateHead
    | SkipLayer
    | MaskToken
    | SwapTokens
    | ScaleResidual
    | ScalePositions
    | PatchActivation
    | ForceToken
)


# Models


class PositionInfo(Schema):
    """The positional encoding of a stack. name: prefix of the names of its derived tensors."""

    kind: Literal["sinusoidal", "learned", "rotary", "relative", "alibi", "none"]
    max_len: int | None = None
    base: float | None = None
    layout: Literal["interleaved", "halves"] | None = None
    name: str | None = None


class StackInfo(Schema):
    """A stack of layers with the embedding or patch merging before it; all layers have the same settings.

    path: name of the stack's module, a prefix of the names of its tensors. embed: name of the module before
    it. merging: whether that module merges the patches of the stack before. embed_scale: factor of the token
    embeddings. biases: which feed-forward projections have a bias.
    """

    name: StackName
    path: str
    embed: str
    merging: bool
    d_model: int
    embed_scale: float
    sequence: SequenceName
    layers: int
    wiring: Literal["pre", "post", "parallel", "res_post"]
    causal: bool
    window: int | None
    norm: str
    final_norm: bool
    heads: int
    kv_heads: int
    head_dim: int
    d_ff: int
    activation: str
    gated: bool
    biases: tuple[str, ...]
    cross: bool
    position: PositionInfo
    parameters: Mapping[str, int]


class OutputHeadInfo(Schema):
    kind: str
    vocab_size: int | None
    num_labels: int | None
    tied: bool
    bias: bool


class ModelOutline(Schema):
    d_model: int
    stacks: tuple[StackInfo, ...]
    head: OutputHeadInfo


class ImageInfo(Schema):
    """How a model splits an image into patches. patch: height, width. grid: rows, columns."""

    height: int
    width: int
    channels: int
    patch: tuple[int, int]
    grid: tuple[int, int]


class SeriesInfo(Schema):
    """How a forecasting model splits a series into patches."""

    context: int
    horizon: int
    channels: tuple[str, ...]
    patch: int
    stride: int
    scaling: Literal["std", "mean", "none"]


class ModelInfo(Schema):
    """A model as the page lists it.

    load: what `glassformer.load` takes: the name of a shipped model, or of the folder. languages: the target
    languages. examples: example inputs, the default first; empty if there is only one.
    """

    id: str
    name: str
    load: str
    family: str | None
    architecture: Literal[
        "encoder-decoder",
        "encoder-only",
        "decoder-only",
        "two-tower",
        "promptable",
        "diffusion",
        "image-tokens",
    ]
    kind: Kind
    parameters: int
    bytes: int
    labels: tuple[str, ...] | None
    languages: tuple[str, ...] | None
    outline: ModelOutline
    example: TraceInput
    examples: tuple[TraceInput, ...]
    image: ImageInfo | None
    series: SeriesInfo | None


# Traces


class TraceToken(Schema):
    """One position of a sequence.

    piece: readable text. raw: the vocabulary entry. start, end: character offsets in the text of the
    sequence.
    bytes: hex, if the token is part of a character. box: x, y, width, height of an image patch.
    span: first step of a series patch, and one past its last.
    """

    id: int | None = None
    piece: str
    raw: str | None = None
    start: int | None = None
    end: int | None = None
    bytes: str | None = None
    special: bool = False
    box: tuple[int, int, int, int] | None = field(default=None, metadata=OMIT)
    span: tuple[int, int] | None = field(default=None, metadata=OMIT)


class TokenSequence(Schema):
    """The tokens that one stack reads: of a text, patches of an image or series, object queries or prompts.

    grid: rows, columns of patches. prefix: number of added first tokens.
    """

    name: SequenceName
    kind: SequenceKind
    text: str | None = None
    tokens: tuple[TraceToken, ...]
    grid: tuple[int, int] | None = None
    prefix: int = 0

    def __len__(self) -> int:
        return len(self.tokens)


class Stage(Schema):
    """One stage of the data flow. tensors: role at this stage -> name of the recorded tensor."""

    id: str
    kind: Literal[
        "tokens",
        "embedding",
        "merging",
        "position",
        "attention",
        "add_norm",
        "feed_forward",
        "final_norm",
        "head",
    ]
    stack: StackName | None
    layer: int | None
    sequence: SequenceName
    tensors: Mapping[str, str]


class WindowInfo(Schema):
    """Windows of size x size patches of a grid (rows, columns), shifted down and right by `shift` patches."""

    size: int
    shift: int
    grid: tuple[int, int]


class AttentionInfo(Schema):
    """One attention layer. queries, keys: names of the sequences that attend and are attended to.

    window: number of keys of a sliding window. windows: the windows of a 2-D grid, within which patches
    attend. bias_table: name of the tensor of biases by 2-D offset, (H, 2 * rows - 1, 2 * columns - 1).
    """

    name: str
    stack: StackName
    layer: int
    kind: Literal["self", "cross"]
    queries: SequenceName
    keys: SequenceName
    heads: int
    kv_heads: int
    scale: float
    head_dim: int
    biased: bool
    causal: bool
    window: int | None
    windows: WindowInfo | None = None
    bias_table: str | None = None


class Prediction(Schema):
    id: int
    text: str
    probability: float | None = field(default=None, metadata=OMIT)
    logit: float | None = field(default=None, metadata=OMIT)


class TextOutcome(Schema):
    """Generated text. num_tokens: number of generated tokens. finish_reason: end, length or stop."""

    kind: Literal["translate", "generate", "caption"]
    text: str
    num_tokens: int
    finish_reason: str | None


class MaskPredictions(Schema):
    position: int
    predictions: tuple[Prediction, ...]


class FillOutcome(Schema):
    kind: Literal["fill"] = "fill"
    masks: tuple[MaskPredictions, ...]


class EmbeddingOutcome(Schema):
    """An embedding; the vector itself is the tensor `vector_name`."""

    kind: Literal["embed"] = "embed"
    vector_name: str
    dims: int
    norm: float


class LabelProbability(Schema):
    label: str
    probability: float


class LabelsOutcome(Schema):
    """The labels of a classifier, most likely first."""

    kind: Literal["classify", "image", "ask"]
    labels: tuple[LabelProbability, ...]


class AnswerOutcome(Schema):
    """An extracted answer; start, end: character offsets in the context."""

    kind: Literal["answer"] = "answer"
    text: str
    start: int
    end: int
    score: float


class ForecastTensors(Schema):
    """The names of a forecast's tensors, which are (C, steps); quantiles are (C, Q, steps)."""

    past: str
    forecast: str
    truth: str | None = None
    quantiles: str | None = None
    persistence: str


class ForecastOutcome(Schema):
    """A forecast in the units of the columns. past: number of steps read. quantiles: predicted levels."""

    kind: Literal["forecast"] = "forecast"
    columns: tuple[str, ...]
    horizon: int
    past: int
    quantiles: tuple[float, ...] | None
    names: ForecastTensors


class SimilarityOutcome(Schema):
    """The similarity of an image and a text: the cosine of their embeddings, and the model's logit."""

    kind: Literal["similarity"] = "similarity"
    cosine: float
    logit: float


class DetectedBox(Schema):
    """An object that a query found. box: x_min, y_min, x_max, y_max in pixels of the original image."""

    query: int
    label: str
    score: float
    box: tuple[float, float, float, float]


class DetectOutcome(Schema):
    """The objects with a score above 0.5, best first.

    first_query: position of the first query in its sequence. boxes: name of the tensor of the boxes after
    every layer, (layers, queries, 4) as x_min, y_min, x_max, y_max in shares of the image. probabilities:
    name of the tensor of their classes, (layers, queries, labels + 1); the last class is "no object".
    """

    kind: Literal["detect"] = "detect"
    objects: tuple[DetectedBox, ...]
    first_query: int
    boxes: str
    probabilities: str


class SegmentOutcome(Schema):
    """The masks of a prompt, in the order of the task `segment`.

    iou: their predicted IoU. masks: name of the tensor of their logits, (masks, rows, columns), which cover
    the image. size: height, width of the image. encoding_seconds: the time that encoding the image took;
    almost 0 for one that was encoded before.
    """

    kind: Literal["segment"] = "segment"
    iou: tuple[float, ...]
    masks: str
    size: tuple[int, int]
    encoding_seconds: float


class DrawingAttention(Schema):
    """An attention layer of a model that draws. grid: rows and columns of its patches, in one frame.

    kind: "self" attends to patches of the same frame, "time" to the same patch of all frames, and "cross" to
    the prompt; a decoder of codes, whose sequence has both words and patches, is listed as "cross" and as
    "self". The queries, and the keys but of "cross", are those of all frames. first_query: position of the
    first patch among the queries. first_key: of the first patch or word among the keys.
    """

    name: str
    kind: Literal["self", "time", "cross"]
    heads: int
    grid: tuple[int, int]
    first_query: int = 0
    first_key: int = 0


class CodesInfo(Schema):
    """The codes of a picture that is drawn code by code, row by row.

    grid: rows and columns. num_codes: size of the codebook. page: how many codes each tensor `codebook.N`
    (page, h, w, C) has, decoded in the middle of the picture. counts: name of the tensor (num_codes) of how
    often the images of the model's run have each code; None if it has no run.
    """

    grid: tuple[int, int]
    num_codes: int
    page: int
    counts: str | None


class DrawOutcome(Schema):
    """A drawing, by its steps. size: height, width. pictures: the steps whose pictures are shown.

    Of a diffusion model, the steps remove noise, each at one of the timesteps. num_frames: of a video; None
    for an image. The tensor `step.N.frames` is (2, h, w, C), of a video (2, frames, h, w, C): what step N is
    given, and the clean image that it predicts; of the number of steps, the drawing, twice. modulation: name
    of the tensor (layers, 6, steps) of the norms of shift, scale and gate of attention, then of the
    feed-forward layer.

    With codes, each step chooses one. `step.N.frames` is (1, h, w, C), the picture of N codes; the others are
    still zero. `step.N.codes` and `step.N.logprobs` are those chosen before step N, `step.N.probabilities`
    (num_codes) what its code is sampled from, `step.N.candidates` the most likely codes, and `step.N.patches`
    (candidates, h, w, C) what each would paint in its place of the drawing.

    `step.N.` before the names of an attention layer: at this step.
    """

    kind: Literal["draw"] = "draw"
    steps: int
    pictures: tuple[int, ...]
    size: tuple[int, int]
    attentions: tuple[DrawingAttention, ...]
    timesteps: tuple[float, ...] = ()
    num_frames: int | None = None
    modulation: str | None = None
    codes: CodesInfo | None = None


Outcome = (
    TextOutcome
    | FillOutcome
    | EmbeddingOutcome
    | LabelsOutcome
    | AnswerOutcome
    | ForecastOutcome
    | SimilarityOutcome
    | DetectOutcome
    | SegmentOutcome
    | DrawOutcome
)


class TraceInfo(Schema):
    """A trace without its tensors.

    tensors: shapes by name. residual_sites: the sites of the residual stream, by stack. channels: names
    of a series' channels, one batch row each. kernel: the attention kernels that ran. unread: symbols that
    are removed from the text, e.g. emoji outside the vocabulary.
    """

    id: str
    model: str
    kind: Kind
    input: TraceInput
    interventions: tuple[Intervention, ...]
    sequences: tuple[TokenSequence, ...]
    stages: tuple[Stage, ...]
    tensors: Mapping[str, tuple[int, ...]]
    attentions: tuple[AttentionInfo, ...]
    residual_sites: Mapping[str, tuple[str, ...]]
    outcome: Outcome
    channels: tuple[str, ...] | None
    forward_seconds: float
    kernel: str
    unread: tuple[str, ...] = ()


# Views of a trace


class NextTokenInfo(Schema):
    """The model's predictions at one position, best first. logits: name of the tensor of all logits."""

    position: int
    vocab_size: int
    logsumexp: float
    predictions: tuple[Prediction, ...]
    logits: str


class LensLayer(Schema):
    """The predictions of the head after one layer.

    entropy: in nats; None for a regression model. rank_of_final: rank (from 1) of the final prediction.
    """

    site: str
    predictions: tuple[Prediction, ...]
    entropy: float | None
    rank_of_final: int


class LensInfo(Schema):
    position: int
    stack: str
    layers: tuple[LensLayer, ...]


class LogitContribution(Schema):
    """One summand of a logit.

    kind: "bias" is that of an attention layer, "norm" the constant of a norm, "output" that of the output
    head, with what its nonlinearity adds. name: of the tensor or module. layer, head: of a head or sublayer.
    """

    kind: Literal["embedding", "head", "bias", "attention", "ffn", "norm", "output"]
    name: str
    layer: int | None
    head: int | None
    value: float


class LogitAttribution(Schema):
    """The contributions to a logit, in the order of the data flow; see `attribute_logit`.

    position: None for a label of the whole input. against: the prediction whose logit is subtracted. value:
    the logit, or the difference: the sum of all contributions.
    """

    position: int | None
    prediction: Prediction
    against: Prediction | None
    value: float
    contributions: tuple[LogitContribution, ...]


class AttentionSource(Schema):
    """A token that another attends to. weights, value_norms: by head; strength: sum of their products."""

    position: int
    weights: tuple[float, ...]
    value_norms: tuple[float, ...]
    strength: float


class AttentionSources(Schema):
    """The strongest sources of a token in one attention layer. total: strength of all tokens together."""

    name: str
    total: float
    sources: tuple[AttentionSource, ...]


class ActiveUnit(Schema):
    """A feed-forward unit: its activation, and the norm of the vector that it writes."""

    unit: int
    activation: float
    norm: float


class TokenReading(Schema):
    """What the head reads at a token. box: x_min, y_min, x_max, y_max in shares of the image."""

    predictions: tuple[Prediction, ...]
    box: tuple[float, float, float, float] | None = None


class ResidualUpdate(Schema):
    """One change of a token's residual vector.

    stages: the sublayers whose outputs are added, then the sum itself. before, sum, after: names of tensors;
    after is the normed sum in post-norm models, otherwise the sum. before: None for a new vector.
    """

    stages: tuple[str, ...]
    kind: Literal["embedding", "merging", "add_norm", "final_norm"]
    layer: int | None
    before: str | None
    sum: str
    after: str
    attention: AttentionSources | None
    units: tuple[ActiveUnit, ...]
    reading: TokenReading | None


class StackPass(Schema):
    """The way of one token through a stack. vectors: by name of the tensor."""

    stack: StackName
    sequence: SequenceName
    position: int
    updates: tuple[ResidualUpdate, ...]
    vectors: Mapping[str, tuple[float, ...]]


class TokenFlow(Schema):
    """The flow of a token through the stacks of a model, in the order of the data flow.

    sequence, position: the token that was asked for; row: of the batch
    """

    sequence: SequenceName
    position: int
    row: int
    passes: tuple[StackPass, ...]


class FeedForwardUnitInfo(Schema):
    """The tokens whose logits a feed-forward unit raises and lowers most."""

    promotes: tuple[Prediction, ...] = ()
    suppresses: tuple[Prediction, ...] = ()


class HeadInfo(Schema):
    """One head's attention, compared with known patterns.

    scores, chances: by pattern, the head's share of attention and that of uniform attention. role: None if no
    pattern is clear; share and chance are then those of the nearest pattern. entropy in nats; distance in
    tokens (patches on an image; from the diagonal in cross-attention). key: the position that all queries
    attend to, of the roles with one.
    """

    head: int
    scores: Mapping[str, float]
    chances: Mapping[str, float]
    role: str | None
    share: float
    chance: float
    entropy: float
    distance: float
    key: int | None = None


class AttentionHeads(Schema):
    """The heads of one attention layer. sharpness: see `cross_sharpness`; None for self-attention."""

    name: str
    heads: tuple[HeadInfo, ...]
    sharpness: float | None = None


class HeadsInfo(Schema):
    attentions: tuple[AttentionHeads, ...]


class CorpusShare(Schema):
    """A pattern's mean share of attention over the sentences, its 95% confidence interval, and chance."""

    pattern: str
    mean: float
    low: float
    high: float
    chance: float


class CorpusExample(Schema):
    """The strongest link of a head in one sentence."""

    queries: tuple[str, ...]
    keys: tuple[str, ...]
    query: int
    key: int
    weight: float


class CorpusHead(Schema):
    """One head over a corpus. roles: in how many sentences each role was clear. shares: clearest first."""

    head: int
    roles: Mapping[str, int]
    shares: tuple[CorpusShare, ...]
    examples: tuple[CorpusExample, ...]


class CorpusAttention(Schema):
    name: str
    heads: tuple[CorpusHead, ...]


class CorpusInfo(Schema):
    """The patterns of all heads over the first `count` of `total` sentences."""

    count: int
    total: int
    attentions: tuple[CorpusAttention, ...]


AblationMode = Literal["zero", "mean", "resample"]
AblationMetric = Literal["kl", "log_prob"]
AblationMeasure = Literal["kl", "log_prob", "difference"]


class AblationPeak(Schema):
    """The position with the largest effect of a head, and the probability of the token there."""

    position: int | None
    effect: float
    prediction: Prediction
    before: float
    after: float


class HeadAblation(Schema):
    """The effect of replacing the output of each head of an attention layer.

    measure: "kl": KL divergence of the predictions, "log_prob": drop of the log-probability of a token, both
    in nats; "difference": mean absolute change of the output. effects: means over the positions. peaks: None
    if the model predicts no probabilities.
    """

    attention: str
    measure: AblationMeasure
    effects: tuple[float, ...]
    peaks: tuple[AblationPeak | None, ...]


class PatchingSetup(Schema):
    """Two inputs with different outputs, to patch one into the other.

    clean, corrupted: ids of their traces, with the same target up to the position where the outputs differ.
    position: that position; None for a label. answers: the outputs of the clean and the corrupted input.
    differences: logit of the first answer minus logit of the second, for the clean and the corrupted input.
    sites: names of the tensors that can be patched.
    """

    clean: str
    corrupted: str
    position: int | None
    answers: tuple[Prediction, Prediction]
    differences: tuple[float, float]
    sites: tuple[str, ...]


class PatchedSite(Schema):
    """How much of the clean answer comes back if one activation is patched: 0 nothing, 1 all.

    name: of the tensor. recovered: for each token of the corrupted input, or for each head; None for a token
    without a counterpart.
    """

    name: str
    recovered: tuple[float | None, ...]


class HeadLink(Schema):
    """The weight with which one head attends from one token to another."""

    attention: str
    head: int
    weight: float


class LinksInfo(Schema):
    links: tuple[HeadLink, ...]


class OutcomePair(Schema):
    before: Outcome
    after: Outcome


class ProbabilityChange(Schema):
    prediction: Prediction
    before: float
    after: float


class ResidualChange(Schema):
    """The change of a stack's residual stream between two traces; the tensor `name` is (sites, T)."""

    stack: str
    sites: tuple[str, ...]
    name: str


class DifferenceInfo(Schema):
    """The difference between two traces. predictions: largest changes. positions: KL divergences."""

    outcome: OutcomePair
    predictions: tuple[ProbabilityChange, ...]
    kl: float | None
    positions: tuple[float, ...] | None
    residual: tuple[ResidualChange, ...]


class SimilarityInfo(Schema):
    """Images compared with texts. cosines: one row per image. The logits are scale * cosine + bias.

    activation: probabilities are a softmax over the texts, or a sigmoid of each logit.
    """

    cosines: tuple[tuple[float, ...], ...]
    scale: float
    bias: float
    activation: Literal["softmax", "sigmoid"]


class StepInfo(Schema):
    """One generation step: the candidates for the next token, and the tokens generated so far."""

    predictions: tuple[Prediction, ...]
    logsumexp: float
    vocab_size: int
    finished: bool
    position: int
    tokens: tuple[TraceToken, ...]
    text: str


class SearchNodeInfo(Schema):
    """One candidate of a beam search. parent: id of its predecessor. result_rank: rank among the results."""

    id: int
    step: int
    token: int
    logprob: float
    score: float
    length_term: float
    parent: int | None
    rank: int
    state: Literal["kept", "pruned", "finished"]
    reason: str
    result_rank: int | None
    text: str


class SearchResult(Schema):
    rank: int
    text: str
    ids: tuple[int, ...]
    score: float
    reason: str


class SearchInfo(Schema):
    """A beam search as a tree. score_formula: how a finished hypothesis is scored."""

    num_beams: int
    length_penalty: float
    score_formula: str
    nodes: tuple[SearchNodeInfo, ...]
    results: tuple[SearchResult, ...]


# Runs


class Curve(Schema):
    step: tuple[int, ...]
    value: tuple[float, ...]


class CheckpointInfo(Schema):
    """The weights of one step. path: relative to the run folder."""

    step: int
    path: str
    loss: float | None


class SampleInfo(Schema):
    source: str
    reference: str | None
    prediction: str


class ValidationSamples(Schema):
    step: int
    samples: tuple[SampleInfo, ...]


class RunInfo(Schema):
    """A training run.

    running: whether a process is training in the folder. step: the last logged step. example: whether this is
    the small run that ships with the package, shown for models whose training was not recorded.
    """

    id: str
    name: str
    job: str
    running: bool
    step: int
    total_steps: int | None
    curves: Mapping[str, Curve]
    checkpoints: tuple[CheckpointInfo, ...]
    samples: tuple[ValidationSamples, ...]
    example: bool = False


class SnapshotInfo(Schema):
    """A trace of one input with the weights of one step. prediction: the output of these weights."""

    step: int
    trace_id: str
    heads: HeadsInfo
    prediction: str | None
    loss: float | None


class RunSnapshots(Schema):
    """Traces of one input with the weights of several steps of a run. text: the input, if it is text."""

    snapshots: tuple[SnapshotInfo, ...]
    text: str | None = field(default=None, metadata=OMIT)


# Stories


class StoryBar(Schema):
    """A probability, and the same with the head of the story switched off."""

    label: str
    value: float
    changed: float | None = None


class StoryFigure(Schema):
    """What a story shows; what is empty is not drawn.

    tokens, weights: attention of the token at `query` to each token. boxes: x_min, y_min, x_max, y_max in
    shares of the first image, after every layer. images: data URLs; several are the frames of a film. lines:
    values by step; missing ones are None. samples: outputs by training step.
    """

    tokens: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    query: int = 0
    bars: tuple[StoryBar, ...] = ()
    images: tuple[str, ...] = ()
    boxes: tuple[tuple[tuple[float, float, float, float], ...], ...] = ()
    lines: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)
    samples: tuple[tuple[int, str], ...] = ()


class StoryInfo(Schema):
    """A fact about a shipped model, found on its weights: one line of text, a figure and a view.

    title, text, switch: by language; the switch makes the changes of the story; empty if there are none.
    address: of the view, such as `#/pocket/model?at=...`.
    """

    id: str
    model: str
    title: Mapping[str, str]
    text: Mapping[str, str]
    address: str
    input: TraceInput = TraceInput()
    figure: StoryFigure = StoryFigure()
    switch: Mapping[str, str] = field(default_factory=dict)
    changes: tuple[AblateHead, ...] = ()


def to_json(value: Any) -> Any:
    """Convert dataclasses, tuples and mappings to JSON values; NaN and infinity become null."""
    return convert_json(value, _plain)


def _plain(value: Any) -> Any:
    if not is_dataclass(value):
        return None if is_not_finite(value) else value
    items = ((field, getattr(value, field.name)) for field in fields(value))
    return {field.name: item for field, item in items if item is not None or field.metadata != OMIT}
