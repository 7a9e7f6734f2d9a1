"""What a story may claim about a model, and the figures that show whether it holds.

A claim is computed on the weights with `glassformer.interpret`. If the model does not do what a story tells,
the claim raises `ClaimError` instead of returning a figure.
"""

from __future__ import annotations

import base64
import io
import itertools
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

from glassformer.bundle import Bundle, load
from glassformer.errors import GlassformerError
from glassformer.interpret.runs import EXAMPLE_RUN, describe_run
from glassformer.interpret.schema import AblateHead, StoryBar, StoryFigure, TraceInput
from glassformer.interpret.search_view import search_tree
from glassformer.interpret.trace import Trace, trace_model


@dataclass(eq=False)
class ClaimError(GlassformerError):
    """A story tells something that the model does not do."""

    claim: str
    found: str
    hint: str = "change the story to what the model does"
    template: ClassVar[str] = "the claim {claim!r} does not hold: {found}"


class Evidence(NamedTuple):
    """The figure of a claim, and the values that its text may name."""

    figure: StoryFigure
    values: dict[str, Any]


class Claim(ABC):
    @property
    def changes(self) -> tuple[AblateHead, ...]:
        """The changes that show the effect of the claim."""
        head = getattr(self, "head", None)
        return () if head is None else (AblateHead(attention=head.attention, head=head.head),)

    @abstractmethod
    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        """Compute the figure; raise ClaimError if the claim does not hold."""


def expect(condition: bool, claim: str, found: str) -> None:
    if not condition:
        raise ClaimError(claim, found)


def percent(x: float) -> str:
    """Format a probability as the page does.

    >>> percent(0.9495), percent(0.000853), percent(0.00001)
    ('94.9%', '0.09%', '<0.01%')
    """
    if x < 1e-4:
        return "<0.01%"
    text = f"{100 * x:.2f}" if x < 0.01 else f"{100 * x - 1e-9:.1f}"
    return f"{text}%"


class WordProbability(NamedTuple):
    """The probabilities of words at one position, as the model is and with the head switched off."""

    before: tuple[float, ...]
    after: tuple[float, ...]


@dataclass(frozen=True)
class StoryHead:
    """A head of an attention layer."""

    attention: str
    head: int

    def word_position(self, trace: Trace, word: str) -> int:
        """Return the position whose next token is the word, at its last occurrence."""
        pieces = [token.piece.strip() for token in trace.sequence("target").tokens]
        expect(word in pieces[2:], f"the output contains {word}", " ".join(pieces))
        return len(pieces) - 1 - pieces[::-1].index(word) - 1

    def probabilities(
        self, bundle: Bundle, trace: Trace, position: int, words: Sequence[str]
    ) -> WordProbability:
        """Compare the probabilities of the words at a position; the output of the trace is a fixed target."""
        ids = [token.id for token in trace.sequence("target").tokens if token.id is not None]
        input = replace(trace.prepared.input, target=tuple(ids[1:]))
        changed = trace_model(bundle, input, [AblateHead(attention=self.attention, head=self.head)])
        columns = [self._id_of(bundle, trace, position, word) for word in words]
        values = (
            one.record["head.logits"][0, position].float().softmax(-1)[columns] for one in (trace, changed)
        )
        before, after = (tuple(float(x) for x in row) for row in values)
        return WordProbability(before, after)

    def _id_of(self, bundle: Bundle, trace: Trace, position: int, word: str) -> int:
        """Return the most likely token at the position that is the word."""
        assert bundle.tokenizer is not None
        order = trace.record["head.logits"][0, position].argsort(descending=True)[:500].tolist()
        found = next((id for id in order if bundle.tokenizer.decode([id]).strip() == word), None)
        expect(
            found is not None,
            f"{word} is a candidate",
            f"it is not among the {len(order)} most likely tokens",
        )
        assert found is not None
        return found

    def row(self, trace: Trace, position: int) -> tuple[tuple[str, ...], tuple[float, ...]]:
        """Return the tokens that the head may attend to from the position, and its weights."""
        name = next(one for one in trace.attentions() if one.name == self.attention).keys
        tokens = trace.sequence(name).tokens
        weights = trace.record.weights(self.attention, self.head)[0, position].tolist()
        last = position + 1 if name == "target" else len(tokens)
        return tuple(token.piece for token in tokens[:last]), tuple(weights[:last])


