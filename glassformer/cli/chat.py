"""The command `chat`: a conversation in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glassformer.cli.console import message
from glassformer.cli.lines import read_inputs
from glassformer.cli.options import DeviceOptions, JsonSchema, Model, read_json_schema, with_options
from glassformer.cli.tasks import with_declared
from glassformer.errors import GlassformerError, UnsupportedError
from glassformer.tasks.generation_options import GenerationTaskOptions
from glassformer.tasks.registry import options_of

if TYPE_CHECKING:
    from glassformer.tasks.chat import ChatGenerator, Message

SAMPLING = [
    option
    for option in options_of(GenerationTaskOptions)
    if option.owner and option.is_on("command") and not option.metadata.get("beams")
]
HELP = (
    "/clear starts a new conversation, /image FILE adds an image to the next message, "
    "/exit or Ctrl-D ends, Ctrl-C stops an answer"
)
IMAGE = "/image "


@with_options(DeviceOptions)
@with_declared(SAMPLING)
def chat(
    model: Model,
    system: Annotated[str | None, typer.Option(help="System message, before the conversation.")] = None,
    image: Annotated[
        list[Path] | None,
        typer.Option(help="Image for the first message, if the model reads images. Repeat for several."),
    ] = None,
    max_image_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, show_default=False, help="Read an image in less detail if it takes more tokens than this."
        ),
    ] = None,
    json_schema: JsonSchema = None,
    *,
    values: dict[str, Any],
    options: DeviceOptions,
) -> None:
    """Chat with a model in the terminal.

    Answers are streamed; Ctrl-C stops an answer. /clear starts a new
    conversation, /image FILE adds an image to the next message, /exit or
    Ctrl-D ends. MODEL needs a chat template. Without a terminal, every line
    of stdin is a message. Generates at most 1024 tokens per answer by
    default.
    """
    schema = read_json_schema(json_schema)
    bundle = options.load(model)
    from glassformer.tasks.chat import ChatGenerator

    task = ChatGenerator(bundle, max_image_tokens=max_image_tokens, **schema, **values)
    images = [_image(task, path) for path in image or ()]
    begin: list[Message] = [{"role": "system", "content": system}] if system is not None else []
    interactive = sys.stdin.isatty()
    conversation = list(begin)
    for line in _lines(interactive):
        if line == "/exit":
            break
        if line == "/clear":
            conversation = list(begin)
        elif line.startswith(IMAGE):
            try:
                images.append(_image(task, Path(line.removeprefix(IMAGE).strip())))
            except GlassformerError as error:
                if not interactive:
                    raise
                message(f"error: {error}")
        elif line == "/help" or (interactive and line.startswith("/") and " " not in line):
            message(HELP)
        elif line:
            content = [*images, {"type": "text", "text": line}] if images else line
            conversation.append({"role": "user", "content": content})
            images = []
            try:
                answer = _answer(task, conversation, interactive)
            except GlassformerError as error:
                if not interactive:
                    raise
                conversation.pop()
                message(f"error: {error}")
            else:
                conversation.append({"role": "assistant", "content": answer})


def _image(task: ChatGenerator, path: Path) -> dict[str, Any]:
    """Return the part of a message for an image file, and report how many tokens it takes."""
    if task.images is None:
        hint = "use a vision-language model"
        raise UnsupportedError(task.bundle.display_name, "images in a chat", hint=hint)
    message(f"{path}: {task.images.load(path)}")
    return {"type": "image", "path": str(path)}


def _lines(interactive: bool) -> Iterator[str]:
    """Yield the messages that the user types, or the lines of a pipe."""
    if not interactive:
        inputs = read_inputs(None, None)
        yield from (line.strip() for line in inputs.lines)
        inputs.errors.raise_if_any()
        return
    with suppress(ImportError):
        import readline  # noqa: F401 (line editing and history for input)
    message(HELP)
    while True:
        try:
            yield input("> ").strip()
        except KeyboardInterrupt:
            print()
        except EOFError:
            print()
            return


def _answer(task: ChatGenerator, conversation: list[Message], interactive: bool) -> str:
    """Print the answer as it is generated, and return it; Ctrl-C stops it."""
    pieces: list[str] = []
    finish_reason = None
    try:
        from glassformer.tasks.streaming import TextStream

        with closing(TextStream(task, conversation)) as stream:
            for piece in stream:
                pieces.append(piece)
                sys.stdout.write(piece)
                sys.stdout.flush()
            finish_reason = stream.result and stream.result.finish_reason
    except KeyboardInterrupt:
        if not interactive:
            raise
    sys.stdout.write("\n")
    sys.stdout.flush()
    if finish_reason == "length":
        message("note: the answer stopped at the token limit; raise it with --max-new-tokens")
    return "".join(pieces)
