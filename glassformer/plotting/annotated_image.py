"""Draw boxes, masks and labels on an image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import cast

import numpy as np
from PIL import Image, ImageColor, ImageDraw, ImageFilter, ImageFont

from glassformer.data.annotations import Annotation, Box, mask_to_box
from glassformer.plotting.fonts import find_font

# distinct on light and dark images, also for color-blind readers; neighbors in the list differ most
COLORS = (
    *("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#d55e00", "#cc79a7", "#0072b2", "#9be564"),
    *("#b388ff", "#ff8a80", "#00e5ff", "#a1887f"),
)
MASK_OPACITY = 0.45
MIN_SIDE = 256  # pixels of the longer side; on a smaller picture, labels would hide the objects
Rectangle = tuple[int, int, int, int]


def draw_annotations(image: Image.Image, annotations: Sequence[Annotation]) -> Image.Image:
    """Return a copy of an image with translucent masks, boxes, and labels with scores.

    Each label has its own color; if there is only one label, each object has. A small image is enlarged by a
    whole number, so that its labels are readable.

    annotations: with boxes and masks for the size of the image.
    """
    factor = math.ceil(MIN_SIDE / max(image.size))
    image = image.convert("RGB").resize(
        (image.width * factor, image.height * factor), Image.Resampling.BICUBIC
    )
    annotations = [_enlarge(thing, factor) for thing in annotations]
    picture = image
    labels = list(dict.fromkeys(thing.label for thing in annotations))
    by_label = len(labels) > 1
    colors = [
        COLORS[(labels.index(thing.label) if by_label else n) % len(COLORS)]
        for n, thing in enumerate(annotations)
    ]
    line = max(2, round(min(image.size) / 240))
    for thing, color in zip(annotations, colors, strict=True):
        if thing.mask is not None:
            picture = _fill(picture, thing.mask, color, line)
    draw = ImageDraw.Draw(picture)
    for thing, color in zip(annotations, colors, strict=True):
        if thing.box is not None and (thing.mask is None or thing.score is not None):
            x_min, y_min, x_max, y_max = thing.box
            edges = (
                round(x_min),
                round(y_min),
                max(round(x_min), round(x_max) - 1),
                max(round(y_min), round(y_max) - 1),
            )
            draw.rectangle(edges, outline="black", width=line + 1)  # an edge that shows on any background
            draw.rectangle(edges, outline=color, width=line)
    used: list[Rectangle] = []
    size = max(11, round(min(image.size) / 36))
    order = sorted(range(len(annotations)), key=lambda n: -(annotations[n].score or 0.0))
    if len(labels) < 2 and all(thing.score is None for thing in annotations):
        order = order[:1]  # the same label on every object says nothing
    for n in order:
        _tag(draw, annotations[n], colors[n], size, used, picture.size)
    return picture


def _enlarge(thing: Annotation, factor: int) -> Annotation:
    """Multiply the coordinates of an annotation."""
    box = None if thing.box is None else cast(Box, tuple(side * factor for side in thing.box))
    mask = None if thing.mask is None else thing.mask.repeat(factor, 0).repeat(factor, 1)
    return replace(thing, box=box, mask=mask)


def _fill(picture: Image.Image, mask: np.ndarray, color: str, line: int) -> Image.Image:
    """Blend a color into the pixels of a mask, and draw its outline."""
    shape = Image.fromarray(mask.astype(np.uint8) * 255)
    plain = Image.new("RGB", picture.size, color)
    picture = Image.composite(Image.blend(picture, plain, MASK_OPACITY), picture, shape)
    eroded = np.asarray(shape.filter(ImageFilter.MinFilter(2 * line + 1))) > 0
    return Image.composite(plain, picture, Image.fromarray((mask & ~eroded).astype(np.uint8) * 255))


def _tag(
    draw: ImageDraw.ImageDraw,
    thing: Annotation,
    color: str,
    size: int,
    used: list[Rectangle],
    image_size: tuple[int, int],
) -> None:
    """Write the label and score above the object, or where no other label is; without room, leave it out."""
    box = thing.box
    if box is None and thing.mask is not None and thing.mask.any():
        box = mask_to_box(thing.mask)
    if box is None:
        return
    score = "" if thing.score is None else f" {thing.score:.2f}"
    path, text = find_font(f"{thing.label}{score}")
    font = _load_font(path, size)
    width, height = round(font.getlength(text)) + 6, round(size * 1.3)
    red, green, blue = ImageColor.getrgb(color)[:3]
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 120 else "white"
    x = int(min(max(0, box[0]), max(0, image_size[0] - width)))
    for y in (box[1] - height, box[1], box[3], box[3] - height):
        y = int(min(max(0, y), max(0, image_size[1] - height)))
        place = (x, y, x + width, y + height)
        if not any(_overlap(place, other) for other in used):
            used.append(place)
            draw.rectangle((x, y, x + width - 1, y + height - 1), fill=color)
            draw.text((x + 3, y + height / 2), text, fill=ink, font=font, anchor="lm")
            return


def _overlap(a: Rectangle, b: Rectangle) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@cache
def _load_font(path: str, size: int) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, size)
