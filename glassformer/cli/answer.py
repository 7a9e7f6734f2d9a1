"""glassformer answer MODEL QUESTION... --context FILE: the words of a text that answer a question."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from glassformer.cli.reading import Inputs, Reading, lines_of, printed, reading_verb, scored
from glassformer.cli.refused import Refusals

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.answer import Answer

# of a line that asks nothing
NOTHING: dict[str, Any] = {"text": "", "start": 0, "end": 0, "score": 0.0, "no_answer": 0.0}


@reading_verb
def answer(
    asked: Reading,
    questions: list[str] | None = typer.Argument(
        None,
        metavar="QUESTION",
        help="Questions; without --context each with a tab and its context.",
        show_default=False,
    ),
    context: Path | None = typer.Option(
        None, help="A text file, of any length, that all questions are about.", show_default=False
    ),
    longest: int = typer.Option(15, min=1, help="The most tokens of an answer."),
) -> None:
    """Answer each question, one a line, with words of its context: the answer, a tab, its probability.

    A context longer than the model reads is read in windows that overlap. An empty line stays empty.
    --json also tells where the answer stands, and how likely it is that there is none.
    """
    inputs = asked.inputs(questions)
    beside = Refusals(of=context)
    about = None
    if context is not None:
        about = "\n".join(lines_of(context, "text to find answers in", beside))
        beside.all_taken()
    bundle = asked.bundle_for(questions)
    found = _answers(bundle, inputs, about, longest=longest, **asked.budget())

    def full(one: Answer | None) -> dict[str, Any]:
        return NOTHING if one is None else asdict(one)

    def plain(one: Answer | None) -> str:
        return "" if one is None else scored([(one.text, one.score)])

    printed(inputs, found, plain, full if asked.as_json else None, beside=beside)


def _answers(bundle: Bundle, inputs: Inputs, about: str | None, **words: Any) -> Iterator[Answer | None]:
    from glassformer.tasks.answer import answer as found
    from glassformer.tasks.watch import UnreadableError, refused

    refuse = inputs.watch.refuse
    for number, line in enumerate(inputs.lines, 1):
        question, tab, context = line.partition("\t")
        answer = None
        if about is not None:
            question, context, tab = line, about, "\t"
        if line.strip() and not tab:
            why = "has no tab with its context after it; give the context so, or a file with --context"
            refused(refuse, "question", number, why)
        elif line.strip():
            try:
                answer = found(bundle, question, context, **words)
            except UnreadableError as error:
                if refuse is None:
                    raise
                refuse(number, str(error))
        yield answer
