"""Names in docstrings exist: exceptions under Raises, parameters under Args, fields under Attributes."""

import ast
import builtins
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TREES = {
    str(path.relative_to(ROOT)): ast.parse(path.read_text())
    for folder in ("vit", "pages")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
CLASSES = {node.name for tree in TREES.values() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def entries(docstring: str, section: str) -> list[str]:
    """Return the names of a section of a docstring; a line such as "one, other: text" has two."""
    found = re.search(rf"^{section}:\n((?:    .*\n|\n)+)", docstring + "\n", re.MULTILINE)
    heads = re.findall(r"^ {4}([*\w][\w., *]*):(?:\s|$)", found[1], re.MULTILINE) if found else []
    return [name.strip(" *") for head in heads for name in head.split(",")]


def fields(node: ast.ClassDef) -> set[str]:
    """Return what a class declares, defines, or assigns to its instances."""
    stored = [one for one in ast.walk(node) if isinstance(one, ast.Name | ast.Attribute)]
    names = {one.id if isinstance(one, ast.Name) else one.attr for one in stored if isinstance(one.ctx, ast.Store)}
    return names | {one.name for one in node.body if isinstance(one, ast.FunctionDef)}


def parameters(node: Definition) -> set[str]:
    """Return the parameters of a function; of a class, its fields and the parameters of its `__init__`."""
    if isinstance(node, ast.ClassDef):
        return fields(node).union(*(parameters(one) for one in node.body if isinstance(one, ast.FunctionDef)))
    return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}


def exceptions(tree: ast.Module) -> set[str]:
    """Return every class of the project and of Python, and every name that a module imports."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    packages = {(node.module or "").split(".")[0] for node in imports if isinstance(node, ast.ImportFrom)}
    return (
        CLASSES
        | set(dir(builtins))
        | packages
        | {alias.asname or alias.name for node in imports for alias in node.names}
    )


def unknown(tree: ast.Module) -> list[str]:
    """Return the names in a module's docstrings that do not exist."""
    found, known = list[str](), exceptions(tree)
    for node in ast.walk(tree):
        if not isinstance(node, Definition) or not (docstring := ast.get_docstring(node)):
            continue
        sections = {"Args": parameters(node), "Raises": known}
        if isinstance(node, ast.ClassDef):
            sections["Attributes"] = fields(node)
        for section, names in sections.items():
            missing = (
                one for one in entries(docstring, section) if one not in names and one.split(".")[0] not in names
            )
            found += [f"{node.name}, {section}: {one}" for one in missing]
    return found


@pytest.mark.parametrize("path", TREES)
def test_names_in_docstrings_exist(path: str) -> None:
    assert unknown(TREES[path]) == []


def test_names_that_do_not_exist_are_found() -> None:
    docstring = "Read.\n\n    Args:\n        path, mode: a file.\n\n    Raises:\n        NoSuch: never."
    code = f'def read(path):\n    """{docstring}"""'
    assert unknown(ast.parse(code)) == ["read, Args: mode", "read, Raises: NoSuch"]
