"""Commands that find objects in images: detect."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import PROGRESS_SECONDS, LineErrors, check_output_file, check_picture_name
from glassformer.cli.options import OUTPUT_PANEL, DeviceOptions, Model, Overwrite, with_options
from glassformer.errors import ConflictError, FileProblemError, GlassformerError

if TYPE_CHECKING:
    from glassformer.data.annotations import AnnotatedImage, Annotation
    from glassformer.data.image_files import ImageLike
    from glassformer.tasks.base import Task

Images = Annotated[
    list[str], typer.Argument(metavar="IMAGE", help="Image files, folders or patterns such as 'scans/*.png'.")
]
Draw = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Save every image with its objects drawn on it in this folder; a single image also to a file.",
        show_default=False,
        rich_help_panel=OUTPUT_PANEL,
    ),
]


@with_options(DeviceOptions)
def detect(
    model: Model,
    images: Images,
    threshold: Annotated[
        float, typer.Option(help="Minimum score of an object, from 0 to 1.", show_default=True)
    ] = 0.5,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Write the objects to this file.", show_default=False, rich_help_panel=OUTPUT_PANEL
        ),
    ] = None,
    format: Annotated[
        Literal["text", "json", "coco"] | None,
        typer.Option(
            help="text: a line per object; json: a list of images; coco: a COCO data set with scores "
            "(default: json with --out, else text).",
            show_default=False,
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    draw: Draw = None,
    overwrite: Overwrite = False,
    *,
    options: DeviceOptions,
) -> None:
    """Detect objects in images.

    Prints one line per object: file, label, score and box, separated by tabs.
    A box is x_min, y_min, x_max, y_max in pixels of the image.
    """
    from glassformer.data.image_files import list_images

    files = list_images(images)
    pictures = drawing_paths(files, draw, overwrite=overwrite)
    if out is not None:
        check_output_file(out, overwrite=overwrite, inputs=files)
    bundle = options.load(model)
    from glassformer.tasks.detection import Detector

    task = Detector(bundle, threshold=threshold)
    found: list[AnnotatedImage] = []
    errors = LineErrors(unit="image")
    try:
        for image in run_on_images(task, files, errors):
            found.append(image)
            if draw is not None:
                save_drawing(image, pictures[image.path])
            if out is None and format in (None, "text"):
                sys.stdout.write(format_objects([image]))
    finally:
        errors.report_all()
    chosen = format or ("text" if out is None else "json")
    if out is not None or chosen != "text":
        write_objects(found, task.labels, chosen, out)
    count = sum(len(image.annotations) for image in found)
    if found and not count:
        message(f"note: no object scores above {threshold:g}; lower --threshold to see weaker ones")
    for path in filter(None, (out, draw)):
        plural = "s" if len(found) != 1 else ""
        message(f"wrote {count:,} objects of {len(found):,} image{plural} to {path}")
    errors.raise_if_any()


def run_on_images(
    task: Task[ImageLike, list[Annotation]], files: Sequence[Path], errors: LineErrors
) -> Iterator[AnnotatedImage]:
    """Yield every image with the annotations that a task finds; print progress at intervals.

    An image that cannot be read is added to `errors`; if it is the only one, its error is raised.
    """
    from glassformer.data.annotations import AnnotatedImage
    from glassformer.data.image_files import read_image_shape
    from glassformer.tasks.base import Callbacks

    rejected: set[int] = set()
    done, start = 0, monotonic()
    last = start

    def on_reject(number: int, reason: GlassformerError) -> None:
        if len(files) == 1:
            raise reason
        rejected.add(number)
        errors.add(number, reason)

    def on_done(count: int) -> None:
        nonlocal done, last
        done += count
        if monotonic() - last >= PROGRESS_SECONDS:
            last = monotonic()
            rate = done / (last - start)
            left = f", {(len(files) - done) / rate:,.0f} s left" if rate else ""
            message(f"{done:,} of {len(files):,} images, {rate:,.1f} images/s{left}")

    results = task.run(files, Callbacks(on_done=on_done, on_reject=on_reject))
    for number, (file, objects) in enumerate(zip(files, results, strict=True), 1):
        if number not in rejected:
            height, width, _ = read_image_shape(file)
            yield AnnotatedImage(file, width, height, tuple(objects))


def drawing_paths(files: Sequence[Path], folder: Path | None, *, overwrite: bool) -> dict[Path, Path]:
    """Return the file of each drawn image: its path below the folder that all images share.

    folder: for a single image, may also name the file.
    """
    from glassformer.data.image_files import is_image_name

    if folder is None:
        return {}
    if len(files) == 1 and folder.suffix and not folder.is_dir():
        check_picture_name(folder)
        check_output_file(folder, overwrite=overwrite, inputs=files)
        return {files[0]: folder}
    if is_image_name(folder) or (folder.exists() and not folder.is_dir()):
        raise FileProblemError(folder, "is a file", hint="name a folder")
    shared = Path(os.path.commonpath([file.absolute().parent for file in files]))
    jpeg = (".jpg", ".jpeg")
    targets = {}
    for file in files:
        relative = file.absolute().relative_to(shared)
        suffix = file.suffix if file.suffix.lower() in jpeg else ".png"
        targets[file] = folder / relative.with_suffix(suffix)
        if targets[file].exists():
            check_output_file(targets[file], overwrite=overwrite, inputs=files)
    if len(set(targets.values())) < len(targets):
        raise ConflictError(("IMAGE", "draw"), "two images have the same name")
    return targets


def save_drawing(image: AnnotatedImage, path: Path) -> None:
    """Draw the annotations on an image and save it."""
    from glassformer.plotting.annotated_image import draw_annotations

    path.parent.mkdir(parents=True, exist_ok=True)
    draw_annotations(image.load(), image.annotations).save(path)


def format_objects(images: Sequence[AnnotatedImage]) -> str:
    """Return a line for every object: file, label, score and box."""
    lines = []
    for image in images:
        for thing in image.annotations:
            box = [f"{side:.1f}" for side in thing.box or ()]
            lines.append("\t".join((str(image.path), thing.label, f"{thing.score or 0:.4f}", *box)) + "\n")
    return "".join(lines)


def write_objects(
    images: Sequence[AnnotatedImage],
    classes: Sequence[str],
    format: Literal["text", "json", "coco"],
    out: Path | None,
) -> None:
    """Write the objects of all images to a file, or print them."""
    from glassformer.data.annotation_writers import annotation_to_dict, to_coco
    from glassformer.weights.atomic_write import atomic_write

    if format == "text":
        text = format_objects(images)
    elif format == "coco":
        text = json.dumps(to_coco(images, classes), ensure_ascii=False) + "\n"
    else:
        rows = [
            {
                "file": str(image.path),
                "width": image.width,
                "height": image.height,
                "objects": [annotation_to_dict(thing) for thing in image.annotations],
            }
            for image in images
        ]
        text = "[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n"
    if out is None:
        sys.stdout.write(text)
        return
    with atomic_write(out) as file:
        file.write(text.encode())
