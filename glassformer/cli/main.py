"""glassformer VERB ...: finds the verb, runs it, and turns what goes wrong into a sentence and an exit code.

0 done; 1 a claim fails, or a bug (with its traceback); 2 the input or the command line is wrong; 130 Ctrl-C;
141 nobody reads on; 143 SIGTERM.

A verb is one line in VERBS and the function of its name in `glassformer/cli/<verb>.py`. Only the verb that
is asked for is imported, and the verbs import torch inside their functions, so help is immediate.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, NoReturn

import typer

from glassformer import __version__
from glassformer.cli.encoding import escape_unknown
from glassformer.errors import GlassformerError

VERBS = {
    "demo": "Translate real sentences, look inside, and watch a small Transformer learn.",
    "train": "Train a model on your files, or go on with a run.",
    "evaluate": "Measure a model on files it has not seen.",
    "translate": "Translate texts, files or standard input.",
    "summarize": "Summarise texts, files or standard input.",
    "generate": "Go on from prompts, shown as they are written.",
    "restore": "Mend sentences that were trimmed, gapped or shuffled.",
    "classify": "Tell the label of each text or picture.",
    "embed": "Give a vector for each text or picture.",
    "similar": "Find the lines of a file nearest in meaning to a text.",
    "fill": "Guess the words at [MASK].",
    "answer": "Answer questions with words of a text.",
    "forecast": "Tell how series of numbers go on.",
    "average": "Average the weights of several models into one.",
    "models": "List the models that come with the package, or print the card of one.",
    "recipes": "List the ready recipes, or copy one out.",
    "inspect": "Draw a model: its stack, the shape at every station, parameters, memory, kernels.",
    "convert": "Write a model folder anew, in the published layout or in ours.",
    "export": "Write a model for another program to run: ONNX or CTranslate2.",
    "verify": "Prove on this machine that a model's numbers are right.",
    "tokenizer": "Learn a tokenizer from your own files, and see how it cuts.",
    "explore": "See a whole model at work in the browser.",
    "serve": "Serve models over HTTP, with the page to look inside them.",
    "env": "Show versions, devices, kernels and number formats that work here.",
}


def app(args: Sequence[str]) -> typer.Typer:
    """The command line for these arguments, with the one verb they name imported."""
    made = typer.Typer(
        name="glassformer",
        help="The Transformer you can see through.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    made.callback()(_root)
    asked = next((word for word in args if not word.startswith("-")), None)
    for verb, line in VERBS.items():
        function = getattr(import_module(f"glassformer.cli.{verb}"), verb) if verb == asked else _unasked
        made.command(verb, short_help=line, help=None if verb == asked else line)(_telling(function))
    return made


class _Unread(Exception):
    """Nobody reads what is printed; of the system's own error typer would make a failure."""


class _Terminated(BaseException):
    """The process was asked to end."""


def _telling(verb: Callable[..., None]) -> Callable[..., None]:
    @wraps(verb)
    def run(**words: Any) -> None:
        try:
            verb(**words)
        except BrokenPipeError:
            raise _Unread from None

    return run


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"glassformer {__version__}")
        raise typer.Exit()


def _root(
    # a callback runs as the words are read, before a missing verb is noticed
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """The Transformer you can see through."""


def _unasked() -> None:
    """A verb that is listed but not run."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    words = list(sys.argv[1:] if args is None else args)
    escape_unknown(sys.stdout)
    try:
        with _ending():
            app(words)(args=words, prog_name="glassformer")
    except GlassformerError as error:
        _fail(str(error), 2)
    except KeyboardInterrupt:
        sys.exit(130)
    except _Terminated:
        sys.exit(143)
    except (_Unread, BrokenPipeError):
        _hush()  # nobody reads on; say no more
        sys.exit(141)
    except OSError as error:
        if error.errno in _FULL and error.filename is None:
            _hush()
            _fail(f"the output cannot be written: {error.strerror}", 2)
        if error.filename is None:
            _bug(error)
        _fail(f"'{error.filename}': {error.strerror}", 2)
    except Exception as error:
        if _of_memory(error):
            _fail("the memory of this machine does not hold what was asked for; ask for less at a time", 2)
        _bug(error)
    sys.exit(0)


@contextmanager
def _ending() -> Iterator[None]:
    """Let SIGTERM end what is under way as Ctrl-C does, so that it can put away what it holds."""

    def end(*_: object) -> NoReturn:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # which alone may be told of signals
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # what stands in the way of standard output


def _hush() -> None:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _of_memory(error: Exception) -> bool:
    """Whether memory was refused, by Python, numpy, or torch (whose own kind is not imported for this)."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError)
        and (type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error))
    )


def _fail(sentence: str, code: int) -> NoReturn:
    """One line on stderr, whatever line breaks the sentence holds."""
    print(f"error: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def _bug(error: Exception) -> NoReturn:
    """The last frames of a traceback: short, but nothing hidden that leads to the fault."""
    shown = "".join(traceback.format_exception(error, limit=-4))
    print(
        f"{shown}\nThis is a bug in glassformer {__version__}; please report the lines above.",
        file=sys.stderr,
    )
    sys.exit(1)


if __name__ == "__main__":
    main()
