"""A model of text as a CTranslate2 folder: the weights as they are, under its own runtime's names.

Every family here is the same few parts, so one mapping from parts to parts serves them all. The vocabulary
is spelled as our tokenizer spells it, and nothing is added around a source: what `tokenizer.tokens` gives for
the ids of `tokenizer.encode` is what the runtime reads. Of an encoder the runtime gives the last layer's
vectors; what the head does with them stays with the caller, its weights in a file beside.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from safetensors.torch import save_file

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.errors import InvalidValueError, MissingValueError, UnsupportedError
from glassformer.export.ctranslate2_parts import decoder_of, encoder_of, epsilon_of, library, pooled_of
from glassformer.export.folder import Exported, atomic_folder, require_new_folder, write_sidecars
from glassformer.export.generation_metadata import (
    config_values,
    end_tokens,
    forced_first_tokens,
    language_note,
    special_token_id,
    start_tokens,
    suppressed_tokens,
)
from glassformer.tokenization.tokenizer import Side

Dtype = Literal["float32", "float16", "int8"]
FORBIDDEN = -1e4  # added to a score that must never win; within float16's range
HEAD = "head.safetensors"


def export_ctranslate2(bundle: Bundle, folder: str | Path, dtype: Dtype = "float32") -> Exported:
    """Write the folder, which must be new or empty; it is whole or not there.

    dtype: what the weights are stored in; "int8" rounds each row of a matrix to 255 steps.
    """
    if dtype not in get_args(Dtype):
        raise InvalidValueError("dtype", dtype, f"one of {', '.join(get_args(Dtype))}")
    library()
    path, what = require_new_folder(folder), bundle.spec
    if dtype == "int8":  # the library scales weights where they lie, before it rounds them
        bundle = replace(bundle, model=copy.deepcopy(bundle.model))
    head: dict[str, Any] = {}
    if isinstance(what, spec.EncoderOnly) and isinstance(what.input, spec.Tokens):
        made, head, notes = _reader(bundle, what)
        runtime = "Encoder"
    elif isinstance(what, spec.EncoderDecoder | spec.DecoderOnly) and isinstance(
        what.head, spec.LanguageModel
    ):
        made, notes = _writer(bundle, what)
        runtime = "Translator" if isinstance(what, spec.EncoderDecoder) else "Generator"
    else:
        raise UnsupportedError("CTranslate2", f"a {type(what).__name__} of this kind", hint="export to ONNX")
    made.config.layer_norm_epsilon = epsilon_of(what)
    made.validate()
    made.optimize(quantization=dtype)
    with atomic_folder(path) as whole:
        made.save(str(whole))
        if head:
            save_file(head, whole / HEAD)
        write_sidecars(bundle, whole, {"format": "ctranslate2", "dtype": dtype, "runtime": runtime})
    return Exported(folder=path, notes=notes)


def _writer(bundle: Bundle, what: spec.EncoderDecoder | spec.DecoderOnly) -> tuple[Any, tuple[str, ...]]:
    """A model that writes text, with its vocabularies; and what the runtime has to be told."""
    model: Any = bundle.model
    eos, unk, never = _ends(bundle), special_token_id(bundle, "unk"), suppressed_tokens(bundle)
    assert isinstance(what.head, spec.LanguageModel)
    _check_ids(bundle, what.head.vocab_size)
    decoder = decoder_of(what, model, dict.fromkeys(never, FORBIDDEN))
    if isinstance(what, spec.EncoderDecoder):
        encoder = encoder_of(what.encoder, what.source, model.src_embed, model.encoder)
        made = library().TransformerSpec(encoder, decoder)
        target = vocabulary_of(bundle, what.target, "target")
        made.register_source_vocabulary(vocabulary_of(bundle, what.source, "source"))
        made.register_target_vocabulary(target)
        bos = _start(bundle, what)
        made.config.decoder_start_token = target[bos]
    else:
        made = library().TransformerDecoderModelSpec(decoder)
        target = vocabulary_of(bundle, what.input, "target")
        made.register_vocabulary(target)
        found = special_token_id(bundle, "bos")
        bos = eos[0] if found is None else found
    made.config.bos_token, made.config.eos_token = target[bos], target[eos[0]]
    made.config.unk_token = "" if unk is None else target[unk]
    return made, _notes(bundle, eos)


def _reader(bundle: Bundle, what: spec.EncoderOnly) -> tuple[Any, dict[str, Any], tuple[str, ...]]:
    """An encoder with its vocabulary; the weights of its head; and what is left to the caller."""
    model: Any = bundle.model
    encoder = encoder_of(what.encoder, what.input, model.embed, model.encoder)
    made = pooled_of(encoder, what.head, model.head)
    words = vocabulary_of(bundle, what.input, "source")
    made.register_vocabulary(words)
    unk = special_token_id(bundle, "unk")
    made.config.unk_token = "" if unk is None else words[unk]
    if isinstance(what.head, spec.Features):
        return made, {}, ()
    if isinstance(what.head, spec.Embed):
        length = ", then scaled to length 1" if what.head.normalize else ""
        note = (
            f"a text's vector is its tokens' pooled by '{what.head.pool}'{length}: that is left to the caller"
        )
        return made, {}, (note,)
    weights = {name: value.float().cpu().contiguous() for name, value in model.head.state_dict().items()}
    note = (
        f"the runtime ends at the last layer's vectors: the head ({type(what.head).__name__}) is left to the "
    )
    return made, weights, (f"{note}caller, its weights in {HEAD}",)


def vocabulary_of(bundle: Bundle, tokens: spec.Input, side: Side) -> list[str]:
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


def _check_ids(bundle: Bundle, size: int) -> None:
    for name in ("eos_token_id", "decoder_start_token_id", "suppress_tokens"):
        for index in config_values(bundle, name):
            if not isinstance(index, int) or not 0 <= index < size:
                raise InvalidValueError(name, index, f"an id from 0 to {size - 1}")


def _ends(bundle: Bundle) -> list[int]:
    found = end_tokens(bundle)
    if not found:
        hint = "add the tokenizer to the folder, or eos_token_id to generation_config.json"
        raise MissingValueError("eos_token_id", "to export to CTranslate2", hint=hint)
    return found


def _start(bundle: Bundle, what: spec.EncoderDecoder) -> int:
    found = start_tokens(bundle, what)
    if len(found) != 1:
        hint = "add it to generation_config.json"
        raise MissingValueError("decoder_start_token_id", "to export to CTranslate2", hint=hint)
    return found[0]


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
    if first := forced_first_tokens(bundle):
        notes.append(f"one token begins every target: call it with target_prefix=[[{spelled(first)}]]")
    for word in config_values(bundle, "bad_words_ids"):
        if len(word) > 1:
            notes.append(f"a stretch is never written: call it with suppress_sequences=[[{spelled(word)}]]")
    return (*notes, *language_note(bundle))
