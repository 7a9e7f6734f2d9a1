"""Accuracy of visual question answering, as the official evaluation of the VQA data sets computes it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from glassformer.errors import ConflictError, EmptyInputError, MissingValueError
from glassformer.metrics.text import Score

FULL_CREDIT = 3  # equal answers of other people that make an answer right
PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
ARTICLES = frozenset(("a", "an", "the"))
_NUMBERS = "zero one two three four five six seven eight nine ten"
NUMBERS = {"none": "0"} | {word: str(n) for n, word in enumerate(_NUMBERS.split())}
_FORMS = """
    'ow's'at 'twas ain't aren't can't could've couldn't couldn't've didn't doesn't don't hadn't hadn't've
    hasn't haven't he'd he'd've he's how'd how'll how's isn't it'd it'd've it'll ma'am might've mightn't
    mightn't've must've mustn't needn't not've o'clock oughtn't shan't she'd've should've shouldn't
    shouldn't've somebody'd've somebody'll somebody's someone'd someone'd've someone'll someone's
    something'd something'd've something'll that's there'd there'd've there're there's they'd they'd've
    they'll they're they've wasn't we'd've we've weren't what'll what're what's what've when's where'd
    where's where've who'd who'd've who'll who's who've why'll why're why's won't would've wouldn't
    wouldn't've y'all y'all'd've y'all'll you'd you'd've you'll you're you've
"""
# each form, by its spellings that lack one apostrophe
CONTRACTIONS = {
    form[:n] + form[n + 1 :]: form for form in _FORMS.split() for n, mark in enumerate(form) if mark == "'"
} | {"somebody'd": "somebodyd"}


def clean_answer(text: str) -> str:
    """Return an answer without punctuation, capitals and articles, with digits and apostrophes restored.

    >>> clean_answer("Two dogs; the cat dont care."), clean_answer("1,000"), clean_answer("black-and-white")
    ("2 dogs cat don't care", '1000', 'black and white')
    """
    text = re.sub(r"[\n\t]", " ", text).strip()
    joined, cleaned = re.search(r"\d,\d", text) is not None, text
    for mark in PUNCTUATION:  # a mark between two words becomes a space
        between = not joined and f"{mark} " not in text and f" {mark}" not in text
        cleaned = cleaned.replace(mark, " " if between else "")
    cleaned = re.sub(r"\.(?!\d)", "", cleaned)
    words = (NUMBERS.get(word, word) for word in cleaned.lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def vqa_metric(
    answers: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]]
) -> dict[str, Score]:
    """Compute the accuracy of answers in percent. references: those of people, one or several per question.

    With several, ten in the VQA data sets, an answer counts min(n / 3, 1), where n is how many people gave
    it, averaged over leaving each of them out. Answers are cleaned if people disagree, otherwise they have to
    be equal. With one reference, an answer is right or wrong, and both are cleaned.

    >>> people = [["yes"] * 3 + ["no"] * 7, ["2 dogs"]]
    >>> scores = vqa_metric(["Yes.", "Two dogs"], people)
    >>> round(scores["accuracy"].score, 6), scores["accuracy"].signature
    (95.0, 'VQA accuracy|questions:2|refs:1-10')
    """
    if len(answers) != len(references):
        reason = f"there are {len(answers)} answers and {len(references)} sets of references"
        raise ConflictError(("answers", "references"), reason)
    if not answers:
        raise EmptyInputError("list of answers")
    texts = [[one] if isinstance(one, str) else list(one) for one in references]
    if not all(texts):
        raise MissingValueError("a reference", f"for answer {1 + [*map(bool, texts)].index(False)}")
    total = sum(_accuracy(answer, group) for answer, group in zip(answers, texts, strict=True))
    sizes = sorted({len(group) for group in texts})
    refs = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]}-{sizes[-1]}"
    signature = f"VQA accuracy|questions:{len(texts)}|refs:{refs}"
    return {"accuracy": Score(score=100 * total / len(texts), signature=signature)}


def _accuracy(answer: str, people: Sequence[str]) -> float:
    """Return the accuracy of one answer, from 0 to 1."""
    if len(people) == 1:
        return float(clean_answer(answer) == clean_answer(people[0]))
    answer, *people = (re.sub(r"[\n\t]", " ", text).strip() for text in (answer, *people))
    if len(set(people)) > 1:
        answer, *people = map(clean_answer, (answer, *people))
    equal = people.count(answer)
    left_out = [equal - (one == answer) for one in people]
    return sum(min(n / FULL_CREDIT, 1.0) for n in left_out) / len(people)
