"""A progress bar on the terminal: tqdm's where it is installed, else silence, so that a bare machine trains too."""

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
            """What the project uses of tqdm, without a bar."""

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
                """Count on."""
                self.n += count

            def reset(self, total: float | None = None) -> None:
                """Begin again."""
                self.n, self.total = 0, total

            def set_postfix_str(self, *_: object) -> None:
                """Say nothing."""

            def set_postfix(self, *_: object, **__: object) -> None:
                """Say nothing."""

            def close(self) -> None:
                """There is nothing to put away."""

            @staticmethod
            def write(text: str, file: Any = None) -> None:
                """Print a line."""
                print(text, file=file)

            @staticmethod
            def format_interval(seconds: float) -> str:
                """Minutes and seconds, after hours where there are any.

                >>> tqdm.format_interval(3725)
                '1:02:05'
                """
                minutes, rest = divmod(int(seconds), 60)
                hours, minutes = divmod(minutes, 60)
                return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"


def progress_bar(*things: Any, **facts: Any) -> Any:
    """A bar on a terminal; in a log, a line every ten seconds."""
    return tqdm(*things, **facts, mininterval=0.1 if sys.stderr.isatty() else 10)


__all__ = ["progress_bar", "tqdm"]
