"""The command line: output, files, and one line for every mistake."""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import Command, Result, check_mistake
from PIL import Image
from written_runs import write_run

import vit
from vit import view
from vit.cli import training
from vit.cli.main import main
from vit.explain.methods import METHODS
from vit.paths import runs_folder
from vit.training.runs import registry
from vit.training.runs.error_report import read as read_report

ROOT = Path(vit.__file__).parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two training and two test pictures of each of two classes of the tiny checkpoint."""
    root = tmp_path / "pictures"
    for split in ("train", "test"):
        for label in ("cat", "dog"):
            (root / split / label).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (16, 16), (i * 99, 80, 20)).save(root / split / label / f"{i}.png")
    return root


TINY = ["image_size=16", "dim=24", "heads=2", "depth=1", "mlp_dim=48", "batch_size=4", "device=cpu"]


def settings(*pairs: str) -> list[str]:
    """Combine several settings behind one `--set`, and each behind its own."""
    return ["--set", *TINY, *(word for pair in pairs for word in ("--set", pair))]


# --- classify -----------------------------------------------------------------------------------------------------


def test_classify_prints_the_models_predictions(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--json")
    document = json.loads(result.out)
    checkpoint = vit.load_checkpoint(saved)
    with torch.inference_mode():
        pixels = checkpoint.preprocess(vit.decode_image(picture.read_bytes()))
        truth = dict(zip(checkpoint.labels, checkpoint.model(pixels).logits[0].softmax(0).tolist(), strict=True))
    probabilities = {p["label"]: p["probability"] for p in document["results"][0]["predictions"]}
    assert result.status == 0
    assert (document["sha256"], document["identity"]) == (checkpoint.hash, checkpoint.identity)
    assert probabilities == pytest.approx(truth)
    assert list(probabilities.values()) == sorted(probabilities.values(), reverse=True)


@pytest.mark.parametrize(("top", "shown"), [(1, 1), (3, 3), (99, 5), (0, 1), (-1, 1)])
def test_top_limits_the_predictions(command: Command, saved: Path, picture: Path, top: int, shown: int) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--json", f"--top={top}")
    assert len(json.loads(result.out)["results"][0]["predictions"]) == shown


def test_classify_takes_several_pictures(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, picture, "--checkpoint", saved)
    assert result.out.count(str(picture)) == 2
    assert result.out.count("%") == 10


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_unreadable_picture_does_not_affect_the_others(
    command: Command, saved: Path, picture: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    result = command("classify", broken, picture, tmp_path / "absent.png", "--checkpoint", saved, *options)
    assert result.status == 2 and result.out.count(str(picture)) == 1
    one, other = result.err.splitlines()
    assert str(broken) in one and str(tmp_path / "absent.png") in other
    if options:
        assert json.loads(result.out)["problems"] == result.err.splitlines()


def test_answer_at_another_size_equals_that_of_the_page(command: Command, saved: Path, picture: Path) -> None:
    result = command("classify", picture, "--checkpoint", saved, "--size", 64, "--json")
    checkpoint, size = vit.load_checkpoint(saved), (64, 64)
    of_page = view.explain(checkpoint, picture.read_bytes(), size).predictions
    document = json.loads(result.out)
    assert document["size"] == list(size)
    assert {one["label"]: one["probability"] for one in document["results"][0]["predictions"]} == pytest.approx(
        {one.label: one.probability for one in of_page[:5]}
    )
    plain = json.loads(command("classify", picture, "--checkpoint", saved, "--json").out)
    assert plain["results"] != document["results"]


def test_model_without_classes_does_not_classify(
    command: Command, tmp_path: Path, picture: Path, build: Any, preprocess: Any
) -> None:
    features = vit.save_checkpoint(tmp_path / "features", build(num_classes=0), (), preprocess)
    check_mistake(command("classify", picture, "--checkpoint", features), "has no classes")


# --- evaluate -----------------------------------------------------------------------------------------------------


def test_evaluate_prints_one_document(command: Command, saved: Path, folder: Path) -> None:
    result = command("evaluate", "--checkpoint", saved, "--data", f"folder:{folder}", "--json")
    document = json.loads(result.out)
    assert result.status == 0
    assert document["pictures"] == 4
    assert 0 <= document["accuracy"] <= 1
    assert document["data"] == f"folder:{folder}"


def test_evaluate_prints_the_same_figures_as_text(command: Command, saved: Path, folder: Path) -> None:
    arguments = ("evaluate", "--checkpoint", saved, "--data", f"folder:{folder}")
    result = json.loads(command(*arguments, "--json").out)
    assert result["right"] == 4 * result["accuracy"] and result["interval"][0] < result["accuracy"] + 0.01
    low, high = (f"{100 * end:.0f}" for end in result["interval"])
    assert command(*arguments).out.startswith(f"{result['right']} of 4 pictures right ({low} to {high} %), ")


# --- train --------------------------------------------------------------------------------------------------------


def test_train_leaves_a_run_whose_checkpoint_the_other_commands_open(
    command: Command, folder: Path, picture: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    trained = command("train", "--preset", "shapes", "--data", f"folder:{folder}", *settings("epochs=1"), "--run", run)
    assert trained.status == 0
    assert "validation pictures right" in trained.out and "of 4 test pictures right" in trained.out
    assert command("classify", picture, "--checkpoint", run / "checkpoints" / "best").status == 0
    resumed = command("train", "--resume", run)
    assert resumed.status == 0
    assert resumed.out.splitlines()[-1] == trained.out.splitlines()[-1]


def test_runs_description_trains_it_again(command: Command, folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    command("train", "--data", f"folder:{folder}", *settings("epochs=1"), "--run", first)
    assert command("train", "--config", first / "config.json", "--run", second).status == 0
    weights = [(run / "checkpoints/last/model.safetensors").read_bytes() for run in (first, second)]
    assert weights[0] == weights[1]


@pytest.fixture
def trained(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A finished run; its id."""
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    assert main(["train", "--data", f"folder:{folder}", *SMALL]) == 0
    return next((tmp_path / "runs").glob("2*")).name


