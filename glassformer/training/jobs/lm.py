"""Learn to continue text: documents end to end, each token foretold from those before it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import baselines
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.blocks import Blocks, RunningBlocks
from glassformer.data.held_out import cut_at_the_end
from glassformer.data.problems import Problems
from glassformer.data.sources import Source, Texts
from glassformer.data.store import Part, Store, write_parts
from glassformer.data.tables import kind_of
from glassformer.data.texts import texts
from glassformer.errors import GlassformerError
from glassformer.generation import GenerationRequest, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.perplexity import Perplexity
from glassformer.tokenization import Tokenizer
from glassformer.training.jobs.text import TextJob
from glassformer.training.learner import TextLearner, tokens_learned
from glassformer.training.logging.run_log import Sample
from glassformer.training.model_setup import Machine, accepted, fitting, room
from glassformer.training.recipe import TextData
from glassformer.training.task import Task, Validation, mean_loss
from glassformer.training.text_encoding import Progress, in_groups, in_order, two_sides

LONGEST = 1024  # tokens that are read at once where nothing says how many
CONTINUED = 64  # most tokens of a prompt, and of what is written after it


class LanguageModelling(TextJob):
    """Running text in, a decoder (or its LSTM baseline) out; measured by the loss on text held out."""

    usual = "gpt2"

    @property
    def data(self) -> TextData:
        assert isinstance(self.recipe.data, TextData)
        return self.recipe.data

    @property
    def length(self) -> int:
        """How many tokens are read at once, once it is chosen."""
        assert self.data.length is not None
        return self.data.length

    def follow_model(self) -> None:
        if self.base is not None and self.data.length is None:
            length = min(room(self.base.spec), LONGEST)
            self.recipe = replace(self.recipe, data=replace(self.data, length=length))

    def gather(self) -> None:
        data = self.data
        # a table's rows are its documents
        unit = data.unit if kind_of(data.train[0]) == "plain" else "line"

        def make(files: Any) -> Texts:
            return texts(files, unit=unit, column=data.column)

        train, valid = two_sides(make, data, seed=self.recipe.seed)
        noted = self.gather_text(train, valid, self._write, settings=(), marks="none")
        self.about = noted["valid"]
        train_about = noted.get("train", self.about)
        self.facts |= {f"training {name}": train_about[name] for name in ("documents", "tokens")}
        self.facts |= {f"validation {name}": self.about[name] for name in ("documents", "tokens")}
        learned, held = (
            f"{part['tokens']:,} tokens in {part['documents']:,} {'document' + 's' * (part['documents'] > 1)}"
            for part in (train_about, self.about)
        )
        self.say(f"{learned} to learn from, {held} to validate with")
        if isinstance(data.valid, float) and cut_at_the_end(make(data.train)):
            self.say(f"the last {data.valid:.1%} of the text is what is held out")

    def _write(self, folder: Path, part: Source, problems: Problems) -> dict[str, Any]:
        assert isinstance(part, Texts)
        ids = EncodedTexts(self.tokenizer, end=self.eos_id, progress=Progress("letters", self.say))
        store = write_parts(folder, ("text",), ids.parts(part.pieces(problems)), highest=self.highest)
        (tokens,) = store.sizes()
        if tokens <= len(store):
            raise GlassformerError(f"the {folder.name} text is too short to learn or measure anything on")
        return {
            "documents": len(store),
            "tokens": tokens,
            "characters": ids.characters,
            "bytes": ids.bytes,
        }

    def choose(self, machine: Machine) -> list[str]:
        (tokens,) = self.train.sizes()
        size, passes, why = fitting(
            machine, units=tokens, vocab_size=self.tokenizer.vocab_size, given=self.length_given
        )
        tuned = self.recipe.model.folder is not None
        reasons = [] if tuned else [why]
        if self.data.length is None:
            most = LONGEST if self.base is None else room(self.base.spec)
            length = min(block_length(tokens, self.train.longest("text")), most)
            self.recipe = replace(self.recipe, data=replace(self.data, length=length))
            reasons.append(f"{length} tokens are read at once")
        length = self.length
        preset = self.preset
        # text that is hardly seen twice is not learned by heart
        dropout = size.dropout if passes > 2 else 0.0
        drops = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), dropout)
        words: dict[str, Any] = {**size.words(), **drops, "max_len": length}
        if preset.startswith("mistral"):
            words["num_kv_heads"] = None  # as many as heads: the preset has more than a small model's heads
        self.settle_model(preset, accepted(preset, words))
        most = 32_768 if machine.on_gpu else 4096
        return reasons + self.settle(
            self.blocks(self.train, seed=self.recipe.seed),
            batch=max(length, min(most, tokens // 25)),
            passes=3 if tuned else passes,
            lr=5e-5 if tuned else min(2e-3, 0.3 / size.d_model + 2e-4),
            schedule="linear" if tuned else "cosine",
        )

    def blocks(self, store: Store, *, seed: int | None) -> Blocks:
        """A store as examples; without a seed always cut alike."""
        recurrent = self.recipe.model.preset == "lstm" or (
            self.base is not None and not isinstance(self.base.spec, specs.DecoderOnly)
        )
        # one document has no other to be kept apart from, and without marks all its batches are of one kind
        kind = RunningBlocks if recurrent or len(store) == 1 else Blocks
        return kind(store, length=self.length, seed=seed, pad_id=self.pad_id)

    def build(self) -> Bundle:
        """The model of the recipe with the tokenizer, as it will be saved."""
        tokenizer = self.tokenizer
        fixed = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id}
        preset = self.recipe.model.preset or ""
        bundle = self.bundle(
            words=lambda: accepted(preset, fixed),
            lstm=("LSTMLanguageModel", {**fixed, "tied": ("head",)}),
            generation={"eos_token_id": self.eos_id, "pad_token_id": self.pad_id},
        )
        spec: Any = bundle.spec
        if not isinstance(spec, specs.DecoderOnly | baselines.spec.LSTMLanguageModel):
            what = self.recipe.model.folder or preset
            raise GlassformerError(
                f"the model '{what}' does not continue text, which this job needs; gpt2, llama and lstm do"
            )
        if self.length > room(spec):
            raise GlassformerError(
                f"data.length is {self.length}, and the model reads at most {room(spec)} tokens at once"
            )
        return bundle

    def task(self) -> Task:
        bundle = self.build()
        learner = TextLearner(bundle.model, smoothing=self.recipe.training.label_smoothing or 0.0)
        return Task(
            learner=learner,
            train=self.blocks(self.train, seed=self.recipe.seed),
            units="tokens",
            count=tokens_learned,
            metric="loss",
            better="lower",
            validate=self.validation(learner),
            save=lambda path: save(bundle, path),
        )

    def validation(self, learner: TextLearner) -> Callable[[torch.device], Validation]:
        """The loss on all text held out, in every unit it is told in; a few continuations of it."""
        held, tokenizer = self.blocks(self.valid, seed=None), self.tokenizer
        most = min(CONTINUED, max(1, held.length // 2))
        parts = list(prompts(self.valid, self.recipe.training.samples, most=most))
        batch = max(held.length, self.recipe.training.batch or 4096)
        counts = {name: self.about[name] for name in ("characters", "bytes")}
        tokens = self.about["tokens"] - self.about["documents"]  # a document's first is given

        def validate(device: torch.device) -> Validation:
            loss = mean_loss(learner, held, device, batch=batch)
            found = Perplexity()
            found.add(loss=loss * tokens, tokens=tokens, **counts)
            request = GenerationRequest(
                eos_token_id=self.eos_id, pad_token_id=self.pad_id, max_new_tokens=most
            )
            outputs = generate_batched(
                prepare_for_inference(learner.model),
                [prompt for prompt, _ in parts],
                request,
                check_finite=False,
            )
            written = [best.ids for best, *_ in outputs]
            return Validation(
                metrics={
                    "loss": loss,
                    "perplexity": found.perplexity,
                    "bits_per_character": found.bits_per_character or 0.0,
                    "bits_per_byte": found.bits_per_byte or 0.0,
                },
                samples=[
                    Sample(
                        source=tokenizer.decode(prompt),
                        expected=tokenizer.decode(following),
                        got=tokenizer.decode(ids),
                    )
                    for (prompt, following), ids in zip(parts, written, strict=True)
                ],
            )

        return validate


class EncodedTexts:
    """Pieces of documents as ids, each document closed by the end token.

    A document begins with the tokenizer's begin token where it puts one before a text. characters, bytes:
    what has been foretold so far: all but what the first token of a document stands for.
    """

    def __init__(self, tokenizer: Tokenizer, *, end: int, progress: Progress) -> None:
        self.tokenizer, self.end, self.progress = tokenizer, end, progress
        marked = tokenizer.bos_id is not None and tokenizer.encode("a").ids[:1] == [tokenizer.bos_id]
        self.begin = [tokenizer.bos_id] if marked and tokenizer.bos_id is not None else []
        self.characters = self.bytes = 0

    def parts(self, pieces: Iterable[tuple[int, str]]) -> Iterator[tuple[Part]]:
        """The ids of all documents, many pieces at a time."""
        document = None  # the one that is open

        def encode(group: list[tuple[int, str]]) -> list[tuple[list[int], int]]:
            return self.tokenizer.begun_ids_of([text for _, text in group])

        for group, found in in_order(encode, in_groups(pieces, lambda piece: len(piece[1]))):
            ids: list[int] = []
            ends: list[int] = []
            for (number, text), (some, first) in zip(group, found, strict=True):
                self._count(text)
                if number != document:
                    if document is not None:
                        ids.append(self.end)
                        ends.append(len(ids))
                    ids += self.begin
                    if not self.begin:
                        self._count(text[:first], -1)
                    document = number
                ids += some
            self.progress.add(sum(len(text) for _, text in group))
            yield (_part(ids, ends),)
        if document is not None:
            yield (_part([self.end], [1]),)

    def _count(self, text: str, sign: int = 1) -> None:
        self.characters += sign * len(text)
        self.bytes += sign * len(text.encode())


def _part(ids: list[int], ends: list[int]) -> Part:
    return Part(ids=np.array(ids, np.int64), ends=np.array(ends, np.int64))


def block_length(tokens: int, longest: int) -> int:
    """How many tokens to read at once: a power of two from 128 to 1024, so that blocks are many.

    No longer than the longest document needs, nor than leaves 2,500 blocks to learn from.

    >>> block_length(1_000_000, 1_000_000), block_length(1_000_000, 90), block_length(10**9, 10**6)
    (256, 128, 1024)
    """
    length = 128
    while length < min(LONGEST, longest) and tokens // (2 * length) >= 2500:
        length *= 2
    return length


def prompts(store: Store, many: int, *, most: int) -> Iterator[tuple[list[int], list[int]]]:
    """Up to `many` places of a text: at most `most` tokens, and as many that follow, of one document."""
    ids, ends = store.end_to_end("text")
    seen: set[int] = set()
    for n in range(many):
        at = n * len(ids) // many
        document = int(np.searchsorted(ends, at, side="right"))
        begin, end = int(ends[document - 1]) if document else 0, int(ends[document])
        at = max(begin, min(at, end - 2 * most)) if end - begin > 2 * most else begin
        cut = at + min(most, max(1, (end - at) // 2))
        if at not in seen and cut < end:
            seen.add(at)
            yield ids[at:cut].tolist(), ids[cut : min(cut + most, end)].tolist()
