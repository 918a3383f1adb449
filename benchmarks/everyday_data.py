"""Pictures of everyday things for one classifier, from several folders of classes, all of the same sharpness.

    python benchmarks/everyday_data.py OUT FOLDER [FOLDER ...]

Each FOLDER holds train/<class>/ and test/<class>/. OUT gets all of their classes, with pictures whose shorter side is
64 px at most. Where one source is sharp and another is not, a model would tell classes by sharpness.
"""

import argparse
import os
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from PIL import Image

SIDE = 64  # [px] of the shorter side, as Tiny ImageNet has it
LONGEST = 4 / 3  # of the shorter side: what lies further out, a square crop hardly sees


def write_small(out: Path, picture: Path) -> None:
    """Write a picture, shrunk, with its class and split."""
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
