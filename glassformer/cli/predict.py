"""Run a task on lines, rows of a table, images or series: one line, JSON object or row per input."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import (
    Inputs,
    LineErrors,
    check_line_output,
    open_output,
    progress_callback,
    read_image_questions,
    read_lines,
)
from glassformer.cli.options import LineOptions, expand_folders, optional
from glassformer.errors import (
    ConflictError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.messages import plural, quantity
from glassformer.tasks.registry import TaskSpec

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.bundle import Bundle
    from glassformer.cli.tasks import TaskRun
    from glassformer.tasks.base import Task


@dataclass(kw_only=True)
class PairOptions(LineOptions):
    """Inputs may be pairs of texts."""

    pairs: Annotated[
        bool, typer.Option("--pairs", help="Inputs are two texts separated by a tab, e.g. for NLI.")
    ] = False


@dataclass(kw_only=True)
class QuestionOptions(LineOptions):
    """Inputs are questions about a context."""

    context: Annotated[Path | None, optional(help="Text file that all questions are about.")] = None


def run_lines(run: TaskRun, options: LineOptions) -> None:
    """Print a line for every result as soon as it is available, or write it to --out."""
    spec, out = run.spec, options.out
    is_array = out is not None and out.suffix == ".npy"
    if spec.result.is_vector:
        _check_vector_output(out, resume=options.resume)
    check_line_output(out, options.file, resume=options.resume, overwrite=options.overwrite)
    errors, text = LineErrors(), None
    if isinstance(options, QuestionOptions) and options.context is not None:
        lines, errors = read_lines(options.context, options.encoding)
        errors.report_all()
        text = "\n".join(lines)
    bundle = options.load(run.model)
    more: dict[str, Any] = {}
    for option in spec.all_options:
        if option.metadata.get("collection"):
            more, errors = read_collection(option.name, run.values[option.name], bundle, options)
    try:
        chosen = run.options(bundle, brief=not options.as_json, **more)
        task = spec.make(bundle, chosen)
    finally:
        errors.report_all()
    columns = 1 if text is not None else spec.inputs.columns
    if options.file is not None and bundle.job.data_columns is None and spec.inputs.names:
        options.columns = options.columns or [*spec.inputs.names]
    if spec.inputs.crossed and run.inputs:
        if options.file is not None:
            raise ConflictError(names=("IMAGE", "file"), reason="both give the inputs")
        inputs = read_image_questions(run.inputs, expand_folders(run.inputs, bundle))
    else:
        inputs = options.read(run.inputs, bundle, columns, series="series" in spec.inputs.modalities)
    if inputs.table is not None and "image" in bundle.spec.modalities:
        from glassformer.tasks.cells import locate_image

        folder = inputs.table.table.path.parent
        inputs.lines = (locate_image(line, bundle, folder) for line in inputs.lines)
    if inputs.table is not None and inputs.table.lists:
        from glassformer.tasks.cells import cell_reader

        read, _ = cell_reader(spec, bundle)
        inputs.lines = (read((line,)) for line in inputs.lines)
    elif text is not None:
        inputs.lines = ((line, text) for line in inputs.lines)
    elif spec.inputs.pairs == "always":
        inputs.lines = (
            line if isinstance(line, tuple) else line.partition("\t")[::2] for line in inputs.lines
        )
    elif isinstance(options, PairOptions) and (options.pairs or bundle.job.text_pair):
        inputs.lines = map(_split_pair, inputs.lines)
    if is_array:
        assert out is not None
        from glassformer.tasks.embedding import embedding_size

        _save_vectors(out, inputs, inputs.process(task), embedding_size(bundle))
    else:
        types = spec.result.column_types(bundle, chosen)
        _print_results(spec, bundle, task, inputs, options, types)
    errors.raise_if_any()


def _print_results(
    spec: TaskSpec,
    bundle: Bundle,
    task: Task[Any, Any],
    inputs: Inputs,
    options: LineOptions,
    types: Mapping[str, type],
) -> None:
    """Write the results in order. types: of the columns of a table."""
    started: deque[float] = deque()

    def timed(lines: Iterator[Any]) -> Iterator[Any]:
        for text in lines:
            started.append(perf_counter())
            yield text

    inputs.lines = timed(inputs.lines)
    warnings: list[Any] = []  # results with warnings
    columns = None if options.as_json else types
    try:
        with open_output(options.out, inputs, resume=options.resume, columns=columns) as writer:
            started.clear()
            for number, output in enumerate(inputs.process(task), inputs.first + 1):
                seconds, error = perf_counter() - started.popleft(), inputs.errors.pop(number)
                result = spec.result.of(output)
                if getattr(result, "warnings", None):
                    warnings.append(result)
                several = {"image": inputs.images, "question": inputs.questions}
                known = {name: values[number - 1] for name, values in several.items() if values}
                if options.as_json:
                    values = result.to_json() if error is None else {"error": error}
                    line = json.dumps({**known, **values, "seconds": seconds}, ensure_ascii=False)
                else:
                    line = "\t".join([*known.values(), result.line() if error is None else ""])
                writer.write(line, {} if error is not None else result.cells())
    finally:
        for note in spec.notes(bundle, warnings) if spec.notes is not None else ():
            message(f"note: {note}")
    inputs.errors.raise_if_any()


def read_collection(
    name: str, path: Path, bundle: Bundle, options: LineOptions
) -> tuple[dict[str, Any], LineErrors]:
    """Read a collection of inputs: the lines of a file, or the images of a folder.

    Return the option, with callbacks for the lines that cannot be read, and their errors.
    """
    from glassformer.data.image_files import is_image_name
    from glassformer.tasks.base import Callbacks

    if is_image_name(path):
        hint = "name a folder of images, or a file with one text per line"
        raise FileProblemError(path, "is the name of an image", hint=hint)
    errors = LineErrors(unit="image")
    if not path.is_dir():
        lines, errors = read_lines(path, options.encoding)
    elif not (lines := expand_folders([str(path)], bundle)):
        raise FileProblemError(path, "is a folder", hint="name a file with one text per line")
    on_done = progress_callback(len(lines), errors.unit)
    callbacks = Callbacks(on_done=on_done, on_reject=errors.add, skip_blank=True)
    return {name: lines, "callbacks": callbacks}, errors


def _split_pair(line: Any) -> Any:
    """Split a line into two texts at its tab; an empty line and a row of a table stay as they are."""
    if isinstance(line, tuple):
        return line
    first, tab, second = line.partition("\t")
    if not tab and line.strip():
        raise InvalidValueError(name="text", value=line, expected="two texts separated by a tab")
    return (first, second) if tab else line


def _check_vector_output(out: Path | None, *, resume: bool) -> None:
    from glassformer.data.readers import file_format

    if out is not None and out.suffix == ".npy" and resume:
        raise UnsupportedError(subject=".npy output", feature="resuming", hint="write .jsonl instead")
    if out is not None and out.suffix != ".npy" and file_format(out) == "plain":
        expected = "a .npy, .csv, .tsv, .jsonl or .parquet file"
        raise InvalidValueError(name="out", value=str(out), expected=expected)


def _save_vectors(out: Path, inputs: Inputs, vectors: Iterable[Tensor], width: int) -> None:
    """Write the vectors one by one as an array file, so that they need not fit into memory."""
    from numpy.lib.format import write_array_header_1_0

    from glassformer.weights.atomic_write import atomic_write

    if inputs.total is None:
        raise MissingValueError(name="file", needed_for="to write an array, whose size must be known")
    empty = 0
    with atomic_write(out) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (inputs.total, width)}
        write_array_header_1_0(file, header)
        for number, vector in enumerate(vectors, 1):
            file.write(vector.numpy().astype("<f4").data)
            empty += bool(vector.isnan().any())
            inputs.errors.pop(number)
    message(f"wrote {quantity(inputs.total, 'vector')} of {width} values to {out}")
    if empty:
        source = "bad images" if "image" in inputs.columns else "empty or invalid lines"
        message(f"note: {empty:,} {plural('vector', empty)} of {source} {'is' if empty == 1 else 'are'} NaN")
    inputs.errors.raise_if_any()
