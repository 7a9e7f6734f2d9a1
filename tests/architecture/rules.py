"""The rules of the architecture, as functions from sources to sentences saying what breaks them.

Sources are a mapping from a path below the repository (`glassformer/core/spec.py`) to its text, so
that a rule can be tried on three lines as easily as on the whole package.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator, Mapping

Sources = Mapping[str, str]

ERRORS = "errors"  # everyone may have to tell the user something, so everyone may import it
PARTS = frozenset(
    {
        "__main__",
        "api",
        "baselines",
        "cli",
        "core",
        "data",
        "generation",
        "plotting",
        "metrics",
        "errors",
        "explorer",
        "export",
    }
    | {
        "families",
        "pretrained",
        "inference",
        "recipes",
        "server",
        "tokenization",
        "torch_modules",
        "interpret",
        "training",
        "verify",
        "tasks",
        "weights",
    }
)
# Who may import whom inside the package. A part may always import itself and ERRORS.
ALLOWED: dict[str, frozenset[str]] = {
    "errors": frozenset(),
    "core": frozenset(),
    "weights": frozenset(),
    "tokenization": frozenset(),
    "data": frozenset(),
    "explorer": frozenset({"api", "interpret"}),
    "families": frozenset({"core", "weights"}),
    # `decoding` and `verbs` for the methods of a Bundle, which import what they need when they are called
    "api": frozenset(
        {
            "baselines",
            "core",
            "generation",
            "families",
            "pretrained",
            "inference",
            "tokenization",
            "tasks",
            "weights",
        }
    ),
    "pretrained": frozenset({"core"}),
    "baselines": frozenset({"core", "generation"}),
    "torch_modules": frozenset({"core"}),
    "inference": frozenset({"core"}),
    "generation": frozenset({"core", "inference"}),
    # a run goes the whole way, from files to a saved model with its scores
    "training": frozenset(
        {
            "api",
            "baselines",
            "core",
            "data",
            "generation",
            "metrics",
            "families",
            "pretrained",
            "tokenization",
            "weights",
        }
    ),
    "metrics": frozenset({"generation"}),
    "tasks": frozenset(
        {"api", "core", "data", "generation", "plotting", "metrics", "inference", "tokenization"}
    ),
    "export": frozenset({"api", "baselines", "core", "generation", "families", "tokenization", "weights"}),
    "verify": frozenset({"api", "core", "generation", "export", "families", "inference", "tokenization"}),
    "plotting": frozenset({"core"}),
    "recipes": frozenset({"core"}),
    # what the explorer shows; of training only the reading of a run's folder
    "interpret": frozenset(
        {
            "api",
            "core",
            "data",
            "generation",
            "families",
            "pretrained",
            "inference",
            "tokenization",
            "training",
            "tasks",
        }
    ),
    "server": frozenset(
        {
            "api",
            "core",
            "data",
            "generation",
            "explorer",
            "glassformer",
            "pretrained",
            "tokenization",
            "interpret",
            "tasks",
        }
    ),
    "cli": PARTS - {"__main__"} | {"glassformer"},
    "__main__": frozenset({"cli"}),  # `python -m glassformer`
    "glassformer": PARTS - {"__main__", "cli", "server"},  # the package's own __init__: the public names
}
# Beyond the standard library. A part that is not listed may import any dependency of the project.
OUTSIDE: dict[str, frozenset[str]] = {
    "core": frozenset({"torch"}),
    "torch_modules": frozenset({"torch"}),
    "weights": frozenset({"torch", "numpy", "safetensors"}),
    "tokenization": frozenset({"tokenizers", "sentencepiece"}),
    "plotting": frozenset({"torch", "numpy", "matplotlib", "PIL", "rich"}),
    "interpret": frozenset({"torch", "numpy", "PIL"}),
}
# Slow to import and absent on some machines: inside functions only, or for the type checker only.
LAZY = frozenset({"matplotlib"})
TYPES_ONLY = frozenset({"TYPE_CHECKING", "typing.TYPE_CHECKING"})
DISPATCHERS = frozenset({"glassformer", "cli"})  # may import by a name computed at run time

VAGUE = frozenset({"utils", "helpers", "common"})

FAMILY = re.compile(
    r"(?:distil[ _-]?bert|roberta|bert|patch[ _-]?tst|mini[ _-]?lm|hugging[ _-]?face|mistral|falcon"
    r"|cohere|marian|bart|palm|deit|vit|t5|(?:llama|gpt)\d*)",
    re.IGNORECASE,
)

PICKLES = frozenset({"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"})
FORBIDDEN = frozenset(
    {"eval", "exec", "builtins.eval", "builtins.exec", "os.system", "os.popen"}
    | {"torch.load", "torch.serialization.load", "torch.jit.load", "torch.hub.load"}
    | {"yaml.load", "yaml.load_all", "yaml.full_load", "yaml.unsafe_load", "yaml.unsafe_load_all"}
)
FORBIDDEN_KEYWORDS = frozenset({"shell", "allow_pickle"})


def module_of(path: str) -> str:
    """`glassformer/core/spec.py` -> `glassformer.core.spec`; an `__init__.py` -> its package."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def part_of(module: str) -> str:
    """`glassformer.core.spec` -> `core`; the package itself is the part `glassformer`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else names[0]


def package(sources: Sources) -> dict[str, str]:
    """Only the files of the package itself."""
    return {path: text for path, text in sources.items() if path.startswith("glassformer/")}


def absolute(module: str, is_package: bool, level: int, name: str) -> str:
    """The absolute name of a relative import of `level` dots made inside `module`."""
    if level == 0:
        return name
    base = module.split(".") if is_package else module.split(".")[:-1]
    base = base[: len(base) - (level - 1)]
    return ".".join([*base, *([name] if name else [])])


def leading_text(node: ast.expr | None) -> str | None:
    """The text of a string literal, or of an f-string up to its first hole; None otherwise."""
    if isinstance(node, ast.JoinedStr) and node.values:
        node = node.values[0]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def dotted(node: ast.expr, aliases: Mapping[str, str]) -> str | None:
    """`t.load` with `import torch as t` -> `torch.load`; None where it starts with no name."""
    if isinstance(node, ast.Name):
        return aliases.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        start = dotted(node.value, aliases)
        return f"{start}.{node.attr}" if start else None
    return None


def aliases_of(tree: ast.AST) -> dict[str, str]:
    """What each name bound by an import stands for."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                if name.asname:
                    aliases[name.asname] = name.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for name in node.names:
                aliases[name.asname or name.name] = f"{node.module}.{name.name}"
    return aliases


