"""Find objects in images: as lines, JSON or COCO, drawn, and as PNG masks."""

from __future__ import annotations

import glob
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from glassformer.cli.console import message
from glassformer.cli.lines import LineErrors, check_output_file, check_output_folder, progress_callback
from glassformer.cli.options import LineOptions, output_option, with_flags
from glassformer.errors import (
    ConflictError,
    FileExistsAlreadyError,
    FileProblemError,
    GlassformerError,
    InvalidValueError,
    MissingValueError,
    UnsupportedError,
)
from glassformer.messages import plural

if TYPE_CHECKING:
    from PIL import Image

    from glassformer.cli.tasks import TaskRun
    from glassformer.data.annotations import AnnotatedImage, Annotation
    from glassformer.data.image_files import ImageLike
    from glassformer.tasks.base import Task

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
JPEG = (".jpg", ".jpeg")
SOFTWARE_TAG, SOFTWARE = 0x0131, "glassformer"  # of EXIF


@dataclass(kw_only=True)
class ObjectOutputOptions(LineOptions):
    """Output of commands that find objects in images."""

    format: Annotated[
        Literal["text", "json", "coco"] | None,
        output_option(
            help="text: a line per object; json: a list of images; coco: a COCO data set with scores "
            "(default: json with --out, else text). Masks are written as COCO run lengths."
        ),
    ] = None
    draw: Annotated[
        Path | None,
        output_option(
            metavar="PATH",
            help="Save every image with its objects drawn on it in this folder; a single image also to a "
            "file.",
        ),
    ] = None

    def pictures(self, files: Sequence[Path]) -> dict[Path, Path]:
        """Check the output options; return the file of each drawn image."""
        if self.out is not None:
            check_output_file(self.out, overwrite=self.overwrite, inputs=files)
        return {} if self.draw is None else output_paths(files, self.draw, overwrite=self.overwrite)


@dataclass(kw_only=True)
class MaskOutputOptions(ObjectOutputOptions):
    """Output of commands that find objects with masks."""

    masks: Annotated[
        Path | None,
        output_option(
            help="Write each mask as a black and white PNG file to this folder: NAME-1.png, NAME-2.png, ..."
        ),
    ] = None
    class_map: Annotated[
        Path | None,
        output_option(
            metavar="PATH",
            help="Write the class number of every pixel as PNG files to this folder, of a single image also "
            "to a file; for models without prompts.",
        ),
    ] = None


def run_objects(run: TaskRun, options: ObjectOutputOptions) -> None:
    """Find objects in images; with --json, or from or to a table, as any other task."""
    from glassformer.cli.predict import run_lines
    from glassformer.data.annotations import ONE_CLASS
    from glassformer.data.image_files import list_images

    to_table = options.out is not None and options.format is None and is_table(options.out)
    if options.as_json or options.file is not None or options.resume or to_table:
        if options.format is not None or options.draw is not None:
            names = (
                "format" if options.format is not None else "draw",
                "as_json" if options.as_json else "file",
            )
            raise ConflictError(names, "tables and JSON lines have one row per image")
        images = [str(path) for path in list_images(run.inputs)] if run.inputs else []
        run_lines(replace(run, inputs=images), options)
        return
    if not run.inputs:
        raise MissingValueError("IMAGE", "as the input")
    files = list_images(run.inputs)
    pictures = options.pictures(files)
    masks, class_map = (
        (options.masks, options.class_map) if isinstance(options, MaskOutputOptions) else (None, None)
    )
    overwrite = options.overwrite
    mask_files = {} if masks is None else output_paths(files, masks, overwrite=overwrite, numbered=True)
    maps = (
        {} if class_map is None else output_paths(files, class_map, overwrite=overwrite, suffixes=(".png",))
    )
    if maps and class_map == options.draw:
        raise ConflictError(("draw", "class_map"), "both name the same path")
    bundle = options.load(run.model)
    task: Any = run.spec.make(bundle, run.options(bundle, brief=True))
    classes = getattr(task, "labels", [ONE_CLASS])
    prompts, grid = getattr(task, "prompts", ()), getattr(task, "everything", None)
    if maps and (prompts or grid is not None):
        raise UnsupportedError(bundle.display_name, "class maps", hint="its masks have no classes")
    if grid is not None:
        message(f"segmenting everything with {grid.points_per_side**2:,} points; fewer are faster")

    def results() -> Iterator[AnnotatedImage]:
        for image in run_on_images(task, files, errors, run.command):
            if masks is not None:
                save_masks(image, mask_files[image.path])
            if maps:
                save_class_map(image, classes, maps[image.path])
            if pictures:
                best = image.annotations[:1] if len(prompts) == 1 else image.annotations
                save_drawing(image, best, pictures[image.path])
            yield image

    errors = LineErrors(unit="image")
    all_objects = "all masks" if run.spec.result.has_masks else "all objects"  # type: ignore[attr-defined]
    write_objects(
        results(),
        classes,
        options,
        errors,
        folder=common_folder(files),
        threshold=getattr(task, "threshold", None),
        drawing="the first mask" if len(prompts) == 1 else all_objects,
        masks=masks,
        class_map=class_map,
    )


