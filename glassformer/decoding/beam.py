"""Beam search: the best few beginnings of every sentence go on together.

A step weighs a few candidates for each beam, so that enough are left to go on with when some end. The
sequences themselves are never moved about: a step keeps its tokens and the beam each came from, and they
are followed back once at the end.

B sentences, W beams, C candidates, V vocabulary, L tokens that may be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from glassformer.decoding import pick, tree
from glassformer.decoding.settings import Decoding
from glassformer.decoding.shaping import Shaping
from glassformer.decoding.steps import Steps, reorder
from glassformer.decoding.stop import Decode, stopped
from glassformer.decoding.tree import Weighed, grown
from glassformer.decoding.written import ENDINGS, Written, look_every, worthwhile

LOW: Final = -1e9  # the score of what is no beam, or not yet a result; lower than any real one


def length_term(settings: Decoding, length: int | Tensor) -> float | Tensor:
    """What the score of a text of so many tokens, the end token counted, is divided by.

    >>> from glassformer.decoding.settings import Decoding
    >>> length_term(Decoding(length_penalty=2.0), 3), length_term(Decoding(length_formula="paper"), 7)
    (9.0, 2.0)
    """
    if settings.length_formula == "paper":
        return ((5 + length) / 6) ** settings.length_penalty
    return length**settings.length_penalty  # "hf" and "fairseq" agree


@dataclass
class Results:
    """The best finished texts of each sentence, W of them at most."""

    scores: Tensor  # (B, W), best first; LOW where there is none yet
    steps: Tensor  # (B, W), the step of the last token; -1 where there is none
    beams: Tensor  # (B, W), the beam that the last token goes on from
    tokens: Tensor  # (B, W), the last token
    logprobs: Tensor  # (B, W), the last token's
    candidates: Tensor  # (B, W), where that stood among the step's candidates
    endings: Tensor  # (B, W), indices of ENDINGS

    @classmethod
    def empty(cls, sentences: int, beams: int, device: torch.device) -> Results:
        whole = [torch.full((sentences, beams), -1, device=device) for _ in range(5)]
        scores = torch.full((sentences, beams), LOW, device=device)
        return cls(scores, whole[0], whole[1], whole[2], torch.zeros_like(scores), whole[3], whole[4])

    def merged(self, new: Results) -> Results:
        """The best of both."""
        order = torch.cat((self.scores, new.scores), 1).topk(self.scores.shape[1]).indices
        return Results(
            *(
                torch.cat((old, other), 1).gather(1, order)
                for old, other in zip(vars(self).values(), vars(new).values(), strict=True)
            )
        )

    def select(self, rows: Tensor) -> Results:
        return Results(*(value.index_select(0, rows) for value in vars(self).values()))

    def put(self, rows: Tensor, these: Results) -> None:
        for own, value in zip(vars(self).values(), vars(these).values(), strict=True):
            own[rows] = value


def write_beams(
    steps: Steps,
    logits: Tensor,
    shaping: Shaping,
    *,
    generator: torch.Generator | None,
    decode: Decode | None,
    keep_tree: bool,
) -> list[list[Written]]:
    """Logits (B * W, V) of the first tokens, alike for all beams of a sentence -> the results of each."""
    ask, device = shaping.settings, logits.device
    width, vocab = ask.num_beams, logits.shape[-1]
    count, longest = len(logits) // width, int(shaping.limits.max())
    wide = min(max(2, 1 + len(shaping.ends)), vocab) * width
    first = torch.arange(wide, device=device) < width  # only these candidates may become results
    kept_shape = (longest, count, width)
    kept_tokens = torch.zeros(kept_shape, dtype=torch.long, device=device)
    kept_beams = torch.zeros(kept_shape, dtype=torch.long, device=device)
    kept_logprobs = torch.zeros(kept_shape, device=device)
    all_results = Results.empty(count, width, device)
    rows = torch.arange(count, device=device)  # where each sentence of now stands among all
    results = all_results.select(rows)
    running = torch.full((count, width), LOW, device=device)
    running[:, 0] = 0.0  # the beams are alike at first, so one of them goes on for all
    limits = shaping.limits.view(count, width)[:, 0]
    going = limits > 0  # (B,)
    weighed: list[Weighed] = []
    look = look_every(device)
    for n in range(longest):
        scores, beams, tokens, step_logprobs = _candidates(logits, n, running, shaping, wide, generator)
        # 0, 1, 2 as in ENDINGS, and 3 for what goes on; an end token goes before the other reasons
        by_end = (tokens[:, :, None] == shaping.ends).any(-1)
        fate = torch.full_like(tokens, 3).masked_fill((limits <= n + 1)[:, None], 1)
        if ask.stop and decode is not None:
            fate = fate.masked_fill(_stops(shaping, n, beams, tokens, going, decode), 2)
        fate = fate.masked_fill(by_end, 0)
        over = fate < 3
        run, chosen = (scores + over * LOW).topk(width)  # (B, W)
        term = length_term(ask, n + 1)
        admitted = over & first & going[:, None]
        results = results.merged(
            Results(
                (scores / term).masked_fill(~admitted, LOW),
                torch.where(admitted, n, -1),
                beams,
                tokens,
                step_logprobs,
                torch.arange(wide, device=device).expand_as(tokens),
                fate,
            )
        )
        if keep_tree:
            weighed.append(
                _weighed(rows, going, tokens, beams, step_logprobs, scores, fate, first, chosen, float(term))
            )
        running, came, ids = run, beams.gather(1, chosen), tokens.gather(1, chosen)
        kept_tokens[n, rows], kept_beams[n, rows] = ids, came
        kept_logprobs[n, rows] = step_logprobs.gather(1, chosen)
        going = going & ~over.all(1) & _may_improve(ask, results, running, n + 1, limits)
        if n + 1 == longest:
            break
        begins = torch.arange(len(rows), device=device)[:, None] * width
        moved, ids = (begins + came).view(-1), ids.view(-1)
        if (n + 1) % look == 0:
            left = going.nonzero()[:, 0]
            if not len(left):
                break
            if worthwhile(len(left), len(rows), device):
                all_results.put(rows, results)
                flat = (left[:, None] * width + torch.arange(width, device=device)).view(-1)
                moved, ids = moved[flat], ids[flat]
                rows, limits, going, running = rows[left], limits[left], going[left], running[left]
                results = results.select(left)
                steps.select(moved)
                shaping.select(moved)
                shaping.append(ids)
                logits = steps.step(ids)
                continue
        reorder(steps, moved)
        shaping.reorder(moved)
        shaping.append(ids)
        logits = steps.step(ids)
    all_results.put(rows, results)
    found = _followed(all_results, kept_tokens, kept_beams, kept_logprobs, ask.num_return_sequences)
    return found if not keep_tree else _with_trees(found, all_results, weighed, width)


def _candidates(
    logits: Tensor, n: int, running: Tensor, shaping: Shaping, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits (B * W, V) -> the `count` best ways on of each sentence (B, C): score, beam, token, log-prob."""
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
    return scores, index // each, tokens, logprobs.gather(1, index)


