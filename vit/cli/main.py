"""The command line: `python -m vit COMMAND`, where COMMAND is one of `COMMANDS`.

Exit status: 0 success, 1 a bug (with traceback), 2 a user error (with a one-line message).
"""

import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from vit.cli.parser import COMMANDS, parser
from vit.errors import UserError
from vit.out_of_memory import describe_failure, is_out_of_memory

OUT_OF_MEMORY = "Choose a smaller input, batch or model, or close other programs."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    options = parser().parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    try:
        module = import_module(f"vit.cli.{COMMANDS[options.command].module}")
        # runs opens no pictures, so it does not wait for the imaging libraries.
        if options.command != "runs":
            import_module("vit.images.files.decode").silence_libraries()
        getattr(module, f"run_{options.command}")(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit cannot fail
        return 141  # 128 + SIGPIPE, as shells report it
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print(describe_failure(error, f"vit {options.command}", OUT_OF_MEMORY), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(str(interrupt) or "Stopped.", file=sys.stderr)
        return 130
    return 0
