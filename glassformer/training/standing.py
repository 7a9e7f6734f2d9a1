"""Where a run stands, besides its tensors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from glassformer.data import Place


@dataclass
class Standing:
    """Where a run stands, besides its tensors; saved with every checkpoint."""

    step: int = 0
    place: Place = field(default_factory=Place)
    skipped: int = 0
    in_a_row: int = 0
    parts: int = 1
    best: float | None = None
    best_step: int = 0
    stale: int = 0
    kept: list[tuple[int, float]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        return {**vars(self), "place": list(self.place), "kept": [list(pair) for pair in self.kept]}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Standing:
        kept = [(int(step), float(score)) for step, score in data["kept"]]
        return cls(**{**data, "place": Place(*data["place"]), "kept": kept})
