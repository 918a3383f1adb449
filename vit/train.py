"""The training loop.

    python -m vit train --preset shapes
    python -m vit train --preset cifar-cpu --data folder:data/cifar10
    torchrun --nproc-per-node=2 -m vit train --preset cifar

`vit/recipes.py` says what each preset takes and reaches. A run is a folder:

    config.json        the validated description
    environment.json   versions, commit, hardware, seed, command
    metrics.jsonl      one record per line, see `vit.metrics`
    events/            the same for TensorBoard
    probes/            a few pictures explained after every epoch, see `vit.probes`
    checkpoints/best, checkpoints/last   open in the explorer
    checkpoints/state.pt                 everything that --resume needs, in one file

and more that `vit.runs` says. Every random choice is a function of the seed and the step (`vit.augment.Chance`), and
the state is replaced whole after each epoch, every few minutes of a long one, and when a person stops the run. A run
killed at any moment and resumed therefore repeats exactly what it would have done.
"""

import errno
import fcntl
import json
import math
import os
import pickle
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import IO, Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vit.augment import Chance
from vit.checkpoints import load_checkpoint, save_checkpoint
from vit.datasets import Dataset, Pictures, Resident, load_dataset
from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidDataset, InvalidRun, UserError
from vit.evaluate import Evaluation, Normalise, evaluate
from vit.files import replaced
from vit.images import Preprocess
from vit.journal import Diverged, Journal
from vit.model import Attention, VisionTransformer
from vit.optimizers import learning_rate_share, make_optimizers
from vit.place import Place, choose_place
from vit.probes import ProbeWriter, choose
from vit.recipes import TrainConfig
from vit.runs import last_word, living, read_json
from vit.start import mimetic_, take_over_
from vit.supervise import AGAIN

__all__ = ["DiskFull", "Diverged", "Training", "train"]

_MAY_CHANGE = {"epochs", "device", "workers", "data_root", "compile", "patience"}  # between a run and its resumption
_SAVE_EVERY = 300  # [s] of training after which the state is saved within an epoch
_RESERVE = 1 << 16  # [bytes] of disk that are given up so that the last words fit on a full one


class DiskFull(UserError):
    """There is no room to save what was learnt."""


class _OutOfMemory(UserError):
    """The devices of several processes have too little memory for a batch in so many parts."""


def train(config: TrainConfig, run: Path, *, resume: bool = False) -> Evaluation:
    """Train a model and leave everything about it in the folder `run`.

    SIGTERM, or a file named "stop" in the folder, ends the run after the present step, with its state saved.

    Args:
        config: what to do.
        run: a new or empty folder; with `resume`, one that an earlier call left behind.
        resume: continue from the last saved state.

    Returns:
        the best evaluation of the run, on the test pictures.

    Raises:
        InvalidConfig, InvalidDataset: the description cannot be carried out.
        InvalidCheckpoint: the state to resume from is damaged.
        InvalidRun: another process trains in this folder.
        Diverged: the loss became NaN or infinite; the last complete epoch is kept.
        DiskFull: the last complete state is kept.
    """
    if not resume and run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise InvalidConfig(f"{run} exists and is not empty. Continue it with --resume {run}, or choose another --run.")
    place = choose_place(config)
    try:
        with _folder_of(run, place):
            return _train(config, run, place, resume)
    finally:
        if place.world > 1:
            dist.destroy_process_group()


def _train(config: TrainConfig, run: Path, place: Place, resume: bool) -> Evaluation:
    try:
        attempt = _describe(config, run, place) if place.leads else 0
        job = Training(config, run, place)
        if resume and job.state.exists():
            job.load()
        with _asked_to_end() as asked:
            best, ending = job.train(attempt, asked)
    except BaseException as error:
        if not resume and not (run / "metrics.jsonl").exists() and isinstance(error, UserError):
            if place.leads:  # nothing was begun
                shutil.rmtree(run)
            raise
        (run / "reserve").unlink(missing_ok=True)
        with suppress(OSError):
            last_word(run, "stopped" if isinstance(error, KeyboardInterrupt) else "failed", _in_words(error))
        if _is_full(error):
            raise DiskFull(_in_words(error)) from error
        raise
    if place.leads:
        (run / "stop").unlink(missing_ok=True)
        last_word(run, *ending)
    return best


