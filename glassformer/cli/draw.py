"""Draw images: PNG files with their settings, a preview while they form, and a grid of all."""

from __future__ import annotations

import json
import math
import re
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from glassformer.cli.console import escape_controls, message
from glassformer.cli.lines import PROGRESS_SECONDS, Inputs, check_output_file, read_inputs
from glassformer.cli.options import DeviceOptions, Json, Overwrite, optional, output_option
from glassformer.errors import (
    FileExistsAlreadyError,
    FileProblemError,
    GlassformerError,
    MissingValueError,
)
from glassformer.messages import quantity
from glassformer.schema import matches_type, union_members

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from PIL import Image

    from glassformer.cli.tasks import TaskRun
    from glassformer.diffusion import SamplerStep
    from glassformer.tasks.drawing import Drawing, ImageGenerator

TERMINAL = "-"  # as the file of a preview
PREVIEW_PAUSE = 4  # times the seconds of the last preview, until the next one
GRID_GAP, MAX_GRID = 4, 400  # pixels between images, and images


@dataclass(kw_only=True)
class DrawingOptions(DeviceOptions):
    """Inputs and outputs of the command that draws."""

    file: Annotated[
        Path | None,
        optional("--file", "--input", help="Read prompts from this file: one per line, or a table."),
    ] = None
    columns: Annotated[
        list[str] | None, optional("--column", help="Column of a table to read: a name, or a number from 1.")
    ] = None
    like: Annotated[
        Path | None,
        optional(metavar="FILE", help="Take prompt and settings from this drawing; given options win."),
    ] = None
    out: Annotated[
        Path | None,
        output_option(
            "--out",
            "--output",
            metavar="PATH",
            help="File, numbered if there are several drawings, or a folder (default: new files in the "
            "current folder, named by prompt and seed).",
        ),
    ] = None
    grid: Annotated[
        Path | None, output_option(metavar="FILE", help="Also write all images as one PNG file.")
    ] = None
    preview: Annotated[
        str | None,
        output_option(
            metavar="FILE", help="Rewrite this PNG file while an image forms; - shows it in the terminal."
        ),
    ] = None
    overwrite: Overwrite = False
    as_json: Json = False


def run_drawing(run: TaskRun, options: DrawingOptions) -> None:
    """Draw images; write each to a file, and print its name, as soon as it is finished."""
    drawn = {} if options.like is None else read_like(run, options.like)
    prompts = list(run.inputs) or ([drawn["prompt"]] if drawn and options.file is None else [])
    values = {**{name: drawn[name] for name in drawn.keys() - {"prompt", "weights"}}, **run.values}
    if options.grid is not None:
        check_output_file(options.grid, overwrite=options.overwrite)
    bundle = options.load(run.model)
    if drawn and drawn["weights"] != bundle.weights_digest():
        message(f"note: {options.like} was drawn with other weights, so this drawing will differ from it")
    job = replace(bundle.job, data_columns=run.spec.inputs.trained_columns(bundle.job.data_columns or {}))
    inputs = read_inputs(prompts, options.file, columns=options.columns, job=job)
    each = values.get("num_images_per_prompt") or 1
    total = None if inputs.total is None else inputs.total * each
    out = options.out
    if out is not None and out.suffix and any(one.name == "output_format" for one in run.spec.all_options):
        values.setdefault("output_format", out.suffix[1:].lower())
    files = FileNames(out, total, overwrite=options.overwrite, format=values.get("output_format") or "png")
    progress = DrawingProgress(options.preview, total)
    if options.preview is not None:
        values["callback"] = progress.show_preview
    generator: Any = run.spec.make(bundle, run.spec.read_options(values))
    progress.generator = generator
    _draw(generator, inputs, files, progress, options)


