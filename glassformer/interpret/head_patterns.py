"""Classify attention heads by the share of their attention on known patterns, compared with chance.

A pattern is a bool matrix (T, S) that marks keys M(t) for each query t, among the allowed keys A(t). For a
head's weights w:

    share  = mean over t of  sum of w(t, s) over s in M(t)
    chance = mean over t of  |M(t)| / |A(t)|            the share of uniform attention
    lift   = (share - chance) / (1 - chance)            0 at chance, 1 if all attention is on the pattern

The means are over queries with a choice: some allowed keys are marked and some are not. `spread` is the
entropy of the weights relative to uniform weights; its chance level is the mean for weights drawn uniformly
from the simplex, (psi(n + 1) - psi(2)) / ln n for n keys. A head's role is the pattern with the largest lift,
if that is at least `CLEAR`; broad patterns (local, spread) are considered only if no narrow pattern is clear.
If none is clear, the role is "word" if all queries attend to one key: its share is that of the largest
column.

A head whose attention rests on one key (first, last, separator, punctuation, word) with small values writes
almost nothing: its role is "sink" if the norm of the value there is at most `SINK` times the mean norm.

B rows, H heads, T queries, S keys, P patterns.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor

from glassformer.core.inputs import ImageTextInputs
from glassformer.core.observe import Record
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret.schema import (
    AttentionHeads,
    HeadInfo,
    HeadLink,
    HeadsInfo,
    ItemNotFoundError,
    LinksInfo,
    TokenSequence,
    TraceToken,
)
from glassformer.interpret.trace import Trace
from glassformer.interpret.window_attention import full_windows

CLEAR: Final = 0.3  # minimum lift of a role
MIN_QUERIES: Final = 3  # minimum number of queries with a choice
MAX_WEIGHTS: Final = 1 << 25  # in memory at a time; larger layers are processed head by head
ONE_KEY: Final = 0.5  # minimum share of the largest column of a head that attends to one word
LOCAL: Final = 2  # tokens to either side that count as local; on an image, adjacent patches
BAND: Final = 8  # alignment: within 1/8 of the source length from the diagonal, at least one token
SINK: Final = 0.5  # norm of the value of a sink, relative to the mean
RESTING: Final = ("separator", "first", "last", "punctuation", "word")
NARROW: Final = (
    *("previous", "next", "self", "induction", "alignment", "same"),
    *("separator", "first", "last", "punctuation"),
    *("row", "column", "queries"),
)
BROAD: Final = ("local", "spread")


def is_punctuation(text: str | None) -> bool:
    """Whether a token consists of punctuation only.

    >>> [is_punctuation(text) for text in (".", " ,", "«", "##!", "a.", "$", " ", None)]
    [True, True, True, True, False, False, False, False]
    """
    bare = (text or "").removeprefix("##").strip()
    return bool(bare) and all(unicodedata.category(letter).startswith("P") for letter in bare)


def _texts(sequence: TokenSequence) -> list[str | None]:
    """Return the text of each token; None for special tokens and patches."""
    return [None if token.special or token.raw is None else token.piece for token in sequence.tokens]


def _patch_grid(sequence: TokenSequence) -> tuple[Tensor, Tensor, Tensor]:
    """Return the row and column of each image patch (T,), and which tokens are patches."""
    assert sequence.grid is not None
    index = torch.arange(len(sequence)) - sequence.prefix
    patch = (index >= 0) & (index < sequence.grid[0] * sequence.grid[1])  # not the queries after the patches
    return index // sequence.grid[1], index % sequence.grid[1], patch


def self_patterns(tokens: TokenSequence) -> dict[str, Tensor]:
    """Return the patterns of self-attention, each (T, T).

    previous, next, self: relative to the query. first, last: ends of the sequence. same: the same text
    elsewhere. induction: after an earlier token of the same text, as in A B ... A -> B. separator: special
    tokens other than the first. local: at most two tokens away. Images
    also have row and column, without the patch itself; local then means adjacent patches. queries: the object
    queries of a detector.
    """
    length = len(tokens)
    at = torch.arange(length)
    offset = at[None] - at[:, None]  # (T, S)
    patterns = {"previous": offset == -1, "next": offset == 1, "self": offset == 0}
    patterns |= _key_patterns(tokens, length)
    patterns["same"] = _same_text(tokens, tokens) & (offset != 0)
    patterns["induction"] = patterns["same"].roll(1, 1) & (offset <= 0)
    patterns["induction"][:, :1] = False
    if tokens.grid is None:
        patterns["local"] = offset.abs() <= LOCAL
        return patterns
    row, column, patch = _patch_grid(tokens)
    both = patch[:, None] & patch[None]
    patterns["row"] = both & (row[:, None] == row[None]) & (offset != 0)
    patterns["column"] = both & (column[:, None] == column[None]) & (offset != 0)
    touching = torch.maximum((row[:, None] - row[None]).abs(), (column[:, None] - column[None]).abs()) <= 1
    patterns["local"] = both & touching
    return patterns


def cross_patterns(queries: TokenSequence, keys: TokenSequence) -> dict[str, Tensor]:
    """Return the patterns of cross-attention, each (T, S).

    alignment: near the diagonal, as in a translation with the same word order. The other patterns are the
    same as in self-attention.
    """
    patterns = _key_patterns(keys, len(queries)) | {"same": _same_text(queries, keys)}
    if min(len(queries), len(keys)) > BAND // 2 and keys.kind == "text":
        patterns["alignment"] = _off_diagonal(queries, keys) <= max(1.0, len(keys) / BAND)
    return patterns


def distances(queries: TokenSequence, keys: TokenSequence, kind: Literal["self", "cross"]) -> Tensor:
    """Return the distance of each key from each query (T, S): in tokens, patches, or from the diagonal."""
    if kind == "cross":
        return _off_diagonal(queries, keys)
    at = torch.arange(len(keys)).float()
    if keys.grid is None:
        return (at[None] - at[:, None]).abs()
    row, column, patch = _patch_grid(keys)
    distance = torch.hypot((row[:, None] - row[None]).float(), (column[:, None] - column[None]).float())
    return distance * (patch[:, None] & patch[None])


def _off_diagonal(queries: TokenSequence, keys: TokenSequence) -> Tensor:
    slope = (len(keys) - 1) / max(len(queries) - 1, 1)
    return (torch.arange(len(keys))[None] - torch.arange(len(queries))[:, None] * slope).abs()


def _key_patterns(keys: TokenSequence, queries: int) -> dict[str, Tensor]:
    at = torch.arange(len(keys))
    object_queries = at >= (0 if keys.kind == "queries" else len(keys))
    if keys.grid is not None:
        object_queries = at >= keys.prefix + keys.grid[0] * keys.grid[1]
    special = torch.tensor([token.special for token in keys.tokens])
    marked = {
        "first": at == 0,
        "last": at == len(keys) - 1,
        "separator": special & (at != 0) & ~object_queries,
        "queries": object_queries,
        "punctuation": torch.tensor([is_punctuation(text) for text in _texts(keys)]),
    }
    return {name: mask.expand(queries, -1) for name, mask in marked.items()}


def _same_text(queries: TokenSequence, keys: TokenSequence) -> Tensor:
    ids = {text: n for n, text in enumerate(dict.fromkeys(_texts(queries) + _texts(keys)))}
    ours = torch.tensor([-1 if text is None else ids[text] for text in _texts(queries)])
    theirs = torch.tensor([-2 if text is None else ids[text] for text in _texts(keys)])
    return ours[:, None] == theirs[None]


class PatternMatcher:
    """Matches heads with patterns, prepared once for all attention layers with the same tokens and mask."""

    def __init__(self, patterns: Mapping[str, Tensor], allowed: Tensor, distance: Tensor) -> None:
        """Prepare patterns by name, allowed keys and distances; all tensors are (T, S)."""
        self.names = list(patterns)
        marked = torch.stack([patterns[name] & allowed for name in self.names])  # (P, T, S)
        self.allowed, marks = allowed.sum(-1), marked.sum(-1)  # (T,), (P, T)
        self.choice = (marks > 0) & (marks < self.allowed)
        self.queries = self.choice.sum(-1)  # (P,)
        share = torch.where(self.choice, marks / self.allowed.clamp(min=1), 0.0)
        self.chance = share.sum(-1) / self.queries.clamp(min=1)  # (P,)
        self.weighing = torch.cat((marked.float(), distance[None])).permute(1, 0, 2)  # (T, P + 1, S)
        self.real = int((self.allowed > 0).sum().clamp(min=1))
        self.wide = self.allowed >= MIN_QUERIES  # queries with a choice among several keys
        self.one_key = float((1 / self.allowed[self.wide].float()).mean()) if bool(self.wide.any()) else 0.0

    def measure(self, weights: Tensor, values: Tensor | None = None) -> list[HeadInfo]:
        """Return the scores and role of each head for weights (B, H, T, S); NaN counts as 0.

        values: norms of the values (H, S), to recognize sinks
        """
        weights = weights.float().nan_to_num(0.0)
        mean = weights.mean(0)  # (H, T, S); shares are linear in the weights, so rows can be averaged first
        mass = torch.matmul(self.weighing, mean.permute(1, 2, 0))  # (T, P + 1, H)
        shares = torch.where(self.choice.T[..., None], mass[:, :-1], 0.0).sum(0)
        by_head = (shares / self.queries.clamp(min=1)[:, None]).T.tolist()  # H x P
        distance = (mass[:, -1].sum(0) / self.real).tolist()
        entropy = torch.special.entr(weights).sum(-1).mean(0)  # (H, T)
        spread, spread_chance, spread_queries = _spread(entropy, self.allowed)
        entropies = (entropy.sum(-1) / self.real).tolist()
        queries = dict(zip(self.names, self.queries.tolist(), strict=True))
        pairs = zip(self.names, self.chance.tolist(), strict=True)
        chances = {name: chance for name, chance in pairs if queries[name] >= MIN_QUERIES}
        if spread_queries >= MIN_QUERIES:
            chances["spread"] = spread_chance
        columns = mean[:, self.wide].sum(1) / max(int(self.wide.sum()), 1)  # (H, S)
        keys = columns.argmax(-1).tolist()  # of each head
        heads = []
        for head in range(weights.shape[1]):
            scores = dict(zip(self.names, by_head[head], strict=True)) | {"spread": float(spread[head])}
            scores = {name: scores[name] for name in chances}
            lifts = {name: (scores[name] - chance) / (1 - chance) for name, chance in chances.items()}
            role, nearest = _role(lifts)
            share, chance = scores.get(nearest, 0.0), chances.get(nearest, 0.0)
            if role in (None, *BROAD) and int(self.wide.sum()) >= MIN_QUERIES:
                on_one = float(columns[head, keys[head]])
                if on_one >= ONE_KEY:
                    role, share, chance = "word", on_one, self.one_key
            key = keys[head] if role in RESTING else None
            if key is not None and values is not None:
                norms = values[head]
                role = "sink" if float(norms[key]) <= SINK * float(norms.mean()) else role
            about = {"share": share, "chance": chance, "entropy": entropies[head], "distance": distance[head]}
            heads.append(HeadInfo(head=head, scores=scores, chances=chances, role=role, key=key, **about))
        return heads


def matcher_for(
    record: Record, name: str, queries: TokenSequence, keys: TokenSequence, kind: Literal["self", "cross"]
) -> PatternMatcher:
    patterns = self_patterns(keys) if kind == "self" else cross_patterns(queries, keys)
    device, context = record[f"{name}.q"].device, record.attention_contexts[name]
    allowed = context.mask.to_dense(len(queries), len(keys), device)
    if allowed is None or context.windows is not None:  # only full windows are matched
        allowed = torch.ones(len(queries), len(keys), dtype=torch.bool, device=device)
    else:
        allowed = allowed[0, 0].expand(len(queries), len(keys))  # the same for all rows and heads of an input
    distance = distances(queries, keys, kind).to(device)
    return PatternMatcher({n: pattern.to(device) for n, pattern in patterns.items()}, allowed, distance)


def match_heads(record: Record, name: str, matcher: PatternMatcher) -> list[HeadInfo]:
    """Measure the heads of a recorded attention layer; a large layer is processed head by head."""
    q, keys, rows = record[f"{name}.q"], record[f"{name}.k"].shape[2], typical_rows(record, name)
    values = None
    if f"{name}.v" in record and record.attention_contexts[name].windows is None:
        norms = record[f"{name}.v"].float().norm(dim=-1).mean(0)  # (G, S)
        values = norms.repeat_interleave(q.shape[1] // len(norms), 0)  # (H, S)
    if q.shape[0] * q.shape[1] * q.shape[2] * keys <= MAX_WEIGHTS:
        return matcher.measure(record.weights(name)[rows], values)
    return [
        replace(
            matcher.measure(
                record.weights(name, head=n)[rows][:, None], None if values is None else values[n : n + 1]
            )[0],
            head=n,
        )
        for n in range(q.shape[1])
    ]


def typical_rows(record: Record, name: str) -> Tensor | slice:
    """Return the rows of a layer's weights that patterns are measured on: all, or the full windows."""
    return slice(None) if record.attention_contexts[name].windows is None else full_windows(record, name)


