"""Specs of the models: what a model takes, consists of and yields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from glassformer.core.spec.images import HybridStagesSpec, StagesSpec, TwoWayStackSpec
from glassformer.core.spec.layers import StackSpec
from glassformer.core.spec.text import HeadSpec, InputSpec, Modality, Output
from glassformer.errors import ConflictError, InvalidValueError, MissingValueError
from glassformer.schema import Spec

EncoderSpec = StackSpec | StagesSpec
AnyStackSpec = EncoderSpec | HybridStagesSpec | TwoWayStackSpec


@dataclass(frozen=True, kw_only=True)
class XavierSpec(Spec):
    """Xavier uniform for matrices, 0 for biases, normal with std 1/sqrt(d_model) for embeddings."""


@dataclass(frozen=True, kw_only=True)
class NormalSpec(Spec):
    """Normal distribution; residual="shrunk" divides `std` by sqrt(N) for the N residual projections."""

    std: float = 0.02
    residual: Literal["same", "shrunk"] = "same"


InitSpec = XavierSpec | NormalSpec


class ModelSpec(Spec, abstract=True):
    """Base of the specs of models, which say what a model takes, consists of and yields.

    The answers are derived from the fields of the spec. The keys of `children`, `stacks` and `heads` are
    module paths.

    architecture: what the model is, in words
    tied: modules that share the token matrix
    """

    architecture: ClassVar[str] = "another architecture"

    if TYPE_CHECKING:  # fields of every model spec
        head: HeadSpec
        tied: tuple[str, ...]
        init: InitSpec

    def inputs(self) -> tuple[InputSpec, ...]:
        """Return what the model takes, in the order of its forward."""
        own = tuple(p for part in self._own(InputSpec).values() if not part.trained for p in part.parts())
        return own or tuple(part for child in self.children().values() for part in child.inputs())

    @property
    def yields(self) -> Output | None:
        """What the head yields: "boxes", "next tokens", ..."""
        return self.head.yields

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modality of each input, without repetition: ("text",), ("image", "text"), ..."""
        return tuple(dict.fromkeys(part.modality for part in self.inputs()))

    def embeddings(self) -> dict[str, InputSpec]:
        """Return the inputs by the module that embeds them, in the order of the stacks that read them."""
        return self._parts(self._embeddings(), ModelSpec.embeddings)

    def children(self) -> dict[str, ModelSpec]:
        """Return the models that this model consists of, such as two towers."""
        embedded = {
            f"{path}.{name}": child
            for path, part in self._embeddings().items()
            for name, child in part.children().items()
        }
        return embedded | self._own(ModelSpec)

    def stacks(self) -> dict[str, AnyStackSpec]:
        """Return the stacks, those of its children included: encoder, decoder."""
        return self._parts(self._own(AnyStackSpec), ModelSpec.stacks)

    def heads(self) -> dict[str, HeadSpec]:
        """Return the heads, those of its children included."""
        return self._parts(self._own(HeadSpec), ModelSpec.heads)

    def _embeddings(self) -> dict[str, InputSpec]:
        """Return the inputs of the model itself, by the module that embeds them."""
        return {"embed": self.input} if hasattr(self, "input") else {}

    def _own(self, kind: Any) -> dict[str, Any]:
        return {name: part for name, part in vars(self).items() if isinstance(part, kind)}

    def _parts(self, own: dict[str, Any], parts_of: Callable[[ModelSpec], dict[str, Any]]) -> dict[str, Any]:
        for name, child in self.children().items():
            own |= {f"{name}.{path}": part for path, part in parts_of(child).items()}
        return own


@dataclass(frozen=True, kw_only=True)
class EncoderDecoderSpec(ModelSpec):
    """An encoder-decoder. tied: modules that share the target's token matrix.

    connector: whether a dense layer projects the encoder's output to the width of the decoder; without it,
    cross-attention reads the encoder's width.
    start_id, end_id: tokens with which generation starts and stops a target, if the caller gives none.
    """

    architecture = "encoder-decoder"

    source: InputSpec
    target: InputSpec
    encoder: EncoderSpec
    decoder: StackSpec
    head: HeadSpec
    connector: bool = False
    tied: tuple[Literal["source", "head"], ...] = ()
    start_id: int | None = None
    end_id: int | None = None
    init: InitSpec = field(default_factory=XavierSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.decoder.block.cross_attention is None:
            raise MissingValueError("cross_attention", "in the block of the decoder of an encoder-decoder")

    @property
    def modalities(self) -> tuple[Modality, ...]:
        """The modalities of the source: the target is what the model generates."""
        return tuple(dict.fromkeys(part.modality for part in self.source.parts()))

    def _embeddings(self) -> dict[str, InputSpec]:
        return {"src_embed": self.source, "tgt_embed": self.target}


@dataclass(frozen=True, kw_only=True)
class EncoderOnlySpec(ModelSpec):
    """An encoder-only model: every position attends to all positions.

    max_len: longest sequence in training, if no position table limits it; not enforced.
    """

    architecture = "encoder-only"

    input: InputSpec
    encoder: EncoderSpec
    head: HeadSpec
    tied: tuple[Literal["head"], ...] = ()
    max_len: int | None = None
    init: InitSpec = field(default_factory=NormalSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        given = getattr(self.input, "modulation", None)
        for part in (self.head, *(block.norm for block in self.encoder.blocks)):
            wanted = getattr(part, "modulation", given)
            if wanted != given:
                raise ConflictError(("input", part.kind), f"modulation is {given} and {wanted}")


@dataclass(frozen=True, kw_only=True)
class DecoderOnlySpec(ModelSpec):
    """A decoder-only model: every position attends to itself and to earlier positions.

    max_len: longest sequence in training, if no position table limits it; not enforced.
    """

    architecture = "decoder-only"

    input: InputSpec
    decoder: StackSpec
    head: HeadSpec
    tied: tuple[Literal["head"], ...] = ()
    max_len: int | None = None
    init: InitSpec = field(default_factory=NormalSpec)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.decoder.causal:
            raise InvalidValueError("causal", False, "True in the decoder stack")