def read_like(run: TaskRun, path: Path) -> dict[str, Any]:
    """Return the prompt and the settings of a drawing; an image that it started from must be given."""
    from glassformer.tasks.png_settings import read_png_settings

    drawn = read_png_settings(path)
    types = {one.name: union_members(one.hint) for one in run.spec.all_options if one.is_on("command")}
    drawn = {name: value for name, value in drawn.items() if name in {*types, "prompt", "weights"}}
    types |= {"prompt": (str,), "weights": (str,)}
    valid = all(any(matches_type(value, kind) for kind in types[name]) for name, value in drawn.items())
    if not valid or not {"prompt", "seed", "weights"} <= drawn.keys():
        raise FileProblemError(path, "has damaged settings")
    for name in ("image", "mask"):
        if drawn.pop(name, None) is not None and name not in run.values:
            raise MissingValueError(name, f"because {path} was drawn from one")
    return drawn


def _draw(
    generator: ImageGenerator,
    inputs: Inputs,
    files: FileNames,
    progress: DrawingProgress,
    options: DrawingOptions,
) -> None:
    from glassformer.tasks.base import Callbacks, RejectedInputError

    given = inputs.source == "arguments"
    callbacks = Callbacks(
        on_step=progress.on_step,
        on_reject=None if given else inputs.errors.add,
        skip_blank=not given,
    )
    images: list[Image.Image] = []
    try:
        with progress:
            for drawing in generator.stream(map(progress.start_prompt, inputs.lines), callbacks):
                path = files.write(drawing)
                values = {"file": str(path), **drawing.settings()}
                line = json.dumps(values, ensure_ascii=False) if options.as_json else str(path)
                progress.on_image(escape_controls(line))
                if options.grid is not None and len(images) < MAX_GRID:
                    image = drawing.images[0]
                    images.append(image[0] if isinstance(image, tuple) else image)
    except RejectedInputError as error:
        raise (error.reason if inputs.total == 1 else error) from None
    except KeyboardInterrupt:
        message(f"stopped after {quantity(progress.images, 'image')}; finished files are kept")
        raise
    finally:
        for note in generator.notes:
            message(f"note: {note}")
        inputs.errors.report_all()
        if options.grid is not None and images:
            make_grid(images, len(generator.seeds)).save(options.grid)
    inputs.errors.raise_if_any()


class FileNames:
    """Chooses the names of files, and writes them.

    out: a file, numbered if there are several images, or a folder. total: number of images, if known.
    format: png, webp or mp4.
    """

    def __init__(self, out: Path | None, total: int | None, *, overwrite: bool, format: str = "png") -> None:
        self.overwrite, self.number, self.total = overwrite, 0, total
        is_folder = out is None or out.is_dir() or not out.suffix
        self.folder = (out or Path()) if is_folder else None
        self.file = out or Path()
        self.suffix = f".{format}"
        if not is_folder and self.file.suffix.lower() != self.suffix:
            hint = f"write {self.suffix}"
            raise FileProblemError(self.file, f"is not written as {self.file.suffix}", hint=hint)
        if not is_folder:
            for number in range(1, min(total or 1, MAX_GRID) + 1):
                check_output_file(self._numbered(number), overwrite=overwrite)

    def write(self, drawing: Drawing) -> Path:
        """Write a drawing of one image; return the file."""
        from glassformer.weights.atomic_write import write_file

        (content,) = drawing.files()
        if self.folder is not None:
            return self._write_new(self.folder, f"{slug(drawing.prompt)}-{drawing.seeds[0]}", content)
        self.number += 1
        path = self._numbered(self.number)
        check_output_file(path, overwrite=self.overwrite)
        write_file(path, content)
        return path

    def _write_new(self, folder: Path, stem: str, content: bytes) -> Path:
        """Write a file with a name that does not exist yet."""
        folder.mkdir(parents=True, exist_ok=True)
        for number in count(1):
            path = folder / f"{stem}{'' if number == 1 else f'-{number}'}{self.suffix}"
            with suppress(FileExistsError), path.open("xb") as file:
                file.write(content)
                return path
        raise AssertionError  # there is always a next number

    def _numbered(self, number: int) -> Path:
        return self.file if self.total == 1 else self.file.with_stem(f"{self.file.stem}-{number}")


