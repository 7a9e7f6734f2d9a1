"""The generation loop for greedy decoding, sampling and beam search.

A `Search` chooses and records the tokens of each step. The loop runs the decoder between two choices and
drops finished rows. A `SelectingDecoder` chooses the tokens on the device, in the same call as the step.

B rows, V vocabulary, L maximum new tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from glassformer.generation import search_tree
from glassformer.generation.generators import RandomGenerator, RowGenerators
from glassformer.generation.logits_processors import NEVER, NO_TOKEN, LogitsProcessors
from glassformer.generation.params import GeneratedToken, GenerationOutput, GenerationParams
from glassformer.generation.sampling import Choice, choose_greedy, sample, with_logprobs
from glassformer.generation.search_tree import SearchTree, TreeStep, build_trees
from glassformer.generation.step_decoder import (
    GRAPH_WARMUP_STEPS,
    SelectingDecoder,
    StepDecoder,
    TokenSelector,
    reorder,
)
from glassformer.generation.stopping_criteria import (
    END,
    FINISH_REASONS,
    LENGTH,
    STOP,
    check_interval,
    completes_stop,
    should_compact,
)


class Search(ABC):
    """Choose the tokens of a batch. Rows form groups: the beams of one input, or single rows."""

    group_size: int = 1

    def __init__(
        self, params: GenerationParams, processors: LogitsProcessors, generator: RandomGenerator
    ) -> None:
        self.params, self.config = params, params.config
        self.processors, self.generator = processors, generator
        self.longest = int(processors.limits.max())

    @abstractmethod
    def choose(self, logits: Tensor, n: int) -> tuple[Tensor, Tensor | None]:
        """Choose tokens (B,) from logits (B, V) of token n; also return parent rows (B,) if rows moved."""

    @abstractmethod
    def active(self) -> Tensor:
        """Return a mask of the groups that are not finished."""

    @abstractmethod
    def select(self, groups: Tensor) -> None:
        """Keep only these groups."""

    @abstractmethod
    def selector(self, n: int) -> TokenSelector:
        """Return `choose`, from step n on, as a selector; valid while the same tokens are suppressed."""

    @abstractmethod
    def outputs(self) -> list[list[GenerationOutput]]:
        """Return the finished sequences of each group, best first."""

    @property
    def needs_host(self) -> bool:
        """Whether every token is needed on the host, so that no selector can be used."""
        params = self.params
        return bool(params.return_tree or self.config.stop_strings or params.on_token is not None)

    def advance(self, ids: Tensor, parents: Tensor | None) -> None:
        """Append the chosen tokens to the history. parents: row that each token continues, if rows moved."""
        if parents is not None:
            self.processors.reorder(parents)
        self.processors.append(ids)


def run_search(decoder: StepDecoder, logits: Tensor, search: Search) -> Iterator[None]:
    """Generate, starting with the logits (B, V) of the first token; yield before each decoder step."""
    device, longest, size = logits.device, search.longest, search.group_size
    interval, constant_until = check_interval(device), 0
    selecting = decoder if isinstance(decoder, SelectingDecoder) and not search.needs_host else None
    selector: TokenSelector | None = None
    parents: Tensor | None
    for n in range(longest):
        if selector is None:
            ids, parents = search.choose(logits, n)
        if n + 1 == longest:
            return
        if (n + 1) % interval == 0:
            active = search.active()
            left = active.nonzero()[:, 0]
            if not len(left):
                return
            if should_compact(len(left), len(active), device):
                rows = (left[:, None] * size + torch.arange(size, device=device)).view(-1)
                ids, parents = ids[rows], rows if parents is None else parents[rows]
                search.select(left)
                decoder.select(parents)
                search.processors.select(parents)
                parents = None
        if parents is not None:
            reorder(decoder, parents)
        search.advance(ids, parents)
        if n + 1 >= constant_until and selecting is not None:
            constant_until = search.processors.constant_until(n + 1, longest)
            selector = search.selector(n + 1) if constant_until > n + 1 else None
        yield
        if selector is not None and selecting is not None:
            ids, *rest = selecting.step_and_select(ids, selector)
            parents = rest[0] if rest else None
        else:
            logits = decoder.step(ids)


class Sequences:
    """The tokens of each row; a step updates them in place, in tensors of fixed shape."""

    def __init__(self, limits: Tensor, eos_ids: Tensor) -> None:
        """limits (B,): maximum number of new tokens of each row; eos_ids (E,): end tokens."""
        count, longest, device = len(limits), int(limits.max()), limits.device
        self.limits, self.eos_ids = limits, eos_ids
        self.n = torch.zeros((), dtype=torch.long, device=device)  # tokens recorded
        self.rows = torch.arange(count, device=device)  # the original index of each current row
        self.tokens = torch.full((count, longest + GRAPH_WARMUP_STEPS), NO_TOKEN, device=device)
        self.logprobs = torch.zeros(count, longest + GRAPH_WARMUP_STEPS, device=device)
        self.finish_reasons = torch.full((count,), LENGTH, device=device)
        self.done = limits <= 0

    def append(self, ids: Tensor, logprobs: Tensor, stopped: Tensor | None = None) -> None:
        """Record the chosen tokens (B,). stopped (B,): True for rows that complete a stop string."""
        ended = self.is_eos(ids)
        reason = torch.where(ended, END, LENGTH)
        over = ended | (self.limits <= self.n + 1)
        if stopped is not None:
            reason, over = reason.masked_fill(stopped, STOP), over | stopped
        at = (self.rows, self.n.expand_as(self.rows))
        self.tokens.index_put_(at, ids.masked_fill(self.done, NO_TOKEN))
        self.logprobs.index_put_(at, logprobs.masked_fill(self.done, 0.0))
        before = self.finish_reasons[self.rows]
        self.finish_reasons.index_put_((self.rows,), torch.where(self.done, before, reason))
        self.done |= over
        self.n += 1

    def is_eos(self, ids: Tensor) -> Tensor:
        return (ids[:, None] == self.eos_ids).any(-1)

    def select(self, rows: Tensor) -> None:
        """Keep only these rows."""
        self.rows, self.done, self.limits = self.rows[rows], self.done[rows], self.limits[rows]


def greedy_selector(sequences: Sequences, suppressed: Tensor) -> TokenSelector:
    """Create a selector of the most likely token of each row that is not among `suppressed`."""

    def choose(logits: Tensor) -> tuple[Tensor, ...]:
        choice = choose_greedy(logits, suppressed)
        sequences.append(choice.ids, choice.logprobs)
        return (choice.ids,)

    form = "greedy", *suppressed.tolist()
    return TokenSelector(choose, form, vars(sequences).copy, vars(sequences).update)


class TokenSearch(Search):
    """Greedy decoding and sampling: one token per row and step."""

    ALTERNATIVES: ClassVar[int] = 5  # candidates of a step that a tree shows besides the chosen one

    def __init__(
        self, params: GenerationParams, processors: LogitsProcessors, generator: RandomGenerator
    ) -> None:
        super().__init__(params, processors, generator)
        self.sequences = Sequences(processors.limits.clone(), processors.eos_ids)
        self.tree_steps: list[TreeStep] = []
        self.totals = torch.zeros(len(processors.limits), device=processors.limits.device)  # log-probs so far

    def choose(self, logits: Tensor, n: int) -> tuple[Tensor, None]:
        params, sequences = self.params, self.sequences
        suppressed = self.processors.only_suppressed(n)
        if suppressed is not None and not params.return_tree:
            choice = choose_greedy(logits, suppressed)
        else:
            scores = self.processors(logits.float(), n)
            sampled = self.config.do_sample
            ids = sample(scores, 1, self.generator)[:, 0] if sampled else scores.argmax(-1)
            choice = with_logprobs(scores, ids)
        before, ignored = sequences.done.clone(), sequences.done | sequences.is_eos(choice.ids)
        sequences.append(choice.ids, choice.logprobs, self._stopped(choice.ids, n, ignored))
        if params.return_tree:
            self._record(choice, before)
            self.totals = self.totals + choice.logprobs
        if params.on_token is not None:
            self._report(choice, ignored)
        return choice.ids, None

    def active(self) -> Tensor:
        return ~self.sequences.done

    def select(self, groups: Tensor) -> None:
        self.sequences.select(groups)
        if isinstance(self.generator, RowGenerators):
            self.generator.select(groups)
        self.totals = self.totals[groups]

    def selector(self, n: int) -> TokenSelector:
        suppressed = self.processors.only_suppressed(n)
        assert suppressed is not None
        return greedy_selector(self.sequences, suppressed)

    def outputs(self) -> list[list[GenerationOutput]]:
        sequences, size = self.sequences, self.config.num_return_sequences
        count = len(sequences.tokens)
        trees: list[SearchTree | None] = [*self._trees(count)] if self.params.return_tree else [None] * count
        table = (sequences.tokens[:, : self.longest].tolist(), sequences.logprobs.tolist())
        rows = zip(*table, sequences.finish_reasons.tolist(), trees, strict=True)
        outputs = [_output(*row) for row in rows]
        groups = [outputs[n : n + size] for n in range(0, count, size)]
        return [sorted(group, key=lambda output: -output.score) for group in groups]

    def _stopped(self, ids: Tensor, n: int, ignored: Tensor) -> Tensor | None:
        """Mask (B,) of the rows that complete a stop string with these tokens."""
        stops, decode = self.config.stop_strings, self.params.decode
        if not stops or decode is None:
            return None
        rows = zip(self.processors.new_tokens(n), ids.tolist(), ignored.tolist(), strict=True)
        stopped = [
            not skip and completes_stop([*before, token], stops, decode) for before, token, skip in rows
        ]
        return torch.tensor(stopped, device=ids.device)

    def _report(self, choice: Choice, ignored: Tensor) -> None:
        assert self.params.on_token is not None
        count = self.params.top_logprobs
        tops = choice.top(count) if count else [()] * len(choice.ids)
        columns = (self.sequences.rows, choice.ids, choice.logprobs, ignored)
        for row, token, logprob, skip, top in zip(*(x.tolist() for x in columns), tops, strict=True):
            if not skip:
                self.params.on_token(GeneratedToken(row, token, logprob, top))

    def _record(self, choice: Choice, done_before: Tensor) -> None:
        """Store the chosen token and the most likely alternatives as candidates of a single beam."""
        sequences, ids = self.sequences, choice.ids
        logprobs = choice.scores.float().log_softmax(-1)
        own = logprobs.gather(1, ids[:, None])
        others = logprobs.scatter(1, ids[:, None], NEVER)
        values, indices = others.topk(min(self.ALTERNATIVES, others.shape[-1] - 1))
        all_values = torch.cat((own, values), 1)
        outcomes = torch.full_like(all_values, search_tree.BELOW, dtype=torch.long)
        reasons = sequences.finish_reasons[sequences.rows]
        outcomes[:, 0] = torch.where(sequences.done, search_tree.END + reasons, search_tree.KEPT)
        beams = torch.full_like(outcomes, -1)
        beams[:, 0] = torch.where(sequences.done, -1, 0)
        self.tree_steps.append(
            TreeStep(
                inputs=sequences.rows,
                active=~done_before,
                tokens=torch.cat((ids[:, None], indices), 1),
                parents=torch.zeros_like(outcomes),
                logprobs=all_values,
                scores=all_values + self.totals[:, None],
                outcomes=outcomes,
                beams=beams,
                length_term=1.0,
            )
        )

    def _trees(self, count: int) -> list[SearchTree]:
        trees, _ = build_trees(self.tree_steps, count, 1)
        for tree in trees:
            for node in tree.nodes:
                if node.state == "finished":
                    node.result_rank = 0
        return trees


def _output(
    tokens: list[int], logprobs: list[float], reason: int, tree: SearchTree | None
) -> GenerationOutput:
    length = tokens.index(NO_TOKEN) if NO_TOKEN in tokens else len(tokens)
    return GenerationOutput(
        ids=tokens[: length - 1] if reason == END else tokens[:length],
        score=sum(logprobs),
        logprobs=logprobs[:length],
        finish_reason=FINISH_REASONS[reason],
        tree=tree,
    )
