"""Images in conversations: prompts and answers as with transformers' processors and models."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

import glassformer
from glassformer.data.image_files import load_image
from glassformer.errors import InputTooLongError, InvalidValueError, UnsupportedError
from glassformer.processors.image_prompt import ImagePlaceholderError, ImagePromptProcessor
from glassformer.tasks.base import RejectedInputError
from glassformer.tasks.chat import ChatGenerator
from glassformer.tasks.streaming import TextStream

SPECIAL = ["<pad>", "<s>", "</s>", "<image>", "<fake_token_around_image>", "<global-img>"]
SPECIAL += ["<end_of_utterance>", *(f"<row_{r + 1}_col_{c + 1}>" for r in range(6) for c in range(6))]
SIZES = {"hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 37}
TEXT = {"model_type": "llama", **SIZES, "vocab_size": 350, "pad_token_id": 0, "max_position_embeddings": 700}
LLAVA_TEMPLATE = (
    "{% for m in messages %}{{ m['role'].upper() + ': ' }}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] + ' ' }}{% endfor %}"
    "{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
IDEFICS_TEMPLATE = (
    "<s>{% for m in messages %}{{ m['role'] | capitalize }}"
    "{% if m['content'][0]['type'] == 'image' %}:{% else %}: {% endif %}"
    "{% for p in m['content'] %}{% if p['type'] == 'text' %}{{ p['text'] }}"
    "{% elif p['type'] == 'image' %}<image>{% endif %}{% endfor %}<end_of_utterance>\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:{% endif %}"
)


def tokenizer_of() -> Any:
    vocabulary = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(vocabulary)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    from tokenizers import decoders

    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def folder_of(kind: str, folder: Path) -> Path:
    """Save a tiny model with tokenizer and processor as transformers saves it."""
    torch.manual_seed(0)
    tokenizer = tokenizer_of()
    if kind == "llava":
        vision = {"model_type": "clip_vision_model", **SIZES, "image_size": 16, "patch_size": 4}
        config = transformers.LlavaConfig(vision_config=vision, text_config=TEXT, image_token_index=3)
        model = transformers.LlavaForConditionalGeneration(config)
        side = {"height": 16, "width": 16}
        processor = transformers.LlavaProcessor(
            transformers.CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=side),
            tokenizer,
            patch_size=4,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=LLAVA_TEMPLATE,
        )
    else:
        vision = {**SIZES, "image_size": 16, "patch_size": 4}
        config = transformers.Idefics3Config(
            vision_config=vision, text_config=TEXT, image_token_id=3, scale_factor=2
        )
        model = transformers.Idefics3ForConditionalGeneration(config)
        images = transformers.Idefics3ImageProcessorPil(
            size={"longest_edge": 64}, max_image_size={"longest_edge": 16}
        )
        processor = transformers.Idefics3Processor(
            images, tokenizer, image_seq_len=4, chat_template=IDEFICS_TEMPLATE
        )
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    model.generation_config.suppress_tokens = [*range(len(SPECIAL))]
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=["llava", "idefics3"])
def pair(request: Any, tmp_path_factory: Any) -> Any:
    """The kind of model, the bundle, and transformers' processor."""
    folder = folder_of(request.param, tmp_path_factory.mktemp(request.param))
    kind = transformers.LlavaProcessor if request.param == "llava" else transformers.Idefics3Processor
    return request.param, glassformer.load(folder), kind.from_pretrained(folder)


def picture(height: int = 40, width: int = 30, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def ask(*images: Any, text: str = "What is it?") -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image} for image in images]
    return [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]


def segment(task: ChatGenerator, conversation: Any) -> Any:
    ((one,),) = task.preprocess([conversation])
    return one


def test_prompts_match_transformers(pair: Any) -> None:
    _, bundle, processor = pair
    task = ChatGenerator(bundle)
    wide, small = picture(30, 90), picture(16, 16, seed=1)
    conversations: list[tuple[Any, list[Any]]] = [
        (ask(wide), [wide]),
        (ask(), []),
        ([*ask(small), {"role": "assistant", "content": "A cat."}, *ask(wide, small)], [small, wide, small]),
    ]
    for conversation, images in conversations:
        given = [
            {**m, "content": [{"type": "text", "text": m["content"]}]} if isinstance(m["content"], str) else m
            for m in conversation
        ]
        text = processor.apply_chat_template(given, add_generation_prompt=True, tokenize=False)
        expected = processor(text=text, images=images or None, add_special_tokens=False)
        mine = segment(task, conversation)
        assert [mine.ids] == expected["input_ids"]
        assert sum(len(span.embeddings) for span in mine.spans) == mine.ids.count(3)


def test_generated_texts_match_transformers(pair: Any) -> None:
    """One conversation with one, none or several images, alone and together, streamed too."""
    kind, bundle, processor = pair
    cls = "LlavaForConditionalGeneration" if kind == "llava" else "Idefics3ForConditionalGeneration"
    reference = getattr(transformers, cls).from_pretrained(bundle.folder).eval()
    conversations = [ask(picture()), ask(text="Hello"), ask(picture(seed=1), picture(20, 70, seed=2))]
    expected = []
    for conversation in conversations:
        images = [part["image"] for part in conversation[0]["content"] if part["type"] == "image"]
        text = processor.apply_chat_template(conversation, add_generation_prompt=True, tokenize=False)
        inputs = processor(text=text, images=images or None, add_special_tokens=False, return_tensors="pt")
        with torch.no_grad():
            ids = reference.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=2)
        new = ids[0, inputs["input_ids"].shape[1] :].tolist()
        expected.append(bundle.tokenizer.decode(new))
    task = ChatGenerator(bundle, max_new_tokens=8, do_sample=False)
    assert [one.text for one in task(conversations)] == expected
    assert [task(conversation).text for conversation in conversations] == expected
    assert ["".join(TextStream(task, conversation)) for conversation in conversations] == expected
    assert len({*expected}) > 1