def slug(prompt: str) -> str:
    """Return a prompt as a part of a file name.

    >>> slug("A red apple, with a crown!"), slug("빨간 사과"), slug("../..")
    ('a-red-apple-with-a-crown', '빨간-사과', 'drawing')
    """
    return re.sub(r"\W+", "-", prompt.lower()).strip("-")[:50] or "drawing"


class DrawingProgress:
    """Shows how far the drawing is: on a terminal after each step, else at intervals.

    preview: the file that is rewritten while an image forms, or `-` for the terminal.
    total: number of images.
    """

    generator: ImageGenerator

    def __init__(self, preview: str | None, total: int | None) -> None:
        from rich.console import Console
        from rich.live import Live

        self.total, self.images, self.steps = total, 0, 0
        self.file = None if preview in (None, TERMINAL) else Path(str(preview))
        if self.file is not None:
            check_preview_file(self.file)
        screen = Console(stderr=True, highlight=False)
        self.live = (
            Live(console=screen, transient=True, redirect_stdout=False) if screen.is_terminal else None
        )
        self.picture: Any = ""
        self.next_message = time.monotonic() + PROGRESS_SECONDS
        self.next_preview = 0.0

    def __enter__(self) -> None:
        if self.live is not None:
            self.live.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def start_prompt(self, prompt: str) -> str:
        self.steps = -1  # `on_step` is also called once before each prompt
        return prompt

    def on_step(self) -> None:
        self.steps += 1
        of_total = "" if self.total is None else f" of {self.total:,}"
        text = f"image {self.images + 1:,}{of_total}: step {self.steps:,}"
        if self.live is not None:
            from rich.console import Group

            self.live.update(Group(self.picture, text))
        elif time.monotonic() > self.next_message:
            self.next_message = time.monotonic() + PROGRESS_SECONDS
            message(text)

    def on_image(self, line: str) -> None:
        """Print the line of a finished image."""
        self.images += 1
        self.steps = 0
        if self.live is not None:
            self.live.stop()
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
        if self.live is not None:
            self.live.start()

    def show_preview(self, index: int, step: SamplerStep) -> None:
        """Show the first of the images that form; decoding it takes at most a fifth of the time."""
        from glassformer.tasks.png_settings import encode_png
        from glassformer.weights.atomic_write import write_file

        start = time.monotonic()
        if start < self.next_preview:
            return
        image = self.generator.preview(step.pred_original_sample)  # type: ignore[attr-defined]
        if self.file is not None:
            write_file(self.file, encode_png(image, {"preview": True}))
        elif self.live is not None:
            from glassformer.plotting.terminal import image_text

            self.picture = image_text(image, width=min(64, self.live.console.width))
        now = time.monotonic()
        self.next_preview = now + PREVIEW_PAUSE * (now - start)


def check_preview_file(path: Path) -> None:
    """Raise unless a file is new, or the preview of another drawing."""
    from glassformer.tasks.png_settings import read_png_settings

    try:
        check_output_file(path, overwrite=False)
    except FileExistsAlreadyError:
        with suppress(GlassformerError):
            if read_png_settings(path).get("preview"):
                return
        raise FileExistsAlreadyError(path, hint="glassformer did not write it as a preview") from None


def make_grid(images: Sequence[Image.Image], each: int) -> Image.Image:
    """Return images as one: a row for each prompt with `each` images, or a square if it has one."""
    from PIL import Image

    from glassformer.training.logging.sample_images import tile_images

    columns = each if each > 1 else math.ceil(math.sqrt(len(images)))
    rgb = (image.convert("RGB") for image in images)
    return Image.fromarray(tile_images(rgb, columns, GRID_GAP, min_side=1))
