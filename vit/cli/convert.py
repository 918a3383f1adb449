"""The command convert: a checkpoint for another library."""

import argparse
import sys

from vit.checkpoints.convert import convert, how_to_open
from vit.checkpoints.load import load_checkpoint


def run_convert(options: argparse.Namespace) -> None:
    """Give a checkpoint to another library."""
    checkpoint = load_checkpoint(options.source, options.heads)
    path = convert(checkpoint, options.destination, options.to)
    print(path)
    for field, why in checkpoint.assumed.items():
        print(f"Assumed: {field}: {why}", file=sys.stderr)
    for line in how_to_open(checkpoint, path, options.to):
        print(f"    {line}")
