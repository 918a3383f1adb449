"""Every file that the app writes for itself may be damaged: a reader says so in one sentence, or writes it again."""

import contextlib
import io
import json
import os
import random
import shutil
import signal
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from damages import damages, empty_place
from patience import PATIENCE
from PIL import Image
from short_runs import tiny
from tiny import LABELS, TINY, fill
from written_searches import write_search, write_trial

from pages.server import uploaded_pictures
from vit.checkpoints import load, manage, save
from vit.checkpoints.hub import models as hub
from vit.data import readable
from vit.data.archives import import_archive
from vit.data.layouts import class_names
from vit.data.packed import index
from vit.errors import UserError
from vit.explain import features
from vit.explain.features import Features
from vit.files import heartbeat_age, write_heartbeat
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.engines import clusters, contract
from vit.training.engines.contract import Handle, JobStatus, Request
from vit.training.loop import feature_store, fine_tuning, run_folder
from vit.training.loop.fine_tuning import Base
from vit.training.loop.presets import train_config
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.training.loop.train import train
from vit.training.runs import control, error_report, registry
from vit.training.runs import queue_file as queues
from vit.training.search import control as searches
from vit.training.trackers.follower import TRACKING, Follower
from vit.view import first_view
from vit.view.attention_snapshots import epoch_file, read_payload, read_snapshots

pytestmark = pytest.mark.usefixtures("short_refusals")

SEED = 7
MOST_DAMAGES = 40  # of a file, a sample of all


class Case(NamedTuple):
    """A folder, the files in it to damage, and what reads them; `read` may raise UserErrors only."""

    folder: Path
    files: list[Path]
    read: Callable[[], object]


Make = Callable[[Path], Case]
CASES: dict[str, Make] = {}


def case(make: Make) -> Make:
    CASES[make.__name__] = make
    return make


def call_each(*reads: Callable[[], object]) -> None:
    """Call every reader; each may refuse in a sentence."""
    for read in reads:
        with contextlib.suppress(UserError):
            read()


@case
def features_of_a_page(root: Path) -> Case:
    kept = Features(np.ones((3, 4), np.float32), np.array([0, 1, 1]), ("a", "b"))

    def read() -> None:
        again = features.stored("key", root, lambda: kept)
        assert again.vectors.dtype == np.float32 and again.vectors.ndim == 2 and len(again.labels) == len(again.vectors)
        assert all(isinstance(name, str) for name in again.classes)
        assert again.labels.max(initial=-1) < len(again.classes)

    read()
    return Case(root, list(root.glob("*.npz")), read)


@case
def features_of_a_probe(root: Path) -> Case:
    path, kept = root / "probe" / "a.npz", torch.arange(12.0).view(3, 4)
    feature_store.save(path, kept)
    assert torch.equal(feature_store.load(path, 3, 4), kept)  # type: ignore[arg-type]

    def read() -> None:
        again = feature_store.load(path, 3, 4)
        assert again is None or (again.shape, again.dtype) == (kept.shape, kept.dtype)

    return Case(root, [path], read)


@case
def report(root: Path) -> Case:
    pictures = np.zeros((1, 8, 8, 3), np.uint8)
    kept = error_report.Report(
        "hash", LABELS, np.eye(5, dtype=np.int64), np.array([3]), pictures, pictures, np.array([0]), np.array([1]),
        np.array([0.9], np.float32),
    )  # fmt: skip
    error_report.save(kept, root / error_report.FILE)
    (root / "report.log").write_text("50%|\r\nIt failed.\n")
    error_report.read(root / error_report.FILE)

    def read() -> None:
        call_each(lambda: error_report.read(root / error_report.FILE).accuracy)
        error_report.state(root)

    return Case(root, [root / error_report.FILE, root / "report.log"], read)


@case
def snapshots(root: Path) -> Case:
    images = torch.zeros(2, 3, 32, 32, dtype=torch.uint8)
    writer = SnapshotWriter(root / "probes", images, [0, 1], LABELS, Preprocess((32, 32)))
    writer.store(1, fill(VisionTransformer(ViTConfig(**TINY))))

    def read() -> None:
        for number, _ in enumerate(read_snapshots(root / "probes", 1)):
            read_payload(root / "probes", 1, number)

    read()
    return Case(root, [epoch_file(root / "probes", 1)], read)


