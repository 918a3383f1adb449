"""Interpret and display names of picture files and folders."""

from os.path import splitext

Parts = tuple[str, ...]  # components of a path: folders and file

PICTURES = {
    ".jpg", ".jpeg", ".jpe", ".jfif", ".mpo", ".png", ".apng", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif",
    ".heic", ".heif",
}  # fmt: skip
OTHER_PICTURES = {".jp2", ".jxl", ".psd", ".svg", ".pbm", ".pgm", ".pnm", ".ppm", ".dcm"}  # unsupported formats
TABLES = {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".txt"}
NOT_READ = {".xml", ".xlsx", ".xls", ".ods", ".mat", ".npy", ".pkl", ".db", ".sqlite"}  # unsupported tables
_OF_SYSTEMS = {"__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"}


def is_ignored(name: str) -> bool:
    """Whether a file or folder is hidden, or was added by an operating system."""
    return name.startswith(".") or name.casefold() in _OF_SYSTEMS


def is_picture(name: str) -> bool:
    """Whether a file name is that of a picture."""
    return splitext(name)[1].lower() in PICTURES and not is_ignored(name)


def is_table(name: str) -> bool:
    """Whether a file name may be that of a table."""
    return splitext(name)[1].lower() in TABLES | NOT_READ and not is_ignored(name) and name.lower() != "thumbs.db"


def printable_name(name: str) -> str:
    """Shorten an untrusted name and escape unprintable characters."""
    ends = name if len(name) <= 80 else name[:40] + "…" + name[-39:]
    escaped = "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in ends)
    return escaped if len(escaped) <= 80 else escaped[:40] + "…" + escaped[-39:]


def printable_path(path: Parts) -> str:
    """Shorten an untrusted path and escape unprintable characters."""
    return printable_name("/".join(path))
