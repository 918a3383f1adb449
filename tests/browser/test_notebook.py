"""The example notebook: executed without a browser, then opened in JupyterLab: untrusted, trusted, with and without its
kernel.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Frame, expect

from .jupyter import Notebook, environment, jupyter_lab
from .serving import ROOT

if TYPE_CHECKING:  # importing nbformat takes seconds, in each process that collects tests
    from nbformat import NotebookNode

EXAMPLE = ROOT / "docs" / "notebook.ipynb"
VIEWER = "document.querySelector('.vit').__vitViewer"
SHOW, SET, SELECTION = 1, 3, 5  # cells of the example


def drawn(frame: Frame) -> str:
    """Return the map once everything is drawn."""
    frame.wait_for_function(f"() => {VIEWER}.settled")
    return frame.locator("canvas.over").evaluate("canvas => canvas.toDataURL()")


def hovering_changes_the_map(frame: Frame) -> None:
    before = drawn(frame)
    frame.locator("canvas.over").hover(position={"x": 60, "y": 60})
    assert drawn(frame) != before


@pytest.fixture
def executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "NotebookNode":
    """The example after running all its cells."""
    import nbformat
    from nbclient import NotebookClient

    for name, value in environment(tmp_path).items():
        monkeypatch.setitem(os.environ, name, value)
    return NotebookClient(nbformat.read(EXAMPLE, 4), timeout=300, resources={"metadata": {"path": tmp_path}}).execute()


@pytest.fixture
def notebook(browser: Browser, tmp_path: Path) -> Iterator[Notebook]:
    """JupyterLab in a tab, with the notebooks of the test's folder."""
    with jupyter_lab(tmp_path) as address:
        page = browser.new_page(viewport={"width": 1280, "height": 1400})
        yield Notebook(page, address)
        page.close()


@pytest.mark.exhaustive
def test_the_example_in_jupyterlab(notebook: Notebook, tmp_path: Path, executed: "NotebookNode") -> None:
    import nbformat
    from nbformat.sign import NotebookNotary

    nbformat.write(executed, tmp_path / "untrusted.ipynb")
    nbformat.write(executed, tmp_path / "trusted.ipynb")
    keys = Path(os.environ["JUPYTER_DATA_DIR"])
    keys.mkdir(exist_ok=True)
    notary = NotebookNotary(data_dir=str(keys))

    notebook.open("untrusted.ipynb")
    expect(notebook.page.get_by_text("Trust this notebook").first).to_be_visible()
    expect(notebook.page.get_by_alt_text("The map").first).to_be_visible()
    assert notebook.page.locator("iframe.vit-view").count() == 0

    notary.sign(nbformat.read(tmp_path / "trusted.ipynb", 4))
    notebook.open("trusted.ipynb")  # its kernel has no state of the earlier execution
    hovering_changes_the_map(notebook.frame())
    assert notebook.frame().evaluate(f"{VIEWER}.alone") is True

    notebook.run(SHOW)
    frame = notebook.frame()
    expect(frame.get_by_role("button", name="AttnLRP")).to_be_visible()  # computed by the kernel
    hovering_changes_the_map(frame)
    frame.get_by_role("button", name="AttnLRP").click()
    expect(frame.locator(".sentence")).to_have_text(re.compile("AttnLRP: evidence for “cat”"))
    drawn(frame)
    assert "method='attnlrp'" in notebook.run(SELECTION)
    notebook.run(SET)
    expect(frame.locator(".sentence")).to_have_text("Block 3, mean of heads: attention from patch (row 4, col 5).")
    frame.locator("canvas.grid").focus()
    frame.page.keyboard.press("ArrowDown")
    expect(frame.locator(".sentence")).to_have_text(re.compile("^Block 4"))
    drawn(frame)  # keys are sent once they have settled
    assert "block=3" in notebook.run(SELECTION)
    other = notebook.frame(1)
    assert other.evaluate(f"{VIEWER}.selection.block") != 3  # each view independently

    notebook.menu("File", "Save Notebook")
    expect(notebook.page.locator(".lm-TabBar-tab.jp-mod-current.jp-mod-dirty")).to_have_count(0)
    notebook.menu("Kernel", "Shut Down Kernel")
    notebook.open("trusted.ipynb")
    hovering_changes_the_map(notebook.frame())
    assert notebook.hosts - {""} == {urlsplit(notebook.address).netloc}
