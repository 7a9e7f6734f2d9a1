"""The tasks: one declaration each, from which Python, command line, server, batch runs and docs are derived.

A task is a file in `declarations/` that ends in `TASK = TaskSpec(...)`. No declaration imports torch before a
task is made, so `--help` is fast.

A new edge (or a new view of one) iterates over `tasks()`; it never asks which task it has, but what the task
says: the kind of its inputs, its options, its result.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, TypeVar, get_type_hints

from glassformer.errors import InvalidValueError, MissingValueError, UnknownNameError
from glassformer.schema import in_interval, setting

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.base import Callbacks, Task

__all__ = ["REQUIRED", "InputKind", "Option", "TaskOptions", "TaskResult", "TaskSpec", "setting", "tasks"]

Modality = Literal["text", "class", "image", "series"]
REQUIRED: Any = MISSING  # the default of an option that must be set
COMMAND_ONLY: Any = {"edges": ("command",)}
ROUTE_ONLY: Any = {"edges": ("route",)}
PYTHON_ONLY: Any = {"edges": ()}


@dataclass(frozen=True)
class InputKind:
    """What one input of a task is. Every edge has one way to take each kind, so the set is small and closed.

    modalities: what it may be, depending on the model. columns: of a table, at most. pairs: a second text
    belongs to it; "always", or "allowed". names: of the columns by default. crossed: whether a command takes
    images, then texts, and combines each of them with each.
    trained_field: field of the training data with the inputs, if it is the target of other tasks.
    """

    name: str
    modalities: tuple[Modality, ...]
    columns: int = 1
    pairs: Literal["never", "allowed", "always"] = "never"
    names: tuple[str, ...] = ()
    crossed: bool = False
    trained_field: str = ""

    def trained_columns(self, columns: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return those columns of the training data, by field, that have inputs."""
        if not self.trained_field:
            return columns
        return {"text": columns[self.trained_field]} if self.trained_field in columns else {}


TEXT = InputKind("text", ("text",))
PROMPT = InputKind("prompt", ("text",))
# of a model that draws: a request has one
PROMPT_OR_CLASS = InputKind("prompt", ("text", "class"), trained_field="caption")
QUESTION = InputKind("question and context", ("text",), columns=2, pairs="always")
IMAGE = InputKind("image", ("image",))
IMAGE_QUESTION = InputKind(
    "image and question", ("image",), columns=2, pairs="always", names=("image", "question"), crossed=True
)
MARKED_IMAGE = InputKind("image and prompts", ("image",))  # the prompts are options: a request has one image
TEXT_OR_IMAGE = InputKind("text or image", ("text", "image"))
SAMPLE = InputKind("text, image or series", ("text", "image", "series"), columns=2, pairs="allowed")
SERIES_TABLE = InputKind("table of series", ("series",))


class TaskOptions:
    """Base class of options: frozen dataclasses whose fields are declared with `setting`.

    Numbers must lie in the interval of their field. Further metadata, which `setting` accepts:

    edges: "command" and "route" by default; Python has every option.
    flag: of the command, if it is not the name of the option; more_flags: further ones. panel: of the help.
    is_image: the value is an image: a file on the command line, base64 in a request.
    separated: the command takes one text, separated by commas, or a file with a line for each.
    min, max: narrower bounds of a request. max_length, max_items: of its texts and lists.
    single: one item stands for a list in a request.
    command_default: the default of the command, if it differs.
    of_file: the option says how a file of inputs is read.
    collection: the option is a collection of inputs, e.g. to search in.
    spread: a dataclass whose fields are options of their own; the value is a dict of those that are set.
    changes: metadata of some of these options, by name, in place of their own.
    """

    def __post_init__(self) -> None:
        kind: Any = type(self)
        for option in options_of(kind):
            value = getattr(self, option.name, None)
            numbers = value if isinstance(value, list | tuple) else (value,)
            if option.interval and not all(
                in_interval(n, option.interval) for n in numbers if isinstance(n, int | float)
            ):
                raise InvalidValueError(option.name, value, f"a number in {option.interval}")

    def kwargs(self) -> dict[str, Any]:
        """Return the options as keyword arguments of a task."""
        values: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            values |= value if "spread" in field.metadata else {field.name: value}
        return values


class Option(NamedTuple):
    """An option of a task. hint: its type. owner: the field it is spread from, or empty."""

    name: str
    hint: Any
    default: Any
    metadata: Mapping[str, Any]
    owner: str = ""

    @property
    def help(self) -> str:
        description: str = self.metadata["description"]
        return description

    @property
    def interval(self) -> str:
        interval: str = self.metadata["interval"]
        return interval

    @property
    def flag(self) -> str:
        """The flag of the command."""
        return str(self.metadata.get("flag") or f"--{self.name.replace('_', '-')}")

    def is_on(self, edge: Literal["command", "route"]) -> bool:
        return edge in self.metadata.get("edges", ("command", "route"))


