"""Options shared by several commands, as `Annotated` aliases for Typer functions.

The values of generation options are validated by the library, so that Python and the command line report the
same errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.models import OptionInfo

DEVICE_PANEL, OUTPUT_PANEL = "Device", "Output"

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model folder, run folder, or shipped model (see `glassformer models`).",
        show_default=False,
    ),
]
ModelOrTiny = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model folder, shipped model such as pocket, or tiny:FAMILY for a small random one.",
        show_default=False,
    ),
]
Texts = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT", help="Input texts (default: --file, else stdin).", show_default=False),
]
TextsOrImages = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="INPUT", help="Texts, or image files for an image model (default: --file, else stdin)."
    ),
]
File = Annotated[
    Path | None,
    typer.Option(help="Read inputs from this file, one per line; .gz is supported.", show_default=False),
]
Truncate = Annotated[
    bool, typer.Option("--truncate", help="Truncate inputs longer than the model's maximum length.")
]
Top = Annotated[int, typer.Option(min=1, help="Number of results per input.")]
Columns = Annotated[
    str | None,
    typer.Option(help="Column names or numbers, separated by commas, e.g. en,de.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a recipe setting, e.g. --set training.lr=3e-4. Repeatable."),
]

Out = Annotated[
    Path | None,
    typer.Option(
        help="Write one line per input to this file.", show_default=False, rich_help_panel=OUTPUT_PANEL
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue after the lines that --out already has.",
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Overwrite existing files.", rich_help_panel=OUTPUT_PANEL)
]
Tree = Annotated[
    Path | None,
    typer.Option(
        help="Write the search tree of one text as .svg, .png or .json.",
        show_default=False,
        rich_help_panel=OUTPUT_PANEL,
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON with all details.", rich_help_panel=OUTPUT_PANEL)
]

Device = Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:N.", rich_help_panel=DEVICE_PANEL)]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="Compute dtype: float32, bfloat16, float16 or int8 (default: chosen for the device).",
        show_default=False,
        rich_help_panel=DEVICE_PANEL,
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=1024,
        help="Number of CPU threads (default: all cores).",
        show_default=False,
        rich_help_panel=DEVICE_PANEL,
    ),
]
BatchTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Maximum number of tokens per batch (default: chosen for the device).",
        show_default=False,
        rich_help_panel=DEVICE_PANEL,
    ),
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")]

_generation = partial(typer.Option, show_default=False, rich_help_panel="Generation")
MaxNewTokens = Annotated[int | None, _generation(help="Maximum number of generated tokens per text.")]
MinNewTokens = Annotated[int | None, _generation(help="Minimum number of generated tokens per text.")]
NumBeams = Annotated[int | None, _generation(help="Number of beams; 1 means no beam search.")]
DoSample = Annotated[bool | None, _generation(help="Sample instead of taking the most likely token.")]
Temperature = Annotated[float | None, _generation(help="Sampling temperature.")]
TopK = Annotated[int | None, _generation(help="Sample from the k most likely tokens.")]
TopP = Annotated[float | None, _generation(help="Sample from the top tokens with this total probability.")]
MinP = Annotated[
    float | None, _generation(help="Sample from tokens with at least this fraction of the top probability.")
]
RepetitionPenalty = Annotated[float | None, _generation(help="Penalize repeated tokens (above 1).")]
NoRepeatNgramSize = Annotated[int | None, _generation(help="Never repeat an n-gram of this size.")]
LengthPenalty = Annotated[
    float | None, _generation(help="Beam length penalty; above 0 favours longer texts.")
]
LengthFormula = Annotated[str | None, _generation(help="Beam length normalization: hf, fairseq or paper.")]
EarlyStopping = Annotated[str | None, _generation(help="When beam search stops: true, false or never.")]
NumReturnSequences = Annotated[int | None, _generation(help="Number of texts per input; needs --json.")]
Seed = Annotated[int | None, _generation(help="Random seed for sampling.")]
StopStrings = Annotated[list[str] | None, _generation("--stop", help="Stop before this text. Repeatable.")]

GENERATION_OPTIONS = (
    *("max_new_tokens", "min_new_tokens", "num_beams", "do_sample", "temperature", "top_k", "top_p", "min_p"),
    *("repetition_penalty", "no_repeat_ngram_size", "length_penalty", "length_formula", "early_stopping"),
    *("num_return_sequences", "seed", "stop_strings"),
)


def generation_options(ctx: typer.Context) -> dict[str, Any]:
    """The generation options of a command line as keyword arguments of a task, without those not given."""
    values = {name: ctx.params[name] for name in GENERATION_OPTIONS}
    options = {name: value for name, value in values.items() if value not in (None, [], ())}
    if "stop_strings" in options:
        options["stop_strings"] = tuple(options["stop_strings"])
    if options.get("early_stopping") in ("true", "false"):
        options["early_stopping"] = options["early_stopping"] == "true"
    return options


def flags_of(command: Callable[..., None]) -> dict[str, str]:
    """The flag of every option of a command, by parameter name."""
    flags = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        option = next(iter(getattr(parameter.annotation, "__metadata__", ())), parameter.default)
        if isinstance(option, OptionInfo):
            texts = [text for text in (option.default, *(option.param_decls or ())) if isinstance(text, str)]
            named = [text.split("/")[0] for text in texts if text.startswith("--")]
            flags[name] = named[0] if named else f"--{name.replace('_', '-')}"
    return flags
