"""Show how a text is generated: one step with its candidates, or a full beam search as a tree.

Both use the same ids, settings and scores as the tasks `translate`, `caption` and `generate`. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import Masks
from glassformer.core.masks import Mask
from glassformer.errors import InvalidValueError
from glassformer.generation import GenerationConfig
from glassformer.generation.logits_processors import NEVER, LogitsProcessors
from glassformer.generation.search_tree import SearchNode
from glassformer.generation.stopping_criteria import completes_stop
from glassformer.interpret.generated_text import GenerationInput, check_token_ids, positions_left, vocab_size
from glassformer.interpret.readout import head_readout
from glassformer.interpret.schema import SearchInfo, SearchNodeInfo, SearchResult, StepInfo, TraceInput
from glassformer.interpret.tokens import generated_tokens
from glassformer.interpret.views import view_of
from glassformer.processors.text import require_tokenizer
from glassformer.tokenization.tokenizer import Side

MAX_GENERATED: Final = 256  # tokens
MAX_BEAMS: Final = 16
DEFAULT_BEAMS: Final = 4  # enough to see a tree
MAX_NODES: Final = 2048  # steps times beams
DECODED_BEFORE: Final = 4  # tokens decoded with a node: a character may be spread over several


@dataclass(frozen=True)
class _Decoding:
    """The decoding of one input. limit: maximum number of new tokens."""

    generation: GenerationInput

    @classmethod
    def of(cls, bundle: Bundle, input: TraceInput, options: Mapping[str, Any]) -> _Decoding:
        view = view_of(bundle)
        view.check(input)
        return cls(view.generation(input, **options))

    @property
    def limit(self) -> int:
        return min(self.generation.limit, MAX_GENERATED)

    @property
    def side(self) -> Side:
        return "source" if self.generation.source is None else "target"

    def text(self, generated: Sequence[int]) -> str:
        eos_ids = self.generation.params.eos_ids
        return self.generation.decode([index for index in generated if index not in eos_ids])

    def logits_processors(self, limit: int) -> LogitsProcessors:
        """Build the logits processors of the options, for greedy decoding of this input."""
        bundle, params, prefix = self.generation.bundle, self.generation.params, self.generation.prefix
        params.check_forced_ids(vocab_size(bundle))
        greedy = replace(params.config, do_sample=False, num_beams=1, num_return_sequences=1)
        return LogitsProcessors.build(
            replace(params, config=greedy),
            torch.tensor([prefix]).long(),
            torch.tensor([limit]),
            vocab_size=vocab_size(bundle),
            prefix=() if self.generation.source is None else params.prefix(prefix),
        )

    def next_logits(self, generated: list[int]) -> Tensor:
        bundle, inputs = self.generation.bundle, self.generation.inputs
        model: Any = bundle.model
        decoded = torch.tensor([[*self.generation.prefix, *generated]], device=bundle.device)
        if self.generation.source is None:
            x, context = model.hidden_states(decoded, Mask())
        else:
            x, context = model.hidden_states(inputs, decoded, Masks(Mask(), Mask()))
        logits: Tensor = model.head(x[:, -1:], HeadContext(ids=context.ids))
        return logits[0, -1].float()


@torch.inference_mode()
def next_step(
    bundle: Bundle,
    *,
    text: str | None = None,
    image: str | None = None,
    generated_ids: Sequence[int] = (),
    to: str | None = None,
    top: int = 50,
    parameters: Mapping[str, Any] | None = None,
) -> StepInfo:
    """Return the candidates for the token after `generated_ids`; greedy decoding selects the first.

    Logits processors (penalties, lengths, forced tokens) are applied; temperature, top-k and top-p are left
    to the caller. A candidate's probability is exp(logit - logsumexp). finished: generation ends here.
    """
    input = TraceInput(text=text, image=image, to=to)
    decoding = _Decoding.of(bundle, input, {"num_beams": 1, **(parameters or {})})
    generation, params = decoding.generation, decoding.generation.params
    check_token_ids("generated_ids", generated_ids, vocab_size(bundle))
    ids, tokenizer, stop = list(generated_ids), require_tokenizer(bundle), params.config.stop_strings
    finished = bool(ids) and (
        ids[-1] in params.eos_ids or (bool(stop) and completes_stop(ids, stop, tokenizer.decode))
    )
    logits = torch.empty(0)
    if len(ids) <= positions_left(bundle, len(generation.prefix), MAX_GENERATED - 1):
        processors = decoding.logits_processors(max(decoding.limit, len(ids) + 1))
        for index in ids:
            processors.append(torch.tensor([index]))
        logits = processors(decoding.next_logits(ids).cpu()[None], len(ids))[0]
    possible = int((logits > NEVER).sum())
    decoded = decoding.text(ids)
    return StepInfo(
        predictions=head_readout(bundle).top(logits, min(top, possible)) if possible else (),
        logsumexp=float(logits.logsumexp(-1)) if possible else 0.0,
        vocab_size=vocab_size(bundle),
        finished=finished or len(ids) >= decoding.limit or not possible,
        position=len(ids),
        tokens=generated_tokens(tokenizer, ids, decoded, decoding.side),
        text=decoded,
    )


def search_tree(
    bundle: Bundle,
    *,
    text: str | None = None,
    image: str | None = None,
    to: str | None = None,
    **parameters: Any,
) -> SearchInfo:
    """Run a beam search and return it as a tree: every candidate, and the results, best first.

    num_beams: by default that of the task, if it is large enough to show a tree.
    """
    input, beams = TraceInput(text=text, image=image, to=to), parameters.get("num_beams")
    if beams is None:
        beams = _Decoding.of(bundle, input, {}).generation.params.config.num_beams
        beams = beams if 1 < beams <= MAX_BEAMS else DEFAULT_BEAMS
    returned = beams if beams > 1 else None
    options = {**parameters, "num_beams": beams, "num_return_sequences": returned}
    decoding, tokenizer = _Decoding.of(bundle, input, options), require_tokenizer(bundle)
    generation, limit = decoding.generation, decoding.limit
    config = generation.params.config
    if config.num_beams > MAX_BEAMS:
        raise InvalidValueError("num_beams", config.num_beams, f"at most {MAX_BEAMS}")
    if config.num_beams * limit > MAX_NODES:
        raise InvalidValueError(
            "max_new_tokens", limit, f"at most {MAX_NODES // config.num_beams} with these beams"
        )
    params = replace(generation.params, max_new_tokens=limit, return_tree=True)
    outputs = generation.run(bundle.inference_model(), params)
    tree = outputs[0].tree
    assert tree is not None

    def piece(node: SearchNode) -> str:
        ids = [ancestor.token for ancestor in tree.path(node)[-DECODED_BEFORE:]]
        return tokenizer.pieces(ids, side=decoding.side)[-1]

    reasons = {node.result_rank: node.reason for node in tree.nodes}
    results = [
        SearchResult(
            rank=rank,
            text=decoding.text(output.ids),
            ids=tuple(output.ids),
            score=output.score,
            reason=reasons.get(rank, output.finish_reason),
        )
        for rank, output in enumerate(outputs)
    ]
    return SearchInfo(
        num_beams=config.num_beams,
        length_penalty=config.length_penalty,
        score_formula=_score_formula(config),
        nodes=tuple(
            SearchNodeInfo(id=n, **asdict(node), text=piece(node)) for n, node in enumerate(tree.nodes)
        ),
        results=tuple(results),
    )


def _score_formula(settings: GenerationConfig) -> str:
    """Return the scoring formula of a finished hypothesis; n: number of tokens, including EOS."""
    total = "Σ log p"
    if settings.num_beams == 1 or settings.length_penalty == 0:
        return total
    length = "((5 + n) / 6)" if settings.length_formula == "paper" else "n"
    return f"{total} / {length}^{settings.length_penalty:g}"
