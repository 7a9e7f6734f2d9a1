"""glassformer convert, export and average: convert or export a model, or average checkpoints."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer

from glassformer.cli.console import console, format_bytes, message, print_json
from glassformer.cli.lines import check_output_folder
from glassformer.cli.options import Json, ModelOrTiny, Overwrite, load_or_build
from glassformer.errors import ConflictError, FileMissingError, FileProblemError
from glassformer.pretrained import AVERAGED, resolve_name

SAME_FILES = ("spec.json", "config.json", "tokenizer.json")  # models to average must share them


def convert(
    model: ModelOrTiny,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="Output folder.")],
    layout: Annotated[
        Literal["hf", "glassformer"] | None,
        typer.Option(help="Folder layout: hf or glassformer (default: hf if the family supports it)."),
    ] = None,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "int8"] | None,
        typer.Option(help="Storage dtype (default: unchanged; int8 becomes float32)."),
    ] = None,
    adapter: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="LoRA adapter of a diffusion model, merged into the weights."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Convert a model to another layout or dtype.

    Weights are only cast, so every dtype can be written on every machine.
    int8 needs the glassformer layout and is loaded as float32.
    """
    if out.is_dir() and Path(model).is_dir() and Path(model).samefile(out):
        raise FileProblemError(path=out, problem="is also the input folder")
    check_output_folder(out, overwrite=overwrite)
    from glassformer.bundle import save
    from glassformer.core.precision import parse_dtype

    bundle = load_or_build(model, dtype="stored")
    if adapter is not None:
        from glassformer.model_index import merge_adapter

        merge_adapter(bundle, adapter)
    if dtype not in (None, "int8"):
        bundle.model.to(parse_dtype(dtype))
    is_new = not out.exists()
    try:
        save(bundle, out, layout=layout, dtype="int8" if dtype == "int8" else None)
    except BaseException:
        if is_new:  # leave no partial folder
            shutil.rmtree(out, ignore_errors=True)
        raise
    dtypes = sorted({str(p.dtype).removeprefix("torch.") for p in bundle.model.parameters()})
    dtypes = ["int8"] if dtype == "int8" else dtypes
    written = "glassformer" if (out / "spec.json").is_file() else "hf"
    title = f"{written} layout, {' and '.join(dtypes)}"
    _print_folder(out, title, {"layout": written, "dtype": dtypes}, as_json)


def export(
    model: ModelOrTiny,
    format: Annotated[Literal["onnx", "ctranslate2"], typer.Option(help="Output format.")],
    out: Annotated[Path, typer.Option(help="Output folder, new or empty.")],
    dtype: Annotated[
        Literal["float32", "float16", "int8"],
        typer.Option(help="Storage dtype of the weights; float16 for ctranslate2 only."),
    ] = "float32",
    as_json: Json = False,
) -> None:
    """Export a model to ONNX or CTranslate2, with its tokenizer files.

    onnx: models of text, images and series, in float32 or int8, with dynamic batch size
    and length, except mask classifiers, SAM and baselines. Export the encoders of CLIP and
    SigLIP one by one, in Python.
    export.json in the output folder lists the inputs and outputs of each file.

    ctranslate2: encoder-decoders, language models and text encoders.

    Requires the extra `export`. Check the result with
    `glassformer verify MODEL --exported FOLDER`.
    """
    if format == "onnx":
        from glassformer.export.onnx import Dtype, export_onnx

        exported = export_onnx(load_or_build(model), out, cast("Dtype", dtype))
    else:
        from glassformer.export.ctranslate2 import export_ctranslate2

        exported = export_ctranslate2(load_or_build(model), out, dtype)
    notes = list(exported.notes)
    _print_folder(out, f"{format}, {dtype}", {"format": format, "dtype": dtype, "notes": notes}, as_json)
    if not as_json:
        for note in notes:
            message(f"note: {note}")


def _print_folder(out: Path, title: str, values: dict[str, Any], as_json: bool) -> None:
    """Print a folder with the sizes of its files."""
    files = {path.name: path.stat().st_size for path in sorted(out.iterdir()) if path.is_file()}
    if as_json:
        print_json({"folder": str(out), **values, "files": files})
        return
    screen = console()
    screen.print(f"[bold]{out}[/]  {title}", soft_wrap=True)
    for name, size in files.items():
        screen.print(f"  {name:<32} {format_bytes(size):>10}")


def average(
    folders: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Model folders, or one run folder with --last or --best."),
    ],
    out: Annotated[Path, typer.Option(help="Output folder.")],
    last: Annotated[int | None, typer.Option(min=1, help="Average the last N checkpoints of a run.")] = None,
    best: Annotated[int | None, typer.Option(min=1, help="Average the best N checkpoints of a run.")] = None,
) -> None:
    """Average the weights of several checkpoints.

    All other files are copied from the first model. A run keeps checkpoints
    for averaging only if its recipe sets training.average_checkpoints.
    """
    if last is not None and best is not None:
        raise ConflictError(names=("last", "best"), reason="choose one of them")
    check_output_folder(out, overwrite=False, hint="choose a new or empty folder")
    from glassformer.pretrained import is_run
    from glassformer.training.checkpoint import average_folders
    from glassformer.weights.atomic_write import atomic_folder

    chosen = (
        _run_checkpoints(folders, last, best) if last or best else [resolve_name(path) for path in folders]
    )
    for folder in chosen:
        if not folder.is_dir():
            raise FileMissingError(path=folder, kind="model folder")
        if is_run(folder):
            raise FileProblemError(path=folder, problem="is a run folder", hint="add --last N or --best N")
        _check_same_model(chosen[0], folder)
    with atomic_folder(out) as folder:
        average_folders(chosen, folder)
    typer.echo(f"{out} is the average of {', '.join(str(folder) for folder in chosen)}")


def _run_checkpoints(folders: list[Path], last: int | None, best: int | None) -> list[Path]:
    """Return the last checkpoints of a run, or the best by its metric."""
    if len(folders) != 1:
        raise ConflictError(
            names=("FOLDER", "last" if last else "best"), reason=f"expected one run, got {len(folders)}"
        )
    run = folders[0]
    checkpoints = sorted(path for path in (run / AVERAGED).glob("step-*") if path.is_dir())
    requested = last or best or 0
    if len(checkpoints) < requested:
        problem = f"has {len(checkpoints)} checkpoints, but {requested} are requested"
        hint = f"train with training.average_checkpoints={requested} to keep them"
        raise FileProblemError(path=run, problem=problem, hint=hint)
    if best is None:
        return checkpoints[-requested:]
    from glassformer.training.checkpoint import load_checkpoint

    newest = load_checkpoint(run / "checkpoints")
    logged = newest.state.get("averaged", []) if newest is not None else []
    scores = {f"step-{int(step):08}": float(score) for step, score in logged}  # higher is better
    if unknown := [path.name for path in checkpoints if path.name not in scores]:
        raise FileProblemError(path=run / AVERAGED / unknown[0], problem="has no score", hint="use --last")
    return sorted(checkpoints, key=lambda path: -scores[path.name])[:requested]


def _check_same_model(first: Path, folder: Path) -> None:
    from glassformer.json_text import read_json

    for name in SAME_FILES:
        expected, file = first / name, folder / name
        same_content = not file.is_file() or not expected.is_file() or read_json(expected) == read_json(file)
        if expected.is_file() != file.is_file() or not same_content:
            hint = "models to average must have the same architecture and tokenizer"
            raise FileProblemError(path=file, problem=f"differs from {expected}", hint=hint)
