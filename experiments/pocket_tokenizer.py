"""The default translator's tokenizer: four languages, single digits, byte fallback for rare characters.

python -m experiments.pocket_tokenizer --tables FOLDER --out FOLDER

There is no unknown token: a character outside the vocabulary becomes its bytes. Quotes, dashes and spaces are
normalized like the training pairs. Each language has about the same weight in training.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, normalizers, pre_tokenizers

from experiments.pocket_data import TAGS, read
from experiments.pocket_text import WRITTEN
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

SIZE = 16_000
BYTES = 256
RARE = 12  # letters that occur less often are spelled by bytes
ENGLISH = 0.35  # of the English texts, which come with every other language, this share is learnt from
DIGITS = "0123456789"


def learn(rows: Iterable[list[str]], out: Path, *, size: int = SIZE, rare: int = RARE) -> Tokenizer:
    """Train on rows (source, target, to), and save."""
    texts = list(_texts(rows))
    counts = Counter(letter for text in texts for letter in text)
    frequent = {letter for letter, count in counts.items() if count >= rare}
    known = ("".join(letter if letter in frequent else " " for letter in text) for text in texts)
    tags = tuple(f">>{tag}<<" for tag in TAGS)
    plan = TokenizerPlan(kind="bpe", vocab_size=size - BYTES, tags=tags, template="eos")
    train_tokenizer([*known, " ".join(DIGITS), DIGITS], plan).save(out)
    path = out / "tokenizer.json"
    backend = _with_bytes(json.loads(path.read_text(encoding="utf-8")), plan.num_special)
    written = [normalizers.Replace(*change) for change in WRITTEN.items()]
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), *written])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [backend.pre_tokenizer, pre_tokenizers.Digits(individual_digits=True)]
    )
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), backend.decoder])
    path.write_text(backend.to_str(), encoding="utf-8")
    tokenizer = load_tokenizer(out)
    assert tokenizer is not None
    return tokenizer


def _texts(rows: Iterable[list[str]], *, seed: int = 1) -> Iterator[str]:
    """Every text once, of English a fraction; without digits, which are single tokens."""
    rng = random.Random(seed)
    for source, target, to in rows:
        if to == "en":
            yield re.sub(r"\d+", " ", source)
            if rng.random() < ENGLISH:
                yield re.sub(r"\d+", " ", target)


def _with_bytes(described: dict[str, Any], at: int) -> Backend:
    """The same vocabulary, with a token for every byte after the special tokens."""
    model = described["model"]
    spelled = {f"<0x{byte:02X}>": at + byte for byte in range(BYTES)}
    model["vocab"] = {
        **spelled,
        **{piece: index if index < at else index + BYTES for piece, index in model["vocab"].items()},
    }
    model["byte_fallback"] = True
    return Backend.from_str(json.dumps(described))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.pocket_tokenizer", description=__doc__)
    parser.add_argument("--tables", type=Path, required=True, help="where train.tsv.gz lies")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    tokenizer = learn(read(args.tables / "train.tsv.gz"), args.out)
    print(f"{tokenizer.vocab_size:,} tokens")
    for name in sorted({row[3] for row in read(args.tables / "test.tsv.gz")}):
        texts = [row[1] for row in read(args.tables / "test.tsv.gz") if row[3] == name]
        ids = [one.ids[:-1] for one in tokenizer.encode_batch(texts)]
        many = sum(map(len, ids)) / sum(len(text.split()) for text in texts)
        back = sum(tokenizer.decode(one) == text for one, text in zip(ids, texts, strict=True))
        print(f"{name:14} {many:.2f} tokens a word, {back} of {len(texts)} texts come back")


if __name__ == "__main__":
    main()
