"""The viewer's own JavaScript, CSS and HTML, for whoever puts it on a page; needs no Streamlit.

Streamlit takes a component's JavaScript as one module, and the viewer as a file holds one script, whose digest its
policy names. `joined` makes that one text of the ES modules here, so that whoever runs the app needs no bundler.
"""

import posixpath
import re
from pathlib import Path

_FOLDER = Path(__file__).parent

_IMPORT = re.compile(r'import \{ (?P<names>\w+(?:, \w+)*) \} from "(?P<path>\.\.?/[\w/]+)\.js";')
_EXPORT = re.compile(r"export (?=(?:async function|function|class|const) (?P<name>\w+)\b)")
_DOCUMENTATION = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/\n", re.M | re.S)  # types among it, for checkers
_COMMENT = re.compile(r"\s*(?://|/\*|\*)")
_OTHER = re.compile(r"\b(?:import|export)\b")


def read(name: str) -> str:
    """One of the files here."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def joined(entry: str, folder: Path = _FOLDER) -> str:
    """A module with all that it imports, directly or not, as one module that imports nothing.

    Every other module becomes a function, called once, that returns what the module exports: its other names stay its
    own. A module may import names from others here or in folders below, a line each, and export functions, classes and
    constants where it declares them; the entry may have a default export.

    Raises:
        ValueError: a module imports or exports in another way, or in a circle, or what is not exported.
    """
    parts: dict[str, str] = {}  # by module, each after those that it imports
    exports: dict[str, list[str]] = {}

    def add(stem: str, importers: tuple[str, ...]) -> None:
        if stem in importers:
            raise ValueError(f"Modules import each other: {' > '.join((*importers, stem))}.")
        if stem in parts:
            return
        lines, names = [], []
        for number, line in enumerate((folder / f"{stem}.js").read_text(encoding="utf-8").splitlines(), 1):
            imported = _IMPORT.fullmatch(line)
            if imported and (source := _resolved(stem, imported["path"])):
                add(source, (*importers, stem))
                if missing := set(imported["names"].split(", ")) - set(exports[source]):
                    raise ValueError(f"{stem}.js:{number}: {source}.js does not export {min(missing)}.")
                line = f"const {{ {imported['names']} }} = {_variable(source)};"
            elif exported := _EXPORT.match(line):
                names.append(exported["name"])
                line = line.removeprefix("export ")
            default = not importers and line.startswith("export default ")
            if _OTHER.search(line.removeprefix("export default ") if default else line) and not _COMMENT.match(line):
                raise ValueError(f"{stem}.js:{number}: only plain imports and exports can be joined, not: {line}")
            lines.append(line)
        text = _DOCUMENTATION.sub("", "\n".join(lines))
        if importers:
            text = f"const {_variable(stem)} = (() => {{\n{text}\nreturn {{ {', '.join(names)} }};\n}})();"
        parts[stem] = text
        exports[stem] = names

    add(entry.removesuffix(".js"), ())
    return "\n\n".join(parts.values()) + "\n"


def _resolved(importer: str, path: str) -> str:
    """The module that a path means in another one, both from the folder on; "" outside of it."""
    stem = posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
    return "" if stem.startswith("..") else stem


def _variable(stem: str) -> str:
    """That holds what a module exports."""
    return f"{stem.replace('/', '_')}_js"
