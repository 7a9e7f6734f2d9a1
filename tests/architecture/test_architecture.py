"""The package keeps its architecture: imports point one way, core names no family, no untrusted code runs.

Each rule maps sources (path -> text) to violations, and is also tried on a small source that breaks it.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("glassformer", "tests", "benchmarks", "docs", "examples", "experiments")
Sources = Mapping[str, str]

# A part (package or top-level module) may import itself and any part above it in this list.
ORDER = """
    errors messages json_text schema core weights tokenization data families transformer inference generation
    diffusion torch_modules baselines metrics plotting pretrained bundle model_index processors tasks recipes
    training export interpret verify api batch explorer server cli __main__
""".split()
# The parts at the bottom stay independent of each other.
ONLY: dict[str, set[str]] = {
    "schema": {"errors"},
    "core": {"errors", "schema"},
    "weights": {"errors", "messages", "json_text"},
    "tokenization": {"errors", "json_text", "weights"},  # atomic writes
    "data": {"errors", "schema", "messages", "json_text", "weights"},  # atomic writes
    "families": {"errors", "schema", "json_text", "core", "weights"},
    "inference": {"errors", "core"},
    "generation": {"errors", "schema", "core", "inference"},
    "diffusion": {"errors", "schema", "core"},
    "torch_modules": {"errors", "core"},
    "transformer": {"errors", "core", "families"},
    "plotting": {"errors", "core", "transformer", "data", "generation"},
}
# Ways up, imported when they are called: `model.generate`, so that core loads without generation, the layout
# of a folder of several models, each of which is loaded and saved as a bundle, and the page in a notebook.
UPWARD = {
    ("glassformer/core/model.py", "generation"),
    ("glassformer/bundle.py", "model_index"),
    ("glassformer/core/observe.py", "explorer"),
    ("glassformer/api.py", "explorer"),
}
# Third-party packages of the parts that must stay small; the others may use any dependency.
THIRD_PARTY: dict[str, set[str]] = {
    "errors": set(),
    "messages": set(),
    "json_text": set(),
    "schema": set(),
    "core": {"torch"},
    "torch_modules": {"torch"},
    "transformer": {"torch"},
    "weights": {"torch", "numpy", "safetensors", "gguf"},
    "tokenization": {"tokenizers", "sentencepiece", "jinja2"},
    "inference": {"torch", "triton"},
    "generation": {"torch"},
    "diffusion": {"torch", "numpy"},
    "interpret": {"torch", "numpy", "PIL"},
}
LAZY = {"matplotlib", "ray"}  # slow to import: inside functions only
VAGUE = {"utils", "helpers", "common", "misc"}
FAMILY = re.compile(
    r"(?<![a-z])(?:distil[ _-]?bert|roberta|bert|patch[ _-]?tst|mini[ _-]?lm|hugging[ _-]?face|mistral|falcon"
    r"|qwen\d*|gemma\d*|cohere|marian|bart|palm|deit|vit|t5|(?:llama|gpt)\d*|swin(?:v2)?|dino(?:v\d)?|siglip"
    r"|clip|yolos|detr|(?:mobile[ _-]?)?sam|mask2?[ _-]?former|eomt)(?![a-z])",
    re.IGNORECASE,
)
UNPICKLERS = {"pickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
FORBIDDEN = (
    {"eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen"}
    | {"torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load"}
    | {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.unsafe_load_all"}
)


def part_of(module: str) -> str:
    """`glassformer.core.spec` -> `core`; the package's own __init__ -> `glassformer`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def module_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def package(sources: Sources) -> Iterator[tuple[str, ast.Module]]:
    for path, text in sources.items():
        if path.startswith("glassformer/"):
            yield path, ast.parse(text, path)


