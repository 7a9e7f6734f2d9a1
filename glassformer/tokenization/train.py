"""Train a tokenizer from texts: BPE, unigram, byte-level BPE, words or characters.

    plan = TokenizerPlan(kind="bpe", vocab_size=8000, tags=(">>de<<", ">>fr<<"))
    tokenizer = train_tokenizer(lines, plan)
    tokenizer.save("tokenizer")

The ids of special tokens are the same in every kind: `<pad>` 0, `<unk>` 1, `<s>` 2, `</s>` 3, then the tags
in the given order, then the trained vocabulary. So two tokenizers of the same plan can be combined into a
source-target tokenizer (`glassformer.tokenization.pair_tokenizers`).

The same texts give the same file, byte for byte, for any number of threads. Memory is bounded: texts are read
once, and only word counts are kept.
"""

from __future__ import annotations

import io
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

import sentencepiece
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from glassformer.errors import EmptyInputError, InvalidValueError
from glassformer.tokenization.fast_tokenizer import FastTokenizer
from glassformer.tokenization.folder import TokenizerConfig, backend_errors
from glassformer.tokenization.tokenizer import Tokenizer

Item = TypeVar("Item")
Result = TypeVar("Result")
Kind = Literal["bpe", "unigram", "byte", "word", "char"]
Template = Literal["eos", "bos_eos", "cls_sep", "none"]

SPACE = "▁"
MAX_LENGTH = 64  # characters of a pre-token
MAX_CACHED = 256  # a longer chunk without a space is split immediately, not counted as one
MAX_DISTINCT = 4_000_000  # distinct chunks counted at a time: about 500 MB
PAD, UNK, BOS, EOS = SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
REPEATS_PER_LIST = 10_000
_SPM_UNKNOWN = "\u2585"  # the SentencePiece trainer's symbol for unknown characters


@dataclass(frozen=True, kw_only=True)
class TokenizerPlan:
    """Settings of a tokenizer to be trained.

    kind           bpe      byte-pair encoding of characters; an unseen character is <unk>
                   unigram  SentencePiece unigram; an unseen character is <unk>
                   byte     byte-level BPE; nothing is unknown, any text is restored exactly
                   word     words and punctuation; other words are <unk>
                   char     one token per character, including white space; text is restored exactly
    vocab_size     maximum vocabulary size, including special tokens; few texts may give fewer tokens
    lowercase      whether texts are lowercased
    min_frequency  minimum count of a merge (bpe, byte) or a word (unigram, word) in the texts;
                   single characters are kept even if rare, as far as they fit
    template       special tokens added to a text: "eos" (... </s>), "bos_eos" (<s> ... </s>), "cls_sep" (the
                   same, as a classifier's cls and sep, with token types for pairs) or "none"
    tags           further special tokens such as ">>de<<" or "<gap>": punctuation around letters or digits
    """

    kind: Kind = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    min_frequency: int = 2
    template: Template = "eos"
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, choices in (("kind", self.kind, Kind), ("template", self.template, Template)):
            if value not in get_args(choices):
                raise InvalidValueError(f"tokenizer.{name}", value, f"one of {', '.join(get_args(choices))}")
        if self.min_frequency < 1:
            raise InvalidValueError("tokenizer.min_frequency", self.min_frequency, "at least 1")
        for number, tag in enumerate(self.tags):
            _check_tag(tag)
            if tag in (*SPECIAL_TOKENS, *self.tags[:number]):
                raise InvalidValueError("tokenizer.tags", list(self.tags), "distinct tags, not reserved")
        least = self.num_special + (256 if self.kind == "byte" else 1)
        if self.vocab_size < least:
            raise InvalidValueError(
                "tokenizer.vocab_size", self.vocab_size, f"at least {least} for {self.kind}"
            )

    @property
    def num_special(self) -> int:
        """The number of special tokens and tags."""
        return len(SPECIAL_TOKENS) + len(self.tags)


