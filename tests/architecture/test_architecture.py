"""The package keeps its architecture, and each rule that says so is able to fail."""

from pathlib import Path

import pytest

from tests.architecture import rules

ROOT = Path(__file__).parents[2]
FOLDERS = ("glassformer", "tests", "benchmarks", "docs", "examples")


def repository() -> dict[str, str]:
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps(rule):
    sources = repository()
    assert "glassformer/__init__.py" in sources
    broken = list(rule(sources))
    assert not broken, "\n".join(broken)


# A small package around the offending file, so that imports find something to resolve to.
NEIGHBOURS = {
    f"glassformer/{path}.py": ""
    for path in (
        *("__init__", "api", "core/__init__", "core/errors", "core/spec", "data/__init__"),
        *("decoding/__init__", "families/__init__", "families/llama", "serve/__init__"),
        *("text/__init__", "training/__init__", "weights/__init__", "weights/ops"),
    )
}


def broken(rule, path: str, text: str) -> list[str]:
    return list(rule({**NEIGHBOURS, f"glassformer/{path}": text}))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("core/block.py", "from glassformer.families import llama"),
        ("core/block.py", "from ..families import llama"),
        ("core/block.py", "from .. import families"),
        ("core/block.py", "def f():\n    from glassformer.weights.ops import Rename"),
        ("core/__init__.py", "from ..weights import ops"),
        ("core/deep/__init__.py", "from ...weights import ops"),
        ("core/block.py", "import numpy"),
        ("core/block.py", "from numpy import array"),
        ("core/block.py", "import glassformer"),
        ("core/block.py", "from glassformer import build"),
        ("core/block.py", "import importlib\nimportlib.import_module('glassformer.api')"),
        (
            "core/block.py",
            "from importlib import import_module as f\nf('..weights.ops', __package__)",
        ),
        ("core/block.py", "from importlib import import_module\nimport_module(name)"),
        ("core/block.py", "__import__('numpy')"),
        ("families/llama.py", "from glassformer.api import load"),
        ("weights/store.py", "from glassformer.core import spec"),
        ("weights/store.py", "from glassformer.core import GlassformerError"),
        ("weights/store.py", "import glassformer.core.spec"),
        ("weights/store.py", "from glassformer.tokenization import load_tokenizer"),
        ("text/tokenizer.py", "from ..core.spec import Stack"),
        ("text/tokenizer.py", "import torch"),
        ("data/pairs.py", "from glassformer.core.spec import Stack"),
        ("decoding/beam.py", "from glassformer.api import load"),
        ("training/loop.py", "from glassformer.verify import claims"),
        ("evaluation/bleu.py", "from glassformer.core.spec import Stack"),
        ("draw/maps.py", "from glassformer.api import load"),
        ("serve/http.py", "from glassformer.training import loop"),
        ("trace/taken.py", "from glassformer.server import app"),
        ("explorer/export.py", "from glassformer.tasks.classify import classify"),
        ("api.py", "from glassformer.training import loop"),
        ("verify/claims.py", "import glassformer.cli.main"),
        ("__init__.py", "from glassformer.cli.main import main"),
        ("magic/__init__.py", ""),
    ],
)
def test_forbidden_import_is_found(path, text):
    found = broken(rules.import_edges, path, text)
    assert len(found) == 1
    assert found[0].startswith(f"glassformer/{path}:")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (
            "core/block.py",
            "import math, torch.nn.functional as F\nfrom . import spec\nfrom .spec import Stack",
        ),
        ("core/__init__.py", "from .spec import Stack"),
        ("families/llama.py", "from ..core.spec import Stack\nfrom glassformer.weights import ops"),
        (
            "families/__init__.py",
            "import importlib\nimportlib.import_module(f'glassformer.families.{x}')",
        ),
        (
            "weights/store.py",
            "from ..core import errors\nfrom glassformer.errors import GlassformerError",
        ),
        ("data/pairs.py", "from glassformer.errors import GlassformerError\nimport numpy"),
        ("api.py", "from .core import spec\nfrom . import families, weights, text"),
        ("serve/http.py", "from .. import api, decoding"),
        (
            "cli/main.py",
            "import glassformer, typer, importlib\nfrom ..training import loop\nimportlib.import_module(x)",
        ),
        (
            "__init__.py",
            "from .api import load\nfrom importlib import import_module as f\nf(where[name])",
        ),
    ],
)
def test_allowed_import_passes(path, text):
    assert broken(rules.import_edges, path, text) == []


