"""Options shared by several commands: `Annotated` aliases, groups of options, and the MODEL argument.

The values of generation options are validated by the library, so that Python and the command line report the
same errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial, wraps
from glob import glob, has_magic
from os.path import isdir, isfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from typer.models import OptionInfo

import glassformer.pretrained as pretrained
from glassformer.cli.console import message
from glassformer.cli.lines import Inputs, named_inputs, read_inputs
from glassformer.errors import (
    ConflictError,
    FileMissingError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from glassformer.bundle import Bundle
    from glassformer.data.readers import TableOptions

TINY = "tiny:"  # MODEL is a small random model of a family
OUTPUT_PANEL = "Output"

optional = partial(typer.Option, show_default=False)
output_option = partial(optional, rich_help_panel=OUTPUT_PANEL)
_device = partial(optional, rich_help_panel="Device")
_gen = partial(optional, rich_help_panel="Generation")

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="Model folder, run folder, or shipped model such as pocket.")
]
ModelOrTiny = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Model folder, GGUF file, shipped model, or tiny:FAMILY (small, random).",
    ),
]
Columns = Annotated[str | None, optional(help="Column names or numbers, separated by commas, e.g. en,de.")]
Encoding = Annotated[
    str, optional(help="Encoding of text files, e.g. cp949 for a CSV from Korean Excel.", show_default=True)
]
Delimiter = Annotated[
    str | None, optional(help="Character between the cells of a CSV file, e.g. ';' (default: detected).")
]
Decimal = Annotated[
    str | None, optional(help="Decimal separator of the numbers in a table (default: detected).")
]
Settings = Annotated[
    list[str] | None, optional("--set", help="Override a recipe setting, e.g. training.lr=3e-4. Repeatable.")
]
Overwrite = Annotated[bool, output_option("--overwrite", help="Overwrite existing files.")]
Json = Annotated[bool, output_option("--json", help="Print JSON with all details.")]
Device = Annotated[str, _device(help="Device: auto, cpu, cuda or cuda:N.", show_default=True)]
Dtype = Annotated[
    str | None,
    _device(
        help="Compute dtype: float32 (or fp32), bfloat16 (bf16), float16 (fp16), int8 or int4 (default: "
        "chosen for the device)."
    ),
]
Threads = Annotated[int | None, _device(min=1, max=1024, help="Number of CPU threads (default: all cores).")]
BatchTokens = Annotated[
    int | None, _device(min=1, help="Maximum number of tokens per batch (default: chosen for the device).")
]
JsonSchema = Annotated[
    Path | None, _gen(metavar="FILE", help="JSON schema file; the output is JSON that follows it.")
]
To = Annotated[str | None, typer.Option(help="Target language, for a multilingual model, e.g. de.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")]
GroupT = TypeVar("GroupT", bound="DeviceOptions")


@dataclass(kw_only=True)
class DeviceOptions:
    """Where and how a model computes."""

    device: Device = "auto"
    dtype: Dtype = None
    threads: Threads = None

    def load(self, model: str, *, mmap: bool = True) -> Bundle:
        return load_model(model, device=self.device, dtype=self.dtype, threads=self.threads, mmap=mmap)


@dataclass(kw_only=True)
class LineOptions(DeviceOptions):
    """Options of commands with one input per line."""

    file: Annotated[
        Path | None,
        optional(
            "--file",
            "--input",
            help="Read inputs from this file: one per line, or a table (see --column); also .gz.",
        ),
    ] = None
    columns: Annotated[
        list[str] | None,
        optional(
            "--column",
            help="Column of a CSV, JSON Lines, Parquet or Excel file to read: a name, or a number from 1. "
            "Repeatable for pairs.",
        ),
    ] = None
    encoding: Encoding = "utf-8"
    delimiter: Delimiter = None
    decimal: Decimal = None
    out: Annotated[
        Path | None,
        output_option(
            "--out",
            "--output",
            help="Write one line per input to this file; a table if .csv, .tsv, .jsonl, .parquet or .xlsx.",
        ),
    ] = None
    resume: Annotated[
        bool, output_option("--resume", help="Continue after the lines that --out already has.")
    ] = False
    overwrite: Overwrite = False
    as_json: Json = False

    @property
    def table_options(self) -> TableOptions:
        return {"encoding": self.encoding, "delimiter": self.delimiter, "decimal": self.decimal}

    def read(
        self, texts: Sequence[str] | None, bundle: Bundle, max_columns: int = 1, *, series: bool = False
    ) -> Inputs:
        """Open the inputs of a model; if it reads images, folders and patterns stand for their images.

        The columns of the training data are the default for a table. series: whether a model of time series
        reads them from files, or from lists in a column of a table.
        """
        lists = series and "series" in bundle.spec.modalities
        if lists and not self.columns:
            return self._read_series(texts or ())
        inputs = read_inputs(
            texts,
            self.file,
            images=expand_folders(texts, bundle),
            columns=self.columns,
            job=bundle.job,
            max_columns=max_columns,
            lists=lists,
            **self.table_options,
        )
        if texts and inputs.source == "arguments" and bundle.spec.modalities[0] == "image":
            inputs = named_inputs("image", texts, texts)
            if len(texts) == 1:
                inputs.source = (
                    "arguments"  # its error ends the command; of several images, a bad one is skipped
                )
        note_file_as_text(texts, bundle)
        return inputs

    def _read_series(self, files: Sequence[str]) -> Inputs:
        """Open files with one or more time series each."""
        from glassformer.data.labeled_series import read_labeled_series

        paths: list[str | Path] = [*files, *([] if self.file is None else [self.file])]
        if not paths:
            hint = "name a file of series"
            raise MissingValueError("file", needed_for="to classify time series", hint=hint)
        sets = [read_labeled_series(path, labeled=False, **self.table_options) for path in paths]
        names = [name for one in sets for name in one.ids]
        values = [series for one in sets for series in one.values]
        return named_inputs("id", names, values)


def with_options(group: type[GroupT]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the fields of a dataclass as options to a command, which receives them as argument `options`."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(group, include_extras=True)
        names = [field.name for field in fields(group)]

        @wraps(command)
        def run(**values: Any) -> None:
            command(options=group(**{name: values.pop(name) for name in names}), **values)

        own = inspect.signature(command, eval_str=True).parameters.values()
        shared = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]
        parameters = [parameter for parameter in own if parameter.name != "options"]
        run.__signature__ = inspect.Signature([*parameters, *shared])  # type: ignore[attr-defined]
        return run

    return decorate


def flags_of(command: Callable[..., None]) -> dict[str, str]:
    """Return the flag of every option of a command, by parameter name."""
    flags = {}
    for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
        option = next(iter(getattr(parameter.annotation, "__metadata__", ())), parameter.default)
        if isinstance(option, OptionInfo):
            texts = [text for text in (option.default, *(option.param_decls or ())) if isinstance(text, str)]
            long_flags = [text.split("/")[0] for text in texts if text.startswith("--")]
            flags[name] = long_flags[0] if long_flags else f"--{name.replace('_', '-')}"
    return flags


def with_flags(error: GlassformerError, command: Callable[..., None]) -> GlassformerError:
    """Return the error with parameter names replaced by the flags of the command."""
    flags = flags_of(command)
    match error:
        case InvalidValueError():
            return replace(error, name=flags.get(error.name, error.name))
        case MissingValueError():
            others = tuple(flags.get(name, name) for name in error.alternatives)
            return replace(error, name=flags.get(error.name, error.name), alternatives=others)
        case ConflictError():
            return replace(error, names=[flags.get(name, name) for name in error.names])
    return error


def read_json_schema(path: Path | None) -> dict[str, Any]:
    """Read the file of --json-schema; return it as a keyword argument of a task."""
    if path is None:
        return {}
    from glassformer.json_text import read_object

    if not path.is_file():
        raise FileMissingError(path)
    return {"json_schema": read_object(path)}


def load_model(
    model: str,
    *,
    device: str = "auto",
    dtype: str | None = None,
    threads: int | None = None,
    mmap: bool = True,
) -> Bundle:
    """Load a model for inference. device: "auto" uses a GPU if there is one."""
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return load_or_build(model, device=device, dtype=dtype, mmap=mmap)


def load_or_build(
    model: str,
    *,
    device: str = "cpu",
    dtype: str | None = None,
    mmap: bool = True,
    allow_presets: bool = False,
) -> Bundle:
    """Load a folder or a shipped model, or build tiny:FAMILY. A preset is built on the meta device."""
    import torch

    from glassformer.bundle import Bundle, load
    from glassformer.core.precision import resolve_device, resolve_dtype
    from glassformer.families import registry

    path, where = locate_model(model), resolve_device(device)
    if not model.startswith(TINY) and (path.exists() or "/" in model):
        return load(path, dtype=dtype, device=where, mmap=mmap)
    from glassformer.api import build, tiny

    if model.startswith(TINY):
        torch.manual_seed(0)
        fresh = tiny(model.removeprefix(TINY))
        stored = resolve_dtype(None if dtype == "stored" else dtype, where)
        return Bundle(model=fresh.to(device=where, dtype=stored).eval())
    presets = registry.presets()
    if model not in presets:
        known = [*pretrained.names(), *(presets if allow_presets else ())]
        raise UnknownNameError(kind="model", name=model, known=known, hint=pretrained.hub_hint(model))
    if not allow_presets:
        hints = (f"use a model folder or {TINY}{presets[model].name}", pretrained.hub_hint(model))
        raise UnsupportedError(
            subject=f"the preset {model!r}, which has no weights,",
            feature="this command",
            hint="; ".join(filter(None, hints)),
        )
    with torch.device("meta"):
        return Bundle(model=build(model).eval(), family=presets[model].name)


def load_transformer(
    model: str, *, feature: str, device: str = "cpu", dtype: str | None = None, allow_presets: bool = False
) -> Bundle:
    """Load or build a Transformer, for a feature that baselines such as an LSTM lack."""
    bundle = load_or_build(model, device=device, dtype=dtype, allow_presets=allow_presets)
    from glassformer.core.model import AnyModel

    if not isinstance(bundle.model, AnyModel):
        hint = f"it is a baseline without attention ({bundle.spec.kind})"
        raise UnsupportedError(bundle.display_name, feature, hint=hint)
    return bundle


def locate_model(model: str) -> Path:
    """Return the folder of a model; print a note if a local folder shadows a shipped model."""
    path = pretrained.resolve_name(model)
    if pretrained.is_shipped(model) and path == Path(model):
        message(f"note: using the local folder ./{model}, not the shipped model {model}")
    return path


def resolve_language(bundle: Bundle, language: str) -> str:
    """Return the model's code of a target language; raise if it is unsupported."""
    from glassformer.tasks.text_generation import spell_language, target_language, target_languages

    target_language(bundle, language)  # raises if the model does not support it
    return spell_language(target_languages(bundle), language) or language


def expand_folders(inputs: Sequence[str] | None, bundle: Bundle) -> list[str]:
    """Return the inputs with the images of each folder or pattern in its place.

    Empty if there are no folders or patterns, or if the model does not read images.
    """
    if not inputs or not any(map(_is_folder_or_pattern, inputs)) or "image" not in bundle.spec.modalities:
        return []
    from glassformer.data.image_files import list_images

    lists = (list_images([item]) if _is_folder_or_pattern(item) else [item] for item in inputs)
    return [str(item) for items in lists for item in items]


def _is_folder_or_pattern(item: str) -> bool:
    return isdir(item) or (has_magic(item) and not isfile(item) and bool(glob(item, recursive=True)))


def note_file_as_text(texts: Sequence[str] | None, bundle: Bundle) -> None:
    """Print a note about --file if the only text is the name of a file."""
    if texts and len(texts) == 1 and isfile(texts[0]) and "image" not in bundle.spec.modalities:
        message(f"note: {texts[0]!r} is used as text; to read the file, use --file {texts[0]}")