SMALL = ["--set", "epochs=1", "image_size=8", "patch_size=4", "dim=16", "depth=1", "heads=2", "mlp_dim=16"]


def test_runs_are_listed_and_shown(command: Command, trained: str) -> None:
    listed = command("runs")
    assert listed.status == 0
    assert listed.out.split()[:3] == [trained, "finished", "100%"]
    assert re.search(r"validation \d of \d \(\d+ to \d+ %\), test \d of 4 \(\d+ to \d+ %\)", listed.out)
    shown = command("runs", "show", trained)
    assert json.loads(shown.out[shown.out.index("{") : shown.out.rindex("}") + 1])["dim"] == 16


def test_closed_pipe_ends_a_command_silently(tmp_path: Path) -> None:
    write_run(tmp_path, "one")
    unread, pipe = os.pipe()
    os.close(unread)
    line = [sys.executable, "-m", "vit", "runs"]
    done = subprocess.run(line, stdout=pipe, stderr=subprocess.PIPE, env=os.environ | {"VIT_RUNS": str(tmp_path)})
    os.close(pipe)
    assert (done.returncode, done.stderr) == (141, b"")


def test_finished_run_is_neither_stopped_nor_resumed(command: Command, trained: str) -> None:
    assert command("runs", "stop", trained) == (2, "", "This run has ended already.\n")
    assert command("runs", "resume", trained).err == "This run has finished. Give it more epochs to continue it.\n"
    assert command("runs", "show", "none").err == "There is no such run. It may have been deleted.\n"
    assert "Name a run" in command("runs", "stop").err


