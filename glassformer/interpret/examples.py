"""Example inputs for every kind of model."""

from __future__ import annotations

from glassformer.bundle import Bundle
from glassformer.interpret.schema import TraceInput
from glassformer.interpret.views import view_of
from glassformer.tasks.text_generation import target_languages


def example_input(bundle: Bundle) -> TraceInput:
    """Return an example input: the `example` in job.json, else one of the view."""
    if bundle.job.example is not None:
        return TraceInput.from_json(bundle.job.example)
    return view_of(bundle).example()


def example_inputs(bundle: Bundle) -> list[TraceInput]:
    """Return example inputs, the default first: for each language of a translator, prompts, or questions."""
    first = example_input(bundle)
    others = view_of(bundle).examples(first)
    return [first, *(one for one in others if (one.text, one.question) != (first.text, first.question))]


def split_language_tag(bundle: Bundle, text: str) -> tuple[str, str | None]:
    """Split off the leading language tag (`>>de<< ...`, as in a run's samples); return text and language."""
    mark, end, rest = text.partition("<<")
    tag = mark.removeprefix(">>")
    if end and tag != mark and tag in target_languages(bundle):
        return rest.removeprefix(" "), tag
    return text, None
