"""The HTTP schema: request and response bodies. Unknown keys in a request are errors."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

MAX_CHARACTERS = 100_000  # of one text
MAX_TEXTS = 256  # of one request
MAX_IDS = 32_768  # of one prompt
MAX_CHOICES = 16  # of one prompt
MAX_MESSAGES = 2048  # of one conversation
MAX_NEW_TOKENS = 4096
MAX_IMAGE = 24 << 20  # characters of base64
MAX_COLUMNS, MAX_STEPS = 1024, 100_000  # of a series
MIN_TEMPERATURE = 0.001  # dividing logits by less would overflow

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
TokenIds = Annotated[list[TokenId], Field(min_length=1, max_length=MAX_IDS)]
Prompt = Text | Texts | TokenIds | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_TEXTS)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Stops = Stop | Annotated[list[Stop], Field(max_length=4)]
Language = Annotated[str, Field(min_length=1, max_length=32)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Image = Annotated[str, Field(min_length=1, max_length=MAX_IMAGE)]
Images = Annotated[list[Image], Field(min_length=1, max_length=32)]
ColumnName = Annotated[str, Field(min_length=1, max_length=200)]
Column = Annotated[
    list[Annotated[float, Field(ge=-1e30, le=1e30)]], Field(min_length=1, max_length=MAX_STEPS)
]
TopK = Annotated[int, Field(ge=0, lt=2**31)]
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
FinishReason = Literal["stop", "length"]
# names of these keys in other libraries, too different for a spelling suggestion
SYNONYMS = dict.fromkeys(("tag", "lang", "language", "target_lang", "target_language"), "to")


class RequestModel(BaseModel):
    """A request body. An unknown key is an error with a suggestion."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, body: Any) -> Any:
        known = [field.alias or name for name, field in cls.model_fields.items()]
        for key in body if isinstance(body, dict) else ():
            if key not in known:
                key = str(key)[:100].encode("utf-8", "replace").decode()
                synonym = SYNONYMS.get(key)
                close = [synonym] if synonym in known else get_close_matches(key, known, 1)
                hint = f"did you mean {close[0]}?" if close else f"known keys are {', '.join(known)}"
                raise PydanticCustomError(
                    "unknown_key", "unknown key '{key}'; {hint}", {"key": key, "hint": hint}
                )
        return body


# OpenAI's routes


class StreamOptions(RequestModel):
    include_usage: bool = False
    include_obfuscation: bool = False


class TextFormat(RequestModel):
    type: Literal["text"]


class JSONObjectFormat(RequestModel):
    """The output is a JSON object."""

    type: Literal["json_object"]


class NamedSchema(RequestModel):
    """A JSON schema. strict: accepted; schemas are always enforced."""

    name: Annotated[str, Field(max_length=64)]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]
    description: Text | None = None
    strict: bool | None = None


class JSONSchemaFormat(RequestModel):
    """The output is JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: NamedSchema


ResponseFormat = Annotated[TextFormat | JSONObjectFormat | JSONSchemaFormat, Field(discriminator="type")]


class GenerationRequest(RequestModel):
    """Parameters of both completion routes, as OpenAI defines them.

    Unsupported parameters are rejected, not ignored; `user`, `metadata` and `store` have no effect.
    Temperature 0 means greedy decoding; the default comes from the model folder, else it is 1. `top_k`,
    `min_p` and `repetition_penalty` are extensions.
    """

    model: ModelName | None = None
    temperature: Literal[0] | Annotated[float, Field(ge=MIN_TEMPERATURE, le=2)] | None = None
    top_p: TopP | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = 1
    stop: Stops | None = None
    seed: Seed | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    logit_bias: dict[str, float] | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    store: bool | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions, as OpenAI defines it.

    `to`, the target language of a multilingual model, and `response_format` are extensions.
    """

    prompt: Prompt
    to: Language | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = 16
    best_of: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None
    echo: bool | None = False
    suffix: Text | None = None


class Logprobs(BaseModel):
    """Log-probabilities of the generated tokens. text_offset: character offset of each token."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class CompletionChoice(BaseModel):
    """One generated text, or its next piece in a stream."""

    text: str
    index: int
    logprobs: Logprobs | None = None
    finish_reason: FinishReason | None


class Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionResponse(BaseModel):
    """A completion, or one event of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | None = None


class TextPart(RequestModel):
    type: Literal["text"]
    text: Text


class FunctionCall(RequestModel):
    """arguments: a JSON object, as text."""

    name: Annotated[str, Field(max_length=200)]
    arguments: Text


class ToolCall(RequestModel):
    id: Annotated[str, Field(max_length=200)]
    type: Literal["function"]
    function: FunctionCall


