"""Request and response bodies of the task routes, made from the declarations."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, Field, create_model

from glassformer.data.image_files import decode_base64
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError
from glassformer.processors.image_text import PlainText
from glassformer.schema import union_members
from glassformer.server.schema import (
    MAX_COLUMNS,
    MAX_STEPS,
    MAX_TEXTS,
    Column,
    ColumnName,
    Image,
    Images,
    ModelName,
    RequestModel,
    Text,
    Texts,
)
from glassformer.tasks import registry
from glassformer.tasks.base import RejectedInputError
from glassformer.tasks.generation_options import GenerationTaskOptions
from glassformer.tasks.registry import REQUIRED, Option, TaskSpec, options_of
from glassformer.tasks.results import GeneratedResult

# kinds of which a request has one input
SINGLE = (registry.MARKED_IMAGE, registry.PROMPT_OR_CLASS, registry.SERIES_TABLE)
MAX_LENGTH, MAX_ITEMS = 1000, 1000  # of a text and a list without other bounds
Values = Annotated[list[float], Field(min_length=1, max_length=MAX_STEPS)]
SeriesValues = (
    Values
    | Annotated[list[Annotated[list[float], Field(max_length=MAX_COLUMNS)]], Field(max_length=MAX_STEPS)]
)


class GenerationParametersBase(RequestModel):
    """Generation parameters, under the library's names."""

    def generation_options(self) -> dict[str, Any]:
        """Return the parameters that were set, as keyword arguments of the library."""
        return self.model_dump(include=set(GENERATION), exclude_none=True)


class Series(RequestModel):
    """Columns of equal length, the oldest value first. timestamps: one per row, or none."""

    columns: Annotated[dict[ColumnName, Column], Field(min_length=1, max_length=MAX_COLUMNS)]
    timestamps: Annotated[list[Annotated[str, Field(max_length=40)]], Field(max_length=MAX_STEPS)] | None = (
        None
    )


class RequestInputs(NamedTuple):
    """The inputs of a request. modalities: theirs and those of a collection. options: that they set."""

    items: list[Any]
    modalities: frozenset[str]
    options: Mapping[str, Any]


@cache
def request_model(spec: TaskSpec) -> type[RequestModel]:
    """Return the class of a request."""
    declared: dict[str, Any] = {"model": (ModelName | None, None), **_input_fields(spec)}
    for option in spec.all_options:
        if option.metadata.get("collection"):
            declared |= _either(f"{_singular(option.name)}_texts", f"{_singular(option.name)}_images")
        elif option.is_on("route"):
            declared[option.name] = option_field(option)
    text = f"POST /{spec.name}: {spec.summary[0].lower()}{spec.summary[1:]} {spec.description}".strip()
    return create_model(f"{_class_name(spec)}Request", __base__=RequestModel, __doc__=text, **declared)


@cache
def response_model(spec: TaskSpec) -> type[BaseModel]:
    """Return the class of a response: the model, and a result for each input or that of the only one."""
    hints = get_type_hints(spec.result)
    names = list(spec.result.__dataclass_fields__)  # type: ignore[attr-defined]
    only = spec.result_field
    if spec.inputs == registry.MARKED_IMAGE:
        declared = {spec.results: (hints[only] if only else spec.result, ...)}
    elif spec.inputs in SINGLE:
        declared = {name: (hints[name], ...) for name in names}
    else:
        declared = {spec.results: (list[hints[only] if only else spec.result], ...)}  # type: ignore[misc]
        if only and "warnings" in names:
            declared["warnings"] = (list[str], ...)
    return create_model(
        f"{_class_name(spec)}Response",
        __doc__=spec.result.__doc__,
        model=(str, ...),
        **declared,  # type: ignore[call-overload]
    )


GENERATION = {
    option.name: option
    for option in options_of(GenerationTaskOptions)
    if option.owner and option.is_on("route")
}


def generation_parameters() -> Any:
    """Return the class of a request with generation parameters."""
    declared: dict[str, Any] = {name: option_field(option) for name, option in GENERATION.items()}
    return create_model(
        "GenerationParameters",
        __base__=GenerationParametersBase,
        __doc__=GenerationParametersBase.__doc__,
        **declared,
    )