@cache
def options_of(kind: type) -> tuple[Option, ...]:
    """Return the options that a dataclass declares, with those of a field with `spread` in its place."""
    hints, options = get_type_hints(kind), list[Option]()
    own = vars(kind).get("__annotations__", {})
    # inherited ones follow, and those of other dataclasses come last
    for field in sorted(fields(kind), key=lambda field: ("spread" in field.metadata, field.name not in own)):
        if (source := field.metadata.get("spread")) is None:
            options.append(Option(field.name, hints[field.name], field.default, field.metadata))
            continue
        inner: Field[Any]
        for inner in fields(source):
            hint = get_type_hints(source)[inner.name]
            changes = field.metadata.get("changes", {}).get(inner.name, {})
            metadata = {**field.metadata, **inner.metadata, **changes}
            options.append(Option(inner.name, hint | None, None, metadata, owner=field.name))
    return tuple(options)


@dataclass(frozen=True, kw_only=True)
class TextBatchOptions(TaskOptions):
    """Options of tasks with one forward pass per batch of texts."""

    truncate: bool = setting(False, "Truncate inputs longer than the model's maximum length.")
    batch_tokens: int = setting(
        16_384, "Maximum number of tokens per batch.", interval="[1, inf)", panel="Device", **COMMAND_ONLY
    )


Self = TypeVar("Self", bound="TaskResult")


class TaskResult:
    """Base class of results: dataclasses whose fields are the JSON values of an input.

    is_vector: whether the only field is a list of numbers, and the output of the task a vector.
    """

    is_vector: ClassVar[bool] = False

    @classmethod
    def of(cls: type[Self], output: Any) -> Self:
        """Create the result from an output of the task; by default, it is the result or its only field."""
        create: Any = cls
        return output if isinstance(output, cls) else create(output)

    @classmethod
    def column_types(cls, bundle: Bundle, options: Any) -> Mapping[str, type]:
        """Return the types of the columns that a table gets: str, float or list."""
        return dict.fromkeys((field.name for field in fields(cls)), str)  # type: ignore[arg-type]

    def cells(self) -> Mapping[str, object]:
        """Return the values of the columns, and maybe of further ones; none are empty cells.

        The content of a PNG file (bytes) is written to a file, whose name the cell then has.
        """
        return {name: as_text(value) for name, value in self.to_json().items()}

    def line(self) -> str:
        """Return the result as one line of text."""
        return "\t".join(as_text(value) for value in self.to_json().values())

    def to_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)  # type: ignore[call-overload, no-any-return]


