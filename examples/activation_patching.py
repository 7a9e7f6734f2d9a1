"""Find the heads that carry a piece of information by activation patching.

French says "mon père" but "ma mère". We translate two sentences that differ in that noun, copy the output of
one cross-attention head from the first run into the second, and measure how far the first word moves from
"Ma" back to "Mon".

    python examples/activation_patching.py
"""

import torch
from torch import Tensor

import glassformer

CLEAN = "My father is very tired."
CORRUPTED = "My mother is very tired."


def main() -> Tensor:
    pipeline = glassformer.load("pocket")
    model, tokenizer = pipeline.model, pipeline.tokenizer

    def encode(text: str) -> Tensor:
        return torch.tensor([tokenizer.encode(f">>fr<< {text}", parse_special=True).ids])

    tgt = torch.tensor([[model.spec.start_id]])  # the first word is predicted next
    mon, ma = (tokenizer.encode(word, special=False).ids[0] for word in ("Mon", "Ma"))

    def logit_difference(logits: Tensor) -> float:
        return (logits[0, -1, mon] - logits[0, -1, ma]).item()

    clean = glassformer.observe(model, (encode(CLEAN), tgt))
    corrupted = glassformer.observe(model, (encode(CORRUPTED), tgt))
    high, low = logit_difference(clean.output), logit_difference(corrupted.output)
    print(f"logit(Mon) - logit(Ma): {high:.2f} for the father, {low:.2f} for the mother")

    layers, heads = len(model.decoder.blocks), model.decoder.blocks[0].cross_attn.num_heads
    recovery = torch.zeros(layers, heads)
    for layer in range(layers):
        name = f"decoder.blocks.{layer}.cross_attn.heads"  # (B, H, T, K)
        for head in range(heads):

            def patch(x: Tensor, name: str = name, head: int = head) -> Tensor:
                x = x.clone()
                x[:, head] = clean[name][:, head]
                return x

            patched = glassformer.observe(model, (encode(CORRUPTED), tgt), edit={name: patch})
            recovery[layer, head] = (logit_difference(patched.output) - low) / (high - low)

    print("share of the difference that each head restores (rows: layers, columns: heads)")
    for layer, row in enumerate(recovery.tolist()):
        print(f"  layer {layer}  " + "  ".join(f"{value:6.1%}" for value in row))
    layer, head = divmod(int(recovery.argmax()), heads)
    print(f"largest effect: layer {layer}, head {head}")
    return recovery


if __name__ == "__main__":
    main()
