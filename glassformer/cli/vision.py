"""Commands that find objects in images: detect and segment."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import LineErrors, check_output_file, check_output_folder, progress_callback
from glassformer.cli.options import OUTPUT_PANEL, DeviceOptions, Model, Overwrite, with_flags, with_options
from glassformer.errors import (
    ConflictError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    UnsupportedError,
)
from glassformer.messages import plural

if TYPE_CHECKING:
    from glassformer.data.annotations import AnnotatedImage, Annotation
    from glassformer.data.image_files import ImageLike
    from glassformer.tasks.base import Task

Images = Annotated[
    list[str], typer.Argument(metavar="IMAGE", help="Image files, folders or patterns such as 'scans/*.png'.")
]
PICTURES = (".png", ".jpg", ".jpeg", ".webp")
JPEG = (".jpg", ".jpeg")


@dataclass(kw_only=True)
class ObjectOptions(DeviceOptions):
    """Output of commands that find objects in images."""

    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the objects to this file.", show_default=False, rich_help_panel=OUTPUT_PANEL
        ),
    ] = None
    format: Annotated[
        Literal["text", "json", "coco"] | None,
        typer.Option(
            help="text: a line per object; json: a list of images; coco: a COCO data set with scores "
            "(default: json with --out, else text). Masks are written as COCO run lengths.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None
    draw: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Save every image with its objects drawn on it in this folder; a single image also to a "
            "file.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None
    overwrite: Overwrite = False

    def pictures(self, files: Sequence[Path]) -> dict[Path, Path]:
        """Check the output options; return the file of each drawn image."""
        if self.out is not None:
            check_output_file(self.out, overwrite=self.overwrite, inputs=files)
        return {} if self.draw is None else output_paths(files, self.draw, overwrite=self.overwrite)


@with_options(ObjectOptions)
def detect(
    model: Model,
    images: Images,
    threshold: Annotated[
        float, typer.Option(help="Minimum score of an object, from 0 to 1.", show_default=True)
    ] = 0.5,
    *,
    options: ObjectOptions,
) -> None:
    """Detect objects in images.

    Prints one line per object: file, label, score and box, separated by tabs.
    A box is x_min, y_min, x_max, y_max in pixels of the image.
    """
    from glassformer.data.image_files import list_images

    files = list_images(images)
    pictures = options.pictures(files)
    bundle = options.load(model)
    from glassformer.tasks.detection import Detector

    task = Detector(bundle, threshold=threshold)

    def results() -> Iterator[AnnotatedImage]:
        for image in run_on_images(task, files, errors):
            if pictures:
                save_drawing(image, image.annotations, pictures[image.path])
            yield image

    errors = LineErrors(unit="image")
    write_objects(results(), task.labels, options, errors, folder=common_folder(files), threshold=threshold)


@with_options(ObjectOptions)
def segment(
    model: Model,
    images: Images,
    points: Annotated[
        list[str] | None, typer.Option("--point", help="Point x,y inside the object, in pixels. Repeatable.")
    ] = None,
    background_points: Annotated[
        list[str] | None, typer.Option("--background-point", help="Point x,y outside of it. Repeatable.")
    ] = None,
    boxes: Annotated[
        list[str] | None,
        typer.Option("--box", help="Box x_min,y_min,x_max,y_max around an object. Repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Segment everything in the image, with a grid of points.")
    ] = False,
    points_per_side: Annotated[
        int | None,
        typer.Option(help="Rows and columns of the grid for --everything (default: 32).", show_default=False),
    ] = None,
    mode: Annotated[
        Literal["semantic", "instance", "panoptic"] | None,
        typer.Option(
            help="What to segment, for models without prompts (default: what the model was trained for).",
            show_default=False,
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Minimum score of an object or region, 0 to 1, for models without prompts (default: 0.5).",
            show_default=False,
        ),
    ] = None,
    stuff_classes: Annotated[
        list[str] | None,
        typer.Option("--stuff-class", help="Class whose panoptic segments are merged, e.g. sky. Repeatable."),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(
            help="Write each mask as a black and white PNG file to this folder: NAME-1.png, NAME-2.png, ...",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    class_map: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Write the class number of every pixel as PNG files to this folder, of a single image also "
            "to a file; for models without prompts.",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    *,
    options: ObjectOptions,
) -> None:
    """Segment images: objects that points and boxes name, or whole images.

    Prints one line per mask: file, label, score, box and area in pixels,
    separated by tabs. A box is x_min, y_min, x_max, y_max.
    With prompts (SAM), the score is the predicted IoU. A single point is
    ambiguous and gives three masks, e.g. of a shirt, a person and a group;
    the largest whose predicted IoU is within 0.05 of the highest comes first.
    Other models (EoMT, Mask2Former, ...) segment whole images into classes,
    objects or regions.
    """
    from glassformer.data.image_files import list_images

    files = list_images(images)
    pictures = options.pictures(files)
    overwrite = options.overwrite
    mask_files = {} if masks is None else output_paths(files, masks, overwrite=overwrite, numbered=True)
    maps = (
        {} if class_map is None else output_paths(files, class_map, overwrite=overwrite, suffixes=(".png",))
    )
    if maps and class_map == options.draw:
        raise ConflictError(("draw", "class_map"), "both name the same path")
    bundle = options.load(model)
    from glassformer.data.annotations import ONE_CLASS
    from glassformer.tasks.image_segmentation import ImageSegmenter, make_segmenter

    prompts: dict[str, Any] = {  # texts such as "120,80", which the task converts
        "points": points or (),
        "background_points": background_points or (),
        "boxes": boxes or (),
    }
    task = make_segmenter(
        bundle,
        **prompts,
        everything=everything,
        points_per_side=points_per_side,
        mode=mode,
        threshold=threshold,
        stuff_classes=stuff_classes or (),
    )
    if isinstance(task, ImageSegmenter):
        classes, limit, one_prompt = task.labels, task.threshold, False
    else:
        classes, limit, one_prompt = [ONE_CLASS], None, len(task.prompts) == 1
        if maps:
            raise UnsupportedError(bundle.display_name, "class maps", hint="its masks have no classes")
        if task.everything is not None:
            count = task.everything.points_per_side**2
            message(f"segmenting everything with {count:,} points; fewer are faster")

    def results() -> Iterator[AnnotatedImage]:
        for image in run_on_images(task, files, errors):
            if masks is not None:
                save_masks(image, mask_files[image.path])
            if maps:
                save_class_map(image, classes, maps[image.path])
            if pictures:
                best = image.annotations[:1] if one_prompt else image.annotations
                save_drawing(image, best, pictures[image.path])
            yield image

    errors = LineErrors(unit="image")
    write_objects(
        results(),
        classes,
        options,
        errors,
        folder=common_folder(files),
        threshold=limit,
        drawing="the first mask" if one_prompt else "all masks",
        masks=masks,
        class_map=class_map,
    )


def run_on_images(
    task: Task[ImageLike, list[Annotation]], files: Sequence[Path], errors: LineErrors
) -> Iterator[AnnotatedImage]:
    """Yield every image with the annotations that a task finds; print progress at intervals.

    The error of an image that cannot be read, or does not fit the prompts, is added to `errors`; if it is the
    only image, its error is raised.
    """
    from glassformer.data.annotations import AnnotatedImage
    from glassformer.data.image_files import read_image_shape
    from glassformer.tasks.base import Callbacks

    rejected: set[int] = set()

    def on_reject(number: int, reason: GlassformerError) -> None:
        if len(files) == 1:
            raise reason
        rejected.add(number)
        if isinstance(reason, InvalidValueError):  # of a prompt; other errors have the path
            reason = with_flags(reason, segment)
            errors.add(number, f"{files[number - 1]}: {reason}")
        else:
            errors.add(number, reason)

    on_done = progress_callback(len(files), "image")
    results = task.run(files, Callbacks(on_done=on_done, on_reject=on_reject))
    for number, (file, objects) in enumerate(zip(files, results, strict=True), 1):
        if number not in rejected:
            height, width, _ = read_image_shape(file)
            yield AnnotatedImage(file, width, height, tuple(objects))


def output_paths(
    files: Sequence[Path],
    target: Path,
    *,
    overwrite: bool,
    suffixes: Sequence[str] = PICTURES,
    numbered: bool = False,
) -> dict[Path, Path]:
    """Return an output file for each image: in the folder `target`, at its path below the folder of them all.

    A single image may also be written to the file `target`, which must have one of the suffixes.
    numbered: several files are written per image, and "-1", "-2", ... is appended to the names.
    """
    from glassformer.data.image_files import is_image_name

    if len(files) == 1 and target.suffix and not numbered and not target.is_dir():
        if target.suffix.lower() not in suffixes:
            raise FileProblemError(target, "has another suffix", hint=f"use {' or '.join(suffixes)}")
        check_output_file(target, overwrite=overwrite, inputs=files)
        return {files[0]: target}
    if is_image_name(target):
        raise FileProblemError(target, "is the name of a file", hint="name a folder")
    check_output_folder(target, overwrite=True)
    shared = common_folder(files)
    paths = {}
    for file in files:
        jpeg = file.suffix.lower() in JPEG and file.suffix.lower() in suffixes and not numbered
        relative = Path(os.path.relpath(file, shared))
        paths[file] = target / relative.with_suffix(file.suffix if jpeg else ".png")
    counts = Counter(paths.values())
    for file, path in paths.items():
        if counts[path] > 1:  # a.bmp and a.gif become a.bmp.png and a.gif.png
            paths[file] = path.with_name(f"{file.name}.png")
        first = _numbered(paths[file], 1) if numbered else paths[file]
        if first.exists():
            check_output_file(first, overwrite=overwrite, inputs=files)
    return paths


def common_folder(files: Sequence[Path]) -> Path:
    """Return the folder that all files share."""
    return Path(os.path.commonpath([os.path.abspath(file.parent) for file in files]))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def save_drawing(image: AnnotatedImage, annotations: Sequence[Annotation], path: Path) -> None:
    """Draw annotations on an image and save it."""
    from glassformer.plotting.annotated_image import draw_annotations

    path.parent.mkdir(parents=True, exist_ok=True)
    draw_annotations(image.load(), annotations).save(path)


def save_masks(image: AnnotatedImage, path: Path) -> None:
    """Write each mask as a black and white PNG file; its number is appended to the name."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    for number, thing in enumerate(image.annotations, 1):
        if thing.mask is not None:
            Image.fromarray(thing.mask).save(_numbered(path, number))


