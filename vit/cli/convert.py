"""The command convert: export a checkpoint for another library."""

import argparse
import sys

from vit.checkpoints.convert import convert, how_to_open
from vit.checkpoints.load import load_checkpoint


def run_convert(options: argparse.Namespace) -> None:
    """Convert a checkpoint and print how to load it."""
    checkpoint = load_checkpoint(options.source, options.heads)
    path = convert(checkpoint, options.destination, options.to)
    print(path)
    for field, why in checkpoint.assumed.items():
        print(f"Assumed: {field}: {why}", file=sys.stderr)
    for line in how_to_open(checkpoint, path, options.to):
        print(f"    {line}")
