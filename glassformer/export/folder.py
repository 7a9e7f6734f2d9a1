"""Write the folder of an export atomically, with generation metadata as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.bundle import Bundle, sidecar_files
from glassformer.errors import FileExistsAlreadyError, FileMissingError
from glassformer.json_text import as_list, read_object
from glassformer.messages import list_some
from glassformer.tokenization import code_languages, tag_ids, tag_languages, tag_position

METADATA_FILE = "export.json"
GENERATION = "generation_config.json"


@dataclass(frozen=True, kw_only=True)
class ExportResult:
    """The exported folder, and notes on what callers of the runtime must set."""

    folder: Path
    notes: tuple[str, ...]


def require_new_folder(folder: str | Path) -> Path:
    """Return the path if the folder is new or empty, else raise."""
    path = Path(folder)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsAlreadyError(path, hint="export into a new or empty folder")
    return path


def write_sidecars(bundle: Bundle, folder: Path, metadata: dict[str, Any]) -> None:
    """Write the files besides the weights: tokenizer, labels, generation config and metadata."""
    if bundle.tokenizer is not None:
        bundle.tokenizer.save(folder)
    files = sidecar_files(bundle)
    if bundle.generation:
        files[GENERATION] = bundle.generation
    if labels := bundle.config.get("id2label"):
        metadata = {**metadata, "labels": labels}
    if languages := language_tokens(bundle):
        metadata = {**metadata, "languages": languages}
    for name, content in (*files.items(), (METADATA_FILE, metadata)):
        text = json.dumps(content, indent=2, ensure_ascii=False)
        (folder / name).write_text(text + "\n", encoding="utf-8")


def read_metadata(folder: str | Path) -> dict[str, Any]:
    """Read the metadata of an exported folder."""
    path = Path(folder)
    if not (path / METADATA_FILE).is_file():
        raise FileMissingError(path / METADATA_FILE, hint="use the folder of an exported model")
    return read_object(path / METADATA_FILE)


# ---- generation -------------------------------------------------------------------------------------------


def config_values(bundle: Bundle, name: str) -> list[Any]:
    """Return the value of a key as a list, from generation_config.json, else config.json."""
    value = bundle.generation.get(name)
    value = bundle.config.get(name) if value is None else value
    return as_list(value)


def special_token_id(bundle: Bundle, name: str) -> int | None:
    """Return the id of a special token: bos, eos or unk."""
    return None if bundle.tokenizer is None else getattr(bundle.tokenizer, f"{name}_id")


def end_tokens(bundle: Bundle) -> list[int]:
    """Return the EOS tokens declared in the folder, or by the model."""
    eos = special_token_id(bundle, "eos")
    eos = getattr(bundle.spec, "end_id", None) if eos is None else eos
    return config_values(bundle, "eos_token_id") or ([] if eos is None else [eos])


def start_tokens(bundle: Bundle, model_spec: Any) -> list[int]:
    """Return the start tokens of a target; empty for a decoder-only model."""
    if model_spec.architecture != "encoder-decoder":
        return []
    return config_values(bundle, "decoder_start_token_id") or (
        [] if model_spec.start_id is None else [model_spec.start_id]
    )


def language_tokens(bundle: Bundle) -> dict[str, Any]:
    """Describe how to select the target language of a multilingual model; empty for a single language.

    ids: a token id for each language. in: whether the token belongs to the source or the target.
    position: its index there; in a target, after the start tokens.
    """
    tokenizer, model_spec = bundle.tokenizer, bundle.spec
    if tokenizer is None or model_spec.architecture != "encoder-decoder":
        return {}
    job = bundle.job  # a model trained here lists its languages
    if known := tag_languages(tokenizer) if job.name is None else job.languages:
        ids = tag_ids(tokenizer, [f">>{language}<<" for language in known])
        return {
            "in": "source",
            "position": tag_position(tokenizer),
            "ids": dict(zip(known, ids, strict=True)),
        }
    if job.name is None and (known := code_languages(tokenizer)):
        ids = tag_ids(tokenizer, known)
        position = len(start_tokens(bundle, model_spec))
        return {"in": "target", "position": position, "ids": dict(zip(known, ids, strict=True))}
    return {}


def language_note(bundle: Bundle) -> tuple[str, ...]:
    """Return a note that explains how to select the target language; empty for a single language."""
    tokens = language_tokens(bundle)
    if not tokens:
        return ()
    listed = list_some(list(tokens["ids"]))
    how = "a token in the source" if tokens["in"] == "source" else "the first token of the target"
    return (
        f"it translates into several languages ({listed}), chosen by {how}: "
        "see languages in export.json for ids and position",
    )


def forced_first_tokens(bundle: Bundle) -> list[int]:
    """Return the token that is forced after the start tokens, unless it selects the language."""
    tokens = language_tokens(bundle)
    return [] if tokens.get("in") == "target" else config_values(bundle, "forced_bos_token_id")


def suppressed_tokens(bundle: Bundle) -> list[int]:
    """Return the tokens that must never be generated, as declared in the folder."""
    bad_words = config_values(bundle, "bad_words_ids")
    return [*config_values(bundle, "suppress_tokens"), *(ids[0] for ids in bad_words if len(ids) == 1)]
