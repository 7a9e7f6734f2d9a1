"""One method per task for `Pipeline`, made from the declarations. Editors and mypy read `methods.pyi`.

`make stubs` writes the stub; a test compares it.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import Parameter, Signature
from os import PathLike
from os.path import isdir
from typing import TYPE_CHECKING, Any

from glassformer.errors import InvalidValueError
from glassformer.tasks import registry
from glassformer.tasks.registry import TaskSpec

if TYPE_CHECKING:
    from glassformer.bundle import Bundle


class TaskMethods:
    """One method per task. One input gives one result; a list of inputs gives a list of results."""


def attach(kind: type, spec: TaskSpec) -> None:
    """Add the method of a task to a class of bundles."""

    def method(self: Bundle, *args: Any, **options: Any) -> Any:
        given = signature.bind(self, *args, **options).arguments
        options = {**given.pop("options", {}), **given}
        del options["self"]
        return call_task(spec, self, options.pop(spec.argument), options.pop(spec.second, None), options)

    names = {option.name for option in spec.all_options}
    positional = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in ("self", spec.argument)]
    if spec.second:
        missing = Parameter.empty if spec.inputs.pairs == "always" or spec.second in names else None
        positional.append(Parameter(spec.second, Parameter.POSITIONAL_OR_KEYWORD, default=missing))
    signature = Signature([*positional, Parameter("options", Parameter.VAR_KEYWORD)])
    method.__name__, method.__doc__ = spec.name, describe(spec)
    method.__qualname__ = f"{kind.__qualname__}.{spec.name}"
    method.__signature__ = signature  # type: ignore[attr-defined]
    setattr(kind, spec.name, method)


def describe(spec: TaskSpec) -> str:
    """Return the docstring of a method: what the task does, and its options."""
    options = [f"{option.name}: {option.help}" for option in spec.all_options if not option.owner]
    if any(option.owner for option in spec.all_options):
        options.append("The other options are those of `GenerationConfig`.")
    parts = [spec.summary, spec.description, "\n".join(options)]
    return "\n\n".join(part for part in parts if part)


def call_task(spec: TaskSpec, bundle: Bundle, inputs: Any, second: Any, values: dict[str, Any]) -> Any:
    """Run a task on one input or several; return its value for one, the collected values for several.

    second: the second texts of pairs, or the option that is given by position.
    """
    from glassformer.tasks.base import RejectedInputError

    if second is not None and spec.inputs.pairs == "never":
        values, second = {**values, spec.second: second}, None
    for option in spec.all_options:
        if option.metadata.get("collection"):
            collection = expand_folder(values.get(option.name), or_text="text" in bundle.spec.modalities)
            values = {**values, option.name: collection}
    task = spec.make(bundle, spec.read_options(values))
    if spec.inputs == registry.SAMPLE and "series" in bundle.spec.modalities:
        from glassformer.processors.series import series_inputs

        inputs = series_inputs(inputs)
    elif "image" in spec.inputs.modalities:
        is_text = "text" in spec.inputs.modalities and "text" in task.bundle.spec.modalities
        inputs = expand_folder(inputs, or_text=is_text)
    single = task.is_single((inputs, "") if spec.inputs.pairs == "always" else inputs)
    items: Any = [inputs] if single else inputs
    if not isinstance(items, Iterable):
        raise InvalidValueError(spec.argument, type(items).__name__, "one input, or a list of them")
    if second is not None:
        items = spec.join_pairs(list(items), [second] if isinstance(second, str) else list(second))
        single = single and isinstance(second, str)
    if not single:
        return spec.collect(bundle, [spec.value(output) for output in task.run(items)])
    try:
        (output,) = task.run(items)
    except RejectedInputError as error:
        raise error.reason from None
    return spec.value(output)


def expand_folder(inputs: Any, *, or_text: bool) -> Any:
    """Return the images of a folder, and anything else unchanged. or_text: a str is a text, not a folder."""
    is_path = isinstance(inputs, PathLike) or (isinstance(inputs, str) and not or_text)
    if not is_path or not isdir(inputs):
        return inputs
    from glassformer.data.image_files import list_images

    return list_images([inputs])


for _spec in registry.tasks().values():
    attach(TaskMethods, _spec)
