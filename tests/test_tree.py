"""The statements of docs/architecture.md on files and folders hold."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_map_lists_every_package_and_no_other_folder() -> None:
    tree = (ROOT / "docs" / "architecture.md").read_text().split("## Folders")[1].split("```")[1]
    folders, listed = list[str](), set[str]()
    for indent, name in re.findall(r"^( *)([\w/]+)/ ", tree, re.MULTILINE):
        folders[len(indent) // 2 :] = [name]
        listed.add("/".join(folders))
    packages = {
        str(file.parent.relative_to(ROOT)) for part in ("vit", "pages") for file in (ROOT / part).rglob("__init__.py")
    }
    assert packages | {"pages"} == {path for path in listed if path.startswith(("vit", "pages"))}


def test_user_data_is_ignored_by_git_and_shipped_files_are_not() -> None:
    made = ["checkpoints/mine/model.safetensors", "checkpoints/.mine.new/config.json", "runs/a/config.json"]
    shipped = ["checkpoints/cifar10/model.safetensors", "checkpoints/everyday/README.md"]
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *made, *shipped], cwd=ROOT, capture_output=True, text=True
    )
    assert ignored.stdout.split() == made
