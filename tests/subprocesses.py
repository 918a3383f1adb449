"""Run programs in separate processes, to measure their memory or kill them, without importing torch in each."""

import multiprocessing
import sys
import tempfile
import traceback
from contextlib import redirect_stdout
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

PATIENCE = 300  # timeout [s], for a busy machine


def context() -> ForkServerContext:
    """Return a context that forks from a server which has imported the slow modules and computed nothing."""
    result = multiprocessing.get_context("forkserver")
    result.set_forkserver_preload(["vit.training.loop.train", "vit.view.explanation", "torch.utils.tensorboard"])
    return result


def begin(code: str, *arguments: object, out: Path) -> ForkServerProcess:
    """Start a program with its arguments in sys.argv; its output goes to the file `out`."""
    process = context().Process(target=_run, args=(code, [str(argument) for argument in arguments], out))
    process.start()
    return process


def output_of(code: str, *arguments: object) -> str:
    """Run a program that must succeed, and return its output."""
    with tempfile.TemporaryDirectory() as folder:
        process = begin(code, *arguments, out=Path(folder) / "out")
        process.join(PATIENCE)
        if process.exitcode is None:
            process.kill()
        output = (Path(folder) / "out").read_text()
        assert process.exitcode == 0, f"it ended with {process.exitcode}: {output}"
        return output


def _run(code: str, arguments: list[str], out: Path) -> None:
    sys.argv = ["-c", *arguments]
    with out.open("w") as file, redirect_stdout(file):
        try:
            exec(compile(code, "subprocess", "exec"), {"__name__": "__main__"})
        except Exception:
            traceback.print_exc(file=file)
            raise
