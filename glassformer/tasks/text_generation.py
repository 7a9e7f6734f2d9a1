"""Base class of all tasks whose output is text, and the task that continues a prompt."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count, repeat
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Unpack, runtime_checkable

import torch

from glassformer.bundle import Bundle
from glassformer.errors import (
    EmptyInputError,
    GlassformerError,
    InputTooLongError,
    InvalidValueError,
    MissingValueError,
    UnknownNameError,
    UnsupportedError,
    attempt,
    is_out_of_memory,
)
from glassformer.generation.config import GenerationOptions, merge_generation_config
from glassformer.generation.engine import generate_batched
from glassformer.generation.params import GenerationOutput, GenerationParams
from glassformer.generation.prompt import EmbeddingSpan, Prompt
from glassformer.generation.search_tree import SearchTree
from glassformer.generation.stopping_criteria import FinishReason, truncate_at_stop
from glassformer.json_text import as_list
from glassformer.messages import plural
from glassformer.processors.base import ASK
from glassformer.processors.text import check_characters, check_text, require_tokenizer
from glassformer.tasks.base import NO_CALLBACKS, Callbacks, In, Task, check_at_least
from glassformer.tokenization import (
    Encoded,
    Tokenizer,
    code_languages,
    encode_tagged,
    tag_languages,
)
from glassformer.tokenization.sentence_split import is_unspaced

BATCH_TOKENS_GPU, BATCH_TOKENS_CPU = 16_384, 4096  # a CPU gains nothing from larger batches
CONTEXT_TOKENS = 8  # of the prompt, decoded with the output: the first token of a text loses its space

Architecture = Literal["encoder-decoder", "decoder-only"]
# longer_than_trained: a segment has more tokens than the model was usually trained on.
# split_word: a word was too long and had to be cut. unknown_characters: some are not in the vocabulary.
InputWarning = Literal["longer_than_trained", "split_word", "unknown_characters"]


@dataclass(frozen=True)
class Segment:
    """A part of a document that is one input of the model.

    ids: the encoded text. split_word: whether it was split within a word.
    uppercase: whether the text was lowercased for the model, so that the output has to be uppercased.
    spans: embeddings in place of some tokens, e.g. those of images.
    """

    ids: list[int]
    text: str = ""
    split_word: bool = False
    uppercase: bool = False
    spans: tuple[EmbeddingSpan, ...] = ()

    @property
    def source(self) -> list[int] | Prompt:
        """What generation starts from."""
        return Prompt(torch.tensor(self.ids), self.spans) if self.spans else self.ids


Document = list[str | Segment]  # text that is copied, and segments that are replaced by the model's output


def segments_of(document: Document) -> list[Segment]:
    """Return the segments of a document, in order."""
    return [part for part in document if isinstance(part, Segment)]


def assemble(document: Document, outputs: Iterable[str]) -> str:
    """Join a document, with the model's outputs in place of its segments.

    >>> assemble([Segment([1]), " ", Segment([2]), "\\n"], ["One.", "Two."])
    'One. Two.\\n'
    """
    remaining, text, after_segment = iter(outputs), "", False
    for part in document:
        is_segment = isinstance(part, Segment)
        piece = next(remaining) if isinstance(part, Segment) else part
        if isinstance(part, Segment) and part.uppercase:
            piece = piece.upper()
        if not piece:
            continue
        # two sentences without a space in between, e.g. in Chinese, may need one in the target language
        if after_segment and is_segment and not is_unspaced(text[-1]):
            text += " "
        text += piece
        after_segment = is_segment
    return text


@dataclass(eq=False)
class OutOfMemoryError(GlassformerError):
    """A batch does not fit into memory."""

    hint: str = "lower batch_tokens, num_beams or max_new_tokens"
    template: ClassVar[str] = "a batch does not fit into memory"


@dataclass(frozen=True, kw_only=True)
class GeneratedText:
    """The output for one text.

    score: the sum of its segments' scores (see `GenerationOutput`). num_tokens: number of generated tokens.
    seconds: from reading the text to its result, including the wait for its batch.
    finish_reason: "length" if any segment reached the token limit.
    alternatives: the next best outputs, if num_return_sequences is above 1.
    trees: the beam search tree of each segment.
    """

    text: str
    score: float
    num_tokens: int
    seconds: float
    finish_reason: FinishReason
    warnings: tuple[InputWarning, ...] = ()
    alternatives: tuple[GeneratedText, ...] = ()
    trees: tuple[SearchTree, ...] = ()


@runtime_checkable
class GeneratesFromSources(Protocol):
    """A task whose inputs are generated from in one batch with those of all other requests of a server.

    preprocess: converts inputs to items. sources: of each item: token ids, or prompts with an image.
    result: built from an item and, for each of its sources, the outputs.
    """

    params: GenerationParams

    def preprocess(self, inputs: Iterable[Any], callbacks: Callbacks = ...) -> Iterator[Any]: ...

    def sources(self, items: Sequence[Any]) -> Sequence[Sequence[list[int] | Prompt]]: ...

    def result(self, item: Any, outputs: Sequence[Sequence[GenerationOutput]]) -> GeneratedText: ...


class TextOptions(GenerationOptions, total=False):
    """Options of all tasks whose output is text.

    Generation options have transformers' names; their defaults come from generation_config.json in the
    folder.
    batch_tokens: input and output tokens per batch, including padding and beams.
    return_tree: return the search tree of each segment.
    json_schema: JSON schema that every output follows, unless it reaches the token limit.
    """

    batch_tokens: int | None
    return_tree: bool
    json_schema: Mapping[str, Any] | None


class TextGenerationTask(Task[In, GeneratedText]):
    """Base class of all tasks whose output is text.

    load: split texts into documents of encoded segments.
    params: generation parameters, passed to `generation` with the ids of a segment.
    decode: convert the output ids of a segment to text. postprocess: build the result of a document.
    """

    read_ahead = 256
    default_beams = 1  # if neither the folder nor the caller sets it

    def __init__(self, bundle: Bundle, options: TextOptions, language: TargetLanguage | None = None) -> None:
        self.batch_tokens = options.get("batch_tokens")
        check_at_least("batch_tokens", self.batch_tokens)
        self.params = generation_params(
            bundle,
            {**options, **(language.options if language else {})},  # type: ignore[typeddict-item]
            beams=self.default_beams,
            limit=self.default_limit,
            special=self.special_tokens(bundle),
        )
        self.bundle, self.tokenizer = bundle, require_tokenizer(bundle)
        self.architecture = generation_architecture(bundle)
        self.max_input_tokens = max_source_tokens(bundle)
        # language models were trained on any text, and encode unknown characters as bytes
        encoder_decoder = self.architecture == "encoder-decoder"
        self._unknown_ids = self.tokenizer.fallback_ids if encoder_decoder else self.tokenizer.unknown_ids

    def special_tokens(self, bundle: Bundle) -> SpecialTokens:
        """Return the special tokens of a generation."""
        return special_tokens(bundle)

    def preprocess(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[Document]:
        """Yield a document for each input; it is empty if the input is rejected or skipped."""
        for chunk in self.read(inputs, callbacks):
            yield from (document or [] for _, document in chunk)

    def sources(self, items: Sequence[Document]) -> Sequence[Sequence[list[int] | Prompt]]:
        return [[segment.source for segment in segments_of(item)] for item in items]

    def result(self, item: Document, outputs: Sequence[Sequence[GenerationOutput]]) -> GeneratedText:
        return self.postprocess(item, outputs)

    @abstractmethod
    def decode(self, segment: Segment, ids: list[int]) -> str:
        """Convert the output ids of one segment to text."""

    @abstractmethod
    def default_limit(self, input_length: int) -> int:
        """Return the maximum number of new tokens for this input length, if the config sets no limit."""

    def warnings(self, document: Document) -> tuple[InputWarning, ...]:
        """Return warnings about input that the model was not trained on."""
        segments, trained = segments_of(document), self.bundle.job.usual_len
        warnings: list[InputWarning] = []
        if trained is not None and any(len(segment.ids) > trained for segment in segments):
            warnings.append("longer_than_trained")
        if any(segment.split_word for segment in segments):
            warnings.append("split_word")
        if not all(self._unknown_ids.isdisjoint(segment.ids) for segment in segments):
            warnings.append("unknown_characters")
        return tuple(warnings)

    def postprocess(
        self, document: Document, outputs: Sequence[Sequence[GenerationOutput]], seconds: float = 0.0
    ) -> GeneratedText:
        """Build the result of a document. outputs: for each segment, its outputs, best first."""
        count = len(outputs[0]) if outputs else 1
        ranked = [
            self._ranked(document, [candidates[rank] for candidates in outputs], seconds)
            for rank in range(count)
        ]
        return replace(ranked[0], alternatives=tuple(ranked[1:]))

    def _ranked(self, document: Document, outputs: list[GenerationOutput], seconds: float) -> GeneratedText:
        reasons = {output.finish_reason for output in outputs}
        pairs = zip(segments_of(document), outputs, strict=True)
        return GeneratedText(
            text=assemble(document, [self.decode(segment, output.ids) for segment, output in pairs]),
            score=sum((output.score for output in outputs), 0.0),
            num_tokens=sum(len(output.ids) for output in outputs),
            seconds=seconds,
            finish_reason="length" if "length" in reasons else "stop" if "stop" in reasons else "end",
            warnings=self.warnings(document),
            trees=tuple(output.tree for output in outputs if output.tree is not None),
        )

    def run(self, inputs: Iterable[In], callbacks: Callbacks = NO_CALLBACKS) -> Iterator[GeneratedText]:
        pending: deque[_PendingDocument] = (
            deque()
        )  # documents in order; `generate_batched` bounds their number
        by_segment: dict[int, _PendingDocument] = {}

        def segments() -> Iterator[list[int] | Prompt]:
            numbers = count()
            for document in self.preprocess(inputs, callbacks):
                own = segments_of(document)
                if not own:
                    callbacks.on_done(1)
                    if pending and pending[-1].document == document:
                        pending[-1].repeats += 1  # a run of empty lines takes one entry
                        continue
                pending.append(_PendingDocument(document, len(own), len(own)))
                for segment in own:
                    by_segment[next(numbers)] = pending[-1]
                    yield segment.source

        def on_batch(numbers: Sequence[int]) -> None:
            for number in numbers:
                entry = by_segment.pop(number)
                entry.not_generated -= 1
                callbacks.on_done(int(entry.not_generated == 0))

        def finished() -> Iterator[GeneratedText]:
            while pending and pending[0].missing == 0:
                entry = pending.popleft()
                result = self.postprocess(entry.document, entry.outputs, time.perf_counter() - entry.since)
                yield from repeat(result, entry.repeats)

        default = BATCH_TOKENS_CPU if self.bundle.device.type == "cpu" else BATCH_TOKENS_GPU
        batch_tokens, model = self.batch_tokens or default, self.bundle.inference_model()
        with memory_errors():
            for output in generate_batched(
                model, segments(), self.params, batch_tokens=batch_tokens, on_batch=on_batch
            ):
                yield from finished()  # documents without segments, such as empty lines
                pending[0].outputs.append(output)
                pending[0].missing -= 1
                yield from finished()
        yield from finished()


def generation_params(
    bundle: Bundle,
    options: TextOptions,
    *,
    beams: int,
    limit: Callable[[int], int],
    special: SpecialTokens,
) -> GenerationParams:
    """Return the parameters of a generation: the options, then those of the folder, then these defaults.

    limit: the maximum number of new tokens for an input length.
    """
    values = {name: value for name, value in options.items() if value is not None}
    values.pop("batch_tokens", None)
    return_tree = bool(values.pop("return_tree", False))
    json_schema: Any = values.pop("json_schema", None)
    published = published_generation_config(bundle)
    merged = {**published, **values}
    if beams > 1 and "num_beams" not in merged and not merged.get("do_sample"):
        values["num_beams"] = beams
    config = merge_generation_config(published, values)
    tokenizer, constraint = require_tokenizer(bundle), None
    if json_schema is not None:
        from glassformer.tasks.structured_output import JSONConstraint

        constraint = JSONConstraint(tokenizer, json_schema, special.eos_token_id)
    return GenerationParams(
        config=config,
        **special._asdict(),
        max_new_tokens=limit if config.max_new_tokens is None and config.max_length is None else None,
        decode=tokenizer.decode,
        return_tree=return_tree,
        constraint=constraint,
    )


@dataclass
class _PendingDocument:
    """A document whose segments are being generated; missing: number of outputs not yet received."""

    document: Document
    missing: int
    not_generated: int
    since: float = field(default_factory=time.perf_counter)
    outputs: list[list[GenerationOutput]] = field(default_factory=list)
    repeats: int = 1


@contextmanager
def memory_errors() -> Iterator[None]:
    """Convert torch's out-of-memory errors to `OutOfMemoryError`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise OutOfMemoryError from None


