"""Train your own module with your own loss, dataset, metric and callback.

A small Transformer with a regression head learns the sum of a sequence of digits. The examples come from an
endless stream that knows its position, so that a stopped run resumes where it was.

    python examples/train_own_module.py --max-steps 600 --out runs/sum
"""

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset

import glassformer
from glassformer import Block, FeedForward, LayerNorm, MultiHeadAttention, Stack

DIGITS, LENGTH, D_MODEL = 10, 6, 64


class SumOfDigits(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, D_MODEL)
        block = Block(
            self_attn=MultiHeadAttention(D_MODEL, num_heads=4),
            ffn=FeedForward(D_MODEL, d_ff=128),
            norm=lambda: LayerNorm(D_MODEL),
            wiring="pre",
        )
        self.encoder = Stack([block], final_norm=LayerNorm(D_MODEL))
        self.output = nn.Linear(D_MODEL, 1)

    def forward(self, digits: Tensor) -> Tensor:
        """Return the sums (B,) of digits (B, T)."""
        return self.output(self.encoder(self.embedding(digits))).sum((1, 2))


class Numbers(IterableDataset):
    """Random digits without end. With its state, a run resumes without reading the stream again."""

    position = 0

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while True:
            self.position += 1
            generator = torch.Generator().manual_seed(self.position)
            digits = torch.randint(DIGITS, (LENGTH,), generator=generator)
            yield digits, digits.sum().float()

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position = state["position"]


class Regression(glassformer.TrainingTask):
    def loss(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        digits, sums = batch
        return F.smooth_l1_loss(model(digits), sums)

    def evaluate(self, model: nn.Module, batches: Any) -> dict[str, float]:
        errors = torch.cat([(model(digits) - sums).abs() for digits, sums in batches])
        return {"mae": float(errors.mean()), "exact": float((errors < 0.5).float().mean())}


class StopWhenExact(glassformer.TrainerCallback):
    def on_evaluate(self, trainer: glassformer.Trainer, metrics: Any) -> None:
        trainer.should_stop = metrics["exact"] == 1.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--max-steps", type=int, default=600)
    parser.add_argument("--out", default="runs/sum")
    args = parser.parse_args()
    torch.manual_seed(0)
    held_out = [(digits, digits.sum().float()) for digits in torch.randint(DIGITS, (500, LENGTH))]
    trainer = glassformer.Trainer(
        SumOfDigits(),
        Regression(),
        train_dataset=Numbers(),
        eval_dataset=held_out,
        callbacks=[StopWhenExact()],
        folder=args.out,
        max_steps=args.max_steps,
        batch_size=64,
        lr=3e-3,
        eval_steps=100,
    )
    result = trainer.train()
    metrics = trainer.evaluate()
    print(f"{result.outcome} at step {result.step}: mean error {metrics['mae']:.3f}")
    digits = torch.tensor([[1, 2, 3, 4, 5, 6]])
    with torch.no_grad():
        print(f"{' + '.join(map(str, digits[0].tolist()))} = {float(trainer.model.eval()(digits)):.2f}")


if __name__ == "__main__":
    main()
