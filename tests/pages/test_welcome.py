"""The page without a link, and the map that it begins with."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

import vit
from pages.looking.panels import welcome
from tests.pages.controls import address, app_page, query
from tests.pages.offered import sent_to
from vit.explain.faithfulness_correlation import faithfulness_verdict, random_masks, score_drops
from vit.explain.methods import heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.images import samples
from vit.view import first_view
from vit.view.explanation import Explanation, explain

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("only_shipped")


@pytest.fixture
def small_checkpoint_first() -> None:
    """Replace the fixture of other tests: the app opens the shipped checkpoint first."""


@pytest.fixture(scope="module")
def explanation() -> Explanation:
    checkpoint = vit.load_checkpoint(ROOT / "checkpoints" / first_view.CHECKPOINT)
    return explain(checkpoint, samples.read(welcome.VIEW.sample))


@pytest.fixture(scope="module")
def recorded(explanation: Explanation) -> RecordedPass:
    model = vit.load_checkpoint(ROOT / "checkpoints" / first_view.CHECKPOINT).model
    return RecordedPass.of_class(model, explanation.preprocess(explanation.picture))


def viewer(page: AppTest) -> dict:
    """Return the data sent to the viewer."""
    return sent_to(page)


def size(page: AppTest) -> tuple[int, int]:
    """Return the selected input size."""
    return next(one.value for one in page.selectbox if one.label == "Input size")


def test_empty_link_is_the_first_view() -> None:
    page = app_page()
    assert not page.error
    assert address(page) == query(welcome.VIEW)
    told = viewer(page)
    assert told["seed"]["view"] == "relevance" and told["method"]["title"] == "AttnLRP"
    assert told["method"]["target"] == "cup" and len(told["computed"]["values"]) == 257
    assert size(page) == (224, 224)


def test_links_own_picture_and_view_are_kept() -> None:
    page = app_page(sample="cat", block="2")
    assert viewer(page)["seed"]["view"] == "attention" and address(page)["sample"] == "cat"


@pytest.mark.parametrize("file", ["explore", "compare", "checkpoints", "train", "runs"])
def test_headings_of_every_page_are_in_order(file: str) -> None:
    page = app_page(file)
    found = [level for level, kind in ((1, page.title), (2, page.header), (3, page.subheader)) for _ in kind]
    found += [len(one.value) - len(one.value.lstrip("#")) for one in page.markdown if one.value.startswith("#")]
    assert found[0] == 1 and set(found) == set(range(1, max(found) + 1))


def test_picture_is_classified_correctly(explanation: Explanation) -> None:
    assert explanation.predictions[0].label == "cup" and explanation.predictions[0].probability > 0.7


def test_first_map_is_on_the_coffee(recorded: RecordedPass) -> None:
    """The places in the picture of 16 × 16 patches were found by eye: the coffee, and saucer, spoon and table."""
    heatmap = heatmap_of(recorded, first_view.METHOD)
    strongest = [divmod(int(patch), 16) for patch in heatmap.flatten().argsort(descending=True)[:10]]
    assert all(row in range(4, 8) and col in range(4, 11) for row, col in strongest)
    assert heatmap[9:].clamp_min(0).mean() < heatmap[4:8, 4:11].mean() / 20 and heatmap[9:].mean() < 0


@pytest.mark.exhaustive
def test_map_is_faithful(recorded: RecordedPass) -> None:
    grid = recorded.record.grid
    masks = random_masks(grid[0] * grid[1], 256)
    drops = score_drops(recorded.model, recorded.pixels, int(recorded.record.logits.argmax()), masks)
    verdict = faithfulness_verdict(heatmap_of(recorded, first_view.METHOD), masks, drops)
    assert verdict.correlation > 0.4 and drops.max() < 0.02  # as the module states