def imports(path: str, text: str, modules: frozenset[str]) -> Iterator[tuple[int, str | None]]:
    """Line and absolute module of every import, wherever it stands; None: computed at run time.

    `from package import name` counts as the module `package.name` where `modules` has one.
    """
    module, is_package = module_of(path), path.endswith("/__init__.py")
    tree = ast.parse(text, path)
    aliases = aliases_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, is_package, node.level, node.module or "")
            for name in node.names:
                full = f"{base}.{name.name}"
                yield node.lineno, full if full in modules else base
        elif isinstance(node, ast.Call):
            called = dotted(node.func, aliases)
            if called in ("importlib.import_module", "__import__"):
                named = leading_text(node.args[0] if node.args else None)
                if named is None or not named.strip("."):
                    yield node.lineno, None
                else:
                    level = len(named) - len(named.lstrip("."))
                    yield node.lineno, absolute(module, is_package, level, named.strip("."))


def import_edges(sources: Sources) -> Iterator[str]:
    """Imports that the table does not allow, inside the package and out of it."""
    files = package(sources)
    modules = frozenset(map(module_of, files))
    for path, text in files.items():
        part = part_of(module_of(path))
        if part not in ALLOWED:
            yield f"{path}: the part {part!r} is not in the table of allowed imports"
            continue
        for line, target in imports(path, text, modules):
            where = f"{path}:{line}"
            if target is None:
                if part not in DISPATCHERS:
                    yield f"{where}: {part} imports a module by a name computed at run time"
                continue
            top = target.split(".")[0]
            if top != "glassformer":
                known = top in sys.stdlib_module_names or top in OUTSIDE.get(part, {top})
                if not known:
                    yield f"{where}: {part} imports {top}"
                continue
            inner, other = target.removeprefix("glassformer."), part_of(target)
            is_errors = inner == ERRORS or inner.startswith(f"{ERRORS}.")
            if other != part and not is_errors and other not in ALLOWED[part]:
                yield f"{where}: {part} imports {target}"


