"""Unigram pieces by sentencepiece's trainer, which gives the same pieces every time."""

import io
from collections import Counter
from collections.abc import Iterator, Sequence

import sentencepiece

from glassformer.tokenization.cutting import commonest
from glassformer.tokenization.folder import translated
from glassformer.tokenization.within_reach import within_reach

_ITS_OWN = "\u2585"  # stands for unknown letters inside the trainer


def learn_unigram(counts: Counter[str], letters: Sequence[str], room: int) -> list[tuple[str, float]]:
    """At most `room` pieces with their log-probabilities, all the letters among them, likeliest first."""
    # Columns of its input are parted by tabs and rows by line ends, so words that hold one stay away.
    words = [
        word
        for word in commonest(counts, len(counts))
        if _ITS_OWN not in word and "\0" not in word and not any(map(str.isspace, word))
    ]
    scores = _trained([f"{word}\t{counts[word]}" for word in words], room) if words else {}
    lowest = min(scores.values(), default=0.0) - 1.0
    for letter in letters:
        scores.setdefault(letter, lowest)
    longer = [piece for piece in scores if len(piece) > 1]
    for piece in sorted(longer, key=lambda piece: (scores[piece], piece))[: max(0, len(scores) - room)]:
        del scores[piece]
    return sorted(scores.items(), key=lambda item: (-item[1], item[0]))


def _trained(rows: list[str], room: int) -> dict[str, float]:
    written = io.BytesIO()

    def train(rows: Iterator[str]) -> None:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=rows,
            input_format="tsv",
            model_writer=written,
            model_type="unigram",
            vocab_size=room + 1,
            hard_vocab_limit=False,  # few texts give fewer pieces
            character_coverage=1.0,  # rare letters were left out before
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

    with translated("The unigram pieces cannot be learnt"):
        within_reach(train, rows)
    learnt = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    return {learnt.id_to_piece(n): learnt.get_score(n) for n in range(1, learnt.vocab_size())}
