"""Run a task that generates text: lines, a table, JSON with all details, a stream, or a search tree."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import islice, tee
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import check_line_output, check_output_file, open_output
from glassformer.cli.options import LineOptions, note_file_as_text, output_option
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError, UnsupportedError
from glassformer.tasks.registry import PROMPT

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.cli.tasks import TaskRun
    from glassformer.tasks.registry import TaskSpec
    from glassformer.tasks.text_generation import (
        GeneratedText,
        InputWarning,
        TextGenerationTask,
        TextGenerator,
    )

TREE_SUFFIXES = (".svg", ".png", ".json")


@dataclass(kw_only=True)
class TextOutputOptions(LineOptions):
    """Output of commands that generate text."""

    tree: Annotated[
        Path | None,
        output_option(help="Save the beam search tree as .svg, .png or .json (single input only)."),
    ] = None


@dataclass(kw_only=True)
class PromptOutputOptions(TextOutputOptions):
    """Output of commands that continue prompts."""

    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the generated text.")] = False


def run_generation(run: TaskRun, options: TextOutputOptions) -> None:
    """Print one line per input, or stream the text of a single prompt."""
    texts = list(run.inputs)
    if options.tree is not None:
        _check_tree(options.tree, texts, options)
    check_line_output(options.out, options.file, resume=options.resume, overwrite=options.overwrite)
    if run.values.get("num_return_sequences", 1) > 1 and not options.as_json:
        raise MissingValueError(name="as_json", needed_for="to print several texts per input")
    bundle = options.load(run.model)
    chosen = run.options(bundle, brief=True, return_tree=options.tree is not None)
    task: Any = run.spec.make(bundle, chosen)
    echo = isinstance(options, PromptOutputOptions) and options.echo
    as_lines = options.as_json or options.out or options.tree or run.values.get("num_beams", 1) > 1
    if run.spec.inputs == PROMPT and len(texts) == 1 and not as_lines:
        _stream(task, texts[0], echo)
    else:
        _run(run.spec, task, texts, options, types=run.spec.result.column_types(bundle, chosen), echo=echo)


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
    spec: TaskSpec,
    task: TextGenerationTask[str],
    texts: list[str],
    options: TextOutputOptions,
    *,
    types: Mapping[str, type],
    echo: bool = False,
) -> None:
    """Print one output line per input line, in order.

    types: of the columns that a table gets. echo: print each input before its output.
    """
    inputs = options.read(texts, task.bundle)
    notes = Notes(task.bundle)
    skip_blank = inputs.source != "arguments"  # an empty argument is a prompt
    columns = None if options.as_json else types
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
            shown = spec.result.of(result)
            plain = "" if error is not None else shown.line()
            line = json.dumps(values, ensure_ascii=False) if options.as_json else plain
            writer.write(line, {} if error is not None else shown.cells())
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


def _check_tree(path: Path, texts: list[str], options: TextOutputOptions) -> None:
    """Check --tree before a model is loaded."""
    if path.suffix.lower() not in TREE_SUFFIXES:
        expected = f"a file ending in {', '.join(TREE_SUFFIXES)}"
        raise InvalidValueError(name="tree", value=str(path), expected=expected)
    if len(texts) != 1 or options.file is not None:
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
