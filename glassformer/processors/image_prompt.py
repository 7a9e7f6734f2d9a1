"""Images in the prompt of a vision-language model: placeholder tokens, and the vectors that replace them.

A chat template writes one image token for each image of a conversation. It becomes as many placeholders as
the image takes tokens (`PromptImage.num_tokens`), which `ImageTokensSpec.num_image_tokens` computes from the
size of a tile: there is no second count.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.image_files import ImageLike, decode_base64, image_digest, load_image
from glassformer.data.image_processing import Size, Tiles
from glassformer.errors import ImagePlaceholderError, InvalidValueError
from glassformer.generation.prompt import EmbeddingSpan, Prompt
from glassformer.messages import plural
from glassformer.processors.image import load_image_processor
from glassformer.processors.text import require_tokenizer

Message = Mapping[str, Any]
_AROUND, _WHOLE = "<fake_token_around_image>", "<global-img>"  # of SmolVLM and Idefics3
IMAGE_PART: Message = {"type": "image"}


@dataclass(frozen=True, eq=False, kw_only=True)
class PromptImage:
    """An image of a prompt. size: of the original image. digest: of its tiles.

    grid: rows and columns of tiles. tile_size: height and width of a tile. num_tiles: with the whole image.
    num_tokens: placeholders that it takes in a prompt. decode: returns the tiles; not in a cache.
    """

    size: Size
    digest: bytes
    grid: Size
    tile_size: Size
    num_tiles: int
    num_tokens: int
    decode: Callable[[], Tiles] | None = None

    nbytes = 1024  # in a cache, roughly

    @classmethod
    def of(cls, tiles: Tiles, size: Size, tile_tokens: int) -> PromptImage:
        """Describe a decoded image of a size. tile_tokens: placeholders of a tile."""
        height, width, _ = shape = tiles.pixels[0].shape
        digest = hashlib.sha256(repr(shape).encode())
        for tile in tiles.pixels:
            digest.update(tile.tobytes())
        return cls(
            size=size,
            digest=digest.digest(),
            grid=(tiles.rows, tiles.columns),
            tile_size=(height, width),
            num_tiles=len(tiles.pixels),
            num_tokens=len(tiles.pixels) * tile_tokens,
        )

    def __str__(self) -> str:
        (height, width), count = self.tile_size, self.num_tiles
        return f"{self.num_tokens:,} tokens ({count} {plural('tile', count)} of {width} x {height} pixels)"


class GivenImage(NamedTuple):
    """An image of a message. in_detail: whether it may be split into tiles."""

    source: Any
    in_detail: bool = True


class ImagePromptProcessor:
    """Put images into the prompts of a vision-language model.

    max_image_tokens: maximum number of tokens of an image, which is split into fewer tiles if necessary.
    """

    def __init__(self, bundle: Bundle, *, max_image_tokens: int | None = None) -> None:
        source: Any = bundle.spec.inputs()[0]
        patches: specs.ImagePatchesSpec = source.image.input
        self.bundle, self.source, self.tokenizer = bundle, source, require_tokenizer(bundle)
        self.transform = load_image_processor(
            bundle, channels=patches.channels, image_size=patches.image_size
        )
        self.token = str(self.tokenizer.parts([source.image_id])[0])
        if self.tokenizer.token_id(self.token) != source.image_id:
            hint = "use the tokenizer of this model"
            raise InvalidValueError("image_token_id", source.image_id, "a special token", hint)
        self.is_tiled = self.transform.max_image_size is not None
        self.tile_tokens: int = source.num_image_tokens(self.transform.fixed_size or patches.image_size)
        self.max_tiles = None if max_image_tokens is None else max_image_tokens // self.tile_tokens
        if self.max_tiles is not None and self.max_tiles < 1:
            raise InvalidValueError("max_image_tokens", max_image_tokens, f"at least {self.tile_tokens}")

    @staticmethod
    def separate_images(
        messages: Sequence[Message], *, files: bool = True
    ) -> tuple[list[Message], list[GivenImage]]:
        """Take the images out of messages; return the messages with empty image parts, and the images.

        An image part is {"type": "image", "image": ...} with a path, the content of a file, a PIL image or an
        array, or OpenAI's {"type": "image_url", "image_url": {"url": "data:image/png;base64,..."}}. All
        contents become lists of parts, as templates with image slots expect.
        files: whether an image may be the path of a file.
        """
        images: list[GivenImage] = []

        def part(value: Any) -> Message:
            if not isinstance(value, Mapping):
                raise InvalidValueError("part of a message", value, "a dict with a type")
            if value.get("type") == "image":
                given = next((value[name] for name in ("image", "path") if value.get(name) is not None), None)
                if not files and isinstance(given, str | PathLike):
                    raise InvalidValueError(
                        "image part", str(given)[:100], "a data: URL, in an image_url part"
                    )
            elif value.get("type") == "image_url":
                given = _image_of_url(value.get("image_url"), files)
            else:
                return value
            if given is None:
                raise InvalidValueError("image part", sorted(value), "an image")
            low = isinstance(url := value.get("image_url"), Mapping) and url.get("detail") == "low"
            images.append(GivenImage(given, not low))
            return IMAGE_PART

        separated: list[Message] = []
        for message in messages:
            content = message.get("content")
            if isinstance(content, str):
                content = [{"type": "text", "text": content}]
            separated.append({**message, "content": [part(value) for value in content or ()]})
        return separated, images

    def load(self, source: ImageLike, *, in_detail: bool = True) -> PromptImage:
        """Read an image, and split it into tiles as the model's folder says, unless it is not `in_detail`.

        An image that was read before, e.g. at an earlier turn of a chat, is decoded only if it is encoded.
        """
        limit, decoded = self.max_tiles if in_detail else 1, list[Tiles]()
        content = image_digest(source)

        def read() -> PromptImage:
            image = load_image(source)
            tiles = self.transform.tiles(image, limit)
            decoded.append(tiles)
            return PromptImage.of(tiles, (image.height, image.width), self.tile_tokens)

        key = None if content is None else f"tiles {limit} ".encode() + content
        image = self.bundle.cached_image(key, read)

        def decode() -> Tiles:
            return decoded[0] if decoded else self.transform.tiles(load_image(source), limit)

        return replace(image, decode=decode)

    def expand(self, text: str, images: Sequence[PromptImage]) -> str:
        """Replace the image token of each image in a prompt by its placeholders."""
        parts = text.split(self.token)
        found, expected = len(parts) - 1, len(images)
        if found != expected:
            missing = found + 1 if found < expected else None
            hint = "use a chat template with an image slot" if not found else ""
            raise ImagePlaceholderError(missing, self.token, expected, found, hint)
        pieces = [parts[0]]
        for image, after in zip(images, parts[1:], strict=True):
            pieces += [self.placeholders(image), after]
        return "".join(pieces)

    def placeholders(self, image: PromptImage) -> str:
        """Return the placeholders of an image, with the tokens around its tiles."""
        one = self.token * self.tile_tokens
        if not self.is_tiled:
            return one
        (rows, columns), lines = image.grid, []
        for row in range(1, rows + 1):
            line = (f"{_AROUND}<row_{row}_col_{column}>{one}" for column in range(1, columns + 1))
            lines.append("".join(line) + "\n")
        before = "\n" if lines else ""
        return f"{''.join(lines)}{before}{_AROUND}{_WHOLE}{one}{_AROUND}"

    def spans(self, ids: Sequence[int], images: Sequence[PromptImage]) -> tuple[EmbeddingSpan, ...]:
        """Return the vectors of the images, in the place of their placeholders in the ids."""
        vectors = [one for image in images for one in self.encode(image)]
        keys = [(image.digest, n) for image in images for n in range(image.num_tiles)]
        return Prompt.with_images(ids, vectors, self.source.image_id, keys).spans

    def encode(self, image: PromptImage) -> Tensor:
        """Encode the tiles of an image, or return their vectors from the cache: (tiles, S, W)."""
        return self.bundle.cached_image(image.digest, lambda: self._encode(image))

    @torch.inference_mode()
    def _encode(self, image: PromptImage) -> Tensor:
        assert image.decode is not None
        pixels = torch.from_numpy(self.transform.normalize(np.stack(image.decode().pixels)))
        vectors: Tensor = self.bundle.model.embed.encode_images(pixels.to(self.bundle.device))  # type: ignore[operator, union-attr]
        return vectors


def _image_of_url(value: Any, files: bool) -> Any:
    url = value.get("url") if isinstance(value, Mapping) else value
    if not isinstance(url, str):
        raise InvalidValueError("image_url", value, "a data: URL")
    if url.startswith("data:"):
        return decode_base64(url)
    if "://" in url or not files:
        hint = "download the image and send its content as data:image/...;base64"
        raise InvalidValueError("image_url", url[:100], "a data: URL, as remote images are not fetched", hint)
    return url