def eager_imports(sources: Sources) -> Iterator[str]:
    """Heavy libraries imported when a module of the package is, rather than inside a function."""

    def outside_functions(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                continue
            yield node
            children: Iterable[ast.AST] = ast.iter_child_nodes(node)
            if isinstance(node, ast.If) and ast.unparse(node.test) in TYPES_ONLY:
                children = node.orelse
            yield from outside_functions(children)

    for path, text in package(sources).items():
        for node in outside_functions([ast.parse(text, path)]):
            if isinstance(node, ast.Import):
                names = [name.name for name in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            else:
                continue
            for name in names:
                if name.split(".")[0] in LAZY:
                    yield f"{path}:{node.lineno}: imports {name} outside a function"


def family_words(text: str) -> Iterator[str]:
    """Family names standing as words: alone, in snake_case (`from_gpt2`) or CamelCase (`ViTModel`).

    A name inside a longer word (`invite`, `VITAL`, `bartender`) is not one.
    """
    for match in FAMILY.finditer(text):
        (start, end), found = match.span(), match.group()
        before, after = text[start - 1 : start], text[end : end + 1]
        next_lower = text[start + 1 : start + 2].islower()
        begins = not before.isalnum() or (
            found[0].isupper() and (before.islower() or before.isdigit() or next_lower)
        )
        after_lower = text[end + 1 : end + 2].islower()
        ends = not after.isalnum() or (
            after.isupper() and (found[-1].islower() or found[-1].isdigit() or after_lower)
        )
        if begins and ends:
            yield found


def family_names(sources: Sources) -> Iterator[str]:
    """Families named inside the core: in a file's name, an identifier, a string or a comment."""
    for path, text in sources.items():
        if not path.startswith("glassformer/core/"):
            continue
        places = [(0, path.removeprefix("glassformer/core/"))]
        # Strings come from the tree, where "\t5" is a tab and a 5 and not the name of a model.
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
                value = node.value
                places.append((node.lineno, value if isinstance(value, str) else value.decode("latin-1")))
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type in (tokenize.NAME, tokenize.COMMENT):
                places.append((token.start[0], token.string))
        for line, written in places:
            for word in family_words(written):
                yield f"{path}:{line}: the core names a family: {word}"


def vague_files(sources: Sources) -> Iterator[str]:
    """Files and folders whose name says nothing about what is in them."""
    for path in sources:
        for name in path.removesuffix(".py").split("/"):
            if name in VAGUE:
                yield f"{path}: {name!r} does not say what is inside"


def forbidden_calls(sources: Sources) -> Iterator[str]:
    """Unpickling, running text as code, and shells; a mention is enough, under any alias."""
    for path, text in sources.items():
        tree = ast.parse(text, path)
        aliases = aliases_of(tree)
        for node in ast.walk(tree):
            if not isinstance(node, ast.stmt | ast.expr | ast.keyword):
                continue
            found: list[str] = []
            if isinstance(node, ast.Import):
                found = [name.name for name in node.names if name.name.split(".")[0] in PICKLES]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                full = [f"{node.module}.{name.name}" for name in node.names]
                found = [name for name in full if name in FORBIDDEN or name.split(".")[0] in PICKLES]
            elif isinstance(node, ast.Name | ast.Attribute):
                mentioned = dotted(node, aliases)
                found = [mentioned] if mentioned in FORBIDDEN else []
            elif isinstance(node, ast.keyword) and node.arg in FORBIDDEN_KEYWORDS:
                off = isinstance(node.value, ast.Constant) and node.value.value is False
                found = [] if off else [f"{node.arg}={ast.unparse(node.value)}"]
            for name in found:
                yield f"{path}:{node.lineno}: {name} is never used here"


RULES = (import_edges, eager_imports, family_names, vague_files, forbidden_calls)
