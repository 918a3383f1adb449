"""The viewer's JavaScript modules are bundled into one text, or refused."""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from node import NODE
from patience import PATIENCE

from vit.lesson.page import bundled
from vit.view.web import joined

ENTRIES = (
    "component.js",
    "feeder.js",
    "kernel_link.js",
    "notebook.js",
    "standalone.js",
)
LESSON = ("lesson.js", "worker.js")
EXPORTING = ENTRIES[:3]


@pytest.fixture
def join(tmp_path: Path) -> Callable[..., str]:
    """Return `join(main="...", other="...")`, which bundles modules with these texts, `main` last."""

    def write(**modules: str) -> str:
        for name, text in modules.items():
            (tmp_path / f"{name}.js").write_text(text)
        return joined("main.js", tmp_path)

    return write


def run(script: str) -> str:
    """Run a module and return its output."""
    command = [NODE, "--input-type=module", "--eval", script]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE).stdout.strip()


def bundle(entry: str) -> str:
    return bundled(entry) if entry in LESSON else joined(entry)


@pytest.mark.parametrize("entry", ENTRIES + LESSON)
def test_bundle_imports_nothing_and_contains_no_closing_script_tag(entry: str) -> None:
    text = bundle(entry)
    assert not re.search(r"^\s*import\b|\bimport\s*\(", text, re.M)
    assert len(re.findall(r"^export ", text, re.M)) == (entry in EXPORTING)
    assert "</script" not in text.lower()


@pytest.mark.parametrize("entry", ENTRIES + LESSON)
def test_bundle_is_valid_javascript(entry: str, tmp_path: Path) -> None:
    file = tmp_path / "joined.mjs"
    file.write_text(bundle(entry))
    subprocess.run([NODE, "--check", str(file)], check=True, timeout=PATIENCE)


def test_bundled_modules_behave_like_separate_ones(join: Callable[..., str]) -> None:
    text = join(
        main='import { twice, Counter } from "./other.js";\nimport { base } from "./base.js";\n\n'
        "const step = 5; // of this module\nconsole.log(twice(base), new Counter().next(), step);\n",
        other='import { base } from "./base.js";\n\n/** Of\n * two. */\nexport function twice(x) { return 2 * x; }\n'
        "const step = base;\nexport class Counter {\n  next() {\n    return step + 1;\n  }\n}\n",
        base='// Runs once, though two import it.\nconsole.log("once");\nexport const base = 21;\n',
    )
    assert run(text) == "once\n42 22 5"


def test_modules_of_a_subfolder_import_from_it_and_from_above(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "base.js").write_text("export const base = 21;\n")
    (tmp_path / "part" / "base.js").write_text(
        'import { base } from "../base.js";\nexport const twice = 2 * base;\n'  # two of one name
    )
    (tmp_path / "part" / "main.js").write_text(
        'import { base } from "../base.js";\nimport { twice } from "./base.js";\nconsole.log(base, twice);\n'
    )
    assert run(joined("part/main.js", tmp_path)) == "21 42"


def test_entry_keeps_its_default_export(join: Callable[..., str]) -> None:
    text = join(main='import { f } from "./a.js";\n\nexport default f;\n', a="export async function f() {}\n")
    assert text.endswith("\nexport default f;\n")


REFUSED = {
    "another way to import": ('import f from "./a.js";', "export default 1;"),
    "everything": ('import * as a from "./a.js";', ""),
    "for its effects": ('import "./a.js";', ""),
    "under another name": ('import { f as g } from "./a.js";', "export const f = 1;"),
    "on several lines": ('import {\n  f,\n} from "./a.js";', "export const f = 1;"),
    "two in a line": ('import { f } from "./a.js"; import { g } from "./a.js";', "export const f = 1, g = 2;"),
    "while it runs": ('const a = await import("./a.js");', ""),
    "from elsewhere": ('import { f } from "https://example.org/a.js";', ""),
    "from outside": ('import { f } from "../a.js";', ""),
    "about itself": ("const here = import.meta.url;", ""),
    "what is not exported": ('import { f } from "./a.js";', "const f = 1;"),
    "a name of a list": ('import { f } from "./a.js";', "const f = 1;\nexport { f };"),
    "what changes": ('import { f } from "./a.js";', "export let f = 1;"),
    "what it passes on": ('import { f } from "./a.js";', 'export { f } from "./b.js";'),
    "a default": ('import { f } from "./a.js";', "export const f = 1;\nexport default f;"),
    "in a circle": ('import { f } from "./a.js";', 'import { g } from "./main.js";\nexport const f = 1;'),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_syntax_is_refused(join: Callable[..., str], kind: str) -> None:
    main, other = REFUSED[kind]
    with pytest.raises(ValueError, match=r"export|each other"):
        join(main=main, a=other)


def test_refusal_names_the_line(join: Callable[..., str]) -> None:
    with pytest.raises(ValueError, match=re.escape("a.js:2: only plain imports and exports")):
        join(main='import { f } from "./a.js";', a="export const f = 1;\nexport { f as g };\n")


def test_word_in_a_comment_is_no_import(join: Callable[..., str]) -> None:
    assert "import it" in join(main="// To\n// import it\nconst a = 1;\n")
