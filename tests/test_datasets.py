"""Datasets: reading folders, splitting, and refusals in one sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data import datasets
from vit.data.datasets import Dataset, Split, load_dataset
from vit.data.folders import list_files
from vit.data.pictures import InMemoryPictures, StreamedPictures
from vit.data.splits import interleave_classes
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess

CPU = torch.device("cpu")
INPUT = Preprocess((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3)
GREY = Preprocess((8, 8), mean=(0.0,), std=(1.0,))

Fill = Callable[..., Path]


@pytest.fixture
def fill_folder(tmp_path: Path) -> Fill:
    """Return `fill_folder(sub, count)`, which writes `count` different 8 px pictures to a folder below tmp_path."""

    def fill(sub: str, count: int = 1, mode: str = "RGB") -> Path:
        folder = tmp_path / sub
        folder.mkdir(parents=True, exist_ok=True)
        for i in range(count):
            noise = np.random.default_rng([i, *sub.encode()]).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(noise).convert(mode).save(folder / f"{i:02}.png")
        return tmp_path

    return fill


def load(root: Path, preprocess: Preprocess = INPUT, **options: object) -> Dataset:
    return load_dataset(f"folder:{root}", preprocess, **options)  # type: ignore[arg-type]


def refusal(root: Path, **options: object) -> str:
    with pytest.raises(InvalidDataset) as caught:
        load(root, **options)
    return str(caught.value)


@pytest.mark.parametrize("test", ["test", "val", "valid", "validation"])
def test_folder_with_both_splits_keeps_them(fill_folder: Fill, test: str) -> None:
    for name, count in (("train/bus", 3), ("train/car", 2), (f"{test}/car", 1)):
        root = fill_folder(name, count)
    dataset = load(root)
    assert dataset.classes == ("bus", "car")
    assert dataset.train.labels.tolist() == [0, 0, 1]
    assert dataset.validation.labels.tolist() == [0, 1]
    assert dataset.test.labels.tolist() == [1]


@pytest.mark.parametrize("validation", ["val", "valid", "validation"])
def test_folder_with_three_splits_keeps_them(fill_folder: Fill, validation: str) -> None:
    for split, count in (("train", 3), (validation, 2), ("test", 1)):
        fill_folder(f"{split}/bus", count)
        root = fill_folder(f"{split}/car", count)
    dataset = load(root)
    for split, count in ((dataset.train, 3), (dataset.validation, 2), (dataset.test, 1)):
        assert split.labels.tolist() == [0] * count + [1] * count
    images, _ = next(dataset.validation.batches(torch.tensor([0]), 1, CPU))
    first = np.array(Image.open(root / validation / "bus" / "00.png"))
    assert (images[0].permute(1, 2, 0).numpy() == first).all()
    fill_folder(f"{validation}/tram", 1)
    assert "tram" in refusal(root)


@pytest.mark.parametrize(("pictures", "aside"), [(4, 1), (20, 4), (50, 10), (100, 10), (400, 20)])
def test_validation_is_a_twentieth_of_a_class_and_at_least_ten_pictures_of_a_large_one(
    tmp_path: Path, pictures: int, aside: int
) -> None:
    for name in ("train/bus", "train/car", "test/bus"):
        (tmp_path / name).mkdir(parents=True)
        for i in range(pictures):  # only names are read
            (tmp_path / name / f"{i:03}.png").touch()
    result = list_files(tmp_path)
    assert [label for _, label in result.validation] == [0] * aside + [1] * aside
    assert len(result.train) == 2 * (pictures - aside) and len(result.test) == pictures
    assert not {file for file, _ in result.train} & {file for file, _ in result.validation}
    assert list_files(tmp_path) == result


def test_pixels_are_unchanged_at_the_input_size(fill_folder: Fill) -> None:
    fill_folder("bus", 2)
    root = fill_folder("car", 2)
    images, labels = next(load(root).train.batches(torch.tensor([0]), 1, CPU))
    test_images, _ = next(load(root).test.batches(torch.tensor([0]), 1, CPU))
    truth = {np.array(Image.open(path)).tobytes() for path in (root / "bus").iterdir()}
    assert {i[0].permute(1, 2, 0).numpy().tobytes() for i in (images, test_images)} == truth
    assert labels.tolist() == [0]


def test_plain_folder_gives_a_tenth_of_each_class_to_testing_and_a_part_to_validation(fill_folder: Fill) -> None:
    fill_folder("bus", 30)
    root = fill_folder("car", 10)
    dataset = load(root)
    assert torch.bincount(dataset.train.labels).tolist() == [22, 8]
    assert torch.bincount(dataset.validation.labels).tolist() == [5, 1]
    assert torch.bincount(dataset.test.labels).tolist() == [3, 1]


def test_split_is_deterministic_and_disjoint(fill_folder: Fill) -> None:
    fill_folder("bus", 20)
    root = fill_folder("car", 20)

    def parts() -> list[list[bytes]]:
        dataset = load(root)
        splits = (dataset.train, dataset.validation, dataset.test)
        return [[i.numpy().tobytes() for i in split.images] for split in splits]  # type: ignore[attr-defined]

    first = parts()
    assert len({picture for split in first for picture in split}) == sum(map(len, first)) == 40
    assert first == parts()


def test_last_picture_of_a_class_is_for_training(fill_folder: Fill) -> None:
    fill_folder("bus", 1)
    dataset = load(fill_folder("car", 2))
    assert dataset.train.labels.tolist() == [0, 1]
    assert dataset.test.labels.tolist() == [1]


def test_one_picture_per_class_is_refused(fill_folder: Fill) -> None:
    fill_folder("bus", 1)
    assert "none to test on" in refusal(fill_folder("car", 1))


def test_unreadable_files_are_left_out_and_named(fill_folder: Fill, caplog: pytest.LogCaptureFixture) -> None:
    fill_folder("train/bus", 2)
    fill_folder("train/car", 2)
    root = fill_folder("test/car", 1)
    (root / "train/bus/broken.png").write_bytes(b"no picture")
    dataset = load(root)
    assert len(dataset.train.labels) + len(dataset.validation.labels) == 4
    assert len(dataset.skipped) == 1
    assert "broken.png" in dataset.skipped[0] and "broken.png" in caplog.text


def test_folder_without_readable_pictures_is_refused(tmp_path: Path) -> None:
    for name in ("bus", "car"):
        (tmp_path / name).mkdir()
        for i in range(2):
            (tmp_path / name / f"{i}.jpg").write_bytes(b"")
    assert "could be read" in refusal(tmp_path)


def test_other_files_and_hidden_folders_are_ignored(fill_folder: Fill) -> None:
    for name in ("bus", "car", ".thumbnails"):
        root = fill_folder(name, 4)
    (root / "bus/notes.txt").write_text("hello")
    (root / "bus/._00.png").write_bytes(b"resource fork")
    (root / "empty").mkdir()
    dataset = load(root)
    assert dataset.classes == ("bus", "car")
    assert dataset.skipped == ()


def test_grey_pictures_become_colour_for_a_colour_model(fill_folder: Fill) -> None:
    fill_folder("bus", 2, mode="L")
    root = fill_folder("car", 2, mode="L")
    images, _ = next(load(root).train.batches(torch.arange(2), 2, CPU))
    assert images.shape == (2, 3, 8, 8)
    assert torch.equal(images[:, 0], images[:, 2])


def test_colour_pictures_become_grey_for_a_grey_model(fill_folder: Fill) -> None:
    fill_folder("bus", 2)
    root = fill_folder("car", 2)
    images, _ = next(load(root, GREY).train.batches(torch.arange(2), 2, CPU))
    assert images.shape == (2, 1, 8, 8)


@pytest.mark.parametrize("workers", [0, 2])
def test_streamed_pictures_equal_resident_ones(fill_folder: Fill, workers: int) -> None:
    fill_folder("bus", 8)
    root = fill_folder("car", 8)
    order = torch.tensor([5, 0, 10, 2, 7])
    batches = [load(root, budget=b, workers=workers).train.batches(order, 2, CPU) for b in (0, 1 << 20)]
    for streamed, resident in zip(*batches, strict=True):
        assert torch.equal(streamed[0], resident[0])
        assert torch.equal(streamed[1], resident[1])


@pytest.mark.parametrize("workers", [0, 2])
def test_decoding_rate_follows_from_the_time_per_picture(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("vit.data.pictures.clock", lambda: now[0])

    def open_in_20_ms(_: int) -> Image.Image:
        now[0] += 0.02
        return Image.new("RGB", (8, 8))

    pictures = StreamedPictures(open_in_20_ms, torch.zeros(8, dtype=torch.int64), Preprocess((8, 8)), workers)
    assert pictures.decoded_per_second() is None
    list(pictures.batches(torch.arange(8), 4, CPU))
    assert pictures.decoded_per_second() == pytest.approx(max(workers, 1) / 0.02)
    assert pictures.decoded_per_second() is None
    pictures.close()


@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_pictures_beyond_the_limit_are_not_opened(fill_folder: Fill, budget: int) -> None:
    for name in ("train/bus", "train/car", "test/car"):
        root = fill_folder(name, 12)
    expected = load(root, budget=0, workers=0, limit=5)
    images, labels = next(expected.train.batches(torch.arange(5), 5, CPU))
    assert len(expected.train.labels) == 5 and len(expected.test.labels) == 12
    for file, _ in list_files(root).train:
        with Image.open(file) as picture:
            pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)
        if not any(torch.equal(pixels, image) for image in images):
            file.write_bytes(b"no picture")
    result = load(root, budget=budget, workers=0, limit=5)
    assert not result.skipped and torch.equal(result.train.labels, labels)
    assert torch.equal(next(result.train.batches(torch.arange(5), 5, CPU))[0], images)


def test_limit_decides_whether_pictures_fit_into_memory(fill_folder: Fill) -> None:
    fill_folder("bus", 20)
    root, sixteen = fill_folder("car", 20), 16 * 8 * 8 * 3  # [bytes]; five of each class are held out
    assert isinstance(load(root, budget=sixteen).train, StreamedPictures)
    assert isinstance(load(root, budget=sixteen, limit=6).train, InMemoryPictures)
    assert isinstance(load(root, budget=sixteen, limit=7).train, StreamedPictures)


def damage_every_fourth(root: Path) -> None:
    for number, path in enumerate(sorted(root.rglob("*.png"))):
        if number % 4 == 0:
            path.write_bytes(path.read_bytes()[:-90] if number % 8 else b"no picture")


@pytest.fixture
def four_folders(fill_folder: Fill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """30 pictures of each class and split; the cache of checks is not shared with other tests."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    for name in ("train/bus", "train/car", "test/bus", "test/car"):
        fill_folder(f"data/{name}", 30)
    return tmp_path / "data"


