"""The command `segment`: masks of objects in images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import message, print_json
from glassformer.cli.lines import check_output_file, check_output_folder, check_picture_name
from glassformer.cli.options import OUTPUT_PANEL, Device, Dtype, Json, Model, Overwrite, Threads, load_model
from glassformer.errors import InvalidValueError, UnsupportedError

if TYPE_CHECKING:
    from glassformer.data.annotations import Annotation


def segment(
    model: Model,
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="Image file.")],
    points: Annotated[
        list[str] | None, typer.Option("--point", help="Point x,y inside the object, in pixels. Repeatable.")
    ] = None,
    background_points: Annotated[
        list[str] | None, typer.Option("--background-point", help="Point x,y outside of it. Repeatable.")
    ] = None,
    box: Annotated[
        list[str] | None,
        typer.Option("--box", help="Box x_min,y_min,x_max,y_max around an object. Repeatable."),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Segment everything in the image, with a grid of points.")
    ] = False,
    points_per_side: Annotated[int, typer.Option(help="Rows and columns of the grid for --everything.")] = 32,
    mode: Annotated[
        str | None,
        typer.Option(
            metavar="MODE",
            help="semantic, instance or panoptic, for models without prompts "
            "(default: what the model was trained for).",
        ),
    ] = None,
    threshold: Annotated[
        float, typer.Option(help="Minimum score of an object or region, 0 to 1, without prompts.")
    ] = 0.5,
    stuff_classes: Annotated[
        list[str] | None,
        typer.Option("--stuff-class", help="Class whose panoptic segments are merged, e.g. sky. Repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the results as JSON to this file.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    masks: Annotated[
        Path | None,
        typer.Option(help="Write each mask as a PNG file to this folder.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    class_map: Annotated[
        Path | None,
        typer.Option(
            help="Write the class number of every pixel as a PNG file, for models without prompts.",
            rich_help_panel=OUTPUT_PANEL,
        ),
    ] = None,
    draw: Annotated[
        Path | None,
        typer.Option(help="Write the image with the masks drawn on it.", rich_help_panel=OUTPUT_PANEL),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
    device: Device = "auto",
    dtype: Dtype = None,
    threads: Threads = None,
) -> None:
    """Segment an image: objects that points and boxes name, or the whole image.

    With prompts (SAM), prints one line per mask: predicted IoU, area in
    pixels and box. A single point is ambiguous and gives three masks, e.g.
    of a shirt, a person and a group; the best comes first.
    Other models (EoMT, Mask2Former, ...) segment the whole image: label,
    score, area and box of each class, object or region.
    --json and --out give the masks as COCO run lengths.
    """
    for path in (out, draw, class_map):
        if path is not None:
            check_output_file(path, overwrite=overwrite, inputs=[image])
    if draw is not None:
        check_picture_name(draw)
    if masks is not None:
        check_output_folder(masks, overwrite=True)
        if masks.is_dir():
            check_output_file(masks / f"{Path(image).stem}-1.png", overwrite=overwrite)
    from glassformer.data.image_files import load_image
    from glassformer.tasks.image_segmentation import ImageSegmenter, make_segmenter
    from glassformer.tasks.segmentation import MaskGeneration, make_prompts

    prompts = make_prompts(
        [_parse_numbers("points", text, 2) for text in points or ()],
        [_parse_numbers("background_points", text, 2) for text in background_points or ()],
        [_parse_numbers("box", text, 4) for text in box or ()],
    )
    grid = MaskGeneration(points_per_side=points_per_side) if everything else None
    bundle = load_model(model, device=device, dtype=dtype, threads=threads)
    task = make_segmenter(
        bundle,
        prompts=prompts,
        everything=grid,
        mode=mode,  # type: ignore[arg-type]  # the task checks it
        threshold=threshold,
        stuff_classes=stuff_classes or (),
    )
    labeled = isinstance(task, ImageSegmenter)
    if class_map is not None and not isinstance(task, ImageSegmenter):
        raise UnsupportedError(bundle.display_name, "class maps", hint="its masks have no classes")
    if grid is not None:
        message(f"segmenting everything with {points_per_side**2:,} points; fewer are faster")
    found = task(image)
    if as_json:
        print_json(_document(image, found))
    else:
        for thing in found:
            typer.echo(f"{thing.label}\t{_line(thing)}" if labeled else _line(thing))
        if labeled and not found:
            message(f"nothing has a score of at least {threshold:g}; lower --threshold")
    if out is not None:
        _write_json(out, _document(image, found))
    if masks is not None:
        _write_masks(masks, Path(image).stem, found)
    if class_map is not None and isinstance(task, ImageSegmenter):
        _write_class_map(class_map, found, task.labels, load_image(image).size)
    if draw is not None:
        from glassformer.plotting.annotated_image import draw_annotations

        shown = found[:1] if len(prompts) == 1 else found  # the best of alternatives
        draw_annotations(load_image(image), shown).save(draw)
        message(f"wrote {draw}")


def _parse_numbers(name: str, text: str, count: int) -> Any:
    """Parse numbers separated by commas."""
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if len(numbers) != count:
        expected = "x,y in pixels, e.g. 120,80" if count == 2 else "x_min,y_min,x_max,y_max in pixels"
        raise InvalidValueError(name, text, expected)
    return numbers


def _line(thing: Annotation) -> str:
    area = 0 if thing.mask is None else int(thing.mask.sum())
    box = "" if thing.box is None else ",".join(f"{side:g}" for side in thing.box)
    score = "" if thing.score is None else f"{thing.score:.4f}"
    return f"{score}\t{area}\t{box}"


def _document(image: str, found: list[Annotation]) -> dict[str, Any]:
    from glassformer.data.annotation_writers import annotation_to_dict

    return {"image": image, "masks": [annotation_to_dict(thing) for thing in found]}


def _write_json(path: Path, document: dict[str, Any]) -> None:
    import json

    from glassformer.weights.atomic_write import atomic_write

    with atomic_write(path) as file:
        file.write((json.dumps(document, ensure_ascii=False) + "\n").encode())
    message(f"wrote {path}")


def _write_class_map(path: Path, found: list[Annotation], labels: list[str], size: tuple[int, int]) -> None:
    """Write the class number of every pixel, 255 if there is none. size: width and height."""
    from PIL import Image

    from glassformer.data.annotation_writers import class_map

    width, height = size
    Image.fromarray(class_map(found, labels, height, width)).save(path, format="PNG")
    message(f"wrote {path}")


def _write_masks(folder: Path, stem: str, found: list[Annotation]) -> None:
    """Write each mask as a black and white PNG file: STEM-1.png, STEM-2.png, ..."""
    from PIL import Image

    folder.mkdir(parents=True, exist_ok=True)
    for number, thing in enumerate(found, 1):
        if thing.mask is not None:
            Image.fromarray(thing.mask).save(folder / f"{stem}-{number}.png")
    message(f"wrote {len(found)} mask{'s' if len(found) != 1 else ''} to {folder}")
