"""Links, files, modules and commands in the documents exist."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
WORKFLOWS = sorted([*ROOT.glob(".github/workflows/*.yml"), ROOT / ".pre-commit-config.yaml"])
FOLDERS = ("app.py", "pages", "vit", "checkpoints", "benchmarks", "tests", "docs", ".github", ".streamlit", ".ci")
NOT_OURS = {".streamlit/secrets.toml"}  # created by a server's administrator
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
every_document = pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))


def prose(text: str) -> str:
    """Return a document without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """Return the headings of a document as GitHub's anchors."""
    headings = re.findall(r"^#+ +(.+)$", prose(path.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(text: str, path: Path) -> set[str]:
    """Return the relative links of a document, at a path, that resolve to nothing."""
    dead = set()
    for link in LINK.findall(prose(text)):
        if re.match(r"[a-z]+:", link):
            continue  # links to other sites
        file, _, anchor = link.partition("#")
        folder = path.parent / file if file else path
        if not folder.exists() or (anchor and anchor not in anchors(folder)):
            dead.add(link)
    return dead


def missing(text: str) -> set[str]:
    """Return files and names of the package that a document mentions as code and that do not exist."""
    spans = re.findall(r"`([^`\n]+)`", prose(text))
    files = {span for span in spans if re.fullmatch(r"[\w./-]+", span) and span.partition("/")[0] in FOLDERS}
    names = {span for span in spans if re.fullmatch(r"vit(\.\w+)+", span)}
    files = {file for file in files - NOT_OURS if not (ROOT / file).exists()}
    return files | {name for name in names if not exists(name)}


def exists(name: str) -> bool:
    """Whether a dotted name is a module or an attribute of one."""
    place, *rest = name.split(".")
    result: Any = importlib.import_module(place)
    for part in rest:
        if not hasattr(result, part):
            try:
                importlib.import_module(place := f"{place}.{part}")
            except ImportError:
                return False
        else:
            place = f"{place}.{part}"
        result = getattr(result, part)
    return True


@every_document
def test_links_between_documents_resolve(path: Path) -> None:
    assert not dead_links(path.read_text(), path)


@every_document
def test_documents_mention_only_existing_files(path: Path) -> None:
    assert not missing(path.read_text())


def test_every_document_can_be_reached_from_the_readme() -> None:
    """The README leads to the list of all documents."""
    every = ROOT / "docs" / "README.md"

    def linked(path: Path) -> set[Path]:
        return {(path.parent / link.partition("#")[0]).resolve() for link in LINK.findall(path.read_text())}

    assert every in linked(ROOT / "README.md")
    assert {path for path in DOCS if path.name != "README.md"} <= linked(every)


def test_dead_links_and_missing_names_would_be_noticed() -> None:
    text = (
        "[a](docs/nothing.md) [b](README.md#nothing) [c](README.md#licence) `vit/nothing.py` `vit.files.no` `vit.files`"
    )
    assert dead_links(text, ROOT / "README.md") == {"docs/nothing.md", "README.md#nothing"}
    assert missing(text) == {"vit/nothing.py", "vit.files.no"}


@pytest.mark.parametrize("path", [*DOCS, *WORKFLOWS], ids=lambda path: path.name)
def test_every_make_target_in_the_documents_exists(path: Path) -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    named = re.findall(r"(?:`|^|run: )make ([a-z]+)", path.read_text(), re.MULTILINE)
    assert set(named) <= set(targets)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_existing_files_and_targets(path: Path) -> None:
    document = yaml.safe_load(path.read_text())
    steps = [step["run"] for job in document.get("jobs", {}).values() for step in job["steps"] if "run" in step]
    hooks = [hook["entry"] for repository in document.get("repos", []) for hook in repository["hooks"]]
    commands = [command.split() for command in steps + hooks]
    assert commands
    for command in commands:
        assert command[0] == "make" or command[0].startswith(".venv/bin/") or (ROOT / command[0]).exists()
        assert all((ROOT / word).exists() for word in command if word.startswith("tests/"))
