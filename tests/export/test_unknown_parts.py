"""A part of a model that an edge does not know is refused there, even if it is derived from a known one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import glassformer
from glassformer import schema
from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.core.build import build_stack
from glassformer.errors import UnsupportedError
from glassformer.export.ctranslate2 import export_ctranslate2
from glassformer.export.onnx import export_onnx
from glassformer.families.registry import families, family_of_spec
from glassformer.interpret.outline import describe_stacks, model_kind

Edge = Callable[[Bundle, Path], Any]


@pytest.fixture(autouse=True)
def _registry() -> Iterator[None]:
    """Remove the kinds that a test defines."""
    before = dict(schema.KINDS)
    yield
    schema.KINDS.clear()
    schema.KINDS.update(before)


def unknown(part: Any) -> Any:
    """Return a part with the same settings, of a class that only this test knows."""

    @dataclass(frozen=True, kw_only=True)
    class UnknownSpec(type(part)):  # type: ignore[misc]
        """A variant that computes something else."""

    return UnknownSpec(**vars(part))


def change_stack(bundle: Bundle, **changes: Any) -> None:
    model: Any = bundle.model
    model.spec = replace(model.spec, decoder=replace(model.spec.decoder, **changes))


def change_block(bundle: Bundle, **changes: Any) -> None:
    change_stack(bundle, block=replace(bundle.spec.decoder.block, **changes))


def change_attention(bundle: Bundle, **changes: Any) -> None:
    change_block(bundle, attention=replace(bundle.spec.decoder.block.attention, **changes))


def unknown_bias(bundle: Bundle) -> None:
    change_stack(bundle, position=unknown(spec.RelativeSpec()))


def unknown_rotary(bundle: Bundle) -> None:
    change_stack(bundle, position=unknown(bundle.spec.decoder.position))


def unknown_norm(bundle: Bundle) -> None:
    change_block(bundle, norm=unknown(bundle.spec.decoder.block.norm))


def unknown_feed_forward(bundle: Bundle) -> None:
    change_block(bundle, feed_forward=unknown(bundle.spec.decoder.block.feed_forward))


def unknown_attention_bias(bundle: Bundle) -> None:
    change_attention(bundle, position_bias=unknown(spec.RelativeBias2dSpec(grid=(2, 2))))


UNKNOWN = [unknown_bias, unknown_rotary, unknown_norm, unknown_feed_forward, unknown_attention_bias]


def ctranslate2(bundle: Bundle, folder: Path) -> None:
    export_ctranslate2(bundle, folder / "out")


def explorer(bundle: Bundle, folder: Path) -> None:
    describe_stacks(bundle)


@pytest.mark.parametrize("edge", [ctranslate2, explorer])
@pytest.mark.parametrize("change", UNKNOWN)
def test_unknown_part_is_refused(change: Callable[[Bundle], None], edge: Edge, tmp_path: Path) -> None:
    bundle = glassformer.Pipeline(
        model=glassformer.tiny("llama").eval(), family="llama", generation={"eos_token_id": 2}
    )
    edge(bundle, tmp_path / "known")
    change(bundle)
    assert family_of_spec(bundle.spec) is None  # so it is not saved in a published layout
    with pytest.raises(UnsupportedError):
        edge(bundle, tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "changes",
    [{"layer_scale": 0.1}, {"local_conv": 3}, {"order": "cross_first"}, {"wiring": "sandwich"}],
    ids=str,
)
def test_setting_without_translation_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    bundle = glassformer.Pipeline(model=glassformer.tiny("llama").eval(), generation={"eos_token_id": 2})
    change_block(bundle, **changes)
    with pytest.raises(UnsupportedError):
        ctranslate2(bundle, tmp_path)


@pytest.mark.parametrize("part", ["input", "head"])
def test_onnx_refuses_unknown_inputs_and_outputs(part: str, tmp_path: Path) -> None:
    model: Any = glassformer.tiny("bert", head=spec.ClassifySpec(num_labels=2), tied=False).eval()
    model.spec = replace(model.spec, **{part: unknown(getattr(model.spec, part))})
    with pytest.raises(UnsupportedError):
        export_onnx(glassformer.Pipeline(model=model), tmp_path / "out")


def test_unknown_positions_are_not_built() -> None:
    @dataclass(frozen=True, kw_only=True)
    class OtherSpec(spec.Spec):
        """No position that the builder knows."""

    stack = glassformer.tiny("llama").spec.decoder
    object.__setattr__(stack, "position", OtherSpec())
    with pytest.raises(UnsupportedError):
        build_stack(stack)


@pytest.mark.parametrize("name", sorted(families()))
def test_parts_of_every_family_are_known_to_the_explorer(name: str) -> None:
    bundle = glassformer.Pipeline(model=glassformer.tiny(name))
    try:
        model_kind(bundle)
    except UnsupportedError:
        pytest.skip("not traced")
    describe_stacks(bundle)
