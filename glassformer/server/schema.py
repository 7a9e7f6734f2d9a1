"""The bodies that clients send: closed, so that a misspelt key is told and never ignored."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from glassformer.server.limits import (
    BEAMS,
    CHOICES,
    COLUMNS,
    IDS,
    IMAGE_LETTERS,
    IMAGES,
    LETTERS,
    STEPS,
    STOP_LETTERS,
    STOPS,
    TEXTS,
    TOKENS,
    TOP,
)

Text = Annotated[str, Field(max_length=LETTERS)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=TEXTS)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Id], Field(min_length=1, max_length=IDS)]
Prompt = Text | Texts | Ids | Annotated[list[Ids], Field(min_length=1, max_length=TEXTS)]
ModelName = Annotated[str, Field(min_length=1, max_length=200)]
Stop = Annotated[str, Field(min_length=1, max_length=STOP_LETTERS)]
Language = Annotated[str, Field(min_length=1, max_length=32)]
# What others call a word of ours, and no likeness of letters would find.
MEANT = dict.fromkeys(("tag", "lang", "language", "target_lang", "target_language"), "to")
LEAST = 0.001  # of a temperature; below, what is divided by it is no number any more
Seed = Annotated[int, Field(ge=0, lt=2**63)]


class Closed(BaseModel):
    """A body of known keys; another is refused, and the nearest known one named."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        if isinstance(given, dict):
            names = {field.alias or name for name, field in cls.model_fields.items()}
            for name in given:
                if name not in names:
                    meant = {MEANT.get(str(name))} & names
                    near = [*meant] or get_close_matches(str(name)[:100], names, 1)
                    hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(sorted(names))}"
                    raise PydanticCustomError(
                        "unknown_key",
                        "'{name}' is not known; {hint}",
                        {"name": str(name)[:100], "hint": hint},
                    )
        return given


class StreamOptions(Closed):
    """What a stream tells beside the text."""

    include_usage: bool = False
    include_obfuscation: bool = False


class Completion(Closed):
    """POST /v1/completions, as OpenAI describes it; what is not done here is refused, not ignored.

    temperature 0 takes the likeliest token at every step; where it is not given the model's folder says, else
    it is 1. top_k, min_p and repetition_penalty are ours, and so is `to`: the language that a translator
    writes, where it knows several.
    """

    model: ModelName | None = None
    prompt: Prompt
    to: Language | None = None
    max_tokens: Annotated[int, Field(ge=1, le=TOKENS)] | None = 16
    temperature: Literal[0] | Annotated[float, Field(ge=LEAST, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    n: Annotated[int, Field(ge=1, le=CHOICES)] | None = 1
    best_of: Annotated[int, Field(ge=1, le=CHOICES)] | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS)] | None = None
    seed: Seed | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None
    echo: bool | None = False
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = 0.0
    logit_bias: dict[str, float] | None = None
    suffix: Text | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None


class Embeddings(Closed):
    """POST /v1/embeddings, as OpenAI describes it."""

    model: ModelName | None = None
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = "float"
    dimensions: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    user: Annotated[str, Field(max_length=1000)] | None = None


class DecodingWords(Closed):
    """How it is written: the settings of decoding that a request may choose."""

    max_new_tokens: Annotated[int, Field(ge=1, le=TOKENS)] | None = None
    min_new_tokens: Annotated[int, Field(ge=0, le=TOKENS)] | None = None
    num_beams: Annotated[int, Field(ge=1, le=BEAMS)] | None = None
    do_sample: bool | None = None
    temperature: Annotated[float, Field(ge=LEAST, le=100)] | None = None
    top_k: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=0.01, le=100)] | None = None
    no_repeat_ngram_size: Annotated[int, Field(ge=0, le=TOKENS)] | None = None
    length_penalty: Annotated[float, Field(ge=-10, le=10)] | None = None
    length_formula: Literal["hf", "fairseq", "paper"] | None = None
    early_stopping: bool | Literal["never"] | None = None
    seed: Seed | None = None
    stop: Stop | Annotated[list[Stop], Field(max_length=STOPS)] | None = None

    def settings(self) -> dict[str, Any]:
        """The settings given, as the verbs take them."""
        return self.model_dump(include=set(DecodingWords.model_fields), exclude_none=True)


class Translate(DecodingWords):
    """POST /translate: `text` or `texts`, and how to write."""

    model: ModelName | None = None
    text: Text | None = None
    texts: Texts | None = None
    to: Language | None = None
    prefix: Annotated[str, Field(max_length=1000)] | None = None
    split: Literal["long", "always", "never"] | None = None


class Classify(Closed):
    """POST /classify: `texts`, or `images` as data: URLs or base64 of PNG or JPEG files."""

    model: ModelName | None = None
    texts: Texts | None = None
    images: (
        Annotated[
            list[Annotated[str, Field(min_length=1, max_length=IMAGE_LETTERS)]],
            Field(min_length=1, max_length=IMAGES),
        ]
        | None
    ) = None
    top: Annotated[int, Field(ge=1, le=100_000)] | None = None
    truncate: bool = False


Name = Annotated[str, Field(min_length=1, max_length=200)]
Values = Annotated[list[Annotated[float, Field(ge=-1e30, le=1e30)]], Field(min_length=1, max_length=STEPS)]


class Series(Closed):
    """Columns of numbers, equally long, the oldest first; ds: when each was."""

    columns: Annotated[dict[Name, Values], Field(min_length=1, max_length=COLUMNS)]
    ds: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=STEPS)] | None = None


class Forecast(Closed):
    """POST /forecast: the series so far; fill: what becomes of stamps that are missing or repeated."""

    model: ModelName | None = None
    series: Series
    fill: Literal["refuse", "linear", "last", "ignore"] = "refuse"
    levels: (
        Annotated[list[Annotated[float, Field(gt=0, lt=1)]], Field(min_length=1, max_length=19)] | None
    ) = None
