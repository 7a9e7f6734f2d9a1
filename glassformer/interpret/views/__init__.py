"""The views of the explorer, by kind. A task names the view of a model; a view never asks for the task."""

from __future__ import annotations

from functools import cache

from glassformer.bundle import Bundle
from glassformer.interpret.outline import model_kind
from glassformer.interpret.views.base import View

REGISTERED: dict[str, type[View]] = {}  # views that are declared elsewhere, e.g. in a test


@cache
def _views() -> dict[str, type[View]]:
    from glassformer.interpret.views import drawing, generated_text, images, samples, series, texts

    modules = (drawing, generated_text, images, samples, series, texts)
    return {view.kind: view for module in modules for view in module.VIEWS}


def view_of(bundle: Bundle) -> View:
    """Return the view of a model: that of the first task that it can do and that has one."""
    return {**_views(), **REGISTERED}[model_kind(bundle)](bundle)
