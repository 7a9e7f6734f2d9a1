"""What commands reject: an error of one line that names the cause, exit code 2, and no file is changed."""

import json
import shlex
import shutil

import pytest
from safetensors.torch import load_file, save_file

import glassformer
from glassformer.baselines import build_baseline
from glassformer.baselines.spec import RepeatLastSpec
from tests.cli.conftest import quick
from tests.recipes.synthetic_data import text_files
from tests.tasks.test_forecast import random_table, write_csv

LONG = f"'{'a ' * 100}'"
# a command line -> what the error must contain; {command} is the model for a command
CASES = {
    # models
    "inspect no/such/folder": "no/such/folder",
    "inspect tiny:gpt2 --length 65": "64",
    "inspect baseline": "baseline without attention",
    "verify tiny:gpt22": "did you mean 'gpt2'?",
    "verify gpt2": "tiny:gpt2",
    "verify tiny:gpt2 --dtype float99": "float99",
    "verify flipped": "checksum",
    "convert tiny:original out --layout hf": "",
    "convert truncated out": "model.safetensors",
    "convert incomplete out": "ln_f.bias",
    "convert unknown out": "NoSuchModel",
    "convert pickled out": "pytorch_model.bin",
    "convert tiny tiny --overwrite": "tiny",
    "convert tiny full": "--overwrite",
    # generation
    "translate {generate} red": "generate",
    "generate {embed} red": "text generation",
    "generate pocket-lm the --max-new-tokens -3": "--max-new-tokens",
    "generate {generate} the --do-sample --temperature nan": "--temperature",
    "translate {translate} red --max-new-tokens 2 --min-new-tokens 9": "--min-new-tokens",
    "translate {translate} red --num-return-sequences 2": "--json",
    "translate {translate} red --to xx": "target language",
    "translate {translate} red --resume": "--out",
    "translate {translate} red --resume --overwrite --out x": "--resume and --overwrite",
    "translate {translate} red --dtype int3": "int3",
    "translate {translate} red --out no/such/folder": "no/such/folder",
    "translate {translate} --file pairs.tsv --out pairs.tsv --overwrite": "pairs.tsv",
    "translate {translate} red --tree tree.pdf": "tree.pdf",
    "translate {translate} red blue --tree tree.svg": "--tree",
    "translate {translate} 'red\nblue' --tree tree.svg": "2 parts",
    "translate {translate} red --out tree.json --tree ./tree.json": "tree",
    # encoders
    "classify {embed} a": "",
    "fill {fill} 'a cat'": "[MASK]",
    "answer {answer} 'no context'": "context",
    "embed {embed} a --out vectors.txt": "vectors.txt",
    "embed {embed} a --prompt query": "query",
    "similar {similar} a --corpus no-such": "no-such",
    f"classify {{classify}} {LONG}": "60",
    # series
    "forecast {forecast} data.csv --columns a,odd,c": "odd",
    "forecast {forecast} data.csv --time when": "when",
    "forecast {forecast} short.csv": "",
    "forecast {forecast} data.csv --quantile-levels 2": "quantile",
    "forecast {forecast} data.csv --out no-such/next.csv": "no-such",
    "forecast {forecast} data.csv --out data.csv --overwrite": "data.csv",
    "forecast {forecast} data.csv --out x.png": "--out and --figure",
    # tokenizers
    "tokenizer train several.tsv --column french --out out": "french",
    "tokenizer train book.txt --kind byte --vocab-size 100 --out out": "260",
    "tokenizer train book.txt --target-column 2 --out out": "--target",
    # evaluation
    "evaluate tiny test.tsv": "job",
    "evaluate run/model test.tsv --job translat": "did you mean 'translate'",
    "evaluate run/model test.tsv --set training.lr=1": "training.lr",
    "evaluate run/model test.tsv --set data.valid=book.txt": "data.valid",
    "evaluate run/model test.tsv --out ./test.tsv --overwrite": "test.tsv",
    "evaluate pocket-digits test.tsv --lowercase": "",
    "average run --out out": "--last",
    "average run --last 9 --out out": "training.average_checkpoints=9",
    "average run --last 1 --best 1 --out out": "--last and --best",
    "average run/model tiny --out out": "tiny",
    # training
    "train translat --train pairs.tsv --out out": "did you mean 'translate'",
    "train translate --out out": "--train",
    "train translate --train pairs.tsv --set training.step=3 --out out": "did you mean 'max_steps'",
    "train translate --train pairs.tsv --set training.max_steps=many --out out": "training.max_steps",
    "train translate --train pairs.tsv --out test.tsv": "test.tsv",
    "train translate --train pairs.tsv --valid 1 --out out": "valid",
    "train translate --train pairs.tsv --resume --out out": "--resume",
    "train translate --train pairs.tsv --set tokenizer.folder=tiny --out out": "tokenizer.folder",
    "train translate --train pairs.tsv --set model.folder=tiny --out out": "tiny",
    "train broken.yaml --out out": "broken.yaml",
}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, folders, finished):
    root = tmp_path_factory.mktemp("workspace")
    text_files(root)
    shutil.copytree(finished, root / "run")
    write_csv(root / "data.csv", random_table())
    write_csv(root / "short.csv", random_table(20))
    (root / "broken.yaml").write_text("job: translate\nseed: 1\ndata: }\n")
    (root / "full").mkdir()
    (root / "full" / "notes").touch()
    glassformer.save(build_baseline(RepeatLastSpec(prediction_length=3)), root / "baseline")
    for name in ("tiny", "flipped", "truncated", "incomplete", "unknown", "pickled"):
        weights = glassformer.save(glassformer.tiny("gpt2"), root / name) / "model.safetensors"
        if name not in ("tiny", "flipped"):
            (root / name / "checksums.json").unlink()  # as in a published folder
    for name, end in (("flipped", b"?"), ("truncated", b"")):
        weights = root / name / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + end)
    tensors = load_file(root / "incomplete/model.safetensors")
    del tensors["transformer.ln_f.bias"]
    save_file(tensors, root / "incomplete/model.safetensors")
    config = json.loads((root / "unknown/config.json").read_text())
    (root / "unknown/config.json").write_text(json.dumps(config | {"architectures": ["NoSuchModel"]}))
    (root / "pickled/model.safetensors").rename(root / "pickled/pytorch_model.bin")
    return root


