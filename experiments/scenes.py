"""Compose scenes of emoji as a COCO folder, to train detectors and segmenters on.

python -m experiments.scenes --emoji emoji-captions --out scenes --count 2000
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.paths import data_folder
from glassformer.data.scenes import SceneComposer, SceneOptions, read_emoji, write_scenes


def main(args: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.scenes", description=__doc__)
    parser.add_argument("--emoji", type=Path, default=data_folder() / "emoji-captions", help="emoji folder")
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--count", type=int, default=2000, help="number of scenes")
    parser.add_argument("--first", type=int, default=0, help="number of the first scene")
    parser.add_argument("--kinds", type=int, default=60, help="number of kinds of emoji")
    parser.add_argument("--size", type=int, default=128, help="side of a scene in pixels")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(args)
    cutouts = read_emoji(options.emoji, kinds=options.kinds)
    composer = SceneComposer(cutouts, SceneOptions(size=options.size), seed=options.seed)
    print(write_scenes(composer, range(options.first, options.first + options.count), options.out))


if __name__ == "__main__":
    main()
