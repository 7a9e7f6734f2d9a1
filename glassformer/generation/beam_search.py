"""Beam search: keep the `num_beams` best partial sequences of every input.

A step ranks a few candidates per beam, so that enough remain when some of them end. Sequences are never
copied: each step stores its tokens and their parent beams, and `backtrace` follows the parents once at the
end. The state is updated in place, in tensors of fixed shape, and the number of tokens is counted on the
device, so that a step can be captured in a CUDA graph together with the decoder's.

B inputs, W beams, C candidates, E end tokens, V vocabulary, L maximum new tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from glassformer.generation import search_tree
from glassformer.generation.config import GenerationConfig
from glassformer.generation.generators import RandomGenerator
from glassformer.generation.logits_processors import LogitsProcessors
from glassformer.generation.loop import Search
from glassformer.generation.params import GenerationOutput, GenerationParams
from glassformer.generation.sampling import sample
from glassformer.generation.search_tree import TreeStep, build_trees
from glassformer.generation.step_decoder import GRAPH_WARMUP_STEPS, TokenSelector
from glassformer.generation.stopping_criteria import END, FINISH_REASONS, LENGTH, STOP, completes_stop

LOW: Final = -1e9  # score of an unused beam or result, lower than any real score
OPEN: Final = 3  # status of a candidate that continues; other values are finish reasons


def length_term(config: GenerationConfig, length: int | Tensor) -> float | Tensor:
    """Return the divisor of the score of a sequence of this length, including the end token.

    >>> length_term(GenerationConfig(length_penalty=2.0), 3)
    9.0
    >>> length_term(GenerationConfig(length_formula="paper"), 7)
    2.0
    """
    penalty = float(config.length_penalty)
    if config.length_formula == "paper":
        return ((5 + length) / 6) ** penalty
    return length**penalty  # "hf" and "fairseq" agree


@dataclass
class FinishedBeams:
    """The best finished sequences of each input, at most W."""

    scores: Tensor  # (B, W), best first; LOW if there is none yet
    logprobs: Tensor  # (B, W), of the last token
    # (B, W, 5): step of the last token (-1: no result yet), the beam that it continues, the token, its index
    # among the candidates of the step, and the finish reason
    last: Tensor

    @classmethod
    def empty(cls, inputs: int, beams: int, device: torch.device) -> FinishedBeams:
        scores = torch.full((inputs, beams), LOW, device=device)
        last = torch.full((inputs, beams, 5), -1, device=device)
        return cls(scores, torch.zeros_like(scores), last)

    @property
    def full(self) -> Tensor:
        """Mask (B,) of the inputs that have W results."""
        return (self.last[..., 0] >= 0).all(1)

    def merge(self, new: FinishedBeams) -> None:
        """Merge with the results in `new`, keeping the W best of each input."""
        scores, order = torch.cat((self.scores, new.scores), 1).topk(self.scores.shape[1])
        self.scores.copy_(scores)
        self.logprobs.copy_(torch.cat((self.logprobs, new.logprobs), 1).gather(1, order))
        last = torch.cat((self.last, new.last), 1)
        self.last.copy_(last.gather(1, order[..., None].expand_as(self.last)))

    def select(self, rows: Tensor) -> FinishedBeams:
        return FinishedBeams(*(value.index_select(0, rows) for value in vars(self).values()))

    def put(self, rows: Tensor, these: FinishedBeams) -> None:
        for own, value in zip(vars(self).values(), vars(these).values(), strict=True):
            own[rows] = value


class Candidates(NamedTuple):
    """The best continuations of each input, best first; all tensors are (B, C)."""

    scores: Tensor  # log-probability of the whole sequence
    beams: Tensor  # the parent beam
    tokens: Tensor
    logprobs: Tensor  # log-probability of the token


class BeamStep(NamedTuple):
    """Result of a beam search step."""

    ids: Tensor  # (B * W,), the beams' new tokens
    parents: Tensor  # (B * W,), the row that each new token continues
    indices: Tensor  # (B, W), candidate index of each new token
    status: Tensor  # (B, C), a finish reason or OPEN


class BeamState:
    """State of a beam search: open beams, finished results, and the stored tokens with their parent beams."""

    def __init__(self, config: GenerationConfig, limits: Tensor, eos_ids: Tensor, candidates: int) -> None:
        """limits (B,): maximum number of tokens of each input. candidates: number of candidates per input."""
        device, count, width = limits.device, len(limits), config.num_beams
        longest = int(limits.max())
        self.config, self.eos_ids, self.limits = config, eos_ids, limits
        self.n = torch.zeros((), dtype=torch.long, device=device)  # tokens generated
        self.rows = torch.arange(count, device=device)  # the original index of each current input
        self.scores = torch.full((count, width), LOW, device=device)
        self.scores[:, 0] = 0.0  # all beams are equal at first, so only one may continue
        self.active = limits > 0  # (B,)
        self.results = FinishedBeams.empty(count, width, device)
        self.all_results = FinishedBeams.empty(count, width, device)
        self.may_finish = torch.arange(candidates, device=device) < width  # only these may become results
        # (L, B, W, 2): token, and the beam that it continues
        self.tokens = torch.zeros(
            longest + GRAPH_WARMUP_STEPS, count, width, 2, dtype=torch.long, device=device
        )
        self.logprobs = torch.zeros(longest + GRAPH_WARMUP_STEPS, count, width, device=device)

    def step(self, candidates: Candidates, stopped: Tensor | None = None) -> BeamStep:
        """Continue with the best open candidates. stopped (B, C): candidates that complete a stop string."""
        scores, beams, tokens, logprobs = candidates
        width, length = self.scores.shape[1], self.n + 1
        # an end token takes precedence over the other reasons
        status = torch.full_like(tokens, OPEN).masked_fill((self.limits <= length)[:, None], LENGTH)
        if stopped is not None:
            status = status.masked_fill(stopped, STOP)
        status = status.masked_fill((tokens[:, :, None] == self.eos_ids).any(-1), END)
        over = status < OPEN
        open_scores, indices = (scores + over * LOW).topk(width)  # (B, W)
        finished = over & self.may_finish & self.active[:, None]
        steps = torch.where(finished, self.n, -1)
        order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        self.results.merge(
            FinishedBeams(
                (scores / length_term(self.config, length)).masked_fill(~finished, LOW),
                logprobs,
                torch.stack((steps, beams, tokens, order, status), -1),
            )
        )
        parents, ids = beams.gather(1, indices), tokens.gather(1, indices)
        at = (self.n.expand_as(self.rows), self.rows)
        self.tokens.index_put_(at, torch.stack((ids, parents), -1))
        self.logprobs.index_put_(at, logprobs.gather(1, indices))
        self.scores.copy_(open_scores)
        self.active &= ~over.all(1) & self._may_improve(length)
        self.n += 1
        firsts = torch.arange(0, ids.numel(), width, device=ids.device)[:, None]
        return BeamStep(ids.view(-1), (firsts + parents).view(-1), indices, status)

    def _may_improve(self, length: Tensor) -> Tensor:
        """Mask (B,) of the inputs where an open beam might still beat the worst result."""
        config, full = self.config, self.results.full
        if config.early_stopping is True:
            return ~full
        # a longer sequence has a larger term: only "never" assumes that an open beam could get that long
        at_limit = config.early_stopping == "never" and config.length_penalty > 0
        term = length_term(config, self.limits if at_limit else length)
        return ~full | (self.scores[:, 0] / term > self.results.scores[:, -1])

    def select(self, inputs: Tensor) -> None:
        """Keep only these inputs; the others are finished."""
        self.all_results.put(self.rows, self.results)
        self.results = self.results.select(inputs)
        self.rows, self.limits = self.rows[inputs], self.limits[inputs]
        self.active, self.scores = self.active[inputs], self.scores[inputs]

    def finish(self) -> FinishedBeams:
        """Return the results of all inputs."""
        self.all_results.put(self.rows, self.results)
        return self.all_results

    def state(self) -> dict[str, Tensor]:
        """Return all tensors that a step reads and writes, by name."""
        names = ("n", "rows", "limits", "eos_ids", "scores", "active", "may_finish", "tokens", "logprobs")
        return {name: getattr(self, name) for name in names} | {
            f"results.{name}": value for name, value in vars(self.results).items()
        }

    def adopt(self, state: dict[str, Tensor]) -> None:
        """Use these tensors, which hold the same values, as the state from now on."""
        for name, value in state.items():
            owner = self.results if name.startswith("results.") else self
            setattr(owner, name.removeprefix("results."), value)


class BeamSearch(Search):
    """Beam search, with or without sampling; its rows (B * W,) are the beams of each input."""

    def __init__(
        self,
        params: GenerationParams,
        processors: LogitsProcessors,
        generator: RandomGenerator,
        vocab_size: int,
    ) -> None:
        super().__init__(params, processors, generator)
        self.group_size = width = self.config.num_beams
        self.count = min(max(2, 1 + len(processors.eos_ids)), vocab_size) * width  # candidates per input
        limits = processors.limits.view(-1, width)[:, 0].clone()
        self.state = BeamState(self.config, limits, processors.eos_ids, self.count)
        self.tree_steps: list[TreeStep] = []

    def choose(self, logits: Tensor, n: int) -> tuple[Tensor, Tensor]:
        candidates, before = self.candidates(logits, n), self.state.active.clone()
        step = self.state.step(candidates, self._stopped(candidates, n))
        if self.params.return_tree:
            self._record(candidates, step, n, before)
        return step.ids, step.parents

    def candidates(self, logits: Tensor, n: int) -> Candidates:
        """Return the best continuations of each input, from the logits (B * W, V) of token n."""
        scores = self.state.scores
        inputs, width = scores.shape
        if self.config.do_sample:
            count = logits.shape[1]
            logprobs = self.processors(logits.float().log_softmax(-1), n)
            tokens = torch.arange(count, device=logits.device).expand_as(logprobs)
        else:
            # a candidate outside the top of its beam cannot be in the top of its input
            count = min(self.count, logits.shape[1])
            logprobs, tokens = self.processors.top(logits, n, count)  # (B * W, count)
        logprobs = logprobs.view(inputs, width * count)
        totals = (logprobs.view(inputs, width, count) + scores[:, :, None]).view(inputs, width * count)
        if self.config.do_sample:
            index = sample(totals, self.count, self.generator)
            best = totals.gather(1, index)
        else:
            best, index = totals.topk(self.count)
        tokens = tokens.reshape(inputs, width * count).gather(1, index)
        return Candidates(best, index // count, tokens, logprobs.gather(1, index))

    def active(self) -> Tensor:
        return self.state.active

    def select(self, groups: Tensor) -> None:
        self.state.select(groups)

    def selector(self, n: int) -> TokenSelector:
        def choose(logits: Tensor) -> tuple[Tensor, ...]:
            step = self.state.step(self.candidates(logits, n))
            return step.ids, step.parents

        suppressed = self.processors.only_suppressed(n)
        assert suppressed is not None
        form = self.config, self.count, *suppressed.tolist()
        return TokenSelector(choose, form, self.state.state, self.state.adopt)

    def outputs(self) -> list[list[GenerationOutput]]:
        results, state = self.state.finish(), self.state
        outputs = backtrace(results, state.tokens, state.logprobs, self.config.num_return_sequences)
        return self._with_trees(outputs, results) if self.params.return_tree else outputs

    def _stopped(self, candidates: Candidates, n: int) -> Tensor | None:
        """Mask (B, C) of the candidates that complete a stop string."""
        stops, decode = self.config.stop_strings, self.params.decode
        if not stops or decode is None:
            return None
        before, width = self.processors.new_tokens(n), self.group_size
        columns = (candidates.beams, candidates.tokens, self.state.active)
        stopped = [
            [
                active and completes_stop([*before[row * width + beam], token], stops, decode)
                for beam, token in zip(beams, tokens, strict=True)
            ]
            for row, (beams, tokens, active) in enumerate(zip(*(x.tolist() for x in columns), strict=True))
        ]
        return torch.tensor(stopped, device=candidates.tokens.device)

    def _record(self, candidates: Candidates, step: BeamStep, n: int, before: Tensor) -> None:
        """Store the step for the search tree. before: inputs that were active before the step."""
        status = step.status
        order = torch.arange(step.indices.shape[1], device=status.device).expand_as(step.indices)
        beams = torch.full_like(status, -1).scatter(1, step.indices, order).masked_fill(status < OPEN, -1)
        ended = torch.where(self.state.may_finish, search_tree.END + status, search_tree.ENDED_BELOW)
        open_ones = torch.where(beams >= 0, search_tree.KEPT, search_tree.BELOW)
        self.tree_steps.append(
            TreeStep(
                inputs=self.state.rows,
                active=before,
                tokens=candidates.tokens,
                parents=candidates.beams,
                logprobs=candidates.logprobs,
                scores=candidates.scores,
                outcomes=torch.where(status < OPEN, ended, open_ones),
                beams=beams,
                length_term=float(length_term(self.config, n + 1)),
            )
        )

    def _with_trees(
        self, outputs: list[list[GenerationOutput]], results: FinishedBeams
    ) -> list[list[GenerationOutput]]:
        trees, nodes = build_trees(self.tree_steps, len(outputs), self.group_size)
        for tree, steps, lasts in zip(trees, nodes, results.last.tolist(), strict=True):
            for rank, (n, _, _, candidate, _) in enumerate(lasts):
                if n >= 0 and candidate in steps[n]:
                    tree.nodes[steps[n][candidate]].result_rank = rank
        pairs = zip(outputs, trees, strict=True)
        return [[replace(output, tree=tree) for output in group] for group, tree in pairs]


def backtrace(
    results: FinishedBeams, tokens: Tensor, logprobs: Tensor, best: int
) -> list[list[GenerationOutput]]:
    """Reconstruct the `best` best results of each input, from their last tokens back to the first.

    tokens (L, B, W, 2): tokens and their parent beams; logprobs (L, B, W).
    """
    tokens, logprobs = tokens.cpu(), logprobs.cpu()
    last = results.last[:, :best].cpu()  # (B, best, 5)
    steps, beam = last[..., 0], last[..., 1].clamp(min=0)
    columns: tuple[list[Tensor], list[Tensor]] = ([], [])
    for n in range(int(steps.max()) - 1, -1, -1):
        columns[0].append(tokens[n, ..., 0].gather(1, beam))
        columns[1].append(logprobs[n].gather(1, beam))
        beam = torch.where(n < steps, tokens[n, ..., 1].gather(1, beam), beam)
    before = [torch.stack(x[::-1], -1).tolist() if x else None for x in columns]  # B x best x L
    table = (last.tolist(), results.scores[:, :best].tolist(), results.logprobs[:, :best].tolist())
    outputs: list[list[GenerationOutput]] = []
    for row, (lasts, scores, last_logprobs) in enumerate(zip(*table, strict=True)):
        group = []
        for rank, (step, _, token, _, reason) in enumerate(lasts):
            if step < 0:
                continue
            ids, probs = (x[row][rank][:step] if x else [] for x in before)
            group.append(
                GenerationOutput(
                    ids=ids if reason == END else [*ids, token],
                    score=scores[rank],
                    logprobs=[*probs, last_logprobs[rank]],
                    finish_reason=FINISH_REASONS[reason],
                )
            )
        # an input with a limit of 0 tokens
        outputs.append(group or [GenerationOutput(ids=[], score=0.0, logprobs=[], finish_reason="length")])
    return outputs
