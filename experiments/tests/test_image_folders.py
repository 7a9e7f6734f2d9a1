"""Sets of images in arrays become folders of images."""

import gzip

import numpy as np
import pytest

from experiments.image_folders import main
from glassformer.data.images import prepare_images
from glassformer.data.row_errors import RowErrors
from glassformer.errors import FileProblemError

RNG = np.random.default_rng(0)
GRAY = RNG.integers(0, 256, (6, 5, 4), np.uint8)
COLOR = RNG.integers(0, 256, (6, 5, 4, 3), np.uint8)
LABELS = np.array([0, 0, 1, 1, 2, 2], np.uint8)


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder):
    for part in ("train", "t10k"):
        (folder / f"{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(GRAY)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(LABELS)))
    return folder


def write_npz(folder):
    np.savez(folder / "set.npz", x_train=COLOR, y_train=LABELS[:, None], x_test=COLOR / 255, y_test=LABELS)
    return folder / "set.npz"


def write_truncated_idx(folder):
    (folder / "train-images-idx3-ubyte").write_bytes(idx(GRAY)[:-1])
    (folder / "train-labels-idx1-ubyte").write_bytes(idx(LABELS))
    return folder


def write_truncated_cifar(folder):
    (folder / "x.bin").write_bytes(bytes(5000))
    return folder


def write_npz_out_of_range(folder):
    np.savez(folder / "x.npz", images=GRAY.astype(np.int16) * 9, labels=LABELS)
    return folder


def write_npz_of_other_length(folder):
    np.savez(folder / "x.npz", images=GRAY, labels=LABELS[:4])
    return folder


@pytest.mark.parametrize(("write", "images"), [(write_idx, GRAY[..., None]), (write_npz, COLOR)])
def test_each_split_is_a_folder_that_the_package_reads(tmp_path, write, images):
    (tmp_path / "in").mkdir()
    main([str(write(tmp_path / "in")), "--out", str(tmp_path / "out")])
    for part in ("train", "test"):
        read = prepare_images(tmp_path / "out", tmp_path / part, split=part, errors=RowErrors())
        assert (read.images(np.arange(6)) == images).all() and read.classes == ("0", "1", "2")
        assert (read.labels(np.arange(6)) == LABELS).all()


@pytest.mark.parametrize(
    "write",
    [
        write_truncated_idx,
        write_truncated_cifar,
        write_npz_out_of_range,
        write_npz_of_other_length,
        lambda x: x,
    ],
)
def test_a_damaged_set_is_refused_and_nothing_is_written(tmp_path, write):
    (tmp_path / "in").mkdir()
    with pytest.raises(FileProblemError):
        main([str(write(tmp_path / "in")), "--out", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
