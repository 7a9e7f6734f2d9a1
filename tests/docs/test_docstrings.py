"""Every part can be used alone, and its docstring shows how: an example that runs, with the shapes."""

import importlib
import inspect
import pkgutil

import pytest
from torch import nn

import glassformer
from glassformer import core

MODULES = [
    importlib.import_module(found.name) for found in pkgutil.walk_packages(core.__path__, "glassformer.core.")
]
PARTS = {
    f"{module.__name__}.{name}": part
    for module in MODULES
    for name, part in vars(module).items()
    if inspect.isclass(part)
    and issubclass(part, nn.Module)
    and part.__module__ == module.__name__
    and not name.startswith("_")
}
PUBLIC = {
    name: getattr(glassformer, name)
    for name in glassformer.__all__
    if not name.endswith("Error") and name != "spec"
}


@pytest.mark.parametrize("name", [*PUBLIC, *PARTS])
def test_docstring_has_an_example(name: str) -> None:
    """That it runs is seen by running the package's doctests; here only that it is there, with its result."""
    part = (PUBLIC | PARTS)[name]
    members = vars(part).values() if inspect.isclass(part) else ()
    texts = [part.__doc__ or "", *(member.__doc__ or "" for member in members if inspect.isfunction(member))]
    shown = [text for text in texts if ">>> " in text]
    assert shown, f"{name} has no example"
    if inspect.isclass(part) and issubclass(part, nn.Module):
        assert "torch.Size" in shown[0] or ".tolist()" in shown[0], f"{name} shows no shape"
