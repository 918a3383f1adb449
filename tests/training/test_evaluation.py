"""Accuracy and loss against numbers worked out by hand, and classes matched by name."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import subprocesses
import torch
from PIL import Image
from timm.data import ImageNetInfo

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.families.torchvision import imagenet_labels
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.layouts import class_names
from vit.data.layouts.labels import match_classes
from vit.data.pictures import InMemoryPictures
from vit.errors import InvalidDataset
from vit.images.preprocess import Normalise, Preprocess
from vit.model.transformer import VisionTransformer
from vit.training.loop.evaluation import evaluate, evaluate_checkpoint

CPU = torch.device("cpu")
INPUT = Preprocess((32, 32), mean=(0.2, 0.4, 0.6), std=(0.1, 0.2, 0.3))
Build = Callable[..., VisionTransformer]


@pytest.fixture
def constant(build: Build) -> VisionTransformer:
    """A model of two classes whose logits are always 1 and 0."""
    model = build(num_classes=2)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([1.0, 0.0]))
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three test pictures of cats and one of a dog."""
    for name, count in (("train/cat", 1), ("train/dog", 1), ("test/cat", 3), ("test/dog", 1)):
        (tmp_path / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (32, 32), (i * 40, 90, 20)).save(tmp_path / name / f"{i}.png")
    return tmp_path


def noise(labels: list[int]) -> InMemoryPictures:
    images = torch.randint(0, 256, (len(labels), 3, 32, 32), dtype=torch.uint8)
    return InMemoryPictures(images, torch.tensor(labels))


@pytest.fixture
def checkpoint(tmp_path: Path, constant: VisionTransformer) -> Callable[[tuple[str, str]], Checkpoint]:
    """Return `checkpoint(labels)`: one that always predicts the first of its labels."""
    return lambda labels: load_checkpoint(save_checkpoint(tmp_path / "constant", constant, labels, INPUT))


def test_accuracy_and_loss_equal_those_worked_out_by_hand(constant: VisionTransformer) -> None:
    result = evaluate(constant, noise([0, 0, 0, 1]), Normalise(INPUT, CPU), device=CPU)
    right, wrong = math.log(1 + math.exp(-1)), math.log(1 + math.exp(1))
    assert result.accuracy == 0.75
    assert result.loss == pytest.approx((3 * right + wrong) / 4)
    assert result.pictures == 4


def test_balanced_accuracy_counts_every_class_alike(
    checkpoint: Callable[[tuple[str, str]], Checkpoint], folder: Path
) -> None:
    result = evaluate_checkpoint(checkpoint(("cat", "dog")), f"folder:{folder}")  # three cats and a dog, all called cat
    assert (result.accuracy, result.balanced) == (0.75, 0.5)


def test_batch_size_does_not_matter(build: Build) -> None:
    pictures, model = noise([0, 1, 2, 3, 4, 0, 1]), build()
    whole, parts = (evaluate(model, pictures, Normalise(INPUT, CPU), device=CPU, batch_size=n) for n in (7, 3))
    assert whole.accuracy == parts.accuracy
    assert whole.loss == pytest.approx(parts.loss, rel=1e-5)


SHARED = """
import sys, torch
import torch.distributed as dist
from vit.images.preprocess import Normalise, Preprocess
from vit.training.loop.evaluation import evaluate
rank, world, store, inputs = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
model, pictures = torch.load(inputs, weights_only=False)
cpu, seen = torch.device("cpu"), []
torch.set_num_threads(1)
normalise = Normalise(Preprocess((32, 32)), cpu)
model.register_forward_hook(lambda model, given, output: seen.append(len(given[0])))
result = evaluate(model, pictures, normalise, device=cpu, batch_size=2, rank=rank, world=world)
print(*result[:3], sum(seen))
"""


@pytest.mark.slow
@pytest.mark.parametrize("world", [3, 5])
def test_processes_share_the_pictures_and_each_gets_the_full_result(build: Build, tmp_path: Path, world: int) -> None:
    pictures, model = noise([0, 1, 2, 3, 4, 0, 1]), build()
    torch.save((model, pictures), tmp_path / "inputs.pt")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    alone = evaluate(model, pictures, Normalise(Preprocess((32, 32)), CPU), device=CPU, batch_size=2)
    torch.set_num_threads(before)
    files = [tmp_path / f"{rank}.txt" for rank in range(world)]
    ranks = [
        subprocesses.begin(SHARED, rank, world, tmp_path / "store", tmp_path / "inputs.pt", out=file)
        for rank, file in enumerate(files)
    ]
    for rank in ranks:
        rank.join(subprocesses.PATIENCE)
    *results, seen = zip(*(map(float, file.read_text().split()) for file in files), strict=True)
    assert set(zip(*results, strict=True)) == {alone[:3]}
    assert seen == {3: (3, 2, 2), 5: (2, 2, 2, 1, 0)}[world]


def test_model_is_evaluated_without_dropout(build: Build) -> None:
    pictures, model = noise([0, 1, 2, 3]), build(dropout=0.5, drop_path=0.5).train()
    first, second = (evaluate(model, pictures, Normalise(INPUT, CPU), device=CPU) for _ in range(2))
    assert first == second


def test_batches_are_normalised_like_single_pictures() -> None:
    picture = Image.effect_noise((32, 32), 80).convert("RGB")
    seen = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(1, 32, 32, 3).permute(0, 3, 1, 2)
    assert torch.allclose(Normalise(INPUT, CPU)(seen), INPUT(picture), atol=1e-5)


def test_empty_split_is_refused(constant: VisionTransformer) -> None:
    with pytest.raises(ValueError, match="no pictures"):
        evaluate(constant, noise([]), Normalise(INPUT, CPU), device=CPU)


