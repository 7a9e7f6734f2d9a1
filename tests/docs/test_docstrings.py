"""Every public part can be used alone, and its docstring shows how: an example that runs, with the shapes."""

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
    """That it runs is seen by running the package's doctests; here only that it is there, with its result."""
    part = PUBLIC[name]
    members = vars(part).values() if inspect.isclass(part) else ()
    texts = [part.__doc__ or "", *(member.__doc__ or "" for member in members if inspect.isfunction(member))]
    shown = [text for text in texts if ">>> " in text]
    assert shown, f"{name} has no example"
    if inspect.isclass(part) and issubclass(part, nn.Module):
        assert "torch.Size" in shown[0] or ".tolist()" in shown[0], f"{name} shows no shape"
