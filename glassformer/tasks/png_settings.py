"""PNG files with the settings of a drawing: how it was made, so that it can be made again."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from glassformer.errors import FileMissingError, FileProblemError, MissingValueError
from glassformer.json_text import parse_json

if TYPE_CHECKING:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

KEY = "glassformer"  # of the text chunk with the settings, as JSON


def encode_png(image: Image.Image, settings: Mapping[str, Any]) -> bytes:
    """Return an image as a PNG file with settings: the prompt as its description, and all of them as JSON."""
    file = io.BytesIO()
    image.save(file, "PNG", pnginfo=text_chunks(settings))
    return file.getvalue()


def text_chunks(settings: Mapping[str, Any]) -> PngInfo:
    """Return settings as the text chunks of a PNG file."""
    from PIL.PngImagePlugin import PngInfo

    chunks = PngInfo()
    chunks.add_text("Software", "Glassformer")
    chunks.add_itxt("Description", str(settings.get("prompt", "")))
    chunks.add_itxt(KEY, json.dumps(settings, ensure_ascii=False))
    return chunks


def read_png_settings(path: Path) -> dict[str, Any]:
    """Return the settings in a PNG file; raise if it has none. The pixels are not decoded."""
    from PIL import Image

    if not path.is_file():
        raise FileMissingError(path, kind="image")
    try:
        with Image.open(path, formats=("PNG",)) as image:
            text = image.info.get(KEY)
    except Exception as error:  # a damaged file raises many kinds
        raise FileProblemError(path, f"is not a readable PNG file ({str(error)[:100]})") from None
    if text is None:
        hint = "name a picture that glassformer drew and that no other program has saved since"
        raise MissingValueError(f"a text chunk {KEY!r} with settings", f"in {path}", hint)
    try:
        settings = parse_json(text)
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise FileProblemError(path, "has damaged settings")
    return settings
