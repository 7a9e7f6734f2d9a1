"""How a text is found: one step of writing with what could come next, and a whole search as a tree.

Both go the way of `translate` and `generate`: the same ids in, the same settings, the same numbers.
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.heads import Context
from glassformer.core.masks import Mask
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationConfig, GenerationRequest, generate_batched, pick
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.search_tree import SearchNode, SearchTree
from glassformer.generation.stopping import completes_stop, truncate_at_stop
from glassformer.interpret.choosing import limit_of, room_after, shaping_of, vocabulary
from glassformer.interpret.inputs import MOST
from glassformer.interpret.kinds import Given, as_json
from glassformer.interpret.naming import best_words, named_by
from glassformer.interpret.outline import check_shown
from glassformer.interpret.sequences import written_text
from glassformer.interpret.writers import read_source, told
from glassformer.tasks.reading import device_of, named, tokenizer_of
from glassformer.tasks.writing.checks import settings_of, within_bounds
from glassformer.tasks.writing.continuing import CONTINUED
from glassformer.tasks.writing.ends import Ends, ends_of
from glassformer.tasks.writing.prompts import following, prompt_ids
from glassformer.tasks.writing.rewriting import searching, usual_limit
from glassformer.tasks.writing.sources import language
from glassformer.tokenization.tokenizer import Side

TOKENS: Final = 256  # that a search, or a writing step by step, goes to at most
BEAMS: Final = 16
FEW: Final = 4  # beams with which a tree is worth a look
NODES: Final = 2048  # steps times beams
WORDS: Final = 1000  # of a step that are told at most
BEFORE: Final = 4  # tokens that a node is read with: a letter may be spread over so many


@dataclass(frozen=True, kw_only=True)
class _Begun:
    """What is read before anything is written.

    ids: the source or the prompt. starts: how the target begins, where there is a source. limit: the most
    that is written, the end token counted.
    """

    bundle: Bundle
    ends: Ends
    settings: GenerationConfig
    ids: list[int]
    starts: list[int]
    limit: int

    @property
    def rewrites(self) -> bool:
        return self.ends.shape == "rewrites"

    @property
    def given(self) -> list[int]:
        """What stands before the first token that is written."""
        return self.starts if self.rewrites else self.ids

    def text(self, written: Sequence[int]) -> str:
        """What was written, as the verbs tell it."""
        tokenizer = tokenizer_of(self.bundle)
        ids = [index for index in written if index not in self.ends.eos_ids]
        if self.rewrites:
            return told(tokenizer, ids, self.settings.stop_strings)
        return truncate_at_stop(following(tokenizer, self.ids, ids), self.settings.stop_strings)


def _begin(bundle: Bundle, text: str, to: str | None, settings: Mapping[str, Any]) -> _Begun:
    check_shown(bundle)
    if not isinstance(text, str):
        raise GlassformerError("give what is to be read as `text`")
    ends = ends_of(bundle)
    if ends.shape == "rewrites":
        spoken = language(bundle, to, by="`to`")
        words = settings_of(bundle, {**settings, **spoken.settings})
        source = read_source(bundle, Given(text=text, to=to), spoken)
        ids = [token.id for token in source.tokens if token.id is not None]
        starts = list(decoder_start_ids(bundle.model, ends.start_ids))
        usual = usual_limit(len(ids))
    else:
        words = settings_of(bundle, settings)
        (ids,) = prompt_ids(bundle, ends, [text])
        starts = []
        usual = CONTINUED if ends.reads is None else max(1, min(CONTINUED, ends.reads + 1 - len(ids)))
    if len(ids) > (most := min(ends.reads or MOST, MOST)):
        raise GlassformerError(
            f"the text has {len(ids):,} tokens, and what is looked into has at most {most:,}; shorten it"
        )
    limit = limit_of(words, given=len(starts) or len(ids), usual=usual)
    return _Begun(
        bundle=bundle,
        ends=ends,
        settings=words,
        ids=ids,
        starts=starts,
        limit=min(limit, TOKENS),
    )


@torch.inference_mode()
def step_info(
    bundle: Bundle,
    *,
    text: str,
    written: Sequence[int] = (),
    to: str | None = None,
    count: int = 50,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What would come after `written`, likeliest first; the first is what the verbs write with one beam.

    Of the settings those count that say what may be written (penalties, lengths, forced tokens), not those by
    which a word is drawn: temperature, top-k and top-p are for whoever picks. A word's probability is
    exp(logit - logsumexp). ended: nothing comes any more.
    """
    begun = _begin(bundle, text, to, {"num_beams": 1, **(settings or {})})
    words = replace(begun.settings, do_sample=False, num_beams=1, num_return_sequences=1)
    ids = _checked(bundle, written)
    found, tokenizer = named_by(bundle), tokenizer_of(bundle)
    done = bool(ids) and (
        ids[-1] in begun.ends.eos_ids
        or (bool(words.stop_strings) and completes_stop(ids, words.stop_strings, tokenizer.decode))
    )
    over = done or len(ids) >= begun.limit
    scores = torch.empty(0)
    if len(ids) <= room_after(bundle, len(begun.given), TOKENS - 1):
        limit = max(begun.limit, len(ids) + 1)
        shaping = shaping_of(bundle, words, begun.ends, given=begun.given, limit=limit)
        for index in ids:
            shaping.append(torch.tensor([index]))
        scores = shaping.shape(_logits(begun, ids).cpu()[None], len(ids))[0]
    possible = int((scores > pick.NEVER).sum())
    said = begun.text(ids)
    side: Side = "target" if begun.rewrites else "source"
    return {
        "words": best_words(found, scores, min(count, WORDS, possible)) if possible else [],
        "logsumexp": float(scores.logsumexp(-1)) if possible else 0.0,
        "vocabulary": vocabulary(bundle),
        "ended": over or not possible,
        "position": len(ids),
        "tokens": as_json(written_text(tokenizer, ids, said, side)),
        "text": said,
    }


