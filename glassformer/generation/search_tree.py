"""The tree of a search: every candidate token with its scores and its outcome.

A step has a fixed number of candidates per beam, so a tree has about steps times beams nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

from torch import Tensor

State = Literal["kept", "pruned", "finished"]
Reason = Literal[
    "in the beam", "below the beam", "ended below the beam", "search over", "end", "length", "stop"
]
OUTCOMES: Final[tuple[tuple[State, Reason], ...]] = (
    ("kept", "in the beam"),
    ("pruned", "below the beam"),
    ("pruned", "ended below the beam"),
    ("finished", "end"),
    ("finished", "length"),
    ("finished", "stop"),
)
KEPT, BELOW, ENDED_BELOW, END, LENGTH, STOP = range(len(OUTCOMES))
LOWEST_SCORE: Final = -1e8  # unused beams have lower scores


@dataclass(kw_only=True)
class SearchNode:
    """One candidate of one step."""

    step: int  # from 0
    token: int
    logprob: float  # log-probability of the token, given the tokens before it
    score: float  # sum of the log-probs up to this token
    length_term: float  # divisor of the score of a finished sequence
    parent: int | None  # the node before it; None for a first token
    rank: int  # among the step's candidates, 0 the best by score
    state: State
    reason: Reason
    result_rank: int | None = None  # rank among the results, 0 the best; None: not a result


@dataclass(kw_only=True)
class SearchTree:
    """The nodes, step by step; parents come before their children.

    A finished node without a `result_rank` was pushed out of the results by better ones.
    """

    nodes: list[SearchNode]
    num_beams: int

    def result(self, rank: int = 0) -> SearchNode:
        """Return the last node of a result."""
        return next(node for node in self.nodes if node.result_rank == rank)

    def path(self, node: SearchNode) -> list[SearchNode]:
        """Return the nodes from the first token to this node."""
        path = [node]
        while path[-1].parent is not None:
            path.append(self.nodes[path[-1].parent])
        return path[::-1]

    def to_json(self) -> dict[str, Any]:
        """Convert the tree to JSON-compatible data."""
        return {"num_beams": self.num_beams, "nodes": [asdict(node) for node in self.nodes]}


@dataclass(frozen=True, kw_only=True)
class TreeStep:
    """The C candidates of one step for each of B inputs."""

    inputs: Tensor  # (B,), the index of each input
    active: Tensor  # (B,), False for inputs that were finished before
    tokens: Tensor  # (B, C)
    parents: Tensor  # (B, C), the beam that each candidate continues
    logprobs: Tensor  # (B, C)
    scores: Tensor  # (B, C)
    outcomes: Tensor  # (B, C), indices of OUTCOMES
    beams: Tensor  # (B, C), the beam that a kept candidate becomes; -1 for others
    length_term: float


def build_trees(
    steps: Sequence[TreeStep], inputs: int, num_beams: int
) -> tuple[list[SearchTree], list[list[dict[int, int]]]]:
    """Build the tree of each input; also return the node of every candidate, by input and step."""
    trees = [SearchTree(nodes=[], num_beams=num_beams) for _ in range(inputs)]
    nodes: list[list[dict[int, int]]] = [[] for _ in range(inputs)]
    last: list[dict[int, int]] = [{} for _ in range(inputs)]  # the last node of each beam
    for n, step in enumerate(steps):
        order = step.scores.sort(descending=True, stable=True).indices
        ranks = order.argsort(1)  # the inverse permutation
        columns = (step.tokens, step.parents, step.logprobs, step.scores, step.outcomes, step.beams, ranks)
        table = [column.tolist() for column in columns]
        active = step.active.tolist()
        for row, index in enumerate(step.inputs.tolist()):
            if not active[row]:
                continue
            tree, before, now, by_candidate = trees[index], last[index], {}, {}
            candidates = zip(*(column[row] for column in table), strict=True)
            for c, (token, parent, logprob, score, outcome, beam, rank) in enumerate(candidates):
                if not score > LOWEST_SCORE:
                    continue
                state, reason = OUTCOMES[outcome]
                if state == "kept":
                    now[beam] = len(tree.nodes)
                by_candidate[c] = len(tree.nodes)
                tree.nodes.append(
                    SearchNode(
                        step=n,
                        token=token,
                        logprob=logprob,
                        score=score,
                        length_term=step.length_term,
                        parent=before[parent] if n else None,
                        rank=rank,
                        state=state,
                        reason=reason,
                    )
                )
            last[index] = now
            nodes[index].append(by_candidate)
    for tree, open_beams in zip(trees, last, strict=True):
        for index in open_beams.values():
            tree.nodes[index].state, tree.nodes[index].reason = "pruned", "search over"
    return trees, nodes