def _window_sequence(tokens: TokenSequence, size: int) -> TokenSequence:
    """Return the patches of one window as a sequence."""
    return replace(tokens, tokens=tokens.tokens[:1] * size**2, grid=(size, size), prefix=0)


def describe_heads(trace: Trace) -> HeadsInfo:
    matchers: dict[tuple[Any, ...], PatternMatcher] = {}
    attentions = []
    for attention in trace.attentions():
        queries, keys = trace.sequence(attention.queries), trace.sequence(attention.keys)
        mask = trace.record.attention_contexts[attention.name].mask
        key: tuple[Any, ...] = (attention.queries, attention.keys, attention.kind, id(mask))
        if attention.windows is not None:
            queries = keys = _window_sequence(keys, attention.windows.size)
            key = (attention.windows.size,)
        if key not in matchers:
            matchers[key] = matcher_for(trace.record, attention.name, queries, keys, attention.kind)
        heads = match_heads(trace.record, attention.name, matchers[key])
        sharpness = None
        if attention.kind == "cross":
            weights = trace.record.weights(attention.name)[0]
            sharpness = cross_sharpness(weights, queries, keys)
        attentions.append(AttentionHeads(name=attention.name, heads=tuple(heads), sharpness=sharpness))
    return HeadsInfo(attentions=tuple(attentions))


