"""Merge several class folders into one dataset of everyday things with equally sharp pictures.

    python benchmarks/everyday_data.py OUT FOLDER [FOLDER ...]

Each FOLDER contains train/<class>/ and test/<class>/. OUT gets all of their classes, with pictures whose shorter side
is at most 64 px. With sources of different sharpness, a model would learn to tell classes by their sharpness.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

SIDE = 64  # shorter side [px], as in Tiny ImageNet
LONGEST = 4 / 3  # longest side, relative to the shorter one: square crops hardly reach further


def write_small(out: Path, picture: Path) -> None:
    """Shrink a picture and write it into the folder of its split and class."""
    image = Image.open(picture).convert("RGB")
    scale = min(1.0, SIDE / min(image.size))
    image = image.resize([max(1, round(side * scale)) for side in image.size], Image.Resampling.LANCZOS)
    width, height = (min(side, round(LONGEST * min(image.size))) for side in image.size)
    left, top = (image.width - width) // 2, (image.height - height) // 2
    target = out / picture.parent.parent.name / picture.parent.name / f"{picture.stem}.webp"
    target.parent.mkdir(parents=True, exist_ok=True)
    image.crop((left, top, left + width, top + height)).save(target, quality=80)


def main() -> None:
    """Write the pictures of all folders."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    pictures = [file for folder in options.folders for file in folder.glob("*/*/*") if file.is_file()]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(partial(write_small, options.out), pictures))
    print(f"{len(pictures):,} pictures in {options.out}")


if __name__ == "__main__":
    main()
