"""What a model takes, and the steps before the first layer: padding masks, position ids, embeddings.

A model is called with a tensor, or with the tensor and what belongs to it: `TextInputs`, `ImageInputs`,
`ImageTextInputs`, `SeriesInputs`, `LatentInputs`. The embedding reads them; the layers see only its
`EmbeddingOutput`.

B batch, T positions of the input, S keys, D d_model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from glassformer.core.embeddings import EmbeddingOutput, TokenInput, check_token_ids
from glassformer.core.masks import Mask
from glassformer.core.observe import Observer
from glassformer.core.positions import count_positions
from glassformer.errors import InvalidValueError, MissingValueError, ShapeError, UnsupportedError

MaskLike = Mask | Tensor | None


@dataclass(frozen=True)
class TextInputs:
    """Token ids and what belongs to them.

    ids: (B, T)
    mask: (B, T), (B, 1|T, S) or (B, 1|H, 1|T, S); None: padding is inferred from the pad id
    types: token types (B, T)
    positions: position ids (B|1, T); None: counted, without padding

    >>> import glassformer
    >>> ids = torch.tensor([[5, 7, 9, 3]])
    >>> glassformer.tiny("original")(TextInputs(ids, mask=ids != 3), ids).shape
    torch.Size([1, 4, 89])
    """

    ids: Tensor
    mask: MaskLike = None
    types: Tensor | None = None
    positions: Tensor | None = None


@dataclass(frozen=True)
class ImageInputs:
    """Images and what belongs to them.

    pixels: (B, C, height, width)
    pixel_mask: (B, height, width), True for real pixels of padded images
    masked_patches: (B, patches), True for patches that are replaced by the mask token
    mask: (B, T), (B, 1|T, S) or (B, 1|H, 1|T, S), which tokens may be attended to

    >>> from glassformer.core import build, spec
    >>> resnet = spec.ResNetSpec(stem_width=8, widths=(8, 16), depths=(1, 1), strides=(1, 2), layer="basic")
    >>> embed = build.build_embedding(spec.FeatureMapSpec(backbone=resnet), 32)
    >>> pixels, pixel_mask = torch.randn(1, 3, 32, 32), torch.ones(1, 32, 32).bool()
    >>> pixel_mask[:, :, 16:] = False                       # padding on the right
    >>> embed(ImageInputs(pixels, pixel_mask)).mask.padding.view(4, 4)[0].tolist()
    [True, True, False, False]
    """

    pixels: Tensor
    pixel_mask: Tensor | None = None
    masked_patches: Tensor | None = None
    mask: MaskLike = None


@dataclass(frozen=True)
class ImageTextInputs(TextInputs):
    """Token ids with images.

    images: (N, C, height, width), in the order of the texts and of the placeholders in them, or the vectors
    (N, S, W) that `encode_images` of the embedding returned for them

    >>> from glassformer.core import build, spec
    >>> patches = spec.ImagePatchesSpec(image_size=(8, 8), patch_size=(4, 4))
    >>> read = spec.TokensAndPatchesSpec(text=spec.TokensSpec(vocab_size=50), image=patches)
    >>> embed = build.build_embedding(read, 16)
    >>> embed(ImageTextInputs(torch.tensor([[5, 7, 9]]), images=torch.zeros(1, 3, 8, 8))).x.shape
    torch.Size([1, 8, 16])
    """

    images: Tensor | ImageInputs | None = None


@dataclass(frozen=True)
class SeriesInputs:
    """Time series and what belongs to them.

    values: (B, time, channels)
    observed: (B, time, channels), False where a value is missing
    masked_patches: (B, channels, patches), True for patches to be predicted
    covariates: (B, past + future steps, covariates), known covariates

    >>> from glassformer.core import build, spec
    >>> patches = spec.SeriesPatchesSpec(context_length=24, patch_length=6, stride=6, channels=2)
    >>> embed = build.build_embedding(patches, 16)
    >>> values, observed = torch.randn(3, 24, 2), torch.ones(3, 24, 2).bool()
    >>> observed[:, 5:9] = False                            # missing: their values are not used
    >>> x = embed(SeriesInputs(values, observed)).x
    >>> values[:, 5:9] = 100.0
    >>> torch.equal(embed(SeriesInputs(values, observed)).x, x)
    True
    """

    values: Tensor
    observed: Tensor | None = None
    masked_patches: Tensor | None = None
    covariates: Tensor | None = None


@dataclass(frozen=True)
class LatentInputs:
    """Noisy latents of a diffusion model, and what their noise is predicted from.

    latents: (B, C, height, width), or (B, C, frames, height, width) of a video
    timesteps: one time step, or one for each row (B,)
    labels: classes (B,); None: the empty label, no class
    text: vectors of a text encoder (B, S, E)
    text_mask: (B, S), True for the vectors of real tokens

    >>> import glassformer
    >>> denoiser = glassformer.tiny("dit")
    >>> denoiser(LatentInputs(torch.randn(2, 4, 8, 8), torch.tensor(500), labels=torch.tensor([3, 7]))).shape
    torch.Size([2, 8, 8, 8])
    """

    latents: Tensor
    timesteps: Tensor
    labels: Tensor | None = None
    text: Tensor | None = None
    text_mask: MaskLike = None


ModelInputs = Tensor | TextInputs | ImageInputs | SeriesInputs | LatentInputs


def tensor_of(inputs: ModelInputs | Memory) -> Tensor:
    """Return the tensor of an input: token ids, images, values, latents, or the vectors of a memory."""
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, Memory):
        return inputs.x
    if isinstance(inputs, TextInputs):  # by name: `vars` of an object breaks the graph of torch.compile
        return inputs.ids
    if isinstance(inputs, LatentInputs):
        return inputs.latents
    return inputs.pixels if isinstance(inputs, ImageInputs) else inputs.values


class Masks(NamedTuple):
    """Masks of an encoder-decoder by name.

    src: of the source
    tgt: of the target
    memory: of the memory in cross-attention

    >>> import glassformer
    >>> model = glassformer.tiny("original").eval()
    >>> src, tgt, padding = torch.ones(2, 7).long(), torch.ones(2, 5).long(), torch.ones(2, 7).bool()
    >>> torch.equal(model(src, tgt, Masks(memory=padding)), model(src, tgt, None, None, padding))
    True
    """

    src: MaskLike = None
    tgt: MaskLike = None
    memory: MaskLike = None

    @classmethod
    def of(cls, masks: tuple[Masks | MaskLike, ...]) -> Masks:
        """Return the only `Masks` of a call, or the masks in their order."""
        first = masks[0] if masks else None
        if len(masks) > len(cls._fields):
            raise InvalidValueError("the number of masks", len(masks), "at most 3: source, target, memory")
        return first if isinstance(first, Masks) else cls(*masks)  # type: ignore[arg-type]


class Memory(NamedTuple):
    """What cross-attention attends to.

    x: vectors (B, S, D)
    mask: which of them may be attended to
    position: (1|B, S, D), added to the inputs of keys

    >>> import glassformer
    >>> model = glassformer.tiny("original").eval()
    >>> src, padding = torch.ones(2, 7).long(), torch.ones(2, 7).bool()
    >>> memory = Memory.of(model.encode(src, padding), padding)
    >>> model.decode(torch.ones(2, 5).long(), memory).shape  # (B, T, V)
    torch.Size([2, 5, 89])
    """

    x: Tensor
    mask: Mask
    position: Tensor | None = None

    @classmethod
    def of(cls, memory: Memory | Tensor, mask: MaskLike = None) -> Memory:
        """Return a memory; a 2-D mask is the padding (B, S)."""
        if isinstance(memory, Memory):
            return memory
        return cls(memory, Mask.of(mask, "memory_mask", padding=True))


def embed_inputs(
    embed: nn.Module,
    inputs: ModelInputs,
    mask: MaskLike = None,
    *,
    start: int | Tensor = 0,
    name: str = "mask",
    obs: Observer | None = None,
) -> EmbeddingOutput:
    """Embed the inputs of a model, with the mask and the position ids that the layers need.

    start: position of the first token, after those in a KV cache; the padding of earlier keys is unknown
    name: name of the mask in error messages
    """
    output: EmbeddingOutput
    if not isinstance(embed, TokenInput):
        output = embed(inputs, obs=obs)
        mask = inputs.mask if mask is None and isinstance(inputs, ImageInputs) else mask
        return output if mask is None else output._replace(mask=infer_mask(embed, output.x, mask, name))
    text = inputs if isinstance(inputs, TextInputs) else TextInputs(inputs)  # type: ignore[arg-type]
    fresh = isinstance(start, int) and start == 0
    full = infer_mask(embed, text.ids, text.mask if mask is None else mask, name, has_past=not fresh)
    if name == "tgt_mask" and mask is None and text.mask is None and full.padding is not None:
        # the first token starts the sequence, even if it is the pad token
        first = torch.ones_like(full.padding[:, :1])
        full = replace(full, padding=torch.cat((first, full.padding[:, 1:]), 1))
    positions = position_ids(full, start, text.ids) if text.positions is None else text.positions
    output = embed_tokens(embed, replace(text, positions=positions), start, obs=obs)
    return output._replace(mask=full, positions=positions)


def embed_tokens(
    embed: nn.Module, text: TextInputs, start: int | Tensor = 0, *, obs: Observer | None = None
) -> EmbeddingOutput:
    """Embed token ids at their positions; by default these are counted from `start`."""
    steps, positions = text.ids.shape[1], text.positions
    if positions is None:
        positions = (torch.arange(steps, device=text.ids.device) + start)[None]
    last = start + steps if isinstance(start, int) else None
    output: EmbeddingOutput = embed.embed_text(replace(text, positions=positions), last=last, obs=obs)  # type: ignore[operator]
    return output


def infer_mask(embed: nn.Module, inputs: Tensor, mask: MaskLike, name: str, has_past: bool = False) -> Mask:
    """Return `mask`, or infer the padding from the pad id if it is None.

    has_past: the KV cache already holds earlier keys; their padding is unknown, so nothing is inferred.
    name: name of the mask in error messages.
    """
    if isinstance(embed, TokenInput):
        check_token_ids(inputs)
    if mask is not None or not isinstance(embed, TokenInput) or embed.pad_id is None or has_past:
        return Mask.of(mask, name, padding=name != "tgt_mask")
    padding = inputs != embed.pad_id
    if inputs.is_cpu and not torch.compiler.is_compiling() and bool(padding.all()):
        return Mask()  # no padding: the kernel needs no mask (on a GPU this check would synchronize)
    return Mask(padding=padding)


def position_ids(mask: Mask, start: int | Tensor, inputs: Tensor) -> Tensor | None:
    """Return position ids (B, T) that count only real tokens of the same document.

    Returns None if nothing is padded or packed: positions are then counted from `start`.
    """
    counted = mask.segments if mask.padding is None else mask.padding
    if counted is None:
        return None
    batch, steps = inputs.shape[:2]
    keys = start + steps if isinstance(start, int) else counted.shape[-1]
    replace(mask, allowed=None).check(batch=batch, heads=1, queries=steps, keys=keys)
    return last_columns(count_positions(mask.padding, mask.segments), start, steps)


def last_columns(columns: Tensor, start: int | Tensor, steps: int) -> Tensor:
    """Select the columns (B, T) of the `steps` new tokens, from `start` on, of all keys so far (B, S)."""
    if isinstance(start, int):
        return columns[:, start : start + steps]
    return columns.index_select(1, start + torch.arange(steps, device=columns.device))


def cross_mask(source: Mask, target: MaskLike) -> Mask:
    """Return the default memory mask: real source tokens, and only those of the same document."""
    if source.segments is None:
        return Mask(padding=source.padding, allowed=source.allowed)
    query_segments = target.segments if isinstance(target, Mask) else None
    if query_segments is None:
        raise MissingValueError(
            "tgt_mask=Mask(segments=...)", "for a source of several documents", hint="or set a memory_mask"
        )
    return Mask(padding=source.padding, segments=source.segments, query_segments=query_segments)


def tie_weights(source: nn.Module, target: nn.Module, name: str) -> None:
    """Share the token matrix of `source` with `target`, an embedding or head called `name` in errors."""
    token = source.token if isinstance(source, TokenInput) else None
    module: Any = target.token if isinstance(target, TokenInput) else target
    weight = getattr(module, "weight", None)
    if token is None or not isinstance(weight, Tensor):
        raise UnsupportedError(name, "a shared token matrix", hint="leave it out of `tied`")
    if weight.shape != token.weight.shape:
        raise ShapeError(
            f"the token matrix of {name}",
            weight.shape,
            f"{tuple(token.weight.shape)}, to be shared",
            hint="make the vocabularies equal or leave it out of `tied`",
        )
    module.weight = token.weight
