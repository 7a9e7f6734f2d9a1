"""Fashion-MNIST with the published split: Swin and a Vision Transformer, from scratch, for equal time.

Runs are "swin/1" and "vit/1". Both have the augmentation of the recipe `images-fashion` and train for the
same number of seconds: a short run measures the seconds per step, and the schedule is fitted to them.
"""

from __future__ import annotations

from experiments.language import seconds_per_step
from experiments.paths import Workspace
from experiments.pictures import DIGITS, accuracy_of, digits, learn, split
from experiments.records import note
from experiments.training_runs import Trained

ROW, SECONDS, TIMED_STEPS = "fashion", 650.0, 200
RECIPES = {"swin": "images-fashion", "vit": "images-digits"}
# the ViT gets the data options of the other recipe, and about as many parameters
CHANGES: dict[str, tuple[str, ...]] = {
    "swin": (),
    "vit": (
        *("data.flip_prob=0.5", "data.max_shift=2", "data.max_rotation=0", "data.erase_prob=0.25"),
        *("data.cutmix_prob=0.3", "data.mixup_prob=0.2", "training.drop_path_rate=0.1"),
        *(
            "model.patch_size=2",
            "model.d_model=192",
            "model.num_heads=6",
            "model.d_ff=768",
            "model.dropout=0.0",
        ),
    ),
}


def run(workspace: Workspace, name: str) -> None:
    """Train one model with one seed, and record its accuracy on the 10,000 test images."""
    kind, seed = name.split("/")
    folder = workspace.prepared(ROW)
    if not (folder / "valid.npz").exists():
        split(digits(workspace.data / "fashion-mnist", "train"), DIGITS, folder)

    def train(run_name: str, steps: int, validations: int) -> Trained:
        length = (f"training.max_steps={steps}", f"training.eval_steps={max(1, steps // validations)}")
        more = (*CHANGES[kind], *length, f"training.logging_steps={max(1, min(50, steps // 10))}")
        return learn(workspace, ROW, run_name, RECIPES[kind], folder, int(seed), more)

    pace = seconds_per_step(train(f"timed/{name}", TIMED_STEPS, validations=1))
    steps = max(10, int((workspace.seconds or SECONDS) / pace))
    trained = train(name, steps, validations=10)
    figures = {
        "accuracy": accuracy_of(trained.model, workspace.data / "fashion-mnist", workspace),
        "steps": float(steps),
        "seconds of steps": steps * seconds_per_step(trained),
    }
    note(workspace, ROW, name, seed=int(seed), trained=trained, figures=figures)