def test_every_part_has_a_row_in_the_table():
    assert set(rules.ALLOWED) == rules.PARTS | {"glassformer"}


@pytest.mark.parametrize(
    "text",
    [
        "import matplotlib.pyplot as plt",
        "from matplotlib import cm",
        "class A:\n    import matplotlib",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import matplotlib",
        "if not TYPE_CHECKING:\n    import matplotlib",
    ],
)
def test_eager_import_is_found(text):
    assert len(broken(rules.eager_imports, "draw/maps.py", text)) == 1


def test_lazy_import_passes():
    text = """
    from typing import TYPE_CHECKING
    if TYPE_CHECKING:
        from matplotlib.figure import Figure
    def heat_map():
        import matplotlib.pyplot as plt
    """
    assert broken(rules.eager_imports, "draw/maps.py", "if True:\n" + text) == []


@pytest.mark.parametrize(
    "text",
    [
        "# as in BERT",
        "# LLaMA's rotary",
        "class ViTModel: ...",
        "class TinyGPT: ...",
        "class HFBertNorm: ...",
        "T5Bias = 1",
        "x.from_gpt2()",
        "f(distilbert=1)",
        "'Hugging Face'",
        '"""Loads facebook/bart-base."""',
        "f'{x} RoBERTa {y}'",
        "kind = 'llama3'",
        "b'mistral'",
        "import palm_blocks",
    ],
)
def test_family_name_in_the_core_is_found(text):
    assert len(broken(rules.family_names, "core/block.py", text)) == 1
    assert broken(rules.family_names, "weights/block.py", text) == []


def test_family_name_in_a_core_file_name_is_found():
    assert len(broken(rules.family_names, "core/gpt2.py", "")) == 1


@pytest.mark.parametrize(
    "text",
    [
        r"'\t5 \bart'",
        "invite = activity = 1  # vital, VITAL, bartender, BARTER, palmer, coherent, BERTHA",
        "t50 = st5 = gravity = albert = liberty = 1",
        "# 0.84147 at T = 5; alpha, best, part, debit, llamas",
    ],
)
def test_ordinary_words_in_the_core_pass(text):
    assert broken(rules.family_names, "core/block.py", text) == []


@pytest.mark.parametrize("path", ["core/utils.py", "text/helpers.py", "common.py", "data/utils/x.py"])
def test_vague_file_is_found(path):
    assert len(broken(rules.vague_files, path, "")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load(f)",
        "import torch as t\nread = t.load",
        "from torch import load",
        "from torch.serialization import load as read",
        "import yaml\nyaml.load(f)",
        "from yaml import load",
        "eval(x)",
        "map(exec, x)",
        "import builtins\nbuiltins.eval(x)",
        "import subprocess\nsubprocess.run(x, shell=True)",
        "import subprocess as s\ns.run(x, shell=flag)",
        "import numpy\nnumpy.load(f, allow_pickle=True)",
        "import os\nos.system(x)",
    ],
)
def test_forbidden_call_is_found(text):
    assert len(broken(rules.forbidden_calls, "data/pairs.py", text)) == 1


@pytest.mark.parametrize(
    "text",
    [
        "model.eval()",
        "import yaml\nyaml.safe_load(f)",
        "import json\njson.load(f)",
        "import subprocess\nsubprocess.run([x], shell=False)",
        "from safetensors import safe_open\nbundle.load(x)",
        "'never torch.load(x) or pickle'  # nor eval(x)",
    ],
)
def test_harmless_call_passes(text):
    assert broken(rules.forbidden_calls, "data/pairs.py", text) == []
