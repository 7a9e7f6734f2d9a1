"""From a source to a target: translate, summarise, mend."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from glassformer.bundle import Bundle
from glassformer.errors import GlassformerError
from glassformer.generation.config import GenerationConfig
from glassformer.generation.stopping import truncate_at_stop
from glassformer.tasks.reading import named, tokenizer_of
from glassformer.tasks.watch import UNWATCHED, Watch
from glassformer.tasks.writing.batches import Plan
from glassformer.tasks.writing.capitals import Capitals
from glassformer.tasks.writing.checks import settings_of
from glassformer.tasks.writing.doubts import doubts_of, learnt_length
from glassformer.tasks.writing.ends import Ends, check_job, ends_of, generation_of, shape_of
from glassformer.tasks.writing.pieces import Cutter, Layout, Place, Split, no_tag
from glassformer.tasks.writing.results import results
from glassformer.tasks.writing.signs import Signs
from glassformer.tasks.writing.sources import (
    UNSAID,
    Language,
    language,
    mending,
    own_tag,
    plain,
    task_prefix,
)
from glassformer.tokenization.sentence_split import is_unspaced

BEAMS = 4  # of translate and summarize, where neither the folder nor the caller says


def translate(
    bundle: Bundle,
    texts: str | Iterable[str],
    *,
    to: str | None = None,
    prefix: str | None = None,
    split: Split | None = None,
    details: bool = False,
    tree: bool = False,
    batch_tokens: int | None = None,
    watch: Watch = UNWATCHED,
    **settings: Any,
) -> Any:
    """Translate texts of one line or many; lines stay lines, and empty ones stay empty.

    to: the language to write, for a model that knows several, as its tokenizer spells it: "fra" for the tag
    >>fra<<, "fr_XX", or "de" where the folder names a task from one language into another.
    prefix: what is put before every piece, as "translate English to German: ".
    split: a line is translated whole up to 128 tokens, or as many as the model has learnt, and by its
    sentences beyond ("long"), "always" by its sentences, or "never": then a line that the model cannot read
    whole is refused. By itself always where the folder says that the model has learnt single sentences,
    else long. Pictures such as emoji that the vocabulary does not have stay as they are. A line all in
    capitals is read in the letters that the vocabulary was learnt from, and its translation is in capitals.
    """
    plan = translating(bundle, settings, to=to, prefix=prefix, split=split)
    return results(plan, texts, details=details, tree=tree, batch_tokens=batch_tokens, watch=watch)


def translating(
    bundle: Bundle,
    settings: dict[str, Any],
    *,
    to: str | None = None,
    prefix: str | None = None,
    split: Split | None = None,
) -> Plan:
    """The plan of `translate`."""
    about = check_job(bundle, "translate", jobs=("translate",))
    ends = _rewriting(bundle, "translate")
    if split is None:
        split = "always" if about.unit == "sentence" else "long"
    spoken = language(bundle, to)
    encode = plain(bundle, prefix=spoken.prefix if prefix is None else prefix, tag=spoken.tag)
    lead = own_tag(bundle) if spoken == UNSAID and not prefix else no_tag
    signs = Signs(tokenizer_of(bundle))
    cutter = Cutter(
        encode=encode,
        reads=ends.reads,
        learnt=learnt_length(bundle),
        split=_known(split),
        lead=lead,
        spelt=Capitals(tokenizer_of(bundle)).read,
        carried=signs.carried,
        read=signs.read,
    )
    return _rewrites(bundle, ends, cutter, searching(bundle, settings, spoken))


def summarize(
    bundle: Bundle,
    texts: str | Iterable[str],
    *,
    prefix: str | None = None,
    details: bool = False,
    tree: bool = False,
    batch_tokens: int | None = None,
    watch: Watch = UNWATCHED,
    **settings: Any,
) -> Any:
    """Summarise texts, each read whole; one that the model cannot read whole is refused.

    prefix: what is put before every text; by default what the folder says, as "summarize: ".
    """
    # Pairs of a text and its summary are learnt with the job translate too, but not by languages.
    check_job(bundle, "summarize", jobs=() if bundle.job.languages else ("translate",))
    ends = _rewriting(bundle, "summarize")
    if prefix is None:
        prefix = task_prefix(bundle, lambda name: name.startswith("summarization"))
    cutter = Cutter(encode=plain(bundle, prefix=prefix), reads=ends.reads, split="never", unit="text")
    return results(
        _rewrites(bundle, ends, cutter, searching(bundle, settings)),
        texts,
        details=details,
        tree=tree,
        batch_tokens=batch_tokens,
        watch=watch,
    )


def restore(
    bundle: Bundle,
    texts: str | Iterable[str],
    *,
    details: bool = False,
    tree: bool = False,
    batch_tokens: int | None = None,
    watch: Watch = UNWATCHED,
    **settings: Any,
) -> Any:
    """Mend sentences that were trimmed, gapped or shuffled; the gap's mark, `<gap>`, stands for words.

    The mark is the one the model was trained with, which the folder's job.json tells.
    """
    about = check_job(bundle, "restore", jobs=("restore",))
    if about.name != "restore":
        raise GlassformerError(f"{named(bundle)} was not trained to restore; train one with the job restore")
    ends = _rewriting(bundle, "restore")
    encode = mending(bundle, gap=about.gap, before=about.before)
    cutter = Cutter(encode=encode, reads=ends.reads)
    return results(
        _rewrites(bundle, ends, cutter, searching(bundle, settings)),
        texts,
        details=details,
        tree=tree,
        batch_tokens=batch_tokens,
        watch=watch,
    )


def searching(bundle: Bundle, settings: Mapping[str, Any], spoken: Language = UNSAID) -> GenerationConfig:
    """How the verb that the folder's model is for searches, with these settings over the folder's own.

    Where nothing says how, with several beams; to mend, with one.
    """
    said = {**generation_of(bundle), **{name: value for name, value in settings.items() if value is not None}}
    mends = bundle.job.name == "restore"
    if not (mends or "num_beams" in said or said.get("do_sample")):
        settings = {**settings, "num_beams": BEAMS}
    return settings_of(bundle, {**settings, **spoken.settings})


def usual_limit(read: int) -> int:
    """The most tokens written for a source of so many, where nothing says how many."""
    return 2 * read + 20


def _rewrites(bundle: Bundle, ends: Ends, cutter: Cutter, words: GenerationConfig) -> Plan:
    tokenizer = tokenizer_of(bundle)

    def text(ids: list[int]) -> str:
        # one line in, one line out
        return " ".join(truncate_at_stop(tokenizer.decode(ids), words.stop_strings).splitlines()).strip()

    def compose(layout: Layout, found: list[list[int]]) -> str:
        answers, whole, seam = iter(found), "", False
        for part in layout:
            said = part.answered(text(next(answers))) if isinstance(part, Place) else part
            if not said:
                continue
            # of two answers with nothing between them, as behind a wide stop, the language may want a space
            if seam and isinstance(part, Place) and not is_unspaced(whole[-1]):
                whole += " "
            whole += said
            seam = isinstance(part, Place)
        return whole

    return Plan(
        bundle=bundle,
        ends=ends,
        settings=words,
        layouts=cutter.layouts,
        compose=compose,
        decode=tokenizer.decode,
        limit=usual_limit,
        doubts=doubts_of(bundle),
    )


def _rewriting(bundle: Bundle, verb: str) -> Ends:
    if shape_of(bundle) != "rewrites":
        raise GlassformerError(
            f"{named(bundle)} goes on from a prompt and has no source to {verb}; use generate"
        )
    return ends_of(bundle)


def _known(split: Split) -> Split:
    if split not in ("long", "always", "never"):
        raise GlassformerError(f"split must be long, always or never; got {split!r}")
    return split