def is_table(path: Path) -> bool:
    """Whether a file is written as a table: not .json, which has a list of images."""
    from glassformer.data.readers import file_format

    return path.suffix != ".json" and file_format(path) != "plain"


def run_on_images(
    task: Task[ImageLike, list[Annotation]],
    files: Sequence[Path],
    errors: LineErrors,
    command: Callable[..., None],
) -> Iterator[AnnotatedImage]:
    """Yield every image with the annotations that a task finds; print progress at intervals.

    The error of an image that cannot be read, or does not fit the prompts, is added to `errors`; if it is the
    only image, its error is raised. command: whose flags errors name.
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
            reason = with_flags(reason, command)
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
        path = paths[file]
        pattern = f"{glob.escape(path.stem)}-[0-9]*{path.suffix}" if numbered else glob.escape(path.name)
        for existing in path.parent.glob(pattern):
            check_output_file(existing, overwrite=overwrite, inputs=files)
            if not _is_written_by_us(existing):
                hint = "glassformer did not write it: choose another folder"
                raise FileExistsAlreadyError(existing, hint=hint)
    return paths


def _is_written_by_us(path: Path) -> bool:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return image.getexif().get(SOFTWARE_TAG) == SOFTWARE
    except (OSError, ValueError, SyntaxError):
        return False


def _save_picture(image: Image.Image, path: Path) -> None:
    """Save an image with the name of this program, so that it may be overwritten by the next run."""
    from PIL import Image

    exif = Image.Exif()
    exif[SOFTWARE_TAG] = SOFTWARE
    image.save(path, exif=exif)


def common_folder(files: Sequence[Path]) -> Path:
    """Return the folder that all files share."""
    return Path(os.path.commonpath([os.path.abspath(file.parent) for file in files]))


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.stem}-{number}{path.suffix}")


def save_drawing(image: AnnotatedImage, annotations: Sequence[Annotation], path: Path) -> None:
    """Draw annotations on an image and save it."""
    from glassformer.plotting.annotated_image import draw_annotations

    path.parent.mkdir(parents=True, exist_ok=True)
    _save_picture(draw_annotations(image.load(), annotations), path)


def save_masks(image: AnnotatedImage, path: Path) -> None:
    """Write each mask as a black and white PNG file; its number is appended to the name."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    for number, thing in enumerate(image.annotations, 1):
        if thing.mask is not None:
            _save_picture(Image.fromarray(thing.mask), _numbered(path, number))


def save_class_map(image: AnnotatedImage, labels: Sequence[str], path: Path) -> None:
    """Write the class number of every pixel as a PNG file, 255 if there is none."""
    from PIL import Image

    from glassformer.data.annotation_writers import class_map

    path.parent.mkdir(parents=True, exist_ok=True)
    _save_picture(Image.fromarray(class_map(image.annotations, labels, image.height, image.width)), path)


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
    options: ObjectOutputOptions,
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
    from glassformer.weights.atomic_write import write_file

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
                write_file(out, text.encode())
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