def test_runs_are_deleted_only_when_confirmed(command: Command, trained: str, tmp_path: Path) -> None:
    said = command("runs", "delete", trained)
    assert said.status == 0 and said.out.startswith(f"Would delete {trained}: ") and "--yes" in said.out
    assert (tmp_path / "runs" / trained / "config.json").exists()
    assert command("runs", "delete", trained, "none", "--yes").status == 2  # one unknown id: nothing is deleted
    assert (tmp_path / "runs" / trained).exists()
    assert command("runs", "delete", trained, "--yes").out.startswith(f"Deleted {trained}: ")
    assert not any((tmp_path / "runs").glob("*dele*")) and not (tmp_path / "runs" / trained).exists()


def test_evaluate_stores_the_mistakes(command: Command, saved: Path, folder: Path, tmp_path: Path) -> None:
    data = f"folder:{folder}"
    result = command("evaluate", "--checkpoint", saved, "--data", data, "--report", tmp_path / "report.npz", "--json")
    assert result.status == 0, result.err
    confusion = read_report(tmp_path / "report.npz").confusion
    assert confusion.sum() == 4
    assert confusion.trace() / 4 == json.loads(result.out)["accuracy"]
    alone = json.loads(command("evaluate", "--checkpoint", saved, "--data", data, "--json").out)
    assert json.loads(result.out) == alone


