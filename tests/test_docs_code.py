"""The documents' commands and Python blocks run, and give the shapes in their comments."""

import ast
import contextlib
import io
import re
import shlex
from glob import glob
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from test_docs import DOCS, ROOT
from text_models import clip

import vit
from vit.cli.main import main
from vit.cli.parser import parser
from vit.images.preprocess import Preprocess
from vit.images.samples import SAMPLES

COMMAND = re.compile(r"^(?:.*-m vit|vit) (.+)$")
SHAPE = re.compile(r"# (\([\d, ]+\))")
ONE_PICTURE = ("classify", "explain", "convert")  # commands that need no dataset


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[list[str]]:
    """Return the arguments after `python -m vit` in the code blocks."""
    lines = "\n".join(blocks(text, "bash")).splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := COMMAND.match(line))]


def spans(text: str) -> list[list[str]]:
    """Return the arguments after `python -m vit` in inline code, where required arguments may be missing."""
    found = [match[1] for span in re.findall(r"`([^`\n]+)`", text) if (match := COMMAND.match(span))]
    return [shlex.split(words) for words in found if not words.startswith("COMMAND")]


@pytest.mark.parametrize("path", DOCS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_the_documents_exists(path: Path) -> None:
    text = path.read_text()
    for words in commands(text):
        parser().parse_args(words)
    for words in spans(text):
        assert not unknown(words), words


def unknown(words: list[str]) -> set[str]:
    """Return options that a command lacks; the command itself if it does not exist."""
    printed = io.StringIO()
    with (
        contextlib.suppress(SystemExit),
        contextlib.redirect_stdout(printed),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        parser().parse_args([words[0], "--help"])
    if not printed.getvalue():
        return {words[0]}
    return {word for word in words[1:] if word.startswith("--")} - set(re.findall(r"--[\w-]+", printed.getvalue()))


def test_unknown_commands_and_options_would_be_noticed() -> None:
    text = (
        "```bash\n.venv/bin/python -m vit explain a.jpg --nothing 3 --out b.png  # as below\n```\n`vit explore --top 3`"
    )
    with pytest.raises(SystemExit):
        parser().parse_args(commands(text)[0])
    assert unknown(spans(text)[0]) == {"explore"} and unknown(["classify", "--block", "3"]) == {"--block"}


@pytest.fixture
def example_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Any) -> dict[str, str]:
    """A folder with the files that the examples name; tiny models replace downloads."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photo.jpg").write_bytes(SAMPLES["cat"].path.read_bytes())
    for label, sample in (("cat", "cat"), ("dog", "horse")):
        (tmp_path / "data" / "pets" / label).mkdir(parents=True)
        picture = vit.decode_image(SAMPLES[sample].path.read_bytes()).resize((64, 64))
        for turn in range(6):
            picture.rotate(5 * turn).save(tmp_path / "data" / "pets" / label / f"{turn}.jpg")
    (tmp_path / "data" / "masks").mkdir()
    for turn in range(6):
        Image.new("L", (64, 64), 255).save(tmp_path / "data" / "masks" / f"{turn}.png")
    torch.manual_seed(0)
    clip(tmp_path / "clip")
    vit.save_checkpoint(tmp_path / "features", build(num_classes=0), (), Preprocess((32, 32)))
    return {
        "openai/clip-vit-base-patch32": str(tmp_path / "clip"),
        "facebook/dinov2-small": str(tmp_path / "features"),
        "google/vit-base-patch16-224": "cifar10",
    }


@pytest.mark.exhaustive
def test_commands_on_a_picture_run(example_files: dict[str, str]) -> None:
    found = [words for words in commands((ROOT / "docs" / "command-line.md").read_text()) if words[0] in ONE_PICTURE]
    for words in found:
        Path("map.png").unlink(missing_ok=True)
        arguments = [
            file for word in words for file in (sorted(glob(word)) if "*" in word else [example_files.get(word, word)])
        ]
        assert main(arguments) == 0, words
        assert words[0] != "explain" or Path(words[words.index("--out") + 1]).exists()
    assert list(Path("maps").glob("*.png"))
    said = {word for words in found for word in words}
    assert {"--text", "--template", "--examples", "--classifier"} <= said


def test_python_runs_and_gives_the_stated_shapes(example_files: dict[str, str]) -> None:
    names: dict[str, Any] = {}
    checked = 0
    for block in blocks((ROOT / "docs" / "python.md").read_text(), "python"):
        for name, place in example_files.items():
            block = block.replace(f'"{name}"', repr(place))
        for statement in ast.parse(block).body:
            exec(compile(ast.Module([statement], []), "python.md", "exec"), names)
            line = block.splitlines()[statement.lineno - 1]
            if (shape := SHAPE.search(line)) and isinstance(statement, ast.Expr | ast.Assign):
                value = eval(compile(ast.Expression(statement.value), "python.md", "eval"), names)
                assert tuple(value.shape) == ast.literal_eval(shape[1]), line
                checked += 1
    assert checked >= 9
    assert names["output"].logits.shape == (1, 10)
    assert [one.shape for one in names["output"].attentions] == [(1, 4, 65, 65)] * 6
    assert names["pets"].labels == ("cat", "dog")
    shares = names["clip"].model.probabilities(names["logits"]).detach()
    assert float(shares.sum()) == pytest.approx(1)
