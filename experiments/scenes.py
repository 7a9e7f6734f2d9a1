"""Composed scenes: cut-outs pasted on a background, with exact labels, boxes, masks and captions.

python -m experiments.scenes --out scenes --count 2000     a COCO folder to train detectors and segmenters on

A scene depends only on the seed and its index, so any part of a run can be repeated. The layouts of a batch
are drawn on the CPU, and rendered on any device: a GPU renders thousands of scenes of 128 x 128 per second.
Letters: N cut-outs, B scenes, M objects of a scene (padded), S side of a scene in pixels.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from experiments.paths import data_folder
from glassformer.data.annotations import Annotation, mask_to_box
from glassformer.data.mask_encoding import encode_rle
from glassformer.data.randomness import uniform
from glassformer.errors import EmptyInputError, FileMissingError, InvalidValueError, UnknownNameError

LANGUAGES = ("en", "de", "fr", "ko")
CUTOUT_SIDE = 64
BLUR_LEVELS = 3  # a cut-out drawn at a half, a quarter, ... of its side is low-pass filtered first
ATTEMPTS = 12  # positions tried for an object; if all overlap too much, it is left out
TEXTURE_SIDE = 6  # a texture interpolates random colors on a grid of this side
NO_LABEL = -1  # padding in the labels of a batch
_PER_OBJECT = 7 + 2 * ATTEMPTS  # random numbers of an object
_PER_SCENE = 12 + 3 * TEXTURE_SIDE**2
COLORS: dict[str, tuple[tuple[int, int, int], tuple[str, ...]]] = {  # RGB, names in `LANGUAGES`
    "red": ((220, 40, 40), ("red", "rot", "rouge", "빨간색")),
    "green": ((40, 160, 60), ("green", "grün", "vert", "초록색")),
    "blue": ((40, 80, 220), ("blue", "blau", "bleu", "파란색")),
    "yellow": ((235, 205, 40), ("yellow", "gelb", "jaune", "노란색")),
    "purple": ((140, 60, 180), ("purple", "lila", "violet", "보라색")),
    "white": ((250, 250, 250), ("white", "weiß", "blanc", "흰색")),
}
# Names stand in their basic form, so that no language needs their gender or case.
_CAPTION: dict[str, tuple[str, str, str, str]] = {  # several of a kind, separator, left and right, above
    "en": ("{name} × {n}", "; ", "{a} on the left, {b} on the right", "{a} at the top, {b} at the bottom"),
    "de": ("{name} × {n}", "; ", "links {a}, rechts {b}", "oben {a}, unten {b}"),
    "fr": ("{name} × {n}", " ; ", "à gauche {a}, à droite {b}", "en haut {a}, en bas {b}"),
    "ko": ("{name} {n}개", "; ", "왼쪽에 {a}, 오른쪽에 {b}", "위쪽에 {a}, 아래쪽에 {b}"),
}


@dataclass(frozen=True, kw_only=True, eq=False)
class CutOuts:
    """Small pictures with transparency, to paste into scenes.

    images: RGBA (N, 64, 64, 4) bytes. labels: the kind of each picture (N,).
    names: the name of each kind in every language of `LANGUAGES`.
    tinted: whether the pictures only have a shape, and get one of `COLORS` in each scene.
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    names: tuple[Mapping[str, str], ...]
    tinted: bool = False

    @property
    def classes(self) -> list[str]:
        """The English names of the kinds."""
        return [name["en"] for name in self.names]