@dataclass(frozen=True)
class WritesWord(Claim):
    """A head looks at one token and writes a word, which is gone without the head.

    elsewhere: sentences in which the word also appears, but in which the head matters less.
    """

    head: StoryHead
    word: str
    looks_at: str
    elsewhere: tuple[str, ...] = ()

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        trace = trace_model(bundle, input)
        position = self.head.word_position(trace, self.word)
        tokens, weights = self.head.row(trace, position)
        focus = tokens[weights.index(max(weights))].strip()
        expect(focus == self.looks_at, f"the head looks at {self.looks_at}", f"it looks at {focus}")
        ((before,), (after,)) = self.head.probabilities(bundle, trace, position, [self.word])
        found = f"its probability goes from {percent(before)} to {percent(after)}"
        expect(before > 0.9 and after < 0.01, f"the head writes {self.word}", found)
        bars = [self._bar(trace, position, before, after)]
        for text in self.elsewhere:
            other = trace_model(bundle, replace(input, text=text))
            at = self.head.word_position(other, self.word)
            ((b,), (a,)) = self.head.probabilities(bundle, other, at, [self.word])
            found = f"in {text!r} its probability goes from {percent(b)} to {percent(a)}"
            expect(b > 0.9 and a > 0.5, f"{self.word} stays in {text!r}", found)
            bars.append(self._bar(other, at, b, a))
        values = {"before": percent(before), "after": percent(after), "weight": percent(max(weights))}
        values["elsewhere"] = ", ".join(f"{bar.label} {percent(bar.changed or 0)}" for bar in bars[1:])
        figure = StoryFigure(tokens=tokens, weights=weights, query=position, bars=tuple(bars))
        return Evidence(figure, values | {"pos": position})

    def _bar(self, trace: Trace, position: int, before: float, after: float) -> StoryBar:
        pieces = [token.piece for token in trace.sequence("target").tokens]
        start = max(n for n in range(position + 1) if pieces[n].startswith(" "))
        label = "".join(pieces[start : position + 1]).strip()
        return StoryBar(label=f"{label} → {self.word}", value=before, changed=after)


@dataclass(frozen=True)
class ChoosesWord(Claim):
    """A head decides between two words: without it, the other one is more likely. looks_at: of the source."""

    head: StoryHead
    word: str
    rival: str
    looks_at: str

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        trace = trace_model(bundle, input)
        position = self.head.word_position(trace, self.word)
        tokens, weights = self.head.row(trace, position)
        focus = tokens[weights.index(max(weights))].strip()
        expect(focus == self.looks_at, f"the head looks at {self.looks_at}", f"it looks at {focus}")
        words = (self.word, self.rival)
        before, after = self.head.probabilities(bundle, trace, position, words)
        shown = [
            f"{word} {percent(b)} to {percent(a)}" for word, b, a in zip(words, before, after, strict=True)
        ]
        swaps = before[0] > before[1] and after[0] < after[1]
        expect(swaps, f"the head turns {self.rival} into {self.word}", ", ".join(shown))
        bars = [StoryBar(label=w, value=b, changed=a) for w, b, a in zip(words, before, after, strict=True)]
        values = {"weight": percent(max(weights)), "pos": position}
        for word, b, a in zip(words, before, after, strict=True):
            values |= {f"{word}_before": percent(b), f"{word}_after": percent(a)}
        return Evidence(StoryFigure(tokens=tokens, weights=weights, query=position, bars=tuple(bars)), values)


@dataclass(frozen=True)
class LosesWord(Claim):
    """The best result of the beam search lacks a word that the next one has, and scores better without it."""

    word: str

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        search = search_tree(bundle, text=input.text, image=input.image, to=input.to)
        first = search.results[0]
        kept = next((one for one in search.results if self._has_word(one.text)), None)
        expect(not self._has_word(first.text), f"the best result lacks {self.word}", first.text)
        expect(
            kept is not None, f"another result has {self.word}", "; ".join(one.text for one in search.results)
        )
        assert kept is not None
        nodes = {node.id: node for node in search.nodes}
        bars = []
        for one in (first, kept):
            node = next(node for node in search.nodes if node.result_rank == one.rank)
            total = node.logprob
            while node.parent is not None and node.parent in nodes:
                node = nodes[node.parent]
                total += node.logprob
            bars.append(StoryBar(label=one.text, value=math.exp(total)))
        values: dict[str, Any] = {
            "text": first.text,
            "kept": kept.text,
            "score": f"{first.score:.3f}".replace("-", "−"),
        }
        values |= {"kept_score": f"{kept.score:.3f}".replace("-", "−"), "rank": kept.rank}
        return Evidence(StoryFigure(bars=tuple(bars)), values)

    def _has_word(self, text: str) -> bool:
        return self.word in re.findall(r"\w+", text)


@dataclass(frozen=True)
class BoxesSettle(Claim):
    """A detector finds nothing after its first layer, and all objects after its last."""

    min_score: float = 0.5

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        trace = trace_model(bundle, input)
        boxes, scores = (
            trace.derived["detect.boxes"],
            trace.derived["detect.probabilities"][..., :-1].amax(-1),
        )
        counts = (scores > self.min_score).sum(1).tolist()
        expect(counts[0] == 0, "no object is found after the first layer", f"{counts[0]} are")
        expect(counts[-1] >= 3, "at least three objects are found after the last layer", f"{counts[-1]} are")
        found = (scores[-1] > self.min_score).nonzero()[:, 0].tolist()
        layers = tuple(tuple(tuple(boxes[n, query].tolist()) for query in found) for n in range(len(boxes)))
        figure = StoryFigure(images=(input.image or "",), boxes=layers)
        values = {"counts": ", ".join(map(str, counts)), "queries": boxes.shape[1], "layers": len(boxes)}
        return Evidence(figure, values)


