"""Words for the end of memory: for an allocation that failed, and for a process that the system ended."""

import re
import signal
from contextlib import suppress
from pathlib import Path

from vit.devices import memory

# What torch's allocators, its libraries and C++ say; they raise RuntimeError for it.
_SAYS = re.compile(r"out of memory|can't allocate memory|not enough memory|bad_alloc|Cannot allocate memory")
# What cuBLAS and cuDNN say, which allocate handles and workspaces by themselves; the second, without room for a handle.
_LIBRARIES = re.compile(r"CUBLAS_STATUS_(ALLOC_FAILED|NOT_INITIALIZED)|CUDNN_STATUS_\w*ALLOC\w*FAILED")
_WANTED = re.compile(r"(?:tried to allocate|Tried to allocate|Unable to allocate) ([\d.]+) ?(bytes|[KMGT]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be had, on a GPU or on the CPU."""
    if isinstance(error, MemoryError) or _on_gpu(error):
        return True
    return isinstance(error, RuntimeError | OSError) and bool(_SAYS.search(str(error)))


def explained(error: BaseException, what: str, help_: str, needed: int = 0) -> str:
    """A sentence for an allocation that failed: how much was needed, how much is free, what helps.

    Args:
        what: needed it.
        needed: in all [bytes]; 0 where only the error knows, of its last piece.

    >>> class OutOfMemoryError(RuntimeError): ...  # as torch's is called
    >>> text = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 10 GiB."
    >>> explained(OutOfMemoryError(text), "A step", "Lower batch_size.")
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
    """Whether it is an error of an accelerator; this module waits for no torch."""
    says = "CUDA error: out of memory" in str(error) or bool(_LIBRARIES.search(str(error)))
    return type(error).__name__ == "OutOfMemoryError" or (isinstance(error, RuntimeError) and says)


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def kills() -> int:
    """Processes that the system has ended for want of memory since it started; 0 where it does not say."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/vmstat").read_text().split("oom_kill ")[1].split()[0])
    return 0


def ended(code: int, kills_before: int) -> str:
    """Who ended a process with this exit status, in words without a full stop; "" where it ended by itself.

    Args:
        code: negative for a signal, as `subprocess` has it.
        kills_before: `kills()` when the process began.
    """
    if code != -signal.SIGKILL:
        return ""
    if kills() > kills_before:
        return "The system ended it: out of memory"
    return "It was killed, most often by the system: out of memory"


def die_first(process: int) -> None:
    """Let the system end this process before all others, above all its parent, where memory runs out."""
    with suppress(OSError):  # not Linux, or it has ended
        Path(f"/proc/{process}/oom_score_adj").write_text("1000")
