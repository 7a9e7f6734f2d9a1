"""Numbers that are none are no answer: whoever asked is told so, and why that may be."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.tasks.reading import named

Numbers = TypeVar("Numbers", Tensor, NDArray[np.float32], NDArray[np.float64])


def finite(bundle: Bundle, answer: Numbers) -> Numbers:
    """What a model answers, if every number of it is one."""
    sound = answer.isfinite() if isinstance(answer, Tensor) else np.isfinite(answer)
    if not sound.all():
        raise GlassformerError(
            f"{named(bundle)} answers with what is no number (nan or inf): its weights are damaged, or it "
            "overflowed; fetch or train it anew, use dtype float32, or give smaller numbers"
        )
    return answer
