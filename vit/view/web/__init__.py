"""The viewer's JavaScript, CSS and HTML. Does not depend on Streamlit.

Streamlit accepts a component's JavaScript as a single module, and the standalone viewer has a single script whose hash
is in its content security policy. `joined` bundles the ES modules of this folder, so that the app needs no bundler.
"""

import posixpath
import re
from pathlib import Path

_FOLDER = Path(__file__).parent

_IMPORT = re.compile(r'import \{ (?P<names>\w+(?:, \w+)*) \} from "(?P<path>\.{1,2}/(?:\.\./)*[\w/]+)\.js";')
_EXPORT = re.compile(r"export (?=(?:async function|function|class|const) (?P<name>\w+)\b)")
_DOCUMENTATION = re.compile(r"^[ \t]*/\*\*(?:(?!\*/).)*\*/\n", re.M | re.S)  # JSDoc, which only type checkers need
_COMMENT = re.compile(r"\s*(?://|/\*|\*)")
_OTHER = re.compile(r"\b(?:import|export)\b")


def read(name: str) -> str:
    """Read a file of this folder."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def joined(entry: str, folder: Path = _FOLDER) -> str:
    """Bundle a module and all of its transitive imports into one module without imports.

    Every imported module becomes an immediately invoked function that returns its exports, so that other names stay
    private. Modules may import names from this folder and its subfolders, one line per import, and export functions,
    classes and constants where they are declared. The entry may have a default export.

    Raises:
        ValueError: another form of import or export, a circular import, or an import of a name that is not exported.
    """
    parts: dict[str, str] = {}  # by module, in order of dependency
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
    """Resolve an import path relative to the importing module; "" if it leaves the folder."""
    stem = posixpath.normpath(posixpath.join(posixpath.dirname(importer), path))
    return "" if stem.startswith("..") else stem


def _variable(stem: str) -> str:
    """Return the name of the variable for a module's exports."""
    return f"{stem.replace('/', '_')}_js"
