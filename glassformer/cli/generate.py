"""Commands that generate text: translate, summarize, restore, generate."""

from __future__ import annotations

import json
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import check_line_output, check_output_file, open_output
from glassformer.cli.options import (
    GenerateOptions,
    JsonSchema,
    Model,
    Texts,
    To,
    note_file_as_text,
    read_json_schema,
    with_options,
)
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.text_generation import (
        GeneratedText,
        InputWarning,
        TextGenerationTask,
        TextGenerator,
    )

TREE_SUFFIXES = (".svg", ".png", ".json")
Prefix = Annotated[
    str | None, typer.Option(help="Text to prepend to every input (default: from the model folder).")
]


@with_options(GenerateOptions)
def translate(
    model: Model,
    texts: Texts = None,
    to: To = None,
    prefix: Prefix = None,
    split: Annotated[
        Literal["long", "always", "never"] | None,
        typer.Option(help="Which lines to split into sentences (default: set by the model)."),
    ] = None,
    *,
    options: GenerateOptions,
) -> None:
    """Translate texts, one per line.

    Empty lines stay empty. Lines of more than 128 tokens are translated
    sentence by sentence, as are all lines if the model was trained on single
    sentences. Defaults come from generation_config.json in the model folder;
    without it, beam search uses 4 beams.
    """
    bundle = _load(model, texts, options)
    from glassformer.tasks.translation import Translator

    task = Translator(bundle, to=to, prefix=prefix, split=split, **options.task_kwargs())
    _run(task, texts, options, name="translate")


@with_options(GenerateOptions)
def summarize(model: Model, texts: Texts = None, prefix: Prefix = None, *, options: GenerateOptions) -> None:
    """Summarize texts, one per line.

    Empty lines stay empty. A text longer than the model's maximum length is
    an error.
    """
    bundle = _load(model, texts, options)
    from glassformer.tasks.translation import Summarizer

    _run(Summarizer(bundle, prefix=prefix, **options.task_kwargs()), texts, options, name="summarize")


@with_options(GenerateOptions)
def restore(model: Model, texts: Texts = None, *, options: GenerateOptions) -> None:
    """Restore sentences with missing or shuffled words, one per line.

    `<gap>` marks missing words. MODEL must be trained for the restore task.
    Empty lines stay empty.
    """
    bundle = _load(model, texts, options)
    from glassformer.tasks.translation import Restorer

    _run(Restorer(bundle, **options.task_kwargs()), texts, options, name="restore")


@with_options(GenerateOptions)
def generate(
    model: Model,
    texts: Texts = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the generated text.")] = False,
    parse_special: Annotated[
        bool, typer.Option("--parse-special", help="Parse special tokens such as <|im_start|> in prompts.")
    ] = False,
    json_schema: JsonSchema = None,
    *,
    options: GenerateOptions,
) -> None:
    """Generate text from a prompt, streamed as it is produced.

    For several prompts, a file or stdin, prints one line per prompt and
    replaces line breaks with spaces (--json keeps them). Empty lines stay
    empty. Generates at most 256 tokens by default.
    """
    schema = read_json_schema(json_schema)
    bundle = _load(model, texts, options)
    from glassformer.tasks.text_generation import TextGenerator, check_single_language

    if not parse_special:
        check_single_language(bundle)
    task = TextGenerator(bundle, parse_special=parse_special, **schema, **options.task_kwargs())
    as_lines = options.as_json or options.out or options.tree
    if texts and len(texts) == 1 and options.num_beams in (None, 1) and not as_lines:
        _stream(task, texts[0], echo)
    else:
        _run(task, texts, options, name="generate", echo=echo)


def _load(model: str, texts: list[str] | None, options: GenerateOptions) -> Bundle:
    """Check the options, then load the model."""
    if options.tree is not None:
        _check_tree(options.tree, texts, options)
    check_line_output(options.out, options.file, resume=options.resume, overwrite=options.overwrite)
    if (options.num_return_sequences or 1) > 1 and not options.as_json:
        raise MissingValueError(name="as_json", needed_for="to print several texts per input")
    return options.load(model)


def _stream(task: TextGenerator, prompt: str, echo: bool) -> None:
    from glassformer.tasks.streaming import TextStream

    note_file_as_text([prompt], task.bundle)
    with closing(TextStream(task, prompt)) as stream:
        sys.stdout.write(prompt if echo else "")
        for piece in stream:
            sys.stdout.write(piece)
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
        if stream.result is not None:
            notes = Notes(task.bundle)
            notes.add(stream.result)
            notes.report()


