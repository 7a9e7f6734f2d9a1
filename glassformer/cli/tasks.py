"""The commands of the tasks, made from their declarations.

A command has the options of its task, and those of its output, which depend on the kind of the result: lines,
generated text, objects in images, or a forecast.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_origin

import typer

from glassformer.cli.options import Model, read_json_schema, with_options
from glassformer.errors import InvalidValueError
from glassformer.schema import union_members
from glassformer.tasks import registry
from glassformer.tasks.registry import REQUIRED, InputKind, Option, TaskSpec
from glassformer.tasks.results import GeneratedResult, ObjectsResult

if TYPE_CHECKING:
    from glassformer.bundle import Bundle

LIST_HELP = {list[str]: " Repeatable.", "separated": " Separated by commas, or a file with one per line."}
STDIN = "(default: --file, else stdin)"
INPUTS: Mapping[InputKind, tuple[str, str]] = {  # the name of the argument, and its help
    registry.TEXT: ("TEXT", f"Input texts {STDIN}."),
    registry.PROMPT: ("TEXT", f"Prompts {STDIN}."),
    registry.PROMPT_OR_CLASS: ("PROMPT", f"Prompts, or names or numbers of classes {STDIN}."),
    registry.QUESTION: ("QUESTION", "Questions; without --context, each followed by a tab and its context."),
    registry.IMAGE: ("IMAGE", "Image files, folders or patterns such as 'scans/*.png'."),
    registry.IMAGE_QUESTION: (
        "IMAGE... QUESTION...",
        "Image files, folders or patterns such as 'scans/*.png'; then questions about each of them.",
    ),
    registry.MARKED_IMAGE: ("IMAGE", "Image files, folders or patterns such as 'scans/*.png'."),
    registry.TEXT_OR_IMAGE: ("INPUT", f"Texts, or image files and folders for an image model {STDIN}."),
    registry.SAMPLE: ("INPUT", f"Texts, or image files and folders for an image model {STDIN}."),
    registry.SERIES_TABLE: ("DATA", "CSV, Excel or Parquet file of time series."),
}


@dataclass(frozen=True, kw_only=True)
class TaskRun:
    """A command line: the task, the model, the inputs, and the options that were given."""

    spec: TaskSpec
    model: str
    inputs: Sequence[str]
    values: Mapping[str, Any]
    command: Callable[..., None]

    def options(self, bundle: Bundle, *, brief: bool, **more: Any) -> Any:
        """Return the options of the task. brief: those for output of a few values per input."""
        options = self.spec.read_options({**self.values, **more})
        return self.spec.brief(bundle, options) if brief else options


def task_command(spec: TaskSpec) -> Callable[..., None]:
    """Return the command of a task: a function with Typer's annotations."""
    group, run = output_of(spec)

    def command(model: str, inputs: list[str] | None, values: dict[str, Any], options: Any) -> None:
        run(TaskRun(spec=spec, model=model, inputs=inputs or [], values=values, command=complete), options)

    metavar, help = INPUTS[spec.inputs]
    argument = Annotated[list[str] | None, typer.Argument(metavar=metavar, help=help)]
    kind, keyword = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter("model", kind, annotation=Model),
            inspect.Parameter("inputs", kind, default=None, annotation=argument),
            inspect.Parameter("values", keyword),
            inspect.Parameter("options", keyword),
        ]
    )
    command.__name__, command.__doc__ = spec.name, help_text(spec)
    declared = [option for option in spec.all_options if option.is_on("command")]
    complete = with_options(group)(with_declared(declared)(command))
    return complete


