"""Progress bars on the terminal: tqdm if it is installed, else a silent stand-in. Training does not require tqdm."""

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tqdm import tqdm
else:
    try:
        from tqdm import tqdm
    except ModuleNotFoundError:

        class tqdm:
            """The part of tqdm's interface that the project uses, without a bar."""

            def __init__(self, iterable: Iterable[Any] = (), *, initial: float = 0, **_: Any):
                self.iterable, self.n, self.disable = iterable, initial, True
                self.initial, self.total = initial, None

            def __iter__(self) -> Iterator[Any]:
                return iter(self.iterable)

            def __enter__(self) -> "tqdm":
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def update(self, count: float = 1) -> None:
                """Advance the counter."""
                self.n += count

            def reset(self, total: float | None = None) -> None:
                """Reset the counter."""
                self.n, self.total = 0, total

            def set_postfix_str(self, *_: object) -> None:
                """Do nothing."""

            def set_postfix(self, *_: object, **__: object) -> None:
                """Do nothing."""

            def close(self) -> None:
                """Do nothing."""

            @staticmethod
            def write(text: str, file: Any = None) -> None:
                """Print a line."""
                print(text, file=file)

            @staticmethod
            def format_interval(seconds: float) -> str:
                """Format a duration as minutes and seconds, with hours if there are any.

                >>> tqdm.format_interval(3725)
                '1:02:05'
                """
                minutes, rest = divmod(int(seconds), 60)
                hours, minutes = divmod(minutes, 60)
                return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def progress_bar(*things: Any, **facts: Any) -> Any:
    """Return a progress bar that refreshes every 0.1 s on a terminal, and every 10 s if stderr is a log file."""
    return tqdm(*things, **facts, mininterval=0.1 if sys.stderr.isatty() else 10)


__all__ = ["progress_bar", "tqdm"]
