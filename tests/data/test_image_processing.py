"""Image processing against transformers' PIL image processors."""

import json

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

from glassformer.data.image_files import load_image
from glassformer.data.image_processing import ImageProcessor
from glassformer.errors import InvalidValueError, UnknownNameError

SIZES = [(48, 64), (37, 91), (113, 41), (64, 64), (50, 51), (7, 5), (33, 200)]  # height, width
CONFIGS = {
    "ViT": [{"size": {"height": 32, "width": 40}}, {"do_normalize": False, "resample": 3}],
    "DeiT": [{"size": {"height": 37, "width": 37}, "crop_size": {"height": 32, "width": 31}}],
    "Bit": [
        {"size": {"shortest_edge": 40}, "crop_size": {"height": 32, "width": 32}},
        {
            "size": {"shortest_edge": 21},
            "crop_size": {"height": 32, "width": 35},
        },  # crop larger than the image
    ],
    "CLIP": [{"size": {"shortest_edge": 33}, "crop_size": {"height": 33, "width": 33}}],
    "Siglip": [{"size": {"height": 30, "width": 30}, "do_rescale": False}],
    "Blip": [{"size": {"height": 30, "width": 37}}, {}],
    "Detr": [
        {"size": {"shortest_edge": 50, "longest_edge": 83}},
        {"size": {"max_height": 50, "max_width": 60}},
    ],
    "Yolos": [{"size": {"shortest_edge": 50, "longest_edge": 83}}, {"size": {"height": 48, "width": 32}}],
    "Sam": [{"size": {"longest_edge": 96}, "pad_size": {"height": 96, "width": 99}}],
    "MaskFormer": [{"size": {"shortest_edge": 50, "longest_edge": 83}, "size_divisor": 8}],
    "Mask2Former": [{"size": {"shortest_edge": 50, "longest_edge": 83}, "size_divisor": 32}],
    "Llava": [
        {"size": {"shortest_edge": 33}, "crop_size": {"height": 33, "width": 33}, "do_pad": True},
        {"size": {"shortest_edge": 20}, "crop_size": {"height": 24, "width": 20}},
    ],
    "Eomt": [{"size": {"shortest_edge": 40, "longest_edge": 40}, "do_pad": True}],
    "Vilt": [{"size": {"shortest_edge": 50}, "size_divisor": 8}, {"size": {"shortest_edge": 384}}],
}
CASES = [(name, config) for name, configs in CONFIGS.items() for config in configs]


def draw(height: int, width: int, mode: str = "RGB") -> Image.Image:
    seed = np.random.default_rng(height * 1000 + width)
    channels = len(mode)
    pixels = seed.integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels[..., 0] if channels == 1 else pixels)


def reference(name: str, config: dict):
    return getattr(transformers, f"{name}ImageProcessorPil")(**config)


@pytest.mark.parametrize("name, config", CASES)
def test_pixels_equal_transformers(name, config):
    theirs = reference(name, config)
    ours = ImageProcessor.from_dict(theirs.to_dict())
    images = [draw(*size) for size in SIZES if name != "Yolos" or min(size) * 83 / max(size) >= 16]
    batches = [images] if ours.do_pad or "height" in ours.size or ours.do_center_crop else []
    for batch in [*([image] for image in images), *batches]:
        expected = theirs(batch, return_tensors="pt")
        result = ours(batch)
        assert torch.equal(result.pixels, expected["pixel_values"].float())
        if "pixel_mask" in expected:
            assert result.pixel_mask is not None
            assert torch.equal(result.pixel_mask, expected["pixel_mask"].bool())
        else:
            assert result.pixel_mask is None
        if name == "Sam":
            assert [list(size) for size in result.scaled_sizes] == expected["reshaped_input_sizes"].tolist()
        assert list(result.sizes) == [image.size[::-1] for image in batch]


