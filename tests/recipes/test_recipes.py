"""The recipes that ship with the package: minimal, titled, and each one trains."""

import pytest
import yaml

from glassformer.recipes import names, recipe_path, title
from glassformer.training.jobs import all_jobs
from glassformer.training.recipe import Recipe, parse_recipe, read_recipe


def test_every_job_has_a_recipe():
    assert {read_recipe(recipe_path(name)).spec.title for name in names()} == {
        job.title for job in all_jobs()
    }


@pytest.mark.parametrize("name", names())
def test_recipe_contains_only_what_differs_from_the_defaults(name):
    path = recipe_path(name)
    data = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert len(title(path)) > 20
    for section in set(data) & {"tokenizer", "model", "training"}:
        for key in data[section]:
            without = {**data, section: {k: v for k, v in data[section].items() if k != key}}
            assert parse_recipe(without) != parse_recipe(data), f"{section}.{key} is the default"


@pytest.mark.parametrize("name", names())
def test_paths_are_plain_names(name):
    recipe = read_recipe(recipe_path(name))
    valid = getattr(recipe.data, "valid", ())
    for path in (*recipe.data.train, *(valid if isinstance(valid, tuple) else ())):
        assert not path.startswith(("/", "~", "..")), path


SMALL = {"d_model": 48, "num_layers": 1, "d_ff": 64}  # what two steps on a CPU have time for
BATCH = {"lm": 512, "forecast": 32, "classify (image)": 40}  # rows of an lm: up to 512 tokens
BATCH |= {"diffusion (class)": 8, "diffusion (text)": 4}
BATCH |= {"classify (series)": 8, "detect": 3, "segment": 3, "contrastive": 6, "caption": 6, "vqa": 6}
BATCH |= {"autoencoder": 8, "image_tokens (text)": 4, "image_tokens (class)": 4}
OBJECTS = ("detect-scenes", "detect-bccd", "segment-nuclei", "segment-camvid")
DIFFUSION = [name for name in names() if name.startswith("diffusion-")]
ALSO = {
    "lm-gpt2-small": ["training.batch_tokens=1024", "tokenizer.vocab_size=300"],
    "classify-reviews": ["data.max_len=16"],
    **{name: ["data.image_size=[32,32]"] for name in OBJECTS},
    "caption-scenes": ["data.image_size=[32,32]", "model.num_heads=4"],
    "vqa-scenes": ["data.image_size=[32,32]", "data.valid=[scenes/questions.tsv]"],
    **{name: ["model.d_model=48", "model.num_layers=1", "model.num_heads=4"] for name in DIFFUSION},
    "vq-emoji": ["data.image_size=[16,16]", "model.widths=[16,16,16]"],
    "image-tokens-emoji": ["training.log_samples=0"],
    "image-tokens-digits": ["data.valid=0.2", "training.log_samples=0"],
    "contrastive-captions": ["data.image_size=[32,32]", "data.valid=0.2", "tokenizer.vocab_size=300"],
    "forecast-ett": ["data.context_length=64", "data.horizon=12", "data.split=[0.7,0.1,0.2]"],
}


def small(name: str, recipe: Recipe, *, shrink: int = 1) -> list[str]:
    """The changes by which a recipe is tried quickly: its sizes, not its ways."""
    sizes = [f"model.{key}={value}" for key, value in SMALL.items() if key in recipe.model.overrides]
    batch = f"training.{recipe.spec.batch_key}={BATCH.get(recipe.spec.title, 2048) // shrink}"
    return [*sizes, batch, "training.compile=off", *ALSO.get(name, ())]


# one recipe of each kind of data and learner
RESUMED = """multi30k-en-de lm-wikitext2 restore-sentences classify-reviews images-digits classify-series-ucr
    ner-entities answer-squad embed-pairs summarize-articles contrastive-captions diffusion-emoji
    forecast-ett""".split()


def check_evaluation(run, model, recipe):
    done = run("evaluate", model, *recipe.data.train, "--json")
    assert done.code == 0, done.err
    report = yaml.safe_load(done.out)
    assert report["job"] == recipe.job
    reported = {name for name in report["metrics"] if not name.startswith("repeat")}
    assert {"loss"} < reported <= set(recipe.spec.metrics)  # some are of one type of labels only


@pytest.mark.parametrize("name", [name for name in names() if name not in RESUMED])
def test_recipe_trains_and_evaluates(run, data_folder, monkeypatch, name):
    """Two steps on made-up files of the names in it give a model that can be measured."""
    monkeypatch.chdir(data_folder)
    recipe = read_recipe(recipe_path(name))
    steps = ["training.max_steps=2", "training.eval_steps=1", "training.device=cpu"]
    steps += ["training.gradient_accumulation_steps=1"]
    changes = [word for change in (*steps, *small(name, recipe)) for word in ("--set", change)]
    out = data_folder / "runs" / name
    assert len(recipe.data.train) and all((data_folder / path).exists() for path in recipe.data.train)
    done = run("train", name, "--out", out, *changes)
    assert done.code == 0, done.err
    assert read_recipe(out / "recipe.yaml").training.max_steps == 2
    check_evaluation(run, out / "model", recipe)


@pytest.mark.parametrize("name", RESUMED)
def test_resume_within_an_epoch_is_bit_identical(run, data_folder, monkeypatch, name):
    """With dropout, augmentation and sampled negatives as the recipe has them."""
    monkeypatch.chdir(data_folder)
    recipe = read_recipe(recipe_path(name))
    steps = ["training.lr_scheduler=constant", "training.warmup_steps=1", "training.eval_steps=2"]
    steps += ["training.load_best_model_at_end=false", "training.average_checkpoints=0"]
    steps += ["training.device=cpu"]
    changes = [word for change in (*steps, *small(name, recipe, shrink=4)) for word in ("--set", change)]
    for folder, stops in (("whole", (5,)), ("stopped", (3, 5))):
        for step in stops:
            out = data_folder / folder / name
            done = run("train", name, "--out", out, *changes, "--set", f"training.max_steps={step}")
            assert done.code == 0, done.err
    assert "resuming from step 3 of 5" in done.err
    whole, stopped = (data_folder / folder / name / "model" for folder in ("whole", "stopped"))
    assert (whole / "model.safetensors").read_bytes() == (stopped / "model.safetensors").read_bytes()
    check_evaluation(run, whole, recipe)