@torch.inference_mode()
def rank_links(trace: Trace, queries: str, query: int, keys: str, key: int) -> LinksInfo:
    """Rank all heads by the weight with which they attend from one token to another, strongest first.

    queries, keys: names of the sequences of the two tokens

    >>> import glassformer
    >>> from glassformer.interpret.schema import TraceInput
    >>> from glassformer.interpret.trace import trace_model
    >>> trace = trace_model(glassformer.load("pocket"), TraceInput(text="I do not sleep.", to="de"))
    >>> link = rank_links(trace, "target", 4, "source", 3).links[0]  # from the token before "nicht" to "not"
    >>> bool(trace.record.weights(link.attention, link.head)[0, 4, 3] == link.weight)
    True
    """
    for name, position in ((queries, query), (keys, key)):
        known = [one.name for one in trace.sequences]
        if name not in known:
            raise ItemNotFoundError("sequence", name, known)
        if not 0 <= position < (length := len(trace.sequence(name))):
            raise InvalidValueError(f"{name} position", position, f"0 to {length - 1}")
    links = []
    for one in trace.attentions():
        if (one.queries, one.keys) != (queries, keys):
            continue
        for head in range(one.heads):
            weight = trace.record.token_weights(one.name, head, query)[0, key]
            links.append(HeadLink(attention=one.name, head=head, weight=float(weight)))
    return LinksInfo(links=tuple(sorted(links, key=lambda link: -link.weight)))


