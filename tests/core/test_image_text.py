"""Texts with images: image vectors among the tokens, next to them, and in cross-attention."""

from dataclasses import replace

import pytest
import torch

from glassformer.core import spec as specs
from glassformer.core.build import build_model
from glassformer.core.inputs import ImageTextInputs, Memory
from glassformer.errors import ImageTokensError
from glassformer.families import bert, llama, siglip, vit
from glassformer.generation.config import GenerationConfig
from glassformer.generation.engine import generate
from glassformer.generation.params import GenerationParams
from glassformer.generation.prompt import Prompt

IMAGE_ID = 100
GREEDY = GenerationParams(config=GenerationConfig(max_new_tokens=5))


def redrawn(spec):
    model = build_model(spec).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model


@pytest.fixture
def image_tokens():
    torch.manual_seed(0)
    image = siglip.FAMILY.build(**{**siglip.FAMILY.tiny, "tower": "image", "pooling": False})
    text = llama.FAMILY.build(**llama.FAMILY.tiny)
    connector = specs.ConnectorSpec(shuffle=2, activation="gelu")
    source = specs.ImageTokensSpec(**vars(text.input), image=image, image_id=IMAGE_ID, connector=connector)
    return redrawn(replace(text, input=source))


@pytest.fixture
def image_memory():
    torch.manual_seed(0)
    text = bert.FAMILY.build(**bert.FAMILY.tiny)
    image = vit.FAMILY.build(**{**vit.FAMILY.tiny, "head": specs.FeaturesSpec(), "d_model": 48, "d_ff": 96})
    block = replace(text.encoder.block, cross_attention=text.encoder.block.attention)
    encoder = replace(text.encoder, block=block)
    return redrawn(
        specs.EncoderDecoderSpec(
            source=specs.ImageMemorySpec(**vars(text.input), image=image),
            target=text.input,
            encoder=encoder,
            decoder=replace(encoder, causal=True),
            head=specs.LanguageModelSpec(vocab_size=101),
            start_id=1,
        )
    )


def prompt_ids(*parts):
    """Return ids; a number stands for as many placeholders, a tuple for tokens."""
    return [token for part in parts for token in (part if isinstance(part, tuple) else (IMAGE_ID,) * part)]


def test_spec_answers_for_text_and_image(image_tokens, image_memory):
    assert image_tokens.spec.modalities == image_memory.spec.modalities == ("text", "image")
    assert list(image_tokens.spec.stacks()) == ["decoder", "embed.image.encoder"]
    assert list(image_memory.spec.stacks()) == ["encoder", "decoder", "src_embed.image.encoder"]
    for model in (image_tokens, image_memory):
        for path in model.spec.stacks():
            model.get_submodule(path)


def test_image_vectors_replace_the_placeholders_in_the_order_of_the_text(image_tokens):
    images = torch.randn(3, 3, 16, 16)
    vectors = image_tokens.embed.encode_images(images)
    assert vectors.shape[1] == image_tokens.spec.input.num_image_tokens((16, 16)) == 4
    ids = torch.tensor([prompt_ids((5,), 4, (6,), 4), prompt_ids((5, 6, 7, 8, 9), 4, (6,))])
    text = image_tokens.embed.token_vectors(ids)
    text[0, 1:5], text[0, 6:], text[1, 5:9] = vectors
    out = image_tokens.embed.embed_text(ImageTextInputs(ids, images=images)).x
    assert torch.equal(out, text)
    assert torch.equal(image_tokens.embed.embed_text(ImageTextInputs(ids, images=vectors)).x, text)


def test_pixel_shuffle_joins_squares_of_patches(image_tokens):
    cells = torch.arange(16.0).view(1, 16, 1)  # 4 x 4 patches with their number
    squares = image_tokens.embed.connector.shuffle_patches(cells, (4, 4))
    assert squares[0].tolist() == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]


@pytest.mark.parametrize(("ids", "found"), [(((5,), 3), 3), (((5,), 5), 5), (((5, 6),), 0)])
def test_placeholders_must_match_the_images(image_tokens, ids, found):
    vectors = torch.randn(1, 4, 32)
    for call in (
        lambda ids: image_tokens(ImageTextInputs(torch.tensor([ids]), images=vectors)),
        lambda ids: Prompt.with_images(ids, vectors, IMAGE_ID),
    ):
        with pytest.raises(ImageTokensError) as caught:
            call(prompt_ids(*ids))
        assert (caught.value.num_images, caught.value.num_tokens, caught.value.found) == (1, 4, found)