class Tool(RequestModel):
    type: Literal["function"]
    function: dict[str, Any]


class ChatMessage(RequestModel):
    """A message of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Text | Annotated[list[TextPart], Field(max_length=MAX_TEXTS)] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TEXTS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None
    refusal: Text | None = None


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions, as OpenAI defines it.

    Tools and tool calls are passed to the chat template; calls in the answer are part of its text.
    `documents` and `chat_template_kwargs`, further variables of the template, are extensions.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    documents: Annotated[list[dict[str, Any]], Field(max_length=MAX_TEXTS)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class TopLogprob(BaseModel):
    """A token with its UTF-8 bytes, which may be a part of a character."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of the generated tokens."""

    content: list[TokenLogprob]


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletionResponse(BaseModel):
    """A chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage | None = None


class MessageDelta(BaseModel):
    role: Literal["assistant"] | None = None
    content: str | None = None


class ChatChunkChoice(BaseModel):
    """The next piece of an answer."""

    index: int
    delta: MessageDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None


class ChatCompletionChunk(BaseModel):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | None = None


class EmbeddingRequest(RequestModel):
    """POST /v1/embeddings, as OpenAI defines it."""

    model: ModelName | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None


class Embedding(BaseModel):
    """The vector of one input, as a list of numbers or as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingResponse(BaseModel):
    """The vectors in the order of the inputs."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: Usage


class ModelCard(BaseModel):
    """A served model, as OpenAI lists it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "glassformer"


class ModelList(BaseModel):
    object: Literal["list"] = "list"
    data: list[ModelCard]


# Tasks


class GenerationParameters(RequestModel):
    """Generation parameters, under the library's names."""

    max_new_tokens: Annotated[int, Field(ge=1, le=MAX_NEW_TOKENS)] | None = None
    min_new_tokens: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    num_beams: Annotated[int, Field(ge=1, le=16)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=MIN_TEMPERATURE, le=100)] | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=MAX_NEW_TOKENS)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    length_formula: Literal["hf", "fairseq", "paper"] | None = None
    early_stopping: bool | Literal["never"] | None = None
    seed: Seed | None = None
    stop_strings: Stops | None = None

    def generation_options(self) -> dict[str, Any]:
        """Return the parameters that were set, as keyword arguments of the library."""
        return self.model_dump(include=set(GenerationParameters.model_fields), exclude_none=True)


class TranslateRequest(GenerationParameters):
    """POST /translate: `text` or `texts`, and generation parameters."""

    model: ModelName | None = None
    text: Text | None = None
    texts: Texts | None = None
    to: Language | None = None
    prefix: Annotated[str, Field(max_length=1000)] | None = None
    split: Literal["long", "always", "never"] | None = None


class Translation(BaseModel):
    """One translation. score: its log-probability; warnings: why it may be wrong."""

    text: str
    score: float
    num_tokens: int
    finish_reason: Literal["end", "length", "stop"]
    warnings: list[str]


class TranslateResponse(BaseModel):
    """The translations in the order of the texts."""

    model: str
    translations: list[Translation]


class ClassifyRequest(RequestModel):
    """POST /classify: `texts`, or `images` as data: URLs or base64 of PNG or JPEG files.

    text_pairs: the second text of each pair, as many as `texts`.
    labels: names of the classes of images, for a model with an image and a text tower (zero-shot).
    template: text with {} in place of a label, by default "a photo of a {}"; several are averaged.
    """

    model: ModelName | None = None
    texts: Texts | None = None
    text_pairs: Texts | None = None
    images: Images | None = None
    labels: Texts | None = None
    template: Text | Annotated[list[Text], Field(min_length=1, max_length=100)] | None = None
    top: Annotated[int, Field(ge=1, le=100_000)] | None = None
    truncate: bool = False


class LabelScore(BaseModel):
    label: str
    score: float


class ClassifyResponse(BaseModel):
    """The labels of each input, the most likely first. warnings: how images differ from the training data."""

    model: str
    results: list[list[LabelScore]]
    warnings: list[str]


class EmbedRequest(RequestModel):
    """POST /embed: `texts`, or `images` as data: URLs or base64 of PNG or JPEG files."""

    model: ModelName | None = None
    texts: Texts | None = None
    images: Images | None = None
    truncate: bool = False


class EmbedResponse(BaseModel):
    """The vectors in the order of the inputs."""

    model: str
    vectors: list[list[float]]


class SimilarRequest(RequestModel):
    """POST /similar: rank candidates by the cosine similarity of their vectors to each query.

    Queries are `texts` or `images`, candidates are `candidate_texts` or `candidate_images`; a model with an
    image and a text tower compares both kinds.
    """

    model: ModelName | None = None
    texts: Texts | None = None
    images: Images | None = None
    candidate_texts: Texts | None = None
    candidate_images: Images | None = None
    top: Annotated[int, Field(ge=1, le=100_000)] | None = None
    truncate: bool = False