def train_tokenizer(texts: Iterable[str], plan: TokenizerPlan) -> Tokenizer:
    """Train a tokenizer on texts, which are iterated over once.

    >>> tokenizer = train_tokenizer(["a b", "b a"], TokenizerPlan(kind="char", vocab_size=100))
    >>> tokenizer.encode("ab b").ids, tokenizer.vocab_size
    ([5, 6, 4, 6, 3], 7)
    """
    normalizer = build_normalizer(lowercase=plan.lowercase)
    clean = normalize_texts(texts, normalizer)
    backend = _train_characters(clean, plan) if plan.kind == "char" else _train_pieces(clean, plan)
    backend.normalizer = normalizer
    special = [AddedToken(name, special=True, normalized=False) for name in (*SPECIAL_TOKENS, *plan.tags)]
    backend.add_special_tokens(special)
    roles: dict[str, int | None] = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    if plan.template == "cls_sep":
        roles |= {"cls": 2, "sep": 3}
    if plan.template != "none":
        bos, pair_type = "" if plan.template == "eos" else f"{BOS} ", int(plan.template == "cls_sep")
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos}$A {EOS}",
            pair=f"{bos}$A {EOS} $B:{pair_type} {EOS}:{pair_type}",
            special_tokens=[(BOS, 2), (EOS, 3)],
        )
    return FastTokenizer(backend, TokenizerConfig(config={"clean_up_tokenization_spaces": False}), roles)


def _train_characters(texts: Iterable[str], plan: TokenizerPlan) -> Backend:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    if not counts:
        raise EmptyInputError("text to train a tokenizer")
    # BPE without merges: faster than looking up each character as a word.
    vocabulary = _number(plan, sorted(most_common(counts, plan.vocab_size - plan.num_special)))
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token=UNK))
    backend.decoder = decoders.Fuse()
    return backend


def _train_pieces(texts: Iterable[str], plan: TokenizerPlan) -> Backend:
    most = 1 if plan.kind == "word" else MAX_LENGTH
    splitter = byte_level_splitter() if plan.kind == "byte" else metaspace_splitter(max_punctuation=most)
    counts = count_pretokens(texts, splitter)
    if not counts:
        raise EmptyInputError("text to train a tokenizer")
    backend = Backend(_train_model(counts, plan))
    backend.pre_tokenizer, backend.decoder = splitter.pre_tokenizer, splitter.decoder
    return backend