def imported_modules(tree: ast.AST, modules: set[str]) -> Iterator[tuple[int, str]]:
    """Line and absolute name of every import, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                full = f"{node.module}.{name.name}"
                yield node.lineno, full if full in modules else str(node.module)


def imports_point_one_way(sources: Sources) -> Iterator[str]:
    """Imports of a part from below itself in ORDER, or outside ONLY and THIRD_PARTY; relative imports."""
    modules = {module_of(path) for path in sources if path.startswith("glassformer/")}
    for path, tree in package(sources):
        part = part_of(module_of(path))
        if part == "glassformer":  # the public names, imported when first used
            continue
        if part not in ORDER:
            yield f"{path}: {part} is not in ORDER"
            continue
        if any(isinstance(node, ast.ImportFrom) and node.level for node in ast.walk(tree)):
            yield f"{path}: relative import"
        for line, target in imported_modules(tree, modules):
            top, other = target.split(".")[0], part_of(target)
            if top != "glassformer":
                if part in THIRD_PARTY and top not in sys.stdlib_module_names | THIRD_PARTY[part]:
                    yield f"{path}:{line}: {part} imports {top}"
            elif other == "glassformer":
                if part not in ("cli", "server"):
                    yield f"{path}:{line}: {part} imports the facade"
            elif (
                other != part
                and (path, other) not in UPWARD
                and not (
                    other in ONLY.get(part, ORDER)
                    and other in ORDER
                    and ORDER.index(other) < ORDER.index(part)
                )
            ):
                yield f"{path}:{line}: {part} imports {other}"


def heavy_imports_are_lazy(sources: Sources) -> Iterator[str]:
    """Imports of LAZY packages that run when the module is imported."""

    def at_import_time(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.orelse if typing_only else ast.iter_child_nodes(node):
            yield from at_import_time(child)

    for path, tree in package(sources):
        for node in at_import_time(tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [node.module] if isinstance(node, ast.ImportFrom) else [n.name for n in node.names]
                for name in names:
                    if str(name).split(".")[0] in LAZY:
                        yield f"{path}:{node.lineno}: imports {name} outside a function"


def core_names_no_family(sources: Sources) -> Iterator[str]:
    """Family names in core: in a file name, an identifier, a string or a comment."""
    for path, text in sources.items():
        if not path.startswith("glassformer/core/"):
            continue
        words = [(0, path.removeprefix("glassformer/core/"))]
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.STRING, tokenize.COMMENT):
                words.append((token.start[0], token.string))
        for line, word in words:
            spaced = re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", word)
            if match := FAMILY.search(spaced) or FAMILY.search(word):
                yield f"{path}:{line}: core names a family: {match.group()}"


def tuples_of_core_compile(sources: Sources) -> Iterator[str]:
    """Defaults of named tuples that are objects: torch.compile of torch 2.11 cannot build them."""
    for path, tree in package(sources):
        for node in ast.walk(tree):
            if path.startswith("glassformer/core/") and isinstance(node, ast.ClassDef):
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                if "NamedTuple" in {ast.unparse(base) for base in node.bases}:
                    for field in fields:
                        if isinstance(field.value, ast.Call):
                            yield f"{path}:{field.lineno}: {ast.unparse(field)} is not a constant"


def file_names_are_specific(sources: Sources) -> Iterator[str]:
    for path in sources:
        if VAGUE & set(path.removesuffix(".py").split("/")):
            yield f"{path}: the name does not say what is inside"


def class_names_are_unique(sources: Sources) -> Iterator[str]:
    """Classes of the package that share a name: a reader who greps for one would find both."""
    first: dict[str, str] = {}
    for path, tree in package(sources):
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                if node.name in first:
                    yield f"{path}:{node.lineno}: class {node.name} is also defined in {first[node.name]}"
                first.setdefault(node.name, path)


def file_names_differ_by_more_than_an_ending(sources: Sources) -> Iterator[str]:
    """Files of a package whose names differ only by number or tense: `beam` and `beams`."""
    first: dict[str, str] = {}
    for path in sources:
        parts = path.removesuffix(".py").split("/")
        root = "/".join(parts[:2]) + "/" + re.sub(r"(?:ings?|ed|es|s|e)(?=_|$)", "", parts[-1])
        if parts[0] == "glassformer" and first.setdefault(root, parts[-1]) != parts[-1]:
            yield f"{path}: the name is easily confused with {first[root]}.py"


def untrusted_code_never_runs(sources: Sources) -> Iterator[str]:
    """Unpickling, evaluating text and shells, under any alias."""
    for path, text in sources.items():
        tree = ast.parse(text, path)
        aliases: dict[str, str] = {}
        found: list[tuple[int, str]] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                aliases |= {name.asname: name.name for name in node.names if name.asname}
                found += [(node.lineno, n.name) for n in node.names if n.name.split(".")[0] in UNPICKLERS]
            elif isinstance(node, ast.ImportFrom):
                aliases |= {n.asname or n.name: f"{node.module}.{n.name}" for n in node.names}
                if str(node.module).split(".")[0] in UNPICKLERS:
                    found.append((node.lineno, str(node.module)))
        for node in ast.walk(tree):
            if isinstance(node, ast.Name | ast.Attribute):
                first, _, rest = ast.unparse(node).partition(".")
                full = aliases.get(first, first) + (f".{rest}" if rest else "")
                if full in FORBIDDEN:
                    found.append((node.lineno, full))
            elif isinstance(node, ast.keyword) and node.arg in ("shell", "allow_pickle"):
                value = ast.unparse(node.value)
                found += [(node.value.lineno, f"{node.arg}={value}")] if value != "False" else []
        yield from (f"{path}:{line}: {name}" for line, name in found)


RULES: tuple[Callable[[Sources], Iterator[str]], ...] = (
    imports_point_one_way,
    heavy_imports_are_lazy,
    core_names_no_family,
    tuples_of_core_compile,
    file_names_are_specific,
    class_names_are_unique,
    file_names_differ_by_more_than_an_ending,
    untrusted_code_never_runs,
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_repository_keeps(rule):
    files = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in files}
    violations = list(rule(sources))
    assert not violations, "\n".join(violations)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (imports_point_one_way, "core/block.py", "from glassformer.families import llama"),
        (imports_point_one_way, "core/block.py", "def f():\n    from glassformer.weights.ops import Rename"),
        (imports_point_one_way, "core/block.py", "from ..spec import Stack"),
        (imports_point_one_way, "core/block.py", "import numpy"),
        (imports_point_one_way, "interpret/trace.py", "from glassformer.server import app"),
        (imports_point_one_way, "magic/__init__.py", ""),
        (heavy_imports_are_lazy, "plotting/maps.py", "import matplotlib.pyplot as plt"),
        (heavy_imports_are_lazy, "batch/__init__.py", "from ray import data"),
        (core_names_no_family, "core/block.py", "# as in BERT"),
        (core_names_no_family, "core/block.py", "x.from_gpt2()"),
        (core_names_no_family, "core/block.py", "# the windows of Swin"),
        (tuples_of_core_compile, "core/block.py", "class A(NamedTuple):\n    mask: Mask = Mask()"),
        (file_names_are_specific, "core/utils.py", ""),
        (class_names_are_unique, "core/block.py", "class Block: ...\nclass Block: ..."),
        (file_names_differ_by_more_than_an_ending, "core/weight.py", ""),
        (untrusted_code_never_runs, "data/pairs.py", "import pickle"),
        (untrusted_code_never_runs, "data/pairs.py", "import torch as t\nread = t.load"),
        (untrusted_code_never_runs, "data/pairs.py", "import subprocess as s\ns.run(x, shell=flag)"),
    ],
)
def test_rule_finds_a_violation(rule, path, text):
    neighbours = {f"glassformer/{name}/__init__.py": "" for name in ("core", "families", "weights")}
    neighbours["glassformer/core/weights.py"] = ""
    assert len(list(rule({**neighbours, f"glassformer/{path}": text}))) == 1


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (imports_point_one_way, "import math, torch\nfrom glassformer.errors import GlassformerError"),
        (heavy_imports_are_lazy, "if TYPE_CHECKING:\n    from matplotlib.figure import Figure"),
        (core_names_no_family, "invite = activity = st5 = 1  # vital, BARTER, llamas, best at T = 5"),
        (core_names_no_family, "sample = clipped = 1  # the same, a swing, Samuel"),
        (untrusted_code_never_runs, "model.eval()\nimport yaml\nyaml.safe_load(f)\nrun(x, shell=False)"),
    ],
)
def test_rule_passes_ordinary_code(rule, text):
    assert list(rule({"glassformer/core/block.py": text})) == []


@pytest.mark.parametrize("heavy", ["torch", "numpy", "matplotlib", "tokenizers", "transformers"])
def test_command_line_imports_nothing_heavy(heavy):
    program = f"import sys, glassformer.cli.main; print({heavy!r} in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert child.stdout == "False\n", child.stderr
