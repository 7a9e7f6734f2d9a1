"""OpenAI-compatible routes of images: /v1/images/generations and /v1/images/edits."""

from __future__ import annotations

import base64
import io
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.message import Message
from email.parser import BytesHeaderParser
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field, ValidationError

from glassformer.errors import InvalidValueError, MissingValueError
from glassformer.server.models import ModelRegistry, without_errors
from glassformer.server.schema import ModelName, RequestModel, Seed
from glassformer.server.task_schema import MAX_LENGTH
from glassformer.tasks.declarations.draw_images import MAX_REQUESTED_IMAGES, MAX_REQUESTED_SIDE
from glassformer.tasks.registry import find_task

MAX_PARTS = 64  # of a form
OPTIONS = {  # of the task, and their names in a request
    "num_images_per_prompt": "n",
    "num_inference_steps": "steps",
    "guidance_scale": "guidance",
    **{name: name for name in ("seed", "negative_prompt", "sampler", "strength")},
}
SIDES = ("height", "width", "height x width")  # in errors of the task
FILES = ("image", "mask")  # of a form
FILE = {"type": "string", "format": "binary"}


class ImageGenerationRequest(RequestModel):
    """POST /v1/images/generations, as OpenAI defines it; images are returned in base64.

    `user` and `quality` have no effect: `steps` trades time for quality. size: width x height in pixels, or
    `auto`, the model's own. `seed`, `steps`, `guidance`, `negative_prompt` and `sampler` are extensions.
    """

    model: ModelName | None = None
    prompt: Annotated[str, Field(min_length=1, max_length=32_000)]
    n: Annotated[int, Field(ge=1, le=MAX_REQUESTED_IMAGES)] | None = 1
    size: Annotated[str, Field(pattern=r"^(auto|\d{1,5}x\d{1,5})$")] | None = "auto"
    response_format: Literal["b64_json", "url"] | None = "b64_json"
    output_format: Literal["png"] | None = "png"
    quality: Literal["auto", "low", "medium", "high", "standard", "hd"] | None = None
    stream: bool | None = None
    user: Annotated[str, Field(max_length=MAX_LENGTH)] | None = None
    seed: Seed | None = None
    steps: Annotated[int, Field(ge=1, le=1000)] | None = None
    guidance: Annotated[float, Field(ge=0, le=100)] | None = None
    negative_prompt: Annotated[str, Field(max_length=10_000)] | None = None
    sampler: Annotated[str, Field(max_length=MAX_LENGTH)] | None = None


class ImageEditRequest(ImageGenerationRequest):
    """The fields of POST /v1/images/edits besides its files. strength: how much of the image changes."""

    strength: Annotated[float, Field(ge=0, le=1)] | None = None


class EncodedDrawing(BaseModel):
    """A PNG file in base64, which contains all settings. seed: of this image."""

    b64_json: str
    seed: int


class ImagesResponse(BaseModel):
    """The images of a request. created: seconds since 1970. size: width x height."""

    created: int
    data: list[EncodedDrawing]
    output_format: Literal["png"] = "png"
    size: str
    model: str


