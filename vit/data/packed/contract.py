"""What a reader of files with many pictures receives and yields."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vit.data.archives.archive_readers import Budget
from vit.data.layouts.split_names import Kind
from vit.progress import tqdm

MOST_BYTES = 1 << 28  # of one picture [bytes]


class Picture(NamedTuple):
    """One picture of a file.

    Attributes:
        content: offset and length in the file [bytes]; or the encoded picture, which is then copied beside the index.
        label: number or name of its class, as stored; or a `vit.data.packed.labels.NoLabel`.
        split: None if the file's name decides.
        name: in the file, for people.
    """

    file: Path
    content: tuple[int, int] | bytes
    label: object
    split: Kind | None = None
    name: str = ""


@dataclass
class Files:
    """Files of one format, and what their reader finds out beside the pictures.

    Attributes:
        splits: of each file by its name; None if it states none.
        budget: limits what a reader unpacks.
        notes: assumptions, for people; readers add to them.
        classes: names of numbered labels, if a reader finds them.
    """

    paths: Sequence[Path]
    splits: Sequence[Kind | None]
    budget: Budget
    bar: bool = False
    notes: list[str] = field(default_factory=list)
    classes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Path]:
        """Yield the paths, with a progress bar."""
        return iter(tqdm(self.paths, desc="indexing pictures", unit="files", disable=not self.bar))