def test_settings_are_listed(command: Command) -> None:
    result = command("train", "--settings")
    assert result.status == 0
    assert "warmup_epochs" in result.out and "cifar-cpu" in result.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "Name a --preset (shapes, "),
        (["--preset=nope"], "There is no preset 'nope'"),
        (["--preset=shapes", "--set=nope=1"], "There is no setting 'nope'"),
        (["--preset=shapes", "--set=preset=1"], "There is no setting 'preset'"),
        (["--preset=shapes", "--set=epochs"], "--set takes KEY=VALUE, not 'epochs'"),
        (["--preset=shapes", "--set=epochs=many"], "not 'many'"),
        (["--preset=shapes", "--set=lr=NaN"], "lr must be a finite number, not nan."),
        (["--preset=shapes", "--set=grad_clip=Infinity"], "grad_clip must be a finite number, not inf."),
        (["--preset=shapes", "--set=device=tpu"], "device must be auto, cpu"),
        (["--preset=shapes", "--set=heads=7"], "heads 7 does not divide dim 48"),
        (["--preset=shapes", "--data=imagenet"], "There is no dataset 'imagenet'"),
        (["--preset=shapes", "--data=folder:nowhere"], "/nowhere'. Name one that holds"),
        (["--preset=shapes", "--run=used"], "used exists and is not empty. Continue it with --resume used"),
        (["--resume=nowhere"], "--resume needs the folder of a run; nowhere/config.json cannot be read"),
        (["--resume=used", "--preset=shapes"], "with its own settings"),
        (["--config=used/notes.txt"], "used/notes.txt is not JSON"),
        (["--config=nowhere.json"], "nowhere.json cannot be read: No such file"),
        (["--config=list.json"], "list.json must hold one JSON object"),
        (["--fast"], "Unrecognized arguments: --fast"),
    ],
)
def test_impossible_run_is_refused_in_one_line(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "notes.txt").write_text("mine")
    (tmp_path / "list.json").write_text("[1]")
    check_mistake(command("train", *options), said)
    assert (tmp_path / "used" / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_folder_that_page_runs_would_not_list_is_refused(command: Command) -> None:
    check_mistake(command("train", "--preset", "shapes", "--run-dir", runs_folder() / "My_Run"), "'My_Run' is none")


def test_processes_without_a_common_folder_are_refused(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    check_mistake(command("train", "--preset", "shapes"), "Name it with --run-dir")


def test_run_keeps_its_name_and_absolute_paths(
    command: Command, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for picture in list(folder.glob("train/*/*.png")):  # enough for validation
        for number in range(4):
            shutil.copy(picture, picture.with_name(f"{picture.stem}-{number}.png"))
    few = ["epochs=1", "image_size=8", "patch_size=4", "dim=16", "depth=1", "heads=2", "mlp_dim=16", "device=cpu"]
    data = ["--data", f"folder:{folder.name}", "--run-dir", tmp_path / "runs" / "first"]
    assert command("train", "--name", "日本語, Größe", *data, "--set", *few).status == 0
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    run = registry.find_run("first")
    assert run.name == "日本語, Größe"
    assert (run.config["data"], run.config["data_root"]) == (f"folder:{folder}", str(folder.parent / "data"))


def test_run_of_another_program_is_not_trained_over(command: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"epochs": 2}')
    (tmp_path / "environment.json").write_text('{"loop": "Lightning", "attempt": 0}')
    check_mistake(command("train", "--resume", tmp_path), "trained by another program (Lightning)")
    assert (tmp_path / "config.json").read_text() == '{"epochs": 2}'


def test_missing_gpu_is_refused_in_one_line(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    arguments = ("train", "--preset", "shapes", "--set", "device=cuda", "--run", tmp_path / "run")
    check_mistake(command(*arguments), "there is no CUDA GPU")


# --- All commands -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"), [(None, "No such file"), (b"", "picture.jpg: "), (b"plain text", "picture.jpg: ")]
)
def test_non_picture_is_refused_in_one_line(
    command: Command, saved: Path, tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = tmp_path / "picture.jpg"
    if content is not None:
        path.write_bytes(content)
    check_mistake(command("classify", path, "--checkpoint", saved), said)


def test_unknown_checkpoint_is_refused_in_one_line(command: Command, picture: Path) -> None:
    check_mistake(command("classify", picture, "--checkpoint", "nowhere"), "nowhere")


@pytest.mark.parametrize("name", ["classify", "explain", "evaluate", "train"])
def test_every_command_has_help(command: Command, name: str) -> None:
    result = command(name, "--help")
    assert result.status == 0
    assert f"python -m vit {name}" in result.out


@pytest.mark.slow
def test_process_ends_with_status_2_and_one_line_for_a_mistake(tmp_path: Path) -> None:
    mistake = [sys.executable, "-m", "vit", "train", "--preset", "shapes", "--data", "folder:nowhere"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(mistake, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    check_mistake(Result(done.returncode, done.stdout, done.stderr), "/nowhere'. Name one that holds")


def test_bug_in_a_method_is_not_reported_as_a_users_mistake(
    command: Command, saved: Path, picture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(METHODS, "gradcam", replace(METHODS["gradcam"], compute=lambda *_: int("bug")))
    with pytest.raises(ValueError, match="invalid literal"):
        command("explain", picture, "--checkpoint", saved, "--method=gradcam", "--out=map.npz")


def test_bug_keeps_its_traceback(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "run_train", lambda options: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # Python's exit status for a traceback is 1
        command("train")


def test_picture_of_twelve_bits_in_sixteen_is_reported_and_stretched(
    command: Command, saved: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cells.png"
    Image.fromarray(np.linspace(0, 4095, 90).astype(np.uint16)[None].repeat(60, 0)).save(path)
    dark = command("classify", path, "--checkpoint", saved)
    assert "cells.png uses 0 to 4,095 of 65,535" in dark.err and "--stretch" in dark.err
    stretched = command("classify", path, "--checkpoint", saved, "--stretch")
    assert stretched.status == 0 and not stretched.err and stretched.out != dark.out


def test_pages_of_a_tiff_that_are_not_read_are_reported(command: Command, saved: Path, tmp_path: Path) -> None:
    page = Image.new("RGB", (60, 40), "teal")
    page.save(tmp_path / "scan.tiff", save_all=True, append_images=[page, page])
    result = command("classify", tmp_path / "scan.tiff", "--checkpoint", saved)
    assert result.status == 0 and "scan.tiff has 3 pages, of which the first is shown." in result.err
