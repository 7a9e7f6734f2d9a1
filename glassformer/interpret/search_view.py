"""Show how a text is generated: one step with its candidates, or a full beam search as a tree.

Both use the same ids, settings and scores as `translate` and `generate`. V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core.heads import HeadContext
from glassformer.core.inputs import Masks
from glassformer.core.masks import Mask
from glassformer.errors import InvalidValueError
from glassformer.generation import GenerationConfig, generate_batched
from glassformer.generation.logits_processors import NEVER, LogitsProcessors
from glassformer.generation.search_tree import SearchNode
from glassformer.generation.step_decoder import decoder_start_ids
from glassformer.generation.stopping_criteria import completes_stop
from glassformer.interpret.generated_text import (
    check_token_ids,
    encode_segment,
    generation_task,
    positions_left,
    vocab_size,
)
from glassformer.interpret.outline import model_kind
from glassformer.interpret.readout import head_readout
from glassformer.interpret.schema import SearchInfo, SearchNodeInfo, SearchResult, StepInfo
from glassformer.interpret.tokens import generated_tokens
from glassformer.tasks.text_generation import generation_architecture, memory_errors
from glassformer.tokenization.tokenizer import Side

MAX_GENERATED: Final = 256  # tokens
MAX_BEAMS: Final = 16
DEFAULT_BEAMS: Final = 4  # enough to see a tree
MAX_NODES: Final = 2048  # steps times beams
DECODED_BEFORE: Final = 4  # tokens decoded with a node: a character may be spread over several


class _Generation:
    def __init__(self, bundle: Bundle, text: str, to: str | None, options: Mapping[str, Any]) -> None:
        model_kind(bundle)  # rejects baselines
        self.has_source = generation_architecture(bundle) == "encoder-decoder"
        self.task = generation_task(bundle, to, **options)
        self.segment = encode_segment(self.task, text)
        self.params = self.task.params
        # the ids before the first generated token: decoder start ids or prompt
        self.prefix = self.segment.ids
        if self.has_source:
            self.prefix = list(decoder_start_ids(bundle.model, self.params.start_ids))
        self.limit = min(self.params.limit(len(self.segment.ids), len(self.prefix)), MAX_GENERATED)
        self.side: Side = "target" if self.has_source else "source"

    def text(self, generated: Sequence[int]) -> str:
        eos_ids = self.params.eos_ids
        return self.task.decode(self.segment, [index for index in generated if index not in eos_ids])

    def logits_processors(self, limit: int) -> LogitsProcessors:
        """Build the logits processors of the options, for greedy decoding of this text."""
        params, vocabulary = self.params, vocab_size(self.task.bundle)
        params.check_forced_ids(vocabulary)
        greedy = replace(params.config, do_sample=False, num_beams=1, num_return_sequences=1)
        return LogitsProcessors.build(
            replace(params, config=greedy),
            torch.tensor([self.prefix]).long(),
            torch.tensor([limit]),
            vocab_size=vocabulary,
            prefix=params.prefix(self.prefix) if self.has_source else (),
        )

    def next_logits(self, generated: list[int]) -> Tensor:
        model: Any = self.task.bundle.model
        decoded = torch.tensor([[*self.prefix, *generated]], device=self.task.bundle.device)
        if self.has_source:
            source = decoded.new_tensor([self.segment.ids])
            x, context = model.hidden_states(source, decoded, Masks(Mask(), Mask()))
        else:
            x, context = model.hidden_states(decoded, Mask())
        logits: Tensor = model.head(x[:, -1:], HeadContext(ids=context.ids))
        return logits[0, -1].float()


@torch.inference_mode()
def next_step(
    bundle: Bundle,
    *,
    text: str,
    generated_ids: Sequence[int] = (),
    to: str | None = None,
    top: int = 50,
    parameters: Mapping[str, Any] | None = None,
) -> StepInfo:
    """Return the candidates for the token after `generated_ids`; greedy decoding selects the first.

    Logits processors (penalties, lengths, forced tokens) are applied; temperature, top-k and top-p are left
    to the caller. A candidate's probability is exp(logit - logsumexp). finished: generation ends here.
    """
    generation = _Generation(bundle, text, to, {"num_beams": 1, **(parameters or {})})
    params = generation.params
    check_token_ids("generated_ids", generated_ids, vocab_size(bundle))
    ids, tokenizer, stop = list(generated_ids), generation.task.tokenizer, params.config.stop_strings
    finished = bool(ids) and (
        ids[-1] in params.eos_ids or (bool(stop) and completes_stop(ids, stop, tokenizer.decode))
    )
    logits = torch.empty(0)
    if len(ids) <= positions_left(bundle, len(generation.prefix), MAX_GENERATED - 1):
        processors = generation.logits_processors(max(generation.limit, len(ids) + 1))
        for index in ids:
            processors.append(torch.tensor([index]))
        logits = processors(generation.next_logits(ids).cpu()[None], len(ids))[0]
    possible = int((logits > NEVER).sum())
    decoded = generation.text(ids)
    return StepInfo(
        predictions=head_readout(bundle).top(logits, min(top, possible)) if possible else (),
        logsumexp=float(logits.logsumexp(-1)) if possible else 0.0,
        vocab_size=vocab_size(bundle),
        finished=finished or len(ids) >= generation.limit or not possible,
        position=len(ids),
        tokens=generated_tokens(tokenizer, ids, decoded, generation.side),
        text=decoded,
    )


def search_tree(bundle: Bundle, *, text: str, to: str | None = None, **parameters: Any) -> SearchInfo:
    """Run a beam search and return it as a tree: every candidate, and the results, best first.

    num_beams: by default that of the task, if it is large enough to show a tree.
    """
    beams = parameters.get("num_beams")
    if beams is None:
        beams = generation_task(bundle, to).params.config.num_beams
        beams = beams if 1 < beams <= MAX_BEAMS else DEFAULT_BEAMS
    returned = beams if beams > 1 else None
    options = {**parameters, "num_beams": beams, "num_return_sequences": returned}
    generation = _Generation(bundle, text, to, options)
    decoding, tokenizer = generation.params.config, generation.task.tokenizer
    if decoding.num_beams > MAX_BEAMS:
        raise InvalidValueError("num_beams", decoding.num_beams, f"at most {MAX_BEAMS}")
    if decoding.num_beams * generation.limit > MAX_NODES:
        raise InvalidValueError(
            "max_new_tokens", generation.limit, f"at most {MAX_NODES // decoding.num_beams} with these beams"
        )
    params = replace(generation.params, max_new_tokens=generation.limit, return_tree=True)
    with memory_errors():
        (outputs,) = generate_batched(bundle.inference_model(), [generation.segment.ids], params)
    tree = outputs[0].tree
    assert tree is not None

    def piece(node: SearchNode) -> str:
        ids = [ancestor.token for ancestor in tree.path(node)[-DECODED_BEFORE:]]
        return tokenizer.pieces(ids, side=generation.side)[-1]

    reasons = {node.result_rank: node.reason for node in tree.nodes}
    results = [
        SearchResult(
            rank=rank,
            text=generation.text(output.ids),
            ids=tuple(output.ids),
            score=output.score,
            reason=reasons.get(rank, output.finish_reason),
        )
        for rank, output in enumerate(outputs)
    ]
    return SearchInfo(
        num_beams=decoding.num_beams,
        length_penalty=decoding.length_penalty,
        score_formula=_score_formula(decoding),
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
