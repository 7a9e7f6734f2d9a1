"""Series made ready for a forecaster, scaled as `verbs.forecast` does, and what it tells of them.

C channels, N steps told, Q quantiles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.data.stable_stats import Doubles
from glassformer.data.windows import Scaler
from glassformer.errors import GlassformerError
from glassformer.interpret.kinds import Given
from glassformer.interpret.ready import Ready
from glassformer.interpret.sequences import stretches
from glassformer.tasks.forecast import steps_of
from glassformer.tasks.quantiles import LEVELS, quantiles
from glassformer.tasks.reading import device_of, named
from glassformer.tasks.units import WindowScale, check_columns, scale_of

ROWS = 100_000  # values of a column at most


@dataclass(frozen=True, kw_only=True)
class Past:
    """The columns that were read, in their own units.

    values (context, C): what the model reads. truth (n, C): what was held back, at most as many steps as are
    told. horizon: how many are.
    """

    names: tuple[str, ...]
    values: Doubles
    truth: Doubles | None
    scale: Scaler | WindowScale
    horizon: int


def ready(bundle: Bundle, given: Given) -> Ready:
    """The last steps of the columns that the model was trained on."""
    read: Any = getattr(bundle.spec, "input", None)
    assert isinstance(read, specs.SeriesPatches)
    past = _past(bundle, given)
    scaled = torch.from_numpy(past.scale.transform(past.values[None])).to(device_of(bundle))
    return Ready(
        kind="forecast",
        given=given,
        sequences=(stretches(read),),
        inputs={"inputs": scaled},  # (1, context, C)
        rows=past.names,
        about=past,
    )


def names_of(bundle: Bundle) -> tuple[str, ...] | None:
    """The columns a forecaster was trained on, where its folder tells."""
    told = bundle.job.columns
    return None if told is None else tuple(map(str, told))


def _past(bundle: Bundle, given: Given) -> Past:
    if given.series is None:
        raise GlassformerError(f"{named(bundle)} reads series; give them as `series` with columns of numbers")
    columns = given.series.columns
    names = names_of(bundle) or tuple(columns)
    if missing := [name for name in names if name not in columns]:
        raise GlassformerError(
            f"{named(bundle)} reads the column '{missing[0]}', which is missing; give {', '.join(names[:8])}"
        )
    if not names or len({len(columns[name]) for name in names}) != 1:
        raise GlassformerError("the columns must be as long as each other, and at least one")
    check_columns(bundle, names)
    rows = len(columns[names[0]])
    if rows > ROWS:
        raise GlassformerError(
            f"the columns have {rows:,} rows, and a trace takes at most {ROWS:,}; give the last"
        )
    values = np.array([columns[name] for name in names], np.float64).T  # (rows, C)
    if not np.isfinite(values).all():
        raise GlassformerError("the columns hold a value that is no finite number; fill it in")
    context, horizon = steps_of(bundle)
    held = given.series.truth or 0
    if rows - held < (context or 1):
        raise GlassformerError(
            f"the columns have {rows:,} rows, {held:,} of them held back, and {named(bundle)} reads the last "
            f"{context or 1:,}; give longer ones"
        )
    end = rows - held
    read = values[end - (context or 1) : end]
    return Past(
        names=names,
        values=read,
        truth=values[end : end + horizon] if held else None,
        scale=scale_of(bundle, read),
        horizon=horizon,
    )


def outcome(past: Past, told: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What the model's output (1, N, C) says in the columns' own units, and its tensors (C, steps)."""
    point = told if isinstance(told, Tensor) else told.mean
    kept = {
        "forecast.past": past.values.T,
        "forecast.values": past.scale.inverse(point[0].float().cpu().numpy()).T,
        "forecast.persistence": np.repeat(past.values[-1:].T, past.horizon, 1),
    }
    if past.truth is not None:
        kept["forecast.truth"] = past.truth.T
    levels: list[float] | None = None
    if not isinstance(told, Tensor):
        levels = list(LEVELS)
        sure = quantiles(told, LEVELS)[:, 0].float().cpu().numpy()  # (Q, N, C)
        kept["forecast.quantiles"] = past.scale.inverse(sure).transpose(2, 0, 1)
    tensors = {name: torch.from_numpy(np.ascontiguousarray(one)) for name, one in kept.items()}
    names = {
        "past": "forecast.past",
        "forecast": "forecast.values",
        "truth": "forecast.truth" if past.truth is not None else None,
        "quantiles": "forecast.quantiles" if levels else None,
        "persistence": "forecast.persistence",
    }
    about = {
        "kind": "forecast",
        "columns": list(past.names),
        "horizon": past.horizon,
        "past": len(past.values),
        "quantiles": levels,
        "names": names,
    }
    return about, tensors
