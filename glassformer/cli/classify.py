"""glassformer classify MODEL TEXT...: the label of each text or picture, and how likely it is."""

from __future__ import annotations

from collections import Counter

import typer

from glassformer.cli.reading import Reading, Truncate, printed, reading_verb, scored
from glassformer.cli.taken import say


@reading_verb
def classify(
    asked: Reading,
    texts: list[str] | None = typer.Argument(
        None, metavar="TEXT", help="Texts, or picture files for a model of pictures.", show_default=False
    ),
    top: int = typer.Option(1, min=1, help="How many labels to tell, the likeliest first."),
    truncate: Truncate = False,
) -> None:
    """Tell which label fits each text, one a line, or each picture file; with its probability.

    Texts come as arguments, with --file, or on standard input; answers in the same order, one line each:
    label, tab, probability. An empty line stays empty. --json tells every label. That pictures are
    unlike those learnt is said on standard error.
    """
    inputs = asked.inputs(texts)
    bundle = asked.bundle_for(texts)
    from glassformer.tasks.classify import Label
    from glassformer.tasks.classify import classify as labels
    from glassformer.tasks.unlike import Unlike, unlike_told

    heard: Counter[Unlike] = Counter()
    found = labels(
        bundle,
        inputs.lines,
        top=None if asked.as_json else top,
        truncate=truncate,
        ahead=inputs.ahead,
        watch=inputs.watch,
        hear=lambda what: heard.update([what]),
        **asked.budget(),
    )

    def full(one: list[Label]) -> dict[str, object]:
        return {"labels": [{"label": label.label, "score": label.score} for label in one]}

    def notes() -> None:
        for what, pictures in heard.items():
            say(f"note: {unlike_told(bundle, what, pictures)}")

    printed(
        inputs,
        found,
        lambda one: scored((label.label, label.score) for label in one),
        full if asked.as_json else None,
        notes=notes,
    )
