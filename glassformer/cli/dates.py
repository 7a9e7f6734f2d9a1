"""The demo's task: dates, letter by letter, from "2024-03-17" to "17 march 2024".

Small enough to learn in seconds, and still a translation: the parts change places, the month becomes a
word, and the day loses its leading zero.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend
from torch import Tensor
from torch.nn import functional as F

from glassformer.api import Bundle, build
from glassformer.core.cache import Cache
from glassformer.core.model import EncoderDecoder
from glassformer.core.observe import observe
from glassformer.text import Tokenizer, load_tokenizer

MONTHS = "january february march april may june july august september october november december".split()
MARKS = ("<pad>", "<s>", "</s>", "<unk>")
PAD, START, END = 0, 1, 2
FIRST, LAST = date(1900, 1, 1), date(2099, 12, 31)
EXAMPLE = date(2024, 3, 17)  # the one that is drawn; never learnt from
LONGEST = len("30 september 2000") + 1  # and the end mark
BATCH = 64

Pair = tuple[str, str]


def pair(day: date) -> Pair:
    """What is read and what is to be written.

    >>> pair(date(2024, 3, 7))
    ('2024-03-07', '7 march 2024')
    """
    return day.isoformat(), f"{day.day} {MONTHS[day.month - 1]} {day.year}"


def split(held_out: int = 1000, seed: int = 0) -> tuple[list[Pair], list[Pair]]:
    """All dates of two centuries, shuffled: to learn from, and kept for the test (EXAMPLE first)."""
    days = [FIRST + timedelta(n) for n in range((LAST - FIRST).days + 1)]
    days.remove(EXAMPLE)
    random.Random(seed).shuffle(days)
    days.insert(0, EXAMPLE)
    pairs = [pair(day) for day in days]
    return pairs[held_out:], pairs[:held_out]


def letters() -> Tokenizer:
    """A tokenizer with one token a letter, which closes every text with </s>."""
    known = sorted(set("0123456789- " + "".join(MONTHS)))
    vocab = {token: n for n, token in enumerate((*MARKS, *known))}
    backend = Backend(models.WordLevel(vocab, unk_token="<unk>"))
    backend.add_special_tokens(list(MARKS))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    backend.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocab["</s>"])]
    )
    backend.decoder = decoders.Fuse()
    with TemporaryDirectory() as folder:
        backend.save(str(Path(folder) / "tokenizer.json"))
        tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def fresh(seed: int = 0) -> Bundle:
    """The paper's Transformer at a hundredth of its size, untrained, with its tokenizer."""
    torch.manual_seed(seed)
    tokenizer = letters()
    model = build(
        "original",
        d_model=64,
        num_heads=4,
        d_ff=256,
        num_layers=2,
        src_vocab_size=tokenizer.vocab_size,
        max_len=32,
        dropout=0.1,
        tied=("source", "head"),
        pad_id=PAD,
        start_id=START,
    )
    return Bundle(model=model, tokenizer=tokenizer)


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Texts as ids (B, T), each closed by the end mark and filled up with padding."""
    rows = [row.ids for row in tokenizer.encode_batch(list(texts))]
    longest = max(map(len, rows))
    return torch.tensor([row + [PAD] * (longest - len(row)) for row in rows])


def train(
    bundle: Bundle,
    pairs: Sequence[Pair],
    *,
    steps: int,
    peak: float = 3e-3,
    report: Callable[[int, float], None] = lambda step, loss: None,
) -> None:
    """Teach the model, each pair seen once: AdamW, the rate rising for a tenth of the steps, then falling."""
    model, tokenizer = bundle.model, bundle.tokenizer
    assert tokenizer is not None
    warm = max(1, steps // 10)
    optimiser = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.98))
    model.train()
    for step in range(steps):
        share = (step - warm) / max(1, steps - warm)
        rate = (step + 1) / warm if step < warm else 0.5 * (1 + math.cos(math.pi * share))
        optimiser.param_groups[0]["lr"] = peak * rate
        at = step * BATCH % (len(pairs) - BATCH + 1)
        sources, targets = zip(*pairs[at : at + BATCH], strict=True)
        src, wanted = encode(tokenizer, sources), encode(tokenizer, targets)
        logits = model(src, _given(wanted))  # (B, T, V)
        loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        report(step + 1, loss.item())
    model.eval()


@torch.no_grad()
def translate(bundle: Bundle, texts: Sequence[str]) -> list[str]:
    """Write each answer letter by letter, always the likeliest next, each fed back in, until the end mark."""
    model, tokenizer = bundle.model, bundle.tokenizer
    assert isinstance(model, EncoderDecoder) and tokenizer is not None
    memory = model.encode(encode(tokenizer, texts))
    cache = Cache.allocate(model.spec, batch=len(texts), max_len=LONGEST)
    latest = torch.full((len(texts), 1), START)
    written = []
    for _ in range(LONGEST):
        latest = model.decode(latest, memory, cache=cache)[:, -1].argmax(-1, keepdim=True)  # (B, 1)
        written.append(latest)
        if (torch.cat(written, 1) == END).any(1).all():
            break
    rows = torch.cat(written, 1).tolist()
    return [tokenizer.decode(row[: row.index(END)] if END in row else row) for row in rows]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The last cross-attention of one translation: heads (H, T, S), and the letters written and read."""

    heads: Tensor
    written: list[str]
    read: list[str]
    title: str


def look(bundle: Bundle, source: str = EXAMPLE.isoformat()) -> Seen:
    """Translate one date and see where each written letter looked."""
    model, tokenizer = bundle.model, bundle.tokenizer
    assert isinstance(model, EncoderDecoder) and tokenizer is not None
    answer = translate(bundle, [source])[0]
    src, written = encode(tokenizer, [source]), encode(tokenizer, [answer])
    name = f"decoder.blocks.{model.spec.decoder.num_layers - 1}.cross_attn"
    record = observe(model, (src, _given(written)), want=f"{name}.*")
    title = f"{source} → {answer}"
    return Seen(heads=record.weights(name)[0], written=[*answer, "end"], read=[*source, "end"], title=title)


def _given(wanted: Tensor) -> Tensor:
    """What the decoder reads while it is to write `wanted` (B, T): the start mark, and all but the last."""
    return F.pad(wanted[:, :-1], (1, 0), value=START)