def _class_name(spec: TaskSpec) -> str:
    return spec.name.title().replace("_", "")


def _singular(name: str) -> str:
    return name.removesuffix("s")


def _either(*names: str) -> dict[str, Any]:
    kinds = [Images if name.endswith("images") else Texts for name in names]
    return {name: (kind | None, None) for name, kind in zip(names, kinds, strict=True)}


def _input_fields(spec: TaskSpec) -> dict[str, Any]:
    """Return the fields with the inputs."""
    match spec.inputs:
        case registry.TEXT | registry.PROMPT if issubclass(spec.result, GeneratedResult):
            return {_singular(spec.argument): (Text | None, None), spec.argument: (Texts | None, None)}
        case registry.QUESTION:
            return {"questions": (Texts, ...), "context": (Text | None, None), **_either("contexts")}
        case registry.IMAGE:
            return {"images": (Images, ...)}
        case registry.IMAGE_QUESTION:
            one: dict[str, Any] = {"image": (Image | None, None), "question": (Text | None, None)}
            return {**one, **_either("images", "questions")}
        case registry.MARKED_IMAGE:
            return {"image": (Image, ...)}
        case registry.TEXT_OR_IMAGE:
            return _either("texts", "images")
        case registry.SAMPLE:
            many: Any = Annotated[list[SeriesValues], Field(min_length=1, max_length=MAX_TEXTS)]
            return {**_either("texts", "text_pairs", "images"), "series": (many | None, None)}
        case registry.PROMPT_OR_CLASS:
            return {"prompt": (Text, ...)}
        case registry.SERIES_TABLE:
            return {"series": (Series, ...)}
    return {spec.argument: (Texts, ...)}


def option_field(option: Option) -> Any:
    """Return the type and default of an option in a request."""
    if option.metadata.get("is_image"):
        return Image | None, Field(None, description=f"{option.help.rstrip('.')}, in base64.")
    default = None if option.default is REQUIRED else option.default
    default = list(default) if isinstance(default, tuple) else default
    kinds = [_bounded(kind, option) for kind in union_members(option.hint) if kind not in (Any, type(None))]
    if default is None:
        kinds.append(type(None))
    kind: Any = Union[tuple(kinds)]  # noqa: UP007
    required = option.default is REQUIRED
    return kind, Field(... if required else default, description=option.help)


def _bounded(kind: Any, option: Option) -> Any:
    """Return a type with the bounds of an option."""
    more, origin, arguments = option.metadata, get_origin(kind), get_args(kind)
    if kind is bool or origin is Literal:
        return kind
    if kind in (int, float):
        return Annotated[kind, Field(**_interval(option, kind))]
    if kind is str:
        return Annotated[str, Field(min_length=1, max_length=more.get("max_length", MAX_LENGTH))]
    if origin is tuple and arguments[-1] is not Ellipsis:  # e.g. a point
        return Annotated[list[float], Field(min_length=len(arguments), max_length=len(arguments))]
    if origin in (Sequence, tuple):
        if get_args(arguments[0]) == (int, float):  # numbers by id
            number: Any = Annotated[float, Field(**_interval(option, float))]
            return Annotated[dict[str, number], Field(max_length=more.get("max_items", MAX_ITEMS))]
        item: Any = _bounded(arguments[0], option)
        many: Any = Annotated[list[item], Field(max_length=more.get("max_items", MAX_ITEMS))]
        return item | many if more.get("single") else many
    raise TypeError(f"{option.name}: no request type for {kind}")


def _interval(option: Option, kind: type) -> dict[str, Any]:
    """Return the bounds of a number as arguments of a field."""
    interval = option.interval or "(-inf, inf)"
    low, high = (float(end) for end in interval[1:-1].split(","))
    low, high = option.metadata.get("min", low), option.metadata.get("max", high)
    if kind is int:
        high = high if math.isfinite(high) else 2**31 - 1
    bounds: dict[str, Any] = {}
    if math.isfinite(low):
        closed = interval[0] == "[" or "min" in option.metadata
        bounds["ge" if closed else "gt"] = kind(low)
    if math.isfinite(high):
        closed = interval[-1] == "]" or "max" in option.metadata or kind is int
        bounds["le" if closed else "lt"] = kind(high)
    return bounds