def generation_architecture(bundle: Bundle) -> Architecture:
    """Return the architecture of a model that generates text from text; raise for any other model."""
    if bundle.spec.yields == "next tokens" and "text" not in bundle.spec.modalities:
        raise UnsupportedError(bundle.display_name, "text input", hint="it describes images: use caption")
    architecture = decoding_architecture(bundle)
    if bundle.spec.modalities != ("text",) and architecture == "encoder-decoder":
        raise UnsupportedError(bundle.display_name, "text alone", hint=ASK)
    return architecture


def decoding_architecture(bundle: Bundle) -> Architecture:
    """Return the architecture of a model that generates text, from whatever input."""
    kind = bundle.spec.kind
    if bundle.spec.yields == "next tokens":
        if kind in ("EncoderDecoder", "LSTMEncoderDecoder"):
            return "encoder-decoder"
        if kind in ("DecoderOnly", "LSTMLanguageModel"):
            return "decoder-only"
    raise UnsupportedError(
        bundle.display_name, "text generation", hint="use an encoder-decoder or a language model"
    )


class SpecialTokens(NamedTuple):
    """Special token ids. start_ids: of every target; None: from the spec. eos_token_id: ends a sequence."""

    start_ids: tuple[int, ...] | None
    eos_token_id: tuple[int, ...]
    pad_token_id: int


