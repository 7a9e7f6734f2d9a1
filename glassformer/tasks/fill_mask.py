"""Predict masked words with a masked language model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.inputs import tensor_of
from glassformer.errors import GlassformerError, MissingValueError, UnsupportedError, attempt
from glassformer.processors.text import require_tokenizer, token_input
from glassformer.tasks.base import BATCH_TOKENS, check_at_least, check_finite
from glassformer.tasks.declarations.fill import FilledText, TokenScore
from glassformer.tasks.encoder import EncoderTask
from glassformer.tokenization import Encoded, Tokenizer

MASK = "[MASK]"  # accepted for every model, whatever its own mask token is
_CONTINUATION = "##"  # prefix of a WordPiece token within a word
Prediction = list[list[tuple[int, float]]]  # for each mask, tokens and their probabilities


class MaskFiller(EncoderTask[FilledText]):
    """Predict the `top` most likely tokens for every [MASK] (or the model's own mask token), independently.

    Other special tokens written in a text (e.g. "[SEP]") are parsed as tokens. An empty text stays empty.
    """

    def __init__(self, bundle: Bundle, *, top: int = 5, batch_tokens: int = BATCH_TOKENS) -> None:
        head = getattr(bundle.spec, "head", None)
        if head is None or (head.yields, bundle.spec.architecture) != ("masked tokens", "encoder-only"):
            hint = f"its head is {getattr(head, 'kind', 'missing')}"
            raise UnsupportedError(bundle.display_name, "filling masks", hint=hint)
        check_at_least("top", top, most=head.vocab_size)
        token_input(bundle)
        self.top, self.tokenizer = top, require_tokenizer(bundle)
        self.mask_token = mask_token(self.tokenizer)
        self.mask_id: int = self.tokenizer.mask_id or 0
        super().__init__(bundle, batch_tokens=batch_tokens, prepare=self._with_mask_token, parse_special=True)

    def _with_mask_token(self, text: str) -> str:
        return text if self.mask_token in text else text.replace(MASK, self.mask_token)

    def load(self, inputs: Iterable[str]) -> list[Encoded | GlassformerError]:
        texts = list(inputs)
        return list(map(partial(attempt, self._check_masks), texts, self.processor.load_batch(texts)))

    def _check_masks(self, text: str, item: Encoded | GlassformerError) -> Encoded | GlassformerError:
        """Raise if a text has no mask."""
        if isinstance(item, Encoded):
            prepared, count = self._with_mask_token(text), item.ids.count(self.mask_id)
            if count != prepared.count(self.mask_token) or (prepared.strip() and not count):
                raise MissingValueError(MASK, "in the text", hint="put it where a word is to be predicted")
        return item

    def forward(self, items: Sequence[Encoded]) -> Sequence[Prediction]:
        inputs = self.processor.collate(items)
        x, context = self.model.hidden_states(**inputs)
        masked = tensor_of(inputs["inputs"]).eq(self.mask_id)  # (B, T)
        predictions: list[Prediction] = [[] for _ in items]
        # the head is applied per position, so only the hidden states of masks (masks, 1, D) go through it
        logits: Tensor = self.model.head(x[masked][:, None], context)[:, 0].float()
        scores, tokens = check_finite(self.bundle, logits).softmax(-1).topk(self.top, dim=-1)
        rows = masked.nonzero()[:, 0].tolist()
        for row, ids, likely in zip(rows, tokens.tolist(), scores.tolist(), strict=True):
            predictions[row].append(list(zip(ids, likely, strict=True)))
        return predictions

    def postprocess(self, input: str, item: Encoded | None, raw: Prediction | None) -> FilledText:
        if raw is None:
            return FilledText(text="", masks=[])
        masks = [
            [TokenScore(token=id, text=token_text(self.tokenizer, id), score=score) for id, score in scores]
            for scores in raw
        ]
        parts = self._with_mask_token(input).split(self.mask_token)
        return FilledText(text=fill(parts, [scores[0].text for scores in masks]), masks=masks)


def mask_token(tokenizer: Tokenizer) -> str:
    """Return the mask token as the tokenizer spells it."""
    if tokenizer.mask_id is None:
        raise MissingValueError("a mask token", "in the tokenizer to fill masks")
    return tokenizer.tokens([tokenizer.mask_id])[0]


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the text of a token; a WordPiece continuation keeps its ##."""
    own = tokenizer.tokens([token])[0]
    return own if own.startswith(_CONTINUATION) else tokenizer.decode([token], skip_special=False).strip()


def fill(parts: list[str], tokens: list[str]) -> str:
    """Join the text between the masks with the predicted tokens; a token with ## continues a word.

    >>> fill(["two cat ", " sleep"], ["##s"])
    'two cats sleep'
    """
    text = parts[0]
    for token, after in zip(tokens, parts[1:], strict=True):
        continues = token.startswith(_CONTINUATION) and len(token) > len(_CONTINUATION)
        text = (text.rstrip() + token.removeprefix(_CONTINUATION) if continues else text + token) + after
    return text