def test_prompt_refuses_an_image_that_is_torn_apart():
    with pytest.raises(ImageTokensError):
        Prompt.with_images(prompt_ids(2, (7,), 2), torch.randn(1, 4, 8), IMAGE_ID)


def test_rows_with_and_without_images_generate_what_they_generate_alone(image_tokens):
    images = torch.randn(3, 3, 16, 16)
    vectors = image_tokens.embed.encode_images(images)
    rows = [
        (prompt_ids((5, 6, 7)), []),
        (prompt_ids((5,), 4, (6, 7)), [0]),
        (prompt_ids((5,), 4, (6,), 4, (8, 9)), [1, 2]),
    ]
    prompts = [Prompt.with_images(ids, [vectors[n] for n in own], IMAGE_ID) for ids, own in rows]
    together = [out[0].ids for out in generate(image_tokens, prompts, GREEDY)]
    for (ids, own), generated in zip(rows, together, strict=True):
        x = torch.tensor([ids])
        for token in generated:  # without a cache, from pixels
            given = ImageTextInputs(x, images=images[own]) if own else x
            assert image_tokens(given)[0, -1].argmax() == token
            x = torch.cat((x, torch.tensor([[token]])), 1)


def test_question_encoder_attends_to_its_image(image_memory):
    images = torch.randn(2, 3, 16, 16)
    ids = torch.tensor([[5, 7, 9, 0], [5, 6, 7, 8]])
    source = ImageTextInputs(ids, images=images)
    vectors = image_memory.src_embed.encode_images(images)
    assert vectors.shape[2] == 48
    memory, mask = image_memory._encode(source, None, "auto", None)
    single = image_memory.encode(ImageTextInputs(ids[:1, :3], images=vectors[:1]))
    torch.testing.assert_close(memory[:1, :3], single)
    assert not torch.allclose(memory, image_memory.encode(ImageTextInputs(ids, images=images.flip(0))))
    from_source = generate(image_memory, source, GREEDY, attention_mask=ids != 0)
    from_memory = generate(image_memory, Memory(memory, mask), GREEDY)
    target = torch.ones(2, 1, dtype=torch.long)
    for _ in range(5):
        target = torch.cat((target, image_memory(source, target)[:, -1].argmax(-1)[:, None]), 1)
    assert (
        [out[0].ids for out in from_source] == [out[0].ids for out in from_memory] == target[:, 1:].tolist()
    )


def test_padding_of_a_text_before_its_patches_is_not_attended_to():
    torch.manual_seed(0)
    text = bert.FAMILY.build(**bert.FAMILY.tiny)
    patches = specs.ImagePatchesSpec(image_size=(16, 16), patch_size=(4, 4))
    source = specs.TokensAndPatchesSpec(text=text.input, image=patches)
    head = specs.PoolerClassifySpec(num_labels=3, hidden_dim=64)
    model = redrawn(specs.EncoderOnlySpec(input=source, encoder=text.encoder, head=head))
    images = torch.randn(2, 3, 16, 16)
    together = model(ImageTextInputs(torch.tensor([[5, 7, 9, 0], [5, 6, 7, 8]]), images=images))
    torch.testing.assert_close(
        together[:1], model(ImageTextInputs(torch.tensor([[5, 7, 9]]), images=images[:1]))
    )


def test_a_question_with_an_image_compiles_into_one_graph():
    torch.manual_seed(0)
    text = bert.FAMILY.build(**bert.FAMILY.tiny)
    patches = specs.ImagePatchesSpec(image_size=(16, 16), patch_size=(4, 4))
    source = specs.TokensAndPatchesSpec(text=text.input, image=patches)
    head = specs.PoolerClassifySpec(num_labels=3, hidden_dim=64)
    model = redrawn(specs.EncoderOnlySpec(input=source, encoder=text.encoder, head=head))
    inputs = ImageTextInputs(torch.tensor([[5, 7, 9, 0]]), images=torch.randn(1, 3, 16, 16))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(inputs), model(inputs))