def special_tokens(bundle: Bundle) -> SpecialTokens:
    """Look up the special tokens in generation_config.json, else config.json, tokenizer and spec."""
    tokenizer, vocab_size = require_tokenizer(bundle), _vocab_size(bundle.spec)
    eos = _config_ids(bundle, "eos_token_id") or (() if tokenizer.eos_id is None else (tokenizer.eos_id,))
    starts = decoding_architecture(bundle) == "encoder-decoder"
    start = _config_ids(bundle, "decoder_start_token_id") if starts else ()
    for name, ids, needed in (("eos_token_id", eos, 1), ("decoder_start_token_id", start, len(start))):
        if ids and sum(token < vocab_size for token in ids) < needed:
            raise InvalidValueError(name, max(ids), f"a token id below {vocab_size}")
    pad = tuple(
        token for token in _config_ids(bundle, "pad_token_id") if token >= 0
    )  # some configs use -1 for none
    known = (*pad, *(() if tokenizer.pad_id is None else (tokenizer.pad_id,)), *eos, 0)
    pad_id = next(
        token for token in known if token < vocab_size
    )  # some configs name an id outside the vocabulary
    return SpecialTokens(start or None, eos, pad_id)


def max_source_tokens(bundle: Bundle) -> int | None:
    """Return the maximum length of a source or prompt in tokens; None: no limit."""
    spec: Any = bundle.spec
    position = getattr(getattr(spec, "source", getattr(spec, "input", None)), "position", None)
    length: int | None = getattr(position, "max_len", None) or getattr(spec, "max_len", None)
    return length or require_tokenizer(bundle).max_length


