"""What the verbs that write share: their options, and the way from texts given to answers taken."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.asking import AskedOfLines, options_of, with_options
from glassformer.cli.given import Given, given
from glassformer.cli.kept import keeping
from glassformer.cli.made import content_of
from glassformer.cli.noted import noting
from glassformer.cli.refused import Refusals
from glassformer.cli.taken import Taker, say, taking
from glassformer.cli.target import refuse_read
from glassformer.cli.tree import check_tree, only_tree, tree_numbers, write_tree
from glassformer.errors import GlassformerError
from glassformer.pretrained import located
from glassformer.pretrained.run_folder import result_of

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.watch import Watch
    from glassformer.tasks.writing.batches import Passage

Write = Callable[["Bundle", Iterable[str], "Watch"], "Iterator[Passage]"]
SETTINGS = "How it writes"


@dataclass(frozen=True, kw_only=True)
class Asked(AskedOfLines):
    """What every verb that writes is asked for.

    verb: its name. own: its own options. settings: those of decoding that were given.
    """

    texts: Annotated[
        list[str] | None,
        typer.Argument(metavar="TEXT", help="Texts; else --file, else standard input.", show_default=False),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write here, a line for each. OUT.progress beside it tells what made the lines, and is "
            "taken away at the end, unless lines were left empty; the file keeps it as an attribute.",
            show_default=False,
        ),
    ] = None
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Go on with the lines of a stopped run in --out, if there are any. Refused where the model, "
            "the settings or the texts are others than those that made them, or the lines were changed.",
        ),
    ] = False
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Begin --out anew, and write over the file of --tree.")
    ] = False
    tree: Annotated[
        Path | None,
        typer.Option(
            help="How one text was found, token by token: an .svg or .png drawing, or .json; --json carries "
            "it too.",
            show_default=False,
        ),
    ] = None
    verb: str
    own: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def made(self, bundle: Bundle) -> dict[str, Any]:
        """What makes the lines that are written; where it runs and in what batches is left open."""
        options = {**self.own, **self.settings}
        stored = str(next(bundle.model.parameters()).dtype).removeprefix("torch.")
        return {
            "verb": self.verb,
            "model": content_of(result_of(located(self.model)), but=self.out),
            "--dtype": stored if bundle.weights == "own" else bundle.weights,
            "--json": self.as_json,
            **{f"--{name.replace('_', '-')}": value for name, value in sorted(options.items())},
        }


def _option(of: Any, what: str, *names: str) -> Any:
    return inspect.Parameter(
        names[0].split("/")[0].lstrip("-").replace("-", "_"),
        inspect.Parameter.KEYWORD_ONLY,
        default=typer.Option(None, *names, help=what, rich_help_panel=SETTINGS),
        annotation=of,
    )


# Values are looked at where they are used, so that Python and the command line say the same of a bad one.
_DECODING = (
    _option(int | None, "The most tokens written for a text.", "--max-new-tokens"),
    _option(int | None, "The fewest.", "--min-new-tokens"),
    _option(int | None, "Beams kept; 1 takes the likeliest token at every step.", "--num-beams"),
    _option(bool | None, "Draw tokens by chance.", "--do-sample/--no-do-sample"),
    _option(float | None, "Above 1 evens chances out, below 1 sharpens them.", "--temperature"),
    _option(int | None, "Draw from this many likeliest tokens.", "--top-k"),
    _option(float | None, "Draw from the likeliest that make up this share.", "--top-p"),
    _option(float | None, "Draw from those at least this likely beside the likeliest.", "--min-p"),
    _option(float | None, "Above 1 makes what was written less likely.", "--repetition-penalty"),
    _option(int | None, "Never write so many tokens in a row twice.", "--no-repeat-ngram-size"),
    _option(float | None, "Above 0 favours longer beams.", "--length-penalty"),
    _option(str | None, "How length counts: hf, fairseq or paper.", "--length-formula"),
    _option(str | None, "When beams stop: true, false or never.", "--early-stopping"),
    _option(int | None, "How many texts for each; --json shows them.", "--num-return-sequences"),
    _option(int | None, "The same number draws the same tokens.", "--seed"),
    _option(list[str] | None, "End before this text; repeat it for more.", "--stop"),
)


def writing_verb(function: Callable[..., None]) -> Callable[..., None]:
    """A verb of its own options, with those of all verbs that write: it is given them as an `Asked`."""
    shared = options_of(Asked, function.__name__)

    def run(words: dict[str, Any]) -> None:
        settings = {one.name: _plain(one.name, words.pop(one.name)) for one in _DECODING}
        settings["stop_strings"] = settings.pop("stop")
        settings["tree"] = True if words["tree"] is not None else None
        asked = Asked(
            **{one.name: words.pop(one.name) for one in shared},
            verb=function.__name__,
            own=words,
            settings={name: value for name, value in settings.items() if value is not None},
        )
        function(asked, **words)

    return with_options(function, shared, run, after=_DECODING)


def _plain(name: str, value: Any) -> Any:
    """A setting as Python has it: a list that was not given is none, a word may be a truth."""
    if name == "stop":
        return tuple(value) if value else None
    if name == "early_stopping":
        return {"true": True, "false": False}.get(value, value)
    return value


def answer(asked: Asked, write: Write) -> None:
    """Take the texts given through `write`, in order, to where answers go.

    What a person should know of them all is said on standard error, once. A line that cannot be answered is
    left empty, which is an error at the end.
    """
    if asked.tree is not None:
        check_tree(asked.tree, asked.texts or (), overwrite=asked.overwrite)
        if asked.out is not None and asked.out.absolute() == asked.tree.absolute():
            raise GlassformerError(f"'{asked.out}' would hold the answers and the tree; give two names")
    if asked.settings.get("num_return_sequences", 1) > 1 and not asked.as_json:
        raise GlassformerError(
            "--num-return-sequences gives several texts for one; add --json, which shows them"
        )
    if asked.out is None and (asked.resume or (asked.overwrite and asked.tree is None)):
        raise GlassformerError("--resume and --overwrite are about a file of answers; name it with --out")
    if asked.out is not None:
        refuse_read(asked.out, "--out", [asked.file])
    source = given(asked.texts or (), asked.file, Refusals()).saying_if_empty()
    bundle = asked.bundle_for(asked.texts)
    for _ in write(bundle, iter(()), _watch()):  # settings that are wrong are told before a file is touched
        pass
    telling = source.kind == "file" or asked.out is not None
    if asked.out is None:
        with taking(total=source.total, telling=telling) as taker, noting(bundle) as notes:
            for number, passage in _passages(bundle, write, source, source.lines, taker):
                taker.take(_line(asked, bundle, passage, source.refused(number)))
                notes.hear(passage.ended, passage.doubts)
                if source.kind == "terminal":  # somebody reads each
                    notes.tell()
        source.end()
        return
    with (
        keeping(
            asked.out,
            source,
            made=asked.made(bundle),
            resume=asked.resume,
            overwrite=asked.overwrite,
            telling=telling,
        ) as keeper,
        noting(bundle) as notes,
    ):
        if keeper.first and keeper.done != source.total and "seed" in asked.settings:
            say("note: the draws of --seed begin anew, so they are not those of a run that was never stopped")
        for number, passage in _passages(bundle, write, source, iter(keeper.texts), keeper):
            keeper.take_at(_line(asked, bundle, passage, source.refused(number)), fresh=passage.fresh)
            notes.hear(passage.ended, passage.doubts)
    source.end()


def _watch(source: Given | None = None, taker: Taker | None = None, before: int = 0) -> Watch:
    """Who is told of the lines of a source that come after so many."""
    from glassformer.tasks.watch import UNWATCHED, Watch

    if source is None or taker is None:
        return UNWATCHED
    refusals = source.refusals
    if refusals is None:  # arguments: from an empty one a text is begun
        return Watch(answered=taker.hear)
    return Watch(
        answered=taker.hear, refuse=lambda number, why: refusals.add(before + number, why), blank="left"
    )


def _passages(
    bundle: Bundle, write: Write, source: Given, lines: Iterator[str], taker: Taker
) -> Iterator[tuple[int, Passage]]:
    """What is written for each line, with its number."""
    before = taker.first
    if source.kind != "terminal":
        yield from enumerate(write(bundle, lines, _watch(source, taker, before)), before + 1)
        return
    for number, line in enumerate(lines):  # somebody waits for each
        for passage in write(bundle, iter([line]), _watch(source, taker, number)):
            yield number + 1, passage


def _line(asked: Asked, bundle: Bundle, passage: Passage, why: str | None) -> str:
    """An answer as it is written. why: the line was refused."""
    if why is not None:
        return json.dumps({"error": why}, ensure_ascii=False) if asked.as_json else ""
    told = _told(passage)
    if asked.tree is not None and asked.texts:
        tree = only_tree(passage)
        write_tree(bundle, tree, asked.tree, asked.texts[0])
        told["tree"] = tree_numbers(bundle, tree)
    return json.dumps(told, ensure_ascii=False) if asked.as_json else one_line(passage.text)


def _told(passage: Passage) -> dict[str, Any]:
    names = ("text", "score", "tokens", "seconds", "ended", "doubts")
    told = {name: getattr(passage, name) for name in names}
    return {**told, "others": [_told(other) for other in passage.others]} if passage.others else told


def one_line(text: str) -> str:
    """A text without line ends, each of which becomes a space.

    >>> one_line("a\\nb")
    'a b'
    """
    return " ".join(text.splitlines())
