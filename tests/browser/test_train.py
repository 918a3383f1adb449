"""From an empty page to a custom model: described, started, watched, stopped, resumed, used."""

import io
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw
from playwright.sync_api import Page, expect

from vit.images.encode import encode_image
from vit.training.loop.ladder import rung_config
from vit.training.loop.presets import train_config
from vit.training.loop.run_folder import hold_run
from vit.training.loop.train import train
from vit.training.runs import control, registry

from .explorer import open_model
from .files import upload
from .page_with_viewer import PATIENCE
from .waiting import hold_requests

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Folders for the runs and data of this file; no run outlives it."""
    root = tmp_path_factory.mktemp("train")
    folders = {"VIT_RUNS": str(root / "runs"), "VIT_DATA_ROOTS": str(root / "data")}
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in folders.items():
            Path(folder).mkdir()
            patch.setenv(name, folder)
        yield folders
        for run in registry.list_runs():
            if run.alive:
                control.kill(run.id)


@pytest.fixture
def url(places: dict[str, str], serve: Callable[..., str], page: Page) -> str:
    page.set_viewport_size({"width": 1280, "height": 1000})
    return serve(ROOT / "app.py", OMP_NUM_THREADS="1", **places)


def circle() -> bytes:
    """Draw a bright circle on a dark, noisy ground, as in the `shapes` data."""
    noise = np.random.default_rng(0).integers(0, 70, (64, 64, 3), dtype=np.uint8)
    picture = Image.fromarray(noise)
    ImageDraw.Draw(picture).ellipse((14, 14, 50, 50), fill=(230, 200, 60))
    return encode_image(picture)


def until(page: Page, status: str) -> registry.Run:
    """Wait for this state of the only run; the tests check its display elsewhere."""
    for _ in range(PATIENCE // 300):
        (run,) = registry.list_runs()
        if run.status == status:
            return run
        page.wait_for_timeout(300)
    raise AssertionError((run.status, run.reason, (run.folder / "log.txt").read_text()[-1000:]))


def test_model_is_trained_from_the_page_and_recognises_a_circle(page: Page, url: str) -> None:
    page.goto(f"{url}/train?patch_size=8&depth=2&epochs=5")  # a sixth of the steps suffices
    start = page.get_by_role("button", name="Start", exact=True)
    expect(start).to_be_enabled()
    page.get_by_role("textbox", name="Name").fill("My shapes")
    page.get_by_role("textbox", name="Name").press("Enter")
    start.dblclick()  # clicks again without waiting

    page.wait_for_url("**/runs?run=*")
    assert [run.name for run in registry.list_runs()] == ["My shapes"]
    page.go_back()
    expect(page.get_by_role("textbox", name="Name")).to_have_value("My shapes")
    page.go_forward()
    page.wait_for_url("**/runs?run=*")
    until(page, "finished")

    page.get_by_role("link", name="Open in Explore").click()
    open_model(page)
    expect(page.get_by_text("Its classes: circle, square, triangle, cross")).to_be_visible()
    upload(page, {"circle.png": circle()})
    page.get_by_role("button", name="Answer").click()
    expect(page.locator("[aria-label^='Predictions: circle'], [alt^='Predictions: circle']").first).to_be_attached()


@pytest.mark.exhaustive
def test_form_survives_a_reload_and_back_undoes_a_change(page: Page, url: str) -> None:
    page.goto(f"{url}/train")
    start = page.get_by_role("button", name="Start", exact=True)
    epochs, seed = (page.get_by_role("spinbutton", name=name, exact=True) for name in ("Epochs", "Seed"))
    expect(start).to_be_enabled()
    page.get_by_text("Training", exact=True).last.click()
    epochs.fill("3")
    epochs.press("Enter")
    page.wait_for_url("**/train?epochs=3")
    page.get_by_text("Machine", exact=True).click()
    seed.fill("7")
    seed.press("Enter")
    page.wait_for_url("**/train?epochs=3&seed=7")

    page.reload()
    expect(start).to_be_enabled()
    page.get_by_text("Training · 1 changed").click()
    expect(epochs).to_have_value("3")
    page.get_by_text("Machine · 1 changed").click()
    expect(seed).to_have_value("7")

    page.go_back()
    expect(page.get_by_text("Machine", exact=True)).to_be_visible()
    expect(seed).to_have_value("0")
    expect(epochs).to_have_value("3")


@pytest.mark.exhaustive
def test_group_opens_without_animation(page: Page, url: str) -> None:
    """Otherwise the next group moves away from under a test's click."""
    page.goto(f"{url}/train")
    expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()
    moving = """async (group) => {
      group.click();
      await new Promise(requestAnimationFrame);
      const moves = document.getAnimations().filter((animation) => animation.playState === "running");
      return [group.parentElement.open, moves.length];
    }"""
    assert page.locator("summary").filter(has_text="Training").evaluate(moving) == [True, 0]


