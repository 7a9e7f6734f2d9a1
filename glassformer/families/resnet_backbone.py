"""ResNet backbones inside published models: their config, and their weights in two layouts.

transformers' ResNet and timm's have the same tensors under different names; a file may have either.
"""

from __future__ import annotations

from typing import Any, Literal

from glassformer.core import spec
from glassformer.families.config import Config
from glassformer.weights.ops import Computed, Ignored, Op, Tied

# layers of the stages of timm's models, by name
_TIMM_DEPTHS = {
    "resnet18": (2, 2, 2, 2),
    "resnet34": (3, 4, 6, 3),
    "resnet50": (3, 4, 6, 3),
    "resnet101": (3, 4, 23, 3),
    "resnet152": (3, 8, 36, 3),
}
_NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")


def timm_resnet(name: str, *, channels: int = 3, output_stride: int = 32) -> spec.ResNetSpec:
    """Return the spec of a ResNet of timm, with frozen batch norm.

    output_stride: 32, or 16 and 8, for which the last stages have dilation instead of a stride.
    """
    basic = name in ("resnet18", "resnet34")
    strides, dilations = [1, 2, 2, 2], [1, 1, 1, 1]
    for stage, total in ((3, 32), (2, 16)):
        if output_stride < total:
            strides[stage] = 1
            for later in range(stage, 4):
                dilations[later] *= 2
    return spec.ResNetSpec(
        channels=channels,
        widths=(64, 128, 256, 512) if basic else (256, 512, 1024, 2048),
        depths=_TIMM_DEPTHS[name],
        layer="basic" if basic else "bottleneck",
        strides=tuple(strides),
        dilations=tuple(dilations) if output_stride < 32 else (),
    )


def read_timm(config: Config, *, output_stride: int = 32) -> spec.ResNetSpec:
    """Read a backbone that a config names as a model of timm under the key `backbone`."""
    names: dict[str | None, str] = {**{name: name for name in _TIMM_DEPTHS}, None: "resnet50"}
    return timm_resnet(
        config.choose("backbone", names, None),
        channels=config.get("num_channels", 3),
        output_stride=config.get("output_stride", output_stride),
    )


def write_timm(backbone: spec.ResNetSpec) -> dict[str, Any]:
    """Return the config of a ResNet of timm; the inverse of `read_timm`."""
    channels = backbone.channels
    found = {
        timm_resnet(name, channels=channels, output_stride=stride): (name, stride)
        for name in _TIMM_DEPTHS
        for stride in (8, 16, 32)
    }
    name, stride = found[backbone]
    return {
        "model_type": "timm_backbone",
        "backbone": name,
        "num_channels": channels,
        "features_only": True,
        "use_pretrained_backbone": False,
        "out_indices": [1, 2, 3, 4],
        "output_stride": stride,
    }


def read_resnet(config: Config) -> spec.ResNetSpec:
    """Read the config of a transformers ResNet, with frozen batch norm.

    An own key, `frozen_batch_norm`, is false if batch norm is trained.
    """
    config.only("model_type", "resnet")
    config.only("hidden_act", "relu", default="relu")
    widths = tuple(config.get("hidden_sizes", [256, 512, 1024, 2048]))
    first = 2 if config.get("downsample_in_first_stage", False) else 1
    return spec.ResNetSpec(
        channels=config.get("num_channels", 3),
        stem_width=config.get("embedding_size", 64),
        widths=widths,
        depths=tuple(config.get("depths", [3, 4, 6, 3])),
        layer=config.choose("layer_type", {"basic": "basic", "bottleneck": "bottleneck"}, "bottleneck"),
        strides=(first, *[2] * (len(widths) - 1)),
        strided_conv="1x1" if config.get("downsample_in_bottleneck", False) else "3x3",
        norm="frozen_batch" if config.get("frozen_batch_norm", True) else "batch",
    )


def write_resnet(backbone: spec.ResNetSpec) -> dict[str, Any]:
    """Return the config of a transformers ResNet; the inverse of `read_resnet`."""
    assert not backbone.dilations and set(backbone.strides[1:]) <= {2} and backbone.strides[0] in (1, 2)
    config: dict[str, Any] = {
        "model_type": "resnet",
        "num_channels": backbone.channels,
        "embedding_size": backbone.stem_width,
        "hidden_sizes": list(backbone.widths),
        "depths": list(backbone.depths),
        "layer_type": backbone.layer,
        "hidden_act": "relu",
        "downsample_in_first_stage": backbone.strides[0] == 2,
        "downsample_in_bottleneck": backbone.strided_conv == "1x1",
        "out_features": [f"stage{len(backbone.widths)}"],
    }
    if backbone.norm == "batch":
        config["frozen_batch_norm"] = False
    return config


def resnet_rows(
    theirs: tuple[str, ...],
    ours: str,
    backbone: spec.ResNetSpec,
    *,
    layout: Literal["transformers", "timm"] = "transformers",
    save_counts: bool = False,
) -> tuple[Op, ...]:
    """Return the operations of a backbone, whose tensors may have transformers' names or timm's.

    theirs: the possible prefixes of the published names; the first is for saving. ours: Glassformer's prefix.
    layout: the names for saving.
    save_counts: whether trained batch norms are saved with `num_batches_tracked`.
    """
    rows: list[Op] = []

    def conv_norm(transformers: tuple[str, str], timm: tuple[str, str], path: str) -> None:
        def names(part: int, tensor: str) -> tuple[str, ...]:
            modules = (transformers[part], timm[part])
            ordered = modules if layout == "transformers" else modules[::-1]
            return tuple(f"{prefix}{module}.{tensor}" for module in ordered for prefix in theirs)

        rows.append(Tied(names(0, "weight"), f"{ours}{path}.conv.weight"))
        rows.extend(Tied(names(1, tensor), f"{ours}{path}.norm.{tensor}") for tensor in _NORM_TENSORS)
        if backbone.norm == "batch":
            for n, name in enumerate(names(1, "num_batches_tracked")):
                persistent = save_counts and n == 0
                rows.append(Computed(name, f"{ours}{path}.norm.num_batches_tracked", persistent=persistent))

    stem = "embedder.embedder."
    conv_norm((f"{stem}convolution", f"{stem}normalization"), ("conv1", "bn1"), "stem")
    width = backbone.stem_width
    for i, depth in enumerate(backbone.depths):
        for j in range(depth):
            layer, old, path = f"encoder.stages.{i}.layers.{j}.", f"layer{i + 1}.{j}.", f"stages.{i}.{j}."
            for k in range(2 if backbone.layer == "basic" else 3):
                conv = f"{layer}layer.{k}."
                conv_norm(
                    (f"{conv}convolution", f"{conv}normalization"),
                    (f"{old}conv{k + 1}", f"{old}bn{k + 1}"),
                    f"{path}convs.{k}",
                )
            if j == 0 and (width != backbone.widths[i] or backbone.strides[i] != 1):
                cut = f"{layer}shortcut."
                conv_norm(
                    (f"{cut}convolution", f"{cut}normalization"),
                    (f"{old}downsample.0", f"{old}downsample.1"),
                    f"{path}shortcut",
                )
        width = backbone.widths[i]
    if backbone.norm == "frozen_batch":
        rows.append(Ignored(tuple(f"{prefix}*.num_batches_tracked" for prefix in theirs)))
    return tuple(rows)
