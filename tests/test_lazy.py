"""Packages expose modules without importing them: a module that a file imports at its top is loaded on first use."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

BOXES = (
    "checkpoints",
    "data",
    "explain",
    "images",
    "model",
    "exports",
    "training",
    "training.loop",
    "training.runs",
    "view",
)


def run(program: str) -> str:
    """Run a program in a process without prior imports, and return its output."""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_module_is_imported_on_first_use() -> None:
    output = run(
        "import sys; from vit.exports import animation\n"
        "print('torch' in sys.modules, 'vit.exports.animation' in sys.modules)\n"
        "print(animation.over_blocks.__module__, 'torch' in sys.modules)\n"
        "from vit.exports import animation as now\n"
        "print(type(now).__name__, now is sys.modules['vit.exports.animation'])"
    )
    assert output.split("\n") == ["False False", "vit.exports.animation True", "module True"]


@pytest.mark.parametrize("box", BOXES)
def test_importing_a_package_does_not_import_torch(box: str) -> None:
    output = run(f"import sys, pkgutil, vit.{box} as box\n"
               "for _, name, _ in pkgutil.iter_modules(box.__path__): getattr(box, name)\n"
               "print('torch' in sys.modules)")  # fmt: skip
    assert output == "False"


def test_patching_a_lazy_module_patches_the_module_and_is_undone() -> None:
    output = run(
        "from pytest import MonkeyPatch; from vit.view import captions\n"
        "with MonkeyPatch.context() as patch:\n"
        "    patch.setattr(captions, 'format_duration', 'another')\n"
        "    import vit.view.captions as module; print(module.format_duration, captions.format_duration)\n"
        "print(callable(module.format_duration), module.format_duration is captions.format_duration,\n"
        "      'format_duration' in vars(captions))"
    )
    assert output.split("\n") == ["another another", "True True True"]


def test_unknown_name_in_a_package_is_refused() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'nothing' from 'vit\.view'"):
        from vit.view import nothing  # type: ignore[attr-defined]  # noqa: F401


@pytest.mark.exhaustive
def test_names_imported_from_packages_exist() -> None:
    """Type checkers do not report this: for them, a package with lazy names may have any name."""
    missing, files = (
        [],
        [*ROOT.glob("vit/**/*.py"), *ROOT.glob("pages/**/*.py"), *ROOT.glob("tests/**/*.py"), ROOT / "app.py"],
    )
    for file in set(files) - {Path(__file__)}:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(("vit.", "pages.")):
                continue
            folder = ROOT / str(node.module).replace(".", "/")
            if not (folder / "__init__.py").exists():
                continue
            package, there = import_module(str(node.module)), {path.stem for path in folder.iterdir()}
            for name in (one.name for one in node.names):
                if name not in there and not hasattr(package, name):
                    missing.append((file.name, node.module, name))
    assert not missing
