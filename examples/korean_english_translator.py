"""Train a Korean-English translator from a TSV file and translate with it.

The TSV that ships with the examples is small (1,500 phrases), so the model only learns such phrases. Use your
own file for a real translator: the columns korean and english, one pair per row.

    python examples/korean_english_translator.py --tsv pairs.tsv --out runs/ko-en
"""

import argparse
from pathlib import Path

import glassformer


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a Korean-English translator.")
    parser.add_argument("--tsv", default=str(Path(__file__).parent / "data" / "korean-english.tsv"))
    parser.add_argument("--out", default="runs/ko-en", help="run folder; the same command resumes a run")
    parser.add_argument("--max-steps", type=int, default=600)
    args = parser.parse_args()

    recipe = {
        "job": "translate",
        "data": {"train": args.tsv, "columns": ["korean", "english"]},
        "tokenizer": {"kind": "unigram", "vocab_size": 2000},
        "model": {"preset": "original", "d_model": 128, "num_heads": 4, "d_ff": 512, "num_layers": 2},
        "training": {"max_steps": args.max_steps, "lr": 0.002, "device": "cpu"},
    }
    translator = glassformer.train(recipe, args.out)
    for text in ("안녕하세요!", "감사합니다.", "기차역이 어디예요?"):
        print(text, "->", translator.translate(text, num_beams=4))
    print(f"look inside: glassformer explore {args.out}")


if __name__ == "__main__":
    main()