def test_images_are_taken_in_every_form_and_encoded_once(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, bundle, _ = pair
    calls = []
    encode = bundle.model.embed.encode_images
    monkeypatch.setattr(
        bundle.model.embed, "encode_images", lambda images, obs=None: calls.append(1) or encode(images)
    )
    image = picture(seed=9)
    path = tmp_path / "a.png"
    path.write_bytes(png(image))
    url = "data:image/png;base64," + base64.b64encode(png(image)).decode()
    task = ChatGenerator(bundle, max_new_tokens=4, do_sample=False)
    forms: list[Any] = [image, str(path), path, png(image), np.asarray(image)]
    texts = {task(ask(form)).text for form in forms}
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is it?"}]
    texts.add(task([{"role": "user", "content": content}]).text)
    assert len(texts) == 1 and len(calls) == 1


def test_an_image_is_decoded_once_in_a_conversation(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, bundle, _ = pair
    decoded = []

    def load(image: Any) -> Any:
        decoded.append(image)
        return load_image(image)

    monkeypatch.setattr("glassformer.processors.image_prompt.load_image", load)
    task = ChatGenerator(bundle, max_new_tokens=4, do_sample=False)
    turns = ask(png(picture(seed=10)), png(picture(seed=11)))
    first = task(turns).text
    longer = [*turns, {"role": "assistant", "content": first}, *ask(text="And now?")]
    expected = task(longer).text
    assert len(decoded) == 2
    ChatGenerator(bundle, max_new_tokens=4, max_image_tokens=20)(turns)
    assert len(decoded) == 4  # maybe other tiles
    cache = bundle._images[2]
    for key in [key for key in cache if not key.startswith(b"tiles")]:
        del cache[key]  # vectors that had to make room
    assert task(longer).text == expected
    assert len(decoded) == 6


def test_fewer_tiles_with_a_limit_of_image_tokens(pair: Any) -> None:
    kind, bundle, _ = pair
    image = picture(30, 90)
    full = ImagePromptProcessor(bundle).load(image)
    assert full.num_tokens == {"llava": 16, "idefics3": 4 * 9}[kind]
    limited = ImagePromptProcessor(bundle, max_image_tokens=20).load(image)
    assert limited.num_tokens <= 20
    task = ChatGenerator(bundle, max_image_tokens=20)
    assert segment(task, ask(image)).ids.count(3) == limited.num_tokens
    with pytest.raises(InvalidValueError) as caught:
        ImagePromptProcessor(bundle, max_image_tokens=3)
    assert caught.value.name == "max_image_tokens"


def test_bad_images_are_one_error(pair: Any, tmp_path: Path) -> None:
    _, bundle, _ = pair
    task = ChatGenerator(bundle, files=False)
    text = tmp_path / "text.png"
    text.write_text("no image")
    remote = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
    local = {"type": "image_url", "image_url": {"url": "/etc/passwd"}}
    cases: list[tuple[Any, Any]] = [
        (ask(picture(), text="an <image> too"), ImagePlaceholderError),
        (ask(text="an <image>"), ImagePlaceholderError),
        ([{"role": "user", "content": [remote]}], InvalidValueError),
        ([{"role": "user", "content": [local]}], InvalidValueError),
        ([{"role": "user", "content": [{"type": "image", "path": str(text)}]}], InvalidValueError),
        ([{"role": "user", "content": [{"type": "image"}]}], InvalidValueError),
        ([{"role": "user", "content": ["text"]}], InvalidValueError),
        (ask(*[picture()] * 200), InputTooLongError),
    ]
    for conversation, kind in cases:
        with pytest.raises(kind):
            task(conversation)
    named = ChatGenerator(bundle)
    for source in (str(text), png(picture(1, 5000)), b"\x89PNG", str(tmp_path / "none.png")):
        with pytest.raises(RejectedInputError) as caught:
            named(ask(picture(), source))
        assert caught.value.number == 2


def test_template_without_an_image_slot(pair: Any) -> None:
    _, bundle, _ = pair
    plain = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    with pytest.raises(ImagePlaceholderError) as caught:
        ChatGenerator(bundle, chat_template=plain)(ask(picture()))
    assert (caught.value.image, caught.value.expected, caught.value.found) == (1, 1, 0)


def test_text_models_refuse_images() -> None:
    bundle = glassformer.load("pocket-lm")
    task = ChatGenerator(bundle, chat_template="{{ messages[0]['content'] }}")
    with pytest.raises(UnsupportedError):
        task(ask(picture()))


def test_text_models_read_messages_without_content() -> None:
    template = "{% for m in messages %}{{ m['role'] }}{% endfor %}"
    task = ChatGenerator(glassformer.load("pocket-lm"), chat_template=template)
    assert segment(task, [{"role": "user", "content": "Hi"}, {"role": "assistant"}]).text == "userassistant"
