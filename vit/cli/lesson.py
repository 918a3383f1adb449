"""The command lesson: export a checkpoint as one HTML file for teaching."""

import argparse

from vit.checkpoints.load import load_checkpoint
from vit.errors import UserError
from vit.lesson.page import lesson


def run_lesson(options: argparse.Namespace) -> None:
    """Write the HTML file."""
    if options.out.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"OUT must end in .html, so that browsers open it; {options.out.name!r} does not.")
    content = lesson(load_checkpoint(options.checkpoint), options.language)
    try:
        options.out.write_bytes(content)
    except OSError as error:
        raise UserError(f"{options.out} cannot be written: {error.strerror}.") from error
    print(f"{options.out}: {len(content) / 1e6:.1f} MB")
