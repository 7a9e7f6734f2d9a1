"""Connect an image encoder to a language model: a vision-language model whose connector is new."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from glassformer.bundle import Bundle
from glassformer.core import spec
from glassformer.errors import UnsupportedError
from glassformer.families.sidecars import IMAGE_PROCESSOR_FILE, JobInfo
from glassformer.families.vision_language import join
from glassformer.json_text import read_object
from glassformer.processors.text import require_tokenizer
from glassformer.tokenization import Tokenizer, load_tokenizer
from glassformer.training.model_setup import build_initialized

IMAGE = "<image>"
TEMPLATE = (
    "{% for message in messages %}"
    "{{ 'Question: ' if message.role == 'user' else 'Answer: ' }}"
    "{% if message.content is string %}{{ message.content | trim }}{% else %}"
    "{% for part in message.content %}"
    "{{ '<image>' if part.type == 'image' else part.text | trim }}"
    "{% endfor %}{% endif %}"
    "{{ '\\n' if message.role == 'user' else eos_token + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}Answer:{% endif %}"
)
MAX_IMAGE_TOKENS = 64  # patches are joined until an image has at most as many tokens


def connect(image: Bundle, text: Bundle, *, seed: int = 0) -> Bundle:
    """Return a vision-language model of an image encoder and a decoder, with a new connector between them.

    image: an image encoder, or a model that has one, e.g. a captioner. text: a language model. Its tokenizer
    gets a token for images, and a chat template with an image slot.
    """
    encoder, prefix = _image_encoder(image)
    source: Any = text.spec
    if source.modalities != ("text",) or source.architecture != "decoder-only":
        raise UnsupportedError(text.display_name, "images", hint="use a decoder-only language model")
    tokenizer = with_image_token(require_tokenizer(text))
    image_id = tokenizer.token_id(IMAGE)
    assert image_id is not None
    patches: Any = encoder.input
    shuffle = _shuffle(patches.grid)
    connector = spec.ConnectorSpec(shuffle=shuffle, activation="gelu")
    rows = max(tokenizer.vocab_size, source.input.vocab_size)
    tokens, head = (replace(part, vocab_size=rows) for part in (source.input, source.head))
    larger = replace(source, input=tokens, head=head)
    torch.manual_seed(seed)
    model: Any = build_initialized(join(encoder, larger, image_id=image_id, connector=connector))
    state = model.state_dict()
    for name, value in text.model.state_dict().items():
        state[name] = _with_rows(value, len(state[name])) if value.dim() else value
    for name, value in image.model.state_dict().items():
        inner = prefix(name)
        if inner is not None and (path := f"embed.image.{inner}") in state:
            state[path] = value
    model.load_state_dict(state)
    return Bundle(
        model=model,
        tokenizer=tokenizer,
        generation={name: ids for name, ids in text.generation.items() if name.endswith("_token_id")},
        job=JobInfo(),
        files={IMAGE_PROCESSOR_FILE: image.files.get(IMAGE_PROCESSOR_FILE)},
        folder=text.folder,
    )


def _image_encoder(bundle: Bundle) -> tuple[spec.EncoderOnlySpec, Any]:
    """Return the spec of a model's image encoder, and a function that maps the model's tensor names to it."""
    model: Any = bundle.spec
    if isinstance(model, spec.TwoTowerSpec):
        return model.image, lambda name: name.removeprefix("image.") if name.startswith("image.") else None
    if isinstance(model, spec.EncoderDecoderSpec) and model.modalities == ("image",):
        encoder = spec.EncoderOnlySpec(input=model.source, encoder=model.encoder, head=spec.FeaturesSpec())
        names = {"src_embed": "embed", "encoder": "encoder"}

        def inner(name: str) -> str | None:
            first, _, rest = name.partition(".")
            return f"{names[first]}.{rest}" if first in names else None

        return encoder, inner
    if isinstance(model, spec.EncoderOnlySpec) and model.modalities == ("image",):
        return replace(model, head=spec.FeaturesSpec()), lambda name: name
    hint = "use an image encoder, e.g. a ViT, a CLIP model or a captioner"
    raise UnsupportedError(bundle.display_name, "encoding images", hint=hint)


def _shuffle(grid: tuple[int, int]) -> int:
    """Return the side of the squares of patches that are joined to one token."""
    rows, columns = grid
    for side in range(1, min(grid) + 1):
        whole = rows % side == 0 and columns % side == 0
        if whole and rows * columns // side**2 <= MAX_IMAGE_TOKENS:
            return side
    return 1


def _with_rows(value: torch.Tensor, rows: int) -> torch.Tensor:
    """Append rows of the mean, for new tokens."""
    if len(value) >= rows:
        return value
    return torch.cat((value, value.mean(0, keepdim=True).expand(rows - len(value), *value.shape[1:])))


def with_image_token(tokenizer: Tokenizer) -> Tokenizer:
    """Return a tokenizer with a token for images, and a chat template with an image slot."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer.save(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise UnsupportedError(
                "this tokenizer", "a token for images", hint="convert it to tokenizer.json"
            )
        content = read_object(path)
        if tokenizer.token_id(IMAGE) is None:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            added = {"id": tokenizer.vocab_size, "content": IMAGE, "special": True, **flags}
            content["added_tokens"].append(added)
            path.write_text(json.dumps(content), "utf-8")
        config = folder / "tokenizer_config.json"
        values = read_object(config, missing_ok=True)
        config.write_text(json.dumps({**values, "chat_template": TEMPLATE}), "utf-8")
        (folder / "chat_template.jinja").unlink(missing_ok=True)
        extended = load_tokenizer(folder)
    assert extended is not None
    return extended
