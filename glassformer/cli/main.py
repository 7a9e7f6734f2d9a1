"""The `glassformer` program: finds the command, runs it, and turns errors into a message and an exit code.

Exit codes: 0 success; 1 a failed check of `verify`, or a bug (with its traceback); 2 invalid input or command
line; 130 Ctrl-C; 141 closed pipe; 143 SIGTERM.

A command is a declared task, or a line of `COMMANDS` and a function of the same name in its module. Only the
module of the requested command is imported, and commands import torch inside their functions, so `--help` is
fast.
"""

from __future__ import annotations

import codecs
import errno
import io
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from typing import Any, NamedTuple, NoReturn, TextIO

import typer
from typer.core import TyperCommand, TyperGroup

from glassformer import __version__
from glassformer.cli.console import message
from glassformer.cli.options import with_flags
from glassformer.errors import GlassformerError, is_out_of_memory
from glassformer.tasks.registry import find_task, tasks


class Command(NamedTuple):
    """A command. module: of the function of the same name; empty for a task."""

    module: str
    panel: str
    help: str

    def load(self, name: str) -> Callable[..., None]:
        """Return the function of the command."""
        if self.module:
            function: Callable[..., None] = getattr(import_module(f"glassformer.cli.{self.module}"), name)
            return function
        from glassformer.cli.tasks import task_command

        return task_command(find_task(name))


INFERENCE, TRAINING, INSPECTION, DEPLOYMENT = "Inference", "Training", "Inspection", "Deployment"
COMMANDS = {  # besides those of the tasks
    "demo": Command("demo", INFERENCE, "Translate, look inside, and train a small Transformer."),
    "chat": Command("chat", INFERENCE, "Chat with a model in the terminal."),
    "models": Command("models", INFERENCE, "List the shipped models, or print a model card."),
    "download": Command("download", INFERENCE, "Download a model from the Hugging Face Hub."),
    "train": Command("train", TRAINING, "Train a model, or resume a run."),
    "evaluate": Command("evaluate", TRAINING, "Evaluate a model on test data."),
    "recipes": Command("models", TRAINING, "List the training recipes, or copy one."),
    "tokenizer": Command("tokenizer", TRAINING, "Train a tokenizer."),
    "average": Command("convert", TRAINING, "Average the weights of several checkpoints."),
    "inspect": Command("inspect", INSPECTION, "Show a model's layers, shapes, parameters and memory."),
    "explore": Command("explore", INSPECTION, "Explore a model in the browser."),
    "verify": Command("verify", INSPECTION, "Verify a model's numerical guarantees on this machine."),
    "env": Command("env", INSPECTION, "Show versions, devices and supported dtypes."),
    "convert": Command("convert", DEPLOYMENT, "Convert a model to another layout or dtype."),
    "export": Command("convert", DEPLOYMENT, "Export a model to ONNX or CTranslate2."),
    "batch": Command("batch", DEPLOYMENT, "Run a task over large tables with several workers."),
    "serve": Command("serve", DEPLOYMENT, "Serve models over HTTP."),
}

# Flags of version 0.2.0 and their names now, by command; they are accepted for one version.
RENAMED_FLAGS = {
    "convert": {"--to": "--layout"},
    "export": {"--to": "--format"},
    "forecast": {"--levels": "--quantile-levels", "--picture": "--figure"},
    "inspect": {"--batch": "--batch-size"},
    "serve": {"--queue": "--max-requests", "--seconds": "--request-timeout", "--token": "--api-key"},
    "similar": {"--in": "--corpus"},
}


def current_flags(args: Sequence[str]) -> list[str]:
    """Replace the flags of version 0.2.0, with a warning."""
    renamed = RENAMED_FLAGS.get(next((arg for arg in args if not arg.startswith("-")), ""), {})
    end = args.index("--") if "--" in args else len(args)  # what follows are values
    current = []
    for arg in args[:end]:
        flag, equals, value = arg.partition("=")
        if flag in renamed:
            message(f"warning: {flag} is now {renamed[flag]}")
        current.append(f"{renamed.get(flag, flag)}{equals}{value}")
    return [*current, *args[end:]]


def commands() -> dict[str, Command]:
    """Return all commands by name: the demo, the tasks, and the others."""
    derived = {name: Command("", INFERENCE, spec.summary) for name, spec in tasks().items()}
    return {"demo": COMMANDS["demo"], **derived, **COMMANDS}


