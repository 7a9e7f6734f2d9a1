"""Pictures unlike those a model has learnt, as far as its folder tells: they get a label all the same."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.tasks.reading import named

Unlike = Literal["blank", "colour", "large", "light", "dark"]
BLANK = 8  # of 255 between the lightest and the darkest of a picture with nothing in it
LARGE = 16  # times as high and wide as what is read: all that is finer is gone
COLOURED = 0.05  # of the pixels, in a picture with colours
VIVID = 48  # of 255 between the channels of such a pixel
FAR = 1.5  # standard deviations of learnt pixels from their mean; that of a learnt picture stays well below


def unlike(
    bundle: Bundle,
    read: specs.ImagePatches,
    whole: NDArray[np.uint8],
    fitted: NDArray[np.uint8],
) -> tuple[Unlike, ...]:
    """In what a picture is unlike those learnt.

    whole (H, W, 3): as it was given. fitted (H, W, C): as it is read.
    """
    if (np.ptp(fitted.reshape(-1, read.channels), 0) < BLANK).all():
        return ("blank",)
    found: list[Unlike] = []
    if read.channels == 1:
        spread = whole.max(-1).astype(np.int16) - whole.min(-1)
        if (spread > VIVID).mean() > COLOURED:
            found.append("colour")
    if all(side > LARGE * most for side, most in zip(whole.shape[:2], read.image_size, strict=True)):
        found.append("large")
    job = bundle.job
    if job.mean is not None and job.std is not None:  # of the training data
        means = fitted.reshape(-1, read.channels).mean(0) / 255
        away = float(((means - np.asarray(job.mean)) / np.asarray(job.std)).mean())
        if abs(away) > FAR:
            found.append("light" if away > 0 else "dark")
    return tuple(found)


def unlike_told(bundle: Bundle, what: Unlike, pictures: int) -> str:
    """A sentence about so many pictures."""
    model, one = named(bundle), pictures == 1
    many = f"{pictures:,} picture{' is' if one else 's are'}"
    match what:
        case "blank":
            return (
                f"{many} of one shade, with nothing in {'it' if one else 'them'} to read, and "
                f"{'its' if one else 'their'} label is a guess"
            )
        case "colour":
            return f"{many} in colour, and {model} has learnt grey ones"
        case "large":
            return (
                f"{many} more than {LARGE} times as large as what {model} reads; cut out what is to be told"
            )
        case _:
            return (
                f"{many} much {what}er than those that {model} has learnt; turn {'its' if one else 'their'} "
                "brightness round where light and dark are exchanged"
            )
