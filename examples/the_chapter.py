"""The Transformer chapter as a script, from positions to a model that translates.

A Transformer learns to translate a hundred sentences from English to Korean. The script writes its pictures
and the model into the folder RUN; afterwards, look inside the model:

    python examples/the_chapter.py --out RUN
    glassformer explore RUN/model
"""

import argparse
import csv
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor, nn

import glassformer
from glassformer import (
    Encoder,
    EncoderLayer,
    PositionalEncoding,
    ScaledDotProductAttention,
    Transformer,
    plotting,
)
from glassformer.tokenization.train import TokenizerPlan, train_tokenizer

DATA = Path(__file__).parent / "data" / "korean-english.tsv"


def positions(out: Path) -> None:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), and the cosine on odd dimensions."""
    encoding = PositionalEncoding(d_model=64)
    x = torch.randn(2, 10, 64)
    print(
        "positions:", tuple(x.shape), "plus rows of", tuple(encoding.pe.shape), "is", tuple(encoding(x).shape)
    )
    print("wrote", plotting.save(plotting.positional_encoding(encoding), out / "positions.png"))


def one_layer(out: Path) -> None:
    """Attention as a formula, then one encoder layer with the attention map of each head."""
    Q, K, V = torch.randn(2, 5, 16), torch.randn(2, 7, 16), torch.randn(2, 7, 24)
    output, weights = ScaledDotProductAttention()(Q, K, V)
    print("attention:", tuple(output.shape), "with weights", tuple(weights.shape))

    words = "the animal did not cross the street".split()
    x = PositionalEncoding(64)(torch.randn(1, len(words), 64))
    x, weights = EncoderLayer(d_model=64, num_heads=4, d_ff=256).eval()(x, return_weights=True)
    figure = plotting.attention(weights, words, title="One encoder layer, before training")
    print("wrote", plotting.save(figure, out / "one-layer.png"))


def six_layers() -> None:
    """The encoder of the paper: the shapes stay as they are, and padding is masked."""
    encoder = Encoder(d_model=512, num_heads=8, d_ff=2048, num_layers=6)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    memory = encoder(torch.randn(2, 5, 512), mask=real[:, None, None])  # (B, 1, 1, S)
    count = sum(parameter.numel() for parameter in encoder.parameters())
    print(f"six layers: {tuple(memory.shape)}, {count:,} parameters")


def pad(rows: list[list[int]]) -> Tensor:
    """Stack rows of different lengths, filled up with 0."""
    return nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def train(model: Transformer, src: Tensor, tgt: Tensor, steps: int) -> None:
    """Predict each next token from those before it: the decoder is causal, and id 0 is masked as padding."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(1, steps + 1):
        logits = model(src, tgt[:, :-1])  # (B, T, V)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="The Transformer chapter, from positions to a translator.")
    parser.add_argument("--out", type=Path, default=Path("runs/chapter"))
    parser.add_argument("--max-steps", type=int, default=150)
    args = parser.parse_args()
    torch.manual_seed(0)

    positions(args.out)
    one_layer(args.out)
    six_layers()

    with DATA.open(encoding="utf-8", newline="") as file:
        table = {row["english"]: row["korean"] for row in csv.DictReader(file, delimiter="\t")}
    pairs = dict(islice(table.items(), 100, 200))
    plan = TokenizerPlan(kind="bpe", vocab_size=500, min_frequency=1)
    tokenizer = train_tokenizer([*pairs, *pairs.values()], plan)
    model = Transformer(
        *(128, 4, 512, 2),  # d_model, num_heads, d_ff, num_layers
        src_vocab_size=tokenizer.vocab_size,
        tgt_vocab_size=tokenizer.vocab_size,
        max_len=64,
        norm_first=True,
        tied=True,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
    )
    src = pad(tokenizer.encode_ids(list(pairs)))  # each text ends with the end token
    tgt = pad([[tokenizer.bos_id, *ids] for ids in tokenizer.encode_ids(list(pairs.values()))])
    train(model, src, tgt, args.max_steps)

    model.eval()
    translations = [tokenizer.decode(ids) for ids in model.generate(src, max_new_tokens=40)]
    for text, translation in islice(zip(pairs, translations, strict=True), 0, None, 20):
        print(f"{text} -> {translation}")
    right = sum(
        tokenizer.decode(ids[ids != 0].tolist()) == text for ids, text in zip(tgt, translations, strict=True)
    )
    print(f"translated as in the table: {right} of {len(pairs)}")

    record = glassformer.observe(model, (src[:1], tgt[:1]))  # every tensor of one sentence
    queries, keys = (tokenizer.pieces(ids[0][ids[0] != 0].tolist()) for ids in (tgt, src))
    weights = record.weights("decoder.blocks.1.cross_attn")[0, :, : len(queries), : len(keys)]
    figure = plotting.attention(weights, queries, keys=keys, title="Cross-attention of the last layer")
    print("wrote", plotting.save(figure, args.out / "cross-attention.png"))

    job = glassformer.JobInfo(name="translate", example={"text": next(iter(pairs))})
    glassformer.save(glassformer.Bundle(model=model, tokenizer=tokenizer, job=job), args.out / "model")
    print(f"look inside: glassformer explore {args.out / 'model'}")


if __name__ == "__main__":
    main()
