"""Pre-tokenization: how a text is split before a vocabulary is trained, and how often each pre-token occurs.

A pre-token is a run of letters, of up to three digits, or of punctuation, with one space before it. No token
crosses a pre-token, and no pre-token is longer than `MAX_LENGTH` characters, so a million letters without a
space cost no more than a million letters in words. Texts are normalized first (NFC), which composes Hangul.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from glassformer.errors import InvalidValueError

SPACE = "▁"
MAX_LENGTH = 64
MAX_CACHED = 256  # a longer chunk without a space is split at once rather than counted whole
MAX_DISTINCT = 4_000_000  # chunks counted at a time: about 500 MB


@dataclass(frozen=True, kw_only=True)
class Splitter:
    """One way of pre-tokenizing.

    pre_tokenizer  splits a whole text
    decoder        joins the tokens again
    chunk          splits a chunk that starts with a space, spelled as `space`
    space          how a space is spelled
    prefix         what is put before a text that does not start with a space
    """

    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder
    chunk: pre_tokenizers.PreTokenizer
    space: str
    prefix: str

    def split(self, chunk: str) -> list[str]:
        """The pre-tokens of a chunk of text in which only the first character may be a space."""
        return [text for text, _ in self.chunk.pre_tokenize_str(chunk)]


def metaspace_splitter(*, max_punctuation: int = MAX_LENGTH) -> Splitter:
    """Spaces become "▁" before the word that follows, and one is put before the text.

    Decoding restores the text except for a space at its start and its own "▁". max_punctuation: the longest
    run of punctuation in one pre-token.
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
    """Every byte is a character of its own, so that any text is restored exactly."""
    split = pre_tokenizers.Split(Regex(_pattern(" ", MAX_LENGTH)), "isolated")
    whole = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return Splitter(pre_tokenizer=whole, decoder=decoders.ByteLevel(), chunk=whole, space=" ", prefix="")


def _pattern(space: str, max_punctuation: int) -> str:
    runs = (
        rf"[\p{{L}}\p{{M}}]{{1,{MAX_LENGTH}}}",
        r"\p{N}{1,3}",
        rf"[^\p{{L}}\p{{M}}\p{{N}}{space}]{{1,{max_punctuation}}}",
    )
    return "|".join([*(f"{space}?{run}" for run in runs), space])


def build_normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """Lowercase if requested, then NFC."""
    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*steps, normalizers.NFC()])


def normalize_texts(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Iterator[str]:
    """The normalized texts, without empty ones."""
    for text in texts:
        try:
            normalized = normalizer.normalize_str(text)
        except (TypeError, UnicodeError) as error:
            raise InvalidValueError("text", ascii(text), "Unicode text") from error
        if normalized:
            yield normalized


def count_pretokens(texts: Iterable[str], splitter: Splitter) -> Counter[str]:
    """How often each pre-token occurs in the (normalized) texts, which are read once.

    A space always starts a pre-token, so the chunks between spaces are counted first, which is fast, and each
    distinct one is split only once. The first chunk of a text, without a space before it, is counted apart.

    >>> count_pretokens(["a dog, a cat"], metaspace_splitter())
    Counter({'▁a': 2, '▁dog': 1, ',': 1, '▁cat': 1})
    """
    firsts: Counter[str] = Counter()
    chunks: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for text in texts:
        text = text.replace(splitter.space, " ")
        first, *rest = (splitter.prefix + text.removeprefix(splitter.prefix)).split(" ")
        if len(first) > MAX_CACHED:
            found.update(splitter.split(first))
        else:
            firsts[first] += 1
        if len(text) > MAX_CACHED:
            for chunk in rest:
                if len(chunk) > MAX_CACHED:
                    found.update(splitter.split(splitter.space + chunk))
            rest = [chunk for chunk in rest if len(chunk) <= MAX_CACHED]
        chunks.update(rest)
        for counts in (firsts, chunks, found):
            if len(counts) > MAX_DISTINCT:
                _drop_rare(counts)
    for before, counts in (("", firsts), (splitter.space, chunks)):
        for chunk, count in counts.items():
            for pretoken in splitter.split(before + chunk):
                found[pretoken] += count
    return found


def _drop_rare(counts: Counter[str]) -> None:
    """Keep the most common MAX_DISTINCT // 2; deterministic."""
    common = sorted(counts.items(), key=_by_count)[: MAX_DISTINCT // 2]
    counts.clear()
    counts.update(dict(common))


def most_common(counts: Counter[str], limit: int, *, min_count: int = 1) -> list[str]:
    """At most `limit` keys, the most common first; ties in alphabetical order."""
    ordered = sorted(counts.items(), key=_by_count)[: max(0, limit)]
    return [key for key, count in ordered if count >= min_count]


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
