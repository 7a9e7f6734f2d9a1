"""How a text is cut before a vocabulary is learnt from it, and how often each cutting occurs.

A cutting is a run of letters, of up to three digits, or of other signs, with the one space before it. No
piece of a vocabulary reaches beyond a cutting, and no cutting is longer than `LONGEST` signs, so a million
letters without a space cost no more than a million letters in words.

Every text is composed first (NFC): Korean that comes as loose jamo becomes syllables.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tokenizers import Regex, decoders, normalizers, pre_tokenizers

from glassformer.errors import GlassformerError

SPACE = "▁"
LONGEST = 64
LONG = 256  # a longer stretch without a space is cut at once, and not remembered whole
MOST = 4_000_000  # distinct stretches remembered at a time: some 500 MB


@dataclass(frozen=True, kw_only=True)
class Cutter:
    """One way of cutting.

    pre_tokenizer  cuts a whole text
    decoder        puts the pieces together again
    stretch        cuts a stretch that begins with a space, spelled as `space`
    space          how a space is spelled
    put_before     what is put before a text that does not begin with a space
    """

    pre_tokenizer: pre_tokenizers.PreTokenizer
    decoder: decoders.Decoder
    stretch: pre_tokenizers.PreTokenizer
    space: str
    put_before: str

    def cuttings(self, stretch: str) -> list[str]:
        """The cuttings of a stretch of text in which only the first sign may be a space."""
        return [text for text, _ in self.stretch.pre_tokenize_str(stretch)]


def seen_spaces(*, signs: int = LONGEST) -> Cutter:
    """Spaces stay visible, as "▁" before the word they precede, and one is put before the text.

    Decoding gives the text back, but for a space at its very start and a "▁" of its own. At most `signs`
    marks of punctuation stand together.
    """
    split = pre_tokenizers.Split(Regex(_pattern(SPACE, signs)), "isolated")
    spaces = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="first", split=False)
    return Cutter(
        pre_tokenizer=pre_tokenizers.Sequence([spaces, split]),
        decoder=decoders.Metaspace(replacement=SPACE, prepend_scheme="first", split=False),
        stretch=split,
        space=SPACE,
        put_before=" ",
    )


def spelled_bytes() -> Cutter:
    """Every byte is spelled by a letter of its own, so that any text comes back exactly."""
    split = pre_tokenizers.Split(Regex(_pattern(" ", LONGEST)), "isolated")
    whole = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return Cutter(pre_tokenizer=whole, decoder=decoders.ByteLevel(), stretch=whole, space=" ", put_before="")


def _pattern(space: str, signs: int) -> str:
    runs = (
        rf"[\p{{L}}\p{{M}}]{{1,{LONGEST}}}",
        r"\p{N}{1,3}",
        rf"[^\p{{L}}\p{{M}}\p{{N}}{space}]{{1,{signs}}}",
    )
    return "|".join([*(f"{space}?{run}" for run in runs), space])


def normalizer(*, lowercase: bool) -> normalizers.Normalizer:
    """Small letters if asked for, then composed ones."""
    steps = [normalizers.Lowercase()] if lowercase else []
    return normalizers.Sequence([*steps, normalizers.NFC()])


def normalized(texts: Iterable[str], by: normalizers.Normalizer) -> Iterator[str]:
    """The texts as the normalizer leaves them, without the empty ones."""
    for number, text in enumerate(texts):
        try:
            changed = by.normalize_str(text)
        except (TypeError, UnicodeError) as fault:
            reason = (
                "has half a surrogate pair" if isinstance(text, str) else f"is of type {type(text).__name__}"
            )
            raise GlassformerError(f"Text {number} {reason}, where Unicode text is due.") from fault
        if changed:
            yield changed


def count_cuttings(texts: Iterable[str], cutter: Cutter) -> Counter[str]:
    """How often each cutting occurs in the texts (normalized ones), which are read once.

    A space always begins a cutting, so the stretches between spaces are counted first, which is quick,
    and each distinct one is cut but once; a text's first one apart, which has no space before it.

    >>> count_cuttings(["a dog, a cat"], seen_spaces())
    Counter({'▁a': 2, '▁dog': 1, ',': 1, '▁cat': 1})
    """
    firsts: Counter[str] = Counter()
    stretches: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for text in texts:
        text = text.replace(cutter.space, " ")
        first, *rest = (cutter.put_before + text.removeprefix(cutter.put_before)).split(" ")
        if len(first) > LONG:
            found.update(cutter.cuttings(first))
        else:
            firsts[first] += 1
        if len(text) > LONG:
            for stretch in rest:
                if len(stretch) > LONG:
                    found.update(cutter.cuttings(cutter.space + stretch))
            rest = [stretch for stretch in rest if len(stretch) <= LONG]
        stretches.update(rest)
        for counts in (firsts, stretches, found):
            if len(counts) > MOST:
                _forget_rare(counts)
    for before, counts in (("", firsts), (cutter.space, stretches)):
        for stretch, count in counts.items():
            for cutting in cutter.cuttings(before + stretch):
                found[cutting] += count
    return found


def _forget_rare(counts: Counter[str]) -> None:
    """Keep the commonest half of what may be remembered; the same half every time."""
    kept = sorted(counts.items(), key=_by_count)[: MOST // 2]
    counts.clear()
    counts.update(dict(kept))


def commonest(counts: Counter[str], most: int, *, at_least: int = 1) -> list[str]:
    """The commonest keys first, at most so many; equal counts in the order of their letters."""
    return [key for key, count in sorted(counts.items(), key=_by_count)[: max(0, most)] if count >= at_least]


def _by_count(item: tuple[str, int]) -> tuple[int, str]:
    return -item[1], item[0]
