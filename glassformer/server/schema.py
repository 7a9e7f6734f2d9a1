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
MAX_BIASES = 1024
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
Count = Annotated[int, Field(ge=0, lt=2**31)]
NewTokens = Annotated[int, Field(ge=1, lt=2**31)]  # bounded by the model
TopP = Annotated[float, Field(gt=0, le=1)]
MinP = Annotated[float, Field(ge=0, le=1)]
RepetitionPenalty = Annotated[float, Field(ge=0.01, le=100)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
LogitBias = Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], Field(max_length=MAX_BIASES)]
FinishReason = Literal["stop", "length"]
# names of these keys in other libraries, too different for a spelling suggestion
SYNONYMS = {
    **dict.fromkeys(("tag", "lang", "language", "target_lang", "target_language"), "to"),
    **dict.fromkeys(
        ("guided_json", "guided_choice", "guided_regex", "guided_grammar", "structured_outputs"),
        "response_format",
    ),
}


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
    """include_usage: end with an event that counts the tokens. `include_obfuscation` has no effect."""

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

    Unsupported parameters are rejected, not ignored; `user`, `metadata`, `store` and `service_tier` have no
    effect. Penalties apply to generated tokens, and `logit_bias` maps token ids to biases.
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
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: LogitBias | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    store: bool | None = None
    service_tier: Annotated[str, Field(max_length=64)] | None = None
    top_k: Count | None = None
    min_p: MinP | None = None
    repetition_penalty: RepetitionPenalty | None = None


class CompletionRequest(GenerationRequest):
    """POST /v1/completions, as OpenAI defines it. max_tokens: by default 16.

    `to`, the target language of a multilingual model, and `response_format` are extensions.
    """

    prompt: Prompt
    to: Language | None = None
    max_tokens: NewTokens | None = None
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


class ImageUrl(RequestModel):
    """An image. url: data:image/...;base64, because remote images are not fetched.

    detail: low reads the image as a single tile; high and auto as the model's folder says.
    """

    url: Annotated[str, Field(max_length=MAX_IMAGE)]
    detail: Literal["auto", "low", "high"] | None = "auto"


class ImagePart(RequestModel):
    type: Literal["image_url"]
    image_url: ImageUrl


MessagePart = Annotated[TextPart | ImagePart, Field(discriminator="type")]


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
    content: Text | Annotated[list[MessagePart], Field(max_length=MAX_TEXTS)] | None = None
    name: Annotated[str, Field(max_length=200)] | None = None
    tool_calls: Annotated[list[ToolCall], Field(max_length=MAX_TEXTS)] | None = None
    tool_call_id: Annotated[str, Field(max_length=200)] | None = None
    refusal: Text | None = None


class ChatCompletionRequest(GenerationRequest):
    """POST /v1/chat/completions, as OpenAI defines it.

    Tools and tool calls are passed to the chat template; calls in the answer are part of its text.
    `documents` and `chat_template_kwargs`, further variables of the template, are extensions.
    `parallel_tool_calls` has no effect.
    """

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES)]
    max_completion_tokens: NewTokens | None = None
    max_tokens: NewTokens | None = None
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
    """POST /v1/embeddings, as OpenAI defines it.

    dimensions: the first ones of each vector, scaled to length 1, for models trained for it (Matryoshka).
    """

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


PointXY = Annotated[list[float], Field(min_length=2, max_length=2)]
BoxXYXY = Annotated[list[float], Field(min_length=4, max_length=4)]


class Health(BaseModel):
    status: Literal["ok"] = "ok"
