"""Jobs that train sequence-to-sequence models: translation, summarization, restoring sentences."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from glassformer import baselines
from glassformer.bundle import Bundle, save
from glassformer.core import spec as specs
from glassformer.data.bpe_dropout import BpeDropout, BpeDropoutPairs
from glassformer.data.denoising import Corruption, DenoisingExamples
from glassformer.data.examples import PairExamples
from glassformer.data.readers import LANGUAGE_COLUMN
from glassformer.data.row_errors import RowErrors
from glassformer.data.sources import Source, TableSource, pairs, texts
from glassformer.data.store import Ragged, Store
from glassformer.errors import ConflictError, MissingValueError, UnsupportedError
from glassformer.generation import GenerationParams, generate_batched
from glassformer.generation.inference_model import prepare_for_inference
from glassformer.metrics.text import Case, ExactMatch, bleu, chrf, perplexity, rouge
from glassformer.tasks.text_generation import task_prefix
from glassformer.tokenization import Side, Tokenizer, tag_ids, tag_position
from glassformer.tokenization.sentence_split import has_several_sentences
from glassformer.training.hardware import Hardware
from glassformer.training.jobs.base import Job
from glassformer.training.jobs.text import (
    Row,
    TextCorpus,
    build_text_bundle,
    encode_rows,
    log_counts,
    max_id,
    prepare_corpus,
    read_texts,
    token_splits,
)
from glassformer.training.learner import PairLearner, count_labels
from glassformer.training.model_setup import choose_size, max_input_length, supported_options
from glassformer.training.recipe import PairData, SentenceData, SummaryData
from glassformer.training.task import LearnerTask, Sample, ValidationResult, mean_loss

MIN_ROW_WIDTH = 128  # tokens of a row that packs several pairs
MAX_MULTI_SENTENCE = 0.1  # fraction of multi-sentence sources up to which a model counts as sentence-level
TYPICAL_QUANTILE, TYPICAL_ROWS = 0.995, 1_000_000  # for the typical source length
SIDE_SEEDS: dict[Side, int] = {
    "source": 0x50CE,
    "target": 0x7A96,
}  # so that the sides draw different random numbers
TAG = ">>{}<<"  # the target-language tag before a source
GAP = "<gap>"
PREFIX = " "  # before every sentence, so that its first word is tokenized as inside a sentence
SPACELESS = ("CJK", "HIRAGANA", "KATAKANA")  # scripts in which any character may start a word

Data = TypeVar("Data", PairData, SentenceData, SummaryData)


class Seq2SeqJob(Job[Data]):
    """Train an encoder-decoder or its LSTM baseline; a subclass prepares the corpus and the examples."""

    default_preset = "original"
    corpus: TextCorpus

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            self.update_data(max_len=max_input_length(self.base.spec))

    @property
    def cache_key(self) -> tuple[object, ...]:
        return self.max_len, self.recipe.training.max_generate_samples

    def train_examples(self) -> PairExamples:
        raise NotImplementedError

    def choose_defaults(self, hardware: Hardware) -> list[str]:
        tokens = self.corpus.train.sizes()[-1]
        size, epochs, reason = choose_size(
            hardware,
            units=tokens,
            vocab_size=self.corpus.tokenizer.target_vocab_size,
            stacks=2,
            length_known=self.has_length,
        )
        tuning = self.fine_tuning
        self.fill_model(supported_options(self.preset, {**size.options(), "norm": "pre"}))
        return ([] if tuning else [reason]) + self.fill_training(
            self.train_examples(),
            batch=max(512, min(25_000 if hardware.on_gpu else 4096, tokens // 25)),
            epochs=3 if tuning else epochs,
            lr=5e-5 if tuning else min(2e-3, 0.7 / size.d_model + 3e-4),
            lr_scheduler="linear" if tuning else "inverse_sqrt",
            label_smoothing=0.1,
            # with one shape torch compiles once; a CPU is faster without the padding of fixed-width rows
            packing=hardware.on_gpu and self.row_width is not None,
        )

    @property
    def row_width(self) -> int | None:
        """Width of a row of packed pairs; None for an LSTM, which does not support packing."""
        if self.recipe.model.preset == "lstm" or (
            self.base is not None and not isinstance(self.base.spec, specs.EncoderDecoderSpec)
        ):
            return None
        return max(MIN_ROW_WIDTH, self.max_len)

    @property
    def start_id(self) -> int:
        """The decoder start token: that of the base model, else the end token."""
        if self.base is None:
            return self.corpus.eos_id
        spec: Any = self.base.spec
        if not isinstance(spec, specs.EncoderDecoderSpec | baselines.spec.LSTMEncoderDecoderSpec):
            raise self.unsupported_model("use an encoder-decoder")
        return self.corpus.eos_id if spec.start_id is None else spec.start_id

    def build(self, info: Mapping[str, Any]) -> Bundle:
        """Build or load the model with its tokenizer, as it will be saved. info: entries of `job.json`."""
        tokenizer = self.corpus.tokenizer
        sizes = {"src_vocab_size": tokenizer.vocab_size, "tgt_vocab_size": tokenizer.target_vocab_size}
        tied = ("head",) if self.recipe.tokenizer.separate_vocabs else ("source", "head")
        ids = {"pad_id": self.corpus.pad_id, "start_id": self.start_id}
        return build_text_bundle(
            self,
            self.corpus,
            overrides=lambda: {**self._vocabulary_options(sizes, tied), **ids},
            lstm=("LSTMEncoderDecoder", {**sizes, "tied": tied, **ids}),
            start_id=self.start_id,
            info=info,
        )

    def _vocabulary_options(self, sizes: Mapping[str, int], tied: tuple[str, ...]) -> dict[str, Any]:
        """Return the vocabulary options of the preset; their names differ between families."""
        if not supported_options(self.preset, {"start_id": 0}):
            raise self.unsupported_model("use an encoder-decoder: original, marian, bart, t5 or lstm")
        if self.preset.startswith("original"):
            return {**sizes, "tied": self.recipe.model.overrides.get("tied", tied)}
        if self.recipe.tokenizer.separate_vocabs:
            raise ConflictError(
                ("tokenizer.separate_vocabs", "model.preset"),
                f"{self.preset} has a single vocabulary",
                "set tokenizer.separate_vocabs to false, or model.preset to original",
            )
        return {"vocab_size": self.corpus.tokenizer.vocab_size}

    def seq2seq_task(
        self, valid: PairExamples, pairs: Sequence[tuple[str, str]], metric: str, info: Mapping[str, Any]
    ) -> LearnerTask:
        """Build the training task.

        pairs: source and target text of the first validation examples. metric: defines the best model.
        info: more entries of `job.json`.
        """
        bundle, options = self.build(info), self.recipe.training
        learner = PairLearner(
            bundle.model, label_smoothing=options.label_smoothing or 0.0, r_drop=options.r_drop
        )
        return LearnerTask(
            learner=learner,
            train=self.train_examples(),
            unit="tokens",
            count=count_labels,
            metric=metric,
            row_width=self.row_width,
            validate=self.validation(learner, valid, pairs),
            save=partial(save, bundle),
        )

    def max_new_tokens(self, length: int) -> int:
        """Return the maximum number of tokens that a validation generates for a source of this length."""
        return 2 * length + 20

    def score(
        self, outputs: list[str], expected: list[str], case: Case
    ) -> tuple[dict[str, float], dict[str, str]]:
        """Return the metrics of generated texts, and their signatures."""
        return score_texts(outputs, expected, case=case)

    def validation(
        self, learner: PairLearner, valid: PairExamples, pairs: Sequence[tuple[str, str]]
    ) -> Callable[[torch.device], ValidationResult]:
        """Return a function that computes the loss on all examples, and BLEU, chrF and exact match.

        pairs: source and target text of the first examples, which are decoded for these scores.
        """
        tokenizer, recipe = self.corpus.tokenizer, self.recipe
        sources = [valid.row(n, 0)[0].tolist() for n in range(len(pairs))]
        # a lowercase model is scored on lowercase text; the signature says so
        case: Case = "lower" if recipe.tokenizer.lowercase else "mixed"
        params = GenerationParams(
            start_ids=self.start_id,
            eos_token_id=self.corpus.eos_id,
            pad_token_id=self.corpus.pad_id,
            max_new_tokens=self.max_new_tokens,
        )

        def validate(device: torch.device) -> ValidationResult:
            loss = mean_loss(learner, valid, device, batch=recipe.training.batch or 4096)
            model = prepare_for_inference(learner.model)
            decoded = generate_batched(model, sources, params, check_finite=False)
            outputs = [tokenizer.decode(best.ids).strip() for best, *_ in decoded]
            scores, signatures = self.score(outputs, [target for _, target in pairs], case)
            return ValidationResult(
                metrics={"loss": loss, "perplexity": perplexity(loss), **scores},
                samples=[
                    Sample(source=source, expected=target, got=output)
                    for (source, target), output in zip(pairs, outputs, strict=True)
                ],
                signatures=signatures,
            )

        return validate


def score_texts(
    outputs: list[str], expected: list[str], *, case: Case = "mixed"
) -> tuple[dict[str, float], dict[str, str]]:
    """Return BLEU, chrF and exact match of the outputs, and the signatures of the scores."""
    bleu_score, chrf_score = bleu(outputs, expected, case=case), chrf(outputs, expected, case=case)
    exact = ExactMatch()
    exact.add(outputs, [text.lower() for text in expected] if case == "lower" else expected)
    scores = {"bleu": bleu_score.score, "chrf": chrf_score.score, "exact": exact.match}
    return scores, {"bleu": bleu_score.signature, "chrf": chrf_score.signature}


# ---- translation -------------------------------------------------------------------------------------------


class TranslateJob(Seq2SeqJob[PairData]):
    """Train a translator into one or several target languages; evaluated with BLEU and chrF."""

    languages: tuple[str, ...] = ()  # target languages of a multilingual model
    language_column: str | int | None = None
    unit: Literal["sentence", "line"] = "line"  # what a source is: one sentence, or any text

    def prepare_data(self) -> None:
        self.fill_max_len()
        self.language_column = (
            self.base_info.to if self.data.language_column is None else self.data.language_column
        )

        def tags(train: Source) -> list[str]:
            multilingual = self.language_column is not None
            return sorted({TAG.format(row[2]) for row in train.rows(RowErrors())}) if multilingual else []

        self.corpus = corpus = prepare_corpus(
            self,
            self._read,
            self._write,
            cache_key=self.cache_key,
            template="eos",
            tags=tags,
            texts=lambda row: row[:2],
        )
        languages = {name for split in corpus.notes.values() for name in split["languages"]}
        self.languages = tuple(sorted(languages))
        multi_sentence = corpus.train_notes["multi_sentence"]
        self.unit = "sentence" if multi_sentence <= MAX_MULTI_SENTENCE * len(corpus.train) else "line"
        log_counts(self, corpus, "pairs", corpus.total("too_long"))

    def _read(self, files: Sequence[str]) -> Source:
        data = self.data
        source = pairs(files, columns=data.columns, to=self.language_column, encoding=data.encoding)
        if files == data.train and data.columns is None and isinstance(source, TableSource):
            unread = {str(column).lower(): column for column in source.unused_columns}
            if (
                LANGUAGE_COLUMN in unread and self.language_column is None
            ):  # otherwise the languages would be mixed
                column = unread[LANGUAGE_COLUMN]
                raise MissingValueError(
                    "data.language_column",
                    f"since '{source.tables[0].path}' has a column '{column}'",
                    f"set data.language_column={column} if it names the target language, or set data.columns",
                )
            if unread:
                self.log(source.column_summary)
        return source

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        max_len = self.max_len
        languages: set[str] = set()
        multi_sentence: list[int] = []  # multi-sentence sources in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            if self.language_column is not None:
                languages.update({row[2] for row in rows})
            sources, targets = encode_pairs(tokenizer, rows)
            fits = np.maximum(sources.lengths, targets.lengths) <= max_len
            multi_sentence.append(sum(has_several_sentences(rows[n][0]) for n in np.flatnonzero(fits)))
            return sources, targets

        fields, largest = ("source", "target"), max_id(tokenizer)
        rows = source.rows(problems)
        too_long = encode_rows(
            self, folder, rows, fields, encode, what="pairs", max_id=largest, max_len=max_len
        )
        return {"too_long": too_long, "languages": sorted(languages), "multi_sentence": sum(multi_sentence)}

    def train_examples(self) -> PairExamples:
        """Return the training pairs, with BPE dropout if the recipe enables it."""
        marks = {"pad_id": self.corpus.pad_id, "start_id": self.start_id}
        if not self.data.bpe_dropout:
            return PairExamples(self.corpus.train, **marks)
        tokenizer = self.corpus.tokenizer
        splits = {"source": token_splits(tokenizer)}
        splits["target"] = (
            token_splits(tokenizer, side="target") if tokenizer.sides_differ else splits["source"]
        )
        dropout = {
            side: BpeDropout(
                splits[side],
                self.data.bpe_dropout,
                max_length=self.max_len,
                seed=self.recipe.seed + seed,
            )
            for side, seed in SIDE_SEEDS.items()
        }
        return BpeDropoutPairs(self.corpus.train, source=dropout["source"], target=dropout["target"], **marks)

    def task(self) -> LearnerTask:
        corpus = self.corpus
        samples = [
            (" ".join([*map(TAG.format, language), source]), target)
            for source, target, *language in read_texts(corpus.valid.folder)
        ]
        valid = PairExamples(corpus.valid, pad_id=corpus.pad_id, start_id=self.start_id)
        info: dict[str, Any] = {"unit": self.unit, "usual_len": typical_length(corpus.train)}
        if self.language_column is not None:
            languages = sorted({*self.languages, *(self.base_info.languages or ())})
            info |= {"languages": languages, "to": self.language_column}
        return self.seq2seq_task(valid, samples, "bleu", info)


def encode_pairs(tokenizer: Tokenizer, rows: Sequence[Row]) -> tuple[Ragged, Ragged]:
    """Return the token ids of the sources and of the targets.

    If rows have a third field, it is the target language, whose tag is inserted before the source.
    """
    sources, targets = [row[0] for row in rows], [row[1] for row in rows]
    if tokenizer.sides_differ:
        ids = [*tokenizer.encode_ids(sources), *tokenizer.encode_ids(targets, side="target")]
    else:  # a text that occurs as source and target is encoded once
        ids = tokenizer.encode_ids(sources + targets)
    encoded = Ragged.of(ids[: len(rows)])
    if len(rows[0]) > 2:
        languages = {row[2] for row in rows}
        tags = dict(zip(languages, tag_ids(tokenizer, map(TAG.format, languages)), strict=True))
        encoded = encoded.insert(np.array([tags[row[2]] for row in rows]), tag_position(tokenizer))
    return encoded, Ragged.of(ids[len(rows) :])


def typical_length(store: Store) -> int:
    """Return the length in tokens that 99.5 % of the sources do not exceed."""
    rows = np.linspace(0, len(store) - 1, min(len(store), TYPICAL_ROWS)).astype(np.int64)
    return int(np.quantile(store.lengths(rows)[:, 0], TYPICAL_QUANTILE, method="higher"))


# ---- summarization -----------------------------------------------------------------------------------------


class SummarizeJob(Seq2SeqJob[SummaryData]):
    """Train a model to summarize texts; evaluated with ROUGE."""

    default_max_len = 512

    @cached_property
    def prefix(self) -> str:
        """The text before every source: that of the recipe, else of the base model."""
        if self.data.prefix is not None or self.base is None:
            return self.data.prefix or ""
        if self.base_info.prefix is not None:
            return self.base_info.prefix
        return task_prefix(self.base, lambda name: name.startswith("summarization"))

    def adopt_base_settings(self) -> None:
        if self.base is not None:
            limit = max_input_length(self.base.spec)
            self.update_data(max_len=min(limit, self.base_info.max_len or limit))

    def prepare_data(self) -> None:
        def read(files: Sequence[str]) -> Source:
            source = pairs(files, columns=self.data.columns, encoding=self.data.encoding)
            if files == self.data.train and self.data.columns is None and isinstance(source, TableSource):
                self.log(source.column_summary)
            return source

        self.fill_max_len()
        self.corpus = corpus = prepare_corpus(
            self,
            read,
            self._write,
            cache_key=(*self.cache_key, self.data.max_summary_len, self.prefix),
            template="eos",
        )
        log_counts(self, corpus, "pairs")
        if truncated := corpus.total("truncated"):
            self.facts["truncated texts"] = truncated
            self.log(f"{truncated:,} texts are longer than {self.max_len} tokens and are truncated")

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        truncated: list[int] = []  # number of truncated texts in each group of rows

        def encode(rows: list[Row]) -> tuple[Ragged, Ragged]:
            prefixed = [(self.prefix + text, summary) for text, summary in rows]
            sources, targets = encode_pairs(tokenizer, prefixed)
            truncated.append(int((sources.lengths > self.max_len).sum()))
            return sources.truncate(self.max_len), targets.truncate(self.data.max_summary_len)

        rows, fields = source.rows(problems), ("source", "target")
        encode_rows(self, folder, rows, fields, encode, what="pairs", max_id=max_id(tokenizer))
        return {"truncated": sum(truncated)}

    def train_examples(self) -> PairExamples:
        return PairExamples(self.corpus.train, pad_id=self.corpus.pad_id, start_id=self.start_id)

    def max_new_tokens(self, length: int) -> int:
        return self.data.max_summary_len

    def score(
        self, outputs: list[str], expected: list[str], case: Case
    ) -> tuple[dict[str, float], dict[str, str]]:
        return rouge(outputs, expected), {}

    def task(self) -> LearnerTask:
        samples = [(text, summary) for text, summary in read_texts(self.corpus.valid.folder)]
        valid = PairExamples(self.corpus.valid, pad_id=self.corpus.pad_id, start_id=self.start_id)
        info = {"max_len": self.max_len, "prefix": self.prefix or None}
        return self.seq2seq_task(valid, samples, "rougeL", info)


# ---- restoring ---------------------------------------------------------------------------------------------


class RestoreJob(Seq2SeqJob[SentenceData]):
    """Train a model to restore corrupted sentences; evaluated with chrF and exact match."""

    default_max_len = 64

    def prepare_data(self) -> None:
        self.fill_max_len()

        def read(files: Sequence[str]) -> Source:
            data = self.data
            return texts(files, sample_by="line", column=data.text_column, encoding=data.encoding)

        self.corpus = prepare_corpus(
            self, read, self._write, cache_key=self.cache_key, template="eos", tags=lambda _: (GAP,)
        )
        log_counts(self, self.corpus, "sentences", self.corpus.total("too_long"))

    def _write(
        self, tokenizer: Tokenizer, folder: Path, source: Source, problems: RowErrors
    ) -> dict[str, Any]:
        def encode(rows: list[Row]) -> tuple[Ragged]:
            return (Ragged.of(tokenizer.encode_ids([PREFIX + normalize_spaces(text) for (text,) in rows])),)

        rows, largest, max_len = source.rows(problems), max_id(tokenizer), self.max_len
        too_long = encode_rows(
            self, folder, rows, ("text",), encode, what="sentences", max_id=largest, max_len=max_len
        )
        return {"too_long": too_long}

    def train_examples(self) -> DenoisingExamples:
        return self._examples(self.corpus.train)

    def _examples(self, store: Store) -> DenoisingExamples:
        return DenoisingExamples(
            store,
            corruption=self._corruption,
            seed=self.recipe.seed,
            pad_id=self.corpus.pad_id,
            start_id=self.start_id,
        )

    @cached_property
    def _corruption(self) -> Corruption:
        data = self.data
        return Corruption(
            trim=data.trim_prob,
            gap=data.gap_prob,
            shuffle=data.shuffle_prob,
            gap_id=self.gap_id,
            starts_word=word_starts(self.corpus.tokenizer),
        )

    @property
    def gap_id(self) -> int:
        """The token for missing words: the gap token, or the mask token of an existing tokenizer."""
        own = self.corpus.tokenizer.token_id(GAP)
        gap_id = self.corpus.tokenizer.mask_id if own is None else own
        if gap_id is None:
            raise UnsupportedError("the tokenizer", f"gaps, since it has neither '{GAP}' nor a mask token")
        return gap_id

    def task(self) -> LearnerTask:
        tokenizer, valid = self.corpus.tokenizer, self._examples(self.corpus.valid)
        gap = tokenizer.tokens([self.gap_id])[0]
        targets = [normalize_spaces(text) for (text,) in read_texts(self.corpus.valid.folder)]
        sources = [valid.row(n, 0)[0] for n in range(len(targets))]  # epoch 0: the same corruption every time
        inputs = [tokenizer.decode(ids[:-1], skip_special=False) for ids in sources]
        scores, _ = score_texts([normalize_spaces(tokenizer.decode(ids)) for ids in sources], targets)
        self.facts["corrupted sentences unchanged"] = scores
        listed = ", ".join(f"{name} {score:.4g}" for name, score in scores.items())
        self.log(f"baseline: the corrupted validation sentences, unchanged, score {listed}")
        spaced = [normalize_spaces(text.replace(gap, f" {gap} ")) for text in inputs]
        info = {"before": PREFIX, "gap": gap}
        return self.seq2seq_task(valid, list(zip(spaced, targets, strict=True)), "chrf", info)


def normalize_spaces(text: str) -> str:
    return " ".join(text.split())


def word_starts(tokenizer: Tokenizer) -> NDArray[np.bool_]:
    """Return whether each token starts a word, (V,): with a space, or in a script without spaces."""
    starts = np.zeros(tokenizer.vocab_size, bool)
    for index in range(len(starts)):
        if index not in tokenizer.special_ids:
            (piece,) = tokenizer.pieces([index])
            name = unicodedata.name(piece[:1] or " ", "")
            starts[index] = piece.startswith(" ") or name.startswith(SPACELESS)
    unknown = tokenizer.unk_id
    if unknown is not None:  # an unknown word is one token, which includes its space
        starts[unknown] = tokenizer.encode(" \ue000\ue000", special=False).ids == [unknown]
    return starts
