"""Encode texts and pairs of texts, and pad them to batches.

B texts, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.core.inputs import TextInputs
from glassformer.core.masks import Mask
from glassformer.errors import (
    EmptyInputError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
    attempt,
)
from glassformer.processors.base import ForwardInputs, Processor, input_kind
from glassformer.tokenization import Encoded, Tokenizer

MAX_CHARACTERS_PER_TOKEN = 32  # on average; a text with more per token of the limit is not even encoded
Text = str | tuple[str, str]  # a text, or a pair of texts


class TextProcessor(Processor[Text, Encoded]):
    """Encode texts for a model that reads tokens.

    truncate: shorten long texts; by default they are errors. max_tokens: if below the model's own limit.
    prepare: changes a text before it is encoded. parse_special: encode special tokens in a text as tokens.
    pairs: whether an input may be a tuple of two texts.
    """

    name = "text"

    def __init__(
        self,
        bundle: Bundle,
        *,
        truncate: bool = False,
        max_tokens: int | None = None,
        prepare: Callable[[str], str] = str,
        parse_special: bool = False,
        pairs: bool = False,
    ) -> None:
        self.bundle, self.read = bundle, token_input(bundle)
        self.truncate, self.prepare, self.parse_special, self.pairs = truncate, prepare, parse_special, pairs
        limit = max_input_tokens(bundle)
        self.max_tokens = limit if max_tokens is None else min(limit, max_tokens)

    def is_single(self, inputs: Any) -> bool:
        return isinstance(inputs, str | bytes | PathLike)

    def load(self, source: Text) -> Encoded:
        (item,) = self.load_batch([source])
        if isinstance(item, GlassformerError):
            raise item
        return item

    def load_batch(self, sources: Iterable[Text]) -> list[Encoded | GlassformerError]:
        parts = [attempt(self._parts, source) for source in sources]
        results: list[Any] = list(parts)
        tokenizer = require_tokenizer(self.bundle)
        for count in (1, 2):  # a batch of the tokenizer has either texts or pairs
            rows = {n: part for n, part in enumerate(parts) if isinstance(part, tuple) and len(part) == count}
            columns = list(zip(*rows.values(), strict=True))
            encoded = tokenizer.encode_batch(*columns, parse_special=self.parse_special) if columns else []
            for n, encoding in zip(rows, encoded, strict=True):
                self._check_ids(encoding)
                results[n] = attempt(self._fit, encoding)
        return results

    def _parts(self, source: Any) -> tuple[str, ...]:
        """Return a text or a pair of texts as a tuple, as they are tokenized."""
        if not isinstance(source, tuple):
            parts: tuple[str, ...] = (self.prepare(check_text(source)),)
        elif self.pairs and len(source) == 2:
            parts = check_text(source[0]), check_text(source[1], "text_pair")
        else:
            raise InvalidValueError("text", source, "a pair of texts" if self.pairs else "a text")
        if not self.truncate:
            for part in parts:
                check_characters(part, self.max_tokens)
        return tuple(part[: self.max_tokens * MAX_CHARACTERS_PER_TOKEN] for part in parts)

    def _check_ids(self, encoded: Encoded) -> None:
        highest, vocab_size = max(encoded.ids, default=0), self.read.vocab_size
        if highest >= vocab_size:
            hint = "use the tokenizer of this model"
            raise InvalidValueError("token id", highest, f"at most {vocab_size - 1}", hint=hint)

    def _fit(self, encoded: Encoded) -> Encoded:
        if not encoded.ids:
            raise EmptyInputError("text")
        if len(encoded) > self.max_tokens and not self.truncate:
            raise InputTooLongError(len(encoded), self.max_tokens, hint="shorten or truncate it")
        return truncate_longest_first(encoded, self.max_tokens)

    def size(self, item: Encoded) -> int:
        return len(item)

    def collate(self, items: Sequence[Encoded]) -> ForwardInputs:
        """Pad texts of any length on the right; a text may contain the pad token itself.

        For a head that reads the last position, texts are padded to the full length, and padding is not
        masked. An encoder-decoder reads the same text on both sides, if its spec says how a target starts.
        """
        spec: Any = self.bundle.spec
        device = self.bundle.device
        head = getattr(spec, "head", None)
        full = getattr(head, "pool", None) == "last_position"
        longest = max_input_tokens(self.bundle) if full else max(map(len, items))
        pad_id = require_tokenizer(self.bundle).pad_id if full else self.read.pad_id
        ids = torch.full((len(items), longest), pad_id or 0)
        types, real = torch.zeros_like(ids), torch.zeros_like(ids, dtype=torch.bool)
        for row, encoding in enumerate(items):
            ids[row, : len(encoding)] = torch.tensor(encoding.ids)
            types[row, : len(encoding)] = torch.tensor(encoding.type_ids)
            real[row, : len(encoding)] = True
        ids = ids.to(device)
        mask = None if full else Mask() if bool(real.all()) else Mask(padding=real.to(device))
        text = TextInputs(ids, mask, types.to(device) if (self.read.types or 0) > 1 else None)
        if spec.architecture != "encoder-decoder":
            return {"inputs": text}
        if spec.start_id is None:
            return {"src": text}
        return {"src": text, "tgt": torch.cat((torch.full_like(ids[:, :1], spec.start_id), ids[:, :-1]), 1)}


def check_characters(text: str, limit: int | None) -> None:
    """Raise if a text has far more characters than `limit` tokens can have."""
    most = None if limit is None else limit * MAX_CHARACTERS_PER_TOKEN
    if most is not None and len(text) > most:
        raise InputTooLongError(len(text), most, "characters")


def check_text(text: object, name: str = "text") -> str:
    """Return the text if it is a string of valid Unicode, else raise.

    The command line decodes invalid UTF-8 bytes as lone surrogates, which no tokenizer accepts.
    """
    if not isinstance(text, str):
        raise InvalidValueError(name, type(text).__name__, "a string")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise InvalidValueError(name, ascii(text), "valid Unicode") from None
    return text


def require_tokenizer(bundle: Bundle) -> Tokenizer:
    """Return the model's tokenizer; raise if it has none."""
    if bundle.tokenizer is not None:
        return bundle.tokenizer
    if input_kind(bundle.spec) != "text":
        token_input(bundle)  # raises an error that says what the model reads
    hint = "put its tokenizer.json (or vocab.txt, ...) into its folder"
    raise MissingValueError(f"the tokenizer of {bundle.display_name}", "to encode text", hint=hint)


