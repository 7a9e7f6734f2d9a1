"""Get the attention weights of every layer and head as NumPy arrays, and draw one layer as a figure.

python examples/attention_heads.py "A man is playing guitar on the street." --to ko
"""

import argparse

import torch

import glassformer
from glassformer import plotting
from glassformer.tasks import Translator


def main() -> None:
    parser = argparse.ArgumentParser(description="Extract the attention weights of a translation.")
    parser.add_argument("text", nargs="?", default="A man is playing guitar on the street.")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--to", default="ko")
    parser.add_argument("--out", default="cross-attention.png")
    args = parser.parse_args()

    pipeline = glassformer.load(args.model)
    tokenizer = pipeline.tokenizer
    translator = Translator(pipeline, to=args.to)
    translation = translator(args.text)
    print(translation.text)

    # Run the model once on the source and its translation, and record every attention layer.
    src = torch.tensor([tokenizer.encode(f">>{args.to}<< {args.text}", parse_special=True).ids])
    tgt = torch.tensor([[pipeline.model.spec.start_id, *tokenizer.encode(translation.text).ids]])
    record = glassformer.observe(pipeline.model, (src, tgt))

    arrays = {name: record.weights(name)[0].numpy() for name in record.attentions()}  # (H, T, S) each
    for name, weights in arrays.items():
        print(f"{name:32} {weights.shape}")

    layer = "decoder.blocks.2.cross_attn"
    figure = plotting.attention_grid(
        record.weights(layer)[0],
        queries=tokenizer.tokens(tgt[0].tolist()),
        keys=tokenizer.tokens(src[0].tolist()),
        title=layer,
    )
    print("wrote", plotting.save(figure, args.out))


if __name__ == "__main__":
    main()
