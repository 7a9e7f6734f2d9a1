"""What is saved is what is loaded again, bit for bit, in every layout the model has."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from glassformer.bundle import Bundle, Layout, load, save
from glassformer.core.build import canonical
from glassformer.families.registry import families, family_for
from glassformer.verify.claims import Claim, measured, same_bits, skipped


def saved_equals_loaded(bundle: Bundle, name: str) -> Claim:
    """Every tensor and the spec after a round trip through a temporary folder."""
    before = canonical(bundle.model)
    size = sum(t.numel() * t.element_size() for t in before.values())
    gaps: list[float] = []
    layouts = _layouts(bundle)
    with tempfile.TemporaryDirectory(prefix="glassformer-verify-") as place:
        if shutil.disk_usage(place).free < 1.1 * size:
            return skipped(name, f"{place} has no room for {size / 1e9:.1f} GB; point TMPDIR elsewhere")
        for layout in layouts:
            folder = Path(place) / layout
            save(bundle, folder, layout=layout)
            first = next(bundle.model.parameters())
            again = load(folder, dtype="stored", device=first.device)
            after = canonical(again.model)
            if again.spec != bundle.spec or after.keys() != before.keys():
                gaps.append(float("inf"))
            else:
                gaps += [same_bits(after[key], before[key]) for key in before]
            del again, after
            shutil.rmtree(folder)  # the next layout may need the room
    return measured(name, gaps, 0.0, f"{len(before)} tensors, bit for bit; layout {' and '.join(layouts)}")


def _layouts(bundle: Bundle) -> list[Layout]:
    published = families()[bundle.family] if bundle.family else family_for(bundle.spec)
    return ["glassformer"] if published is None else ["hf", "glassformer"]
