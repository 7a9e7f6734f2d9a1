"""Texts as the ids that a model which rewrites was taught to read: with a prefix, a tag, or gaps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.tasks.reading import named, sound, tokenizer_of
from glassformer.tasks.writing.languages import called, spelt, tags_of
from glassformer.tasks.writing.pieces import Encode
from glassformer.tokenization import encode_tagged

TAG = 32  # letters of the longest tag of a language, as >>cmn_Hans<<


@dataclass(frozen=True, kw_only=True)
class Language:
    """How a model is told the language to write: by a tag before the source, a prefix, or its first token."""

    tag: str | None = None
    prefix: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)


UNSAID = Language()


def language(bundle: Bundle, to: str | None, *, by: str = "--to (`to`)") -> Language:
    """The way in which this folder's model can be told the language `to`.

    Capitals count as small letters. by: by what the person in front says it, for the sentence to one who did
    not.
    """
    known = bundle.job.languages or ()
    if to is None and known:
        raise GlassformerError(
            f"{named(bundle)} writes several languages; say which with {by}: {', '.join(known)}"
        )
    if to is None:
        return UNSAID
    if (found := _told(bundle, to)) is not None:
        return found
    tags = tags_of(bundle)
    if (tag := spelt(tags, f"{to}")) is not None and (found := _told(bundle, tag)) is not None:
        return found
    if (tag := called(tags, f"{to}")) is not None:
        raise GlassformerError(f"{named(bundle)} has no language '{to}'; it knows that one as '{tag}'")
    if known:
        raise GlassformerError(f"{named(bundle)} has no language '{to}'; it writes {', '.join(known)}")
    raise GlassformerError(
        f"{named(bundle)} has no language '{to}': its tokenizer has neither '>>{to}<<' nor '{to}' "
        "as a mark, and its config names no such task; leave it out for a model of one language"
    )


def _told(bundle: Bundle, to: str) -> Language | None:
    """The way for a language that is spelt as the model has it; None: it has none of this spelling."""
    tokenizer = tokenizer_of(bundle)
    for tag in (f">>{to}<<", to):
        index = tokenizer.token_id(tag)
        if index is not None and tag.startswith(">>"):
            return Language(tag=tag)
        if index is not None and index in tokenizer.special_ids:
            return Language(settings={"forced_bos_token_id": index})
    prefix = task_prefix(bundle, lambda name: name.startswith("translation_") and name.endswith(f"_to_{to}"))
    return Language(prefix=prefix) if prefix else None


def task_prefix(bundle: Bundle, wanted: Callable[[str], bool]) -> str:
    """What the folder's config puts before the texts of a task."""
    tasks = bundle.config.get("task_specific_params")
    for name, words in tasks.items() if isinstance(tasks, Mapping) else ():
        if wanted(name) and isinstance(words, Mapping) and isinstance(words.get("prefix"), str):
            return str(words["prefix"])
    return ""


def plain(bundle: Bundle, *, prefix: str = "", tag: str | None = None) -> Encode:
    """Texts as they are, behind a prefix or a tag."""
    tokenizer = tokenizer_of(bundle)
    sound(prefix, "prefix")

    def encode(texts: Sequence[str]) -> list[list[int]]:
        told = [prefix + text for text in texts]
        found = tokenizer.encode_batch(told) if tag is None else encode_tagged(tokenizer, told, tag)
        return [one.ids for one in found]

    return encode


def own_tag(bundle: Bundle) -> Callable[[str], str]:
    """A line to the tag it begins with, where the tokenizer takes that for one token and not for text.

    Each sentence of a line that is split needs the tag that the line begins with.
    """
    tokenizer = tokenizer_of(bundle)

    def lead(line: str) -> str:
        if not line.startswith(">>"):
            return ""
        tag, mark, _ = line[:TAG].partition("<<")
        index = tokenizer.token_id(tag + mark)
        found = mark and index is not None and tokenizer.encode(tag + mark, special=False).ids == [index]
        rest = line[len(tag + mark) :]
        return line[: len(line) - len(rest.lstrip())] if found else ""

    return lead


def mending(bundle: Bundle, *, gap: Any, before: Any) -> Encode:
    """Texts with gaps: one id for each gap, and the words between spelled as they were in training.

    gap, before: what job.json says: the gap's mark, and what stands before a sentence.
    """
    tokenizer = tokenizer_of(bundle)
    index = tokenizer.token_id(gap) if isinstance(gap, str) and gap else None
    if index is None or not isinstance(before, str):
        raise GlassformerError(
            f"the job.json of {named(bundle)} names the gap {gap!r}, which its tokenizer does not have; "
            "use the folder as training wrote it"
        )
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