def _hide_flag_types(params: list[Any]) -> list[Any]:
    """Show no type next to flags in the help, since they take no value."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class _CliCommand(TyperCommand):
    """Prints its help as a list of options by panel: Typer's tables cut long names in a narrow terminal."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        super(TyperCommand, self).format_help(ctx, formatter)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        panels: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            default = "Options" if param.param_type_name == "option" else "Arguments"
            if record := param.get_help_record(ctx):
                panels.setdefault(param.rich_help_panel or default, []).append(record)
        for name, records in panels.items():
            with formatter.section(name):
                formatter.write_dl(records)


class _CliGroup(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return _hide_flag_types(super().get_params(ctx))


def app(args: Sequence[str]) -> typer.Typer:
    """Build the Typer app; only the module of the command in `args` is imported."""
    cli = typer.Typer(
        name="glassformer",
        cls=_CliGroup,
        help="The Transformer you can see through.",
        add_completion=False,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    cli.callback()(_root)
    requested = next((arg for arg in args if not arg.startswith("-")), None)
    for name, command in commands().items():
        register = partial(
            cli.command,
            name,
            cls=_CliCommand,
            short_help=command.help,
            rich_help_panel=command.panel,
        )
        if name != requested:
            register(help=command.help)(_not_loaded)
            continue
        register()(_with_exit_codes(command.load(name)))
    return cli


class _ClosedPipe(Exception):
    """stdout is closed; Typer would turn a BrokenPipeError into exit code 1."""


class _Terminated(BaseException):
    """SIGTERM was received."""


def _with_exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    @wraps(command)
    def run(**kwargs: Any) -> None:
        try:
            command(**kwargs)
        except BrokenPipeError:
            raise _ClosedPipe from None
        except GlassformerError as error:
            _fail(str(with_flags(error, command)))

    return run


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"glassformer {__version__}")
        raise typer.Exit()


def _root(
    version: bool = typer.Option(
        False, "--version", help="Show the version and exit.", is_eager=True, callback=_version
    ),
) -> None:
    """The Transformer you can see through."""


def _not_loaded() -> None:
    """Stand in for a command that is only listed, not run."""


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    args = current_flags(sys.argv[1:] if args is None else args)
    escape_unencodable(sys.stdout)
    warnings.formatwarning = lambda text, *_, **__: f"warning: {text}\n"
    try:
        with _sigterm_raises():
            try:
                app(args)(args=args, prog_name="glassformer")
            finally:
                sys.stdout.flush()  # a full disk or a closed pipe is reported below, not at interpreter exit
    except KeyboardInterrupt:
        sys.exit(130)
    except _Terminated:
        sys.exit(143)
    except (_ClosedPipe, BrokenPipeError):
        _discard_stdout()
        sys.exit(141)
    except OSError as error:
        if error.filename is not None:
            _fail(f"{error.filename}: {error.strerror}")
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            _discard_stdout()
            _fail(f"cannot write the output: {error.strerror}")
        _report_bug(error)
    except Exception as error:
        if is_out_of_memory(error):
            _fail("out of memory; use a smaller batch, model or input")
        _report_bug(error)
    sys.exit(0)


def escape_unencodable(stream: TextIO) -> None:
    """Write characters that the encoding of a stream lacks as \\uXXXX, as JSON does, and warn once.

    The encoding is not changed: a Latin-1 terminal would garble UTF-8.
    """
    if not isinstance(stream, io.TextIOWrapper) or codecs.lookup(stream.encoding).name == "utf-8":
        return
    encoding, warned = stream.encoding, False

    def escape(error: UnicodeError) -> tuple[str, int]:
        nonlocal warned
        if not isinstance(error, UnicodeEncodeError):
            raise error
        if not warned:
            warned = True
            message(
                f"note: the output encoding {encoding} lacks some characters; they are written as \\uXXXX "
                "(set PYTHONIOENCODING=utf-8 to avoid this)"
            )
        return json.dumps(error.object[error.start : error.end])[1:-1], error.end

    codecs.register_error("glassformer.escape", escape)
    stream.reconfigure(errors="glassformer.escape")


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """Let SIGTERM unwind the stack as Ctrl-C does, so that files are closed."""

    def terminate(*_: object) -> NoReturn:
        raise _Terminated

    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    previous = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _discard_stdout() -> None:
    """Discard the buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(text: str) -> NoReturn:
    """Print an error as one line on stderr and exit with status 2."""
    message(f"error: {' '.join(text.split())}")
    sys.exit(2)


def _report_bug(error: Exception) -> NoReturn:
    """Print the end of a traceback and exit with status 1."""
    lines = "".join(traceback.format_exception(error, limit=-4))
    message(f"{lines}\nThis is a bug in glassformer {__version__}; please report it.")
    sys.exit(1)


if __name__ == "__main__":
    main()
