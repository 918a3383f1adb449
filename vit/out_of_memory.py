"""Detect and describe out-of-memory errors: failed allocations, and processes killed by the system."""

import re
import signal
from contextlib import suppress
from pathlib import Path

from vit.devices import memory

# Messages of torch's allocators, its libraries and C++, which raise RuntimeError.
_ALLOCATOR_MESSAGES = re.compile(
    r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory"
)
# Messages of cuBLAS and cuDNN, which allocate handles and workspaces themselves; NOT_INITIALIZED when a handle fails.
_LIBRARY_MESSAGES = re.compile(r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_\w*ALLOC\w*FAILED")
_WANTED = re.compile(r"(?:tried to allocate|Tried to allocate|Unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports a failed allocation, on a GPU or on the CPU."""
    if isinstance(error, MemoryError) or _on_gpu(error):
        return True
    return isinstance(error, RuntimeError | OSError) and bool(_ALLOCATOR_MESSAGES.search(str(error)))


def describe_failure(error: BaseException, what: str, help_: str, needed: int = 0) -> str:
    """Describe a failed allocation: the memory needed, the memory free, and what helps.

    Args:
        what: subject of the sentence, the computation that failed.
        help_: sentence that says what to do.
        needed: total memory needed [bytes]; 0 to report the failed allocation of the error message.

    >>> class OutOfMemoryError(RuntimeError): ...  # the name of torch's error
    >>> text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10 GiB."
    >>> describe_failure(OutOfMemoryError(text), "A step", "Lower batch_size.")
    'A step ran out of GPU memory: it needed another 2.1 GB. Lower batch_size.'
    """
    on_gpu = _on_gpu(error)
    if needed:
        words = f": it needs about {_size(needed)}"
    else:
        piece = _WANTED.search(str(error))
        words = f": it needed another {_size(float(piece[1]) * _UNITS[piece[2]])}" if piece else ""
    _, free = (0, 0) if on_gpu else memory()
    words += f"{' and' if words else ':'} {_size(free)} are free" if free else ""
    return f"{what} ran out of {'GPU ' if on_gpu else ''}memory{words}. {help_}"


def _on_gpu(error: BaseException) -> bool:
    """Whether the error comes from an accelerator. Compares class names, to avoid importing torch."""
    matches = "CUDA error: out of memory" in str(error) or bool(_LIBRARY_MESSAGES.search(str(error)))
    return type(error).__name__ == "OutOfMemoryError" or (isinstance(error, RuntimeError) and matches)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def kills() -> int:
    """Return how many processes the system's OOM killer has killed since boot; 0 if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/vmstat").read_text().split("oom_kill ")[1].split()[0])
    return 0


def describe_exit(code: int, kills_before: int) -> str:
    """Describe why a process was killed, without a full stop; "" if it was not killed.

    Args:
        code: exit status, negative for a signal as in `subprocess`.
        kills_before: `kills()` at the start of the process.
    """
    if code != -signal.SIGKILL:
        return ""
    if kills() > kills_before:
        return "The system ended it: out of memory"
    return "It was killed, most often by the system: out of memory"


def prefer_for_oom_kill(process: int) -> None:
    """Make this process the first candidate of the OOM killer, so that its parent survives."""
    with suppress(OSError):  # not Linux, or the process has ended
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")  # the maximum, see proc(5)