class SimilarMatch(BaseModel):
    """A candidate by its index, and its cosine similarity."""

    index: int
    score: float


class SimilarResponse(BaseModel):
    """The candidates for each query, the most similar first."""

    model: str
    results: list[list[SimilarMatch]]


class DetectRequest(RequestModel):
    """POST /detect: `images` as data: URLs or base64 of PNG or JPEG files.

    threshold: minimum score of an object.
    """

    model: ModelName | None = None
    images: Images
    threshold: Annotated[float, Field(ge=0, le=1)] = 0.5


class DetectedObject(BaseModel):
    """An object. box: x_min, y_min, x_max, y_max in pixels of the image."""

    label: str
    score: float
    box: tuple[float, float, float, float]


class DetectResponse(BaseModel):
    """The objects of each image, the highest score first."""

    model: str
    results: list[list[DetectedObject]]


PointXY = Annotated[list[float], Field(min_length=2, max_length=2)]
BoxXYXY = Annotated[list[float], Field(min_length=4, max_length=4)]


class SegmentRequest(RequestModel):
    """POST /segment: an `image` as data: URL or base64 of a PNG or JPEG file.

    For a promptable model, points or boxes in pixels. points: inside one object. background_points: outside
    of it. boxes: each around an object. everything: segment everything, with a grid of points_per_side^2
    points (default: 32^2). multimask_output: three masks per prompt; by default for a single point.
    For the other models: mode, by default what the model was trained for; threshold: minimum score
    (default: 0.5); stuff_classes: classes that are merged into one segment in panoptic mode.
    """

    model: ModelName | None = None
    image: Image
    points: Annotated[list[PointXY], Field(max_length=64)] = []
    background_points: Annotated[list[PointXY], Field(max_length=64)] = []
    boxes: Annotated[list[BoxXYXY], Field(max_length=64)] = []
    everything: bool = False
    points_per_side: Annotated[int, Field(ge=1, le=64)] | None = None
    multimask_output: bool | None = None
    mode: Literal["semantic", "instance", "panoptic"] | None = None
    threshold: Annotated[float, Field(ge=0, le=1)] | None = None
    stuff_classes: Annotated[list[Annotated[str, Field(max_length=200)]], Field(max_length=1000)] = []


class RunLengths(BaseModel):
    """A mask as COCO's run lengths: `size` is height and width, `counts` the compressed runs by column."""

    size: tuple[int, int]
    counts: str


class SegmentedObject(BaseModel):
    """A mask. score: its predicted IoU for a prompt, else the score of the segment; null for a class.

    box: x_min, y_min, x_max, y_max in pixels; null for an empty mask.
    """

    label: str
    score: float | None
    box: tuple[float, float, float, float] | None
    mask: RunLengths


class SegmentResponse(BaseModel):
    """The masks of the first prompt, the best first, then those of the next one; or all segments.

    After a single point, the best mask is the largest whose predicted IoU is within 0.05 of the highest.
    """

    model: str
    results: list[SegmentedObject]


class NerRequest(RequestModel):
    """POST /ner: texts in which to find named entities."""

    model: ModelName | None = None
    texts: Texts
    aggregation_strategy: Literal["none", "simple", "first"] | None = None
    truncate: bool = False


class EntitySpan(BaseModel):
    """An entity. start, end: character offsets."""

    label: str
    score: float
    start: int
    end: int
    text: str


class NerResponse(BaseModel):
    """The entities of each text."""

    model: str
    results: list[list[EntitySpan]]


class Series(RequestModel):
    """Columns of equal length, the oldest value first. timestamps: one per row, or none."""

    columns: Annotated[dict[ColumnName, Column], Field(min_length=1, max_length=MAX_COLUMNS)]
    timestamps: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=MAX_STEPS)] | None = (
        None
    )


class ForecastRequest(RequestModel):
    """POST /forecast: the series so far. fill: how to fill missing values and timestamps."""

    model: ModelName | None = None
    series: Series
    fill: Literal["error", "linear", "last", "ignore"] = "error"
    quantile_levels: (
        Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1, max_length=19)] | None
    ) = None


class ForecastResponse(BaseModel):
    """The forecast by column. quantiles: predicted quantiles by column and level."""

    model: str
    columns: list[str]
    timestamps: list[str]
    values: dict[str, list[float]]
    quantiles: dict[str, dict[str, list[float]]] | None
    warnings: list[str]


class Health(BaseModel):
    status: Literal["ok"] = "ok"
