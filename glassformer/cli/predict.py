"""Commands that read texts, images or series: classify, embed, similar, fill, answer, forecast."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from glassformer.cli.console import message, print_json
from glassformer.cli.lines import (
    Inputs,
    LineErrors,
    check_line_output,
    check_output_file,
    open_output,
    progress_callback,
    read_lines,
)
from glassformer.cli.options import (
    OUTPUT_PANEL,
    Columns,
    Device,
    Dtype,
    Encoding,
    Json,
    LineOptions,
    Model,
    Overwrite,
    Texts,
    TextsOrImages,
    Threads,
    Top,
    Truncate,
    expand_folders,
    load_model,
    with_options,
)
from glassformer.errors import (
    ConflictError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.messages import plural

if TYPE_CHECKING:
    from torch import Tensor

    from glassformer.bundle import Bundle
    from glassformer.tasks.base import Task
    from glassformer.tasks.classification import Classification
    from glassformer.tasks.forecasting import Forecast
    from glassformer.tasks.images import ImageWarning
    from glassformer.tasks.table_columns import ClassificationColumns

Result = TypeVar("Result")
FormattedResult = tuple[str, dict[str, Any], dict[str, Any]]  # a line, JSON values, and cells of a table
NO_ANSWER: dict[str, Any] = {"text": "", "start": 0, "end": 0, "score": 0.0, "no_answer": 0.0}


@with_options(LineOptions)
def classify(
    model: Model,
    inputs: TextsOrImages = None,
    top: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of labels (default: 1, or all with at least 50 % for a multi-label model).",
            show_default=False,
        ),
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(
            help="Labels, separated by commas, or a file with one per line; for a model with an image and a "
            "text tower, e.g. CLIP.",
            show_default=False,
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(
            help='Text of a label, with {} in place of its name (default: "a photo of a {}"). Repeatable: '
            "several are averaged.",
            show_default=False,
        ),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="Inputs are two texts separated by a tab, e.g. for NLI.")
    ] = False,
    truncate: Truncate = False,
    *,
    options: LineOptions,
) -> None:
    """Classify texts, images or time series.

    Prints one line per input: label, tab, probability. A regression model
    prints its predicted value. A model trained on text pairs reads two texts
    separated by a tab.
    A model with an image and a text tower compares images with --labels.
    For a folder, all its images are read; each line starts with the path.
    A model of time series reads them from a file: .ts, UCR .tsv or a table.
    Empty lines stay empty. --json prints the probabilities of all labels.
    A table written with --out gets the columns label and score, or labels;
    for time series, the columns are id, label and score.
    Warns on stderr about images unlike the training data.
    """
    check_line_output(options.out, options.file, resume=options.resume, overwrite=options.overwrite)
    bundle = options.load(model)
    from glassformer.tasks.classification import Classifier
    from glassformer.tasks.images import image_warning_message
    from glassformer.tasks.series_classification import reads_series
    from glassformer.tasks.table_columns import classification_columns

    zero_shot = _zero_shot_options(bundle, labels, template)
    table = classification_columns(bundle, top)
    top_labels = None if options.as_json else table.top
    if reads_series(bundle):
        _classify_series(bundle, inputs, options, table)
        return
    pairs = pairs or bool(bundle.job.text_pair)
    source = options.read(inputs, bundle, max_columns=2)
    task: Task[Any, Classification]
    if zero_shot is None:
        task = Classifier(bundle, top=top_labels, truncate=truncate, **options.task_kwargs())
    else:
        from glassformer.tasks.zero_shot import ZeroShotClassifier

        kwargs = {**zero_shot, **options.task_kwargs()}
        task = ZeroShotClassifier(bundle, top=top_labels, truncate=truncate, **kwargs)
    if pairs:
        source.lines = map(_split_pair, source.lines)
    warnings: Counter[ImageWarning] = Counter()

    def show(result: Classification) -> FormattedResult:
        warnings.update(result.warnings)
        line = format_scores((label.label, label.score) for label in table.labels(result))
        return line, {"labels": [asdict(label) for label in result.labels]}, table.cells(result)

    try:
        _print_results(source, task, show, options, table.types)
    finally:
        for warning, count in warnings.items():
            message(f"note: {image_warning_message(bundle, warning, count)}")


def _zero_shot_options(
    bundle: Bundle, labels: str | None, template: list[str] | None
) -> dict[str, Any] | None:
    """Return the labels and template of zero-shot classification; None for a model with its own labels."""
    from glassformer.core.spec import TwoTowerSpec

    if not isinstance(bundle.spec, TwoTowerSpec):
        if labels is not None or template:
            raise UnsupportedError(bundle.display_name, "other labels", hint="it has its own labels")
        return None
    if labels is None:
        raise MissingValueError(name="labels", needed_for=f"by {bundle.display_name}, which has no labels")
    path = Path(labels)
    if len(labels) < 4096 and path.is_file():
        lines, errors = read_lines(path, "utf-8")
        errors.report_all()
        names = [line.strip() for line in lines]
    else:
        names = [name.strip() for name in labels.split(",")]
    names = [name for name in names if name]
    return {"labels": names, **({"template": template} if template else {})}


def _split_pair(line: Any) -> Any:
    """Split a line into two texts at its tab; an empty line and a row of a table stay as they are."""
    if isinstance(line, tuple):
        return line
    first, tab, second = line.partition("\t")
    if not tab and line.strip():
        raise InvalidValueError(name="text", value=line, expected="two texts separated by a tab")
    return (first, second) if tab else line


def _classify_series(
    bundle: Bundle, files: list[str] | None, options: LineOptions, table: ClassificationColumns
) -> None:
    """Print a line for each series of the files, or write a table with the columns id, label and score."""
    from glassformer.data.labeled_series import read_labeled_series
    from glassformer.data.readers import file_format
    from glassformer.data.tables import TableWriter
    from glassformer.tasks.series_classification import SeriesClassifier

    out = options.out
    if options.resume:
        raise UnsupportedError(bundle.display_name, "resuming")
    task = SeriesClassifier(bundle, top=None if options.as_json else table.top)
    paths: list[str | Path] = [*(files or []), *([] if options.file is None else [options.file])]
    if not paths:
        raise MissingValueError("file", needed_for="to classify time series", hint="name a file of series")
    ids: list[str] = []
    results: list[Classification] = []
    for path in paths:
        series = read_labeled_series(path, labeled=False, encoding=options.encoding)
        ids += series.ids
        results += task.run(series.values)
    if out is not None and not options.as_json and file_format(out) != "plain":
        with TableWriter(out, table.types, names=("id",)) as writer:
            for name, result in zip(ids, results, strict=True):
                writer.write({"id": name}, table.cells(result))
    else:
        lines = [
            json.dumps({"labels": [asdict(label) for label in result.labels]}, ensure_ascii=False)
            if options.as_json
            else format_scores((label.label, label.score) for label in result.labels)
            for result in results
        ]
        text = "".join(f"{line}\n" for line in lines)
        if out is None:
            sys.stdout.write(text)
            return
        from glassformer.weights.atomic_write import atomic_write

        with atomic_write(out) as file:
            file.write(text.encode())
    message(f"wrote {len(results):,} series to {out}")


@with_options(LineOptions)
def ner(
    model: Model,
    texts: Texts = None,
    aggregation_strategy: Annotated[
        Literal["none", "simple", "first"] | None,
        typer.Option(
            help="How tokens form entities, as in transformers (default: first for a model trained with the "
            "job ner, else simple).",
            show_default=False,
        ),
    ] = None,
    truncate: Truncate = False,
    *,
    options: LineOptions,
) -> None:
    """Find named entities in texts.

    Prints one line per text: entity, label and probability of each entity,
    separated by tabs. Empty lines stay empty. --json adds character offsets.
    A table written with --out gets the column entities, as JSON.
    """
    source, bundle = _open(model, texts, options)
    from glassformer.tasks.table_columns import table_columns
    from glassformer.tasks.token_classification import Entity, TokenClassifier

    task = TokenClassifier(
        bundle, aggregation_strategy=aggregation_strategy, truncate=truncate, **options.task_kwargs()
    )

    table = table_columns("ner", bundle)

    def show(entities: list[Entity]) -> FormattedResult:
        line = "\t".join(f"{' '.join(e.text.split())}\t{e.label}\t{e.score:.4f}" for e in entities)
        return line, {"entities": [asdict(entity) for entity in entities]}, table.cells(entities)

    _print_results(source, task, show, options, table.types)


@with_options(LineOptions)
def embed(
    model: Model,
    inputs: TextsOrImages = None,
    prompt: Annotated[
        str | None,
        typer.Option(help="Name of a prompt defined in the model folder, e.g. query.", show_default=False),
    ] = None,
    truncate: Truncate = False,
    *,
    options: LineOptions,
) -> None:
    """Embed texts or images.

    Prints one vector per line, with values separated by spaces.
    A model with an image and a text tower embeds both: names that end like
    an image file's are images. For a folder, all its images are read, and
    each line starts with the path.
    A sentence encoder pools and normalizes as configured; other text
    encoders return the mean over tokens, image encoders their class token,
    if they have one. Empty lines stay empty. --out writes a
    float32 array (N, D) to a .npy file, in which the rows of empty lines are
    NaN, or adds a column embedding to a table.
    """
    from glassformer.data.readers import file_format

    out = options.out
    if out is not None and out.suffix == ".npy" and options.resume:
        raise UnsupportedError(subject=".npy output", feature="resuming", hint="write .jsonl instead")
    if out is not None and out.suffix != ".npy" and file_format(out) == "plain":
        expected = "a .npy, .csv, .tsv, .jsonl or .parquet file"
        raise InvalidValueError(name="out", value=str(out), expected=expected)
    source, bundle = _open(model, inputs, options)
    from glassformer.tasks.embedding import Embedder, embedding_size
    from glassformer.tasks.table_columns import finite_values, table_columns

    task = Embedder(bundle, truncate=truncate, prompt=prompt, **options.task_kwargs())
    if out is not None and out.suffix == ".npy":
        _save_vectors(out, source, source.process(task), embedding_size(bundle))
        return

    table = table_columns("embed", bundle)

    def show(vector: Tensor) -> FormattedResult:
        values = finite_values(vector)
        return " ".join(f"{value:.9g}" for value in values), {"vector": values}, table.cells(vector)

    _print_results(source, task, show, options, table.types)


@with_options(LineOptions)
def similar(
    model: Model,
    inputs: TextsOrImages = None,
    corpus: Annotated[
        Path,
        typer.Option(
            "--corpus", help="File to search, one text or image path per line, or a folder of images."
        ),
    ] = ...,  # type: ignore[assignment]
    top: Top = 1,
    truncate: Truncate = False,
    *,
    options: LineOptions,
) -> None:
    """Find the most similar lines of a file, or images of a folder.

    With an image and a text tower, texts find images and images find texts.
    Prints the lines and their cosine similarities, separated by tabs.
    Empty lines stay empty; empty lines of the corpus are ignored.
    """
    from glassformer.data.image_files import is_image_name

    if is_image_name(corpus):
        hint = "name a folder of images, or a file with one text per line"
        raise FileProblemError(corpus, "is the name of an image", hint=hint)
    folder = corpus.is_dir()
    lines, errors = ([], LineErrors(unit="image")) if folder else read_lines(corpus, options.encoding)
    source, bundle = _open(model, inputs, options)
    if folder:
        lines = expand_folders([str(corpus)], bundle)
        if not lines:
            raise FileProblemError(corpus, "is a folder", hint="name a file with one text per line")
    from glassformer.tasks.base import Callbacks
    from glassformer.tasks.embedding import Match, SimilaritySearch
    from glassformer.tasks.table_columns import top_columns

    try:
        task = SimilaritySearch(
            bundle,
            lines,
            top=top,
            truncate=truncate,
            on_candidates=Callbacks(
                on_done=progress_callback(len(lines), errors.unit), on_reject=errors.add, skip_blank=True
            ),
            **options.task_kwargs(),
        )
    finally:
        errors.report_all()

    def show(matches: list[Match]) -> FormattedResult:
        nearest = [{"line": m.index + 1, "text": m.text, "score": m.score} for m in matches]
        cells = dict(zip(columns, (cell for m in matches for cell in (m.text, m.score)), strict=False))
        return format_scores((match.text, match.score) for match in matches), {"nearest": nearest}, cells

    columns = top_columns({"match": str, "score": float}, top)
    _print_results(source, task, show, options, columns)
    errors.raise_if_any()


@with_options(LineOptions)
def fill(
    model: Model,
    texts: Texts = None,
    top: Annotated[int, typer.Option(min=1, help="Number of predictions per mask with --json.")] = 5,
    *,
    options: LineOptions,
) -> None:
    """Fill every [MASK] with the most likely word.

    Empty lines stay empty. --json prints the predictions for each mask with
    their probabilities.
    """
    source, bundle = _open(model, texts, options)
    from glassformer.tasks.fill_mask import MaskFiller
    from glassformer.tasks.table_columns import table_columns

    table = table_columns("fill", bundle)
    task = MaskFiller(bundle, top=top if options.as_json else 1, **options.task_kwargs())
    _print_results(
        source,
        task,
        lambda filled: (filled.text, asdict(filled), table.cells(filled)),
        options,
        table.types,
    )


@with_options(LineOptions)
def answer(
    model: Model,
    questions: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="QUESTION", help="Questions; without --context, each followed by a tab and its context."
        ),
    ] = None,
    context: Annotated[
        Path | None, typer.Option(help="Text file that all questions are about.", show_default=False)
    ] = None,
    max_answer_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of answer tokens.")] = 15,
    handle_impossible_answer: Annotated[
        bool,
        typer.Option(
            "--handle-impossible-answer", help="Print an empty answer if it is more likely than any span."
        ),
    ] = False,
    *,
    options: LineOptions,
) -> None:
    """Answer questions with a span of a context.

    Prints one line per question: answer, tab, probability.
    Long contexts are split into overlapping windows. Empty lines stay empty.
    --json adds the position of the answer and the probability that there is
    no answer.
    """
    text, errors = None, LineErrors()
    if context is not None:
        lines, errors = read_lines(context, options.encoding)
        errors.report_all()
        text = "\n".join(lines)
    source, bundle = _open(model, questions, options, max_columns=2 if context is None else 1)
    from glassformer.tasks.question_answering import Answer, QuestionAnswerer
    from glassformer.tasks.table_columns import table_columns

    task = QuestionAnswerer(
        bundle,
        max_answer_tokens=max_answer_tokens,
        handle_impossible_answer=handle_impossible_answer,
        **options.task_kwargs(),
    )

    def pair(line: Any) -> tuple[str, str]:
        if isinstance(line, tuple):  # columns of a table
            return line
        return (line, text) if text is not None else line.partition("\t")[::2]

    source.lines = map(pair, source.lines)

    def show(result: Answer | None) -> FormattedResult:
        if result is None:
            return "", NO_ANSWER, {}
        return format_scores([(result.text, result.score)]), asdict(result), table.cells(result)

    table = table_columns("answer", bundle)
    _print_results(source, task, show, options, table.types)
    errors.raise_if_any()


def forecast(
    model: Model,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="CSV or Parquet file of time series.")],
    time: Annotated[str | None, typer.Option(help="Timestamp column.", show_default=False)] = None,
    columns: Columns = None,
    encoding: Encoding = "utf-8",
    fill: Annotated[
        Literal["error", "linear", "last", "ignore"], typer.Option(help="How to handle missing values.")
    ] = "error",
    quantile_levels: Annotated[
        str, typer.Option(help="Quantile levels, separated by commas.")
    ] = "0.1,0.2,0.3,0.4,0.5,0.6,0.7,0.8,0.9",
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the forecast to this CSV file, and a plot with the same base name.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            help="Plot the forecast to this PNG file.", show_default=False, rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Forecast time series.

    Prints a CSV table of timestamps (ds), means and quantiles.
    Quantile columns such as OT_0.1 are written if the model predicts a
    distribution. By default all columns that the model was trained on are
    forecast.
    """
    quantiles = _parse_levels(quantile_levels)
    figure = figure or (out.with_suffix(".png") if out is not None else None)
    for path in (out, figure):
        if path is not None:
            check_output_file(path, overwrite=overwrite, inputs=[data])
    if out is not None and out == figure:
        raise ConflictError(names=("out", "figure"), reason="both name the same file")
    bundle = load_model(model, device=device, dtype=dtype, threads=threads)
    from glassformer.tasks.forecasting import Forecaster

    names = [name.strip() for name in columns.split(",")] if columns else None
    task = Forecaster(
        bundle, time=time, columns=names, fill=fill, quantile_levels=quantiles, encoding=encoding
    )
    start = perf_counter()
    result = task(data)
    seconds = perf_counter() - start
    for note in result.notes:
        message(note)
    if as_json:
        rows = [dict(zip(result.header(), row, strict=True)) for row in result.rows()]
        print_json({"warnings": list(result.notes), "rows": rows, "seconds": seconds})
    if out is not None or not as_json:
        _write_table(result, out)
    if figure is not None:
        from glassformer.plotting import save
        from glassformer.tasks.forecast_plot import plot_forecast

        save(plot_forecast(result), figure)
        message(f"wrote {figure}" + (", a figure of the first series" if len(result.ids) > 1 else ""))


