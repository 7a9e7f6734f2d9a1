"""Build an encoder-decoder Transformer from its parts and train it with a plain PyTorch loop.

The task is to reverse a sequence of digits, which the model has to read completely before it can start.

    python examples/transformer_from_parts.py --max-steps 400
"""

import argparse

import torch
from torch import Tensor, nn

import glassformer
from glassformer import Block, FeedForward, LayerNorm, Mask, MultiHeadAttention, SinusoidalPositions, Stack

PAD, BOS, VOCAB = 0, 1, 12  # ids 2 to 11 are the digits
D_MODEL, NUM_HEADS, D_FF, NUM_LAYERS, LENGTH = 64, 4, 128, 2, 8


def make_stack(*, cross_attention: bool) -> Stack:
    """Build an encoder stack, or a causal decoder stack with cross-attention."""
    blocks = [
        Block(
            self_attn=MultiHeadAttention(D_MODEL, num_heads=NUM_HEADS),
            cross_attn=MultiHeadAttention(D_MODEL, num_heads=NUM_HEADS) if cross_attention else None,
            ffn=FeedForward(D_MODEL, d_ff=D_FF),
            norm=lambda: LayerNorm(D_MODEL),
            wiring="pre",
        )
        for _ in range(NUM_LAYERS)
    ]
    return Stack(blocks, causal=cross_attention, final_norm=LayerNorm(D_MODEL))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, D_MODEL)
        # std 1 after scaling by sqrt(D_MODEL), similar to the position encoding
        nn.init.normal_(self.embedding.weight, std=D_MODEL**-0.5)
        self.positions = SinusoidalPositions(D_MODEL, max_len=64)
        self.encoder = make_stack(cross_attention=False)
        self.decoder = make_stack(cross_attention=True)
        self.output = nn.Linear(D_MODEL, VOCAB)

    def embed(self, ids: Tensor) -> Tensor:
        positions = torch.arange(ids.shape[1])
        return self.embedding(ids) * D_MODEL**0.5 + self.positions(positions)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits (B, T, V) for source ids (B, S) and target ids (B, T)."""
        padding = Mask(padding=src != PAD)
        memory = self.encoder(self.embed(src), mask=padding)
        return self.output(self.decoder(self.embed(tgt), memory, memory_mask=padding))

    @torch.no_grad()
    def generate(self, src: Tensor, length: int) -> Tensor:
        """Decode greedily without a KV cache, the simplest correct loop."""
        tgt = torch.full((len(src), 1), BOS)
        for _ in range(length):
            next_ids = self(src, tgt)[:, -1].argmax(-1, keepdim=True)
            tgt = torch.cat((tgt, next_ids), dim=1)
        return tgt[:, 1:]


def make_batch(size: int) -> tuple[Tensor, Tensor]:
    src = torch.randint(2, VOCAB, (size, LENGTH))
    return src, src.flip(1)


def main() -> float:
    parser = argparse.ArgumentParser(description="Train a Transformer to reverse sequences of digits.")
    parser.add_argument("--max-steps", type=int, default=400)
    steps = parser.parse_args().max_steps

    torch.manual_seed(0)
    model = Transformer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps)
    for step in range(1, steps + 1):
        src, tgt = make_batch(64)
        decoder_input = torch.cat((torch.full((len(tgt), 1), BOS), tgt[:, :-1]), dim=1)
        logits = model(src, decoder_input)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tgt.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        if step % 100 == 0:
            print(f"step {step}: loss {loss.item():.3f}")

    model.eval()
    src, tgt = make_batch(256)
    accuracy = (model.generate(src, LENGTH) == tgt).all(1).float().mean().item()
    print(f"sequences reversed correctly: {accuracy:.1%}")

    # To get the attention of any layer, pass an observer to the module you want to inspect.
    observer = glassformer.Observer(want="blocks.1.cross_attn.*")
    with torch.no_grad():
        memory = model.encoder(model.embed(src[:1]))
        model.decoder(model.embed(tgt[:1]), memory, obs=observer)
    print("cross-attention of layer 1, head 0:")
    print((observer.record.weights("blocks.1.cross_attn", head=0)[0] * 100).round().int())
    return accuracy


if __name__ == "__main__":
    main()
