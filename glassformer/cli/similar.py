"""glassformer similar MODEL --in FILE TEXT...: which of many texts is nearest in meaning."""

from __future__ import annotations

from pathlib import Path

import typer

from glassformer.cli.reading import Reading, Truncate, lines_of, printed, reading_verb, scored
from glassformer.cli.refused import Refusals


@reading_verb
def similar(
    asked: Reading,
    texts: list[str] | None = typer.Argument(
        None,
        metavar="TEXT",
        help="What to look for; picture files for a model of pictures.",
        show_default=False,
    ),
    candidates: Path = typer.Option(
        ..., "--in", help="The file to look in, one text (or picture file) a line."
    ),
    top: int = typer.Option(1, min=1, help="How many of the nearest to tell."),
    truncate: Truncate = False,
) -> None:
    """Find the nearest lines of a file for each text: the line, a tab, and the cosine of their vectors.

    An empty line stays empty, and is not looked at in the file.
    """
    inputs = asked.inputs(texts)
    beside = Refusals(of=candidates, becomes="left out")
    among = lines_of(candidates, "texts to look in", beside)
    bundle = asked.bundle_for(texts)
    from glassformer.tasks.embed import Match
    from glassformer.tasks.embed import similar as nearest
    from glassformer.tasks.watch import Watch

    try:
        found = nearest(
            bundle,
            inputs.lines,
            among,
            top=top,
            truncate=truncate,
            ahead=inputs.ahead,
            watch=inputs.watch,
            among=Watch(refuse=beside.add, blank="left"),
            **asked.budget(),
        )
    finally:
        beside.all_taken()

    def full(one: list[Match]) -> dict[str, object]:
        return {"nearest": [{"line": m.number + 1, "text": m.text, "score": m.score} for m in one]}

    def plain(one: list[Match]) -> str:
        return scored((m.text, m.score) for m in one)

    printed(inputs, found, plain, full if asked.as_json else None, beside=beside)
