"""Read ZIP and NPZ files that this program wrote, and that anybody may have damaged or replaced since."""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vit.errors import UserError
from vit.untrusted import Unreadable, open_file


def read_member(path: Path, name: str, most: int) -> bytes:
    """Return one member of a ZIP file.

    Args:
        most: of its content [bytes].

    Raises:
        FileNotFoundError: the file does not exist.
        Unreadable: it is damaged or no ZIP file, has no such member, or the member is larger.
    """
    with _opened(path) as archive:
        if archive.getinfo(name).file_size > most:
            raise ValueError("more than this program writes")
        return archive.read(name)


def read_arrays(path: Path, most: int) -> dict[str, NDArray[Any]]:
    """Return the arrays of an NPZ file by name. The ZIP format's checksums are verified.

    Args:
        most: of all arrays together [bytes].

    Raises:
        FileNotFoundError: the file does not exist.
        Unreadable: it is damaged or no NPZ file, holds objects, or the arrays are larger.
    """
    arrays = {}
    with _opened(path) as archive:
        if sum(member.file_size for member in archive.infolist()) > most:
            raise ValueError("more than this program writes")
        for member in archive.infolist():
            with archive.open(member) as content:
                array = np.lib.format.read_array(content, allow_pickle=False)
                # The checksum is compared at the end. Elements without bytes would make any shape fit into a few bytes.
                if content.read(1) or (array.size and not array.itemsize):
                    raise ValueError("not an array that this program writes")
            arrays[member.filename.removesuffix(".npy")] = array
    return arrays


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    """Open a ZIP file. The parsers of `zipfile` and NumPy may raise anything on damaged bytes."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            yield archive
    except (FileNotFoundError, UserError):
        raise
    except Exception as error:
        raise Unreadable(f"{path.name} cannot be read: it is damaged, or of another version.") from error
