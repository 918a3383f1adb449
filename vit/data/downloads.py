"""Download named datasets from torchvision's URLs, with progress and checksums."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from vit.errors import InvalidDataset
from vit.files import wait_for_lock
from vit.web_files import download_file, has_hash

TORCHVISION = {
    "cifar10": "CIFAR10",
    "cifar100": "CIFAR100",
    "mnist": "MNIST",
    "fashion-mnist": "FashionMNIST",
}
NAMES = (*TORCHVISION, "shapes", "folder:PATH")  # of all datasets
# Total size of the downloads [bytes], for progress only; checksums verify the files.
_DOWNLOAD_BYTES = {"cifar10": 170498071, "cifar100": 169001437, "mnist": 11594722, "fashion-mnist": 30878645}


def is_downloaded(name: str, root: Path = Path("data")) -> bool:
    """Whether a named dataset is in `root`; its files are verified when they are read.

    >>> is_downloaded("shapes")
    True
    """
    if name not in TORCHVISION:
        return name == "shapes"
    source = torchvision_class(name)
    if hasattr(source, "mirrors"):
        files = [file.removesuffix(".gz") for file, _ in source.resources]
    else:
        files = [file for file, _ in (*source.train_list, *source.test_list)] + [source.meta["filename"]]
    return all((unpacked_folder(name, root) / file).is_file() for file in files)


def download(name: str, root: Path = Path("data"), progress: Callable[[int, int], object] | None = None) -> None:
    """Download a named dataset into `root`; existing files are kept.

    Args:
        name: one of `TORCHVISION`, or "shapes", which needs no download.
        root: where torchvision looks for its files.
        progress: called with the bytes downloaded and the total bytes.

    Raises:
        InvalidDataset: unknown name, or no network; the message says which files to put where.
    """
    if is_downloaded(name, root):
        return
    if name not in TORCHVISION:
        raise InvalidDataset(f"There is no dataset {name!r}. Choose from: {', '.join(NAMES)}.")
    source = torchvision_class(name)
    if hasattr(source, "mirrors"):
        folder = unpacked_folder(name, root)
        downloads = [(file, md5, [mirror + file for mirror in source.mirrors]) for file, md5 in source.resources]
    else:
        folder, downloads = root, [(source.filename, source.tgz_md5, [source.url])]

    def report(done: int) -> None:
        if progress:
            progress(done, max(done, _DOWNLOAD_BYTES[name]))

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".download.lock").open("w") as lock:
            wait_for_lock(lock.fileno())  # two runs that start together download it only once
            if is_downloaded(name, root):
                return
            done = 0
            for file, md5, urls in downloads:
                if not has_hash(folder / file, "md5", md5):
                    download_file(urls, folder / file, "md5", md5, lambda count, _, before=done: report(before + count))  # type: ignore[misc]
                done += (folder / file).stat().st_size
                report(done)
            source(root, download=True)  # unpacks the downloaded files
    except (OSError, RuntimeError, ValueError, EOFError) as error:
        reason = str(error).strip().partition("\n")[0].strip("<>") or type(error).__name__
        files, address = ", ".join(file for file, *_ in downloads), downloads[0][2][0].rpartition("/")[0]
        raise InvalidDataset(
            f"{name} is not in {root}/ and could not be downloaded ({reason}). Put {files} from {address}/ "
            f"into {folder}/, or use a folder of class folders.",
            whole=True,
        ) from error


def torchvision_class(name: str) -> Any:
    """Return torchvision's class for a dataset."""
    from torchvision import datasets  # noqa: PLC0415 # imports torch's compiler: 2 s

    return getattr(datasets, TORCHVISION[name])


def unpacked_folder(name: str, root: Path) -> Path:
    """Return the folder where torchvision expects the unpacked files."""
    source = torchvision_class(name)
    return root / source.__name__ / "raw" if hasattr(source, "mirrors") else root / source.base_folder