def read_request(spec: TaskSpec, body: Any) -> RequestInputs:
    """Return the inputs and options of a request."""
    names = {option.name for option in spec.all_options}
    options = body.model_dump(include=names, exclude_unset=True, exclude_none=True)
    kinds: set[str] = set()
    for option in spec.all_options:
        if option.metadata.get("is_image") and option.name in options:
            options[option.name] = decode_base64(options[option.name])
        if option.metadata.get("collection"):
            texts, images = f"{_singular(option.name)}_texts", f"{_singular(option.name)}_images"
            _check_one_of(body, texts, images)
            kinds.add("text" if getattr(body, images) is None else "image")
            options[option.name] = _texts(getattr(body, texts)) or _images(getattr(body, images))
    match spec.inputs:
        case registry.TEXT | registry.PROMPT if issubclass(spec.result, GeneratedResult):
            _check_one_of(body, _singular(spec.argument), spec.argument)
            single = getattr(body, _singular(spec.argument))
            items = getattr(body, spec.argument) if single is None else [single]
        case registry.QUESTION:
            _check_one_of(body, "context", "contexts")
            contexts = body.contexts or [body.context] * len(body.questions)
            items = _pairs("contexts", body.questions, contexts, "questions")
        case registry.IMAGE:
            items = _images(body.images)
        case registry.IMAGE_QUESTION:
            _check_one_of(body, "image", "images")
            _check_one_of(body, "question", "questions")
            files = _images(body.images or [body.image])
            items = spec.join_pairs(files, body.questions or [body.question])
            return RequestInputs(items, frozenset({"image", "text"}), options)
        case registry.MARKED_IMAGE:
            items = [decode_base64(body.image)]
        case registry.TEXT_OR_IMAGE | registry.SAMPLE:
            forms = ("texts", "images", "series") if spec.inputs == registry.SAMPLE else ("texts", "images")
            kind = _check_one_of(body, *forms)
            items = getattr(body, kind)
            items = _images(items) if kind == "images" else _texts(items) if kind == "texts" else items
            if getattr(body, "text_pairs", None) is not None:
                items = _pairs("text_pairs", items, body.text_pairs, kind)
            return RequestInputs(
                items, frozenset({*kinds, kind.removesuffix("s") if kind != "series" else kind}), options
            )
        case registry.PROMPT_OR_CLASS:
            return RequestInputs([PlainText(body.prompt)], frozenset(), options)
        case registry.SERIES_TABLE:
            items = [body.series]
        case _:
            items = getattr(body, spec.argument)
    return RequestInputs(items, frozenset({*kinds, spec.inputs.modalities[0]}), options)


def _check_one_of(body: Any, *names: str) -> str:
    """Return the name of the only field of these that a request has."""
    given = [name for name in names if getattr(body, name) is not None]
    if not given:
        raise MissingValueError(" or ".join(names), "as the input")
    if len(given) > 1:
        raise ConflictError(given, "a request must have only one of them")
    return given[0]


def _pairs(name: str, firsts: list[Any], seconds: list[str], first_name: str) -> list[Any]:
    if len(firsts) != len(seconds):
        expected = f"{len(firsts)}, as many as {first_name}"
        raise InvalidValueError(name, f"{len(seconds)} texts", expected)
    return list(zip(firsts, seconds, strict=True))


def _texts(texts: list[str] | None) -> list[str]:
    """Return texts that no task takes for the paths of images."""
    return [PlainText(text) for text in texts or ()]


def _images(images: list[str] | None) -> list[bytes]:
    """Decode images from base64; an error has the number of the image."""
    contents = []
    for number, image in enumerate(images or (), 1):
        try:
            contents.append(decode_base64(image))
        except InvalidValueError as error:
            raise RejectedInputError("image", number, error) from None
    return contents
