"""One step's tokens of many requests, chosen with as few passes over the vocabulary as can be.

Requests that take the likeliest token are looked at together, and so are those that draw by the same
settings, each from its own source of chance. Whatever more is asked for is done for one request at a time.

R rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from glassformer.generation import pick
from glassformer.generation.continuous.choosing import Lines, Top


class Choice(NamedTuple):
    """For each row of one request."""

    ids: list[int]
    logprobs: list[float]
    tops: list[Top] | None


def choices(lines: Sequence[Lines], begins: Sequence[int], logits: Tensor) -> list[Choice]:
    """Logits (R, V), in which the rows of each request begin where it is said -> what each takes."""
    groups: dict[Hashable, list[int]] = {}
    for n, one in enumerate(lines):
        groups.setdefault(_way(one, n), []).append(n)
    found: dict[int, Choice] = {}
    for members in groups.values():
        rows = [begins[n] + row for n in members for row in range(len(lines[n].live))]
        own = _taken(logits, rows)
        for n, choice in zip(members, _chosen([lines[n] for n in members], own), strict=True):
            found[n] = choice
    return [found[n] for n in range(len(lines))]


def _way(line: Lines, n: int) -> Hashable:
    """What is alike for requests that can be looked at together."""
    forbidden = line.forbidden()
    if forbidden is not None:
        return "likeliest", forbidden, line.asked.request.top_logprobs
    if line.draws_plainly:
        return (
            "drawn",
            replace(line.asked.settings, seed=None),
            line.asked.request.eos_ids,
            line.asked.request.top_logprobs,
        )
    return n


def _taken(logits: Tensor, rows: list[int]) -> Tensor:
    if rows == list(range(len(logits))):
        return logits
    if rows == list(range(rows[0], rows[0] + len(rows))):
        return logits[rows[0] : rows[0] + len(rows)]
    return logits.index_select(0, torch.tensor(rows, device=logits.device))


def _chosen(lines: list[Lines], logits: Tensor) -> list[Choice]:
    """The rows (R, V) of requests that go the same way."""
    forbidden = lines[0].forbidden()
    if forbidden is not None:
        never = torch.tensor(forbidden, dtype=torch.long, device=logits.device)
        scores = pick.forbid(logits, never) if forbidden else logits
        values, tokens, total = pick.best(scores, 1)
        ids, logprobs = tokens[:, 0], values[:, 0] - total
    else:
        scores = lines[0].scores(logits)
        parts = scores.split([len(one.live) for one in lines])
        ids = torch.cat([one.choose(part) for one, part in zip(lines, parts, strict=True)])
        total = scores.logsumexp(-1)
        logprobs = scores.gather(1, ids[:, None])[:, 0] - total
    tops = _tops(scores, total, lines[0].asked.request.top_logprobs)
    plain_ids, plain_logprobs = ids.tolist(), logprobs.tolist()
    found, at = [], 0
    for one in lines:
        here = slice(at, at + len(one.live))
        found.append(Choice(plain_ids[here], plain_logprobs[here], None if tops is None else tops[here]))
        at = here.stop
    return found


def _tops(scores: Tensor, total: Tensor, count: int) -> list[Top] | None:
    """The likeliest tokens of each row, with their log-probabilities, that can be chosen at all."""
    if not count:
        return None
    values, tokens = scores.float().topk(min(count, scores.shape[-1]))
    table = zip(tokens.tolist(), (values - total[:, None]).tolist(), strict=True)
    return [
        [(token, value) for token, value in zip(*row, strict=True) if value > pick.NEVER] for row in table
    ]
