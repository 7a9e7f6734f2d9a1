"""Single images in every form that a user passes, and those that are refused."""

import base64
import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from glassformer.data.image_files import MAX_PIXELS, decode_base64, list_images, load_image
from glassformer.errors import FileMissingError, FileProblemError, InvalidValueError

PIXELS = np.random.default_rng(0).integers(0, 256, (5, 7, 3), np.uint8)


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def huge_png(side: int) -> bytes:
    """A valid PNG header of a large image, without its pixels."""
    header = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 9) + b"IDAT"


def test_all_forms_give_the_same_pixels(tmp_path):
    image = Image.fromarray(PIXELS)
    path = tmp_path / "a.png"
    path.write_bytes(encode(image))
    text = base64.b64encode(path.read_bytes()).decode()
    sources = [path, str(path), path.read_bytes(), image, PIXELS, PIXELS / 255, PIXELS.astype(np.int64)]
    sources += [torch.from_numpy(PIXELS).permute(2, 0, 1), torch.from_numpy(PIXELS).permute(2, 0, 1) / 255]
    sources += [decode_base64(text), decode_base64(f"data:image/png;base64,{text}")]
    for source in sources:
        loaded = load_image(source)
        assert loaded.mode == "RGB" and (np.asarray(loaded) == PIXELS).all()
    gray = load_image(PIXELS[..., 0])
    assert (np.asarray(gray) == PIXELS[..., :1]).all()
    assert np.asarray(load_image(PIXELS[..., 0] > 99)).max() == 255


def test_all_modes_become_rgb():
    frames = [Image.new("P", (7, 5), n) for n in (1, 2)]
    for frame in frames:
        frame.putpalette([0, 0, 0, 10, 20, 30, 40, 50, 60])
    animation = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    assert np.asarray(load_image(animation))[0, 0].tolist() == [10, 20, 30]  # the first frame
    clear = encode(Image.new("RGBA", (7, 5), (9, 9, 9, 0)))
    assert np.asarray(load_image(clear)).min() == 255  # on white
    deep = encode(Image.fromarray(np.full((5, 7), 0x80FF, np.uint16)))
    assert set(np.asarray(load_image(deep)).ravel()) == {0x80}
    cmyk = Image.fromarray(np.dstack([PIXELS, PIXELS[..., 0]]), "CMYK")
    assert (np.asarray(load_image(encode(cmyk, "TIFF"))) == np.asarray(cmyk.convert("RGB"))).all()
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = load_image(encode(Image.fromarray(PIXELS), "PNG", exif=exif))
    assert (np.asarray(turned) == np.rot90(PIXELS, -1)).all()


def test_sixteen_bits_take_little_memory():
    content = encode(Image.fromarray(np.full((1000, 1000), 0x80FF, np.uint16)))
    load_image(content)  # imports
    tracemalloc.start()
    load_image(content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 1000 * 1000  # bytes per pixel: 2 decoded, twice, and 1 converted, twice


@pytest.mark.parametrize(
    "source, error",
    [
        ("https://example.com/a.png", InvalidValueError),
        ("missing.png", FileMissingError),
        ("a" * 5000, FileMissingError),
        ("a\0b", FileMissingError),
        (b"", FileProblemError),
        (b"GIF89a nonsense", FileProblemError),
        (encode(Image.fromarray(PIXELS))[:90], FileProblemError),  # truncated
        (huge_png(30_000), FileProblemError),
        (huge_png(9_000), FileProblemError),
        (Image.new("RGB", (0, 5)), FileProblemError),
        (Image.new("RGB", (1, 5000)), FileProblemError),
        (np.zeros((0, 5, 3), np.uint8), InvalidValueError),
        (np.zeros((5, 5, 2), np.uint8), InvalidValueError),
        (np.full((5, 5, 3), 1.5), InvalidValueError),
        (7, InvalidValueError),
    ],
    ids=lambda value: None if isinstance(value, type) else repr(value)[:20],
)
def test_bad_images_are_rejected(source, error):
    with pytest.raises(error) as caught:
        load_image(source)
    if isinstance(source, bytes) and source.startswith(b"\x89PNG") and len(source) < 80:
        assert f"{MAX_PIXELS:,}" in caught.value.problem  # the limit is named


def test_folders_and_patterns_are_expanded(tmp_path):
    for name in ("b.jpg", "a.PNG", "notes.txt", ".hidden.png", "inner/c.webp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    names = [path.relative_to(tmp_path).as_posix() for path in list_images([tmp_path])]
    assert names == ["a.PNG", "b.jpg", "inner/c.webp"]
    assert list_images([tmp_path / "*.jpg", "x.png"]) == [tmp_path / "b.jpg", tmp_path.__class__("x.png")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileProblemError):
        list_images([tmp_path / "empty"])
    with pytest.raises(FileMissingError):
        list_images([tmp_path / "*.bmp"])
