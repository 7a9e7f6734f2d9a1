"""One encoded image (PNG, JPEG, ...) to an array of bytes, refusing what is broken or absurdly large."""

from __future__ import annotations

import io
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from glassformer.errors import GlassformerError

if TYPE_CHECKING:
    from PIL import Image

MOST_PIXELS = 64_000_000  # a small file can claim a picture that fills the memory
# Formats whose readers decode by themselves; others would start outside programs.
_FORMATS = ("PNG", "JPEG", "MPO", "WEBP", "GIF", "BMP", "TIFF", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")
_TURNED = (5, 6, 7, 8)  # EXIF orientations that swap width and height
_ORIENTATION = 0x0112


class Outline(NamedTuple):
    """What an image's header says."""

    height: int
    width: int
    grey: bool


class BadPictureError(Exception):
    """Why one picture cannot be used: the end of a sentence that begins with its name."""


def outline(source: Path | bytes) -> Outline:
    """Size and colour from the header alone."""
    from PIL import Image

    with _opened(source) as image:
        width, height = image.size
        try:
            turned = Image.Image.getexif(image).get(_ORIENTATION) in _TURNED  # PNG's own would decode it all
        except Exception as error:
            raise BadPictureError(f"is damaged ({_reason(error)})") from None
        if turned:
            width, height = height, width
        return Outline(height, width, image.mode in _GREY)


def decode(source: Path | bytes, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    """The pixels, upright, brought to the shape (H, W, C).

    What is transparent is laid on white; sixteen-bit grey keeps its upper eight bits.
    """
    from PIL import ImageOps

    with _opened(source) as image:
        try:
            upright = _eight_bits(ImageOps.exif_transpose(image) or image)
            pixels = upright.convert("L" if shape[2] == 1 else "RGB")
        except BadPictureError:
            raise
        except Exception as error:  # decoders fail in as many ways as there are formats
            raise BadPictureError(f"is damaged ({_reason(error)})") from None
    return resized(np.asarray(pixels).reshape(pixels.height, pixels.width, shape[2]), shape[:2])


def resized(image: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    """The whole image (H, W, C) at another size (height, width), averaged where smaller."""
    if image.shape[:2] == size:
        return image
    from PIL import Image

    flat = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    smaller = flat.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    return np.asarray(smaller).reshape(*size, image.shape[2])


def _eight_bits(image: Image.Image) -> Image.Image:
    from PIL import Image

    if image.mode == "F":
        raise BadPictureError("has fractions for pixels; save it with 8 bits a channel")
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 0xFFFF:
            raise BadPictureError("has more than 16 bits a pixel; save it with 8")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa") or "transparency" in image.info:
        clear = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", clear.size, "white"), clear)
    return image


def _opened(source: Path | bytes) -> Image.Image:
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise GlassformerError("Reading images needs Pillow; run `pip install pillow`") from None

    Image.init()
    known = tuple(name for name in _FORMATS if name in Image.OPEN)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures and odd metadata; the size is looked at below
            image = Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=known)
    except Image.UnidentifiedImageError:
        raise BadPictureError("is not an image") from None
    except Image.DecompressionBombError:
        raise BadPictureError(f"has more than {MOST_PIXELS:,} pixels") from None
    except Exception as error:
        raise BadPictureError(f"cannot be read ({_reason(error)})") from None
    if image.width * image.height > MOST_PIXELS:
        image.close()
        raise BadPictureError(f"has {image.width * image.height:,} pixels, more than {MOST_PIXELS:,}")
    return image


def _reason(error: Exception) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.strip().split("\n")[0][:120] or type(error).__name__
