"""Names of empty pictures, for code that reads only names; fixture `write` creates the files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from vit.data.folders import list_files
from vit.errors import InvalidDataset

Write = Callable[[dict[str, str]], Path]


def pictures(*folders: str, count: int = 6) -> dict[str, str]:
    return {f"{folder}{number}.jpg": "" for folder in folders for number in range(count)}


def refusal(folder: Path) -> str:
    """Return the message with which a folder of pictures is refused."""
    with pytest.raises(InvalidDataset) as caught:
        list_files(folder)
    return str(caught.value)
