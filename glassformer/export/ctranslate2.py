"""A model that writes text as a CTranslate2 folder: the weights as they are, under its own runtime's names.

Every family here is the same few parts, so one mapping from parts to parts serves them all. The vocabulary
is spelled as our tokenizer spells it, and nothing is added around a source: what `tokenizer.tokens` gives for
the ids of `tokenizer.encode` is what the runtime reads.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glassformer.api import Bundle
from glassformer.core import spec
from glassformer.core.errors import GlassformerError
from glassformer.export.ctranslate2_parts import decoder_of, encoder_of, epsilon_of, library
from glassformer.text.tokenizer import Side

FORBIDDEN = -1e4  # added to a score that must never win; within float16's range


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The folder written, and what its runtime has to be told that the folder cannot say."""

    folder: Path
    notes: tuple[str, ...]


def export_ctranslate2(bundle: Bundle, folder: str | Path) -> Exported:
    """Write the folder, which must be new or empty; it is whole or not there."""
    specs = library()
    path, what = Path(folder), bundle.spec
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise GlassformerError(f"'{folder}' is there already; give a new folder to export into")
    if not isinstance(what, spec.EncoderDecoder | spec.DecoderOnly) or not isinstance(
        what.head, spec.LanguageModel
    ):
        raise GlassformerError(
            f"CTranslate2 is exported to from models that write text, and this one ({type(what).__name__}) "
            "does not; give an encoder-decoder or a language model with its scores over a vocabulary"
        )
    model: Any = bundle.model
    eos, unk, never = _ends(bundle), _role(bundle, "unk"), _never(bundle)
    notes = _notes(bundle, eos)
    _check_ids(bundle, what.head.vocab_size)
    decoder = decoder_of(what, model, dict.fromkeys(never, FORBIDDEN))
    if isinstance(what, spec.EncoderDecoder):
        made = specs.TransformerSpec(encoder_of(what, model), decoder)
        source = _vocabulary(bundle, what.source, "source")
        target = _vocabulary(bundle, what.target, "target")
        made.register_source_vocabulary(source)
        made.register_target_vocabulary(target)
        start = _start(bundle, what)
        made.config.decoder_start_token = target[start]
        bos = start
    else:
        made = specs.TransformerDecoderModelSpec(decoder)
        target = _vocabulary(bundle, what.input, "target")
        made.register_vocabulary(target)
        found = _role(bundle, "bos")
        bos = eos[0] if found is None else found
    made.config.bos_token, made.config.eos_token = target[bos], target[eos[0]]
    made.config.unk_token = "" if unk is None else target[unk]
    made.config.layer_norm_epsilon = epsilon_of(what)
    made.validate()
    made.optimize(quantization="float32")
    _place(made, bundle, path)
    return Exported(folder=path, notes=notes)


def _place(made: Any, bundle: Bundle, path: Path) -> None:
    """Write beside, then move: a stop half-way leaves no folder that looks whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        whole = Path(beside) / "model"
        whole.mkdir()
        made.save(str(whole))
        if bundle.tokenizer is not None:
            bundle.tokenizer.save(whole)
        if path.exists():
            path.rmdir()
        shutil.move(whole, path)


def _vocabulary(bundle: Bundle, tokens: spec.Input, side: Side) -> list[str]:
    """A spelling for every row of the token matrix, each its own; rows without one are spelled by number."""
    assert isinstance(tokens, spec.Tokens)
    numbers = range(tokens.vocab_size)
    if bundle.tokenizer is None:
        return [f"<id {index}>" for index in numbers]
    spelled, taken = [], set()
    for index, token in enumerate(bundle.tokenizer.tokens(numbers, side=side)):
        spelled.append(f"<id {index}>" if token in taken else token)
        taken.add(token)
    return spelled


def _said(bundle: Bundle, name: str) -> list[Any]:
    """The ids a folder gives under a name, in generation_config.json or else in config.json."""
    found = bundle.generation.get(name)
    found = bundle.config.get(name) if found is None else found
    return list(found) if isinstance(found, list) else [] if found is None else [found]


def _check_ids(bundle: Bundle, size: int) -> None:
    for name in ("eos_token_id", "decoder_start_token_id", "suppress_tokens"):
        for index in _said(bundle, name):
            if not isinstance(index, int) or not 0 <= index < size:
                raise GlassformerError(
                    f"the folder's {name} is {index!r}; the vocabulary holds ids 0 to {size - 1}"
                )


def _role(bundle: Bundle, role: str) -> int | None:
    return None if bundle.tokenizer is None else getattr(bundle.tokenizer, f"{role}_id")


def _ends(bundle: Bundle) -> list[int]:
    eos = _role(bundle, "eos")
    found = _said(bundle, "eos_token_id") or ([] if eos is None else [eos])
    if not found:
        raise GlassformerError(
            "CTranslate2 needs to know which token ends a text, and this folder does not say; put its "
            "tokenizer beside the model, or eos_token_id into generation_config.json"
        )
    return found


def _start(bundle: Bundle, what: spec.EncoderDecoder) -> int:
    found: Sequence[int | None] = _said(bundle, "decoder_start_token_id") or [what.start_id]
    if len(found) != 1 or found[0] is None:
        raise GlassformerError(
            "CTranslate2 begins a target with one token, and this folder does not name one; put "
            "decoder_start_token_id into generation_config.json"
        )
    return found[0]


def _never(bundle: Bundle) -> list[int]:
    """Tokens that the folder says are never written."""
    words = _said(bundle, "bad_words_ids")
    return [*_said(bundle, "suppress_tokens"), *(word[0] for word in words if len(word) == 1)]


def _notes(bundle: Bundle, eos: list[int]) -> tuple[str, ...]:
    def spelled(ids: list[int]) -> str:
        names = (
            [f"<id {i}>" for i in ids]
            if bundle.tokenizer is None
            else bundle.tokenizer.tokens(ids, side="target")
        )
        return ", ".join(map(repr, names))

    notes = []
    if len(eos) > 1:
        notes.append(f"several tokens end a text: call the runtime with end_token=[{spelled(eos)}]")
    if first := _said(bundle, "forced_bos_token_id"):
        notes.append(f"one token begins every target: call it with target_prefix=[[{spelled(first)}]]")
    for word in _said(bundle, "bad_words_ids"):
        if len(word) > 1:
            notes.append(f"a stretch is never written: call it with suppress_sequences=[[{spelled(word)}]]")
    return tuple(notes)
