"""On a GPU a crowd is answered as each alone, too."""

from __future__ import annotations

import pytest
import torch

from glassformer.generation.inference_model import prepare_for_inference
from tests.generation.continuous.requests import requests
from tests.generation.continuous.test_crowd import crowd
from tests.generation.test_engine import model_for

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("family", ["original", "t5", "gpt2", "llama", "mistral", "falcon", "lstm"])
def test_a_crowd_on_a_gpu(family: str) -> None:
    model, begins = model_for(family)
    model.cuda()
    crowd(prepare_for_inference(model), requests(24, begins))