def _logits(begun: _Begun, written: list[int]) -> Tensor:
    """The model's scores of the next token (V,): one forward, of which the head reads the last place."""
    model: Any = begun.bundle.model
    device = device_of(begun.bundle)

    def row(ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=device)

    if begun.rewrites:
        x, context = model.hidden_states(
            row(begun.ids), row([*begun.starts, *written]), src_mask=Mask(), tgt_mask=Mask()
        )
    else:
        x, context = model.hidden_states(row([*begun.ids, *written]), mask=Mask())
    logits: Tensor = model.head(x[:, -1:], Context(ids=context.ids))
    return logits[0, -1].float()


def _checked(bundle: Bundle, written: Any) -> list[int]:
    known = vocabulary(bundle)
    if not isinstance(written, Sequence) or isinstance(written, str | bytes):
        raise GlassformerError("written must be a list of token ids")
    for index in written:
        if type(index) is not int or not 0 <= index < known:
            raise GlassformerError(
                f"written holds {index!r:.20}; {named(bundle)} writes ids 0 to {known - 1}"
            )
    if len(written) > TOKENS:
        raise GlassformerError(f"{len(written):,} tokens were written; {TOKENS} is the most that is followed")
    return list(written)


def search_info(bundle: Bundle, *, text: str, to: str | None = None, **settings: Any) -> dict[str, Any]:
    """The tree of a search: every token that was weighed, and the texts it led to, the best first.

    Where nothing says with how many beams, with as many as the verbs, but with enough to see a tree.
    """
    beams = settings.get("num_beams")
    if beams is None:
        beams = searching(bundle, {}).num_beams
        beams = beams if 1 < beams <= BEAMS else FEW
    several = beams if type(beams) is int and beams > 1 else None
    begun = _begin(bundle, text, to, {**settings, "num_beams": beams, "num_return_sequences": several})
    words = begun.settings
    if words.num_beams > BEAMS or words.num_beams * begun.limit > NODES:
        raise GlassformerError(
            f"{words.num_beams} beams of {begun.limit} tokens are more than a tree shows; take at most "
            f"{BEAMS} beams, and {NODES:,} for beams times max_new_tokens"
        )
    tokenizer = tokenizer_of(bundle)
    with within_bounds():
        (found,) = generate_batched(
            bundle.ready(),
            [begun.ids],
            GenerationRequest(
                config=words,
                start_ids=begun.ends.start_ids,
                eos_token_id=begun.ends.eos_ids,
                pad_token_id=begun.ends.pad_id,
                max_new_tokens=begun.limit,
                return_tree=True,
                decode=tokenizer.decode,
            ),
        )
    tree = found[0].tree
    assert tree is not None
    side: Side = "target" if begun.rewrites else "source"

    def piece(node: SearchNode) -> str:
        ids = [node.token]
        while node.parent is not None and len(ids) < BEFORE:
            node = tree.nodes[node.parent]
            ids.insert(0, node.token)
        return tokenizer.pieces(ids, side=side)[-1]

    numbers = tree.to_json()["nodes"]
    return {
        "num_beams": words.num_beams,
        "length_penalty": words.length_penalty,
        "formula": _formula(words),
        "nodes": [
            {"id": n, **number, "text": piece(node)}
            for n, (number, node) in enumerate(zip(numbers, tree.nodes, strict=True))
        ],
        "results": [
            {
                "place": place,
                "text": begun.text(one.ids),
                "ids": one.ids,
                "score": one.score,
                "why": _why(tree, place) or one.finish_reason,
            }
            for place, one in enumerate(found)
        ],
    }


def _why(tree: SearchTree, place: int) -> str | None:
    return next((node.why for node in tree.nodes if node.place == place), None)


def _formula(words: GenerationConfig) -> str:
    """How a finished text is scored, n its tokens with the end token."""
    total = "Σ log p"
    if words.num_beams == 1 or words.length_penalty == 0:
        return total
    length = "((5 + n) / 6)" if words.length_formula == "paper" else "n"
    return f"{total} / {length}^{words.length_penalty:g}"