def test_archive_becomes_data_with_reported_omissions_and_can_be_deleted(
    page: Page, url: str, places: dict[str, str]
) -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for label in ("round", "square"):
            for i in range(6):
                archive.writestr(f"pets/{label}/{i}.png", circle()[: 40 if label == "round" and i == 3 else None])
        archive.writestr("__MACOSX/pets/._x.png", b"junk")
    page.goto(f"{url}/train")
    page.get_by_text("Upload an archive of pictures").click()
    upload(page, {"pets.zip": out.getvalue()})
    expect(page.get_by_text("2 classes.")).to_be_visible()
    expect(page.get_by_text("round/3.png").first).to_be_attached()
    page.reload()
    expect(page.get_by_text("round/3.png").first).to_be_attached()

    page.get_by_role("button", name="Delete this upload").click()
    expect(page.get_by_role("dialog")).to_contain_text("11 pictures")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_text("4 classes.")).to_be_visible()
    expect(page.get_by_role("dialog")).not_to_be_attached()
    assert not list(Path(places["VIT_DATA_ROOTS"], "uploads").iterdir())


def dry_runs(places: dict[str, str]) -> list[str]:
    """Return the processes of dry runs that this file's server started."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = places["VIT_RUNS"].encode() in (process / "environ").read_bytes()
            if ours and b"vit.training.loop.dry_run_process" in (process / "cmdline").read_bytes():
                found.append(process.name)
    return found


def test_layout_is_stable_when_the_pictures_arrive(page: Page, url: str) -> None:
    """A button that disappears between press and release is not clicked."""
    button, picture = page.get_by_role("button", name="Try a few steps"), page.get_by_alt_text("Training pictures")
    with hold_requests(page, "**/media/**", "**/static/js/Radio.*", "**/static/js/TextInput.*"):
        page.goto(f"{url}/train", wait_until="commit")
        expect(button).to_be_enabled()
        expect(picture).to_be_attached()
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()
        before = button.bounding_box()
    page.wait_for_function("document.querySelector('[alt^=\"Training pictures\"]').naturalWidth > 0")
    expect(page.get_by_role("radio", name="CPU")).to_be_attached()
    expect(page.get_by_label("Name", exact=True)).to_be_visible()
    assert button.bounding_box() == before


@pytest.mark.exhaustive
def test_cancelling_a_dry_run_ends_its_process(page: Page, url: str, places: dict[str, str]) -> None:
    page.goto(f"{url}/train?size=L%2F16&image_size=224&patch_size=16")
    page.get_by_role("button", name="Try a few steps").click()
    cancel = page.get_by_role("button", name="Cancel")
    expect(page.get_by_text("Trying a few steps: 0 of 3…")).to_be_visible()
    cancel.click()
    expect(page.get_by_text("Cancelled.")).to_be_visible()
    expect(cancel).not_to_be_attached()
    assert not dry_runs(places)
    expect(page.get_by_role("button", name="Try a few steps")).to_be_enabled()


@pytest.mark.exhaustive
def test_buttons_of_the_ladder_stay_below_the_pointer(page: Page, url: str, places: dict[str, str]) -> None:
    """The button is pressed during a run and released after its end, with many redraws of the ladder in between."""
    config = train_config("fine-tune", data="shapes", init_from="cifar10", limit=60, epochs=1, device="cpu")
    run = Path(places["VIT_RUNS"]) / "20261125-000000-rung-0000"
    train(rung_config(config, "last"), run)
    (run / "outcome.json").unlink()
    try:
        with hold_run(run):
            (run / "heartbeat").touch()
            page.goto(f"{url}/train?preset=fine-tune&data=shapes&init_from=cifar10&limit=60&epochs=1")
            link = page.get_by_role("link", name="Open in Explore")
            expect(page.get_by_text("Still under way: the last two blocks.")).to_be_visible()
            expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled()
            link.scroll_into_view_if_needed()
            before = link.bounding_box()
            link.hover()
            page.mouse.down()
            link.evaluate("(link) => (window.kept = link)")
            (run / "stop").touch()
            expect(page.get_by_text("stopping")).to_be_visible()
            (run / "stop").unlink()
            expect(page.get_by_text("100% done")).to_be_visible()
        expect(page.get_by_text("Still under way")).not_to_be_attached()
        assert link.bounding_box() == before and link.evaluate("(link) => link === window.kept")
        page.mouse.up()
        page.wait_for_url(f"**checkpoint=run-{run.name}*")
    finally:
        shutil.rmtree(run)
