"""From a source to a target: translate, summarize, restore."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Unpack, get_args

from glassformer.bundle import Bundle
from glassformer.errors import InvalidValueError, UnsupportedError
from glassformer.generation.config import GenerationConfig, GenerationOptions, merge_generation_config
from glassformer.generation.stopping import truncate_at_stop
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, check_text
from glassformer.tasks.languages import NO_LANGUAGE, TargetLanguage, target_language, task_prefix
from glassformer.tasks.segmentation import Document, Encode, Segment, Segmenter, Split, reassemble
from glassformer.tasks.text_generation import (
    TextGenerationTask,
    WrongJobError,
    generation_architecture,
    published_generation_config,
)
from glassformer.tokenization import Tokenizer, encode_tagged

NUM_BEAMS = 4  # of translate and summarize, if neither the folder nor the caller says
LONGEST_TAG = 32  # characters of a language tag such as >>cmn_Hans<<


class SequenceToSequenceTask(TextGenerationTask):
    """A source, read in segments, into a target of as many lines."""

    name: str  # in error messages
    segmenter: Segmenter

    def preprocess(self, texts: Iterable[str], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Document]:
        return self.segmenter.segment(texts, callbacks)

    def decode(self, segment: Segment, ids: list[int]) -> str:
        """One line, before the first stop string."""
        text = truncate_at_stop(self.tokenizer.decode(ids), self.request.config.stop_strings)
        return " ".join(text.splitlines()).strip()

    def assemble(self, document: Document, outputs: Sequence[str]) -> str:
        return reassemble(document, outputs)

    def default_limit(self, input_length: int) -> int:
        return 2 * input_length + 20


class Translator(SequenceToSequenceTask):
    """Translate texts of one line or many; lines stay lines, and empty ones stay empty.

    to: the target language, for a model that writes several, as its tokenizer spells it: "fra" for the tag
    >>fra<<, "fr_XX", or "de" if the folder names a task from one language into another.
    prefix: put before every segment, e.g. "translate English to German: ".
    split: translate lines of more than 128 tokens (or than the model was trained on) sentence by sentence
    ("long"), all lines ("always") or none ("never"): then a line that is too long for the model is rejected.
    Default: "always" if the model was trained on single sentences, else "long".

    Symbols such as emoji that are not in the vocabulary are copied next to the translation of their sentence.
    A line in capitals is read in lower case if the vocabulary fits that better, and answered in capitals.
    """

    name = "translate"

    def __init__(
        self,
        bundle: Bundle,
        *,
        to: str | None = None,
        prefix: str | None = None,
        split: Split | None = None,
        return_tree: bool = False,
        batch_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None:
        check_source_task(bundle, self.name, jobs=("translate",))
        if split is not None and split not in get_args(Split):
            raise InvalidValueError("split", split, "long, always or never")
        language = target_language(bundle, to)
        config = search_config(bundle, options, language)
        super().__init__(bundle, config, return_tree=return_tree, batch_tokens=batch_tokens)
        prefix_of = tag_reader(self.tokenizer) if language == NO_LANGUAGE and not prefix else None
        self.segmenter = Segmenter(
            encode=source_encoder(
                self.tokenizer, prefix=language.prefix if prefix is None else prefix, tag=language.tag
            ),
            max_tokens=self.max_input_tokens,
            trained_tokens=bundle.job.usual_len,
            split=split or ("always" if bundle.job.unit == "sentence" else "long"),
            prefix_of=prefix_of or (lambda _: ""),
            knows=symbol_lookup(self.tokenizer),
            lowercase=True,
        )


class Summarizer(SequenceToSequenceTask):
    """Summarize texts, each read as a whole; one that is too long for the model is rejected.

    prefix: put before every text; by default what the folder says, e.g. "summarize: ".
    """

    name = "summarize"

    def __init__(
        self,
        bundle: Bundle,
        *,
        prefix: str | None = None,
        return_tree: bool = False,
        batch_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None:
        # pairs of a text and its summary are trained with the job translate, but without languages
        check_source_task(bundle, self.name, jobs=() if bundle.job.languages else ("translate",))
        super().__init__(
            bundle, search_config(bundle, options), return_tree=return_tree, batch_tokens=batch_tokens
        )
        if prefix is None:
            prefix = task_prefix(bundle, lambda name: name.startswith("summarization"))
        self.segmenter = Segmenter(
            encode=source_encoder(self.tokenizer, prefix=prefix),
            max_tokens=self.max_input_tokens,
            split="never",
            unit="document",
        )


class Restorer(SequenceToSequenceTask):
    """Restore sentences that were truncated, shuffled or have gaps, marked by the model's gap token."""

    name = "restore"

    def __init__(
        self,
        bundle: Bundle,
        *,
        return_tree: bool = False,
        batch_tokens: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> None:
        check_source_task(bundle, self.name, jobs=("restore",))
        if bundle.job.name != "restore":
            raise UnsupportedError(bundle.display_name, "restore", hint="train one with the job restore")
        super().__init__(
            bundle, search_config(bundle, options), return_tree=return_tree, batch_tokens=batch_tokens
        )
        self.segmenter = Segmenter(
            encode=gap_encoder(self.tokenizer, bundle.job.gap, bundle.job.before),
            max_tokens=self.max_input_tokens,
        )


def source_task(
    bundle: Bundle, to: str | None = None, **options: Unpack[GenerationOptions]
) -> TextGenerationTask:
    """The task that an encoder-decoder was made for: restore, summarize or translate."""
    if bundle.job.name == "restore":
        return Restorer(bundle, **options)
    params = bundle.config.get("task_specific_params")
    names = params if isinstance(params, Mapping) else ()
    if bundle.job.name is None and to is None and any(name.startswith("summarization") for name in names):
        return Summarizer(bundle, **options)
    return Translator(bundle, to=to, **options)


def check_source_task(bundle: Bundle, task: str, *, jobs: tuple[str, ...]) -> None:
    """Raise unless the model reads a source and was trained for one of the jobs, or its job is unknown."""
    if bundle.job.name is not None and bundle.job.name not in jobs:
        raise WrongJobError(bundle.display_name, bundle.job.name, task)
    if generation_architecture(bundle) != "encoder-decoder":
        raise UnsupportedError(bundle.display_name, task, hint="it continues a prompt: use generate")


def search_config(
    bundle: Bundle, options: GenerationOptions, language: TargetLanguage = NO_LANGUAGE
) -> GenerationConfig:
    """The folder's settings with the caller's; beam search by default, except to restore."""
    published = published_generation_config(bundle)
    given = {**published, **{name: value for name, value in options.items() if value is not None}}
    values = {**options, **language.options}
    if not (bundle.job.name == "restore" or "num_beams" in given or given.get("do_sample")):
        values["num_beams"] = NUM_BEAMS
    return merge_generation_config(published, values)


def source_encoder(tokenizer: Tokenizer, *, prefix: str = "", tag: str | None = None) -> Encode:
    """Encode texts after a prefix or a language tag."""
    check_text(prefix, "prefix")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        sources = [prefix + text for text in texts]
        encoded = tokenizer.encode_batch(sources) if tag is None else encode_tagged(tokenizer, sources, tag)
        return [one.ids for one in encoded]

    return encode


def tag_reader(tokenizer: Tokenizer) -> Callable[[str], str]:
    """A line to the language tag it begins with, which each of its sentences needs."""

    def read(line: str) -> str:
        if not line.startswith(">>"):
            return ""
        tag, end, _ = line[:LONGEST_TAG].partition("<<")
        index = tokenizer.token_id(tag + end)
        if not end or index is None or tokenizer.encode(tag + end, special=False).ids != [index]:
            return ""
        rest = line[len(tag + end) :]
        return line[: len(line) - len(rest.lstrip())]

    return read


def symbol_lookup(tokenizer: Tokenizer) -> Callable[[str], bool]:
    """Whether the vocabulary has a symbol."""
    known: dict[str, bool] = {}

    def knows(symbol: str) -> bool:
        if symbol not in known:
            ids = tokenizer.encode(symbol, special=False).ids
            known[symbol] = tokenizer.fallback_ids.isdisjoint(ids)
        return known[symbol]

    return knows


def gap_encoder(tokenizer: Tokenizer, gap: str | None, before: str | None) -> Encode:
    """Encode texts with gaps: one token per gap, and the text between as it was in training.

    before: what precedes each text part, as job.json says.
    """
    index = tokenizer.token_id(gap) if gap else None
    if gap is None or index is None or before is None:
        raise InvalidValueError("job.json: gap", gap, "a token of the tokenizer")
    empty = tokenizer.encode("a")
    first = next(n for n, sequence in enumerate(empty.sequences) if sequence is not None)
    last = len(empty.sequences) - next(
        n for n, sequence in enumerate(reversed(empty.sequences)) if sequence is not None
    )

    def encode(texts: Sequence[str]) -> list[list[int]]:
        found = []
        for text in texts:
            ids = list(empty.ids[:first])
            for n, part in enumerate(text.split(gap)):
                ids += [index] if n else []
                if words := " ".join(part.split()):
                    ids += tokenizer.encode(before + words, special=False).ids
            found.append([*ids, *empty.ids[last:]])
        return found

    return encode
