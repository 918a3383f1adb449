"""The page without a link, and the truth of its statements."""

from pathlib import Path

import pytest
from patience import PATIENCE
from PIL import Image
from streamlit.testing.v1 import AppTest

import vit
from pages.panels import welcome
from tests.pages.controls import control, texts
from tests.pages.offered import sent_to
from vit.explain.faithfulness import centre, faithfulness, noise
from vit.explain.methods import Subject, heatmap_of
from vit.explain.sensitivity import faithfulness_verdict, random_masks, score_drops
from vit.images import samples
from vit.view.explanation import Explanation, explain

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DOWNLOADS", str(tmp_path / "downloads"))
    return AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE)


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    checkpoint = vit.load_checkpoint(ROOT / "checkpoints" / welcome.CHECKPOINT)
    return explain(checkpoint, samples.read(welcome.VIEW.sample), welcome.SIZE)


@pytest.fixture(scope="module")
def subject(explanation: Explanation) -> Subject:
    model = vit.load_checkpoint(ROOT / "checkpoints" / welcome.CHECKPOINT).model
    return Subject.of(model, explanation.preprocess(explanation.picture))


def viewer(page: AppTest) -> dict:
    """Return the data sent to the viewer."""
    return sent_to(page)


def link(page: AppTest) -> dict[str, str]:
    """Return the address, one value per name."""
    return {name: value if isinstance(value, str) else value[0] for name, value in page.query_params.items()}


def size(page: AppTest) -> tuple[int, int]:
    """Return the selected input size."""
    return next(one.value for one in page.selectbox if one.label == "Input size")


def words(page: AppTest) -> bool:
    return any(one.value == welcome.CAPTION for one in page.markdown)


def test_empty_link_is_the_first_view_and_follows_the_pointer(page: AppTest) -> None:
    page.run()
    assert not page.exception and not page.error
    assert link(page) == texts(welcome.VIEW) and words(page)
    told = viewer(page)
    assert told["seed"]["view"] == "relevance" and told["method"]["chain"] and told["method"]["target"] == "cat"
    assert size(page) == (64, 64)


def test_another_picture_is_shown_at_the_models_own_size(page: AppTest, tmp_path: Path) -> None:
    page.run()
    Image.new("RGB", (40, 30), "teal").save(tmp_path / "teal.png")
    page.file_uploader[0].upload("teal.png", (tmp_path / "teal.png").read_bytes()).run()
    assert not page.exception and size(page) == (32, 32)
    assert "size" not in page.query_params and not words(page)


def test_links_input_size_is_kept(page: AppTest) -> None:
    page.query_params.update({"sample": "cat", "block": "2"})
    page.run()
    assert size(page) == (32, 32) and viewer(page)["seed"]["view"] == "attention"
    assert not words(page)


@pytest.mark.parametrize("file", ["explore", "compare", "checkpoints", "train", "runs"])
def test_headings_of_every_page_are_in_order(page: AppTest, file: str) -> None:
    page.switch_page(f"pages/{file}.py").run()
    found = [level for level, kind in ((1, page.title), (2, page.header), (3, page.subheader)) for _ in kind]
    found += [len(one.value) - len(one.value.lstrip("#")) for one in page.markdown if one.value.startswith("#")]
    assert found[0] == 1 and set(found) == set(range(1, max(found) + 1))


def test_picture_is_classified_correctly(explanation: Explanation) -> None:
    assert explanation.predictions[0].label == "cat" and explanation.predictions[0].probability > 0.8


def test_strongest_patches_are_where_the_sentence_says(subject: Subject) -> None:
    """Rows and columns (from 0) of the three places in the picture of 16 × 16 patches, found by eye."""
    strongest = heatmap_of(subject, "relevance").flatten().argsort(descending=True)[:16]
    places = {
        "one eye and its rim": (range(4, 8), range(3, 7)),
        "the fur between the eyes": (range(4, 6), range(8, 11)),
        "and the nose": (range(9, 13), range(7, 11)),
    }
    for words, (rows, cols) in places.items():
        inside = [divmod(int(patch), 16) for patch in strongest]
        assert words in welcome.CAPTION and sum(row in rows and col in cols for row, col in inside) >= 3
    assert all(any(row in rows and col in cols for rows, cols in places.values()) for row, col in inside)


def test_map_is_faithful(subject: Subject) -> None:
    inputs, grid = (subject.model, subject.pixels, subject.record.target), subject.record.grid
    maps = [heatmap_of(subject, "relevance"), centre(grid), *(noise(grid, seed) for seed in range(20))]
    score, *chance = faithfulness(*inputs, maps)
    assert score > max(chance) + 0.1
    masks = random_masks(grid[0] * grid[1], 512)
    assert faithfulness_verdict(maps[0], masks, score_drops(*inputs, masks)).word == "better than chance"


def test_out_of_distribution_picture_is_reported_at_the_models_own_size(page: AppTest, tmp_path: Path) -> None:
    def said() -> list[str]:
        return [one.value for one in page.warning if "unlike those that the model learnt from" in one.value]

    page.query_params["sample"] = "cat"
    page.run()
    assert not said() and any("of photos of other things and misses the rest" in one.value for one in page.caption)
    Image.new("RGB", (40, 40), "white").save(tmp_path / "white.png")
    page.file_uploader[0].upload("white.png", (tmp_path / "white.png").read_bytes()).run()
    assert not page.exception and len(said()) == 1 and "may be a guess" in said()[0]
    control(page.selectbox, "size").set_value((64, 64)).run()
    assert not page.exception and not said()
