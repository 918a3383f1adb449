"""The statements of docs/architecture.md on files and folders hold."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def paths_in_tree() -> set[str]:
    """Return every file and folder of the tree, as a path in the project."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    tree = text.split("## Files")[1].split("```")[1]
    folders: list[str] = []
    result = set()
    for line in filter(str.strip, tree.splitlines()):
        depth = (len(line) - len(line.lstrip())) // 2
        names = re.match(r"\s*((?:[\w./<>-]+)(?:, [\w./<>-]+)*)(?:\s|$)", line)
        if names is None or depth > len(folders) or not re.search(r"[./]", names[1]):
            continue  # a line that continues with prose
        for name in names[1].split(", "):
            result.add("/".join([*folders[:depth], name.rstrip("/")]))
        if names[1].endswith("/"):
            folders[depth:] = [names[1].rstrip("/")]
    return result


def test_files_in_the_tree_exist() -> None:
    missing = {name for name in paths_in_tree() if not (ROOT / name).exists()}
    assert not missing


def test_tree_lists_every_folder_of_the_pages_and_every_file_beside_them() -> None:
    pages = {f"pages/{path.name}" for path in (ROOT / "pages").iterdir() if (path / "__init__.py").exists()}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    beside = {path for path in listed if "/" not in path} - {".gitignore", "README.md"}
    assert not (pages | beside) - paths_in_tree()


def test_tree_lists_every_module_of_the_package() -> None:
    """Except for the command line and packages per library, which are listed as folders."""
    quiet = ("vit/cli/", "vit/checkpoints/families/", "vit/images/samples/")
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "vit").rglob("*.py") if path.name != "__init__.py"}
    assert not {name for name in modules if not name.startswith(quiet)} - paths_in_tree()


def test_user_data_is_ignored_by_git_and_shipped_files_are_not() -> None:
    made = ["checkpoints/mine/model.safetensors", "checkpoints/.mine.new/config.json", "runs/a/config.json"]
    shipped = ["checkpoints/cifar10/model.safetensors", "checkpoints/everyday/README.md"]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *made, *shipped], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout.split() == made
