"""The job that trains causal language models on packed documents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from glassformer import baselines
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.examples import PackedBlocks
from glassformer.data.readers import file_format
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TextSource, texts
from glassformer.data.split import splits_documents
from glassformer.data.store import Chunk, Store, write_chunks
from glassformer.errors import EmptyInputError, InvalidValueError
from glassformer.generation import GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.messages import plural
from glassformer.metrics.text import Perplexity
from glassformer.tokenization import Tokenizer
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import (
    Progress,
    TextCorpus,
    build_text_bundle,
    eos_id,
    group_items,
    map_in_order,
    max_id,
    prepare_corpus,
)
from glassformer.training.learner import TextLearner, count_labels
from glassformer.training.model_setup import choose_size, max_input_length, supported_options
from glassformer.training.recipe import TextData
from glassformer.training.task import LearnerTask, Sample, ValidationResult, mean_loss

MAX_CONTEXT = 1024  # tokens, unless the recipe sets a context length
MAX_SAMPLE_TOKENS = 64  # of a prompt, and of its continuation


class LanguageModelingJob(Job[TextData]):
    """Train a language model; evaluated with the loss on held-out text."""

    default_preset = "gpt2"
    corpus: TextCorpus

    @property
    def context_length(self) -> int:
        return self.data.context_length or MAX_CONTEXT

    def adopt_base_settings(self) -> None:
        if self.base is not None and self.data.context_length is None:
            self.update_data(context_length=min(max_input_length(self.base.spec), MAX_CONTEXT))

    def prepare_data(self) -> None:
        data = self.data
        # in a table every row is a document
        sample_by = data.sample_by if file_format(data.train[0]) == "plain" else "line"

        def read(files: Sequence[str]) -> TextSource:
            return texts(files, sample_by=sample_by, column=data.text_column, encoding=data.encoding)

        self.corpus = corpus = prepare_corpus(self, read, self._write, template="none")
        for split, counts in (("training", corpus.train_notes), ("validation", corpus.notes["valid"])):
            tokens, documents = counts["tokens"], counts["documents"]
            self.facts |= {f"{split} documents": documents, f"{split} tokens": tokens}
            self.log(f"{tokens:,} tokens in {documents:,} {plural('document', documents)} for {split}")
        if isinstance(data.valid, float) and splits_documents(read(data.train)):
            self.log(f"the last {data.valid:.1%} of the text is held out")

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        assert isinstance(source, TextSource)
        encoder = DocumentEncoder(tokenizer, end=eos_id(tokenizer), progress=Progress("characters", self.log))
        store = write_chunks(
            folder, ("text",), encoder.parts(source.pieces(problems)), max_id=max_id(tokenizer)
        )
        (tokens,) = store.sizes()
        if tokens <= len(store):
            raise EmptyInputError(f"{folder.name} text", "provide more text")
        return {
            "documents": len(store),
            "tokens": tokens,
            "characters": encoder.characters,
            "bytes": encoder.bytes,
        }

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        store, tuning = self.corpus.train, self.fine_tuning
        (tokens,) = store.sizes()
        size, epochs, reason = choose_size(
            hardware, units=tokens, vocab_size=self.corpus.tokenizer.vocab_size, length_known=self.has_length
        )
        reasons = [] if tuning else [reason]
        if self.data.context_length is None:
            limit = MAX_CONTEXT if self.base is None else max_input_length(self.base.spec)
            self.update_data(
                context_length=min(choose_context_length(tokens, store.max_length("text")), limit)
            )
            reasons.append(f"context length {self.context_length} tokens")
        length = self.context_length
        # with so few epochs the model does not overfit
        dropout = size.dropout if epochs > 2 else 0.0
        dropouts = dict.fromkeys(("dropout", "attention_dropout", "embed_dropout"), dropout)
        options: dict[str, Any] = {**size.options(), **dropouts, "max_len": length}
        if self.preset.startswith("mistral"):
            options["num_kv_heads"] = (
                None  # as many as heads, since the preset's number might not divide them
            )
        self.fill_model(supported_options(self.preset, options))
        return reasons + self.fill_training(
            self.blocks(store, seed=self.recipe.seed),
            batch=max(length, min(32_768 if hardware.on_gpu else 4096, tokens // 25)),
            epochs=3 if tuning else epochs,
            lr=5e-5 if tuning else min(2e-3, 0.3 / size.d_model + 2e-4),
        )

    def blocks(self, store: Store, *, seed: int | None) -> PackedBlocks:
        """Return the examples of a store; without a seed the block boundaries are fixed."""
        recurrent = self.recipe.model.preset == "lstm" or (
            self.base is not None and not isinstance(self.base.spec, specs.DecoderOnlySpec)
        )
        # a single document needs no segment ids, and all its batches then have the same arrays
        segments = not recurrent and len(store) > 1
        return PackedBlocks(
            store, length=self.context_length, seed=seed, pad_id=self.corpus.pad_id, segments=segments
        )

    def build(self) -> Bundle:
        """Build or load the model with its tokenizer, as it will be saved."""
        tokenizer = self.corpus.tokenizer
        fixed = {"vocab_size": tokenizer.vocab_size, "pad_id": tokenizer.pad_id}
        bundle = build_text_bundle(
            self,
            self.corpus,
            overrides=lambda: supported_options(self.preset, fixed),
            lstm=("LSTMLanguageModel", {**fixed, "tied": ("head",)}),
        )
        spec: Any = bundle.spec
        if not isinstance(spec, specs.DecoderOnlySpec | baselines.spec.LSTMLanguageModelSpec):
            raise self.unsupported_model("use e.g. gpt2, llama or lstm")
        if self.context_length > max_input_length(spec):
            raise InvalidValueError(
                "data.context_length",
                self.context_length,
                f"at most {max_input_length(spec)} tokens for this model",
            )
        return bundle

    def task(self) -> LearnerTask:
        bundle = self.build()
        learner = TextLearner(bundle.model, label_smoothing=self.recipe.training.label_smoothing or 0.0)
        return LearnerTask(
            learner=learner,
            train=self.blocks(self.corpus.train, seed=self.recipe.seed),
            unit="tokens",
            count=count_labels,
            metric="loss",
            validate=self.validation(learner),
            save=partial(save, bundle),
        )

    def validation(self, learner: TextLearner) -> Callable[[torch.device], ValidationResult]:
        """Return a function that computes the loss per token, character and byte on all held-out text.

        It also generates a few continuations as samples.
        """
        corpus, training, counts = self.corpus, self.recipe.training, self.corpus.notes["valid"]
        valid, decode = self.blocks(corpus.valid, seed=None), corpus.tokenizer.decode
        sample_tokens = min(MAX_SAMPLE_TOKENS, max(1, valid.length // 2))
        prompts = list(sample_prompts(corpus.valid, training.log_samples, max_tokens=sample_tokens))
        batch = max(valid.length, training.batch or 4096)
        tokens = counts["tokens"] - counts["documents"]  # the first of a document is not predicted
        params = GenerationParams(
            eos_token_id=corpus.eos_id, pad_token_id=corpus.pad_id, max_new_tokens=sample_tokens
        )

        def validate(device: torch.device) -> ValidationResult:
            loss = mean_loss(learner, valid, device, batch=batch)
            metrics = Perplexity()
            metrics.add(
                loss=loss * tokens,
                tokens=tokens,
                characters=counts["characters"],
                bytes=counts["bytes"],
            )
            model = prepare_for_inference(learner.model)
            outputs = generate_batched(model, [prompt for prompt, _ in prompts], params, check_finite=False)
            return ValidationResult(
                metrics={
                    "loss": loss,
                    "perplexity": metrics.perplexity,
                    "bits_per_character": metrics.bits_per_character or 0.0,
                    "bits_per_byte": metrics.bits_per_byte or 0.0,
                },
                samples=[
                    Sample(source=decode(prompt), expected=decode(following), got=decode(best.ids))
                    for (prompt, following), (best, *_) in zip(prompts, outputs, strict=True)
                ],
            )

        return validate


class DocumentEncoder:
    """Encode pieces of documents, and append the end token to each document.

    A document starts with the BOS token if the tokenizer adds one. `characters` and `bytes` count the text
    encoded so far that is predicted, i.e. without the first token of each document.
    """

    def __init__(self, tokenizer: Tokenizer, *, end: int, progress: Progress) -> None:
        self.tokenizer, self.end, self.progress = tokenizer, end, progress
        adds_bos = tokenizer.bos_id is not None and tokenizer.encode("a").ids[:1] == [tokenizer.bos_id]
        self.prefix = [tokenizer.bos_id] if adds_bos and tokenizer.bos_id is not None else []
        self.characters = self.bytes = 0

    def parts(self, pieces: Iterable[tuple[int, str]]) -> Iterator[tuple[Chunk]]:
        """Yield the ids of all documents in chunks. pieces: texts with the numbers of their documents."""
        document = None  # number of the current document

        def encode(group: list[tuple[int, str]]) -> list[tuple[list[int], int]]:
            return self.tokenizer.encode_ids_with_first_end([text for _, text in group])

        for group, encoded in map_in_order(encode, group_items(pieces, lambda piece: len(piece[1]))):
            ids: list[int] = []
            ends: list[int] = []
            for (number, text), (text_ids, first_end) in zip(group, encoded, strict=True):
                self._count(text)
                if number != document:
                    if document is not None:
                        ids.append(self.end)
                        ends.append(len(ids))
                    ids += self.prefix
                    if not self.prefix:
                        self._count(text[:first_end], -1)
                    document = number
                ids += text_ids
            self.progress.add(sum(len(text) for _, text in group))
            yield (_part(ids, ends),)
        if document is not None:
            yield (_part([self.end], [1]),)

    def _count(self, text: str, sign: int = 1) -> None:
        self.characters += sign * len(text)
        self.bytes += sign * len(text.encode())


def _part(ids: list[int], ends: list[int]) -> Chunk:
    return Chunk(ids=np.array(ids, np.int64), ends=np.array(ends, np.int64))


def choose_context_length(tokens: int, longest: int) -> int:
    """Choose a power of two from 128 to 1024, limited by the longest document and leaving 2,500 blocks.

    >>> [choose_context_length(*sizes) for sizes in ((10**6, 10**6), (10**6, 90), (10**9, 10**6))]
    [256, 128, 1024]
    """
    length = 128
    while length < min(MAX_CONTEXT, longest) and tokens // (2 * length) >= 2500:
        length *= 2
    return length


def sample_prompts(store: Store, count: int, *, max_tokens: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield up to `count` prompts spread over a text, each with the tokens that follow it.

    max_tokens: maximum length of a prompt, and of its continuation.
    """
    ids, ends = store.concatenated("text")
    starts: set[int] = set()
    for n in range(count):
        start = n * len(ids) // count
        document = int(np.searchsorted(ends, start, side="right"))
        first, end = int(ends[document - 1]) if document else 0, int(ends[document])
        start = max(first, min(start, end - 2 * max_tokens)) if end - first > 2 * max_tokens else first
        cut = start + min(max_tokens, max(1, (end - start) // 2))
        if start not in starts and cut < end:
            starts.add(start)
            yield ids[start:cut].tolist(), ids[cut : min(cut + max_tokens, end)].tolist()