def _open(
    model: str, inputs: list[str] | None, options: LineOptions, max_columns: int = 1
) -> tuple[Inputs, Bundle]:
    check_line_output(options.out, options.file, resume=options.resume, overwrite=options.overwrite)
    bundle = options.load(model)
    return options.read(inputs, bundle, max_columns), bundle


def _print_results(
    inputs: Inputs,
    task: Task[Any, Result],
    show: Callable[[Result], FormattedResult],
    options: LineOptions,
    columns: Mapping[str, type],
) -> None:
    """Print a line for every result as soon as it is available, or write it to --out.

    columns: types of the cells that `show` returns, for a table.
    """
    started: deque[float] = deque()

    def timed(lines: Iterator[Any]) -> Iterator[Any]:
        for text in lines:
            started.append(perf_counter())
            yield text

    inputs.lines = timed(inputs.lines)
    as_json = options.as_json
    with open_output(
        options.out, inputs, resume=options.resume, columns=None if as_json else columns
    ) as writer:
        started.clear()
        for number, result in enumerate(inputs.process(task), inputs.first + 1):
            seconds, error = perf_counter() - started.popleft(), inputs.errors.pop(number)
            line, values, cells = show(result) if error is None else ("", {"error": error}, {})
            if inputs.images:
                image = inputs.images[number - 1]
                line, values = f"{image}\t{line}", {"image": image, **values}
            json_line = json.dumps({**values, "seconds": seconds}, ensure_ascii=False) if as_json else ""
            writer.write(json_line or line, cells)
    inputs.errors.raise_if_any()


