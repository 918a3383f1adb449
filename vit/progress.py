"""Progress bars on the terminal: tqdm if it is installed, else a silent stand-in. Training does not require tqdm."""

import sys
from collections.abc import Callable, Iterable, Iterator
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
                self.iterable, self.n, self.disable, self.total = iterable, initial, True, None

            def __iter__(self) -> Iterator[Any]:
                return iter(self.iterable)

            def __enter__(self) -> "tqdm":
                return self

            def __exit__(self, *error: object) -> None:
                pass

            def update(self, count: float = 1) -> None:
                """Advance the counter."""
                self.n += count

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


def pictures_bar(visible: bool) -> Callable[[int, int], None]:
    """Return a function that shows the number of pictures done, and in total, in a progress bar."""
    bar: Any = None

    def progress(done: int, total: int) -> None:  # created at the first call, when the bar for loading data is gone
        nonlocal bar
        if bar is None:
            # Page Runs reads the bar of an error report from its log.
            pause = 0.1 if sys.stderr.isatty() else 0.5  # [s]
            bar = tqdm(total=total, unit="pictures", leave=False, mininterval=pause, disable=not visible)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return progress


__all__ = ["pictures_bar", "progress_bar", "tqdm"]
