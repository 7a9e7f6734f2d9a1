"""What the verbs that write share: their options, and the way from texts given to answers taken."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import typer

from glassformer.cli.given import Given, given
from glassformer.cli.taken import taking
from glassformer.core.errors import GlassformerError

if TYPE_CHECKING:
    from glassformer.api import Bundle
    from glassformer.verbs.writing.batches import Passage

Write = Callable[["Bundle", Iterable[str]], "Iterator[Passage]"]
SETTINGS = "How it writes"
MACHINE = "Where it runs"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What every verb that writes is asked for. settings: those of decoding that were given."""

    model: Path
    texts: list[str]
    file: Path | None
    out: Path | None
    resume: bool
    overwrite: bool
    as_json: bool
    batch_tokens: int | None
    device: str
    dtype: str | None
    threads: int | None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def bundle(self) -> Bundle:
        """The model, where and how it was asked for."""
        import torch

        from glassformer.api import load

        if self.threads is not None:
            torch.set_num_threads(self.threads)
        device = self.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            torch.device(device)
        except RuntimeError:
            raise GlassformerError(
                f"there is no device '{device}'; `glassformer env` lists those here"
            ) from None
        return load(self.model, device=device, dtype=self.dtype)


def _common(
    model: Path = typer.Argument(..., metavar="MODEL", help="A model folder, as runs/x/model."),
    texts: list[str] = typer.Argument(None, metavar="TEXT", help="Texts; else --file, else standard input."),
    file: Path | None = typer.Option(None, help="A file with a text a line, plain or .gz."),
    out: Path | None = typer.Option(None, help="Write here, a line for each, and not to standard output."),
    resume: bool = typer.Option(False, "--resume", help="Go on with the lines that --out holds."),
    overwrite: bool = typer.Option(False, "--overwrite", help="Begin --out anew."),
    as_json: bool = typer.Option(False, "--json", help="A JSON object a line: text, score, tokens, seconds."),
    batch_tokens: int | None = typer.Option(
        None, min=1, help="Tokens of a batch, read and written.", rich_help_panel=MACHINE
    ),
    device: str = typer.Option("auto", help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE),
    dtype: str | None = typer.Option(None, help="float32, bfloat16 or float16.", rich_help_panel=MACHINE),
    threads: int | None = typer.Option(None, min=1, help="Threads of the CPU.", rich_help_panel=MACHINE),
) -> None:
    """The options all verbs that write have; see `writing_verb`."""


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
    common = inspect.signature(_common, eval_str=True).parameters
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    parameters = [*common.values(), *own, *_DECODING]

    def verb(**words: Any) -> None:
        settings = {one.name: _plain(one.name, words.pop(one.name)) for one in _DECODING}
        asked = Asked(
            **{name: words.pop(name) for name in common},
            settings={name: value for name, value in settings.items() if value is not None},
        )
        function(asked, **words)

    verb.__name__, verb.__doc__ = function.__name__, function.__doc__
    verb.__annotations__ = {one.name: one.annotation for one in parameters}
    keywords = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    cast(Any, verb).__signature__ = inspect.Signature(keywords)
    return verb


def _plain(name: str, value: Any) -> Any:
    """A setting as Python has it: a list that was not given is none, a word may be a truth."""
    if name == "stop":
        return tuple(value) if value else None
    if name == "early_stopping":
        return {"true": True, "false": False}.get(value, value)
    return value


def answer(
    asked: Asked, write: Write, *, noting: Callable[[Bundle, Passage], str | None] | None = None
) -> None:
    """Take the texts given through `write`, in order, to where answers go.

    noting: what to say of an answer on standard error, if anything; each sentence is said once.
    """
    if asked.settings.get("num_return_sequences", 1) > 1 and not asked.as_json:
        raise GlassformerError(
            "--num-return-sequences gives several texts for one; add --json, which shows them"
        )
    if asked.out is not None and asked.file is not None and _same(asked.out, asked.file):
        raise GlassformerError(f"'{asked.out}' is the file being read; give another with --out")
    source = given(asked.texts or (), asked.file)
    said: set[str] = set()
    bundle = asked.bundle()
    for _ in write(bundle, iter(())):  # settings that are wrong are told before a file is touched
        pass
    with taking(
        asked.out,
        resume=asked.resume,
        overwrite=asked.overwrite,
        total=source.total,
        telling=source.kind == "file" or asked.out is not None,
    ) as taker:
        for passage in _passages(bundle, write, source, done=taker.done):
            taker.take(
                json.dumps(_told(passage), ensure_ascii=False) if asked.as_json else one_line(passage.text)
            )
            sentence = noting(bundle, passage) if noting is not None else None
            if sentence is not None and sentence not in said:
                said.add(sentence)
                print(f"note: {sentence}", file=sys.stderr, flush=True)


def _same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


def _passages(bundle: Bundle, write: Write, source: Given, *, done: int) -> Iterator[Passage]:
    lines = islice(source.lines, done, None)
    if source.kind != "terminal":
        yield from write(bundle, lines)
        return
    for line in lines:  # somebody waits for each
        yield from write(bundle, iter([line]))


def _told(passage: Passage) -> dict[str, Any]:
    told = asdict(passage)
    others = [{k: v for k, v in other.items() if k != "others"} for other in told.pop("others")]
    return {**told, **({"others": others} if others else {})}


def one_line(text: str) -> str:
    """A text without line ends, each of which becomes a space.

    >>> one_line("a\\nb")
    'a b'
    """
    return " ".join(text.splitlines())