def save_class_map(image: AnnotatedImage, labels: Sequence[str], path: Path) -> None:
    """Write the class number of every pixel as a PNG file, 255 if there is none."""
    from PIL import Image

    from glassformer.data.annotation_writers import class_map

    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(class_map(image.annotations, labels, image.height, image.width)).save(path)


def format_objects(image: AnnotatedImage) -> str:
    """Return a line for every object: file, label, score, box, and the area of its mask."""
    lines = []
    for thing in image.annotations:
        score = "" if thing.score is None else f"{thing.score:.4f}"
        box = [""] * 4 if thing.box is None else [f"{side:.1f}" for side in thing.box]
        area = [] if thing.mask is None else [str(int(thing.mask.sum()))]
        lines.append("\t".join((str(image.path), thing.label, score, *box, *area)) + "\n")
    return "".join(lines)


def write_objects(
    images: Iterable[AnnotatedImage],
    classes: Sequence[str],
    options: ObjectOptions,
    errors: LineErrors,
    *,
    folder: Path,
    threshold: float | None = None,
    drawing: str = "all objects",
    masks: Path | None = None,
    class_map: Path | None = None,
) -> None:
    """Print the objects of all images, or write them to a file; then fail if an image could not be read.

    Ctrl-C ends the images early, and what was found is still written.

    folder: that all images share. threshold: minimum score, to mention if nothing is found. drawing:
    what the drawn images show. masks, class_map: further paths that were written.
    """
    from glassformer.data.annotation_writers import annotation_to_dict, to_coco
    from glassformer.weights.atomic_write import atomic_write

    out, chosen = options.out, options.format or ("text" if options.out is None else "json")
    num_images = num_objects = 0
    interrupted = False

    def counted() -> Iterator[AnnotatedImage]:
        nonlocal num_images, num_objects, interrupted
        try:
            for image in images:
                num_images += 1
                num_objects += len(image.annotations)
                yield image
        except KeyboardInterrupt:
            interrupted = True

    def to_dict(image: AnnotatedImage) -> dict[str, Any]:
        objects = [annotation_to_dict(thing) for thing in image.annotations]
        return {"file": str(image.path), "width": image.width, "height": image.height, "objects": objects}

    try:
        if chosen == "text" and out is None:
            for image in counted():
                sys.stdout.write(format_objects(image))
                sys.stdout.flush()
        else:
            if chosen == "text":
                text = "".join(map(format_objects, counted()))
            elif chosen == "coco":
                text = json.dumps(to_coco(counted(), classes, folder), ensure_ascii=False) + "\n"
            else:
                rows = [json.dumps(to_dict(image), ensure_ascii=False) for image in counted()]
                text = "[\n" + ",\n".join(rows) + "\n]\n"
            if out is None:
                sys.stdout.write(text)
            else:
                with atomic_write(out) as file:
                    file.write(text.encode())
    finally:
        errors.report_all()
    if num_images and not num_objects and threshold is not None:
        message(f"note: no object scores above {threshold:g}; lower --threshold to see weaker ones")
    images_written = f"{num_images:,} {plural('image', num_images)}"
    objects_written = f"{num_objects:,} {plural('object', num_objects)} of {images_written}"
    for content, path in (
        (objects_written, out),
        (f"{images_written} with {drawing}", options.draw),
        (f"{num_objects:,} {plural('mask', num_objects)} of {images_written}", masks),
        (f"{num_images:,} {plural('class map', num_images)}", class_map),
    ):
        if path is not None:
            message(f"wrote {content} to {path}")
    if interrupted:
        raise KeyboardInterrupt
    errors.raise_if_any()