def token_input(bundle: Bundle) -> specs.TokensSpec:
    """Return the token embedding spec of a model that reads text; raise for any other model."""
    read = bundle.spec.inputs()[:1]
    if read and isinstance(read[0], specs.TokensSpec):
        return read[0]
    if (kind := input_kind(bundle.spec)) != "text":
        raise UnsupportedError(bundle.display_name, "text input", hint=f"it reads {kind}")
    raise UnsupportedError(bundle.display_name, "this task", hint="it is an LSTM baseline")


def max_input_tokens(bundle: Bundle) -> int:
    """Return the maximum input length in tokens; a very large number if there is no limit."""
    declared = bundle.tokenizer.max_length if bundle.tokenizer is not None else None
    bounds = [getattr(token_input(bundle).position, "max_len", None), getattr(bundle.spec, "max_len", None)]
    return min(
        (most for most in (*bounds, bundle.job.max_len, declared) if most is not None), default=1 << 30
    )


def truncate_longest_first(encoded: Encoded, limit: int) -> Encoded:
    """Truncate a text to `limit` tokens, keeping all special tokens; of a pair, the longer text first.

    This is the default strategy of transformers, "longest_first".
    """
    if len(encoded) <= limit:
        return encoded
    special, first, second = (
        [n for n, sequence in enumerate(encoded.sequence_ids) if sequence == part] for part in (None, 0, 1)
    )
    capacity = max(0, limit - len(special))
    shorter = min(len(first), len(second), capacity // 2)
    sizes = (shorter, capacity - shorter) if len(first) <= len(second) else (capacity - shorter, shorter)
    return select_tokens(encoded, sorted([*special, *first[: sizes[0]], *second[: sizes[1]]]))


def select_tokens(encoded: Encoded, indices: Sequence[int]) -> Encoded:
    """Return the tokens of a text at `indices`."""
    return Encoded(
        ids=[encoded.ids[n] for n in indices],
        type_ids=[encoded.type_ids[n] for n in indices],
        offsets=[encoded.offsets[n] for n in indices],
        sequence_ids=[encoded.sequence_ids[n] for n in indices],
        word_ids=[encoded.word_ids[n] for n in indices],
    )
