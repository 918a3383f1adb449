"""Statistics of heads over many pictures: mean and spread equal those of single pictures; command, table, card."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from planted_registers import STRANGE, plant

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.errors import InvalidDataset, UserError
from vit.explain.head_census import (
    Tally,
    artefacts_sentence,
    census,
    check_name,
    decode_files,
    pictures_of,
    preprocess_pictures,
    record_in_card,
    sentence,
    table,
    tally,
    to_dict,
)
from vit.explain.head_statistics import Statistic, names, statistics
from vit.explain.record import record
from vit.explain.registers import register_neurons
from vit.images.preprocess import Normalise, Preprocess
from vit.model.transformer import VisionTransformer

Build = Callable[..., VisionTransformer]


@pytest.fixture
def checkpoint(saved_shapes: Path) -> Checkpoint:
    return load_checkpoint(saved_shapes)


@pytest.fixture
def set_of_files(tmp_path: Path) -> Path:
    """A folder of two classes, with three test pictures and a broken one."""
    root = tmp_path / "pictures"
    for split, count in (("train", 1), ("test", 2)):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                Image.linear_gradient("L").rotate(90 * i).resize((48, 40)).save(root / split / label / f"{i}.png")
    (root / "test" / "dog" / "1.png").write_bytes(b"no picture")
    return root


def one_by_one(model: VisionTransformer, pixels: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the values of every statistic for each picture, (B, L, H)."""
    every = [statistics(record(model, picture[None]), model.config.patch_size) for picture in pixels]
    return {name: torch.stack([one[name].values for one in every]).double() for name in every[0]}


@pytest.mark.parametrize("sizes", [(7,), (1, 1, 1, 1, 1, 1, 1), (3, 0, 4), (2, 5)])
@pytest.mark.parametrize("prefix", [("cls",), ("cls", "reg1", "reg2")])
def test_mean_and_spread_equal_those_of_single_pictures(
    build: Build, pictures: Any, prefix: tuple[str, ...], sizes: tuple[int, ...]
) -> None:
    model, pixels = build(prefix=prefix), pictures(count=7)
    result = sum((tally(model, part) for part in pixels.split(list(sizes))), Tally()).statistics()
    expected = one_by_one(model, pixels)
    assert tuple(expected) == tuple(result) == names(prefix)
    for name, values in expected.items():
        one = result[name]
        torch.testing.assert_close(one.values.double(), values.mean(0), atol=1e-6, rtol=1e-6)
        assert one.deviation is not None and one.pictures == 7
        torch.testing.assert_close(one.deviation.double(), values.std(0), atol=1e-5, rtol=1e-4)
        assert values.std(0).min() > 1e-4  # else nothing was compared


