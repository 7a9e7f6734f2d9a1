"""What an exported folder gives in its own runtime is what the model gives here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from glassformer.bundle import Bundle
from glassformer.errors import FileProblemError
from glassformer.export.folder import read_metadata
from glassformer.verify.claims import Claim, Measure, measured, tolerance_of
from glassformer.verify.exported_ctranslate2 import open_ctranslate2
from glassformer.verify.exported_onnx import open_onnx

# Another runtime rounds on other ways, and smaller weights are other weights: what a number may differ by,
# by what the weights are stored in. What int8 moves is a cost, so its note says how many choices it changed.
ALLOWED = {"float32": 1e-4, "float16": 1e-2, "int8": 2e-1}

OPENERS: dict[str, Callable[[Path], Measure]] = {"onnx": open_onnx, "ctranslate2": open_ctranslate2}


@dataclass(frozen=True, kw_only=True)
class ExportedFolder:
    """An export whose runtime is here and has read it."""

    dtype: str
    measure: Measure


def open_exported(folder: str | Path) -> ExportedFolder:
    """Open an exported folder with its own runtime."""
    about = read_metadata(folder)
    kind, dtype = about.get("format"), about.get("dtype")
    if kind not in OPENERS or dtype not in ALLOWED:
        raise FileProblemError(
            folder,
            f"unknown export format {kind!r} or dtype {dtype!r}",
            hint=f"export to {' or '.join(OPENERS)}",
        )
    return ExportedFolder(dtype=dtype, measure=OPENERS[kind](Path(folder)))


def exported_equals_native(bundle: Bundle, name: str, *, exported: ExportedFolder) -> Claim:
    """The same padded inputs through both, from an empty cache where there is one."""
    tolerance = max(ALLOWED[exported.dtype], tolerance_of(bundle.model))
    with torch.no_grad():
        gaps, note = exported.measure(bundle)
    return measured(name, gaps, tolerance, f"{note}, {exported.dtype} weights")