def with_declared(options: Sequence[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add declared options to a command, which receives those that were given as argument `values`."""
    declared = {option.name: option for option in options}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(**given: Any) -> None:
            values = {name: read_value(option, given.pop(name)) for name, option in declared.items()}
            command(values={name: one for name, one in values.items() if one is not None}, **given)

        own = inspect.signature(command, eval_str=True).parameters
        parameters = [parameter for name, parameter in own.items() if name != "values"]
        run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [*parameters, *map(option_parameter, declared.values())]
        )
        return run

    return decorate


def output_of(spec: TaskSpec) -> tuple[type[Any], Callable[[TaskRun, Any], None]]:
    """Return the options of a command's output, and the function that runs it."""
    if issubclass(spec.result, GeneratedResult):
        from glassformer.cli import generate

        prompts = spec.inputs == registry.PROMPT
        return (
            generate.PromptOutputOptions if prompts else generate.TextOutputOptions,
            generate.run_generation,
        )
    if issubclass(spec.result, ObjectsResult):
        from glassformer.cli import vision

        return (
            vision.MaskOutputOptions if spec.result.has_masks else vision.ObjectOutputOptions,
            vision.run_objects,
        )
    if spec.inputs == registry.PROMPT_OR_CLASS:
        from glassformer.cli import draw

        return draw.DrawingOptions, draw.run_drawing
    if spec.inputs == registry.SERIES_TABLE:
        from glassformer.cli import forecast

        return forecast.ForecastOutputOptions, forecast.run_forecast
    from glassformer.cli import predict

    groups = {"never": predict.LineOptions, "allowed": predict.PairOptions, "always": predict.QuestionOptions}
    return groups["never" if spec.inputs.crossed else spec.inputs.pairs], predict.run_lines


def help_text(spec: TaskSpec) -> str:
    """Return the help of a command."""
    lines = f"Prints one line per input: {spec.lines}." if spec.lines else ""
    return "\n\n".join(filter(None, (spec.summary, spec.description, lines)))


def option_parameter(option: Option) -> inspect.Parameter:
    """Return an option as a parameter with Typer's annotation."""
    kind = command_type(option)
    required = option.default is REQUIRED
    default = option.metadata.get("command_default", option.default)
    default = None if required or isinstance(default, tuple) else default
    if kind is str and isinstance(option.default, tuple):
        default = ",".join(map(str, option.default)) or None
    shown = default is not None and kind is not bool
    declared = typer.Option(
        *flags(option, is_switch=kind is bool and default is not None),
        help=option.help + LIST_HELP.get("separated" if option.metadata.get("separated") else kind, ""),
        show_default=shown,
        metavar="FILE" if kind is Path or option.metadata.get("is_image") else None,
        rich_help_panel=option.metadata.get("panel"),
    )
    if kind is not bool:
        kind = kind if required else kind | None
    elif default is None:
        kind = bool | None
    return inspect.Parameter(
        option.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=... if required else default,
        annotation=Annotated[kind, declared],
    )


def flags(option: Option, *, is_switch: bool) -> list[str]:
    """Return the flags of an option; none if Typer's own, which also negates a switch, is meant."""
    more = option.metadata.get("more_flags", ())
    return [option.flag, *more] if is_switch or more or "flag" in option.metadata else []


def command_type(option: Option) -> Any:
    """Return the type of an option on the command line."""
    if option.metadata.get("is_image"):
        return str
    kinds = [kind for kind in union_members(option.hint) if kind is not type(None)]
    origins = [get_origin(kind) or kind for kind in kinds]
    if option.metadata.get("collection") or Mapping in origins:
        return Path
    if option.metadata.get("separated"):
        return str
    if Sequence in origins or tuple in origins:
        return list[str]
    if len(kinds) > 1 and Literal in origins:  # true, false or a word
        return str
    return bool if bool in kinds else kinds[0]


def read_value(option: Option, value: Any) -> Any:
    """Convert the value of an option from the command line; None if it is not given."""
    kinds = union_members(option.hint)
    if value is None or value == []:
        return None
    if option.metadata.get("separated"):
        return separated(option, value)
    if isinstance(value, Path) and not option.metadata.get("collection"):
        return read_json_schema(value)
    if bool in kinds and value in ("true", "false"):
        return value == "true"
    return value


def separated(option: Option, text: str) -> list[Any]:
    """Split a text at commas, or read the lines of a file of this name."""
    from glassformer.cli.lines import read_lines

    path = Path(text)
    if len(text) < 4096 and path.is_file():
        lines, errors = read_lines(path)
        errors.report_all()
    else:
        lines = text.split(",")
    items = [line.strip() for line in lines if line.strip()]
    if "float" not in str(option.hint):
        return list(items)
    try:
        return [float(item) for item in items]
    except ValueError:
        expected = "numbers, separated by commas"
        raise InvalidValueError(name=option.name, value=text, expected=expected) from None