def read_emoji(
    folder: str | Path, *, styles: Sequence[str] = ("noto",), kinds: Sequence[str] | int | None = None
) -> CutOuts:
    """Read emoji from a folder with emoji.tsv.gz and an .npz file per style.

    kinds: English names, or the number of kinds, spread evenly over all that every style has; by default all.
    """
    folder = Path(folder)
    try:
        with gzip.open(folder / "emoji.tsv.gz", "rt", encoding="utf-8") as file:
            header, *lines = (line.rstrip("\n").split("\t") for line in file)
    except FileNotFoundError:
        raise FileMissingError(folder / "emoji.tsv.gz", "table of emoji") from None
    rows = [dict(zip(header, line, strict=True)) for line in lines]
    arrays = {}
    for style in styles:
        path = folder / f"{style}.npz"
        if not path.is_file():
            known = sorted(file.stem for file in folder.glob("*.npz"))
            raise UnknownNameError("emoji style", style, known)
        with np.load(path) as archive:
            arrays[style] = dict(zip(archive["row"].tolist(), archive["images"], strict=True))
    common = [row for row in rows if all(int(row["row"]) in images for images in arrays.values())]
    if isinstance(kinds, int):
        if not 1 <= kinds <= len(common):
            raise InvalidValueError("kinds", kinds, f"1 to {len(common)}")
        chosen = [common[n * len(common) // kinds] for n in range(kinds)]
    elif kinds is not None:
        by_name = {row["name_en"]: row for row in common}
        for name in kinds:
            if name not in by_name:
                raise UnknownNameError("emoji", name, by_name)
        chosen = [by_name[name] for name in kinds]
    else:
        chosen = common
    images = [arrays[style][int(row["row"])] for row in chosen for style in styles]
    return CutOuts(
        images=np.stack(images),
        labels=np.repeat(np.arange(len(chosen)), len(styles)),
        names=tuple({language: row[f"name_{language}"] for language in LANGUAGES} for row in chosen),
    )


def digit_cutouts(images: NDArray[np.uint8], labels: NDArray[np.int64]) -> CutOuts:
    """Return handwritten digits as cut-outs: the ink is the shape, which each scene colors.

    images: white on black (N, H, W), e.g. those of MNIST. labels: the digits (N,).
    """
    if not len(images):
        raise EmptyInputError("set of digits")
    ink = torch.from_numpy(np.ascontiguousarray(images))[:, None].float()
    ink = F.interpolate(ink, (CUTOUT_SIDE, CUTOUT_SIDE), mode="bilinear").round().clamp(0, 255)
    rgba = np.full((len(images), CUTOUT_SIDE, CUTOUT_SIDE, 4), 255, np.uint8)
    rgba[..., 3] = ink[:, 0].numpy().astype(np.uint8)
    names = tuple(dict.fromkeys(LANGUAGES, str(digit)) for digit in range(int(labels.max()) + 1))
    return CutOuts(images=rgba, labels=labels.astype(np.int64), names=names, tinted=True)


@dataclass(frozen=True, kw_only=True)
class SceneOptions:
    """How scenes are composed.

    size: side of a scene in pixels. min_objects, max_objects: number of cut-outs.
    min_scale, max_scale: side of a cut-out as a fraction of the scene's.
    max_rotation: in degrees, in both directions. mirror_prob: probability of a horizontal flip.
    max_overlap: largest share of one cut-out's square that another may cover.
    """

    size: int = 128
    min_objects: int = 1
    max_objects: int = 8
    min_scale: float = 0.18
    max_scale: float = 0.4
    max_rotation: float = 25.0
    mirror_prob: float = 0.5
    max_overlap: float = 0.25

    def __post_init__(self) -> None:
        if not 1 <= self.min_objects <= self.max_objects:
            raise InvalidValueError("max_objects", self.max_objects, f"at least {max(1, self.min_objects)}")
        if not 0 < self.min_scale <= self.max_scale <= 1:
            raise InvalidValueError("max_scale", self.max_scale, f"from {self.min_scale:g} to 1")


@dataclass(frozen=True, kw_only=True, eq=False)
class SceneLayout:
    """What is where in B scenes; objects are pasted in order, so a later one may cover an earlier one.

    cutout: number of the cut-out (B, M), NO_LABEL for padding. center: x, y in fractions (B, M, 2).
    scale: side in fractions (B, M). angle: in radians (B, M). mirror: (B, M).
    color: number of the color in `COLORS`, for tinted cut-outs (B, M).
    background: random numbers of the background (B, K).
    """

    cutout: NDArray[np.int64]
    center: NDArray[np.float32]
    scale: NDArray[np.float32]
    angle: NDArray[np.float32]
    mirror: NDArray[np.bool_]
    color: NDArray[np.int64]
    background: NDArray[np.float32]


class SceneBatch(NamedTuple):
    """Rendered scenes.

    images: RGB (B, 3, S, S) from 0 to 1. labels: kinds (B, M), NO_LABEL for padding and hidden objects.
    boxes: around the visible pixels, (center x, center y, width, height) in fractions (B, M, 4).
    masks: visible pixels (B, M, S, S).
    """

    images: Tensor
    labels: Tensor
    boxes: Tensor
    masks: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """One scene, as `SceneComposer.scene` returns it.

    image: RGB (S, S, 3) bytes. annotations: the visible objects with their English names.
    captions: by language.
    """

    image: NDArray[np.uint8]
    annotations: tuple[Annotation, ...]
    captions: dict[str, str]


class SceneComposer:
    """Compose scenes of cut-outs.

    cutouts: the pictures to paste. options: number, size and overlap of the objects.
    seed: of all random choices. device: where scenes are rendered.

    >>> square = np.full((1, 64, 64, 4), 255, np.uint8)
    >>> names = ({language: "square" for language in LANGUAGES},)
    >>> composer = SceneComposer(CutOuts(images=square, labels=np.zeros(1, np.int64), names=names), seed=1)
    >>> composer.batch([5, 6]).images.shape
    torch.Size([2, 3, 128, 128])
    """

    def __init__(
        self,
        cutouts: CutOuts,
        options: SceneOptions | None = None,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.cutouts, self.options, self.seed = cutouts, options or SceneOptions(), seed
        self.device = torch.device(device)
        rgba = torch.from_numpy(cutouts.images).to(self.device).permute(0, 3, 1, 2).float() / 255
        sharp = torch.cat((rgba[:, :3] * rgba[:, 3:], rgba[:, 3:]), 1)  # premultiplied alpha
        side = sharp.shape[-1]
        levels = [sharp]
        for level in range(1, BLUR_LEVELS):
            small = F.avg_pool2d(sharp, 2**level)
            levels.append(F.interpolate(small, (side, side), mode="bilinear"))
        self._pyramid = torch.stack(levels)  # (levels, N, 4, 64, 64)
        self._labels = torch.from_numpy(cutouts.labels).to(self.device)
        palette = np.array([rgb for rgb, _ in COLORS.values()], np.float32) / 255
        self._palette = torch.from_numpy(palette).to(self.device)

    def layout(self, indices: NDArray[np.int64] | Sequence[int]) -> SceneLayout:
        """Draw the layouts of the scenes with these numbers."""
        options, rows = self.options, np.asarray(indices, np.int64)
        count, most = len(rows), options.max_objects
        draws = uniform(self.seed, 0, rows, _PER_SCENE + most * _PER_OBJECT)
        own, each = draws[:, :_PER_SCENE], draws[:, _PER_SCENE:].reshape(count, most, _PER_OBJECT)
        span = most - options.min_objects + 1
        wanted = options.min_objects + np.floor(own[:, 0] * span).astype(np.int64)
        # every kind is equally likely, whatever its number of pictures
        by_kind = [np.flatnonzero(self.cutouts.labels == kind) for kind in range(len(self.cutouts.names))]
        sizes = np.array([len(pictures) for pictures in by_kind])
        kinds = np.flatnonzero(sizes)[np.floor(each[..., 0] * (sizes > 0).sum()).astype(np.int64)]
        order, first = np.concatenate(by_kind), np.cumsum(sizes) - sizes
        cutout = order[first[kinds] + np.floor(each[..., 1] * sizes[kinds]).astype(np.int64)]
        scale = options.min_scale + each[..., 2] * (options.max_scale - options.min_scale)
        tries = each[..., 7:].reshape(count, most, ATTEMPTS, 2)
        centers = scale[..., None, None] / 2 + tries * (1 - scale[..., None, None])
        center, placed = _place(centers, scale, wanted, options.max_overlap)
        return SceneLayout(
            cutout=np.where(placed, cutout, NO_LABEL),
            center=center.astype(np.float32),
            scale=scale.astype(np.float32),
            angle=np.deg2rad((2 * each[..., 3] - 1) * options.max_rotation).astype(np.float32),
            mirror=each[..., 4] < options.mirror_prob,
            color=np.floor(each[..., 5] * len(COLORS)).astype(np.int64),
            background=own[:, 1:].astype(np.float32),
        )

    def batch(self, indices: NDArray[np.int64] | Sequence[int]) -> SceneBatch:
        """Compose and render the scenes with these numbers."""
        return self.render(self.layout(indices))

    @torch.compiler.disable
    @torch.no_grad()
    def render(self, layout: SceneLayout) -> SceneBatch:
        """Render layouts on the device of the composer, whose arrays may also be tensors."""
        with torch.autocast(self.device.type, enabled=False):  # coordinates need float32
            return self._render(layout)

    def _render(self, layout: SceneLayout) -> SceneBatch:
        def tensor(array: NDArray[np.generic]) -> Tensor:
            return torch.as_tensor(array).to(self.device, non_blocking=True)

        size, side = self.options.size, self._pyramid.shape[-1]
        cutout, center, scale = tensor(layout.cutout), tensor(layout.center), tensor(layout.scale)
        angle, mirror = tensor(layout.angle), tensor(layout.mirror)
        count, most = cutout.shape
        present = cutout != NO_LABEL
        # the inverse map: from a pixel of the scene to a position in the cut-out, both from -1 to 1
        cos, sin = torch.cos(angle) / scale, torch.sin(angle) / scale
        flip = torch.where(mirror, -1.0, 1.0)
        offset = 2 * center - 1  # (B, M, 2)
        across = torch.stack((cos, sin, -(cos * offset[..., 0] + sin * offset[..., 1])), -1)
        down = torch.stack((-sin, cos, sin * offset[..., 0] - cos * offset[..., 1]), -1)
        theta = torch.stack((across * flip[..., None], down), -2).flatten(0, 1)  # (B M, 2, 3)
        grid = F.affine_grid(theta, [count * most, 4, size, size], align_corners=False)
        level = torch.log2(side / (scale * size)).floor().long().clamp(0, BLUR_LEVELS - 1)
        pictures = self._pyramid[level, cutout.clamp(min=0)].flatten(0, 1)  # (B M, 4, 64, 64)
        layers = F.grid_sample(pictures, grid, align_corners=False).unflatten(0, (count, most))
        layers = layers * present[..., None, None, None]
        if self.cutouts.tinted:
            layers[:, :, :3] *= self._palette[tensor(layout.color)][..., None, None]
        images = self._background(tensor(layout.background))
        masks = torch.zeros(count, most, size, size, dtype=torch.bool, device=self.device)
        for n in range(most):
            color, alpha = layers[:, n, :3], layers[:, n, 3]
            images = color + (1 - alpha[:, None]) * images
            covers = alpha >= 0.5
            masks[:, :n] &= ~covers[:, None]
            masks[:, n] = covers
        visible = masks.flatten(2).any(-1)
        labels = torch.where(visible, self._labels[cutout.clamp(min=0)], NO_LABEL)
        return SceneBatch(images.clamp(0, 1), labels, _boxes(masks), masks)

    def _background(self, draws: Tensor) -> Tensor:
        """Return plain, gradient and textured backgrounds (B, 3, S, S)."""
        size, count = self.options.size, len(draws)
        kind, first, second, angle = draws[:, 0], draws[:, 1:4], draws[:, 4:7], draws[:, 7] * 2 * math.pi
        line = (torch.arange(size, device=self.device) + 0.5) / size - 0.5
        slope = (
            torch.cos(angle)[:, None, None] * line + torch.sin(angle)[:, None, None] * line[:, None]
        ) / math.sqrt(2) + 0.5  # (B, S, S), from 0 to 1
        step = torch.where(kind < 1 / 3, 0.0, 1.0)[:, None, None, None]
        mixed = first[..., None, None] + step * slope[:, None] * (second - first)[..., None, None]
        colors = draws[:, 11:].reshape(count, 3, TEXTURE_SIDE, TEXTURE_SIDE)
        texture = F.interpolate(colors, (size, size), mode="bicubic")
        share = torch.where(kind < 2 / 3, 0.0, 0.5)[:, None, None, None]
        return ((1 - share) * mixed + share * texture).clamp(0, 1)

    def scene(self, index: int) -> Scene:
        """Compose one scene with its annotations and captions."""
        layout = self.layout([index])
        images, labels, _, masks = (part[0].cpu().numpy() for part in self.render(layout))
        shown = np.flatnonzero(labels != NO_LABEL)
        names, annotations = self.cutouts.names, []
        for n in shown:
            label = names[labels[n]]["en"]
            annotations.append(Annotation(label=label, box=mask_to_box(masks[n]), mask=masks[n]))
        kinds, center = labels[shown], layout.center[0, shown]
        return Scene(
            image=(images.transpose(1, 2, 0) * 255).round().astype(np.uint8),
            annotations=tuple(annotations),
            captions={language: self._caption(kinds, center, language) for language in LANGUAGES},
        )

    def _caption(self, kinds: NDArray[np.int64], center: NDArray[np.float64], language: str) -> str:
        """Return the kinds with their counts, and where the two objects farthest apart are."""
        several, separator, left_right, above_below = _CAPTION[language]
        names = [self.cutouts.names[kind][language] for kind in kinds]
        counts = Counter(names)
        listed = ", ".join(several.format(name=name, n=n) if n > 1 else name for name, n in counts.items())
        if len(counts) < 2:
            return listed
        axis = int(np.ptp(center, 0).argmax())
        first, last = int(center[:, axis].argmin()), int(center[:, axis].argmax())
        if names[first] == names[last]:
            return listed
        return listed + separator + (left_right, above_below)[axis].format(a=names[first], b=names[last])


def write_scenes(composer: SceneComposer, indices: Sequence[int], folder: str | Path) -> Path:
    """Write scenes as a COCO folder: images, and annotations.json with boxes, masks and captions.

    Returns the path of annotations.json. Captions are English, as COCO has no field for the language.
    """
    folder = Path(folder)
    annotations: list[dict[str, Any]] = []
    images: list[dict[str, Any]] = []
    (folder / "images").mkdir(parents=True, exist_ok=True)
    numbers = {name: n for n, name in enumerate(composer.cutouts.classes, 1)}
    for identity, index in enumerate(indices, 1):
        scene, name = composer.scene(index), f"{index:06d}.png"
        Image.fromarray(scene.image).save(folder / "images" / name)
        height, width = scene.image.shape[:2]
        captions = [scene.captions["en"]]
        images.append(
            {"id": identity, "file_name": name, "height": height, "width": width, "captions": captions}
        )
        for note in scene.annotations:
            assert note.box is not None and note.mask is not None
            left, top, right, bottom = note.box
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": identity,
                    "category_id": numbers[note.label],
                    "bbox": [left, top, right - left, bottom - top],
                    "area": int(note.mask.sum()),
                    "segmentation": encode_rle(note.mask),
                    "iscrowd": 0,
                }
            )
    categories = [{"id": n, "name": name} for name, n in numbers.items()]
    content = {"images": images, "annotations": annotations, "categories": categories}
    path = folder / "annotations.json"
    path.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    return path


def _place(
    centers: NDArray[np.float64], scale: NDArray[np.float64], wanted: NDArray[np.int64], max_overlap: float
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Choose the first position of each object that overlaps the earlier ones little enough.

    centers: the positions to try (B, M, A, 2). wanted: number of objects (B,).
    Returns the centers (B, M, 2) and which objects are placed (B, M).
    """
    count, most = scale.shape
    chosen, placed = np.zeros((count, most, 2)), np.zeros((count, most), bool)
    for n in range(most):
        distance = np.abs(centers[:, n, :, None] - chosen[:, None, :n])  # (B, A, n, 2)
        reach = (scale[:, n, None] + scale[:, :n]) / 2  # (B, n)
        smaller = np.minimum(scale[:, n, None], scale[:, :n])
        shared = np.clip(np.minimum(reach[:, None, :, None] - distance, smaller[:, None, :, None]), 0, None)
        overlap = shared.prod(-1) / smaller[:, None] ** 2 * placed[:, None, :n]  # (B, A, n)
        fits = (overlap <= max_overlap).all(-1)
        chosen[:, n] = centers[np.arange(count), n, fits.argmax(1)]
        placed[:, n] = fits.any(1) & (n < wanted)
    return chosen, placed


def _boxes(masks: Tensor) -> Tensor:
    """Return the boxes around masks (B, M, S, S), in fractions (B, M, 4); zeros for empty masks."""
    size = masks.shape[-1]
    numbers = torch.arange(size, device=masks.device)
    ends = []
    for axis in (-2, -1):  # x from the columns, y from the rows
        used = masks.any(axis)
        low = torch.where(used, numbers, size).amin(-1)
        high = torch.where(used, numbers + 1, 0).amax(-1)
        ends.append((low, high))
    (x_min, x_max), (y_min, y_max) = ends
    boxes = torch.stack(((x_min + x_max) / 2, (y_min + y_max) / 2, x_max - x_min, y_max - y_min), -1) / size
    return boxes * masks.flatten(2).any(-1)[..., None]


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.scenes", description=write_scenes.__doc__)
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=2000, help="number of scenes")
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    parser.add_argument("--kinds", type=int, default=60, help="number of kinds of emoji")
    parser.add_argument("--size", type=int, default=128, help="side of a scene in pixels")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(args)
    cutouts = read_emoji(options.emoji, kinds=options.kinds)
    composer = SceneComposer(cutouts, SceneOptions(size=options.size), seed=options.seed)
    print(write_scenes(composer, range(options.first, options.first + options.count), options.out))


if __name__ == "__main__":
    main()
