"""Beam search: the best few beginnings of every sentence go on together.

A step weighs a few candidates for each beam, so that enough are left to go on with when some end. The
sequences themselves are never moved about: a step keeps its tokens and the beam each came from, and they
are followed back once at the end.

B sentences, W beams, C candidates, V vocabulary, L tokens that may be written.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from glassformer.generation import pick
from glassformer.generation import search_tree as tree
from glassformer.generation.beams import ON, Beams, Candidates, Chosen, Results, length_term
from glassformer.generation.decoder import Decoder, SelectingDecoder, TokenSelector, reorder
from glassformer.generation.request import (
    FINISH_REASONS,
    GenerationOutput,
    GenerationRequest,
    check_interval,
    should_compact,
)
from glassformer.generation.search_tree import Weighed, grown
from glassformer.generation.shaping import Shaping
from glassformer.generation.stopping import Decode, completes_stop


def write_beams(
    steps: Decoder,
    logits: Tensor,
    shaping: Shaping,
    request: GenerationRequest,
    *,
    generator: torch.Generator | None,
) -> list[list[GenerationOutput]]:
    """Logits (B * W, V) of the first tokens, alike for all beams of a sentence -> the results of each."""
    ask, device = shaping.settings, logits.device
    decode, keep_tree = request.decode, request.return_tree
    width = ask.num_beams
    longest = int(shaping.limits.max())
    wide = min(max(2, 1 + len(shaping.ends)), logits.shape[-1]) * width
    beams = Beams(ask, shaping.limits.view(-1, width)[:, 0].clone(), shaping.ends, wide)
    weighed: list[Weighed] = []
    look, steady = check_interval(device), 0
    follow: TokenSelector | None = None
    alone = not (keep_tree or ask.stop_strings)  # what looks at every token must have it on the host
    for n in range(longest):
        if follow is None:
            found = candidates(logits, n, beams.running, shaping, wide, generator)
            stops = None
            if ask.stop_strings and decode is not None:
                stops = stops_of(shaping, n, found.beams, found.tokens, beams.going, decode)
            before = beams.going.clone()
            chosen = beams.weigh(found, stops)
            if keep_tree:
                term = float(length_term(ask, n + 1))
                weighed.append(_weighed(beams.rows, before, found, beams.first, chosen, term))
            ids, moved = chosen.ids, chosen.moved
        if n + 1 == longest:
            break
        if (n + 1) % look == 0:
            left = beams.going.nonzero()[:, 0]
            if not len(left):
                break
            if should_compact(len(left), len(beams.going), device):
                flat = (left[:, None] * width + torch.arange(width, device=device)).view(-1)
                moved, ids = moved[flat], ids[flat]
                beams.select(left)
                steps.select(moved)
                shaping.select(moved)
            else:
                reorder(steps, moved)
                shaping.reorder(moved)
        else:
            reorder(steps, moved)
            shaping.reorder(moved)
        shaping.append(ids)
        if n + 1 >= steady:
            steady = shaping.steady_until(n + 1, longest)
            fused = isinstance(steps, SelectingDecoder) and steady > n + 1 and alone
            follow = BestBeams(beams, shaping, n + 1, wide) if fused else None
        if follow is not None and isinstance(steps, SelectingDecoder):
            ids, moved = steps.step_and_select(ids, follow)
        else:
            logits = steps.step(ids)
    found_results = beams.finished()
    found_texts = followed(found_results, beams.kept, beams.kept_logprobs, ask.num_return_sequences)
    return found_texts if not keep_tree else _with_trees(found_texts, found_results, weighed, width)


class BestBeams(TokenSelector):
    """The best ways on of each sentence, weighed, while the same tokens are forbidden."""

    def __init__(self, beams: Beams, shaping: Shaping, n: int, wide: int) -> None:
        self.beams, self.shaping, self.n, self.wide = beams, shaping, n, wide

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        found = candidates(logits, self.n, self.beams.running, self.shaping, self.wide, None)
        chosen = self.beams.weigh(found)
        return chosen.ids, chosen.moved

    def form(self) -> Hashable:
        forbidden = self.shaping.forbidden(self.n)
        assert forbidden is not None
        return self.shaping.settings, self.wide, tuple(forbidden.tolist())

    def state(self) -> dict[str, Tensor]:
        return self.beams.state()

    def adopt(self, state: dict[str, Tensor]) -> None:
        self.beams.adopt(state)


def candidates(
    logits: Tensor, n: int, running: Tensor, shaping: Shaping, count: int, generator: torch.Generator | None
) -> Candidates:
    """Logits (B * W, V) of the token n -> the `count` best ways on of each sentence."""
    sentences, width = running.shape
    if shaping.settings.do_sample:
        each = logits.shape[1]
        logprobs = shaping.shape(logits.float().log_softmax(-1), n)
        tokens = torch.arange(each, device=logits.device).expand_as(logprobs)
    else:
        # what is not among the best of its beam is not among the best of its sentence
        each = min(count, logits.shape[1])
        logprobs, tokens = shaping.likeliest(logits, n, each)  # (B * W, each)
    logprobs = logprobs.view(sentences, width * each)
    totals = (logprobs.view(sentences, width, each) + running[:, :, None]).view(sentences, width * each)
    if shaping.settings.do_sample:
        index = pick.draw(totals, count, generator)
        scores = totals.gather(1, index)
    else:
        scores, index = totals.topk(count)
    tokens = tokens.reshape(sentences, width * each).gather(1, index)
    return Candidates(scores, index // each, tokens, logprobs.gather(1, index))


def stops_of(
    shaping: Shaping, written: int, beams: Tensor, tokens: Tensor, going: Tensor, decode: Decode
) -> Tensor:
    """Which candidates (B, C) complete a stop text."""
    assert shaping.history is not None
    texts = shaping.history[:, shaping.filled - written : shaping.filled].tolist()
    width = len(texts) // len(tokens)
    table = zip(beams.tolist(), tokens.tolist(), going.tolist(), strict=True)
    found = [
        [
            here
            and completes_stop([*texts[row * width + beam], token], shaping.settings.stop_strings, decode)
            for beam, token in zip(froms, ids, strict=True)
        ]
        for row, (froms, ids, here) in enumerate(table)
    ]
    return torch.tensor(found, device=tokens.device)


def followed(
    results: Results, kept: Tensor, kept_logprobs: Tensor, best: int
) -> list[list[GenerationOutput]]:
    """Each sentence's results, followed from their last tokens back to the first."""
    kept, kept_logprobs = kept.cpu(), kept_logprobs.cpu()  # (L, B, W, 2), (L, B, W)
    last = results.facts[:, :best].cpu()  # (B, best, 5)
    steps, beam = last[..., 0], last[..., 1].clamp(min=0)
    ids, logprobs = [], []
    for n in range(int(steps.max()) - 1, -1, -1):
        ids.append(kept[n, ..., 0].gather(1, beam))
        logprobs.append(kept_logprobs[n].gather(1, beam))
        beam = torch.where(n < steps, kept[n, ..., 1].gather(1, beam), beam)
    by_text = [torch.stack(x[::-1], -1).tolist() if x else None for x in (ids, logprobs)]  # B x best x L
    ends = zip(
        last.tolist(), results.scores[:, :best].tolist(), results.logprobs[:, :best].tolist(), strict=True
    )
    found: list[list[GenerationOutput]] = []
    for sentence, (facts, scores, chances) in enumerate(ends):
        texts = []
        for place, (step, _, token, _, ending) in enumerate(facts):
            if step < 0:
                continue
            before, sure = (x[sentence][place][:step] if x else [] for x in by_text)
            ended = FINISH_REASONS[ending]
            texts.append(
                GenerationOutput(
                    ids=before if ended == "end" else [*before, token],
                    score=scores[place],
                    logprobs=[*sure, chances[place]],
                    finish_reason=ended,
                )
            )
        # a sentence that may have no token at all
        found.append(texts or [GenerationOutput(ids=[], score=0.0, logprobs=[], finish_reason="length")])
    return found