@pytest.mark.parametrize("line", CASES, ids=[line[:60] for line in CASES])
def test_invalid_input_is_a_one_line_error(run, folders, workspace, monkeypatch, capsys, line):
    monkeypatch.chdir(workspace)
    capsys.readouterr()  # building the models prints
    before = {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}
    command, *args = (arg.format(**folders) for arg in shlex.split(line))
    done = run(command, *args)
    assert done.code == 2 and not done.out, done
    error = done.err.splitlines()[-1]
    assert error.startswith("error: ") and CASES[line] in error, done.err
    assert done.err.count("error: ") == 1 and "Traceback" not in done.err
    if command == "train":  # the log of a failed run may be left
        shutil.rmtree(workspace / "out", ignore_errors=True)
    assert before == {path: path.stat().st_mtime_ns for path in workspace.rglob("*") if path.is_file()}


# what fails once a run has begun, by what the error must contain
LATE = {
    "117": ["--train", "train.en", "--train", "short.de"],
    "tokenizer.vocab_size": ["--train", "k.tsv", "--set", "tokenizer.vocab_size=20", "--valid", "0.1"],
}


@pytest.mark.parametrize("named", LATE)
def test_corrected_command_trains_in_the_same_folder(run, tmp_path, monkeypatch, named):
    monkeypatch.chdir(tmp_path)
    text_files(tmp_path)
    (tmp_path / "short.de").write_text("".join((tmp_path / "train.de").open().readlines()[:-3]))
    rows = (f"a {n}\t{chr(0xAC00 + n) * 3}\n" for n in range(200))
    (tmp_path / "k.tsv").write_text("".join(rows))
    done = run("train", "translate", *LATE[named], "--out", "out")
    assert done.code == 2 and named in done.err.splitlines()[-1], done
    assert run("train", "translate", "--train", "pairs.tsv", *quick(), "--out", "out").code == 0
