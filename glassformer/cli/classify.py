"""glassformer classify MODEL TEXT...: the label of each text or picture, and how likely it is."""

from __future__ import annotations

import typer

from glassformer.cli.reading import (
    BATCH_TOKENS,
    AsJson,
    BatchTokens,
    Device,
    Dtype,
    File,
    Model,
    Threads,
    Truncate,
    ahead_of,
    inputs_of,
    opened,
    printed,
    scored,
)


def classify(
    model: Model,
    texts: list[str] | None = typer.Argument(
        None, metavar="[TEXT...]", help="Texts, or picture files for a model of pictures.", show_default=False
    ),
    file: File = None,
    top: int = typer.Option(1, min=1, help="How many labels to tell, the likeliest first."),
    truncate: Truncate = False,
    as_json: AsJson = False,
    batch_tokens: BatchTokens = BATCH_TOKENS,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Tell which label fits each text, one a line, or each picture file; with its probability.

    Texts come as arguments, with --file, or on standard input; answers in the same order, one line each:
    label, tab, probability. --json tells every label.
    """
    what = inputs_of(texts, file)
    bundle = opened(model, device=device, dtype=dtype, threads=threads)
    from glassformer.verbs.classify import Label
    from glassformer.verbs.classify import classify as labels

    found = labels(
        bundle,
        what.lines,
        top=None if as_json else top,
        truncate=truncate,
        batch_tokens=batch_tokens,
        ahead=ahead_of(what),
    )

    def full(one: list[Label]) -> dict[str, object]:
        return {"labels": [{"label": label.label, "score": label.score} for label in one]}

    printed(
        what,
        found,
        lambda one: scored((label.label, label.score) for label in one),
        full if as_json else None,
    )
