"""Docstrings of public names have a runnable example."""

import inspect

import pytest
from torch import nn

import glassformer

PUBLIC = {
    name: getattr(glassformer, name)
    for name in glassformer.__all__
    if not name.endswith("Error") and name != "spec"
}


@pytest.mark.parametrize("name", PUBLIC)
def test_docstring_has_an_example(name: str) -> None:
    """The doctests run with the package; an example of a module shows a shape or values."""
    public = PUBLIC[name]
    members = vars(public).values() if inspect.isclass(public) else ()
    docs = [public.__doc__ or "", *(member.__doc__ or "" for member in members if inspect.isfunction(member))]
    examples = [doc for doc in docs if ">>> " in doc]
    assert examples, f"{name} has no example"
    if inspect.isclass(public) and issubclass(public, nn.Module):
        assert "torch.Size" in examples[0] or ".tolist()" in examples[0], f"{name} shows no shape"