@contextmanager
def _folder_of(run: Path, place: Place) -> Iterator[None]:
    """Make the run's folder, count this process to the run, and be the only one that writes there."""
    with ExitStack() as stack:
        try:
            if place.leads:
                run.mkdir(parents=True, exist_ok=True)
            if place.world > 1:
                dist.barrier()
            stack.enter_context(living(run))
            if place.leads:
                _lock_out_others(run, stack.enter_context((run / "writer.lock").open("w")))
                (run / "outcome.json").unlink(missing_ok=True)
                (run / "reserve").write_bytes(os.urandom(_RESERVE))
                stack.callback((run / "reserve").unlink, missing_ok=True)
        except OSError as error:
            if _is_full(error):
                raise DiskFull(_in_words(error)) from error
            raise InvalidConfig(f"The run's folder {run} cannot be written: {error.strerror}.") from error
        yield


def _lock_out_others(run: Path, lock: IO[str]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidRun(f"Another process trains in {run}. Stop that one first.") from None


@contextmanager
def _asked_to_end() -> Iterator[threading.Event]:
    """An event that SIGTERM sets, where this thread may listen to signals."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def _is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error; torch.save hides that in an error of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


def _in_words(error: BaseException) -> str:
    """Why a run failed, for people."""
    if isinstance(error, UserError):
        return str(error)
    if _is_full(error):
        return "The disk is full. Free some space and resume: the last complete state is kept."
    if isinstance(error, torch.OutOfMemoryError):
        return "The GPU has too little memory, even for one picture at a time. Choose a smaller model or image_size."
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted. Resume continues from the last saved state."
    return f"{type(error).__name__}: {error}. The log holds the traceback."


class Training:
    """The parts of one run, put together once.

    Args:
        dataset: in place of what `config.data` names, for trials.
    """

    def __init__(self, config: TrainConfig, run: Path, place: Place, dataset: Dataset | None = None):
        self.config, self.run, self.place = config, run, place
        self.state = run / "checkpoints" / "state.pt"
        sizes = config.vit_config(num_classes=1)
        as_they_are = Preprocess(sizes.image_size, mean=(0.0,) * sizes.channels, std=(1.0,) * sizes.channels)
        with place.leader_first():
            self.dataset = dataset or load_dataset(
                config.data,
                as_they_are,
                root=Path(config.data_root),
                budget=_memory_budget(place.device),
                workers=config.workers,
                limit=config.limit,
            )
        self.train_set = _placed(self.dataset.train, place.device)
        self.test_set = _placed(self.dataset.test, place.device)
        source = load_checkpoint(config.init_from) if config.init_from else None
        if source:
            mean, std = source.preprocess.mean, source.preprocess.std
        else:
            mean, std = _mean_and_std(self.train_set, place.device)
        self.preprocess = Preprocess(sizes.image_size, mean=mean, std=std)
        self.normalise = Normalise(self.preprocess, place.device)

        count = len(self.train_set.labels)
        self.batch_size = min(config.batch_size, count)
        if self.batch_size % place.world:
            raise InvalidConfig(f"batch_size {self.batch_size} does not divide among {place.world} devices.")
        self.steps_per_epoch = count // self.batch_size
        self.total_steps = self.steps_per_epoch * config.epochs

        torch.manual_seed(config.seed)
        self.model = VisionTransformer(config.vit_config(len(self.dataset.classes)))
        if source:
            take_over_(self.model, source, self.dataset.classes)
        elif config.start == "mimetic":
            mimetic_(self.model)
        self.model.to(place.device)
        self.averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
        self.optimizers = make_optimizers(self.model, config, place.device)
        self.peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.parallel: DistributedDataParallel | None = None
        self.logits = self._forward()
        self.augment = config.augmentation()
        self.chance = Chance(place.device)
        self.step, self.seconds = 0, 0.0
        self.parts = 1  # of a batch, whose gradients are summed
        self.best: Evaluation | None = None
        self.best_epoch = 0

    def train(self, attempt: int, asked: threading.Event) -> tuple[Evaluation, tuple[Any, ...]]:
        """Do the epochs that are left.

        Args:
            attempt: how often the run was resumed.
            asked: set from outside to end after the present step.

        Returns:
            the best evaluation, which only the leading process knows, and the outcome with its reason.
        """
        self.parts = max(self.parts, read_json(self.run / AGAIN).get("parts", 1))
        with Journal(self.run, self.step, self.place, attempt, self._facts()) as journal:
            probes = self._probes() if self.place.leads else None
            while self.step < self.total_steps:
                started = time.perf_counter()
                complete = self._epoch(journal, asked)
                if complete and self.place.leads:
                    result = self._evaluate(journal)
                    if probes:
                        probes.store(self.step // self.steps_per_epoch, self.shown)
                    self.seconds += time.perf_counter() - started
                    journal.epoch(self.step // self.steps_per_epoch, result, self.seconds)
                    self._save_epoch(result)
                elif self.place.leads:
                    self.seconds += time.perf_counter() - started
                    self._save(["last"], accuracy=None)
                epochs = self.step / self.steps_per_epoch
                if self.place.any(
                    self.config.patience is not None and epochs - self.best_epoch >= self.config.patience
                ):
                    return self._so_far, ("finished", f"Ended early: not better in {self.config.patience} epochs.")
                if self.step < self.total_steps and self._shall_end(asked):
                    return self._so_far, ("stopped", f"Stopped after {epochs:.4g} epochs. Resume continues there.")
        return self._so_far, ("finished", "")

    @property
    def _so_far(self) -> Evaluation:
        return self.best or Evaluation(math.nan, math.nan, 0)

    def _facts(self) -> dict[str, Any]:
        """What the "start" record says."""
        return {
            "total_steps": self.total_steps,
            "steps_per_epoch": self.steps_per_epoch,
            "batch_size": self.batch_size,
            "epochs": self.config.epochs,
            "lr": self.config.lr,
            "train_pictures": len(self.train_set.labels),
            "test_pictures": len(self.test_set.labels),
            "classes": list(self.dataset.classes),
            "params": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": str(self.place.device),
            "hardware": _hardware(self.place.device),
        }

    def _probes(self) -> ProbeWriter:
        """A few test pictures that are explained after every epoch."""
        chosen = choose(self.test_set.labels.cpu())
        images, labels = next(iter(self.test_set.batches(torch.as_tensor(chosen), len(chosen), torch.device("cpu"))))
        return ProbeWriter(self.run / "probes", images, labels.tolist(), self.dataset.classes, self.preprocess)

    def _forward(self) -> Callable[[Tensor], Tensor]:
        """Pictures (B, channels, height, width) to logits (B, C), by the fastest path of this device."""
        model: nn.Module = self.model
        on_cpu = self.place.device.type == "cpu"
        if self.place.world > 1:
            model = self.parallel = DistributedDataParallel(
                model, device_ids=None if on_cpu else [self.place.device.index]
            )

        for module in self.model.modules():
            if isinstance(module, Attention):
                # The backward of torch's fused attention on CPU takes half of a step at 65 tokens; two products do not.
                module.explicit = on_cpu

        def logits(images: Tensor) -> Tensor:
            return model(images).logits

        if not self.config.compile:
            return logits
        if on_cpu and not (shutil.which("g++") or shutil.which("clang++")):
            print("No C++ compiler was found, so torch.compile is left out: training takes longer.", file=sys.stderr)
            return logits
        return torch.compile(logits)

    def _epoch(self, journal: Journal, asked: threading.Event) -> bool:
        """Train on what is left of the present epoch; False if asked to end before it was over."""
        config, place = self.config, self.place
        epoch, first = divmod(self.step, self.steps_per_epoch)
        self.model.train()
        self.chance.seed(config.seed, -1 - epoch)  # steps count from 0, so the order of an epoch has its own numbers
        shuffle = torch.Generator().manual_seed(self.chance.host.getrandbits(63))
        order = torch.randperm(len(self.train_set.labels), generator=shuffle)
        order = order[: self.steps_per_epoch * self.batch_size].view(self.steps_per_epoch, self.batch_size)
        mine = order[first:, place.rank :: place.world].flatten()
        journal.resume_clock()
        saved = time.monotonic()
        for images, labels in self.train_set.batches(mine, self.batch_size // place.world, place.device):
            loss, share = self.take_step(images, labels, journal.note)
            self.step += 1
            journal.step(self.step, loss, share)
            if self.step % self.steps_per_epoch == 0:
                break
            if self._shall_end(asked):
                journal.flush()
                return False
            if place.leads and time.monotonic() - saved > _SAVE_EVERY:
                self._save([], accuracy=None)
                saved = time.monotonic()
                journal.resume_clock()
        return True

    def _shall_end(self, asked: threading.Event) -> bool:
        """Whether a person, or the system, wants the run to end; several processes ask each other now and then."""
        if self.place.world > 1 and self.step % self.steps_per_epoch % 20:
            return False
        return self.place.any(asked.is_set() or (self.run / "stop").exists())

    def take_step(self, images: Tensor, labels: Tensor, note: Callable[[str], None]) -> tuple[Tensor, float]:
        """Update the weights once.

        Args:
            images, labels: uint8 (B, channels, height, width) and (B,), on the device.
            note: told what a person should know.

        Returns:
            the loss, still on the device, and the share of the peak learning rate.
        """
        config, place = self.config, self.place
        self.chance.seed(config.seed, self.step * place.world + place.rank)
        share = learning_rate_share(self.step, self.total_steps, self.steps_per_epoch, config)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self.peaks, strict=True):
            group["lr"] = peak * share
        dropout_seed = self.chance.host.getrandbits(63)
        inputs, targets = self.normalise(self.augment(images, self.chance)), labels
        if config.mixup or config.cutmix:
            certain = F.one_hot(labels, len(self.dataset.classes)).float()
            inputs, targets = self.augment.mix(inputs, certain, self.chance)
        while True:
            torch.manual_seed(dropout_seed)  # stochastic depth too
            try:
                loss = self._gradients(inputs, targets)
                break
            except torch.OutOfMemoryError:
                if self.parts >= len(inputs):
                    raise
            self._halve(note)
        if config.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
        return loss, share

    def _gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Leave the gradient of a batch's mean loss in the parameters; returns that loss."""
        total = torch.zeros((), device=inputs.device)
        pairs = list(zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True))
        for index, (part, wanted) in enumerate(pairs):
            last = index == len(pairs) - 1
            with self.parallel.no_sync() if self.parallel and not last else nullcontext():
                with self.place.arithmetic():
                    logits = self.logits(part)
                loss = F.cross_entropy(logits.float(), wanted, label_smoothing=self.config.label_smoothing)
                loss = loss * (len(part) / len(inputs))
                loss.backward()
            total += loss.detach()
        return total

    def _halve(self, note: Callable[[str], None]) -> None:
        """Compute a batch in twice as many parts from here on: the same gradients, in less memory."""
        self.parts *= 2
        words = f"GPU memory ran out at step {self.step}: each batch is computed in {self.parts} parts from here on."
        if self.place.world > 1:  # the others wait within this step, so all have to begin it again
            with replaced(self.run / AGAIN) as file:
                file.write(json.dumps({"parts": self.parts}).encode())
            raise _OutOfMemory(f"{words} Resume the run.")
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.place.device.type == "cuda":
            torch.cuda.empty_cache()
        note(words)

    @property
    def shown(self) -> VisionTransformer:
        """The model that is evaluated and saved: the averaged one where there is one."""
        return self.model if self.averaged is None else cast(VisionTransformer, self.averaged.module)

    def _evaluate(self, journal: Journal) -> Evaluation:
        """In float32, as `python -m vit evaluate` does, so that the card states what that prints."""
        result = evaluate(self.shown, self.test_set, self.normalise, device=self.place.device, tick=journal.beat)
        if not math.isfinite(result.loss):
            raise Diverged(result.loss, self.step)
        return result

    def _save_epoch(self, result: Evaluation) -> None:
        names = ["last"]
        if self.best is None or result.accuracy > self.best.accuracy:
            self.best, self.best_epoch = result, self.step // self.steps_per_epoch
            names.append("best")
        self._save(names, accuracy=round(result.accuracy, 4))

    def _save(self, names: list[str], accuracy: float | None) -> None:
        """First what people open, then the state: a kill in between repeats the epoch and writes the same again."""
        epochs = self.step / self.steps_per_epoch
        facts = {
            "data": self._data_name(),
            **({} if accuracy is None else {"accuracy": accuracy}),
            "epoch": int(epochs) if epochs.is_integer() else round(epochs, 3),
            "seconds": round(self.seconds, 1),
            "hardware": _hardware(self.place.device),
            "recipe": self.config.model_dump(
                exclude_defaults=True, exclude={"data", "data_root", "device", "workers", "init_from"}
            ),
            **({"started_from": _checkpoint_name(self.config.init_from)} if self.config.init_from else {}),
        }
        for name in names:
            save_checkpoint(self.state.parent / name, self.shown, self.dataset.classes, self.preprocess, facts=facts)
        self.state.parent.mkdir(exist_ok=True)
        with replaced(self.state) as file:
            torch.save(self._everything(), file)

    def _data_name(self) -> str:
        """The dataset for the card, which travels: a folder's name without the path that leads there."""
        kind, colon, path = self.config.data.partition(":")
        return f"{kind} {Path(path).expanduser().resolve().name}" if colon else kind

    def _everything(self) -> dict[str, object]:
        """What a resumed run needs; random numbers follow from seed and step, so no generator is among it."""
        return {
            "model": self.model.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "parts": self.parts,
            "best": None if self.best is None else tuple(self.best),
            "best_epoch": self.best_epoch,
            "config": self.config.model_dump(),
            "data": self._fingerprint(),
        }

    def _fingerprint(self) -> list[object]:
        """What has to be the same about the pictures when a run is resumed."""
        return [*self.dataset.classes, len(self.train_set.labels), *self.preprocess.mean, *self.preprocess.std]

    def load(self) -> None:
        """Take up the saved state.

        Raises:
            InvalidCheckpoint: the file is damaged.
            InvalidConfig, InvalidDataset: it is of a run with other settings or other pictures.
        """
        try:
            saved = torch.load(self.state, map_location=self.place.device, weights_only=True)
        except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
            raise InvalidCheckpoint(
                f"{self.state} is damaged, so this run cannot be continued. Its checkpoints/last can still be opened."
            ) from error
        for name, value in self.config.model_dump().items():
            before = saved["config"].get(name, TrainConfig.model_fields[name].default)
            if name not in _MAY_CHANGE and value != before:
                raise InvalidConfig(
                    f"{name} was {before!r} in this run, not {value!r}. Resume it as it was, or start another run."
                )
        if saved["data"] != self._fingerprint():
            raise InvalidDataset(f"{self.config.data} has changed since this run began. Start another run.")
        self.model.load_state_dict(saved["model"])
        if self.averaged is not None:
            self.averaged.load_state_dict(saved["averaged"])
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.seconds, self.parts = saved["step"], saved["seconds"], saved.get("parts", 1)
        self.best = None if saved["best"] is None else Evaluation(*saved["best"])
        self.best_epoch = saved.get("best_epoch", 0)


