"""glassformer average FOLDER... --out OUT: the mean of several models' weights, as one model."""

from __future__ import annotations

import json
from pathlib import Path

import typer

from glassformer.errors import GlassformerError
from glassformer.pretrained import located
from glassformer.pretrained.run_folder import AVERAGED

ALIKE = ("spec.json", "config.json", "tokenizer.json")  # what models must share to be averaged


def average(
    folders: list[Path] = typer.Argument(
        ..., metavar="FOLDER...", help="Model folders, or one run folder with --last or --best."
    ),
    out: Path = typer.Option(..., help="The model folder to write."),
    last: int | None = typer.Option(None, min=1, help="Of a run: the last so many weights it kept."),
    best: int | None = typer.Option(None, min=1, help="Of a run: the best so many weights it kept."),
) -> None:
    """Average the weights of several models of one shape; all else is as in the first.

    A run keeps weights for this where its recipe has training.average.
    """
    if last is not None and best is not None:
        raise GlassformerError("--last and --best are two ways to choose; give one of them")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise GlassformerError(f"'{out}' is there already; give another folder with --out")
    from glassformer.pretrained.run_folder import is_run
    from glassformer.training.model_folders import average_folders, replace_folder

    chosen = _of_run(folders, last, best) if last or best else [located(folder) for folder in folders]
    for folder in chosen:
        if not folder.is_dir():
            raise GlassformerError(f"there is no folder '{folder}'; give model folders")
        if is_run(folder):
            raise GlassformerError(f"'{folder}' is a run; say which weights of it with --last N or --best N")
        _refuse_unlike(chosen[0], folder)
    if out.is_dir():
        out.rmdir()
    out.parent.mkdir(parents=True, exist_ok=True)
    replace_folder(out, lambda path: average_folders(chosen, path))
    typer.echo(f"{out} is the average of {', '.join(str(folder) for folder in chosen)}")


def _of_run(folders: list[Path], last: int | None, best: int | None) -> list[Path]:
    """The folders a run kept, by step, or the best of them by the run's own metric."""
    if len(folders) != 1:
        raise GlassformerError(f"--last and --best choose within one run; {len(folders)} folders were given")
    root = folders[0]
    there = sorted(path for path in (root / AVERAGED).glob("step-*") if path.is_dir())
    wanted = last or best or 0
    if len(there) < wanted:
        raise GlassformerError(
            f"'{root}' kept {len(there)} sets of weights and {wanted} are asked for; "
            f"train with training.average={wanted} to keep them"
        )
    if best is None:
        return there[-wanted:]
    scores = _scores(root)
    if unknown := [path.name for path in there if path.name not in scores]:
        raise GlassformerError(f"how good {unknown[0]} of '{root}' is was not noted; use --last")
    return sorted(there, key=lambda path: -scores[path.name])[:wanted]


def _scores(root: Path) -> dict[str, float]:
    """How good the kept weights were, a higher number being better whatever the metric."""
    from glassformer.training.distributed import SingleProcess
    from glassformer.training.hardware import device_for
    from glassformer.training.sharded_checkpoint import load_sharded

    newest = load_sharded(root / "checkpoints", parallel=SingleProcess(device=device_for("cpu")))
    kept = newest.state.get("averaged", []) if newest is not None else []
    return {f"step-{int(step):08}": float(score) for step, score in kept}


def _refuse_unlike(first: Path, folder: Path) -> None:
    """A sentence where two folders describe different models or vocabularies."""
    for name in ALIKE:
        one, other = first / name, folder / name
        if one.is_file() != other.is_file() or (one.is_file() and _content(one) != _content(other)):
            raise GlassformerError(
                f"'{first}' and '{folder}' are not the same model: their {name} differs; "
                "average folders of one run"
            )


def _content(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        raise GlassformerError(f"'{path}' is not JSON; give folders of saved models") from None