@case
def stored_first_view(root: Path) -> Case:
    folder = root / first_view.CHECKPOINT
    shutil.copytree(load.find_checkpoint(first_view.CHECKPOINT), folder)
    first_view.write(folder)
    assert first_view.read(folder)
    return Case(root, [folder / first_view.FILE], lambda: first_view.read(folder))


@case
def unreadable_pictures(root: Path) -> Case:
    def opened(number: int) -> Image.Image:
        if number:
            raise OSError("no")
        return Image.new("L", (1, 1))

    def read() -> None:
        assert all(0 <= n < 3 for n in readable.find_unreadable(opened, 3, lambda: ["a"], "x"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RUNS", str(root))
        read()

    def here() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIT_RUNS", str(root))
            read()

    return Case(root, list((root / ".readable").iterdir()), here)


@case
def names_of_classes(root: Path) -> Case:
    class_names.rename(root, ["a", "b"], ["cat", "dog"])
    return Case(root, [root / class_names.FILE], lambda: class_names.names_of(root, ["a", "b"]))


@case
def note_of_an_import(root: Path) -> Case:
    note = {"total": 2, "lines": ["a: damaged", "1 other file"], "notes": ["Folders are classes."]}
    (root / ".left-out.json").write_text(json.dumps(note))
    return Case(root, [root / ".left-out.json"], lambda: import_archive.left_out(root))


@case
def index_of_packed_pictures(root: Path) -> Case:
    with tarfile.open(root / "train.tar", "w") as archive:
        for number in range(4):
            for name, content in ((f"{number}.png", b"a picture"), (f"{number}.cls", str(number % 2).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))

    def read() -> None:
        records = index.index_of(root, bar=False).records
        assert [records[number] for number in range(4)] == [b"a picture"] * 4

    read()
    return Case(root, [root / index.INDEX], read)


@case
def heartbeat(root: Path) -> Case:
    write_heartbeat(root / "heartbeat", doing="training", share=0.5, step=3)

    def read() -> None:
        with contextlib.suppress(OSError):
            assert heartbeat_age(root / "heartbeat") >= 0

    return Case(root, [root / "heartbeat"], read)


@case
def clusters_file(root: Path) -> Case:
    path = root / "clusters.toml"
    path.write_text(f'[clusters.lab]\nkind = "slurm"\nruns = "{root}/runs"\ndata = ["/data"]\n')

    def read() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIT_CLUSTERS", str(path))
            call_each(clusters.read_clusters, clusters.run_folders, lambda: clusters.find_cluster("lab"))

    read()
    return Case(root, [path], read)


@case
def queue(root: Path) -> Case:
    run = write_run_folder(root)
    with queues.open_queue(root) as line:
        line["waiting"], line["held"] = [run.name], {"cpu": run.name}

    def read() -> None:
        with runs_in(root):
            assert [one.id for one in registry.list_runs()] == [run.name]
            call_each(registry.queue, lambda: control.move(run.name, 0))

    return Case(root, [root / ".queue" / "queue.json"], read)


def write_run_folder(root: Path) -> Path:
    """Write a run with all documents, as engines, trainers and trackers write them."""
    run = root / "20261121-000000-a-0000"
    run.mkdir()
    (run / "config.json").write_text(tiny().model_dump_json())
    about = {"name": "a", "notes": "n", "owner": "o", "search": "", "created": 1.0, "devices": ["cpu"], "nonce": "x"}
    run_folder.write_json(run / "about.json", about | {"nodes": 1, "minutes": 5, "share": False})
    run_folder.write_json(run / "environment.json", {"format": 2, "attempt": 0, "torch": "2"})
    run_folder.write_json(run / "outcome.json", {"outcome": "stopped", "reason": "why", "t": 1.0})
    run_folder.write_json(run / run_folder.PRUNED, {"reason": "late"})
    run_folder.write_json(run / run_folder.AGAIN, {"parts": 2})
    run_folder.write_json(run / TRACKING, {"mlflow": {"id": "a", "sent": {"step": 3}}})
    run_folder.write_json(run / "over.json", {"job": f"{run.name}.1"})
    fine_tuning.write_base(run, Base("everyday", ViTConfig(**TINY), (0.5,) * 3, (0.5,) * 3))
    contract.write_handle(Handle(run, "lab", f"{run.name}.1", 1.0), Request(("cpu",)))
    records = [
        {"kind": "start", "step": 0, "total_steps": 40, "steps_per_epoch": 20, "epochs": 2, "classes": list("abcde")},
        {"kind": "step", "step": 10, "loss": 2.0, "lr": 1e-3, "pictures_per_second": 500.0, "memory": 10**9},
        {"kind": "validation", "step": 20, "epoch": 1, "accuracy": 0.5, "loss": 1.0, "seconds": 2.0},
        {"kind": "test", "step": 20, "epoch": 1, "accuracy": 0.5, "loss": 1.0},
        {"kind": "note", "step": 20, "text": "fine"},
    ]
    lines = [json.dumps(record | {"t": 1e9 + n, "attempt": 0}) for n, record in enumerate(records)]
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    (run / "log.txt").write_text("Epoch 1\n")
    write_heartbeat(run / "heartbeat", doing="testing", share=0.5, step=20)
    (run / "alive.lock").touch()
    (run / "submit.lock").write_text("1")
    return run


@contextlib.contextmanager
def runs_in(root: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RUNS", str(root))
        yield


class _Gone(contract.Engine):
    name = "lab"

    def status(self, handle: Handle) -> JobStatus:
        return JobStatus("gone")


@case
def documents_of_a_run(root: Path) -> Case:
    run = write_run_folder(root)

    def submit() -> None:
        with contract.submitting(_Gone(), run, Request()) as handle:
            contract.read_request(handle.folder)

    def read() -> None:
        with runs_in(root):
            (listed,) = registry.list_runs() or [None]
            if listed:
                json.dumps([listed.settings, listed.config], allow_nan=False)
            call_each(
                lambda: registry.find_run(run.name),
                lambda: contract.read_request(run),
                lambda: contract.claim_job(run, f"{run.name}.1"),
                lambda: run_folder.check_resumable(run),
                lambda: train_config(**run_folder.read_document(run / "config.json")),
                lambda: Follower(run, "mlflow")._new("step"),
                lambda: fine_tuning.base_of(tiny(init_from="everyday", dim=None, depth=None, heads=None), run),
                lambda: control.rename(run.name, "b"),
                lambda: control.annotate(run.name, "b"),
                submit,
            )

    with contextlib.suppress(FileNotFoundError):
        read()
    names = [path for path in run.iterdir() if path.is_file()]

    def guarded() -> None:
        with contextlib.suppress(FileNotFoundError):  # config.json makes a folder a run
            read()

    return Case(root, names, guarded)


@case
def files_of_a_search(root: Path) -> Case:
    folder = write_search(root)
    write_trial(folder, 0, [0.1, 0.2, 0.3])

    def read() -> None:
        with runs_in(root):
            for search in searches.list_searches():
                plan = search.plan
                time.gmtime(plan.created)
                plan.rungs(), plan.epochs, plan.first_comparison, plan.dimensions, search.trials()
            call_each(lambda: searches.find_search(folder.name))

    with runs_in(root):
        assert searches.list_searches()
    return Case(root, [folder / "search.json"], read)


@case
def download(root: Path) -> Case:
    folder = root / "torchvision--vit_b_16.IMAGENET1K_V1"
    folder.mkdir()
    (folder / "vit_b_16.pth").touch()
    (folder / "source.json").write_text('{"asked": {"": 1763300000.5}}')

    def read() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIT_DOWNLOADS", str(root))
            assert len(hub.cached()) == 1

    return Case(root, [folder / "source.json"], read)


@case
def uploaded(root: Path) -> Case:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_PICTURES", str(root))
        key = uploaded_pictures.store(b"a picture")
        listed = uploaded_pictures.store_list([("a", key)])

    def read() -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VIT_PICTURES", str(root))
            assert uploaded_pictures.find(key) in (None, b"a picture")
            uploaded_pictures.find_all(listed)
            assert uploaded_pictures.store(b"a picture") == key
            assert uploaded_pictures.find(key) == b"a picture"
            assert uploaded_pictures.store_list([("a", key)]) == listed
            assert [one.data for one in uploaded_pictures.find_all(listed)] == [b"a picture"]

    read()
    return Case(root, [root / key, root / listed], read)


@case
def saved_checkpoint(root: Path) -> Case:
    model = fill(VisionTransformer(ViTConfig(**TINY)))
    folder = save.save_checkpoint(root / "tiny", model, LABELS, Preprocess((32, 32)), facts={"accuracy": 0.9})

    def read() -> None:
        call_each(
            lambda: load.summarise(folder),
            lambda: save.record_facts(load.load_checkpoint(folder), {"a": 1}),
            lambda: manage.rename("tiny", "tiny2", root),
            lambda: manage.delete("tiny2", root),
        )

    return Case(root, list(folder.iterdir()), read)


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", CASES)
def test_any_damage_of_a_file_is_a_sentence_or_is_mended(name: str, tmp_path: Path) -> None:
    (tmp_path / "sound").mkdir()
    made = CASES[name](tmp_path / "sound")
    kept = tmp_path / "kept"
    shutil.copytree(made.folder, kept, symlinks=True)
    problems: dict[str, str] = {}
    for file in made.files:
        dice = random.Random(SEED)
        every = list(damages(kept / file.relative_to(made.folder), dice))
        for what, damage in dice.sample(every, min(MOST_DAMAGES, len(every))):
            empty_place(made.folder)
            shutil.copytree(kept, made.folder, symlinks=True)
            damage(file)
            try:
                with interrupted():
                    made.read()
            except UserError as error:
                if len(str(error)) > 250:
                    problems.setdefault(f"{file.name}: {len(str(error))} characters: {error}", what)
            except Exception as error:
                problems.setdefault(f"{file.name}: {type(error).__name__}: {str(error)[:150]}", what[:150])
    assert not problems, "\n".join(f"{error} ({what})" for error, what in problems.items())


class Hangs(Exception):
    pass


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Raise an exception in a reader that does not return, such as one that waits for a pipe."""

    def end(*_: Any) -> None:
        raise Hangs

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# --- Examples of each reader ----------------------------------------------------------------------------------------


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


EXAMPLES: dict[str, tuple[str, str, bytes | Callable[[Path], object]]] = {
    "features of another type": ("features_of_a_page", "npz", npz(vectors=np.zeros((1, 2)), labels=[0], classes=["a"])),
    "features of no class": (
        "features_of_a_page", "npz", npz(vectors=np.ones((1, 2), "f4"), labels=[9], classes=["a"])
    ),
    "a probe's features of another width": ("features_of_a_probe", "npz", npz(features=np.zeros((3, 5), "f4"))),
    "a probe's features as a pipe": ("features_of_a_probe", "npz", os.mkfifo),
    "a note of an import as a pipe": ("note_of_an_import", "json", os.mkfifo),
    "a nested note of an import": ("note_of_an_import", "json", b"[" * 100_000),
    "an infinite note of an import": ("note_of_an_import", "json", b'{"total": 1e999, "lines": []}'),
    "an index of pictures as a pipe": ("index_of_packed_pictures", "npz", os.mkfifo),
    "clusters as a pipe": ("clusters_file", "toml", os.mkfifo),
    "nested clusters": ("clusters_file", "toml", b"a = " + b"[" * 100_000),
    "a handle without devices": ("documents_of_a_run", "handle.json", b'{"request": {"devices": []}}'),
    "a torn uploaded picture": ("uploaded", "", b"x"),
    "an uploaded picture as a folder": ("uploaded", "", Path.mkdir),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_damaged_file_is_a_sentence_or_is_mended(name: str, tmp_path: Path) -> None:
    of, ending, damage = EXAMPLES[name]
    made = CASES[of](tmp_path)
    file = next(file for file in made.files if file.name.endswith(ending))
    empty_place(file)
    if isinstance(damage, bytes):
        file.write_bytes(damage)
    else:
        damage(file)
    with interrupted():
        call_each(made.read)


def test_index_of_pictures_that_unpacks_to_more_than_its_size_is_made_again(tmp_path: Path) -> None:
    made = index_of_packed_pictures(tmp_path)
    (path,) = made.files
    with np.load(path) as kept:
        np.savez_compressed(path, **{**kept, "number": np.zeros(1 << 25, np.int8)})
    assert path.stat().st_size < 1 << 17
    tracemalloc.start()
    made.read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 24


@pytest.mark.parametrize("changes", [{"created": 1e300}, {"space": {"epochs": "a,b"}}, {"space": {"lr": "x,y"}}])
def test_search_with_values_of_other_types_is_not_listed(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = write_search(tmp_path)
    with runs_in(tmp_path):
        assert searches.list_searches()
        run_folder.write_json(folder / "search.json", json.loads((folder / "search.json").read_text()) | changes)
        assert not searches.list_searches()


def folder_in_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def damaged_state(run: Path, **changes: Any) -> None:
    """Change keys of the saved state; None removes one."""
    path = run / "checkpoints" / "state.pt"
    state = torch.load(path) | changes
    torch.save({name: value for name, value in state.items() if value is not ...}, path)


DAMAGED_RUNS: dict[str, Callable[[Path], object]] = {
    "environment as text": lambda run: (run / "environment.json").write_text("x"),
    "an environment without an attempt": lambda run: (run / "environment.json").write_text("{}"),
    "parts as text": lambda run: (run / "again.json").write_text('{"parts": "x"}'),
    "a state as a folder": lambda run: folder_in_place(run / "checkpoints" / "state.pt"),
    "a state without optimizers": lambda run: damaged_state(run, optimizers=...),
    "a state of other tensors": lambda run: damaged_state(run, models={"raw": {}}),
    "a state with a config of another type": lambda run: damaged_state(run, config=5),
    "a step that is none": lambda run: damaged_state(run, step=-5),
    "a log of metrics that is a folder": lambda run: folder_in_place(run / "metrics.jsonl"),
    "an environment that is a folder": lambda run: (
        (run / "environment.json").unlink(), (run / "environment.json").mkdir()
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("trained") / "run"
    train(tiny(epochs=1, limit=8, device="cpu"), run)
    return run


@pytest.mark.parametrize("name", DAMAGED_RUNS)
def test_damaged_run_is_resumed_or_refused_in_a_sentence(trained: Path, name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    DAMAGED_RUNS[name](run)
    with contextlib.suppress(UserError):
        train(tiny(epochs=2, limit=8, device="cpu"), run, resume=True)


def test_attempt_of_a_damaged_environment_is_counted_from_the_records(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "environment.json").write_text("{")
    train(tiny(epochs=2, limit=8, device="cpu"), run, resume=True)
    assert json.loads((run / "environment.json").read_text())["attempt"] == 1


def test_state_that_is_a_folder_is_replaced_by_the_one_before(trained: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    path = run / "checkpoints" / "state.pt"
    path.replace(path.with_name("state.previous.pt"))
    path.mkdir()
    train(tiny(epochs=2, limit=8, device="cpu"), run, resume=True)
    assert path.is_file()


def test_tracker_starts_again_where_its_notes_are_damaged(tmp_path: Path) -> None:
    run = write_run_folder(tmp_path)
    for notes in ({"mlflow": {"id": 5, "sent": {"step": "x"}}}, {"mlflow": {"sent": [1]}}, {"mlflow": []}):
        run_folder.write_json(run / TRACKING, notes)
        follower = Follower(run, "mlflow")
        follower._reader.update()
        assert len(follower._new("step")) == 1
