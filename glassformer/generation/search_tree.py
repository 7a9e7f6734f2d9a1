"""The tree of a search: every token that was weighed, with its scores and what became of it.

A step weighs a fixed number of candidates a sentence, so a tree has as many nodes as steps times beams,
times a small number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

State = Literal["kept", "pruned", "finished"]
Why = Literal["in the beam", "below the beam", "ended below the beam", "search over", "end", "length", "stop"]
FATES: Final[tuple[tuple[State, Why], ...]] = (
    ("kept", "in the beam"),
    ("pruned", "below the beam"),
    ("pruned", "ended below the beam"),
    ("finished", "end"),
    ("finished", "length"),
    ("finished", "stop"),
)
KEPT, BELOW, ENDED_BELOW, END, LENGTH, STOP = range(len(FATES))
UNREAL: Final = -1e8  # scores of rows that only fill the beam lie below


@dataclass(kw_only=True)
class SearchNode:
    """One candidate of one step."""

    step: int  # from 0
    token: int
    logprob: float  # of the token, given what stands before it
    score: float  # the sum of log-probs from the first token to this one
    length_term: float  # a finished score is divided by it
    parent: int | None  # the node before; None for a first token
    rank: int  # among the step's candidates, 0 the best by score
    state: State
    why: Why
    place: int | None = None  # among the results, 0 the best; None: not one of them


@dataclass(kw_only=True)
class SearchTree:
    """The nodes, step by step; parents stand before their children.

    `place` says which finished nodes are the results; a finished node without one was outdone.
    """

    nodes: list[SearchNode]
    num_beams: int

    def result(self, place: int = 0) -> SearchNode:
        """The last node of a result."""
        return next(node for node in self.nodes if node.place == place)

    def path(self, node: SearchNode) -> list[SearchNode]:
        """From the first token to this node."""
        found = [node]
        while found[-1].parent is not None:
            found.append(self.nodes[found[-1].parent])
        return found[::-1]

    def to_json(self) -> dict[str, Any]:
        """Plain lists and numbers."""
        return {"num_beams": self.num_beams, "nodes": [asdict(node) for node in self.nodes]}


@dataclass(frozen=True, kw_only=True)
class Weighed:
    """What one step weighed, C candidates for each of B sentences."""

    sentences: Tensor  # (B,), where each stands among all that were given
    alive: Tensor  # (B,), False for those that were over before
    tokens: Tensor  # (B, C)
    parents: Tensor  # (B, C), the beam that each candidate goes on from
    logprobs: Tensor  # (B, C)
    scores: Tensor  # (B, C)
    fates: Tensor  # (B, C), indices of FATES
    slots: Tensor  # (B, C), the beam that a kept candidate becomes; -1 for others
    length_term: float


def grown(
    steps: Sequence[Weighed], sentences: int, num_beams: int
) -> tuple[list[SearchTree], list[list[Any]]]:
    """The trees of all sentences, and for each the node of (step, candidate), as a dict a step."""
    trees = [SearchTree(nodes=[], num_beams=num_beams) for _ in range(sentences)]
    places: list[list[Any]] = [[] for _ in range(sentences)]
    beams: list[dict[int, int]] = [{} for _ in range(sentences)]  # the node that is each beam's last
    for n, step in enumerate(steps):
        order = step.scores.sort(descending=True, stable=True).indices
        ranks = torch.empty_like(order).scatter_(1, order, torch.arange(order.shape[1]).expand_as(order))
        columns = (step.tokens, step.parents, step.logprobs, step.scores, step.fates, step.slots, ranks)
        table = [column.tolist() for column in columns]
        alive = step.alive.tolist()
        for row, sentence in enumerate(step.sentences.tolist()):
            if not alive[row]:
                continue
            tree, before, now, found = trees[sentence], beams[sentence], {}, {}
            candidates = zip(*(column[row] for column in table), strict=True)
            for c, (token, beam, logprob, score, fate, slot, rank) in enumerate(candidates):
                if not score > UNREAL:
                    continue
                state, why = FATES[fate]
                if state == "kept":
                    now[slot] = len(tree.nodes)
                found[c] = len(tree.nodes)
                tree.nodes.append(
                    SearchNode(
                        step=n,
                        token=token,
                        logprob=logprob,
                        score=score,
                        length_term=step.length_term,
                        parent=before[beam] if n else None,
                        rank=rank,
                        state=state,
                        why=why,
                    )
                )
            beams[sentence] = now
            places[sentence].append(found)
    for tree, open_beams in zip(trees, beams, strict=True):
        for index in open_beams.values():
            tree.nodes[index].state, tree.nodes[index].why = "pruned", "search over"
    return trees, places
