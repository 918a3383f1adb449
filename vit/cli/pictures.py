"""Pictures named on the command line, and the input size of --size."""

import argparse
import sys
from pathlib import Path

from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized, size_near
from vit.errors import InvalidImage, UserError
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


def preprocess_of_size(options: argparse.Namespace, checkpoint: Checkpoint) -> Preprocess:
    """Return the checkpoint's preprocessing, resized if --size is given."""
    if getattr(options, "size", None) is None:
        return checkpoint.preprocess
    if not 1 <= options.size <= 4096:
        raise UserError(f"--size must be 1 to 4096 px, not {options.size}.")
    return resized(checkpoint.preprocess, size_near(checkpoint, options.size))