def _train_model(counts: Counter[str], plan: TokenizerPlan) -> models.Model:
    size = plan.vocab_size - plan.num_special
    if plan.kind == "word":
        words = most_common(counts, size, min_count=plan.min_frequency)
        return models.WordLevel(_number(plan, words), unk_token=UNK)
    if plan.kind == "byte":
        return _train_bpe(counts, plan, models.BPE())
    # Single characters may fill a small vocabulary, but at most half of a large one: in a large corpus, the
    # characters of all scripts would leave no space for words.
    characters: Counter[str] = Counter()
    for word, count in counts.items():
        for char in word:
            characters[char] += count
    alphabet = most_common(characters, min(size, max(256, size // 2)))
    known = counts if len(alphabet) == len(characters) else _split_at_unknown(counts, set(alphabet))
    if plan.kind == "bpe":
        return _train_bpe(known, plan, models.BPE(unk_token=UNK, fuse_unk=True))
    common = Counter({word: count for word, count in known.items() if count >= plan.min_frequency})
    scores = _train_unigram(common, alphabet, size)
    special = [(name, 0.0) for name in (*SPECIAL_TOKENS, *plan.tags)]
    return models.Unigram([*special, *scores], unk_id=1, byte_fallback=False)


def _train_bpe(counts: Counter[str], plan: TokenizerPlan, model: models.BPE) -> models.Model:
    backend = Backend(model)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if plan.kind == "byte" else []
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocab_size,
        min_frequency=plan.min_frequency,
        special_tokens=[*SPECIAL_TOKENS, *plan.tags],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    run_interruptibly(lambda words: backend.train_from_iterator(words, trainer), _repeat_words(counts))
    return backend.model


def _repeat_words(counts: Counter[str]) -> Iterator[list[str]]:
    """Yield each word as often as it was counted, for a trainer that does its own counting."""
    for word, count in counts.items():
        if len(word) == 1:
            count = 1  # a single character has no merges
        for start in range(0, count, REPEATS_PER_LIST):
            yield [word] * min(REPEATS_PER_LIST, count - start)


def _split_at_unknown(counts: Counter[str], alphabet: set[str]) -> Counter[str]:
    """Split each word at characters outside the alphabet; return the counts of the parts."""
    parts: Counter[str] = Counter()
    for word, count in counts.items():
        for part in "".join(char if char in alphabet else "\0" for char in word).split("\0"):
            if part:
                parts[part] += count
    return parts


def _number(plan: TokenizerPlan, learned: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*SPECIAL_TOKENS, *plan.tags, *learned))}


def _check_tag(tag: str) -> None:
    """Check that a tag has punctuation at both ends and letters between: no trained token can equal it."""
    delimited = len(tag) >= 3 and not (tag[0].isalnum() or tag[-1].isalnum())
    if not delimited or not any(map(str.isalnum, tag)) or any(c.isspace() or c == SPACE for c in tag):
        raise InvalidValueError("tokenizer.tags", tag, "punctuation around letters, e.g. <gap> or >>de<<")


def _train_unigram(counts: Counter[str], alphabet: Sequence[str], size: int) -> list[tuple[str, float]]:
    """Train at most `size` pieces, including the alphabet; return them with log-probs, best first."""
    # The trainer reads TSV, so words with white space are left out.
    words = [
        word
        for word in most_common(counts, len(counts))
        if _SPM_UNKNOWN not in word and "\0" not in word and not any(map(str.isspace, word))
    ]
    scores = _run_unigram_trainer([f"{word}\t{counts[word]}" for word in words], size) if words else {}
    lowest = min(scores.values(), default=0.0) - 1.0
    for char in alphabet:
        scores.setdefault(char, lowest)
    longer = [piece for piece in scores if len(piece) > 1]
    for piece in sorted(longer, key=lambda piece: (scores[piece], piece))[: max(0, len(scores) - size)]:
        del scores[piece]
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _run_unigram_trainer(rows: list[str], size: int) -> dict[str, float]:
    output = io.BytesIO()

    def train(rows: Iterator[str]) -> None:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=rows,
            input_format="tsv",
            model_writer=output,
            model_type="unigram",
            vocab_size=size + 1,
            hard_vocab_limit=False,  # few texts give fewer pieces
            character_coverage=1.0,  # rare characters were removed before
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            split_by_unicode_script=False,
            split_by_number=False,
            unk_id=0,
            bos_id=-1,
            eos_id=-1,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )

    with backend_errors("the unigram model", "cannot be trained"):
        run_interruptibly(train, rows)
    trained = sentencepiece.SentencePieceProcessor(model_proto=output.getvalue())
    return {trained.id_to_piece(n): trained.get_score(n) for n in range(1, trained.vocab_size())}


def run_interruptibly(work: Callable[[Iterator[Item]], Result], items: Iterable[Item]) -> Result:
    """Run `work(items)` in a thread, so that a signal can interrupt long-running compiled code.

    Python handles signals only in the main thread, between bytecodes; waiting for a thread can be
    interrupted. The thread then gets no more items, and stops with the program at the latest.

    >>> run_interruptibly(sum, [1, 2, 3])
    6
    """
    result: Future[Result] = Future()
    stopped = threading.Event()

    def until_stopped() -> Iterator[Item]:
        for item in items:
            if stopped.is_set():
                return
            yield item

    def run() -> None:
        try:
            result.set_result(work(until_stopped()))
        except BaseException as error:  # raised in the caller; a panic in compiled code is not an Exception
            result.set_exception(error)

    threading.Thread(target=run, name="interruptible", daemon=True).start()
    try:
        return result.result()
    finally:
        stopped.set()


# Pre-tokenization: a pre-token is a run of letters, of up to three digits, or of punctuation, with one space
# before it. No token crosses a pre-token, and a pre-token has at most MAX_LENGTH characters, so a million
# letters without a space cost no more than in words. Texts are normalized first (NFC), which composes Hangul.


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """A pre-tokenization scheme.

    pre_tokenizer  splits a text
    decoder        joins the tokens
    chunk          splits a chunk that starts with a space, spelled as `space`
    space          how a space is spelled
    prefix         prepended to a text that does not start with a space
    """

    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder
    chunk: pre_tokenizers.PreTokenizer
    space: str
    prefix: str

    def split(self, chunk: str) -> list[str]:
        """Split a chunk of text, in which only the first character may be a space, into pre-tokens."""
        return [text for text, _ in self.chunk.pre_tokenize_str(chunk)]


