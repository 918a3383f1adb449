"""Names of empty pictures, for code that reads only names; fixture `write` creates the files."""

from collections.abc import Callable
from pathlib import Path

Write = Callable[[dict[str, str]], Path]


def pictures(*folders: str, count: int = 6) -> dict[str, str]:
    return {f"{folder}{number}.jpg": "" for folder in folders for number in range(count)}
