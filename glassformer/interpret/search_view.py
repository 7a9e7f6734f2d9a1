"""How a text is generated: one step with its candidates, and a whole beam search as a tree.

Both use the same ids, settings and scores as `translate` and `generate`. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.heads import Context
from glassformer.core.masks import Mask
from glassformer.errors import InputTooLongError, InvalidValueError
from glassformer.generation import GenerationConfig, GenerationRequest, generate_batched
from glassformer.generation.decoder import decoder_start_ids
from glassformer.generation.logits_processors import LogitsProcessors
from glassformer.generation.sampling import NEVER
from glassformer.generation.search_tree import SearchNode as GeneratedNode
from glassformer.generation.stopping import completes_stop, truncate_at_stop
from glassformer.interpret.inputs import (
    MAX_TOKENS,
    check_token_ids,
    decode_line,
    generation_limit,
    positions_left,
    source_sequence,
    vocab_size,
)
from glassformer.interpret.logit_lens import head_readout
from glassformer.interpret.outline import check_transformer
from glassformer.interpret.schema import SearchInfo, SearchNode, SearchResult, StepInfo, TraceInput
from glassformer.interpret.tokens import generated_tokens
from glassformer.tasks.reading import tokenizer_of
from glassformer.tasks.writing.checks import settings_of, within_bounds
from glassformer.tasks.writing.continuing import CONTINUED
from glassformer.tasks.writing.ends import Ends, ends_of
from glassformer.tasks.writing.prompts import following, prompt_ids
from glassformer.tasks.writing.rewriting import searching, usual_limit
from glassformer.tasks.writing.sources import language
from glassformer.tokenization.tokenizer import Side

MAX_GENERATED: Final = 256  # tokens
MAX_BEAMS: Final = 16
DEFAULT_BEAMS: Final = 4  # enough to see a tree
MAX_NODES: Final = 2048  # steps times beams
DECODED_BEFORE: Final = 4  # tokens decoded with a node: a character may be spread over several


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """What is read before anything is generated.

    ids: the source or prompt. starts: the decoder start ids, if there is a source. limit: the most tokens
    generated, including the end token.
    """

    bundle: Bundle
    ends: Ends
    settings: GenerationConfig
    ids: list[int]
    starts: list[int]
    limit: int

    @property
    def has_source(self) -> bool:
        return self.ends.shape == "rewrites"

    @property
    def prefix(self) -> list[int]:
        """What precedes the first generated token."""
        return self.starts if self.has_source else self.ids

    @property
    def side(self) -> Side:
        return "target" if self.has_source else "source"

    def text(self, generated: Sequence[int]) -> str:
        """The generated text as the tasks return it."""
        tokenizer = tokenizer_of(self.bundle)
        ids = [index for index in generated if index not in self.ends.eos_ids]
        if self.has_source:
            return decode_line(tokenizer, ids, self.settings.stop_strings)
        return truncate_at_stop(following(tokenizer, self.ids, ids), self.settings.stop_strings)

    def logits_processors(self, settings: GenerationConfig, limit: int) -> LogitsProcessors:
        """What the settings do to the logits of this text."""
        request = GenerationRequest(config=settings, eos_token_id=self.ends.eos_ids, decode=str)
        request.check_forced_ids(vocab_size(self.bundle))
        return LogitsProcessors.build(
            request,
            torch.tensor([list(self.prefix)]).long(),
            torch.tensor([limit]),
            vocab_size=vocab_size(self.bundle),
            prefix=request.prefix(self.prefix) if self.has_source else (),
        )

    def next_logits(self, generated: list[int]) -> Tensor:
        """The model's logits for the next token (V,)."""
        model: Any = self.bundle.model

        def row(ids: Sequence[int]) -> Tensor:
            return torch.tensor([list(ids)], device=self.bundle.device)

        if self.has_source:
            x, context = model.hidden_states(
                row(self.ids), row([*self.starts, *generated]), src_mask=Mask(), tgt_mask=Mask()
            )
        else:
            x, context = model.hidden_states(row([*self.ids, *generated]), mask=Mask())
        logits: Tensor = model.head(x[:, -1:], Context(ids=context.ids))
        return logits[0, -1].float()


def _prepare(bundle: Bundle, text: str, to: str | None, settings: Mapping[str, Any]) -> _Generation:
    check_transformer(bundle)
    ends = ends_of(bundle)
    starts: list[int] = []
    if ends.shape == "rewrites":
        chosen = language(bundle, to, by="`to`")
        decoding = settings_of(bundle, {**settings, **chosen.settings})
        source = source_sequence(bundle, TraceInput(text=text, to=to), chosen)
        ids = [token.id for token in source.tokens if token.id is not None]
        starts = list(decoder_start_ids(bundle.model, ends.start_ids))
        default = usual_limit(len(ids))
    else:
        decoding = settings_of(bundle, settings)
        (ids,) = prompt_ids(bundle, ends, [text])
        default = CONTINUED if ends.reads is None else max(1, min(CONTINUED, ends.reads + 1 - len(ids)))
    if len(ids) > (limit := min(ends.reads or MAX_TOKENS, MAX_TOKENS)):
        raise InputTooLongError(len(ids), limit, hint="shorten it")
    limit = generation_limit(decoding, given=len(starts) or len(ids), default=default)
    return _Generation(
        bundle=bundle,
        ends=ends,
        settings=decoding,
        ids=ids,
        starts=starts,
        limit=min(limit, MAX_GENERATED),
    )