@dataclass(frozen=True)
class IsUncertain(Claim):
    """A classifier gives two classes nearly the same probability."""

    labels: tuple[str, str]
    max_difference: float = 0.2

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        outcome: Any = trace_model(bundle, input).outcome
        first, second, *rest = outcome.labels
        found = f"{first.label} {percent(first.probability)}, {second.label} {percent(second.probability)}"
        same = {first.label, second.label} == set(self.labels)
        expect(
            same and first.probability - second.probability < self.max_difference,
            "the digit is uncertain",
            found,
        )
        bars = tuple(StoryBar(label=one.label, value=one.probability) for one in (first, second, *rest[:2]))
        values = {"first": first.label, "second": second.label}
        values |= {"p_first": percent(first.probability), "p_second": percent(second.probability)}
        return Evidence(StoryFigure(bars=bars, images=(input.image or "",)), values)


@dataclass(frozen=True)
class Forecasts(Claim):
    """A forecast is closer to the true values than repeating the last ones."""

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        trace = trace_model(bundle, input)
        names: Any = trace.outcome.names  # type: ignore[union-attr]
        past, forecast, truth, naive = (
            trace.derived[name][0].double()
            for name in (names.past, names.forecast, names.truth, names.persistence)
        )
        error, naive_error = float((forecast - truth).abs().mean()), float((naive - truth).abs().mean())
        found = f"its error is {error:.3g}, that of repetition {naive_error:.3g}"
        expect(error < naive_error / 2, "the forecast beats repetition twofold", found)
        lines: dict[str, tuple[float | None, ...]] = {}
        start = len(past)
        for name, line in (("past", past), ("truth", truth), ("forecast", forecast)):
            shown = [round(x, 4) for x in line.tolist()]
            gap = () if name == "past" else (*[None] * (start - 1), lines["past"][-1])
            lines[name] = (*gap, *shown)
        values = {"steps": len(forecast), "error": f"{error:.3g}", "naive": f"{naive_error:.3g}"}
        return Evidence(StoryFigure(lines=lines), values)


@dataclass(frozen=True)
class Learns(Claim):
    """The loss of the example run falls, and its last sample is right."""

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        run = describe_run(EXAMPLE_RUN, id=EXAMPLE_RUN.name)
        loss = run.curves["valid.loss"]
        expect(
            loss.value[-1] < loss.value[0] / 2,
            "the loss falls by half",
            f"{loss.value[0]} to {loss.value[-1]}",
        )
        samples = [(one.step, one.samples[0]) for one in run.samples]
        last = samples[-1][1]
        expect(last.prediction == last.reference, "the last sample is right", last.prediction)
        figure = StoryFigure(
            lines={"loss": tuple(round(x, 4) for x in loss.value)},
            samples=tuple(
                (step, sample.prediction)
                for step, sample in (samples[0], samples[len(samples) // 4], samples[-1])
            ),
        )
        model = load(EXAMPLE_RUN / run.checkpoints[-1].path).model
        values = {
            "parameters": f"{sum(parameter.numel() for parameter in model.parameters()):,}",
            "source": last.source,
            "steps": run.step,
            "first": f"{loss.value[0]:.2f}",
            "last": f"{loss.value[-1]:.1g}",
        }
        return Evidence(figure, values)


@dataclass(frozen=True)
class Draws(Claim):
    """The prediction of the clean image comes closer to the drawing with every quarter of the film."""

    frames: int = 5
    width: int = 96

    def check(self, bundle: Bundle, input: TraceInput) -> Evidence:
        film = trace_model(bundle, input).film
        assert film is not None
        steps = [round(n * len(film) / (self.frames - 1)) for n in range(self.frames)]
        pictures = [film.frames(step)[1].float() for step in steps]
        distances = [float((one - pictures[-1]).abs().mean()) for one in pictures]
        falls = all(a >= b for a, b in itertools.pairwise(distances))
        expect(falls, "the picture comes closer to the drawing", ", ".join(f"{x:.3g}" for x in distances))
        images = tuple(self._data_url(one) for one in pictures)
        return Evidence(StoryFigure(images=images), {"steps": len(film)})

    def _data_url(self, picture: Any) -> str:
        from PIL import Image

        values = picture.to("cpu").numpy()
        image = Image.fromarray(values.astype("uint8").squeeze())
        image.thumbnail((self.width, self.width))
        buffer = io.BytesIO()
        image.save(buffer, "PNG", optimize=True)
        return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