def _checkpoint_name(spec: str) -> str:
    """For the card: the folder's name, or the run's whose best or last it is."""
    path = Path(spec)
    return path.parent.parent.name if path.parent.name == "checkpoints" and path.name in ("best", "last") else path.name


def _describe(config: TrainConfig, run: Path, place: Place) -> int:
    """Write what the run is and where it computes, before anything that takes long; returns the attempt, from 0."""
    environment = run / "environment.json"
    attempt = json.loads(environment.read_text())["attempt"] + 1 if environment.exists() else 0
    with replaced(run / "config.json") as file:
        file.write(config.model_dump_json(indent=2).encode() + b"\n")
    facts = {
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": _commit(),
        "host": platform.node(),
        "hardware": _hardware(place.device),
        "devices": place.world,
        "bfloat16": place.autocast,
        "threads": torch.get_num_threads(),
        "seed": config.seed,
        "attempt": attempt,
    }
    with replaced(environment) as file:
        file.write(json.dumps(facts, indent=2).encode() + b"\n")
    return attempt


def _commit() -> str | None:
    """Of the code that trains, with "+" if files differ from it; None outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None


def _memory_budget(device: torch.device) -> int:
    """Bytes that pictures may take before they are streamed: half of what is free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2 if pages else 4 << 30


def _placed(pictures: Pictures, device: torch.device) -> Pictures:
    """On the device, where they are held in memory."""
    return pictures.to(device) if isinstance(pictures, Resident) else pictures


def _mean_and_std(pictures: Pictures, device: torch.device) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, for pixels from 0 to 1, over at most 10,000 training pictures, to four decimals."""
    chosen = torch.linspace(0, len(pictures.labels) - 1, min(len(pictures.labels), 10_000)).long()
    sums = []
    for images, _ in pictures.batches(chosen, 500, device):
        pixels = images.transpose(0, 1).flatten(1).to("cpu", torch.float64) / 255  # (channels, pixels)
        sums.append(torch.stack([torch.ones_like(pixels).sum(1), pixels.sum(1), pixels.square().sum(1)]))
    count, total, squares = torch.stack(sums).sum(0)  # each (channels,)
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return tuple(round(v, 4) for v in mean.tolist()), tuple(max(round(v, 4), 1e-3) for v in std.tolist())


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads on {platform.processor() or platform.machine()}"