@pytest.mark.parametrize("times", [1, 2], ids=["checked", "by the result of before"])
def test_unreadable_pictures_are_left_out_alike_in_memory_and_streamed(
    four_folders: Path, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    damage_every_fourth(four_folders)
    held = load(four_folders, budget=1 << 30)
    said = [record.getMessage() for record in caplog.records]
    assert len(held.skipped) == len(said) == 30
    for _ in range(times):
        caplog.clear()
        streamed = load(four_folders, budget=0, workers=0)
    assert streamed.skipped == held.skipped and [record.getMessage() for record in caplog.records] == said
    for name in ("train", "validation", "test"):
        one, other = getattr(held, name), getattr(streamed, name)
        assert isinstance(one, InMemoryPictures) and isinstance(other, StreamedPictures)
        assert torch.equal(one.labels, other.labels)
        images = torch.cat([images for images, _ in other.batches(torch.arange(len(other.labels)), 7, CPU)])
        assert torch.equal(images, one.images)


def test_pictures_are_checked_once_and_again_after_a_change(
    four_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, real = list[int](), datasets.decode_image
    monkeypatch.setattr(datasets, "decode_image", lambda data, **how: opened.append(1) or real(data, **how))
    for _ in range(2):
        load(four_folders, budget=0, workers=0)
        assert len(opened) == 120
    damaged = next((four_folders / "test" / "car").iterdir())
    damaged.write_bytes(b"no picture")
    assert str(damaged) in load(four_folders, budget=0, workers=0).skipped[0]
    assert len(opened) == 120 + 60  # those of its split


@pytest.mark.parametrize("workers", [0, 1])
def test_picture_deleted_after_the_check_is_reported_in_one_sentence(four_folders: Path, workers: int) -> None:
    test = load(four_folders, budget=0, workers=workers).test
    (four_folders / "test" / "car" / "01.png").write_bytes(b"no picture")
    with pytest.raises(InvalidDataset, match=r"can no longer be read: [^\n]*01\.png: [^\n]* Put it back") as found:
        list(test.batches(torch.arange(60), 4, CPU))
    assert "Traceback" not in str(found.value)
    test.close()


def test_relabelled_pictures_keep_their_pixels(fill_folder: Fill) -> None:
    fill_folder("bus", 2)
    dataset = load(fill_folder("car", 2))
    for split in (dataset.train, load(fill_folder("car", 2), budget=0, workers=0).train):
        images, labels = next(split.relabelled(torch.tensor([7, 4])).batches(torch.arange(2), 2, CPU))
        assert labels.tolist() == [7, 4]
        assert torch.equal(images, next(dataset.train.batches(torch.arange(2), 2, CPU))[0])


def test_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    assert "nowhere" in refusal(tmp_path / "nowhere")


def test_fewer_than_two_classes_are_refused(fill_folder: Fill) -> None:
    assert "at least two" in refusal(fill_folder("bus", 3))


def test_train_without_test_is_split_like_any_folder(fill_folder: Fill) -> None:
    fill_folder("train/bus", 2)
    assert load(fill_folder("train/car", 2)).test.labels.tolist() == [0, 1]


def test_without_train_is_refused_for_training_only(fill_folder: Fill) -> None:
    fill_folder("test/bus", 2)
    root = fill_folder("test/car", 1)
    assert "no class folders in train/" in refusal(root)
    assert load(root, only="test").test.labels.tolist() == [0, 0, 1]


def test_class_only_in_testing_is_refused_by_name(fill_folder: Fill) -> None:
    for name in ("train/bus", "train/car", "test/bus", "test/tram"):
        root = fill_folder(name)
    assert "tram" in refusal(root)


def test_classes_may_be_named_train_and_test(fill_folder: Fill) -> None:
    fill_folder("train", 4)
    fill_folder("bus", 4)
    assert load(fill_folder("valid", 4)).classes == ("bus", "train", "valid")


def test_loading_the_test_split_leaves_training_pictures_unread(fill_folder: Fill) -> None:
    fill_folder("bus", 10)
    dataset = load(fill_folder("car", 10), only="test")
    assert len(dataset.train.labels) == 0
    assert dataset.train.labels.dtype == torch.int64
    assert len(dataset.test.labels) == 2


@pytest.mark.parametrize("budget", [0, 1 << 20])
def test_at_most_limits_each_split_evenly_over_the_classes(fill_folder: Fill, budget: int) -> None:
    for split, count in (("train", 30), ("test", 12)):
        fill_folder(f"{split}/bus", count)
        fill_folder(f"{split}/car", 2)
        root = fill_folder(f"{split}/tram", count)
    for path in root.glob("*/car/*"):
        path.write_bytes(b"no picture")  # records which files are opened
    few, all_ = load(root, at_most=9, budget=budget), load(root)
    assert torch.bincount(few.train.labels).tolist() == [4, 0, 4]
    assert len(few.test.labels) == 7
    assert len(few.skipped) == 4  # all of the cars
    assert len(few.validation.labels) == 8
    assert load(root, at_most=9, budget=budget).train.labels.tolist() == few.train.labels.tolist()
    assert len(load(root, at_most=1000).train.labels) == len(all_.train.labels)
    assert len(load(root, at_most=4, only="test").train.labels) == 0


def test_at_most_keeps_pictures_with_their_labels(fill_folder: Fill) -> None:
    fill_folder("bus", 20)
    root = fill_folder("car", 20)
    everything = load(root).train
    pairs = zip(everything.images, everything.labels, strict=True)  # type: ignore[attr-defined]
    of = {image.numpy().tobytes(): int(label) for image, label in pairs}
    few = load(root, at_most=10).train
    for image, label in zip(few.images, few.labels, strict=True):  # type: ignore[attr-defined]
        assert of[image.numpy().tobytes()] == int(label)


def test_at_most_limits_the_shapes() -> None:
    few = load_dataset("shapes", INPUT, at_most=8)
    assert few.train.labels.bincount().tolist() == [2, 2, 2, 2]
    assert few.masks is not None and len(few.masks) == len(few.test.labels) == len(few.validation.labels) == 8


def test_classes_alternate() -> None:
    labels = [0] * 5 + [1] * 2 + [2] * 4
    order = interleave_classes(labels)
    assert sorted(order) == list(range(11))
    drawn = [labels[place] for place in order]
    assert sorted(drawn[:3]) == sorted(drawn[3:6]) == [0, 1, 2]
    assert sorted(drawn[6:]) == [0, 0, 0, 2, 2]


def test_unknown_name_is_refused_with_the_choices() -> None:
    with pytest.raises(InvalidDataset, match="cifar10, cifar100, mnist"):
        load_dataset("imagenet", INPUT)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("spec", ["shapes", "folder"])
def test_one_split_alone_equals_that_among_all(tmp_path: Path, preprocess: Preprocess, spec: str, split: Split) -> None:
    if spec == "folder":
        for name, color in (("cat", 30), ("dog", 200)):
            (tmp_path / name).mkdir()
            for i in range(40):
                Image.new("RGB", (20, 20), (color, 6 * i, 90)).save(tmp_path / name / f"{i}.png")
        spec = f"folder:{tmp_path}"
    whole, alone = (load_dataset(spec, preprocess, only=only, at_most=12) for only in (None, split))
    assert torch.equal(getattr(alone, split).labels, getattr(whole, split).labels)
    assert torch.equal(getattr(alone, split).images, getattr(whole, split).images)
    assert (
        sum(len(getattr(alone, name).labels) for name in ("train", "validation", "test"))
        == len(getattr(whole, split).labels)
        > 0
    )


def test_decoding_workers_survive_the_epoch_and_drop_interrupted_work(fill_folder: Fill) -> None:
    root = fill_folder("bus", 24)
    fill_folder("car", 24)
    resident = load(root).train
    streamed = load(root, budget=0, workers=2).train
    count, workers = len(resident.labels), set()
    for epoch in range(3):
        order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
        pairs = zip(resident.batches(order, 4, CPU), streamed.batches(order, 4, CPU), strict=True)
        for number, ((images, labels), (again, same)) in enumerate(pairs):
            assert torch.equal(images, again) and torch.equal(labels, same)
            if epoch == 1 and number == 1:
                break  # an interrupted epoch
        ((loader, _),) = streamed.loaders.values()  # type: ignore[attr-defined]
        workers |= {process.pid for process in loader._iterator._workers}
    assert len(workers) == 2
    del loader
    streamed.close()
    assert not any(Path(f"/proc/{pid}/stat").exists() for pid in workers)
