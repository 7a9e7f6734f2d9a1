"""One token a row and step: the likeliest, or one that is drawn.

B rows, V vocabulary, L tokens that may be written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from glassformer.decoding import pick, tree
from glassformer.decoding.shaping import Shaping
from glassformer.decoding.steps import Steps
from glassformer.decoding.stop import Decode, stopped
from glassformer.decoding.tree import Weighed, grown
from glassformer.decoding.written import (
    BY_END,
    BY_LENGTH,
    BY_STOP,
    ENDINGS,
    Written,
    look_every,
    worthwhile,
)

OnToken = Callable[[int, int], Any]  # row, token
SHOWN = 5  # candidates of a step that a tree shows beside the chosen one


def write_single(
    steps: Steps,
    logits: Tensor,
    shaping: Shaping,
    *,
    generator: torch.Generator | None,
    decode: Decode | None,
    on_token: OnToken | None,
    keep_tree: bool,
) -> list[Written]:
    """Logits (B, V) of the first tokens -> what follows for each row."""
    ask, ends, device = shaping.settings, shaping.ends, logits.device
    count, longest = len(logits), int(shaping.limits.max())
    rows = torch.arange(count, device=device)  # where each row of now stands in what is kept for the end
    tokens = torch.full((count, longest), pick.NOTHING, device=device)
    logprobs = torch.zeros(count, longest, device=device)
    endings = torch.full((count,), BY_LENGTH, device=device)
    done = shaping.limits <= 0
    total = torch.zeros(count, device=device)
    weighed: list[Weighed] = []
    look = look_every(device)
    for n in range(longest):
        forbidden = shaping.forbidden(n)
        if forbidden is not None and not len(forbidden):
            scores = logits
            values, found, whole = pick.best(logits, 1)
            ids, chosen = found[:, 0], values[:, 0] - whole
        else:
            scores = shaping.shape(logits.float(), n)
            ids = pick.draw(scores, 1, generator)[:, 0] if ask.do_sample else scores.argmax(-1)  # (B,)
            chosen = scores.gather(1, ids[:, None])[:, 0] - scores.logsumexp(-1)
        ended = (ids[:, None] == ends).any(-1)
        ending = torch.where(ended, BY_END, BY_LENGTH)
        tokens[rows, n] = ids.masked_fill(done, pick.NOTHING)
        logprobs[rows, n] = chosen.masked_fill(done, 0.0)
        shaping.append(ids)
        over = ended | (shaping.limits <= n + 1)
        if ask.stop and decode is not None:
            hit = _stops(shaping, n + 1, done | ended, decode)
            ending, over = ending.masked_fill(hit, BY_STOP), over | hit
        endings[rows] = torch.where(done, endings[rows], ending)
        if keep_tree:
            weighed.append(_weighed(scores, ids, total, rows, done, over, ending))
            total = total + chosen
        if on_token is not None:
            for row, token, silent in zip(rows.tolist(), ids.tolist(), (done | ended).tolist(), strict=True):
                if not silent:
                    on_token(row, token)
        done = done | over
        if n + 1 == longest:
            break
        if (n + 1) % look == 0:
            left = (~done).nonzero()[:, 0]
            if not len(left):
                break
            if worthwhile(len(left), len(done), device):
                steps.select(left)
                shaping.select(left)
                rows, ids, done, total = rows[left], ids[left], done[left], total[left]
        logits = steps.step(ids)
    trees = _trees(weighed, count) if keep_tree else [None] * count
    kept = (tokens.tolist(), logprobs.tolist(), endings.tolist(), trees)
    return [_written(*row) for row in zip(*kept, strict=True)]


def _written(tokens: list[int], logprobs: list[float], ending: int, grown_tree: tree.Tree | None) -> Written:
    length = tokens.index(pick.NOTHING) if pick.NOTHING in tokens else len(tokens)
    ids = tokens[: length - 1] if ending == BY_END else tokens[:length]
    return Written(
        ids=ids, score=sum(logprobs), logprobs=logprobs[:length], ended=ENDINGS[ending], tree=grown_tree
    )


def _stops(shaping: Shaping, written: int, skip: Tensor, decode: Decode) -> Tensor:
    """Which rows (B,) have just completed a stop text."""
    assert shaping.history is not None
    texts = shaping.history[:, shaping.filled - written : shaping.filled].tolist()
    pairs = zip(texts, skip.tolist(), strict=True)
    found = [not skipped and stopped(ids, shaping.settings.stop, decode) for ids, skipped in pairs]
    return torch.tensor(found, device=skip.device)


def _weighed(
    scores: Tensor, ids: Tensor, total: Tensor, rows: Tensor, done: Tensor, over: Tensor, ending: Tensor
) -> Weighed:
    """The chosen token and the likeliest others, as a beam of one would weigh them."""
    logprobs = scores.float().log_softmax(-1)
    own = logprobs.gather(1, ids[:, None])
    others = logprobs.scatter(1, ids[:, None], pick.NEVER)
    values, indices = others.topk(min(SHOWN, scores.shape[-1] - 1))
    all_values = torch.cat((own, values), 1)
    fates = torch.full_like(all_values, tree.BELOW, dtype=torch.long)
    fates[:, 0] = torch.where(over, tree.END + ending, tree.KEPT)  # the fates of the finished follow ENDINGS
    slots = torch.full_like(fates, -1)
    slots[:, 0] = torch.where(over, -1, 0)
    return Weighed(
        sentences=rows.cpu(),
        alive=(~done).cpu(),
        tokens=torch.cat((ids[:, None], indices), 1).cpu(),
        parents=torch.zeros_like(fates).cpu(),
        logprobs=all_values.cpu(),
        scores=(all_values + total[:, None]).cpu(),
        fates=fates.cpu(),
        slots=slots.cpu(),
        length_term=1.0,
    )


def _trees(weighed: list[Weighed], count: int) -> list[tree.Tree]:
    trees, _ = grown(weighed, count, 1)
    for one in trees:
        for node in one.nodes:
            if node.state == "finished":
                node.place = 0
    return trees
