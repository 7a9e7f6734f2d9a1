"""glassformer average FOLDER... --out OUT: average the weights of several checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glassformer.cli.lines import check_output_folder
from glassformer.errors import ConflictError, FileMissingError, FileProblemError
from glassformer.pretrained import AVERAGED, located

SAME_FILES = ("spec.json", "config.json", "tokenizer.json")  # models to average must share them


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
    if its recipe sets training.average.
    """
    if last is not None and best is not None:
        raise ConflictError(names=("last", "best"), reason="choose one of them")
    check_output_folder(out, overwrite=False, hint="choose a new or empty folder")
    from glassformer.pretrained import is_run
    from glassformer.training.checkpoint import average_folders, replace_folder

    chosen = _run_checkpoints(folders, last, best) if last or best else [located(path) for path in folders]
    for folder in chosen:
        if not folder.is_dir():
            raise FileMissingError(path=folder, kind="model folder")
        if is_run(folder):
            raise FileProblemError(path=folder, problem="is a run folder", hint="add --last N or --best N")
        _check_same_model(chosen[0], folder)
    if out.is_dir():
        out.rmdir()
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_folder(out, lambda path: average_folders(chosen, path))
    typer.echo(f"{out} is the average of {', '.join(str(folder) for folder in chosen)}")


def _run_checkpoints(folders: list[Path], last: int | None, best: int | None) -> list[Path]:
    """The last checkpoints that a run kept, or the best by its metric."""
    if len(folders) != 1:
        raise ConflictError(
            names=("FOLDER", "last" if last else "best"), reason=f"expected one run, got {len(folders)}"
        )
    run = folders[0]
    kept = sorted(path for path in (run / AVERAGED).glob("step-*") if path.is_dir())
    requested = last or best or 0
    if len(kept) < requested:
        problem = f"kept {len(kept)} checkpoints, but {requested} are requested"
        hint = f"train with training.average={requested} to keep them"
        raise FileProblemError(path=run, problem=problem, hint=hint)
    if best is None:
        return kept[-requested:]
    from glassformer.training.checkpoint import load_checkpoint

    newest = load_checkpoint(run / "checkpoints")
    logged = newest.state.get("averaged", []) if newest is not None else []
    scores = {f"step-{int(step):08}": float(score) for step, score in logged}  # higher is better
    if unknown := [path.name for path in kept if path.name not in scores]:
        raise FileProblemError(path=run / AVERAGED / unknown[0], problem="has no score", hint="use --last")
    return sorted(kept, key=lambda path: -scores[path.name])[:requested]


def _check_same_model(first: Path, folder: Path) -> None:
    from glassformer.families.family import read_json

    for name in SAME_FILES:
        one, other = first / name, folder / name
        if one.is_file() != other.is_file() or (one.is_file() and read_json(one) != read_json(other)):
            raise FileProblemError(path=other, problem=f"differs from {one}; the models are not alike")
