"""Fine-tune a BERT folder to classify texts, then classify with it.

The folder is a published checkpoint on your disk (config.json, model.safetensors, tokenizer files). The table
is a CSV, TSV or JSON Lines file with one text and one label per row.

    python examples/fine_tune_bert.py bert-base-uncased reviews.csv --out runs/reviews "A wonderful film."
"""

import argparse

import glassformer


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune BERT to classify texts.")
    parser.add_argument("bert", help="folder of the checkpoint")
    parser.add_argument("table", help="file with the columns text and label")
    parser.add_argument("texts", nargs="*", default=["A wonderful film.", "A waste of two hours."])
    parser.add_argument("--out", default="runs/classifier")
    parser.add_argument("--epochs", type=float, default=3)
    parser.add_argument("--max-len", type=int, default=128, help="longer texts are truncated")
    args = parser.parse_args()

    recipe = {
        "job": "classify",
        "data": {"train": args.table, "columns": ["text", "label"], "valid": 0.1, "max_len": args.max_len},
        "model": {"folder": args.bert},
        "training": {"epochs": args.epochs, "lr": 2e-5},
    }
    classifier = glassformer.train(recipe, args.out)
    for text, labels in zip(args.texts, classifier.classify(args.texts), strict=True):
        print(f"{labels[0].label} ({labels[0].score:.1%})  {text}")


if __name__ == "__main__":
    main()
