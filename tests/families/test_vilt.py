"""ViLT beyond the shared parity cases: image sizes, padding, and wrong variants that must fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import glassformer
from glassformer.core.inputs import ImageTextInputs
from glassformer.errors import GlassformerError
from tests.families import harness, values
from tests.families.cases import VILT

SIZES = [(4, 4), (4, 29), (33, 8), (12, 20), (19, 6)]  # of images, for patches of 4


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Any:
    reference = harness.reference(*VILT[2])
    return reference, harness.save_reference(reference, tmp_path_factory.mktemp("reference"))


def gap(reference: Any, model: Any, size: tuple[int, int] = (9, 25)) -> float:
    with torch.no_grad():
        return harness.worst(*values.run_image_text(reference, model, "right", "auto", size), None)


@pytest.mark.parametrize("size", SIZES)
def test_images_of_other_sizes_match_transformers(pair: Any, size: tuple[int, int]) -> None:
    reference, folder = pair
    assert gap(reference, glassformer.load(folder).model, size) < 1e-5


def test_images_padded_by_the_reference_give_the_logits_they_give_alone(pair: Any) -> None:
    """The reference pads images of several sizes to one batch and masks the padding."""
    reference, folder = pair
    model = glassformer.load(folder).model
    ids, sizes = torch.randint(2, 60, (3, 7)), ((8, 20), (12, 12), (16, 4))
    pixels, mask = torch.zeros(3, 3, 16, 20), torch.zeros(3, 16, 20, dtype=torch.long)
    for row, (height, width) in enumerate(sizes):
        pixels[row, :, :height, :width] = torch.randn(3, height, width)
        mask[row, :height, :width] = 1
    with torch.no_grad():
        together = reference(input_ids=ids, pixel_values=pixels, pixel_mask=mask).logits
        for row, (height, width) in enumerate(sizes):
            image = pixels[row : row + 1, :, :height, :width]
            alone = model(ImageTextInputs(ids[row : row + 1], images=image))
            torch.testing.assert_close(alone[0], together[row], atol=1e-5, rtol=0)


def test_wrong_variants_fail(pair: Any) -> None:
    reference, folder = pair
    assert gap(reference, glassformer.load(folder).model) < 1e-5

    def swapped_kinds(model: Any) -> None:
        model.embed.kind.weight.data = model.embed.kind.weight.data[[1, 0, 2]]

    def image_as_the_second_of_two(model: Any) -> None:
        model.embed.kind.weight.data = model.embed.kind.weight.data[[0, 2, 1]]

    def bicubic_positions(model: Any) -> None:
        model.embed.image.interpolation = "bicubic"

    def position_of_the_class_token_last(model: Any) -> None:
        table = model.embed.image.position.data
        model.embed.image.position.data = table.roll(-1, 1)

    def classify_the_class_token_of_the_image(model: Any) -> None:
        forward = model.head.forward
        model.head.forward = lambda x, context, **options: forward(x[:, harness.LENGTH :], context, **options)

    def norm_after_the_activation(model: Any) -> None:
        norm, head = model.head.norm, model.head
        head.norm, head.out = torch.nn.Identity(), torch.nn.Sequential(norm, head.out)

    def without_norm_of_the_text(model: Any) -> None:
        model.embed.text.norm = None

    for change in (
        swapped_kinds,
        image_as_the_second_of_two,
        bicubic_positions,
        position_of_the_class_token_last,
        classify_the_class_token_of_the_image,
        norm_after_the_activation,
        without_norm_of_the_text,
    ):
        model = glassformer.load(folder, mmap=False).model
        change(model)
        assert gap(reference, model) > 1e-3, change.__name__


def test_random_choice_of_patches_is_refused(tmp_path: Path) -> None:
    name, settings = VILT[0]
    harness.save_reference(harness.reference(name, {**settings, "max_image_length": 4}), tmp_path)
    with pytest.raises(GlassformerError, match="max_image_length"):
        glassformer.load(tmp_path)


def test_another_width_of_the_head_is_saved_in_the_own_layout(tmp_path: Path) -> None:
    head = glassformer.core.spec.PoolerClassifySpec(num_labels=3, hidden_dim=17)
    model = glassformer.tiny("vilt", head=head)
    glassformer.save(model, tmp_path)
    assert (tmp_path / "spec.json").is_file() and glassformer.load(tmp_path).spec == model.spec