def as_text(value: Any) -> str:
    """Return a JSON value as text for a cell."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def format_scores(pairs: Iterable[tuple[str, float]]) -> str:
    """Join names and scores to one line, separated by tabs.

    >>> format_scores([("good", 0.75), ("bad", 0.25)])
    'good\\t0.7500\\tbad\\t0.2500'
    """
    return "\t".join(f"{' '.join(name.split())}\t{score:.4f}" for name, score in pairs)


def top_columns(columns: Mapping[str, type], top: int) -> dict[str, type]:
    """Return the columns of several results: label, score, label_2, score_2."""
    return {
        name if n == 1 else f"{name}_{n}": kind for n in range(1, top + 1) for name, kind in columns.items()
    }


def top_cells(names: Sequence[str], rows: Sequence[Sequence[object]]) -> dict[str, object]:
    """Return the cells of `top_columns`.

    >>> top_cells(["label", "score"], [("good", 0.75), ("bad", 0.25)])
    {'label': 'good', 'score': 0.75, 'label_2': 'bad', 'score_2': 0.25}
    """
    cells = zip(
        top_columns(dict.fromkeys(names, str), len(rows)), (x for row in rows for x in row), strict=True
    )
    return dict(cells)


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """The declaration of a task.

    name: of the command, the route and the Python method. summary: one line.
    description: more about the task, for all edges. lines: what the command prints.
    inputs: what an input is. argument: the name of the inputs in Python, e.g. `texts`.
    second: the name of the second text of each pair, or of an option that may be given by position.
    options, result: dataclasses.
    accepts: whether a model, by its spec, can do the task.
    make: creates the task from a model and options; it may raise errors about both.
    prefers: whether the server should choose this one of the accepted models, if a request names none.
    value: what the Python method returns for an output of the task; returns: its type, for editors.
    collect: what it returns for a list of these values.
    brief: the options for output with room for only a few values: a line, or a row of a table.
    notes: messages about results, for the user.
    batch_rows: maximum number of rows in a block of a batch run by default: its results are in memory.
    parts: yields the parts of the response for one input, one by one, because together they might not fit
    into memory.
    results: the key of the results in a response.
    view: whether the explorer has a view for a model, by its spec; a text is a kind other than the name.
    examples: inputs. metric: of an evaluation. job: that trains models for it.
    """

    name: str
    summary: str
    description: str = ""
    lines: str = ""
    inputs: InputKind
    argument: str
    second: str = ""
    options: type[Any]
    result: type[TaskResult]
    accepts: Callable[[Any], bool]
    make: Callable[[Bundle, Any], Task[Any, Any]]
    prefers: Callable[[Bundle, Any], bool] = lambda bundle, options: True
    value: Callable[[Any], Any] = lambda output: output
    returns: str
    collect: Callable[[Bundle, list[Any]], Any] = lambda bundle, values: values
    brief: Callable[[Bundle, Any], Any] = lambda bundle, options: options
    notes: Callable[[Bundle, Sequence[Any]], list[str]] | None = None
    batch_rows: int = 10_000
    parts: Callable[[Any, Any, Callbacks], Iterator[Any]] | None = None
    results: str = "results"
    view: Callable[[Any], str | bool] = lambda spec: False
    examples: tuple[Any, ...] = ()
    metric: str = ""
    job: str = ""

    @property
    def all_options(self) -> tuple[Option, ...]:
        kind: Any = self.options
        return options_of(kind)

    def read_options(self, values: Mapping[str, Any]) -> Any:
        """Create the options from values by name; those left out have their defaults."""
        known = {option.name: option for option in self.all_options}
        chosen: dict[str, Any] = {option.owner: {} for option in known.values() if option.owner}
        for name, value in values.items():
            if name not in known:
                raise UnknownNameError("option", name, sorted(known), where=f"the task {self.name}")
            if value is None:  # not set
                continue
            if owner := known[name].owner:
                chosen[owner][name] = value
            else:
                chosen[name] = value
        for name, option in known.items():
            if option.default is REQUIRED and name not in chosen:
                raise MissingValueError(name, f"by the task {self.name}")
        return self.options(**chosen)

    def join_pairs(self, firsts: list[Any], seconds: list[str]) -> list[tuple[Any, str]]:
        """Return inputs with their second texts; if there is only one of either, it belongs to all others."""
        if self.inputs.pairs == "always" and len(firsts) == 1:
            firsts = firsts * len(seconds)
        elif self.inputs.pairs == "always" and len(seconds) == 1:
            seconds = seconds * len(firsts)
        if len(firsts) != len(seconds):
            expected = f"{len(firsts)}, as many as {self.argument}"
            raise InvalidValueError(self.second, f"{len(seconds)} texts", expected)
        return list(zip(firsts, seconds, strict=True))

    @property
    def result_field(self) -> str | None:
        """The field that is the whole result, if there is only one; notes do not count."""
        names = [field.name for field in fields(self.result) if field.name != "warnings"]  # type: ignore[arg-type]
        return names[0] if len(names) == 1 else None


@cache
def _declared() -> dict[str, TaskSpec]:
    from glassformer.tasks import declarations

    modules = [
        import_module(f"{declarations.__name__}.{one.name}") for one in iter_modules(declarations.__path__)
    ]
    found = [module.TASK for module in modules if hasattr(module, "TASK")]
    return {spec.name: spec for spec in sorted(found, key=_order)}


REGISTERED: dict[str, TaskSpec] = {}  # tasks that are declared elsewhere, e.g. in a test
_KINDS = (
    *(TEXT, PROMPT, SAMPLE, QUESTION, TEXT_OR_IMAGE, IMAGE, IMAGE_QUESTION, MARKED_IMAGE),
    *(PROMPT_OR_CLASS, SERIES_TABLE),
)


def _order(spec: TaskSpec) -> tuple[int, str]:
    return _KINDS.index(spec.inputs), spec.name


def tasks() -> dict[str, TaskSpec]:
    """Return all tasks by name, in the order of their kinds of inputs."""
    return {**_declared(), **REGISTERED}


def find_task(name: str) -> TaskSpec:
    """Return a task by its name."""
    if name not in tasks():
        raise UnknownNameError("task", name, tasks())
    return tasks()[name]


def tasks_of(model_spec: Any) -> list[TaskSpec]:
    """Return the tasks that a model can do."""
    return [spec for spec in tasks().values() if spec.accepts(model_spec)]
