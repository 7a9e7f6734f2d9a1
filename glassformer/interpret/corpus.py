"""Head patterns over a small corpus: what a head does on many sentences, not on one.

The corpus has the same sentences in English, German, French and Korean. A translator gets both languages of a
pair, with the translation as its target; other models of texts get the language that their tokenizer encodes
best. Shares of attention are averaged over the sentences, with a 95% confidence interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Final

import torch

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.interpret import schema
from glassformer.interpret.head_patterns import describe_heads, is_word
from glassformer.interpret.tokens import encoding_cost
from glassformer.interpret.trace import Trace, trace_model
from glassformer.interpret.views import view_of

EXAMPLES: Final = 3  # for each head
FILE: Final = Path(__file__).with_name("corpus.tsv")  # a column per language


@cache
def corpus() -> dict[str, list[str]]:
    """Return the sentences of the corpus by language.

    >>> [corpus()[language][5] for language in ("en", "fr")]
    ['My brother works in a hospital.', 'Mon frère travaille dans un hôpital.']
    """
    header, *lines = FILE.read_text("utf-8").splitlines()
    columns = zip(*(line.split("\t") for line in lines), strict=True)
    return {name: list(column) for name, column in zip(header.split("\t"), columns, strict=True)}


def corpus_inputs(bundle: Bundle) -> list[schema.TraceInput]:
    """Return the sentences of the corpus as inputs of a model; raise if it takes no texts alone."""
    view = view_of(bundle)
    if view.needs != ("text",) or view.kind in ("draw", "fill"):
        raise UnsupportedError(bundle.display_name, "a corpus of texts")
    texts = corpus()
    known = [one for one in texts if one in (view.languages() or ())]
    if len(known) > 1:
        pairs = [(a, b) for a in known for b in known if a != b]
        return [
            schema.TraceInput(text=texts[source][n], target=texts[to][n], to=to)
            for n, (source, to) in zip(range(len(texts["en"])), cycle(pairs), strict=False)
        ]
    best = min(texts.values(), key=lambda column: encoding_cost(bundle, " ".join(column)))
    return [schema.TraceInput(text=text) for text in best]


@dataclass
class CorpusPatterns:
    """The patterns of all heads on the sentences of the corpus that were measured so far.

    >>> import glassformer
    >>> heads = CorpusPatterns(glassformer.load("pocket")).measure(6).attentions[-1].heads
    >>> heads[1].roles                                      # how often each role was clear
    {'alignment': 4, 'none': 2}
    """

    bundle: Bundle
    _infos: list[schema.HeadsInfo] = field(default_factory=list)
    _links: list[dict[str, list[schema.CorpusExample]]] = field(default_factory=list)

    def measure(self, count: int) -> schema.CorpusInfo:
        """Return averages over the first `count` sentences; only those not yet measured are run."""
        inputs = corpus_inputs(self.bundle)
        if not 1 <= count <= len(inputs):
            raise InvalidValueError("count", count, f"1 to {len(inputs)}")
        for input in inputs[len(self._infos) : count]:
            trace = trace_model(self.bundle, input)
            info, links = describe_heads(trace), _strongest(trace)
            self._infos.append(info)
            self._links.append(links)
        infos, examples = self._infos[:count], self._links[:count]
        return schema.CorpusInfo(
            count=count,
            total=len(inputs),
            attentions=tuple(
                schema.CorpusAttention(
                    name=one.name,
                    heads=tuple(
                        _summary(
                            [info.attentions[n].heads[h] for info in infos],
                            [example[one.name][h] for example in examples],
                        )
                        for h in range(len(one.heads))
                    ),
                )
                for n, one in enumerate(infos[0].attentions)
            ),
        )


def _summary(heads: Sequence[schema.HeadInfo], examples: Sequence[schema.CorpusExample]) -> schema.CorpusHead:
    names = Counter(name for head in heads for name in head.scores)
    shares = []
    for name in (name for name, count in names.items() if 2 * count >= len(heads)):
        values = torch.tensor(
            [head.scores[name] for head in heads if name in head.scores], dtype=torch.float64
        )
        chances = [head.chances[name] for head in heads if name in head.chances]
        error = float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf
        mean = float(values.mean())
        margin = min(1.96 * error, 1.0)
        shares.append(
            schema.CorpusShare(
                pattern=name,
                mean=mean,
                low=max(0.0, mean - margin),
                high=min(1.0, mean + margin),
                chance=sum(chances) / len(chances),
            )
        )
    roles = Counter(head.role or "none" for head in heads)
    return schema.CorpusHead(
        head=heads[0].head,
        roles=dict(roles.most_common()),
        shares=tuple(sorted(shares, key=lambda share: share.chance - share.mean)),
        examples=tuple(sorted(examples, key=lambda one: -one.weight)[:EXAMPLES]),
    )


def _strongest(trace: Trace) -> dict[str, list[schema.CorpusExample]]:
    """Return the largest weight between two different words, for each head of each attention layer."""
    found = {}
    for one in trace.attentions():
        queries, keys = trace.sequence(one.queries), trace.sequence(one.keys)
        weights = trace.record.weights(one.name)[0].float().clone()  # (H, T, S)
        words = [torch.tensor([is_word(token) for token in each.tokens]) for each in (queries, keys)]
        weights[:, ~words[0]] = -1
        weights[:, :, ~words[1]] = -1
        if one.kind == "self":
            weights.diagonal(dim1=1, dim2=2).fill_(-1)
        best = weights.flatten(1).max(-1)
        found[one.name] = [
            schema.CorpusExample(
                queries=tuple(token.piece for token in queries.tokens),
                keys=tuple(token.piece for token in keys.tokens),
                query=place // len(keys),
                key=place % len(keys),
                weight=weight,
            )
            for weight, place in zip(best.values.tolist(), best.indices.tolist(), strict=True)
        ]
    return found