@torch.inference_mode()
def next_step(
    bundle: Bundle,
    *,
    text: str,
    written: Sequence[int] = (),
    to: str | None = None,
    count: int = 50,
    settings: Mapping[str, Any] | None = None,
) -> StepInfo:
    """The candidates for the token after `written`; the first is what greedy decoding takes.

    Logits processors (penalties, lengths, forced tokens) apply; temperature, top-k and top-p are left to the
    caller. A candidate's probability is exp(logit - logsumexp). ended: nothing follows.
    """
    generation = _prepare(bundle, text, to, {"num_beams": 1, **(settings or {})})
    decoding = replace(generation.settings, do_sample=False, num_beams=1, num_return_sequences=1)
    check_token_ids("written", written, vocab_size(bundle))
    if len(written) > MAX_GENERATED:
        raise InputTooLongError(len(written), MAX_GENERATED)
    ids, tokenizer = list(written), tokenizer_of(bundle)
    finished = bool(ids) and (
        ids[-1] in generation.ends.eos_ids
        or (bool(decoding.stop_strings) and completes_stop(ids, decoding.stop_strings, tokenizer.decode))
    )
    logits = torch.empty(0)
    if len(ids) <= positions_left(bundle, len(generation.prefix), MAX_GENERATED - 1):
        processors = generation.logits_processors(decoding, max(generation.limit, len(ids) + 1))
        for index in ids:
            processors.append(torch.tensor([index]))
        logits = processors(generation.next_logits(ids).cpu()[None], len(ids))[0]
    possible = int((logits > NEVER).sum())
    decoded = generation.text(ids)
    return StepInfo(
        words=head_readout(bundle).top(logits, min(count, possible)) if possible else (),
        logsumexp=float(logits.logsumexp(-1)) if possible else 0.0,
        vocabulary=vocab_size(bundle),
        ended=finished or len(ids) >= generation.limit or not possible,
        position=len(ids),
        tokens=generated_tokens(tokenizer, ids, decoded, generation.side),
        text=decoded,
    )


def search_tree(bundle: Bundle, *, text: str, to: str | None = None, **settings: Any) -> SearchInfo:
    """A beam search as a tree: every candidate, and the results, best first.

    num_beams: by default that of the task, if it is enough to see a tree.
    """
    beams = settings.get("num_beams")
    if beams is None:
        beams = searching(bundle, {}).num_beams
        beams = beams if 1 < beams <= MAX_BEAMS else DEFAULT_BEAMS
    returned = beams if beams > 1 else None
    generation = _prepare(
        bundle, text, to, {**settings, "num_beams": beams, "num_return_sequences": returned}
    )
    decoding = generation.settings
    if decoding.num_beams > MAX_BEAMS:
        raise InvalidValueError("num_beams", decoding.num_beams, f"at most {MAX_BEAMS}")
    if decoding.num_beams * generation.limit > MAX_NODES:
        raise InvalidValueError(
            "max_new_tokens", generation.limit, f"at most {MAX_NODES // decoding.num_beams} with these beams"
        )
    tokenizer = tokenizer_of(bundle)
    with within_bounds():
        (outputs,) = generate_batched(
            bundle.ready(),
            [generation.ids],
            GenerationRequest(
                config=decoding,
                start_ids=generation.ends.start_ids,
                eos_token_id=generation.ends.eos_ids,
                pad_token_id=generation.ends.pad_id,
                max_new_tokens=generation.limit,
                return_tree=True,
                decode=tokenizer.decode,
            ),
        )
    tree = outputs[0].tree
    assert tree is not None

    def piece(node: GeneratedNode) -> str:
        ids = [one.token for one in tree.path(node)[-DECODED_BEFORE:]]
        return tokenizer.pieces(ids, side=generation.side)[-1]

    reasons = {node.place: node.why for node in tree.nodes}
    return SearchInfo(
        num_beams=decoding.num_beams,
        length_penalty=decoding.length_penalty,
        formula=_score_formula(decoding),
        nodes=tuple(SearchNode(id=n, **asdict(node), text=piece(node)) for n, node in enumerate(tree.nodes)),
        results=tuple(
            SearchResult(
                place=place,
                text=generation.text(one.ids),
                ids=tuple(one.ids),
                score=one.score,
                why=reasons.get(place, one.finish_reason),
            )
            for place, one in enumerate(outputs)
        ),
    )


def _score_formula(settings: GenerationConfig) -> str:
    """How a finished hypothesis is scored; n: its tokens, including the end token."""
    total = "Σ log p"
    if settings.num_beams == 1 or settings.length_penalty == 0:
        return total
    length = "((5 + n) / 6)" if settings.length_formula == "paper" else "n"
    return f"{total} / {length}^{settings.length_penalty:g}"