def _save_vectors(out: Path, inputs: Inputs, vectors: Iterable[Tensor], width: int) -> None:
    """Write the vectors one by one as an array file, so that they need not fit into memory."""
    from numpy.lib.format import write_array_header_1_0

    from glassformer.tasks.table_columns import finite_values
    from glassformer.weights.atomic_write import atomic_write

    if inputs.total is None:
        raise MissingValueError(name="file", needed_for="to write an array, whose size must be known")
    empty = 0
    with atomic_write(out) as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (inputs.total, width)}
        write_array_header_1_0(file, header)
        for number, vector in enumerate(vectors):
            file.write(vector.numpy().astype("<f4").data)
            empty += not finite_values(vector)
            inputs.errors.pop(number + 1)
    message(f"wrote {inputs.total:,} vectors of {width} values to {out}")
    if empty:
        source = "bad images" if inputs.images else "empty or invalid lines"
        message(f"note: {empty:,} {plural('vector', empty)} of {source} {'is' if empty == 1 else 'are'} NaN")
    inputs.errors.raise_if_any()


def format_scores(pairs: Iterable[tuple[str, float]]) -> str:
    """Join names and scores to one line, separated by tabs.

    >>> format_scores([("good", 0.75), ("bad", 0.25)])
    'good\\t0.7500\\tbad\\t0.2500'
    """
    return "\t".join(f"{' '.join(name.split())}\t{score:.4f}" for name, score in pairs)


def _parse_levels(text: str) -> list[float]:
    try:
        return [float(level) for level in text.split(",") if level.strip()]
    except ValueError:
        raise InvalidValueError(
            name="quantile_levels", value=text, expected="numbers between 0 and 1, e.g. 0.1,0.5,0.9"
        ) from None


def _write_table(result: Forecast, out: Path | None) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(result.header())
    writer.writerows(result.formatted_rows())
    if out is None:
        sys.stdout.write(text.getvalue())
        return
    from glassformer.weights.atomic_write import atomic_write

    with atomic_write(out) as file:
        file.write(text.getvalue().encode())
    message(f"wrote {result.values.shape[1]:,} steps of {len(result.ids):,} series to {out}")