def context_length(bundle: Bundle) -> int | None:
    """Return the maximum length of a prompt with its continuation, or of a target; None: no limit."""
    if decoding_architecture(bundle) == "decoder-only":
        return max_source_tokens(bundle)
    position = getattr(getattr(bundle.spec, "target", None), "position", None)
    length: int | None = getattr(position, "max_len", None)
    return length


def _config_ids(bundle: Bundle, name: str) -> tuple[int, ...]:
    value = bundle.generation.get(name)
    value = bundle.config.get(name) if value is None else value
    ids = tuple(as_list(value))
    for token in ids:
        if token < 0 and name != "pad_token_id":
            raise InvalidValueError(name, token, "a token id")
    return ids


def _vocab_size(spec: Any) -> int:
    sides = [getattr(spec, name, None) for name in ("source", "target", "input", "head")]
    sizes = [getattr(side, "vocab_size", None) for side in sides]
    sizes += [getattr(spec, name, None) for name in ("src_vocab_size", "tgt_vocab_size", "vocab_size")]
    return min(int(size) for size in sizes if size is not None)


# generation settings that older folders have in config.json
_IN_CONFIG = (
    *("max_length", "min_length", "num_beams", "length_penalty", "early_stopping", "no_repeat_ngram_size"),
    *("repetition_penalty", "forced_bos_token_id", "forced_eos_token_id", "bad_words_ids", "eos_token_id"),
)


