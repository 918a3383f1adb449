"""The life of a run on page Runs: watched, reloaded, stopped, resumed, opened in the explorer."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from patience import until
from playwright.sync_api import Page, expect
from written_runs import write_run

from vit.training.loop.presets import train_config
from vit.training.runs import control, registry

from .explorer import open_model
from .files import download
from .serving import FIND
from .waiting import Conversation

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder for the runs of this file; those still running at the end are killed."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RUNS", str(folder))
        yield folder
        for run in registry.list_runs():
            if run.alive:
                control.kill(run.id)


@pytest.fixture
def url(folder: Path, serve: Callable[..., str], page: Page) -> str:
    page.set_viewport_size({"width": 1280, "height": 1000})
    return serve(ROOT / "app.py", VIT_RUNS=str(folder), OMP_NUM_THREADS="1")


def wait(run: registry.Run, *status: str) -> registry.Run:
    until(
        lambda: registry.find_run(run.id).status in status,
        lambda: f"{status}; {registry.find_run(run.id)}; {(run.folder / 'log.txt').read_text()[-1000:]}",
    )
    return registry.find_run(run.id)


def bar(page: Page) -> float:
    """Return the bar's progress, 0 to 100."""
    element = page.get_by_test_id("stProgress").first.get_by_role("progressbar")
    return float(element.get_attribute("aria-valuenow") or 0)


def test_run_is_watched_stopped_resumed_and_opened(page: Page, url: str) -> None:
    small = dict(patch_size=16, dim=32, depth=1, heads=1, mlp_dim=64)  # epochs that take less than a second
    run = control.launch(train_config("shapes", limit=1000, compile=False, epochs=400, **small), name="Watched")
    page.goto(f"{url}/runs?run={run.id}")
    expect(page.get_by_text(re.compile(r"Epoch \d+\.\d of 400")).first).to_be_visible()
    before = bar(page)
    until(lambda: page.wait_for_timeout(300) or bar(page) > before, "that the bar moves")
    # curves grow in place
    expect(page.locator(".st-key-loss canvas").first).to_be_visible()
    page.evaluate("window.kept = document.querySelector('.st-key-loss canvas')")
    picture = "document.querySelector('.st-key-loss canvas').toDataURL()"
    page.wait_for_function(f"(before) => {picture} !== before", arg=page.evaluate(picture), polling=500)
    assert page.evaluate("window.kept === document.querySelector('.st-key-loss canvas')")

    page.reload()
    expect(page.get_by_text(re.compile(r"Epoch \d+\.\d of 400")).first).to_be_visible()
    assert registry.find_run(run.id).alive

    main = page.get_by_test_id("stMain")  # while the page is drawn, Streamlit's header has a Stop button of its own
    main.get_by_role("button", name="Stop", exact=True).click()
    assert "Resume continues there" in wait(run, "stopped").reason
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Continue").click()
    wait(run, "running")
    expect(main.get_by_role("button", name="Stop", exact=True)).to_be_visible()

    page.get_by_role("link", name="Open in Explore").click()
    expect(page.locator("canvas.over")).to_be_visible()
    expect(page).to_have_url(re.compile(f"checkpoint=run-{run.id}"))
    open_model(page)
    expect(page.get_by_text("Its classes: circle, square, triangle, cross")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile(f"/runs.*run={run.id}"))
    expect(main.get_by_role("button", name="Stop", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile(r"Epoch \d+\.\d of 400")).first).to_be_visible()
    control.kill(run.id)


@pytest.mark.exhaustive
def test_back_unticks_ticked_runs(page: Page, url: str, folder: Path) -> None:
    first, second = (write_run(folder, name) for name in ("Later", "Latest"))
    conversation = Conversation(page)
    page.goto(f"{url}/runs")
    page.get_by_placeholder("Filter by name").fill("late")
    page.keyboard.press("Enter")
    conversation.finish()

    def tick(row: int, shown: set[str]) -> None:
        page.locator(".dvn-scroller").first.click(position={"x": 18, "y": 38 + 35 * row + 17})
        page.wait_for_url(lambda link: set(re.findall(r"run=([^&]+)", link)) == shown)  # it is sent with a delay
        conversation.finish()

    tick(1, {first})
    tick(0, {first, second})
    before = page.locator(".dvn-scroller").first.element_handle()
    page.go_back()
    page.wait_for_function("table => !table.isConnected", arg=before)
    conversation.finish()
    expect(page.get_by_role("heading", name="Later", exact=True)).to_be_visible()
    tick(0, {first, second})


@pytest.mark.exhaustive
def test_run_that_another_visitor_deletes_disappears(page: Page, url: str, folder: Path) -> None:
    run = write_run(folder, "Deleted elsewhere")
    page.goto(f"{url}/runs?run={run}")
    expect(page.get_by_role("heading", name="Deleted elsewhere")).to_be_visible()
    control.delete(run)
    expect(page.get_by_text("There is no such run.")).to_be_visible()
    expect(page.get_by_role("heading", name="Deleted elsewhere")).not_to_be_attached()


