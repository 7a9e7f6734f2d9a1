"""One token a row and step: the likeliest, or one that is drawn.

B rows, V vocabulary, L tokens that may be written.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from glassformer.generation import pick
from glassformer.generation import search_tree as tree
from glassformer.generation.decoder import Decoder, SelectingDecoder, TokenSelector
from glassformer.generation.request import (
    END,
    FINISH_REASONS,
    LENGTH,
    SPARE,
    STOP,
    GenerationOutput,
    GenerationRequest,
    Token,
    check_interval,
    should_compact,
)
from glassformer.generation.search_tree import Weighed, grown
from glassformer.generation.shaping import Shaping
from glassformer.generation.stopping import Decode, completes_stop

SHOWN = 5  # candidates of a step that a tree shows beside the chosen one


class Texts:
    """What is being written, a text a row; a step changes it in place, in tensors that keep their shapes."""

    def __init__(self, limits: Tensor, ends: Tensor) -> None:
        """limits (B,): the most tokens of each row; ends (E,): the tokens that end one."""
        count, longest, device = len(limits), int(limits.max()), limits.device
        self.limits, self.ends = limits, ends
        self.n = torch.zeros((), dtype=torch.long, device=device)  # tokens written
        self.rows = torch.arange(count, device=device)  # where each row of now stands in what is kept
        self.tokens = torch.full((count, longest + SPARE), pick.NOTHING, device=device)
        self.logprobs = torch.zeros(count, longest + SPARE, device=device)
        self.endings = torch.full((count,), LENGTH, device=device)
        self.done = limits <= 0

    def take(self, ids: Tensor, logprobs: Tensor, stopped: Tensor | None = None) -> None:
        """The tokens chosen (B,); `stopped` (B,) rows complete a stop text with them."""
        ended = self.ended(ids)
        ending = torch.where(ended, END, LENGTH)
        over = ended | (self.limits <= self.n + 1)
        if stopped is not None:
            ending, over = ending.masked_fill(stopped, STOP), over | stopped
        at = (self.rows, self.n.expand_as(self.rows))
        self.tokens.index_put_(at, ids.masked_fill(self.done, pick.NOTHING))
        self.logprobs.index_put_(at, logprobs.masked_fill(self.done, 0.0))
        self.endings.index_put_((self.rows,), torch.where(self.done, self.endings[self.rows], ending))
        self.done |= over
        self.n += 1

    def ended(self, ids: Tensor) -> Tensor:
        return (ids[:, None] == self.ends).any(-1)

    def select(self, left: Tensor) -> None:
        """Go on with these rows."""
        self.rows, self.done, self.limits = self.rows[left], self.done[left], self.limits[left]

    def state(self) -> dict[str, Tensor]:
        return vars(self).copy()

    def adopt(self, state: dict[str, Tensor]) -> None:
        vars(self).update(state)


class Likeliest(TokenSelector):
    """The likeliest token of each row, while the same tokens are forbidden."""

    def __init__(self, texts: Texts, forbidden: Tensor) -> None:
        self.texts, self.forbidden = texts, forbidden

    def __call__(self, logits: Tensor) -> tuple[Tensor, ...]:
        ids, logprobs = likeliest(logits, self.forbidden)
        self.texts.take(ids, logprobs)
        return (ids,)

    def form(self) -> Hashable:
        return tuple(self.forbidden.tolist())

    def state(self) -> dict[str, Tensor]:
        return self.texts.state()

    def adopt(self, state: dict[str, Tensor]) -> None:
        self.texts.adopt(state)


def likeliest(logits: Tensor, forbidden: Tensor) -> tuple[Tensor, Tensor]:
    """The likeliest token (B,) that is not forbidden, and its log-probability among those."""
    values, tokens, whole = pick.best(pick.forbid(logits, forbidden) if len(forbidden) else logits, 1)
    return tokens[:, 0], values[:, 0] - whole


def write_single(
    steps: Decoder,
    logits: Tensor,
    shaping: Shaping,
    request: GenerationRequest,
    *,
    generator: torch.Generator | None,
) -> list[GenerationOutput]:
    """Logits (B, V) of the first tokens -> what follows for each row."""
    ask, device = shaping.settings, logits.device
    decode, keep_tree, on_token = request.decode, request.return_tree, request.on_token
    count, longest = len(logits), int(shaping.limits.max())
    texts = Texts(shaping.limits.clone(), shaping.ends)
    total = torch.zeros(count, device=device)
    weighed: list[Weighed] = []
    # what looks at every token must have it on the host
    alone = not (keep_tree or ask.stop_strings or on_token is not None)
    look, steady = check_interval(device), 0
    follow: TokenSelector | None = None
    for n in range(longest):
        if follow is None:
            forbidden = shaping.forbidden(n)
            if forbidden is not None and not keep_tree:
                ids, chosen = likeliest(logits, forbidden)
            else:
                scores = shaping.shape(logits.float(), n)
                ids = pick.draw(scores, 1, generator)[:, 0] if ask.do_sample else scores.argmax(-1)  # (B,)
                chosen = scores.gather(1, ids[:, None])[:, 0] - scores.logsumexp(-1)
            shaping.append(ids)
            before, silent = texts.done.clone(), texts.done | texts.ended(ids)
            hit = _stops(shaping, n + 1, silent, decode) if ask.stop_strings and decode is not None else None
            texts.take(ids, chosen, hit)
            if keep_tree:
                ending = texts.endings[texts.rows]
                weighed.append(_weighed(scores, ids, total, texts.rows, before, texts.done, ending))
                total = total + chosen
            if on_token is not None:
                told = zip(texts.rows.tolist(), ids.tolist(), chosen.tolist(), silent.tolist(), strict=True)
                for row, token, logprob, hidden in told:
                    if not hidden:
                        on_token(Token(row, token, logprob))
        if n + 1 == longest:
            break
        if (n + 1) % look == 0:
            left = (~texts.done).nonzero()[:, 0]
            if not len(left):
                break
            if should_compact(len(left), len(texts.done), device):
                steps.select(left)
                shaping.select(left)
                texts.select(left)
                ids, total = ids[left], total[left]
        if n + 1 >= steady and alone and isinstance(steps, SelectingDecoder):
            steady, forbidden = shaping.steady_until(n + 1, longest), shaping.forbidden(n + 1)
            follow = None if forbidden is None else Likeliest(texts, forbidden)
        if follow is not None and isinstance(steps, SelectingDecoder):
            (ids,) = steps.step_and_select(ids, follow)
        else:
            logits = steps.step(ids)
    trees = _trees(weighed, count) if keep_tree else [None] * count
    kept = (texts.tokens[:, :longest].tolist(), texts.logprobs.tolist(), texts.endings.tolist(), trees)
    return [_written(*row) for row in zip(*kept, strict=True)]


def _written(
    tokens: list[int], logprobs: list[float], ending: int, grown_tree: tree.SearchTree | None
) -> GenerationOutput:
    length = tokens.index(pick.NOTHING) if pick.NOTHING in tokens else len(tokens)
    ids = tokens[: length - 1] if ending == END else tokens[:length]
    return GenerationOutput(
        ids=ids,
        score=sum(logprobs),
        logprobs=logprobs[:length],
        finish_reason=FINISH_REASONS[ending],
        tree=grown_tree,
    )


def _stops(shaping: Shaping, written: int, skip: Tensor, decode: Decode) -> Tensor:
    """Which rows (B,) have just completed a stop text."""
    assert shaping.history is not None
    texts = shaping.history[:, shaping.filled - written : shaping.filled].tolist()
    pairs = zip(texts, skip.tolist(), strict=True)
    found = [
        not skipped and completes_stop(ids, shaping.settings.stop_strings, decode) for ids, skipped in pairs
    ]
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
    fates[:, 0] = torch.where(
        over, tree.END + ending, tree.KEPT
    )  # the fates of the finished follow FINISH_REASONS
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


def _trees(weighed: list[Weighed], count: int) -> list[tree.SearchTree]:
    trees, _ = grown(weighed, count, 1)
    for one in trees:
        for node in one.nodes:
            if node.state == "finished":
                node.place = 0
    return trees