def published_generation_config(bundle: Bundle) -> Mapping[str, Any]:
    """Return the generation settings in the model folder."""
    if bundle.generation:
        return bundle.generation
    return {name: bundle.config[name] for name in _IN_CONFIG if bundle.config.get(name) is not None}


@dataclass(frozen=True, kw_only=True)
class TargetLanguage:
    """How to select the target language: a tag before the source, a prefix, or generation options."""

    tag: str | None = None
    prefix: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


NO_LANGUAGE = TargetLanguage()


def target_languages(bundle: Bundle) -> list[str]:
    """Return the codes of the target languages of a model, as the model spells them."""
    if bundle.job.languages:  # the tokenizer may have tags for more than it was trained on
        return list(bundle.job.languages)
    if bundle.tokenizer is None:
        return []
    languages = [*tag_languages(bundle.tokenizer), *code_languages(bundle.tokenizer)]
    for name in _task_params(bundle):
        if name.startswith("translation_") and "_to_" in name:
            languages.append(name.rpartition("_to_")[2])
    return list(dict.fromkeys(languages))


def target_language(bundle: Bundle, to: str | None) -> TargetLanguage:
    """Return how to select the language `to` with this model; case is ignored."""
    known = bundle.job.languages or ()
    if to is None:
        if known:
            hint = f"choose from {', '.join(known)}"
            raise MissingValueError(
                "to", f"because {bundle.display_name} writes several languages", hint=hint
            )
        return NO_LANGUAGE
    languages = target_languages(bundle)
    if not languages:
        hint = "leave out the target language"
        raise UnsupportedError(bundle.display_name, "several target languages", hint=hint)
    for spelling in (to, spell_language(languages, to)):
        if spelling is not None and (selection := _by_spelling(bundle, spelling)) is not None:
            return selection
    raise UnknownNameError("language", to, languages)


def _by_spelling(bundle: Bundle, to: str) -> TargetLanguage | None:
    tokenizer = require_tokenizer(bundle)
    if tokenizer.token_id(f">>{to}<<") is not None:
        return TargetLanguage(tag=f">>{to}<<")
    index = tokenizer.token_id(to)
    if index is not None and index in tokenizer.special_ids:
        return TargetLanguage(options={"forced_bos_token_id": index})
    prefix = task_prefix(bundle, lambda name: name.startswith("translation_") and name.endswith(f"_to_{to}"))
    return TargetLanguage(prefix=prefix) if prefix else None


def task_prefix(bundle: Bundle, matches: Callable[[str], bool]) -> str:
    """Return the prefix of the first task in `task_specific_params` whose name matches."""
    for name, params in _task_params(bundle).items():
        if matches(name) and isinstance(params, Mapping) and isinstance(params.get("prefix"), str):
            return str(params["prefix"])
    return ""


def _task_params(bundle: Bundle) -> Mapping[str, Any]:
    params = bundle.config.get("task_specific_params")
    return params if isinstance(params, Mapping) else {}


def spell_language(languages: Sequence[str], to: str) -> str | None:
    """Return the model's spelling of a language code, ignoring case; None if there is none.

    >>> spell_language(["de", "ko-label", "fr_XX"], "KO-Label"), spell_language(["de"], "da")
    ('ko-label', None)
    """
    matches = [language for language in languages if language.casefold() == to.casefold()]
    return to if to in matches else next(iter(matches), None)


def check_single_language(bundle: Bundle) -> None:
    """Raise if a model writes several languages, and so needs to be told which."""
    generation_architecture(bundle)  # raises for a model that does not read text
    if bundle.job.languages:
        hint = "it writes several languages: use translate"
        raise UnsupportedError(bundle.display_name, "generate", hint=hint)


