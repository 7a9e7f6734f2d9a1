"""Compare one denoising step with diffusers: python benchmarks/diffusion.py [--only unet,dit]

unet: the UNet of Stable Diffusion 1.5. dit: DiT-S/2 on a CPU, DiT-XL/2 on a GPU. The batch is one image with
classifier-free guidance. Both libraries compute with the same random weights, and have to agree.

On a CPU in float32, with one thread and with all; latents of 32 x 32. On a GPU in bfloat16, latents of
64 x 64 (UNet) and 32 x 32 (DiT): eager; compiled, Glassformer by its repeated layers alone and diffusers as
its documentation recommends (channels_last, max-autotune, whole graph); and the seconds from the first call
until 20 steps are done. There a loop of 20 steps also runs with PyTorch's check for synchronizations.

diffusers may lie unpacked in a folder: --diffusers FOLDER. Without it, only Glassformer is measured.
`--profile` shows the most expensive operators of Glassformer instead.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent.parent))

import glassformer
from benchmarks.recording import recorded
from benchmarks.timing import Step, gpu_seconds, show, time_in_turns
from glassformer.core.block import Block
from glassformer.core.build import build_model
from glassformer.core.diffusion.levels import ResidualConvolutions
from glassformer.core.inputs import LatentInputs
from glassformer.diffusion import DDIM, ImageNoise, denoising_steps
from glassformer.families.registry import families

OURS, THEIRS = "glassformer", "diffusers"
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
TEXT_LENGTH, STEPS, LABELS = 77, 20, 1000


def models(name: str, args: argparse.Namespace) -> tuple[Any, Any, int]:
    """Return our model, that of diffusers (None without the library), and the side of the latents."""
    if name == "unet":
        side, preset = (64 if DEVICE == "cuda" else 32), "stable-diffusion-v1-5-unet"
        changes: dict[str, Any] = {"image_size": side}
        tiny = {"widths": (32, 64), "attention_levels": (True, False), "num_layers": 1}
    else:
        side, preset = 32, "dit-xl-2-256" if DEVICE == "cuda" else "dit-s-2"
        changes, tiny = {}, {"num_layers": 2}
    family = next(family for family in families().values() if preset in family.presets)
    options = {**family.presets[preset], **changes, **(tiny if args.tiny else {})}
    torch.manual_seed(0)
    ours = build_model(family.build(**options)).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            if not parameter.any():  # zeros at the start, which would hide errors
                parameter.normal_(std=0.02)
    theirs = None
    if importlib.util.find_spec("diffusers") is not None:
        theirs = reference(family, ours)
    if DEVICE == "cuda":
        ours = ours.to(DEVICE, DTYPE, memory_format=torch.channels_last)
    return ours, theirs, side


def reference(family: Any, ours: Any) -> Any:
    """Return the model of diffusers with our weights."""
    import diffusers

    with tempfile.TemporaryDirectory() as folder:
        glassformer.save(ours, folder, layout="hf")
        kind = getattr(diffusers, family.architectures[0])
        model = kind.from_pretrained(folder, torch_dtype=DTYPE)
    return model.eval().to(DEVICE)


def inputs_of(model: Any, side: int) -> tuple[LatentInputs, dict[str, Tensor]]:
    """Return the inputs of a step with guidance, and what diffusers calls them besides latents and time."""
    torch.manual_seed(1)
    latents = torch.randn(2, 4, side, side).to(DEVICE, DTYPE)
    timesteps = torch.tensor([500, 500], device=DEVICE)
    if model.spec.input.text_dim is None:
        labels = torch.tensor([207, LABELS], device=DEVICE)
        return LatentInputs(latents, timesteps, labels=labels), {"class_labels": labels}
    text = torch.randn(2, TEXT_LENGTH, model.spec.input.text_dim).to(DEVICE, DTYPE)
    return LatentInputs(latents, timesteps, text=text), {"encoder_hidden_states": text}


def compare(name: str, args: argparse.Namespace) -> None:
    ours, theirs, side = models(name, args)
    inputs, names = inputs_of(ours, side)
    steps: dict[str, Step] = {OURS: lambda: ours(inputs)}
    if theirs is not None:
        steps[THEIRS] = lambda: theirs(inputs.latents, timestep=inputs.timesteps, **names).sample
    if args.profile:
        profile(steps[OURS])
        return
    count = sum(parameter.numel() for parameter in ours.parameters())
    title = f"{name}, {count / 1e6:,.0f}M parameters, batch 2, latents {side} x {side}"
    with torch.inference_mode():
        check_equal(steps)
        if DEVICE == "cuda":
            on_gpu(title, ours, theirs, steps, inputs, names)
            return
        for threads in args.threads:
            torch.set_num_threads(threads)
            times = time_in_turns(steps, rounds=args.rounds)
            show(f"{title}, CPU, {threads} threads", times, ours=OURS)


def check_equal(steps: dict[str, Step]) -> None:
    """Raise if the outputs differ by more than rounding."""
    first, *others = [step() for step in steps.values()]
    assert isinstance(first, Tensor)
    for other in others:
        assert isinstance(other, Tensor)
        difference = float((first.float() - other.float()).abs().max() / other.float().abs().max())
        print(f"largest difference: {difference:.1e} of the largest value")
        if difference > (1e-4 if DEVICE == "cpu" else 5e-2):
            raise SystemExit("the outputs differ")


def on_gpu(
    title: str, ours: Any, theirs: Any, steps: dict[str, Step], inputs: LatentInputs, names: dict[str, Tensor]
) -> None:
    """Compare eager and compiled steps, and show the time until the first 20 steps are done."""
    device = torch.cuda.get_device_name()
    count = synchronizations(ours, inputs)
    print(f"{title}, {device}: {count} synchronizations in {STEPS} steps")
    times = {f"{name}, eager": gpu_seconds(step) for name, step in steps.items()}
    first: dict[str, float] = {}
    for module in ours.modules():
        if isinstance(module, Block | ResidualConvolutions):
            module.compile()
    compiled: dict[str, Step] = {f"{OURS}, repeated layers compiled": steps[OURS]}
    if theirs is not None:
        theirs.to(memory_format=torch.channels_last)
        whole: Any = torch.compile(theirs, mode="max-autotune", fullgraph=True)
        compiled[f"{THEIRS}, compiled"] = lambda: whole(
            inputs.latents, timestep=inputs.timesteps, return_dict=False, **names
        )[0].clone()
    for name, step in compiled.items():
        first[name] = seconds_until_done(step)
        times[name] = gpu_seconds(step)
    show(f"{title}, {device}, one step", times, ours=f"{OURS}, repeated layers compiled", unit="ms")
    show(f"compile and {STEPS} steps, {device}", first, ours=f"{OURS}, repeated layers compiled", unit="ms")


def seconds_until_done(step: Step) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    return time.perf_counter() - start


def synchronizations(model: Any, inputs: LatentInputs) -> int:
    """Return how often the host waits for the device in the loop, from the second step to the last."""
    condition = {"labels": inputs.labels} if inputs.labels is not None else {"text": inputs.text}
    noise = ImageNoise([0, 1], inputs.latents.shape[1:], DEVICE)
    sampler = DDIM().sampler(STEPS)
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        steps = denoising_steps(model, sampler, noise, condition)  # type: ignore[arg-type]
        next(steps)
        torch.cuda.set_sync_debug_mode("warn")
        for _ in range(STEPS - 1):
            next(steps)
        torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(warning.message) for warning in found)


def profile(run: Callable[[], object]) -> None:
    """Print the operators or kernels with the largest self time."""
    kind = torch.profiler.ProfilerActivity
    with torch.inference_mode():
        run()
        with torch.profiler.profile(activities=[kind.CUDA if DEVICE == "cuda" else kind.CPU]) as profiler:
            run()
    key = "self_device_time_total" if DEVICE == "cuda" else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=key, row_limit=16, max_name_column_width=50))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="unet,dit", help="unet, dit")
    parser.add_argument("--rounds", type=int, default=5, help="number of timed runs per library")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads on a CPU")
    parser.add_argument("--diffusers", help="folder that holds the package diffusers, unpacked")
    parser.add_argument("--profile", action="store_true", help="profile Glassformer instead")
    parser.add_argument("--tiny", action="store_true", help="tiny models: only checks that this runs")
    args = parser.parse_args()
    if args.diffusers:
        sys.path.append(args.diffusers)
    for name in args.only.split(","):
        if name not in ("unet", "dit"):
            parser.error(f"there is no benchmark '{name}'; there are unet and dit")
        compare(name, args)


if __name__ == "__main__":
    with recorded():
        main()