def _weighed(
    rows: Tensor, going: Tensor, found: Candidates, first: Tensor, chosen: Chosen, term: float
) -> Weighed:
    """The step for the tree."""
    fates = chosen.fates
    places = torch.arange(chosen.places.shape[1], device=fates.device).expand_as(chosen.places)
    slots = torch.full_like(fates, -1).scatter(1, chosen.places, places).masked_fill(fates < ON, -1)
    ended = torch.where(first, tree.END + fates, tree.ENDED_BELOW)
    told = torch.where(fates < ON, ended, torch.where(slots >= 0, tree.KEPT, tree.BELOW))
    values = (rows, going, found.tokens, found.beams, found.logprobs, found.scores, told, slots)
    names = ("sentences", "alive", "tokens", "parents", "logprobs", "scores", "fates", "slots")
    return Weighed(**{n: v.cpu() for n, v in zip(names, values, strict=True)}, length_term=term)


def _with_trees(
    found: list[list[GenerationOutput]], results: Results, weighed: list[Weighed], width: int
) -> list[list[GenerationOutput]]:
    trees, nodes = grown(weighed, len(found), width)
    steps, candidates = (results.facts[..., n].tolist() for n in (0, 3))
    for sentence, one in enumerate(trees):
        for place in range(width):
            n = steps[sentence][place]
            if n >= 0 and candidates[sentence][place] in nodes[sentence][n]:
                one.nodes[nodes[sentence][n][candidates[sentence][place]]].place = place
    return [
        [GenerationOutput(**{**vars(text), "tree": one}) for text in texts]
        for texts, one in zip(found, trees, strict=True)
    ]