def test_reload_keeps_the_display_of_curves(page: Page, url: str, folder: Path) -> None:
    run = write_run(folder, "Seen")
    page.goto(f"{url}/runs?run={run}")
    sliders = page.get_by_test_id("stSlider")  # by name: while the page is drawn, another one may be first
    smoothing, zoom = (sliders.filter(has_text=name).get_by_role("slider").first for name in ("Smoothing", "Zoom"))
    smoothing.press("ArrowRight")
    expect(page).to_have_url(re.compile("smoothing=0.61"))
    zoom.press("ArrowRight")
    expect(page).to_have_url(re.compile("epochs=1-"))
    page.get_by_text("Logarithmic loss").click()
    expect(page).to_have_url(re.compile("log=1"))
    page.reload()
    page.get_by_role("radio", name="Log", exact=True).click()  # and another view
    expect(page).to_have_url(re.compile("view=log"))
    page.get_by_role("radio", name="Curves", exact=True).click()
    expect(smoothing).to_have_value("0.61")
    expect(zoom).to_have_value("1")
    expect(page.get_by_label("Logarithmic loss")).to_be_checked()
    expect(page).to_have_url(re.compile(f"run={run}"))


def test_attention_follows_the_slider_and_the_choice_is_kept(
    page: Page, url: str, folder: Path, conversation: Conversation
) -> None:
    run = write_run(folder, "Probed", probes=True)
    page.goto(f"{url}/runs?run={run}&view=attention")
    expect(page.locator("canvas.over")).to_be_visible()
    shown = "v && v.payload && [v.payloadId, v.selection.block, v.selection.head]"
    ask = f"(() => {{ const v = {FIND}; return {shown}; }})()"
    page.wait_for_function(f"() => {ask}")
    page.locator("canvas.over").press("PageUp")
    conversation.finish()
    first = page.evaluate(ask)
    slider = page.get_by_role("slider", name=re.compile("Epoch"))
    slider.press("ArrowLeft")
    page.wait_for_function(f"(old) => {{ const now = {ask}; return now && now[0] !== old; }}", arg=first[0])
    assert page.evaluate(ask)[1:] == first[1:]


def test_several_selected_rows_are_compared(page: Page, url: str, folder: Path) -> None:
    some = [write_run(folder, f"Depth {depth}", depth=depth) for depth in (1, 2)]
    page.goto(f"{url}/runs?" + "&".join(f"run={run}" for run in some))
    expect(page.locator(".st-key-compared-accuracy canvas, .st-key-compared\\ accuracy canvas").first).to_be_visible()
    text = download(page, "Download CSV").decode()
    assert "Blocks" in text and "Depth 1" in text


def test_page_fits_a_phone(page: Page, url: str, folder: Path) -> None:
    run = write_run(folder, "Small")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/runs?run={run}")
    expect(page.locator(".st-key-loss canvas").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_table_covers_no_control(page: Page, url: str, folder: Path) -> None:
    """The table's toolbar appears on hover, above the table."""
    write_run(folder, "Listed")
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{url}/runs")
    table = page.get_by_test_id("stDataFrame").first
    table.hover()
    tools = page.get_by_test_id("stElementToolbar").first
    expect(tools).to_be_visible()
    box = page.get_by_test_id("stTextInput").first.bounding_box()
    assert box["y"] + box["height"] <= tools.bounding_box()["y"]


@pytest.mark.exhaustive
def test_refusal_does_not_close_the_form(page: Page, url: str, folder: Path) -> None:
    run = write_run(folder, "Named")
    page.goto(f"{url}/runs?run={run}")
    page.get_by_role("button", name="Edit").click()
    name = page.get_by_test_id("stPopoverBody").get_by_label("Name")
    name.fill(" ")
    name.press("Tab")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("A run needs a name")).to_be_visible()
    name.fill("Better")
    name.press("Enter")
    expect(page.get_by_role("heading", name="Better")).to_be_visible()
    expect(page.get_by_text("A run needs a name")).to_be_hidden()


@pytest.mark.exhaustive
def test_names_of_many_curves_are_not_truncated(page: Page, url: str, folder: Path) -> None:
    words = "(Long) name that is much longer than a legend has room for"
    some = [write_run(folder, f"{words} {number}") for number in (1, 2)]
    page.goto(f"{url}/runs?" + "&".join(f"run={run}" for run in some))
    canvas = page.locator(".st-key-compared-accuracy canvas, .st-key-compared\\ accuracy canvas").first
    expect(canvas).to_be_visible()
    # rows of the canvas, right of the title, with pixels of the names: as many as the letters are high
    count = """(canvas) => { const scale = canvas.width / canvas.clientWidth;
      const [left, wide, high] = [160 * scale, 60 * scale, 36 * scale];
      const { data, width } = canvas.getContext('2d').getImageData(left, 0, wide, high);
      const rows = new Set();
      for (let i = 3; i < data.length; i += 4) if (data[i] > 40) rows.add(Math.floor(i / 4 / width));
      return rows.size / scale; }"""
    page.wait_for_function(f"(canvas) => ({count})(canvas) >= 12", arg=canvas.element_handle())  # as high as brackets


def test_refused_notifications_are_reported(page: Page, url: str, folder: Path) -> None:
    write_run(folder, "Quiet")
    page.add_init_script("Object.defineProperty(Notification, 'permission', { get: () => 'denied' })")
    page.goto(f"{url}/runs")
    expect(page.get_by_role("button", name="Notifications are blocked")).to_be_visible()
