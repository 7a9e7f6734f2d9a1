"""A tokenizer learnt from texts: byte pairs, unigram pieces, bytes, words or characters.

    plan = TokenizerPlan(kind="bpe", vocab_size=8000, tags=(">>de<<", ">>fr<<"))
    tokenizer = train_tokenizer(lines, plan)
    tokenizer.save("tokenizer")

The ids of the marks are the same in every kind: `<pad>` 0, `<unk>` 1, `<s>` 2, `</s>` 3, then the tags from
4 on in the order given, then what was learnt. So two tokenizers of one plan can stand on the two sides of a
translation (`glassformer.tokenization.two_libraries.separate`).

The same texts give the same file, byte for byte, whatever the number of threads. Memory is bounded: texts
are read once and only the counts of their words are kept.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from glassformer.errors import GlassformerError
from glassformer.tokenization.cutting import (
    SPACE,
    Cutter,
    commonest,
    count_cuttings,
    normalized,
    normalizer,
    seen_spaces,
    spelled_bytes,
)
from glassformer.tokenization.declared import Declared
from glassformer.tokenization.library import LibraryTokenizer
from glassformer.tokenization.tokenizer import Tokenizer
from glassformer.tokenization.unigram import learn_unigram
from glassformer.tokenization.within_reach import within_reach

Kind = Literal["bpe", "unigram", "byte", "word", "char"]
Marks = Literal["end", "both", "around", "none"]

PAD, UNKNOWN, BEGIN, END = MARKS = ("<pad>", "<unk>", "<s>", "</s>")
AT_ONCE = 10_000  # repetitions of a word handed over in one list


@dataclass(frozen=True, kw_only=True)
class TokenizerPlan:
    """What kind of tokenizer is to be learnt.

    kind           bpe      pieces merged from letters; a letter never seen is <unk>
                   unigram  the likeliest pieces; a letter never seen is <unk>
                   byte     pieces merged from bytes; nothing is unknown, any text comes back exactly
                   word     whole words and marks of punctuation; a word that is not among them is <unk>
                   char     one token a character, spaces and line ends too; text comes back exactly
    vocab_size     how many tokens at most, marks and tags among them; few texts may give fewer
    lowercase      whether capital letters are made small
    min_frequency  how often a merge (bpe, byte) or a word (unigram, word) must occur to be learnt from;
                   single letters are kept however rare, as far as they fit
    marks          what is put around a text: "end" (... </s>), "both" (<s> ... </s>), "around" (the same, as
                   cls and sep of a classifier, with token types for pairs) or "none"
    tags           further special tokens such as ">>de<<" or "<gap>": signs around letters or digits
    """

    kind: Kind = "bpe"
    vocab_size: int = 8000
    lowercase: bool = False
    min_frequency: int = 2
    marks: Marks = "end"
    tags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, value, choices in (("kind", self.kind, Kind), ("marks", self.marks, Marks)):
            if value not in get_args(choices):
                one_of = ", ".join(map(repr, get_args(choices)))
                raise GlassformerError(f"A tokenizer's {name} must be one of {one_of}, and is {value!r}.")
        for name in ("vocab_size", "min_frequency"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise GlassformerError(f"A tokenizer's {name} must be a whole number from 1, not {value!r}.")
        for number, tag in enumerate(self.tags):
            _check_tag(tag)
            if tag in (*MARKS, *self.tags[:number]):
                raise GlassformerError(f"The tag {tag!r} is there already; give each tag once.")
        least = self.room_for_marks + (256 if self.kind == "byte" else 1)
        if self.vocab_size < least:
            raise GlassformerError(
                f"A vocab_size of {self.vocab_size} is too small for kind {self.kind!r}; with its "
                f"marks and tags it needs at least {least}."
            )

    @property
    def room_for_marks(self) -> int:
        """How many ids the marks and tags take."""
        return len(MARKS) + len(self.tags)


def train_tokenizer(texts: Iterable[str], plan: TokenizerPlan) -> Tokenizer:
    """Learn a tokenizer from texts, which are read once, one after the other.

    >>> tokenizer = train_tokenizer(["a b", "b a"], TokenizerPlan(kind="char", vocab_size=100))
    >>> tokenizer.encode("ab b").ids, tokenizer.vocab_size
    ([5, 6, 4, 6, 3], 7)
    """
    before = normalizer(lowercase=plan.lowercase)
    clean = normalized(texts, before)
    backend = _characters(clean, plan) if plan.kind == "char" else _pieces(clean, plan)
    backend.normalizer = before
    special = [AddedToken(name, special=True, normalized=False) for name in (*MARKS, *plan.tags)]
    backend.add_special_tokens(special)
    roles: dict[str, int | None] = {"pad": 0, "unk": 1, "bos": 2, "eos": 3}
    if plan.marks == "around":
        roles |= {"cls": 2, "sep": 3}
    template = _template(plan.marks)
    if template is not None:
        backend.post_processor = template
    declared = Declared(
        folder=Path(),
        config={"clean_up_tokenization_spaces": False},
        roles={},
        added=[],
        role_ids={},
        tokenizer_class=None,
        model_type=None,
        carried={},
    )
    return LibraryTokenizer(backend, declared, roles)


def _template(marks: Marks) -> processors.PostProcessor | None:
    if marks == "none":
        return None
    begin = "" if marks == "end" else f"{BEGIN} "
    second = 1 if marks == "around" else 0
    return processors.TemplateProcessing(
        single=f"{begin}$A {END}",
        pair=f"{begin}$A {END} $B:{second} {END}:{second}",
        special_tokens=[(BEGIN, 2), (END, 3)],
    )


def _characters(texts: Iterable[str], plan: TokenizerPlan) -> Backend:
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(text)
    _refuse_nothing(counts)
    # Byte pairs without a pair: quicker than looking up a million words of one letter each.
    vocabulary = _numbered(plan, sorted(commonest(counts, plan.vocab_size - plan.room_for_marks)))
    backend = Backend(models.BPE(vocab=vocabulary, merges=[], unk_token=UNKNOWN))
    backend.decoder = decoders.Fuse()
    return backend


def _pieces(texts: Iterable[str], plan: TokenizerPlan) -> Backend:
    cutter = _cutter(plan.kind)
    counts = count_cuttings(texts, cutter)
    _refuse_nothing(counts)
    backend = Backend(_learn(counts, plan))
    backend.pre_tokenizer, backend.decoder = cutter.pre_tokenizer, cutter.decoder
    return backend


def _cutter(kind: Kind) -> Cutter:
    match kind:
        case "byte":
            return spelled_bytes()
        case "word":
            return seen_spaces(signs=1)
        case _:
            return seen_spaces()


def _learn(counts: Counter[str], plan: TokenizerPlan) -> models.Model:
    room = plan.vocab_size - plan.room_for_marks
    if plan.kind == "word":
        words = commonest(counts, room, at_least=plan.min_frequency)
        return models.WordLevel(_numbered(plan, words), unk_token=UNKNOWN)
    if plan.kind == "byte":
        return _merge(counts, plan, models.BPE())
    # Letters take all of a small vocabulary, but no more than half of a large one: the letters of every
    # script, as a large corpus has them, would leave no room for words.
    seen = _letter_counts(counts)
    letters = commonest(seen, min(room, max(256, room // 2)))
    known = counts if len(letters) == len(seen) else _cut_at_others(counts, set(letters))
    if plan.kind == "bpe":
        return _merge(known, plan, models.BPE(unk_token=UNKNOWN, fuse_unk=True))
    common = Counter({word: count for word, count in known.items() if count >= plan.min_frequency})
    scores = learn_unigram(common, letters, room)
    marks = [(name, 0.0) for name in (*MARKS, *plan.tags)]
    return models.Unigram([*marks, *scores], unk_id=1, byte_fallback=False)


def _merge(counts: Counter[str], plan: TokenizerPlan, model: models.BPE) -> models.Model:
    backend = Backend(model)
    alphabet = pre_tokenizers.ByteLevel.alphabet() if plan.kind == "byte" else []
    trainer = trainers.BpeTrainer(
        vocab_size=plan.vocab_size,
        min_frequency=plan.min_frequency,
        special_tokens=[*MARKS, *plan.tags],
        initial_alphabet=sorted(alphabet),
        show_progress=False,
    )
    within_reach(lambda words: backend.train_from_iterator(words, trainer), _repeated(counts))
    return backend.model


def _repeated(counts: Counter[str]) -> Iterator[list[str]]:
    """Each word as often as it was counted, for a trainer that counts by itself."""
    for word, count in counts.items():
        if len(word) == 1:
            count = 1  # there is nothing to merge in it
        for start in range(0, count, AT_ONCE):
            yield [word] * min(AT_ONCE, count - start)


def _letter_counts(counts: Counter[str]) -> Counter[str]:
    letters: Counter[str] = Counter()
    for word, count in counts.items():
        for letter in word:
            letters[letter] += count
    return letters


def _cut_at_others(counts: Counter[str], letters: set[str]) -> Counter[str]:
    """The same counts with each word cut where a letter stands that there is no room for."""
    found: Counter[str] = Counter()
    for word, count in counts.items():
        for part in "".join(letter if letter in letters else "\0" for letter in word).split("\0"):
            if part:
                found[part] += count
    return found


def _numbered(plan: TokenizerPlan, learnt: Iterable[str]) -> dict[str, int]:
    return {token: number for number, token in enumerate((*MARKS, *plan.tags, *learnt))}


def _refuse_nothing(counts: Counter[str]) -> None:
    if not counts:
        raise GlassformerError("There is no text to learn a tokenizer from; every text given is empty.")


def _check_tag(tag: Any) -> None:
    """Signs at both ends and letters between them: then no piece that is learnt can spell it."""
    fits = isinstance(tag, str) and len(tag) >= 3 and not (tag[0].isalnum() or tag[-1].isalnum())
    if not fits or not any(map(str.isalnum, tag)) or any(c.isspace() or c == SPACE for c in tag):
        raise GlassformerError(
            f"The tag {tag!r} cannot be a special token; give signs around letters, without spaces, "
            f"such as '<gap>' or '>>de<<'."
        )
