"""The files that describe a model in its family's published layout."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from glassformer.core.model import AnyModel
from glassformer.core.spec import Model
from glassformer.errors import GlassformerError
from glassformer.families.family import Config, Family, named_labels


def published_files(
    family: Family,
    model: AnyModel,
    *,
    config: Mapping[str, Any],
    files: Mapping[str, Any],
    names: Collection[str],
    classes: Sequence[str] | None,
) -> dict[str, Any]:
    """The config the model came with where it still describes it, else one written anew; so the files beside.

    config, files: what it came with. names: those of the tensors that will lie beside them. classes: what it
    tells apart, for a config written anew.
    """
    if config and _describes(family, Config(config, files=files, names=names), model.spec):
        written, beside = dict(config), files
    else:
        written, beside = family.to_config(model.spec), family.files(model.spec)
        if classes is not None and len(classes) == len(written.get("id2label", ())):
            written |= named_labels(classes)
    floats = {t.dtype for t in model.parameters() if t.is_floating_point()}
    written.pop("torch_dtype", None)
    written["dtype"] = str(next(iter(floats))).removeprefix("torch.") if len(floats) == 1 else "float32"
    return {"config.json": written, **beside}


def _describes(family: Family, config: Config, what: Model) -> bool:
    try:
        return family.from_config(config) == what
    except (AttributeError, GlassformerError):  # it speaks of files that are not there
        return False
