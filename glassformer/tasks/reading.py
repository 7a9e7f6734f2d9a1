"""Many inputs read by a model together: near in length, within a budget of tokens, answered in their order.

A bounded stretch of inputs is held at a time, whatever their number: it is made ready, sorted by length, cut
into batches, and answered in the order it came.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, TypeVar

import torch
from torch import Tensor

from glassformer.bundle import Bundle
from glassformer.core import spec as specs
from glassformer.errors import GlassformerError
from glassformer.inference.encoder import supports
from glassformer.tasks.watch import UNWATCHED, Refuse, Watch, refused
from glassformer.tokenization import Encoded, SpecialInText, Tokenizer

AHEAD = 1024  # inputs that are looked at together
LETTERS = 1 << 22  # and at most so many characters of them
TOKENS = 16_384  # of a batch, padding counted

In = TypeVar("In")
Out = TypeVar("Out")


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A batch of texts as a model takes it: ids (B, T), which of them are real, types where it has them."""

    ids: Tensor
    real: Tensor | None
    types: Tensor | None

    def words(self) -> dict[str, Tensor]:
        """What an encoder of tokens takes beside the ids."""
        return {} if self.types is None else {"types": self.types}


def stretches(inputs: Iterable[In], ahead: int = AHEAD) -> Iterator[list[In]]:
    """The inputs in order, so many at a time and not too many letters."""
    held: list[In] = []
    letters = 0
    for one in inputs:
        held.append(one)
        letters += len(one) if isinstance(one, str) else 0
        if len(held) >= ahead or letters >= LETTERS:
            yield held
            held, letters = [], 0
    if held:
        yield held


def batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """The numbers of inputs that are read together, the longest first: a batch that fits comes soonest.

    >>> list(batches([2, 9, 3, 8], tokens=18))
    [[1, 3], [2, 0]]
    """
    if tokens < 1:
        raise GlassformerError(f"a batch of {tokens} tokens holds nothing; give at least 1")
    order = sorted(range(len(lengths)), key=lambda n: -lengths[n])
    at = 0
    while at < len(order):
        count = max(1, tokens // max(1, lengths[order[at]]))
        yield order[at : at + count]
        at += count


def in_order(
    lengths: Sequence[int],
    answer: Callable[[list[int]], Sequence[Out]],
    *,
    tokens: int = TOKENS,
    watch: Watch = UNWATCHED,
) -> list[Out]:
    """What `answer` says of each input, batch by batch, put back into the order of the inputs."""
    found: dict[int, Out] = {}
    for rows in batches(lengths, tokens):
        found.update(zip(rows, answer(rows), strict=True))
        watch.answered(len(rows))
    return [found[n] for n in range(len(lengths))]


def where_sound(
    texts: Sequence[Encoded | None],
    answer: Callable[[list[Encoded]], Sequence[Out]],
    *,
    tokens: int = TOKENS,
    watch: Watch = UNWATCHED,
) -> list[Out | None]:
    """What `answer` says of each text, batch by batch, in their order; None for one that is not asked."""
    asked = {n: one for n, one in enumerate(texts) if one is not None}
    watch.answered(len(texts) - len(asked))
    sound = list(asked.values())
    some = in_order(
        [len(one) for one in sound],
        lambda rows: answer([sound[row] for row in rows]),
        tokens=tokens,
        watch=watch,
    )
    found = dict(zip(asked, some, strict=True))
    return [found.get(n) for n in range(len(texts))]


def together(encoded: Sequence[Encoded], bundle: Bundle) -> Tokens:
    """Texts of any length as one batch, padded at their ends, on the model's device."""
    read = reads(bundle)
    longest = max(len(one) for one in encoded)
    ids = torch.full((len(encoded), longest), read.pad_id or 0)
    types = torch.zeros_like(ids)
    real = torch.zeros_like(ids, dtype=torch.bool)
    for row, one in enumerate(encoded):
        ids[row, : len(one)] = torch.tensor(one.ids)
        types[row, : len(one)] = torch.tensor(one.types)
        real[row, : len(one)] = True
    device = device_of(bundle)
    return Tokens(
        ids=ids.to(device),
        real=None if bool(real.all()) else real.to(device),
        types=types.to(device) if (read.types or 0) > 1 else None,
    )


def reads(bundle: Bundle) -> specs.Tokens:
    """What a model of texts reads; a sentence for any other model."""
    spec: Any = bundle.spec
    read = getattr(spec, "input", getattr(spec, "source", None))
    if not isinstance(read, specs.Tokens):
        raise GlassformerError(f"{named(bundle)} reads no texts; it {reading_of(read)}")
    return read


def reading_of(read: object) -> str:
    """What a model reads, in words."""
    match read:
        case specs.ImagePatches():
            return "reads pictures"
        case specs.SeriesPatches():
            return "reads series of numbers"
        case specs.Tokens():
            return "reads texts"
        case specs.Vectors():
            return "reads vectors"
    return "is a simple baseline"


def named(bundle: Bundle) -> str:
    """The model, in a sentence: by its folder's name or its run's, for who asks need not know more."""
    folder = bundle.folder
    if folder is not None and (folder.parent / "recipe.yaml").is_file():
        folder = folder.parent
    return f"the model '{folder.name}'" if folder and folder.name else "this model"


def device_of(bundle: Bundle) -> torch.device:
    """Where the model's numbers are; a model without any runs on the CPU."""
    first = next(bundle.model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def model_of(bundle: Bundle) -> Any:
    """The model as texts and pictures are read with it: an encoder laid out for this machine."""
    if supports(bundle.model):
        return bundle.ready()
    if bundle.weights != "own":
        raise GlassformerError(
            f"{named(bundle)} is read by its own weights here; leave out {bundle.weights}, which is for "
            "encoders of texts and pictures, and for writing"
        )
    return bundle.model


def tokenizer_of(bundle: Bundle) -> Tokenizer:
    """The model's tokenizer; a sentence where it has none."""
    if bundle.tokenizer is not None:
        return bundle.tokenizer
    spec: Any = bundle.spec
    others = specs.ImagePatches | specs.SeriesPatches | specs.Vectors
    if isinstance(getattr(spec, "input", None), others) or hasattr(spec, "prediction_length"):
        reads(bundle)  # which says what it reads instead
    missing = "put its tokenizer.json (or vocab.txt, ...) into its folder"
    if bundle.folder is None:
        missing = "give the folder of a model that has one"
    raise GlassformerError(f"{named(bundle)} has no tokenizer; {missing}")


def room_of(bundle: Bundle) -> int:
    """The most tokens the model reads at once; a very large number where nothing bounds it."""
    position = reads(bundle).position
    job = bundle.job
    declared = bundle.tokenizer.max_length if bundle.tokenizer is not None else None
    known = [getattr(position, "max_len", None), getattr(bundle.spec, "max_len", None)]
    known += [job.max_len, declared]
    return min((most for most in known if most is not None), default=1 << 30)


def listed(inputs: Any, what: str = "texts") -> Iterable[Any]:
    """Inputs to go through; one text or file alone is a list of one."""
    if isinstance(inputs, str | PathLike):
        return [inputs]
    if isinstance(inputs, bytes) or not isinstance(inputs, Iterable):
        raise GlassformerError(f"give a list of {what}, not {type(inputs).__name__}")
    return inputs


def as_given(inputs: Any, results: Iterator[Out]) -> Out | list[Out] | Iterator[Out]:
    """One answer for one input alone, a list for a list, an iterator for an iterator."""
    if isinstance(inputs, str | PathLike):
        return next(results)
    return list(results) if isinstance(inputs, Collection) else results


def sound(text: object, name: str) -> str:
    """A text, if it is one; else a sentence about it under its name, as "text 2".

    The command line hands on bytes that are no UTF-8 as halves of letters, which no model reads.
    """
    if not isinstance(text, str):
        raise GlassformerError(f"{name} must be a string, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise GlassformerError(
            f"{name} is not Unicode: half a letter stands at its place {error.start + 1:,}; mend it"
        ) from None
    return text


def asked(texts: Iterable[object], *, first: int, watch: Watch) -> list[str | None]:
    """The texts, of which `first` is the number of the first among all; None for a blank one that is left."""
    return [None if watch.leaves(text) else sound(text, f"text {n:,}") for n, text in enumerate(texts, first)]


def encoded(
    bundle: Bundle,
    texts: Sequence[str | None],
    *,
    first: int,
    room: int,
    truncate: bool | None = None,
    special_in_text: SpecialInText = "plain",
    refuse: Refuse | None = None,
) -> list[Encoded | None]:
    """The texts as tokens, none longer than `room`: a longer one is cut where that is asked, else refused.

    `first`: the number of the first of these texts among all, for a sentence about one. `truncate`: whether
    it is asked; None: it cannot be, so that nobody is told to. Of what is given back None: it is refused, or
    was None, which is not asked.
    """
    tokenizer = tokenizer_of(bundle)
    vocabulary = reads(bundle).vocab_size
    made: list[Encoded | None] = []
    some = [text for text in texts if text is not None]
    found = iter(tokenizer.encode_batch(some, special_in_text=special_in_text))
    for n, text in enumerate(texts, first):
        if text is None:
            made.append(None)
            continue
        one = next(found)
        if not one.ids:
            why = f"is empty, and {named(bundle)} marks no beginning or end that could stand for it"
            refused(refuse, "text", n, f"{why}; leave it out")
            made.append(None)
            continue
        if max(one.ids) >= vocabulary:
            raise GlassformerError(
                f"the tokenizer gives the token {max(one.ids)}, and {named(bundle)} knows {vocabulary:,}; "
                "use the tokenizer it was trained with"
            )
        if len(one) > room and not truncate:
            why = f"has {len(one):,} tokens and {named(bundle)} reads at most {room:,}"
            way = "shorten it" if truncate is None else "shorten it, or ask for it to be cut (truncate)"
            refused(refuse, "text", n, f"{why}; {way}")
            made.append(None)
            continue
        made.append(cut(one, room) if len(one) > room else one)
    return made


def cut(one: Encoded, room: int) -> Encoded:
    """The first tokens of a text, with the marks around it kept."""
    marks = [n for n, sequence in enumerate(one.sequences) if sequence is None]
    kept = room - len(marks)
    if kept < 1:
        raise GlassformerError(f"a room of {room} tokens leaves none for the text; give more")
    text = [n for n, sequence in enumerate(one.sequences) if sequence is not None][:kept]
    return picked(one, sorted([*marks, *text]))


def picked(one: Encoded, rows: Sequence[int]) -> Encoded:
    """Some of a text's tokens."""
    return Encoded(
        ids=[one.ids[n] for n in rows],
        types=[one.types[n] for n in rows],
        offsets=[one.offsets[n] for n in rows],
        sequences=[one.sequences[n] for n in rows],
        words=[one.words[n] for n in rows],
    )