def cross_sharpness(weights: Tensor, queries: TokenSequence, keys: TokenSequence) -> float:
    """Measure how clearly a cross-attention layer aligns words, from 0 to 1, for weights (H, T, S).

    This is the largest share of attention on one source word, averaged over the target words. Special tokens
    and punctuation are ignored. Row t of the weights generates token t + 1.
    """
    rows = [n - 1 for n, token in enumerate(queries.tokens) if n and is_word(token)]
    columns = [n for n, token in enumerate(keys.tokens) if is_word(token)]
    if not rows or not columns:
        return 0.0
    return float(weights.float().mean(0)[rows][:, columns].amax(-1).mean())


def is_word(token: TraceToken) -> bool:
    return not token.special and any(map(str.isalnum, token.piece))


def _role(lifts: Mapping[str, float]) -> tuple[str | None, str]:
    """Return the role (None if no pattern is clear), and the pattern with the largest lift."""
    nearest = ""
    for patterns in (NARROW, BROAD):
        ranked = sorted((name for name in patterns if name in lifts), key=lambda name: -lifts[name])
        if ranked and lifts[ranked[0]] >= CLEAR:
            return ranked[0], ranked[0]
        nearest = nearest or (ranked[0] if ranked else "")
    return None, nearest


def _spread(entropy: Tensor, allowed: Tensor) -> tuple[Tensor, float, int]:
    """Return the mean relative entropy per head (H,), that of random weights, and the number of queries."""
    free = allowed > 1
    if not bool(free.any()):
        return entropy.new_zeros(len(entropy)), 0.0, 0
    count = allowed[free].double()
    highest = count.log()
    random = (torch.digamma(count + 1) - torch.digamma(count.new_tensor(2.0))) / highest
    return (entropy[:, free] / highest).mean(-1), float(random.mean()), int(free.sum())


