"""Pictures named on the command line, and the input size of --size."""

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized, size_near
from vit.data.folders import list_unlabelled
from vit.errors import InvalidImage, UserError
from vit.explain.regions import region_of
from vit.images.files import tiff
from vit.images.files.decode import decode_image, used_range
from vit.images.preprocess import Preprocess


def read_picture(path: Path, stretch: bool = False) -> Image.Image:
    """Decode a file; warn on stderr if its values use a small part of their range.

    Args:
        stretch: stretch contrast to the full range, see `decode_image`.

    Raises:
        InvalidImage: the file cannot be read or is no picture; the message names it.
    """
    try:
        data = path.read_bytes()
        picture = decode_image(data, stretch=stretch)
        if not stretch and (used := used_range(data)):
            print(f"{path} {used.sentence} --stretch shows it over the whole range.", file=sys.stderr)
        if note := tiff.pages_note(data):
            print(f"{path} {note}", file=sys.stderr)
        return picture
    except OSError as error:
        raise InvalidImage(f"{path} cannot be read: {error.strerror}.") from error
    except InvalidImage as error:
        raise InvalidImage(f"{path}: {error}") from error


def pictures_in(paths: Iterable[Path]) -> dict[Path, str]:
    """Replace folders by all pictures in them and below, each with a name that tells it from the others of its folder.

    Raises:
        InvalidImage: a folder has no pictures.
    """
    pictures: dict[Path, str] = {}
    for path in paths:
        if not path.is_dir():
            pictures[path] = path.stem
            continue
        listed = list_unlabelled(path)
        if not listed.test:
            raise InvalidImage(f"There are no pictures in {path}.")
        for note in listed.notes:
            print(note, file=sys.stderr)
        pictures |= {file: "-".join(file.relative_to(path).with_suffix("").parts) for file, _ in listed.test}
    return pictures


def read_region(options: argparse.Namespace, path: Path, picture: Image.Image, preprocess: Preprocess) -> Tensor | None:
    """Read the mask of a picture with --region, see `vit.explain.regions.region_of`; None without.

    Raises:
        InvalidImage: there is no such mask, it cannot be read, or it does not fit; the message names it.
    """
    if (mask := options.region) is None:
        return None
    if mask.is_dir():
        mask = next((one for one in sorted(mask.iterdir()) if one.stem == path.stem), mask / f"{path.stem}.png")
    region = read_picture(mask, stretch=True)  # a mask of 16 bits may hold 0 and 1
    try:
        return region_of(region, picture, preprocess)
    except InvalidImage as error:
        raise InvalidImage(f"{mask}: {error}") from error


def preprocess_of_size(options: argparse.Namespace, checkpoint: Checkpoint) -> Preprocess:
    """Return the checkpoint's preprocessing, resized if --size is given."""
    if getattr(options, "size", None) is None:
        return checkpoint.preprocess
    if not 1 <= options.size <= 4096:
        raise UserError(f"--size must be 1 to 4096 px, not {options.size}.")
    return resized(checkpoint.preprocess, size_near(checkpoint, options.size))