def test_large_numbers_with_small_spread_keep_their_precision() -> None:
    """The difference between a sum of squares and a squared sum would lose all digits here."""
    values = 1e6 + torch.randn(1000, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero = torch.zeros(1, 1, dtype=torch.float64)
    result = sum((Tally(1, {"self": one}, {"self": zero}, {"self": 0.0}) for one in values), Tally())
    deviation = result.statistics()["self"].deviation
    assert deviation is not None and float(deviation) == pytest.approx(float(values.std()), rel=1e-6)


def test_single_picture_has_no_spread_and_none_has_no_numbers(build: Build, pictures: Any) -> None:
    result = tally(build(), pictures(count=1)).statistics()
    assert all(one.deviation is None and one.pictures == 1 for one in result.values())
    assert tally(build(), pictures(count=0)).statistics() == {}


def test_size_of_a_tally_does_not_depend_on_the_number_of_pictures(build: Build, pictures: Any) -> None:
    model = build()
    one, many = tally(model, pictures(count=1)), sum((tally(model, pictures(count=9)) for _ in range(3)), Tally())
    assert many.pictures == 27
    for held, more in ((one.means, many.means), (one.squares, many.squares)):
        assert {name: t.shape for name, t in held.items()} == {name: t.shape for name, t in more.items()}


def test_dataset_is_sampled_evenly_up_to_the_limit(checkpoint: Checkpoint) -> None:
    reports: list[tuple[int, int]] = []
    result = census(checkpoint, "shapes", 130, progress=lambda done, total: reports.append((done, total)))
    assert reports == [(0, 130), (120, 130), (130, 130)]  # 120 pictures of 17 tokens are 2,040, and 2,048 form a batch
    images = pictures_of("shapes", checkpoint.preprocess, limit=130)
    ((pixels, _),) = images.batches(torch.arange(130), 130, torch.device("cpu"))
    normalise = Normalise(checkpoint.preprocess, torch.device("cpu"))
    expected = one_by_one(checkpoint.model, normalise(pixels))
    torch.testing.assert_close(
        result.statistics()["distance"].values.double(), expected["distance"].mean(0), atol=1e-6, rtol=1e-6
    )
    some = preprocess_pictures(images, range(5, 8), checkpoint.preprocess).pixels
    torch.testing.assert_close(some, normalise(pixels[5:8]))


def test_share_of_artefacts_is_that_of_each_picture(build: Build, pictures: Any) -> None:
    model, pixels = build(depth=3), pictures(count=5)
    plant(model, pixels[:1])
    shares = sum((tally(model, part) for part in pixels.split([3, 2])), Tally()).artefacts
    assert shares[0] == len(STRANGE) / 16 and len(shares) == 5  # the neurons are active in this picture
    assert shares == register_neurons(model, list(pixels[:, None])).artefacts
    assert max(tally(build(depth=3), pixels).artefacts) == 0
    assert artefacts_sentence([0.5, 0.0, 0.0, 0.0]).startswith("Artefacts: 12.5% of the patch tokens (0.0% to 37.5%, ")


def test_non_pictures_are_named_and_not_counted(checkpoint: Checkpoint, set_of_files: Path) -> None:
    files = [(path.name, path.read_bytes()) for path in sorted((set_of_files / "test" / "dog").iterdir())]
    opened = decode_files(files, checkpoint.preprocess)
    assert opened.pixels.shape == (1, 3, 32, 32) and len(opened.unreadable) == 1
    assert opened.unreadable[0].startswith("1.png: ")
    assert decode_files(files[1:], checkpoint.preprocess).pixels.shape == (0, 3, 32, 32)


def test_model_without_classes_is_counted(tmp_path: Path, build: Build) -> None:
    bare = save_checkpoint(tmp_path / "bare", build(num_classes=0), (), Preprocess((32, 32)))
    assert census(load_checkpoint(bare), "shapes", 3).pictures == 3


def test_unavailable_statistic_is_refused(checkpoint: Checkpoint) -> None:
    with pytest.raises(UserError, match=r"has no statistic 'registers'\. Choose from distance, entropy"):
        check_name(checkpoint, "registers")
    with pytest.raises(InvalidDataset, match="no dataset 'nope'"):
        census(checkpoint, "nope", 3)


def test_table_has_a_row_per_block_and_a_legend() -> None:
    values = torch.tensor([[8.0, 12.0], [16.04, 20.06]])
    many = Statistic(values, 16.5, values / 10, 128)
    lines = table("distance", many)
    assert [cell.strip() for cell in lines[3].split("|")[1:-1]] == ["2", "16.0 ± 1.6 px", "20.1 ± 2.0 px", "18.1 px"]
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1
    assert sentence("distance", many).startswith("Mean attention distance [px], mean ± standard deviation over 128")
    assert "±" not in "".join(table("self", Statistic(values / 100, 0.1)))


def test_command_prints_a_table_or_all_numbers_of_a_folder(
    saved_shapes: Path, set_of_files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*words: str) -> tuple[int, str, str]:
        return main(["heads", "--checkpoint", str(saved_shapes), *words]), *capsys.readouterr()

    data = f"folder:{set_of_files}"
    status, out, err = run("--data", data, "--json")
    assert status == 0, err
    facts, checkpoint = json.loads(out), load_checkpoint(saved_shapes)
    assert (facts["sha256"], facts["data"], facts["pictures"]) == (checkpoint.hash, data, 3)  # one is broken
    assert facts["identity"] == checkpoint.identity
    assert facts["statistics"] == json.loads(json.dumps(to_dict(census(checkpoint, data).statistics())))
    status, out, _ = run("--data", data, "--statistic", "self")
    assert status == 0 and "over 3 pictures" in out and "| Head 2 " in out
    assert "Artefacts: 0.0% of the patch tokens (0.0% to 0.0%, the 95% interval over 3 pictures)" in out
    assert facts["artefacts"] == {"mean": 0, "low": 0, "high": 0}
    for words, said in ((("--limit", "0"), "--limit must be"), (("--statistic", "dist"), "no statistic 'dist'")):
        status, _, err = run("--data", data, *words)
        assert status == 2 and said in err and err.count("\n") == 1


def test_card_states_the_attention_distance_of_each_block(checkpoint: Checkpoint, saved_shapes: Path) -> None:
    result = census(checkpoint, "shapes", 3)
    record_in_card(checkpoint, "shapes", result.statistics())
    after = load_checkpoint(saved_shapes)
    assert after.hash == checkpoint.hash and after.facts["accuracy"] == 0.25
    blocks = ", ".join(f"{mean:.1f}" for mean in result.statistics()["distance"].values.mean(1).tolist())
    assert "## Heads" in after.card and f"{blocks} px" in after.card and "--data shapes --limit 3" in after.card
