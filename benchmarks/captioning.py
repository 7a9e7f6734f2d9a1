"""Compare captions and answers with transformers: python benchmarks/captioning.py [--only captions,questions]

captions: a ViT-Base encoder and a GPT-2 decoder describe 1 and 8 images of 224 x 224 pixels, with 4 beams.
questions: BLIP answers 8 questions about one image of 384 x 384 pixels. transformers encodes the image for
each question, Glassformer once. All times include the image encoder. The weights are random, and both
libraries load them from the same folder. On a CPU in float32, where all outputs have to be equal; on a GPU in
bfloat16. In the last column, a value above 1 means that Glassformer is faster. `--profile` shows the most
expensive operators of Glassformer instead.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks import reference_models
from benchmarks.recording import recorded
from benchmarks.timing import Rate, show_rates, time_in_turns
from glassformer.core.inputs import ImageTextInputs
from glassformer.core.masks import Mask
from glassformer.generation import GenerationConfig, GenerationParams, generate
from glassformer.inference.prepare import evaluation_mode

OURS, THEIRS = "glassformer", "transformers"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
Texts = list[list[int]]


def load_both(reference: Any, positions: nn.Embedding) -> tuple[Any, Any]:
    """Return transformers' model, and ours with the same weights."""
    nn.init.normal_(positions.weight, std=0.3)  # large, so that the texts do not repeat one word
    with tempfile.TemporaryDirectory() as folder:
        reference.eval().save_pretrained(folder)
        bundle = glassformer.load(folder, device=DEVICE, dtype=str(DTYPE).removeprefix("torch."))
    return reference.to(DEVICE, DTYPE), bundle


def params_of(options: dict[str, Any], eos_id: int, pad_id: int) -> GenerationParams:
    return GenerationParams(config=GenerationConfig(**options), eos_token_id=eos_id, pad_token_id=pad_id)


def options_of(length: int, beams: int) -> dict[str, Any]:
    """Return options for texts of this length, which both libraries accept."""
    return {"max_new_tokens": length, "min_new_tokens": length, "num_beams": beams, "do_sample": False}


def captions(args: argparse.Namespace) -> None:
    import transformers

    end, pad = 50256, 50255  # the first is also the start token
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        reference_models.vit_config(), reference_models.gpt2_config()
    )
    config.decoder_start_token_id, config.eos_token_id, config.pad_token_id = end, end, pad
    torch.manual_seed(0)
    model = transformers.VisionEncoderDecoderModel(config)
    reference, bundle = load_both(model, model.decoder.transformer.wpe)
    options = options_of(args.length, args.beams)
    params, prepared = params_of(options, end, pad), bundle.inference_model()
    for count in args.images:
        images = torch.randn(count, 3, 224, 224).to(DEVICE, DTYPE)

        def ours(images: torch.Tensor = images) -> Texts:
            return [outputs[0].ids for outputs in generate(prepared, images, params)]

        @torch.inference_mode()
        def theirs(images: torch.Tensor = images) -> Texts:
            rows: Texts = reference.generate(images, **options).tolist()
            return [row[-args.length :] for row in rows]

        title = f"ViT-Base and GPT-2, {count} images, {args.beams} beams"
        compare(title, ours, theirs, count * args.length, args)


def questions(args: argparse.Namespace) -> None:
    import transformers

    end, pad, size, length = 102, 0, 384, 5
    side = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    tiny = dict.fromkeys(("text_config", "vision_config"), side) if reference_models.is_tiny() else {}
    torch.manual_seed(0)
    model = transformers.BlipForQuestionAnswering(transformers.BlipConfig(**tiny))
    reference, bundle = load_both(model, model.text_decoder.bert.embeddings.position_embeddings)
    options, count = options_of(length, 1), args.questions
    params, prepared = params_of(options, end, pad), bundle.inference_model()
    image = torch.randn(1, 3, size, size).to(DEVICE, DTYPE)
    ids = torch.randint(1000, 30000, (count, 10), device=DEVICE)
    real = torch.ones_like(ids, dtype=torch.bool)

    def ours() -> Texts:
        with torch.inference_mode(), evaluation_mode(bundle.model):
            vectors = bundle.model.src_embed.encode_images(image).expand(count, -1, -1)
        inputs = ImageTextInputs(ids, Mask(padding=real), images=vectors)
        return [outputs[0].ids for outputs in generate(prepared, inputs, params, attention_mask=real)]

    @torch.inference_mode()
    def theirs() -> Texts:
        images = image.expand(count, -1, -1, -1)
        rows: Texts = reference.generate(
            input_ids=ids, pixel_values=images, attention_mask=real.long(), **options
        ).tolist()
        return [row[-length:] for row in rows]

    compare(f"BLIP, {count} questions about one image", ours, theirs, count * length, args)


def compare(
    title: str, ours: Callable[[], Texts], theirs: Callable[[], Texts], tokens: int, args: argparse.Namespace
) -> None:
    """Compare the texts of both libraries, and time them in turns. tokens: generated by each."""
    if args.profile:
        profile(ours)
        return
    texts, others = ours(), theirs()
    equal = sum(a == b for a, b in zip(texts, others, strict=True))
    if DEVICE == "cpu" and equal < len(texts):
        raise SystemExit(f"{title}: {equal} of {len(texts)} texts equal those of transformers")
    times = time_in_turns({OURS: ours, THEIRS: theirs}, rounds=args.rounds, warm=2 if DEVICE == "cuda" else 1)
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    steps = tokens // len(texts)
    rates = {name: Rate(tokens, seconds, steps) for name, seconds in times.items()}
    show_rates(f"{title}, {device}", rates, ours=OURS, unit="tokens")
    print(f"{equal} of {len(texts)} texts are the same\n", flush=True)


def profile(run: Callable[[], object]) -> None:
    """Print the operators or kernels with the largest self time."""
    run()
    kind = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kind.CUDA if DEVICE == "cuda" else kind.CPU]) as profiler:
        run()
    key = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=key, row_limit=16, max_name_column_width=50))


JOBS: dict[str, Callable[[argparse.Namespace], None]] = {"captions": captions, "questions": questions}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help=", ".join(JOBS))
    parser.add_argument("--rounds", type=int, default=5, help="number of timed runs per library")
    parser.add_argument("--images", type=int, nargs="+", default=[1, 8], help="images in a batch")
    parser.add_argument("--length", type=int, default=24, help="tokens of a caption")
    parser.add_argument("--beams", type=int, default=4, help="beams of a caption")
    parser.add_argument("--questions", type=int, default=8, help="questions about one image")
    parser.add_argument("--profile", action="store_true", help="profile Glassformer instead")
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.tiny:
        reference_models.shrink()
    for name in [name for name in args.only.split(",") if name] or list(JOBS):
        if name not in JOBS:
            parser.error(f"there is no benchmark '{name}'; there are {', '.join(JOBS)}")
        JOBS[name](args)


if __name__ == "__main__":
    with recorded():
        main()
