"""Datasets of torchvision: reading their files, and downloading them."""

import gzip
import hashlib
import struct
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch

from vit.data.datasets import load_dataset
from vit.data.downloads import TORCHVISION, download, is_downloaded
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess

CPU = torch.device("cpu")


# --- torchvision ----------------------------------------------------------------------------------------------


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    """A folder in torchvision's layout with 6 training and 4 test digits."""
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for split, count in (("train", 6), ("t10k", 4)):
        pixels = np.random.default_rng(count).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, count, 28, 28) + pixels.tobytes())
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, count) + bytes(range(count)))
    return tmp_path


DIGITS = Preprocess((28, 28), mean=(0.0,), std=(1.0,))


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_mnist_is_read_from_torchvisions_files(mnist: Path, budget: int) -> None:
    dataset = load_dataset("mnist", DIGITS, root=mnist, budget=budget, workers=0)
    images, labels = next(dataset.train.batches(torch.arange(6), 6, CPU))
    truth = np.frombuffer((mnist / "MNIST/raw/train-images-idx3-ubyte").read_bytes()[16:], np.uint8)
    assert images.numpy().tobytes() == truth.tobytes()
    assert labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(dataset.test.labels) == 4
    assert len(dataset.classes) == 10


def test_mnist_for_testing_leaves_training_pictures_undecoded(mnist: Path) -> None:
    dataset = load_dataset("mnist", DIGITS, root=mnist, only="test")
    assert [len(split.labels) for split in (dataset.train, dataset.validation, dataset.test)] == [0, 0, 4]


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_part_of_the_training_digits_is_for_validation(mnist: Path, budget: int) -> None:
    pixels = np.random.default_rng(7).integers(0, 256, (60, 28, 28), dtype=np.uint8)
    raw = mnist / "MNIST" / "raw"
    (raw / "train-images-idx3-ubyte").write_bytes(struct.pack(">4i", 0x803, 60, 28, 28) + pixels.tobytes())
    (raw / "train-labels-idx1-ubyte").write_bytes(struct.pack(">2i", 0x801, 60) + bytes(i % 2 for i in range(60)))
    dataset = load_dataset("mnist", DIGITS, root=mnist, budget=budget, workers=0)
    counts = {}
    for name, split in (("train", dataset.train), ("validation", dataset.validation)):
        ((images, labels),) = split.batches(torch.arange(len(split.labels)), 60, CPU)
        counts[name] = [(image.numpy().tobytes(), int(label)) for image, label in zip(images, labels, strict=True)]
    assert (len(counts["train"]), len(counts["validation"])) == (48, 12)  # a fifth of each class
    assert sorted(label for _, label in counts["validation"]) == [0] * 6 + [1] * 6
    assert sorted(counts["train"] + counts["validation"]) == sorted((pixels[i].tobytes(), i % 2) for i in range(60))


def test_at_most_limits_the_digits(mnist: Path) -> None:
    for budget in (0, 1 << 20):
        few = load_dataset("mnist", DIGITS, root=mnist, at_most=3, budget=budget, workers=0)
        everything = load_dataset("mnist", DIGITS, root=mnist)
        assert (len(few.train.labels), len(few.test.labels)) == (3, 3)
        images, labels = next(few.train.batches(torch.arange(3), 3, CPU))
        assert torch.equal(images, everything.train.images[labels])  # type: ignore[attr-defined]  label i is picture i


def test_damaged_torchvision_files_are_reported_in_one_sentence(mnist: Path) -> None:
    (mnist / "MNIST/raw/train-images-idx3-ubyte").write_bytes(b"")
    with pytest.raises(InvalidDataset, match=r"mnist in .* is damaged .* Delete") as caught:
        load_dataset("mnist", DIGITS, root=mnist)
    assert "\n" not in str(caught.value)


# --- Downloads ------------------------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def shop(mnist: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Folder of a server with packed digits; torchvision tries its address after a dead one."""
    from torchvision.datasets import MNIST

    folder = tmp_path / "shop"
    folder.mkdir()
    resources = []
    for file in sorted((mnist / "MNIST/raw").iterdir()):
        packed = folder / f"{file.name}.gz"
        packed.write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        resources.append((packed.name, hashlib.md5(packed.read_bytes()).hexdigest()))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/"
        monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/", address])  # the first port is closed
        monkeypatch.setattr(MNIST, "resources", resources)
        yield folder
        server.shutdown()


def test_download_counts_its_bytes_and_then_loads(shop: Path, tmp_path: Path) -> None:
    root, steps = tmp_path / "new", []
    assert not is_downloaded("mnist", root)
    download("mnist", root, lambda done, total: steps.append((done, total)))
    assert is_downloaded("mnist", root)
    assert steps == sorted(steps) and steps[-1][0] == sum(file.stat().st_size for file in shop.iterdir())
    assert {total for _, total in steps} == {11594722}  # of the real MNIST
    assert len(load_dataset("mnist", DIGITS, root=root).train.labels) == 6


def test_existing_files_are_not_downloaded_again(shop: Path, tmp_path: Path) -> None:
    root = tmp_path / "new"
    download("mnist", root)
    for file in shop.iterdir():
        file.unlink()
    download("mnist", root)


def test_training_downloads_missing_files(shop: Path, tmp_path: Path) -> None:
    assert len(load_dataset("mnist", DIGITS, root=tmp_path / "new").train.labels) == 6


def test_manually_placed_files_need_no_network(shop: Path, tmp_path: Path) -> None:
    raw = tmp_path / "new/MNIST/raw"
    raw.mkdir(parents=True)
    for file in shop.iterdir():
        file.rename(raw / file.name)
    assert len(load_dataset("mnist", DIGITS, root=tmp_path / "new").test.labels) == 4


def test_wrong_file_is_refused_and_deleted(shop: Path, tmp_path: Path) -> None:
    (shop / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(b"something else"))
    with pytest.raises(InvalidDataset, match="did not send it \\(its hash differs"):
        download("mnist", tmp_path / "new")
    left = {path.name for path in (tmp_path / "new/MNIST/raw").iterdir()}
    assert not {"train-images-idx3-ubyte.gz", "train-images-idx3-ubyte"} & left
    assert not any(name.endswith(".partial") for name in left)
    assert not is_downloaded("mnist", tmp_path / "new")


@pytest.mark.parametrize("start", [download, partial(load_dataset, preprocess=DIGITS)])
def test_message_without_a_network_names_the_files_and_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[..., object]
) -> None:
    from torchvision.datasets import MNIST

    monkeypatch.setattr(MNIST, "mirrors", ["http://127.0.0.1:9/"])  # a closed port
    with pytest.raises(InvalidDataset, match=r"could not be downloaded.*folder of class folders") as caught:
        start("mnist", root=tmp_path)
    message = str(caught.value)
    assert "\n" not in message
    assert "train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-images-idx3-ubyte.gz" in message
    assert f"into {tmp_path}/MNIST/raw/" in message


def test_cifars_message_names_its_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(InvalidDataset, match=f"Put cifar-10-python.tar.gz from http://127.0.0.1:9/ into {tmp_path}/,"):
        download("cifar10", tmp_path)


def test_shapes_are_always_available_and_unknown_sets_never(tmp_path: Path) -> None:
    download("shapes", tmp_path)
    assert is_downloaded("shapes", tmp_path)
    assert not any(is_downloaded(name, tmp_path) for name in (*TORCHVISION, "imagenet"))
    with pytest.raises(InvalidDataset, match="no dataset 'imagenet'"):
        download("imagenet", tmp_path)