@pytest.mark.parametrize(("labels", "accuracy"), [(("cat", "dog"), 0.75), (("dog", "cat"), 0.25)])
def test_classes_are_matched_by_name_not_by_order(
    checkpoint: Callable[..., Checkpoint], folder: Path, labels: tuple[str, str], accuracy: float
) -> None:
    assert evaluate_checkpoint(checkpoint(labels), f"folder:{folder}").accuracy == accuracy


def test_renamed_classes_are_matched_by_their_folders(checkpoint: Callable[..., Checkpoint], folder: Path) -> None:
    class_names.rename(folder, ("cat", "dog"), ["Katze", "Hund"])
    result = evaluate_checkpoint(checkpoint(("dog", "cat")), f"folder:{folder}")
    assert result.accuracy == 0.25 and "the names of their folders" in result.remark


def test_class_unknown_to_the_checkpoint_is_named(checkpoint: Callable[..., Checkpoint], folder: Path) -> None:
    with pytest.raises(InvalidDataset, match=r"has no class 'dog'.*'cat', 'horse'"):
        evaluate_checkpoint(checkpoint(("cat", "horse")), f"folder:{folder}")


_NAMES = ImageNetInfo()  # built once: it takes 40 ms
IMAGENET = tuple(_NAMES.index_to_description(index) for index in range(1000))  # "tench, Tinca tinca"
IDS = tuple(_NAMES.index_to_label_name(index) for index in range(1000))


@pytest.mark.parametrize(
    ("classes", "folders", "labels", "expected", "how"),
    [
        (("cat", "dog"), (), ("dog", "owl", "cat"), [2, 0], ""),
        (("cat", "dog"), (), ("owl", "owl", "dog", "cat"), [3, 2], ""),
        (("tench", "crane"), ("n01440764", "n03126707"), IMAGENET, [0, 517], "WordNet ids"),
        (("Schleie", "Kranich"), ("n01440764", "n02012849"), IMAGENET, [0, 134], "WordNet ids"),
        (("tench", "goldfish"), ("n01440764", "n01443537"), ("n01443537", "n01440764"), [1, 0], "WordNet ids"),
        (("n01440764", "n03710721"), (), imagenet_labels(), [0, 639], "WordNet ids"),
        (IDS, (), IMAGENET, list(range(1000)), "WordNet ids"),
        (IMAGENET, (), imagenet_labels(), list(range(1000)), "WordNet ids"),
        (("goldfish", "tench"), (), ("tench, Tinca tinca", "goldfish, Carassius auratus"), [1, 0], "first"),
        (("tench, Tinca tinca", "goldfish"), (), ("tench", "goldfish"), [0, 1], "first"),
        (("Cat", "golden_retriever"), (), ("golden retriever, dog", "cat"), [1, 0], "capitals and underscores"),
        (("cat", "dog"), (), ("Cat", "cat", "Dog"), None, "'cat' names 1 of the dataset's classes and 2 of m's"),
        (
            ("crane", "dog"),
            (),
            ("crane", "crane", "dog"),
            None,
            "'crane' names 1 of the dataset's classes and 2 of m's",
        ),
        (("Cat", "cat"), (), ("cat", "dog"), None, "'Cat' names 2 of the dataset's classes and 1 of m's"),
        (("crane", "tench"), (), IMAGENET, None, "'crane' names 1 of the dataset's classes and 2 of m's"),
        (("cat", "owl"), ("n01440764", "owl"), ("cat", "dog"), None, "m has no class 'owl'"),
    ],
)
def test_classes_are_matched_by_equal_names_then_ids_then_similar_names(
    classes: tuple[str, ...], folders: tuple[str, ...], labels: tuple[str, ...], expected: list[int] | None, how: str
) -> None:
    if expected is None:
        with pytest.raises(InvalidDataset, match=how):
            match_classes(classes, labels, "m", folders)
        return
    match = match_classes(classes, labels, "m", folders)
    assert match.labels.tolist() == expected
    assert how in match.remark if how else match.remark == ""


@pytest.mark.parametrize(
    ("labels", "remark"), [(IMAGENET, "WordNet ids"), (IDS, "WordNet ids"), (imagenet_labels(), "")], ids=len
)
def test_imagenet_models_are_evaluated_on_folders_of_wordnet_ids(
    build: Build, tmp_path: Path, labels: tuple[str, ...], remark: str
) -> None:
    for name, count in (("n01440764", 1), ("n02012849", 3)):  # tench; the bird, not the machine, of two called crane
        (tmp_path / "val" / name).mkdir(parents=True)
        for i in range(count):
            Image.new("RGB", (32, 32), (i * 40, 90, 20)).save(tmp_path / "val" / name / f"{i}.png")
    model = build(num_classes=1000)
    with torch.no_grad():
        model.head.bias[134] += 1e4
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "imagenet", model, labels, INPUT))
    result = evaluate_checkpoint(checkpoint, f"folder:{tmp_path}")
    assert (result.accuracy, result.pictures) == (0.75, 4)
    assert remark in result.remark if remark else result.remark == ""


def test_preprocessing_of_the_checkpoint_is_used(build: Build, folder: Path, tmp_path: Path) -> None:
    model, labels = build(num_classes=2), ("cat", "dog")
    plain = load_checkpoint(save_checkpoint(tmp_path / "plain", model, labels, INPUT))
    other = load_checkpoint(save_checkpoint(tmp_path / "other", model, labels, replace(INPUT, mean=(0.9, 0.1, 0.5))))
    first, second = (evaluate_checkpoint(c, f"folder:{folder}").loss for c in (plain, other))
    assert first != second