@pytest.mark.parametrize("name", ["Idefics3", "SmolVLM"])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 32}},
        {"size": {"longest_edge": 100}, "max_image_size": {"longest_edge": 48}, "do_resize": False},
        {"do_image_splitting": False, "max_image_size": {"longest_edge": 32}},
    ],
)
def test_tiles_equal_transformers(name, config):
    theirs = reference(name, config)
    ours = ImageProcessor.from_dict(theirs.to_dict())
    for size in [*SIZES, (700, 20)]:
        image = draw(*size)
        expected = theirs([[image]], return_tensors="np", return_row_col_info=True)
        tiles = ours.tiles(image)
        assert (tiles.rows, tiles.columns) == (expected["rows"][0][0], expected["cols"][0][0])
        np.testing.assert_array_equal(ours.normalize(np.stack(tiles.pixels)), expected["pixel_values"][0])
        for limit in (1, 2, 5):
            fewer = ours.tiles(image, limit)
            assert len(fewer.pixels) <= limit
            np.testing.assert_array_equal(fewer.pixels[-1].shape, tiles.pixels[-1].shape)


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "P with transparency", "1", "CMYK", "EXIF"])
def test_modes_equal_transformers(mode, tmp_path):
    """Files of every mode give the pixels of transformers, which applies EXIF in `load_image`."""
    theirs = reference("CLIP", {"size": {"shortest_edge": 33}, "crop_size": 33})
    image = draw(37, 50)
    path = tmp_path / "a.tiff"
    if mode in ("LA", "RGBA"):
        image = image.convert(mode)
        image.putalpha(draw(37, 50, "L"))
    elif mode == "P with transparency":
        image, path = image.convert("P"), tmp_path / "a.png"
        image.info["transparency"] = 3
    elif mode != "EXIF":
        image = image.convert(mode)
    exif = Image.Exif()
    if mode == "EXIF":
        exif[0x0112] = 8
    image.save(path, exif=exif)
    opened = transformers.image_utils.load_image(str(path)) if mode == "EXIF" else Image.open(path)
    expected = theirs(opened, return_tensors="pt")["pixel_values"]
    assert torch.equal(ImageProcessor.from_dict(theirs.to_dict())([load_image(path)]).pixels, expected)


def test_crops_equal_transformers():
    theirs = reference("Eomt", {"size": {"shortest_edge": 24, "longest_edge": None}, "do_split_image": True})
    theirs.size = {"shortest_edge": 24}
    images = [draw(31, 90), draw(70, 25), draw(24, 24)]
    expected = theirs(images, return_tensors="pt")
    result = ImageProcessor.from_dict(theirs.to_dict())(images)
    assert torch.equal(result.pixels, expected["pixel_values"])
    assert [list(crop) for crop in result.crops] == [
        list(map(int, crop)) for crop in expected["patch_offsets"]
    ]


@pytest.mark.parametrize("name", CONFIGS)
def test_defaults_and_files_equal_transformers(name, tmp_path):
    bare = ImageProcessor.from_dict({"image_processor_type": f"{name}ImageProcessor"})
    reference(name, {}).save_pretrained(tmp_path)
    assert ImageProcessor.from_dict(json.loads((tmp_path / "preprocessor_config.json").read_text())) == bare
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(bare.to_dict()))
    loaded = type(reference(name, {})).from_pretrained(tmp_path)
    written, published = loaded.to_dict(), reference(name, {}).to_dict()
    assert {key: written.get(key) for key in published} == published


def test_old_files_are_read():
    detection = {"feature_extractor_type": "DetrFeatureExtractor", "size": 600, "max_size": 800}
    assert ImageProcessor.from_dict(detection).size == {"shortest_edge": 600, "longest_edge": 800}
    square = ImageProcessor.from_dict({"feature_extractor_type": "ViTFeatureExtractor", "size": 384})
    assert square.size == {"height": 384, "width": 384}
    clip = ImageProcessor.from_dict(
        {"image_processor_type": "CLIPImageProcessorFast", "crop_size": 99, "size": 98}
    )
    assert (clip.size, clip.crop_size) == ({"shortest_edge": 98}, (99, 99))
    untyped = ImageProcessor.from_dict({"image_mean": 0.5}, channels=1, image_size=(28, 30))
    assert (untyped.size, untyped.image_mean) == ({"height": 28, "width": 30}, (0.5,))
    assert untyped([draw(9, 9, "L")]).pixels.shape == (1, 1, 28, 30)


@pytest.mark.parametrize(
    "config, error",
    [
        ({"image_processor_type": "WhateverImageProcessor"}, UnknownNameError),
        ({"size": {"shortest_edge": 8, "height": 9}}, InvalidValueError),
        ({"resample": 9}, InvalidValueError),
        ({"image_mean": [0.1, 0.2]}, InvalidValueError),
    ],
)
def test_bad_files_are_rejected(config, error):
    with pytest.raises(error):
        ImageProcessor.from_dict(config)