def images_router(models: ModelRegistry) -> APIRouter:
    router = APIRouter(prefix="/v1/images", tags=["OpenAI"])

    @router.post("/generations")
    async def generate_images(body: ImageGenerationRequest) -> ImagesResponse:
        """Draw images for a prompt."""
        return await respond(body, {})

    form = ImageEditRequest.model_json_schema()
    form = {**form, "properties": form["properties"] | dict.fromkeys(FILES, FILE)}
    form["required"] = ["prompt", "image"]
    content = {"content": {"multipart/form-data": {"schema": form}}, "required": True}

    @router.post("/edits", openapi_extra={"requestBody": content})
    async def edit_images(request: Request) -> ImagesResponse:
        """Draw from an image; with a mask, redraw its transparent (or else white) part."""
        values = read_form(request.headers.get("content-type", ""), await request.body())
        values |= (
            {"image": values.pop("image[]")} if "image[]" in values else {}
        )  # as OpenAI's client sends it
        files = {name: values.pop(name) for name in FILES if name in values}
        try:
            texts = {name: value.decode() for name, value in values.items()}
            body = ImageEditRequest.model_validate(texts, strict=False)
        except UnicodeDecodeError:
            raise InvalidValueError("form", "other bytes", "fields in UTF-8") from None
        except ValidationError as error:
            raise RequestValidationError(error.errors()) from None
        if "image" not in files:
            raise MissingValueError("image", "as the input")
        if "mask" in files:
            files["mask"] = read_mask(files["mask"])
        return await respond(body, files)

    async def respond(body: ImageGenerationRequest, files: dict[str, Any]) -> ImagesResponse:
        if body.response_format == "url":
            raise InvalidValueError("response_format", "url", "b64_json: this server stores no images")
        if body.stream:
            raise InvalidValueError("stream", True, "false: images are returned when all are finished")
        spec = find_task("draw")
        given = {name: getattr(body, key, None) for name, key in OPTIONS.items()}
        with naming_size(body.size):
            options = spec.read_options({**given, **image_size(body.size), **files})
        model = models.select(body.model, without_errors(lambda bundle: spec.accepts(bundle.spec)))

        def draw(bundle: Any, callbacks: Any) -> Any:
            with naming_size(body.size):
                generator = spec.make(bundle, options)
            (drawing,) = generator.run([body.prompt], callbacks)
            return drawing, drawing.files()

        drawing, pngs = await model.run_steps(draw)
        data = [
            EncodedDrawing(b64_json=base64.b64encode(png).decode(), seed=seed)
            for png, seed in zip(pngs, drawing.seeds, strict=True)
        ]
        width, height = drawing.images[0].size
        return ImagesResponse(created=int(time.time()), data=data, size=f"{width}x{height}", model=model.id)

    return router


@contextmanager
def naming_size(size: str | None) -> Iterator[None]:
    """Name the field of the request in an error about the height or width."""
    try:
        yield
    except InvalidValueError as error:
        if error.name not in SIDES:
            raise
        side = "" if error.name == SIDES[-1] else f" as its {error.name}"
        raise InvalidValueError("size", str(size), f"{error.expected}{side}") from None


def image_size(size: str | None) -> dict[str, int]:
    """Return the options of a size; none for the model's own.

    >>> image_size("512x768"), image_size("auto")
    ({'width': 512, 'height': 768}, {})
    """
    if size in (None, "auto"):
        return {}
    width, height = map(int, str(size).split("x"))
    if not 0 < max(width, height) <= MAX_REQUESTED_SIDE:
        raise InvalidValueError("size", size, f"at most {MAX_REQUESTED_SIDE}x{MAX_REQUESTED_SIDE}")
    return {"width": width, "height": height}


def read_mask(content: bytes) -> Any:
    """Return OpenAI's mask, transparent where the image is redrawn, as ours: white there.

    An image without transparency is a mask of ours already.
    """
    from PIL import Image

    from glassformer.data.image_files import load_image

    load_image(content)  # raises if it is too large or damaged
    with Image.open(io.BytesIO(content)) as image:
        if "A" not in image.getbands():
            return content
        return image.getchannel("A").point(lambda alpha: 255 - alpha)


def read_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the fields and files of a form by name (multipart/form-data of RFC 7578).

    >>> body = b'--x\\r\\nContent-Disposition: form-data; name="n"\\r\\n\\r\\n2\\r\\n--x--\\r\\n'
    >>> read_form("multipart/form-data; boundary=x", body)
    {'n': b'2'}
    """
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary("")
    parts = (b"\r\n" + body).split(f"\r\n--{boundary}".encode("ascii", "replace"), MAX_PARTS + 2)
    if header.get_content_type() != "multipart/form-data" or not boundary or len(parts) < 3:
        raise InvalidValueError("Content-Type", content_type[:80], "multipart/form-data with its parts")
    if len(parts) > MAX_PARTS + 2 or not parts[-1].startswith(b"--"):
        raise InvalidValueError("form", f"{len(parts)} parts", f"at most {MAX_PARTS}, and its end")
    values: dict[str, bytes] = {}
    for part in parts[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        fields = BytesHeaderParser().parsebytes(head.strip(b"\r\n"))
        name = fields.get_param("name", header="content-disposition")
        if not isinstance(name, str) or name in values:
            raise InvalidValueError(
                "form", re.sub(r"\W", "?", str(name))[:40], "a different name for each part"
            )
        values[name] = content
    return values