def _may_improve(ask: Decoding, results: Results, running: Tensor, written: int, limits: Tensor) -> Tensor:
    """Which sentences (B,) an open beam might still give a better result than their worst."""
    full = (results.steps >= 0).all(1)
    if ask.early_stopping is True:
        return ~full
    # a longer text has a larger term: only "never" believes that an open beam could come to that
    hopeful = ask.early_stopping == "never" and ask.length_penalty > 0
    term = length_term(ask, limits if hopeful else written)
    return ~full | (running[:, 0] / term > results.scores[:, -1])


def _stops(
    shaping: Shaping, written: int, beams: Tensor, tokens: Tensor, going: Tensor, decode: Decode
) -> Tensor:
    """Which candidates (B, C) complete a stop text."""
    assert shaping.history is not None
    texts = shaping.history[:, shaping.filled - written : shaping.filled].tolist()
    width = len(texts) // len(tokens)
    table = zip(beams.tolist(), tokens.tolist(), going.tolist(), strict=True)
    found = [
        [
            here and stopped([*texts[row * width + beam], token], shaping.settings.stop, decode)
            for beam, token in zip(froms, ids, strict=True)
        ]
        for row, (froms, ids, here) in enumerate(table)
    ]
    return torch.tensor(found, device=tokens.device)


def _followed(
    results: Results, tokens: Tensor, beams: Tensor, logprobs: Tensor, best: int
) -> list[list[Written]]:
    """Each sentence's results, followed from their last tokens back to the first."""
    by_step = [value.transpose(0, 1).tolist() for value in (tokens, beams, logprobs)]  # B x L x W
    last = {name: value[:, :best].tolist() for name, value in vars(results).items()}
    found: list[list[Written]] = []
    for sentence in range(tokens.shape[1]):
        texts = []
        own_tokens, own_beams, own_logprobs = (value[sentence] for value in by_step)
        for place in range(best):
            now = {name: value[sentence][place] for name, value in last.items()}
            if now["steps"] < 0:
                continue
            ids, chances, beam = [now["tokens"]], [now["logprobs"]], now["beams"]
            for n in range(now["steps"] - 1, -1, -1):
                ids.append(own_tokens[n][beam])
                chances.append(own_logprobs[n][beam])
                beam = own_beams[n][beam]
            ended = ENDINGS[now["endings"]]
            ids = ids[:0:-1] if ended == "end" else ids[::-1]
            texts.append(Written(ids=ids, score=now["scores"], logprobs=chances[::-1], ended=ended))
        # a sentence that may have no token at all
        found.append(texts or [Written(ids=[], score=0.0, logprobs=[], ended="length")])
    return found


def _weighed(
    rows: Tensor,
    going: Tensor,
    tokens: Tensor,
    beams: Tensor,
    logprobs: Tensor,
    scores: Tensor,
    fate: Tensor,
    first: Tensor,
    chosen: Tensor,
    term: float,
) -> Weighed:
    """The step for the tree."""
    places = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    slots = torch.full_like(tokens, -1).scatter(1, chosen, places).masked_fill(fate < 3, -1)
    ended = torch.where(first, tree.END + fate, tree.ENDED_BELOW)
    fates = torch.where(fate < 3, ended, torch.where(slots >= 0, tree.KEPT, tree.BELOW))
    values = (rows, going, tokens, beams, logprobs, scores, fates, slots)
    names = ("sentences", "alive", "tokens", "parents", "logprobs", "scores", "fates", "slots")
    return Weighed(**{n: v.cpu() for n, v in zip(names, values, strict=True)}, length_term=term)


def _with_trees(
    found: list[list[Written]], results: Results, weighed: list[Weighed], width: int
) -> list[list[Written]]:
    trees, nodes = grown(weighed, len(found), width)
    steps, candidates = results.steps.tolist(), results.candidates.tolist()
    for sentence, one in enumerate(trees):
        for place in range(width):
            n = steps[sentence][place]
            if n >= 0 and candidates[sentence][place] in nodes[sentence][n]:
                one.nodes[nodes[sentence][n][candidates[sentence][place]]].place = place
    return [
        [Written(**{**vars(text), "tree": one}) for text in texts]
        for texts, one in zip(found, trees, strict=True)
    ]