def thumbnails(weights: Tensor, most: int = 32) -> Tensor:
    """Average weights (B, H, T, S) over rows and shrink them to uint8 images of at most `most` x `most`.

    A pixel is 255 times the square root of the largest weight of its tile, so that small weights are visible.
    """
    mean = weights.float().mean(0)  # (H, T, S)
    size = [min(most, length) for length in mean.shape[1:]]
    small = torch.nn.functional.adaptive_max_pool2d(mean[None], size)[0]
    return (small.clamp(0, 1).sqrt() * 255).round().to(torch.uint8)


@torch.inference_mode()
def attention_blocks(trace: Trace) -> Tensor:
    """Return how attention is shared between words and patches: (layers, H, 2, 2).

    The mean over the queries of one kind (words, patches) of their weight on the keys of each kind.
    """
    text = trace.prepared.inputs.get("inputs")
    if not isinstance(text, ImageTextInputs):
        raise UnsupportedError("this trace", "blocks of words and patches")
    words = text.ids.shape[1]
    kinds = (slice(0, words), slice(words, None))
    layers = [trace.record.weights(one.name)[0].float() for one in trace.attentions()]  # (H, T + S, T + S)
    blocks = [[[w[:, q, k].sum(-1).mean(-1) for k in kinds] for q in kinds] for w in layers]
    return torch.stack([torch.stack([torch.stack(row, -1) for row in one], 1) for one in blocks]).cpu()
