"""glassformer download: fetch a model from the Hugging Face Hub; no other command uses the network."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import check_output_folder
from glassformer.cli.options import Overwrite
from glassformer.errors import (
    FileExistsAlreadyError,
    GlassformerError,
    InvalidValueError,
    MissingDependencyError,
)

# what `load` reads, including adapters; pickles are left out
FILES = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.spm", "vocab.txt", "merges.txt", "*.md"]


@dataclass(eq=False)
class DownloadError(GlassformerError):
    """A model could not be downloaded."""

    repo: str
    reason: str
    hint: str = ""
    template: ClassVar[str] = "{repo} cannot be downloaded: {reason}"


def download(
    repo: Annotated[str, typer.Argument(metavar="ORG/NAME", help="Model on the Hugging Face Hub.")],
    out: Annotated[Path | None, typer.Option(help="Output folder (default: NAME).")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit (default: main).")] = None,
    include: Annotated[
        list[str] | None,
        typer.Option(help="Download these files instead, e.g. '*Q4_K_M.gguf'. Repeatable."),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Download a model from the Hugging Face Hub; requires the extra `hub`.

    Only weights in safetensors, configs and tokenizer files are downloaded, never
    pickles. An interrupted download continues. HF_TOKEN and HF_ENDPOINT are
    respected. All other commands read local folders and never use the network.
    """
    organization, _, name = repo.partition("/")
    if not organization or not name or "/" in name:
        raise InvalidValueError(
            name="ORG/NAME", value=repo, expected="a model such as google-bert/bert-base-uncased"
        )
    try:
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.utils import filter_repo_objects
    except ModuleNotFoundError as error:
        raise MissingDependencyError(package=str(error.name), extra="hub") from None
    except ValueError as error:  # the package parses it when it is imported
        raise InvalidValueError("HF_ENDPOINT", os.environ.get("HF_ENDPOINT"), f"a URL ({error})") from None
    folder = out or Path(name)
    unfinished = (folder / ".cache" / "huggingface").is_dir()  # left by an interrupted download
    check_output_folder(folder, overwrite=overwrite or unfinished)
    patterns = include or FILES
    with _hub_errors(repo, revision):
        info = HfApi().model_info(repo, revision=revision)
    files = [file.rfilename for file in info.siblings or ()]
    if include is None and not any(file.endswith(".safetensors") for file in files):
        weights = sorted(file for file in files if file.endswith((".gguf", ".bin", ".pt", ".h5")))
        reason = f"it has no safetensors file, only {', '.join(weights[:4]) or 'other files'}"
        is_gguf = any(file.endswith(".gguf") for file in weights)
        hint = "choose one with --include" if is_gguf else "look for a revision with safetensors"
        raise DownloadError(repo=repo, reason=reason, hint=hint)
    for file in filter_repo_objects(files, allow_patterns=patterns):
        downloaded = folder / ".cache" / "huggingface" / "download" / f"{file}.metadata"
        if (folder / file).exists() and not downloaded.exists():
            raise FileExistsAlreadyError(folder / file, hint="it was not downloaded: choose another folder")
    with _hub_errors(repo, revision):
        snapshot_download(repo, revision=revision, local_dir=folder, allow_patterns=patterns)
    message(f"downloaded {repo} to {folder}")
    typer.echo(folder)


@contextmanager
def _hub_errors(repo: str, revision: str | None) -> Iterator[None]:
    """Turn the errors of the Hub's client into errors with a reason."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RepositoryNotFoundError as error:
        gated = isinstance(error, errors.GatedRepoError)
        reason = "access to it is restricted" if gated else "there is no such model, or it is private"
        hint = "accept its terms on the Hub, and set HF_TOKEN" if gated else "check the name, or set HF_TOKEN"
        raise DownloadError(repo=repo, reason=reason, hint=hint) from None
    except errors.RevisionNotFoundError:
        raise DownloadError(repo=repo, reason=f"it has no revision {revision}") from None
    except errors.HFValidationError as error:
        raise InvalidValueError("ORG/NAME", repo, f"a name of the Hub ({error!s:.100})") from None
    except Exception as error:  # the HTTP library of the Hub's client has errors without a common base
        reason = next(iter(str(error).splitlines()), "")[:200] or type(error).__name__
        hint = "check the network and HF_ENDPOINT; the same command continues where it stopped"
        raise DownloadError(repo=repo, reason=reason, hint=hint) from None
