"""Parquet files as on the Hugging Face Hub: columns `image` (with `bytes`) or `img`, and `label` or `fine_label`.

Pictures in them are compressed together, so they are copied. Source: features `Image` and `ClassLabel` of Hugging
Face's `datasets` 4.
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from vit.data.packed.contract import MOST_BYTES, Files, Picture
from vit.errors import InvalidDataset, UserError
from vit.untrusted import brief, brief_list, parse_json, spend

SUFFIXES = (".parquet",)
_BATCH_BYTES, _MOST_ROWS = 1 << 26, 200  # limits on a batch of rows
_ROWS_FLOOR = 100_000  # rows of a file in addition to one per byte; runs of equal values take hardly any bytes


def read(files: Files) -> Iterator[Picture]:
    """Yield the pictures of all rows.

    Raises:
        InvalidDataset: a file is damaged, its columns are not those of pictures, or pyarrow is missing.
    """
    for path in files:
        try:
            yield from _rows(path, files)
        except UserError:
            raise
        except Exception as error:  # Arrow's own kinds, and of Python those of values that it cannot hold
            if isinstance(error, OSError) and error.errno is not None:  # a disk error; Arrow's have no errno
                raise
            reason = brief(str(error).partition("\n")[0])
            raise InvalidDataset(f"{brief(path.name)} is a damaged parquet file: {reason}. Copy it again.") from error


def _rows(path: Path, files: Files) -> Iterator[Picture]:
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 # an optional dependency
    except ModuleNotFoundError as error:
        raise InvalidDataset(
            "Parquet files are read by pyarrow, which is not installed: pip install pyarrow"
        ) from error
    table = pq.ParquetFile(path)
    columns = table.schema_arrow.names
    image = next((name for name in ("image", "img") if name in columns), None)
    label = next((name for name in ("label", "fine_label", "labels") if name in columns), None)
    if image is None or label is None:
        names = brief_list(map(brief, columns))
        raise InvalidDataset(f"{brief(path.name)} has the columns {names}; image and label are needed.")
    most = _ROWS_FLOOR + path.stat().st_size
    if table.metadata.num_rows > most:
        raise InvalidDataset(f"{brief(path.name)} declares more rows than its size can hold. Copy it again.")
    rows = count()
    for batch in _batches(table, image, label, most):
        for picture, value, row in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), rows, strict=False):
            content, name = (picture.get(key) if isinstance(picture, dict) else picture for key in ("bytes", "path"))
            own = name if isinstance(name, str) and name else f"row {row}"
            yield Picture(path, content if isinstance(content, bytes) else b"", value, name=own)
    classes = _names_in(table.schema_arrow.metadata or {}, label)
    if files.classes and classes and classes != files.classes:
        raise InvalidDataset(
            f"{brief(path.name)} numbers its classes differently from the files before it. Write all files with the "
            "same ClassLabel."
        )
    files.classes = files.classes or classes


def _batches(table: Any, image: str, label: str, most: int) -> Iterator[Any]:
    """Read rows of a parquet file in batches that fit into `_BATCH_BYTES`, of at least one row.

    A dictionary stores a value once for all its rows, so a kilobyte can expand to gigabytes. No value is larger than
    its uncompressed column chunk, and without a dictionary neither are all values together.
    """
    for group in range(table.num_row_groups):
        spend()
        part = table.metadata.row_group(group)
        columns = [part.column(number) for number in range(part.num_columns)]
        size = 1
        for column in columns:
            if column.path_in_schema.partition(".")[0] not in (image, label):
                continue
            texts, more = column.physical_type == "BYTE_ARRAY", column.num_values - part.num_rows
            if column.num_values > most or (texts and more > 0 and more * column.total_uncompressed_size > MOST_BYTES):
                raise InvalidDataset("A column has long lists in its rows. Write one picture and one label per row.")
            if texts:
                shared = any("DICTIONARY" in encoding for encoding in column.encodings)
                size += column.total_uncompressed_size // (1 if shared else max(part.num_rows, 1))
        rows = min(max(_BATCH_BYTES // size, 1), _MOST_ROWS)
        yield from table.iter_batches(rows, row_groups=[group], columns=[image, label])


def _names_in(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """Read class names from the metadata that the Hub's `datasets` library writes."""
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (KeyError, TypeError, ValueError):
        return ()
