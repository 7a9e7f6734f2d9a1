"""From a model folder to its tokenizer, by the files the folder holds."""

from pathlib import Path

from glassformer.errors import GlassformerError
from glassformer.tokenization.bytelevel import load_byte_level
from glassformer.tokenization.declared import CONFIG, read_declared
from glassformer.tokenization.published import load_published
from glassformer.tokenization.sentences import BEGIN_MARKED, END_MARKED, load_sentences
from glassformer.tokenization.tokenizer import TARGET_FILE, Tokenizer
from glassformer.tokenization.two_libraries import load_two_libraries
from glassformer.tokenization.twosided import load_two_sided
from glassformer.tokenization.wordpiece import load_wordpiece


def load_tokenizer(folder: str | Path) -> Tokenizer | None:
    """Load the tokenizer of a published model folder; None where the folder has none.

    The first of these that is there decides: tokenizer.json, with tokenizer_target.json where the target
    side has a vocabulary of its own; source.spm with target.spm and vocab.json; spiece.model;
    sentencepiece.bpe.model or tokenizer.model; vocab.txt; vocab.json with merges.txt.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise GlassformerError(f"There is no folder {folder}.")

    def has(name: str) -> bool:
        return (folder / name).is_file()

    declared = read_declared(folder)
    if has(TARGET_FILE):
        return load_two_libraries(declared)
    if has("tokenizer.json"):
        return load_published(declared)
    if has("source.spm") or has("target.spm"):
        return load_two_sided(declared)
    if has("spiece.model"):
        return load_sentences(declared, "spiece.model", END_MARKED)
    for name in ("sentencepiece.bpe.model", "tokenizer.model"):
        if has(name):
            return load_sentences(declared, name, BEGIN_MARKED)
    if has("vocab.txt"):
        return load_wordpiece(declared)
    if has("vocab.json") and has("merges.txt"):
        return load_byte_level(declared)
    for name, other in (("vocab.json", "merges.txt"), ("merges.txt", "vocab.json")):
        if has(name):
            raise GlassformerError(f"{folder} has {name} but lacks {other}, its other half.")
    if has(CONFIG):
        raise GlassformerError(
            f"{folder} has a {CONFIG} but no vocabulary; put its tokenizer.json (or vocab.txt, "
            f"vocab.json with merges.txt, or *.model) beside it."
        )
    return None
