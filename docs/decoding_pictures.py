"""Draws the pictures of decoding.md anew: `python -m docs.decoding_pictures MODEL`, from the root.

MODEL is a small translator from English to German. That of the page was trained on one core in ten minutes,
in a folder that has the files of Multi30k's task 1 in multi30k/:

    glassformer train translate --train multi30k/train.en.gz --train multi30k/train.de.gz \
        --valid multi30k/val.en.gz --valid multi30k/val.de.gz --out runs/multi30k \
        --set tokenizer.vocab_size=4000 --set model.d_model=128 --set model.num_layers=2 \
        --set model.num_heads=4 --set model.d_ff=384 --set model.dropout=0.05 --set training.batch=1280 \
        --set training.steps=3300 --set training.schedule=linear --set training.lr=0.004 \
        --set training.warmup=300 --set training.validate_every=1100 --set training.max_valid=100
"""

import sys
from pathlib import Path

import torch
from PIL import Image

import glassformer
from glassformer import plotting as draw
from glassformer.generation import GenerationConfig, GenerationRequest, generate, logits_processors

FOLDER = Path(__file__).parent / "pictures"
SEARCHED = "Two men wearing black in a city"
CHOSEN, BEGUN = "A kid is looking at coffee machines inside a store.", "Ein Kind"
COLOURS = 128  # of a flat drawing; the file is a third of what all colours take


def tree(bundle: glassformer.Bundle) -> Path:
    tokenizer = bundle.tokenizer
    assert tokenizer is not None and tokenizer.pad_id is not None
    (best,) = generate(
        bundle.model,
        torch.tensor([tokenizer.encode(SEARCHED).ids]),
        GenerationRequest(
            config=GenerationConfig(num_beams=4, max_new_tokens=36),
            eos_token_id=tokenizer.eos_id,
            pad_token_id=tokenizer.pad_id,
            return_tree=True,
        ),
    )[0]
    assert best.tree is not None
    figure = draw.search_tree(
        best.tree, lambda ids: tokenizer.pieces(ids, side="target"), title=f"“{SEARCHED}”, 4 beams"
    )
    return draw.save(figure, FOLDER / "tree.png")


def chances(bundle: glassformer.Bundle) -> Path:
    tokenizer = bundle.tokenizer
    assert tokenizer is not None
    source = torch.tensor([tokenizer.encode(CHOSEN).ids])
    begun = [bundle.spec.start_id, *tokenizer.encode(BEGUN, special=False).ids]
    with torch.inference_mode():
        logits = bundle.model(source, torch.tensor([begun]))[:, -1]
    ways = {
        "as the model gives them": logits,
        "temperature 0.5": logits / 0.5,
        "temperature 1.5": logits / 1.5,
        "top-k 4": logits_processors.keep_top_k(logits, 4),
        "top-p 0.7": logits_processors.keep_top_p(logits, 0.7),
        "min-p 0.1": logits_processors.keep_min_p(logits, 0.1),
    }
    figure = draw.next_token_bars(
        {name: scores[0].softmax(-1) for name, scores in ways.items()},
        tokenizer.pieces(range(logits.shape[-1]), side="target"),
        title=f"“{CHOSEN}”: what follows “{BEGUN}”",
    )
    return draw.save(figure, FOLDER / "chances.png")


def smaller(path: Path) -> None:
    with Image.open(path) as picture:
        flat = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    flat.save(path, optimize=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    loaded = glassformer.load(sys.argv[1])
    for drawn in (tree(loaded), chances(loaded)):
        smaller(drawn)
        print(f"drawn: {drawn.name}, {drawn.stat().st_size:,} bytes")
