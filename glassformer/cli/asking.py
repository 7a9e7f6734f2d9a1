"""Options that several verbs share, each said once: a verb states its own, and is given the others as one.

The shared options are the fields of a dataclass, with typer's words about them in their annotations.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_type_hints

import typer

from glassformer.cli.source import opened
from glassformer.cli.taken import say

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

MACHINE = "Where it runs"
# what can be tried with each verb; for the others nothing comes along
COMES_ALONG = {
    "translate": "pocket",
    "embed": "pocket",
    "similar": "pocket",
    "generate": "pocket-lm",
    "classify": "pocket-digits",
    "forecast": "pocket-series",
}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A model, where it is to run, and whether answers are for programs."""

    model: str  # an argument with help of the verb's own
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON with all that is known, how many seconds it took included.")
    ] = False
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.", rich_help_panel=MACHINE)] = "auto"
    dtype: Annotated[
        str | None,
        typer.Option(
            help="float32, bfloat16, float16 or int8; by itself what suits.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None
    threads: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="CPU threads; by itself as many as cores.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None

    def bundle(self) -> Bundle:
        """The model, where and how it was asked for."""
        return opened(self.model, device=self.device, dtype=self.dtype, threads=self.threads)


@dataclass(frozen=True, kw_only=True)
class AskedOfLines(Asked):
    """The same of many texts: from a file, in batches."""

    file: Annotated[
        Path | None,
        typer.Option(help="A file to read, plain or .gz, one a line.", show_default=False),
    ] = None
    batch_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="The most tokens of a batch; by itself what suits.",
            show_default=False,
            rich_help_panel=MACHINE,
        ),
    ] = None

    def bundle_for(self, texts: Sequence[str] | None) -> Bundle:
        """The model; where it reads texts and the only one names a file, who gave it is told of --file."""
        bundle = self.bundle()
        if texts and len(texts) == 1 and isfile(texts[0]):
            from glassformer.tasks.picturing import reads_pictures

            if not reads_pictures(bundle):
                say(f"note: '{texts[0]}' is taken as a text; --file {texts[0]} reads the file")
        return bundle

    def budget(self) -> dict[str, Any]:
        """The size of batches, where one was given."""
        return {} if self.batch_tokens is None else {"batch_tokens": self.batch_tokens}


def options_of(made: type[Asked], verb: str) -> list[inspect.Parameter]:
    """The fields of a dataclass as options of the command of a verb."""
    told = get_type_hints(made, include_extras=True)
    argument = typer.Argument(metavar="MODEL", help=model_help(verb), show_default=False)
    told["model"] = Annotated[str, argument]
    return [
        inspect.Parameter(
            one.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if one.default is dataclasses.MISSING else one.default,
            annotation=told[one.name],
        )
        for one in dataclasses.fields(made)
        if hasattr(told[one.name], "__metadata__")
    ]


def model_help(verb: str) -> str:
    """What the argument MODEL of a verb may be."""
    along = COMES_ALONG.get(verb)
    return "A model folder, as runs/x/model" + (f", or a model that comes along: {along}." if along else ".")


def with_options(
    function: Callable[..., None],
    shared: Sequence[inspect.Parameter],
    run: Callable[[dict[str, Any]], None],
    *,
    after: Sequence[inspect.Parameter] = (),
) -> Callable[..., None]:
    """A command with the options shared, those of the function after its first parameter, and those `after`.

    `run` is given all their values by name.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in (*shared, *own, *after)]

    def verb(**words: Any) -> None:
        run(words)

    verb.__name__, verb.__doc__ = function.__name__, function.__doc__
    verb.__annotations__ = {one.name: one.annotation for one in parameters}
    cast(Any, verb).__signature__ = inspect.Signature(parameters)
    return verb


def asking(made: type[Asked]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function whose first parameter is what `made` holds."""

    def command(function: Callable[..., None]) -> Callable[..., None]:
        shared = options_of(made, function.__name__)

        def run(words: dict[str, Any]) -> None:
            asked = made(**{one.name: words.pop(one.name) for one in shared})
            function(asked, **words)

        return with_options(function, shared, run)

    return command