def metaspace_splitter(*, max_punctuation: int = MAX_LENGTH) -> Splitter:
    """Replace each space with "▁", which belongs to the next word, and prepend one to the text.

    Decoding restores the text except for a leading space and "▁" characters of the text.
    max_punctuation: maximum length of a run of punctuation in one pre-token.
    """
    split = pre_tokenizers.Split(Regex(_pattern(SPACE, max_punctuation)), "isolated")
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    return Splitter(
        pre_tokenizer=pre_tokenizers.Sequence([spaces, split]),
        decoder=decoders.Metaspace(replacement=SPACE, prepend_scheme="first", split=False),
        chunk=split,
        space=SPACE,
        prefix=" ",
    )


def byte_level_splitter() -> Splitter:
    """Map every byte to a character, so that any text is restored exactly."""
    split = pre_tokenizers.Split(Regex(_pattern(" ", MAX_LENGTH)), "isolated")
    split_to_bytes = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return Splitter(
        pre_tokenizer=split_to_bytes, decoder=decoders.ByteLevel(), chunk=split_to_bytes, space=" ", prefix=""
    )


def _pattern(space: str, max_punctuation: int) -> str:
    runs = (
        rf"[\p{{L}}\p{{M}}]{{1,{MAX_LENGTH}}}",
        r"\p{N}{1,3}",
        rf"[^\p{{L}}\p{{M}}\p{{N}}{space}]{{1,{max_punctuation}}}",
    )
    return "|".join([*(f"{space}?{run}" for run in runs), space])


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """Return a normalizer: lowercasing if requested, then NFC."""
    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*steps, normalizers.NFC()])


def normalize_texts(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Iterator[str]:
    """Yield the normalized texts, without empty ones."""
    for text in texts:
        try:
            normalized = normalizer.normalize_str(text)
        except (TypeError, UnicodeError) as error:
            raise InvalidValueError("text", ascii(text), "Unicode text") from error
        if normalized:
            yield normalized


def count_pretokens(texts: Iterable[str], splitter: Splitter) -> Counter[str]:
    """Count the pre-tokens of the (normalized) texts, which are iterated over once.

    A space always starts a pre-token, so the chunks between spaces are counted first, which is fast, and each
    distinct one is split only once. The first chunk of a text, which has no space before it, is counted
    separately.

    >>> count_pretokens(["a dog, a cat"], metaspace_splitter())
    Counter({'▁a': 2, '▁dog': 1, ',': 1, '▁cat': 1})
    """
    firsts: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    pretokens: Counter[str] = Counter()
    for text in texts:
        text = text.replace(splitter.space, " ")
        first, *rest = (splitter.prefix + text.removeprefix(splitter.prefix)).split(" ")
        if len(first) > MAX_CACHED:
            pretokens.update(splitter.split(first))
        else:
            firsts[first] += 1
        if len(text) > MAX_CACHED:
            for chunk in rest:
                if len(chunk) > MAX_CACHED:
                    pretokens.update(splitter.split(splitter.space + chunk))
            rest = [chunk for chunk in rest if len(chunk) <= MAX_CACHED]
        chunks.update(rest)
        for counts in (firsts, chunks, pretokens):
            if len(counts) > MAX_DISTINCT:
                common = {key: counts[key] for key in most_common(counts, MAX_DISTINCT // 2)}
                counts.clear()
                counts.update(common)
    for before, counts in (("", firsts), (splitter.space, chunks)):
        for chunk, count in counts.items():
            for pretoken in splitter.split(before + chunk):
                pretokens[pretoken] += count
    return pretokens


def most_common(counts: Counter[str], limit: int, *, min_count: int = 1) -> list[str]:
    """Return at most `limit` keys, the most common first; ties in alphabetical order."""
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[: max(0, limit)]
    return [key for key, count in ordered if count >= min_count]