class PromptTask(TextGenerationTask[In]):
    """Base class of tasks that continue a prompt.

    default_new_tokens: maximum number of new tokens, if neither the folder nor the caller sets a limit.
    """

    default_new_tokens: ClassVar[int] = 256

    def bos_ids(self) -> list[int]:
        """Return the ids that start a text: BOS, else EOS."""
        first = self.tokenizer.bos_id
        ids = list(self.params.eos_ids[:1]) if first is None else [first]
        if not ids:
            raise EmptyInputError("prompt", hint="the model has no BOS token to start from")
        return ids

    def decode(self, segment: Segment, ids: list[int]) -> str:
        prompt = segment.ids if self.architecture == "decoder-only" else []
        return truncate_at_stop(
            decode_continuation(self.tokenizer, prompt, ids), self.params.config.stop_strings
        )

    def default_limit(self, input_length: int) -> int:
        most = max_source_tokens(self.bundle)
        if most is None or self.architecture == "encoder-decoder":
            return self.default_new_tokens
        return max(1, min(self.default_new_tokens, most + 1 - input_length))  # the last token is not read

    def input_name(self, input: In) -> str:
        return "prompt"

    def document(
        self, ids: list[int], text: str, spans: Callable[[], tuple[EmbeddingSpan, ...]] = tuple
    ) -> Document:
        """Return the document of a prompt; raise if it is too long for the model.

        spans: returns the embeddings of images in the prompt.
        """
        limit = self.max_input_tokens
        if limit is not None and len(ids) > limit:
            raise InputTooLongError(len(ids), limit)
        return [Segment(ids or self.bos_ids(), text, spans=spans())]


class TextGenerator(PromptTask[str]):
    """Continue prompts. Results do not include the prompt; an empty prompt is replaced by the BOS token.

    parse_special: encode special tokens such as <|im_start|> in a prompt as tokens, as a chat template needs;
    by default they are plain text.
    to: the target language, for a model that translates into several.
    """

    def __init__(
        self,
        bundle: Bundle,
        *,
        parse_special: bool = False,
        to: str | None = None,
        **options: Unpack[TextOptions],
    ) -> None:
        translates = generation_architecture(bundle) == "encoder-decoder"
        if to is not None and not translates:
            raise UnsupportedError(bundle.display_name, "a target language")
        self.language, self.parse_special = NO_LANGUAGE, parse_special
        if translates and (not parse_special or to is not None):
            self.language = target_language(bundle, to)
        super().__init__(bundle, options, self.language)

    def load(self, inputs: Iterable[str]) -> list[Document | GlassformerError]:
        checked = [attempt(self._check, prompt) for prompt in inputs]
        texts = [self.language.prefix + text for text in checked if isinstance(text, str)]
        encoded = iter(self._encode(texts))
        return [
            attempt(self._document, next(encoded), text) if isinstance(text, str) else text
            for text in checked
        ]

    def _check(self, prompt: str) -> str:
        check_characters(check_text(prompt, "prompt"), self.max_input_tokens)
        return prompt

    def _document(self, encoded: Encoded, prompt: str) -> Document:
        encoder_decoder = self.architecture == "encoder-decoder"
        return self.document(encoded.ids if encoder_decoder else without_end(encoded), prompt)

    def _encode(self, prompts: list[str]) -> list[Encoded]:
        if self.language.tag is not None:
            return encode_tagged(self.tokenizer, prompts, self.language.tag)
        return self.tokenizer.encode_batch(prompts, parse_special=self.parse_special)


def without_end(encoded: Encoded) -> list[int]:
    """Return the ids without the special tokens at the end."""
    text = [n for n, sequence in enumerate(encoded.sequence_ids) if sequence is not None]
    return encoded.ids[: text[-1] + 1] if text else encoded.ids


def decode_continuation(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Decode ids that follow a prompt, keeping the leading space."""
    context = list(prompt[-CONTEXT_TOKENS:])
    before, text = tokenizer.decode(context), tokenizer.decode([*context, *ids])
    return text[common_prefix(before, text) :]


def common_prefix(first: str, second: str) -> int:
    """Return the length of the common prefix of two strings."""
    pairs = zip(first, second, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def warning_message(bundle: Bundle, warning: InputWarning, texts: int) -> str:
    """Return the message of a warning that concerns `texts` texts."""
    name, subject = bundle.display_name, f"{texts:,} {plural('text', texts)}"
    problems = {
        "longer_than_trained": f"longer than the {bundle.job.usual_len} tokens {name} was trained on",
        "split_word": f"with a word longer than {name} reads at once; it was split into parts",
        "unknown_characters": f"with characters outside the vocabulary of {name}; the output may be wrong",
    }
    return f"{subject} {problems[warning]}"
