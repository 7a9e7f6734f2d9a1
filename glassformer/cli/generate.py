"""Commands that generate text: translate, summarize, restore, generate."""

from __future__ import annotations

import json
import sys
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli import options
from glassformer.cli.console import message
from glassformer.cli.inputs import read_inputs
from glassformer.cli.model_argument import load_model, note_file_as_text
from glassformer.cli.outputs import check_line_output, open_output
from glassformer.cli.search_tree import check_tree_output, write_tree
from glassformer.errors import MissingValueError

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.tasks.text_generation import (
        GeneratedText,
        InputWarning,
        TextGenerationTask,
        TextGenerator,
    )
    from glassformer.tokenization import SpecialInText

Prefix = Annotated[
    str | None, typer.Option(help="Text put before every input (default: from the model folder).")
]


def translate(
    ctx: typer.Context,
    model: options.Model,
    texts: options.Texts = None,
    to: Annotated[
        str | None, typer.Option(help="Target language, for a multilingual model, e.g. de.")
    ] = None,
    prefix: Prefix = None,
    split: Annotated[
        Literal["long", "always", "never"] | None,
        typer.Option(help="Which lines to split into sentences (default: from the model)."),
    ] = None,
    file: options.File = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tree: options.Tree = None,
    as_json: options.Json = False,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    num_beams: options.NumBeams = None,
    do_sample: options.DoSample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    no_repeat_ngram_size: options.NoRepeatNgramSize = None,
    length_penalty: options.LengthPenalty = None,
    length_formula: options.LengthFormula = None,
    early_stopping: options.EarlyStopping = None,
    num_return_sequences: options.NumReturnSequences = None,
    seed: options.Seed = None,
    stop_strings: options.StopStrings = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Translate texts, one per line.

    Empty lines stay empty. Lines of more than 128 tokens are translated
    sentence by sentence, as are all lines if the model was trained on single
    sentences. Defaults come from generation_config.json in the model folder;
    without it, beam search uses 4 beams.
    """
    request = Request.from_context(ctx)
    bundle = request.load()
    from glassformer.tasks.translation import Translator

    request.run(Translator(bundle, to=to, prefix=prefix, split=split, **request.options))


def summarize(
    ctx: typer.Context,
    model: options.Model,
    texts: options.Texts = None,
    prefix: Prefix = None,
    file: options.File = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tree: options.Tree = None,
    as_json: options.Json = False,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    num_beams: options.NumBeams = None,
    do_sample: options.DoSample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    no_repeat_ngram_size: options.NoRepeatNgramSize = None,
    length_penalty: options.LengthPenalty = None,
    length_formula: options.LengthFormula = None,
    early_stopping: options.EarlyStopping = None,
    num_return_sequences: options.NumReturnSequences = None,
    seed: options.Seed = None,
    stop_strings: options.StopStrings = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Summarize texts, one per line.

    Empty lines stay empty. A text longer than the model's maximum length is
    an error.
    """
    request = Request.from_context(ctx)
    bundle = request.load()
    from glassformer.tasks.translation import Summarizer

    request.run(Summarizer(bundle, prefix=prefix, **request.options))


def restore(
    ctx: typer.Context,
    model: options.Model,
    texts: options.Texts = None,
    file: options.File = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tree: options.Tree = None,
    as_json: options.Json = False,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    num_beams: options.NumBeams = None,
    do_sample: options.DoSample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    no_repeat_ngram_size: options.NoRepeatNgramSize = None,
    length_penalty: options.LengthPenalty = None,
    length_formula: options.LengthFormula = None,
    early_stopping: options.EarlyStopping = None,
    num_return_sequences: options.NumReturnSequences = None,
    seed: options.Seed = None,
    stop_strings: options.StopStrings = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Restore sentences with missing or shuffled words, one per line.

    `<gap>` marks missing words. MODEL must be trained with the job restore.
    Empty lines stay empty.
    """
    request = Request.from_context(ctx)
    bundle = request.load()
    from glassformer.tasks.translation import Restorer

    request.run(Restorer(bundle, **request.options))


def generate(
    ctx: typer.Context,
    model: options.Model,
    texts: options.Texts = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before the generated text.")] = False,
    parse_special: Annotated[
        bool,
        typer.Option("--parse-special", help="Parse special tokens such as <|im_start|> in prompts."),
    ] = False,
    file: options.File = None,
    out: options.Out = None,
    resume: options.Resume = False,
    overwrite: options.Overwrite = False,
    tree: options.Tree = None,
    as_json: options.Json = False,
    max_new_tokens: options.MaxNewTokens = None,
    min_new_tokens: options.MinNewTokens = None,
    num_beams: options.NumBeams = None,
    do_sample: options.DoSample = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    repetition_penalty: options.RepetitionPenalty = None,
    no_repeat_ngram_size: options.NoRepeatNgramSize = None,
    length_penalty: options.LengthPenalty = None,
    length_formula: options.LengthFormula = None,
    early_stopping: options.EarlyStopping = None,
    num_return_sequences: options.NumReturnSequences = None,
    seed: options.Seed = None,
    stop_strings: options.StopStrings = None,
    batch_tokens: options.BatchTokens = None,
    device: options.Device = "auto",
    dtype: options.Dtype = None,
    threads: options.Threads = None,
) -> None:
    """Generate text from a prompt, streamed as it is produced.

    Several prompts, a file or stdin give one line per prompt, with line
    breaks replaced by spaces (--json keeps them); empty lines stay empty.
    By default at most 256 tokens are generated.
    """
    request = Request.from_context(ctx)
    bundle = request.load()
    from glassformer.tasks.text_generation import TextGenerator

    special: SpecialInText = "keep" if parse_special else "plain"
    task = TextGenerator(bundle, special_in_text=special, **request.options)
    if texts and len(texts) == 1 and num_beams in (None, 1) and not (as_json or out or tree):
        _stream(task, texts[0], echo)
    else:
        request.run(task, echo=echo)


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


@dataclass(kw_only=True)
class Request:
    """The options that these commands share. options: keyword arguments of the task."""

    model: str
    texts: list[str] | None
    file: Path | None
    out: Path | None
    resume: bool
    overwrite: bool
    tree: Path | None
    as_json: bool
    device: str
    dtype: str | None
    threads: int | None
    options: dict[str, Any]

    @classmethod
    def from_context(cls, ctx: typer.Context) -> Request:
        """Read and check the options of a command line, before a model is loaded."""
        given = {field.name: ctx.params[field.name] for field in fields(cls) if field.name != "options"}
        request = cls(**given, options=options.generation_options(ctx))
        request._check()
        if request.tree is not None:
            request.options["return_tree"] = True
        if ctx.params["batch_tokens"] is not None:
            request.options["batch_tokens"] = ctx.params["batch_tokens"]
        return request

    def _check(self) -> None:
        if self.tree is not None:
            check_tree_output(self.tree, self.texts, self.out, self.file, overwrite=self.overwrite)
        check_line_output(self.out, self.file, resume=self.resume, overwrite=self.overwrite)
        if self.options.get("num_return_sequences", 1) > 1 and not self.as_json:
            raise MissingValueError(name="as_json", needed_for="to print several texts per input")

    def load(self) -> Bundle:
        return load_model(self.model, device=self.device, dtype=self.dtype, threads=self.threads)

    def run(self, task: TextGenerationTask, *, echo: bool = False) -> None:
        """Generate a line for every input line, in order. echo: put each input before its output."""
        inputs = read_inputs(self.texts, self.file)
        note_file_as_text(self.texts, task.bundle)
        notes = Notes(task.bundle)
        skip_blank = inputs.source != "arguments"  # an empty argument is a prompt
        prompts: deque[str] = deque()

        def remember(lines: Iterator[str]) -> Iterator[str]:
            for line in lines:
                prompts.append("" if skip_blank and not line.strip() else line)
                yield line

        with open_output(self.out, inputs, resume=self.resume) as writer:
            if echo:
                inputs.lines = remember(inputs.lines)
            results = inputs.process(task, skip_blank=skip_blank)
            for number, result in enumerate(results, inputs.first + 1):
                if echo:
                    result = replace(result, text=prompts.popleft() + result.text)
                writer.write(self._line(task, result, inputs.errors.pop(number)))
                notes.add(result)
                if inputs.source == "terminal":
                    notes.report()
        notes.report()
        inputs.errors.raise_if_any()

    def _line(self, task: TextGenerationTask, result: GeneratedText, error: str | None) -> str:
        if error is not None:
            return json.dumps({"error": error}, ensure_ascii=False) if self.as_json else ""
        values = _values(result)
        if self.tree is not None and self.texts:
            values["tree"] = write_tree(task.bundle, result, self.tree, self.texts[0])
        return json.dumps(values, ensure_ascii=False) if self.as_json else result.text


def _values(result: GeneratedText) -> dict[str, Any]:
    """A result as JSON values."""
    names = ("text", "score", "num_tokens", "seconds", "finish_reason", "warnings")
    values = {name: getattr(result, name) for name in names}
    if result.alternatives:
        values["alternatives"] = [_values(alternative) for alternative in result.alternatives]
    return values


class Notes:
    """Collects what users should know about the results, and prints each note once with a count."""

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
