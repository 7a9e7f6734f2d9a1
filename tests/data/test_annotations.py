"""Annotations in every format: COCO JSON, YOLO text, Pascal VOC XML and PNG masks."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from glassformer.data.annotated_examples import AnnotatedExamples
from glassformer.data.annotations import find_annotations, read_coco, read_masks, read_voc, read_yolo
from glassformer.data.image_files import find_inside
from glassformer.data.mask_encoding import encode_rle, mask_to_counts
from glassformer.data.row_errors import RowErrors, TooManyBadRowsError
from glassformer.errors import (
    EmptyInputError,
    FileMissingError,
    FileProblemError,
    InvalidValueError,
    MissingValueError,
)

DATA = Path(os.environ.get("GLASSFORMER_DATA", Path(__file__).parents[3] / "shared" / "data"))
MASK = np.zeros((30, 40), bool)
MASK[5:12, 8:20] = True


def image(path: Path, size: tuple[int, int] = (40, 30)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "gray").save(path)
    return path


def coco(folder: Path, **changes) -> Path:
    """Write a COCO file with every kind of annotation."""
    for name in ("a", "b"):
        image(folder / "images" / f"{name}.png")
    content = {
        "categories": [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}, {"id": 90, "name": "bird"}],
        "images": [
            {"id": 11, "file_name": "a.png", "width": 40, "height": 30, "captions": ["a cat "]},
            {"id": 5, "file_name": "b.png"},
        ],
        "annotations": [
            {
                "id": 1,
                "image_id": 11,
                "category_id": 7,
                "bbox": [8, 5, 12, 7],
                "segmentation": encode_rle(MASK),
            },
            {"id": 2, "image_id": 11, "category_id": 3, "segmentation": [[8, 5, 20, 5, 20, 12, 8, 12]]},
            {"id": 3, "image_id": 5, "category_id": 90, "bbox": [-5, -5, 15, 60.5]},
            {
                "id": 4,
                "image_id": 5,
                "category_id": 3,
                "iscrowd": 1,
                "segmentation": {"size": [30, 40], "counts": mask_to_counts(MASK).tolist()},
            },
            {"id": 6, "image_id": 5, "caption": "a bird"},
        ],
    }
    content.update({key: [*content[key], *rows] for key, rows in changes.items()})
    path = folder / "instances.json"
    path.write_text(json.dumps(content))
    return path


def test_coco_objects_masks_and_captions(tmp_path):
    data = read_coco(coco(tmp_path))
    assert data.classes == ("dog", "cat", "bird")  # ordered by id, gaps closed
    first, second = data
    assert [thing.label for thing in first.annotations] == ["cat", "dog"]
    for thing in first.annotations:
        assert thing.box == (8, 5, 20, 12) and (thing.mask == MASK).all()
    assert first.captions == ("a cat",) and second.captions == ("a bird",)
    bird, crowd = second.annotations
    assert bird.box == (0, 0, 10, 30) and bird.mask is None  # clipped to the image
    assert crowd.iscrowd and crowd.box == (8, 5, 20, 12) and (crowd.mask == MASK).all()
    assert (second.width, second.height) == (40, 30) == second.load().size  # read from the file


BAD_ANNOTATIONS = [
    {"id": 1, "image_id": 11, "category_id": 7, "bbox": [1, 1, 2, 2]},  # id used twice
    {"image_id": 99, "category_id": 7, "bbox": [1, 1, 2, 2]},
    {"image_id": 11, "category_id": 8, "bbox": [1, 1, 2, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, 1, 0, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [50, 1, 3, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, float("nan"), 3, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, 1, 10**400, 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, 1, "a", 2]},
    {"image_id": 11, "category_id": 7, "bbox": [1, 1, float("inf"), 2]},
    {"image_id": 11, "category_id": 7},
    {"image_id": 11, "category_id": 7, "segmentation": [[1, 2, 3, 4]]},
    {"image_id": 11, "category_id": 7, "segmentation": [[1, 2, 3, 4, 5, 6, 7]]},
    {"image_id": 11, "category_id": 7, "segmentation": [[1, 2, 3, 4, 5, "a"]]},
    {"image_id": 11, "category_id": 7, "segmentation": [1, 2, 3, 4, 5, 6]},
    {"image_id": 11, "category_id": 7, "segmentation": [[0, 0, 1e12, 0, 1e12, 1e12]]},
    {"image_id": 11, "category_id": 7, "segmentation": {"size": [40, 30], "counts": "01"}},
    {"image_id": 11, "category_id": 7, "segmentation": {"size": [30, 40], "counts": [5, 5]}},
    {"image_id": 11, "category_id": 7, "segmentation": {"size": [30, 40], "counts": [1300, -100]}},
    {"image_id": 11, "category_id": 7, "segmentation": {"size": [30, 40], "counts": [2**80]}},
    {"image_id": 11, "category_id": 7, "segmentation": {"size": [30, 40], "counts": ["a"]}},
    {"image_id": 11, "bbox": [1, 1, 2, 2]},
    "text",
]


@pytest.mark.parametrize("bad", BAD_ANNOTATIONS, ids=str)
def test_bad_annotations_are_skipped_and_counted(bad, tmp_path):
    good = [{"image_id": 11, "category_id": 7, "bbox": [1, 1, 2, 2]}] * 10
    errors = RowErrors()
    data = read_coco(coco(tmp_path, annotations=[*good, bad]), errors=errors)
    assert errors.count == 1 and sum(len(item.annotations) for item in data) == 14
    assert errors.first[0].line == 16
    with pytest.raises(TooManyBadRowsError) as caught:
        read_coco(coco(tmp_path, annotations=[bad] * 3))
    assert caught.value.items == "images and annotations"


def test_missing_and_repeated_images_are_skipped_with_their_annotations(tmp_path):
    lost = [{"id": 6, "file_name": "lost.png", "width": 9, "height": 9}, {"id": 5, "file_name": "a.png"}]
    objects = [{"image_id": 6, "category_id": 7, "bbox": [1, 1, 2, 2]}]
    objects += [{"image_id": 11, "category_id": 7, "bbox": [1, 1, 2, 2]}] * 20
    errors = RowErrors()
    data = read_coco(coco(tmp_path, images=lost, annotations=objects), errors=errors)
    assert [path.name for path in data.paths] == ["a.png", "b.png"] and errors.count == 2
    assert errors.first[0].file == "lost.png"


def unreadable_files(folder: Path) -> list[str]:
    """Write an empty file, a text file and an image without its header."""
    contents = {
        "empty.jpg": b"",
        "text.png": b"text",
        "header.jpg": image(folder / "x.jpg").read_bytes()[:20],
    }
    (folder / "x.jpg").unlink()
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return list(contents)


def test_unreadable_images_and_images_of_another_size_are_skipped(tmp_path):
    names = unreadable_files(tmp_path / "images")
    upright = Image.Exif()
    upright[0x0112] = 6  # rotated by 90 degrees
    Image.new("RGB", (30, 40)).save(tmp_path / "images" / "upright.jpg", exif=upright)
    images = [{"id": name, "file_name": name, "width": 40, "height": 30} for name in [*names, "upright.jpg"]]
    huge = {"size": [100_000, 100_000], "counts": [10**10]}
    images += [{"id": "huge", "file_name": "a.png", "width": 100_000, "height": 100_000}]
    images += [{"id": ["no id"], "file_name": "a.png"}]
    objects = [{"image_id": record["id"], "category_id": 7, "segmentation": huge} for record in images[:3]]
    objects += [{"image_id": "huge", "category_id": 7, "segmentation": huge}]
    objects += [{"image_id": 11, "category_id": 7, "bbox": [1, 1, 2, 2]}] * 60
    errors = RowErrors()
    data = read_coco(coco(tmp_path, images=images, annotations=objects), errors=errors)
    assert [path.name for path in data.paths] == ["a.png", "b.png", "upright.jpg"] and errors.count == 5
    assert [error.file for error in errors.first] == names
    assert data[2].load().size == (40, 30)


@pytest.fixture
def logged(monkeypatch):
    """The messages of logged warnings, whatever other tests in this process configured."""
    messages = []
    log = SimpleNamespace(warning=lambda format, message: messages.append(message))
    monkeypatch.setattr("glassformer.data.annotations._log", log)
    return messages


def test_truncated_images_are_replaced_in_their_batch(tmp_path, logged):
    path = coco(tmp_path)
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "images" / "a.png")
    content = (tmp_path / "images" / "a.png").read_bytes()
    (tmp_path / "images" / "a.png").write_bytes(content[: len(content) // 2])
    errors = RowErrors()
    data = read_coco(path, errors=errors)
    assert len(data) == 2 and errors.count == 0
    examples = AnnotatedExamples(data, data.classes, size=(15, 20), targets="instances")
    for epoch in range(2):
        batch = examples.batch(np.arange(2), epoch=epoch)
        assert all((part[0] == part[1]).all() for part in batch.values()) and 2 in batch["labels"][1]
        examples._cache.clear()
    assert examples.unreadable == {0}
    alone = examples.batch(np.arange(1), epoch=0)
    assert not alone["images"].any() and (alone["labels"] == -1).all() and (alone["segments"] == -1).all()
    assert ["a.png" in message for message in logged] == [True]


def test_bad_coco_files_are_rejected(tmp_path):
    path = tmp_path / "x.json"
    texts = ["{", "[]", "{}", '{"images": 1}', "[" * 100_000]
    texts += ['{"images": [{"id": 1}], "categories": [{"id": Infinity, "name": "a"}]}']
    problems = dict.fromkeys(texts, FileProblemError)
    for text, error in {**problems, '{"images": []}': EmptyInputError}.items():
        path.write_text(text)
        with pytest.raises(error):
            find_annotations(path)
    with pytest.raises(FileMissingError):
        find_annotations(tmp_path / "none.json")
    path.unlink()
    with pytest.raises(FileProblemError):
        find_annotations(tmp_path)
    data = read_coco(coco(tmp_path))
    image(data.paths[0], (9, 9))
    with pytest.raises(FileProblemError):
        data[0].load()  # of another size than annotated


OUTSIDE = ["../../outside.png", "a/../../../outside.png", "ABSOLUTE", "link.png", "x" * 5000, "a\0.png"]


@pytest.mark.parametrize("name", OUTSIDE, ids=range(len(OUTSIDE)))
def test_images_outside_of_the_folder_are_not_opened(name, tmp_path):
    outside, root = image(tmp_path / "outside.png"), tmp_path / "data"
    name = str(outside) if name == "ABSOLUTE" else name
    path = coco(root / "set", images=[{"id": 6, "file_name": name}])
    for folder in (root / "set", root / "JPEGImages", root / "Annotations"):
        folder.mkdir(exist_ok=True)
        (folder / "link.png").symlink_to(outside)
    with pytest.raises(TooManyBadRowsError) as caught:
        read_coco(path)
    assert (caught.value.bad, caught.value.rows) == (1, 8)

    xml = f"<annotation><filename>{name}</filename></annotation>".replace("\0", "")
    (root / "Annotations" / "x.xml").write_text(xml)
    with pytest.raises(TooManyBadRowsError):
        read_voc(root)

    if name.isprintable() and len(name) < 1000:
        (root / "list.txt").write_text(f"set/images/a.png\n{name.replace('link', 'set/link')}\n")
        (root / "data.yaml").write_text("names: [cat]\ntrain: list.txt\n")
        with pytest.raises(FileProblemError) as listed:
            read_yolo(root / "data.yaml")
        assert listed.value.line == 2


def test_images_in_linked_and_neighboring_folders_are_found(tmp_path):
    """annotations/x.json may name ../images/a.png, and images may be a link to another disk."""
    coco(tmp_path / "disk")
    (tmp_path / "set" / "annotations").mkdir(parents=True)
    (tmp_path / "set" / "images").symlink_to(tmp_path / "disk" / "images")
    names = ["../images/a.png", "images/b.png"]
    content = {"images": [{"id": n, "file_name": name} for n, name in enumerate(names)]}
    (tmp_path / "set/annotations/x.json").write_text(json.dumps(content))
    assert [path.name for path in read_coco(tmp_path / "set/annotations/x.json").paths] == ["a.png", "b.png"]


@pytest.mark.parametrize("layout", ["yaml", "roboflow", "classes", "beside"])
def test_yolo_layouts(layout, tmp_path):
    inner = {"yaml": "images/train", "roboflow": "train/images", "classes": "images", "beside": ""}[layout]
    file = image(tmp_path / inner / "a.jpg")
    image(tmp_path / inner / "empty.jpg")
    labels = Path(str(file).replace("images", "labels")).with_suffix(".txt")
    labels.parent.mkdir(parents=True, exist_ok=True)
    labels.write_text("1 0.5 0.5 0.25 0.2\n0 0.2 0.2 0.4 0.2 0.4 0.5 0.2 0.5\n\n")
    if layout in ("yaml", "roboflow"):
        train = {"yaml": "images/train", "roboflow": "../train/images"}[layout]
        names = {"yaml": "{0: cat, 1: dog}", "roboflow": "[cat, dog]"}[layout]
        (tmp_path / "data.yaml").write_text(f"train: {train}\nval: images/val\nnames: {names}\n")
    else:
        (tmp_path / "classes.txt").write_text("cat\ndog\n")
    data = find_annotations(tmp_path)
    assert data.classes == ("cat", "dog") and len(data) == 2
    dog, cat = data[0].annotations
    assert (dog.label, dog.mask, cat.label) == ("dog", None, "cat")
    assert dog.box == pytest.approx((15, 12, 25, 18)) and cat.box == pytest.approx((8, 6, 16, 15))
    assert cat.mask is not None and cat.mask.sum() == 8 * 9
    assert data[1].annotations == ()
    with pytest.raises((FileMissingError, MissingValueError)):
        find_annotations(tmp_path, "val")


def test_bad_yolo_lines_are_skipped_and_counted(tmp_path):
    image(tmp_path / "a.png")
    (tmp_path / "classes.txt").write_text("cat\n")
    good = ["0 0.5 0.5 0.1 0.1"] * 60
    bad = ["1 0.5 0.5 0.1 0.1", "0 0.5 0.5", "x 1 1 1 1", "0 2 2 0.1 0.1", "0 nan 0.5 0.1 0.1"]
    (tmp_path / "a.txt").write_text("\n".join(good + bad))
    errors = RowErrors()
    assert len(read_yolo(tmp_path, errors=errors)[0].annotations) == 60
    assert errors.count == len(bad) and errors.first[0].line == 61
    (tmp_path / "a.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(FileProblemError):
        read_yolo(tmp_path)
    (tmp_path / "classes.txt").unlink()
    with pytest.raises(MissingValueError):
        read_yolo(tmp_path)


def test_voc_boxes_count_from_one(tmp_path):
    image(tmp_path / "JPEGImages" / "a.jpg")
    box = "<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>40</xmax><ymax>9</ymax></bndbox>"
    objects = f"<object><name>cell</name>{box}</object>" * 12 + "<object><name>cell</name></object>"
    (tmp_path / "Annotations").mkdir()
    (tmp_path / "Annotations" / "a.xml").write_text(
        f"<annotation><filename>a.jpg</filename>{objects}</annotation>"
    )
    errors = RowErrors()
    data = find_annotations(tmp_path, errors=errors)
    assert data.classes == ("cell",) and errors.count == 1
    assert {thing.box for thing in data[0].annotations} == {(0, 2, 40, 9)}
    (tmp_path / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "ImageSets" / "Main" / "val.txt").write_text("a\n")
    assert len(find_annotations(tmp_path, "val")) == 1
    with pytest.raises(FileMissingError):
        find_annotations(tmp_path, "train")


def test_voc_images_must_be_readable_and_of_the_annotated_size(tmp_path):
    box = "<bndbox><xmin>1</xmin><ymin>3</ymin><xmax>{}</xmax><ymax>9</ymax></bndbox>"
    objects = f"<object><name>cell</name>{box.format(9)}</object>" * 9
    objects += f"<object><name>cell</name>{box.format('a')}</object>"
    sizes = {f"{n:02}": (40, 30) for n in range(8)} | {"08": (0, 0), "09": (30, 40)}
    (tmp_path / "Annotations").mkdir()
    for name, (width, height) in sizes.items():
        image(tmp_path / "JPEGImages" / f"{name}.jpg")
        size = f"<size><width>{width}</width><height>{height}</height></size>"
        text = (
            f"<annotation><filename>{name}.jpg</filename>{size}{objects if name == '00' else ''}</annotation>"
        )
        (tmp_path / "Annotations" / f"{name}.xml").write_text(text)
    errors = RowErrors()
    assert len(find_annotations(tmp_path, errors=errors)) == 9 and errors.count == 2
    assert [(Path(error.file).stem, error.line) for error in errors.first] == [("00", 10), ("09", None)]
    (tmp_path / "JPEGImages" / "09.jpg").write_bytes(b"")
    assert len(find_annotations(tmp_path)) == 9


def test_masks_must_be_readable_and_of_the_size_of_the_image(tmp_path, logged):
    (tmp_path / "classes.txt").write_text("sky\n")
    (tmp_path / "masks").mkdir()
    for n in range(40):
        image(tmp_path / "images" / f"{n:02}.png")
        Image.new("RGB" if n == 1 else "L", (30, 40) if n == 2 else (40, 30)).save(
            tmp_path / f"masks/{n:02}.png"
        )
    (tmp_path / "masks" / "00.png").write_bytes(b"")
    (tmp_path / "images" / "03.png").write_bytes(b"")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 2, (30, 40), np.uint8))
    noise.save(tmp_path / "masks" / "04.png")
    content = (tmp_path / "masks" / "04.png").read_bytes()
    (tmp_path / "masks" / "04.png").write_bytes(content[: len(content) // 2])
    errors = RowErrors()
    data = find_annotations(tmp_path, errors=errors)
    assert len(data) == 36 and errors.count == 4 and data.classes == ("sky",)
    for _ in range(2):
        assert data[0].annotations == () and len(data[1].annotations) == 1  # the first is truncated
    assert ["04.png" in message for message in logged] == [True]


def test_semantic_masks_leave_out_unlabeled_pixels(tmp_path):
    image(tmp_path / "train" / "a.jpg")
    numbers = np.zeros((30, 40), np.uint8)
    numbers[:3], numbers[3:6], numbers[6:9] = 2, 255, 1
    (tmp_path / "train_mask").mkdir()
    Image.fromarray(numbers).save(tmp_path / "train_mask" / "a.png")
    with pytest.raises(MissingValueError):
        find_annotations(tmp_path)
    (tmp_path / "classes.tsv").write_text("id\tname\n0\tsky\n1\tvoid\n2\troad\n")
    for path in (tmp_path, tmp_path / "train"):
        data = find_annotations(path)
        assert data.classes == ("sky", "road")
        sky, road = data[0].annotations
        assert (sky.mask == (numbers == 0)).all() and (road.mask == (numbers == 2)).all()
        assert road.box == (0, 0, 40, 3)
    with pytest.raises(InvalidValueError) as caught:
        read_masks(tmp_path / "train", tmp_path / "train_mask", classes=["sky"])[0]
    assert caught.value.value == 1 and "255" in caught.value.expected


def test_instance_masks_have_sixteen_bits(tmp_path):
    image(tmp_path / "images" / "a.png")
    numbers = np.where(MASK, 300, 0).astype(np.uint16)
    numbers[20:, 30:] = 2
    (tmp_path / "masks").mkdir()
    Image.fromarray(numbers).save(tmp_path / "masks" / "a.png")
    data = find_annotations(tmp_path)
    small, large = data[0].annotations
    assert data.classes == ("object",) and small.box == (30, 20, 40, 30) and (large.mask == MASK).all()


def test_copies_of_an_image_are_in_one_split(tmp_path):
    (tmp_path / "classes.txt").write_text("cat")
    for number in range(12):
        image(tmp_path / f"{number:02}.png", (10 + max(1, number), 9))  # the first two are equal
    data = find_annotations(tmp_path)
    for seed in range(20):
        train, valid = data.split(0.2, seed=seed)
        assert len(train) and len(valid) and sorted([*train, *valid]) == list(range(12))
        assert (0 in train) == (1 in train)
    assert data.split(0.2, seed=1)[1].tolist() == data.split(0.2, seed=1)[1].tolist()
    with pytest.raises(EmptyInputError):
        data[:2].split(0.5)


@pytest.mark.skipif(not (DATA / "coco-mini").is_dir(), reason="GLASSFORMER_DATA is not set")
def test_masks_of_coco_images_match_pycocotools(tmp_path):
    import tarfile

    reference = pytest.importorskip("pycocotools.coco")
    with tarfile.open(DATA / "coco-mini" / "coco-mini.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    path = tmp_path / "coco-mini" / "annotations.json"
    theirs, ours = reference.COCO(path), find_annotations(path)
    records = theirs.dataset["annotations"]
    for key, item in list(zip(theirs.imgs, ours, strict=True))[::8]:
        own = [record for record in records if record["image_id"] == key]
        for record, thing in zip(own, item.annotations, strict=True):
            assert (theirs.annToMask(record) == thing.mask).all()
            assert theirs.cats[record["category_id"]]["name"] == thing.label


def test_a_relative_folder_is_the_one_of_the_working_directory(tmp_path, monkeypatch):
    """Folders are resolved once, but the working directory may change."""
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").touch()
        monkeypatch.chdir(tmp_path / name)
        assert find_inside([Path()], "a.png") == Path("a.png")