def _run(
    task: TextGenerationTask[str],
    texts: list[str] | None,
    options: GenerateOptions,
    *,
    name: str,
    echo: bool = False,
) -> None:
    """Print one output line per input line, in order.

    name: of the task, for the column that a table gets. echo: print each input before its output.
    """
    from glassformer.tasks.text_generation import GENERATED_COLUMNS

    column = GENERATED_COLUMNS[name]
    inputs = options.read(texts, task.bundle)
    notes = Notes(task.bundle)
    skip_blank = inputs.source != "arguments"  # an empty argument is a prompt
    columns = None if options.as_json else {column: str}
    with open_output(options.out, inputs, resume=options.resume, columns=columns) as writer:
        inputs.lines, prompts = tee(inputs.lines) if echo else (inputs.lines, iter(()))
        results = inputs.process(task, skip_blank=skip_blank)
        for number, result in enumerate(results, inputs.first + 1):
            error = inputs.errors.pop(number)
            for prompt in islice(prompts, 1):
                prompt = "" if skip_blank and not prompt.strip() else prompt
                result = replace(result, text=prompt + result.text)
            values: dict[str, Any] = {"error": error} if error is not None else _values(result)
            if options.tree is not None and texts:
                values["tree"] = _write_tree(task.bundle, result, options.tree, texts[0])
            plain = "" if error is not None else result.text
            line = json.dumps(values, ensure_ascii=False) if options.as_json else plain
            writer.write(line, {} if error is not None else {column: plain})
            notes.add(result)
            if inputs.source == "terminal":
                notes.report()
    notes.report()
    inputs.errors.raise_if_any()


def _values(result: GeneratedText) -> dict[str, Any]:
    """Convert a result to JSON values."""
    names = ("text", "score", "num_tokens", "seconds", "finish_reason", "warnings")
    values = {name: getattr(result, name) for name in names}
    if result.alternatives:
        values["alternatives"] = [_values(alternative) for alternative in result.alternatives]
    return values


class Notes:
    """Collects notes about the results, and prints each note once with a count."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle, self._limit_reported = bundle, False
        self._warnings: Counter[InputWarning] = Counter()

    def add(self, result: GeneratedText) -> None:
        self._warnings.update(result.warnings)
        if result.finish_reason == "length" and not self._limit_reported:
            self._limit_reported = True
            message("note: generation stopped at the token limit; raise it with --max-new-tokens")

    def report(self) -> None:
        from glassformer.tasks.text_generation import warning_message

        for warning, texts in self._warnings.items():
            message(f"note: {warning_message(self._bundle, warning, texts)}")
        self._warnings.clear()


def _check_tree(path: Path, texts: list[str] | None, options: GenerateOptions) -> None:
    """Check --tree before a model is loaded."""
    if path.suffix.lower() not in TREE_SUFFIXES:
        expected = f"a file ending in {', '.join(TREE_SUFFIXES)}"
        raise InvalidValueError(name="tree", value=str(path), expected=expected)
    if len(texts or ()) != 1 or options.file is not None:
        raise ConflictError(names=("tree", "TEXT"), reason="a search tree is drawn for exactly one text")
    if options.out is not None and options.out.absolute() == path.absolute():
        raise ConflictError(names=("tree", "out"), reason="both name the same file")
    path.parent.mkdir(parents=True, exist_ok=True)
    check_output_file(path, overwrite=options.overwrite)


def _write_tree(bundle: Bundle, result: GeneratedText, path: Path, text: str) -> dict[str, Any]:
    """Save the search tree of a text as a figure or as JSON; return it as JSON values."""
    if len(result.trees) != 1:
        feature = f"a text that is processed in {len(result.trees)} parts"
        raise UnsupportedError(subject="the search tree", feature=feature, hint="shorten it")
    (tree,) = result.trees

    def pieces(ids: list[int]) -> list[str]:
        assert bundle.tokenizer is not None  # every text model has one
        return bundle.tokenizer.pieces(ids, side="target")

    values: dict[str, Any] = tree.to_json()
    for node, node_values in zip(tree.nodes, values["nodes"], strict=True):
        node_values["piece"] = pieces([step.token for step in tree.path(node)])[-1]
    if path.suffix.lower() == ".json":
        path.write_text(json.dumps(values, ensure_ascii=False) + "\n", encoding="utf-8")
        return values
    from glassformer import plotting

    beams = f", {tree.num_beams} beams" if tree.num_beams > 1 else ""
    title = f"“{' '.join(text.split())}”{beams}"
    plotting.save(plotting.search_tree(tree, pieces, title=title), path)
    return values
