"""The loop: a model, its data, its optimisers, and what is measured and saved on the way."""

import json
import logging
import math
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import record_facts, save_checkpoint
from vit.data.augment import Chance
from vit.data.datasets import Dataset, load_dataset
from vit.data.pictures import Pictures, Resident
from vit.errors import InvalidConfig, InvalidDataset, InvalidRun, UserError
from vit.files import replaced
from vit.images.preprocess import Normalise, Preprocess
from vit.model.attention import Attention
from vit.model.initialization import mimetic_
from vit.model.transformer import VisionTransformer
from vit.training.config import TrainConfig
from vit.training.distributed import Place, memory_budget
from vit.training.evaluation import Evaluation, evaluate
from vit.training.fine_tuning import Base, resolve, take_over_
from vit.training.optimizers import average_, learning_rate_share, make_optimizers, step_
from vit.training.presets import checkpoint_name
from vit.training.recorder import Diverged, Journal
from vit.training.run_folder import AGAIN, STATES, begin_anew, read_json
from vit.training.snapshot_writer import ProbeWriter, choose

_MAY_CHANGE = {"epochs", "device", "workers", "data_root", "compile", "patience"}  # between a run and its resumption
_SAVE_EVERY = 300  # [s] of training after which the state is saved within an epoch

log = logging.getLogger(__name__)


class _OutOfMemory(UserError):
    """The devices of several processes have too little memory for a batch in so many parts."""


class Result(NamedTuple):
    """What the weights reached that validation chose.

    Attributes:
        validation: None before the first epoch is complete.
        test: None before the end of the run.
    """

    validation: Evaluation | None
    test: Evaluation | None


class Training:
    """The parts of one run, put together once.

    Args:
        dataset: in place of what `config.data` names, for trials.
        base: what follows from the checkpoint that the run starts from; looked up there unless it is given.
        resumed: the weights will come from `load`: no checkpoint is needed to start from.
    """

    def __init__(
        self,
        config: TrainConfig,
        run: Path,
        place: Place,
        dataset: Dataset | None = None,
        *,
        base: Base | None = None,
        resumed: bool = False,
    ):
        self.config, self.run, self.place = config, run, place
        self.state, self.previous = (run / "checkpoints" / name for name in STATES)
        base = base or resolve(config)
        sizes = config.vit_config(1, base and base.model)
        as_they_are = Preprocess(sizes.image_size, mean=(0.0,) * sizes.channels, std=(1.0,) * sizes.channels)
        with place.leader_first():
            self.dataset = dataset or load_dataset(
                config.data,
                as_they_are,
                root=Path(config.data_root),
                budget=memory_budget(place.device),
                workers=config.workers,
                limit=config.limit,
            )
        self.train_set = _placed(self.dataset.train, place.device)
        self.validation_set = _placed(self.dataset.validation, place.device)
        self.test_set = _placed(self.dataset.test, place.device)
        if not len(self.validation_set.labels):
            raise InvalidDataset(
                f"{config.data} has too few pictures to keep any for validation. Add some: four of a class are enough."
            )
        mean, std = (base.mean, base.std) if base else _mean_and_std(self.train_set, place.device)
        self.preprocess = Preprocess(sizes.image_size, mean=mean, std=std)
        self.normalise = Normalise(self.preprocess, place.device)

        count = len(self.train_set.labels)
        self.batch_size = min(config.batch_size, count)
        if self.batch_size % place.world:
            raise InvalidConfig(f"batch_size {self.batch_size} does not divide among {place.world} devices.")
        self.steps_per_epoch = count // self.batch_size
        self.total_steps = self.steps_per_epoch * config.epochs

        torch.manual_seed(config.seed)
        self.model = VisionTransformer(config.vit_config(len(self.dataset.classes), base and base.model))
        if config.init_from and not resumed:
            take_over_(self.model, load_checkpoint(config.init_from), self.dataset.classes)
        elif config.start == "mimetic" and not config.init_from:
            mimetic_(self.model)
        self.model.to(place.device)
        self.models = {"raw": self.model}
        if config.ema:
            self.models["averaged"] = deepcopy(self.model).requires_grad_(False)
        self.better = "raw"  # of the models, when they were last evaluated
        self.optimizers = make_optimizers(self.model, config, place.device)
        self.peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.parallel: DistributedDataParallel | None = None
        self.logits = self._forward()
        self.augment = config.augmentation()
        self.chance = Chance(place.device)
        self.step, self.seconds = 0, 0.0
        self.parts = 1  # of a batch, whose gradients are summed
        self.best: Evaluation | None = None  # on validation pictures
        self.best_epoch = self.improved_epoch = 0  # of the best weights; the first of their accuracy
        self.test: Evaluation | None = None  # of the best weights
        self.notes: list[str] = []  # for the journal, as soon as it is open

    def train(self, attempt: int, asked: threading.Event) -> tuple[Result, tuple[Any, ...]]:
        """Do the epochs that are left.

        Args:
            attempt: how often the run was resumed.
            asked: set from outside to end after the present step.

        Returns:
            what was reached, which only the leading process knows, and the outcome with its reason.
        """
        self.parts = max(self.parts, read_json(self.run / AGAIN).get("parts", 1))
        with Journal(self.run, self.step, self.place, attempt, self._facts()) as journal:
            for note in self.notes:
                journal.note(note)
            if self.place.leads and not self.state.exists() and not self.previous.exists():
                self._save_state()  # before any checkpoint: one without a state beside it has lost it
            ending = self._epochs(journal, asked)
            if self.place.leads and ending[0] == "finished" and self.test is None and self.best is not None:
                self._test(journal)
        return Result(self.best, self.test), ending

    def _epochs(self, journal: Journal, asked: threading.Event) -> tuple[Any, ...]:
        """Do the epochs that are left; returns the outcome with its reason."""
        probes = self._probes() if self.place.leads else None
        patience = self.config.patience
        while self.step < self.total_steps:
            started = time.perf_counter()
            complete = self._epoch(journal, asked)
            epochs = self.step / self.steps_per_epoch
            if complete and self.place.leads:
                results = self._evaluate(journal)
                if probes:
                    probes.store(int(epochs), self.shown)
                self.seconds += time.perf_counter() - started
                journal.epoch(int(epochs), results, self.better, self.seconds)
                self._save_epoch(results[self.better])
            elif self.place.leads:
                self.seconds += time.perf_counter() - started
                self._save(["last"])
            weary = patience is not None and epochs - self.improved_epoch >= patience
            if self.place.any(self.place.leads and weary):  # the others do not know what was evaluated
                return "finished", f"Ended early: not better in {patience} epochs."
            if self.step < self.total_steps and self._shall_end(asked):
                return "stopped", f"Stopped after {epochs:.4g} epochs. Resume continues there."
        return "finished", ""

    def _facts(self) -> dict[str, Any]:
        """What the "start" record says."""
        return {
            "total_steps": self.total_steps,
            "steps_per_epoch": self.steps_per_epoch,
            "batch_size": self.batch_size,
            "epochs": self.config.epochs,
            "lr": self.config.lr,
            "train_pictures": len(self.train_set.labels),
            "validation_pictures": len(self.validation_set.labels),
            "test_pictures": len(self.test_set.labels),
            "classes": list(self.dataset.classes),
            "params": sum(parameter.numel() for parameter in self.model.parameters()),
            "device": str(self.place.device),
            "hardware": hardware(self.place.device),
        }

    def _probes(self) -> ProbeWriter:
        """A few validation pictures that are explained after every epoch."""
        pictures = self.validation_set
        chosen = choose(pictures.labels.cpu())
        images, labels = next(iter(pictures.batches(torch.as_tensor(chosen), len(chosen), torch.device("cpu"))))
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
                self._save([])
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
            self._seed(dropout_seed)  # stochastic depth too
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
            step_(optimizer)
            optimizer.zero_grad(set_to_none=True)
        if averaged := self.models.get("averaged"):
            average_(averaged, self.model, self.step, config.ema)
        return loss, share

    def _seed(self, seed: int) -> None:
        """As `torch.manual_seed`, which takes 2 ms to ask for every kind of accelerator that there is."""
        if self.place.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

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
        """The model that is explained and saved: the raw or the averaged one, which was better in the last epoch."""
        return self.models[self.better]

    def _evaluate(self, journal: Journal) -> dict[str, Evaluation]:
        """On validation pictures, each of the models; notes which one is better."""
        results = {}
        for number, (name, model) in enumerate(self.models.items()):

            def tick(share: float, number: int = number) -> None:
                journal.testing((number + share) / len(self.models))

            result = evaluate(model, self.validation_set, self.normalise, device=self.place.device, tick=tick)
            if not math.isfinite(result.loss):
                raise Diverged(result.loss, self.step)
            results[name] = result
        self.better = max(results, key=lambda name: _merit(results[name]))
        return results

    def _test(self, journal: Journal) -> None:
        """Look at the test pictures, as `python -m vit evaluate` does, so that the card states what that prints."""
        best = load_checkpoint(self.state.parent / "best")
        model = best.model.to(self.place.device)
        self.test = evaluate(model, self.test_set, self.normalise, device=self.place.device, tick=journal.testing)
        model.cpu()
        facts = {
            "accuracy": round(self.test.accuracy, 4),
            "accuracy_on": f"{self.test.pictures:,} test pictures, looked at once, by the weights of the epoch that "
            f"{len(self.validation_set.labels):,} validation pictures chose",
        }
        record_facts(best, facts)
        journal.test(self.best_epoch, self.test)
        self._save_state()

    def _save_epoch(self, result: Evaluation) -> None:
        """Save what the epoch led to, on validation pictures."""
        names, epoch = ["last"], self.step // self.steps_per_epoch
        if self.best is None or result.accuracy > self.best.accuracy:
            self.improved_epoch = epoch
        if self.best is None or _merit(result) > _merit(self.best):
            self.best, self.best_epoch, self.test = result, epoch, None
            names.append("best")
        self._save(names, result)

    def _save(self, names: list[str], result: Evaluation | None = None) -> None:
        """First what people open, then the state: a kill in between repeats the epoch and writes the same again."""
        epochs = self.step / self.steps_per_epoch
        facts = {
            "data": self._data_name(),
            **({} if result is None else {"validation_accuracy": round(result.accuracy, 4)}),
            "epoch": int(epochs) if epochs.is_integer() else round(epochs, 3),
            **({"weights": self.better} if len(self.models) > 1 else {}),
            "seconds": round(self.seconds, 1),
            "hardware": hardware(self.place.device),
            "recipe": self.config.model_dump(
                exclude_defaults=True, exclude={"data", "data_root", "device", "workers", "init_from"}
            ),
            **({"started_from": checkpoint_name(self.config.init_from)} if self.config.init_from else {}),
        }
        for name in names:
            save_checkpoint(self.state.parent / name, self.shown, self.dataset.classes, self.preprocess, facts=facts)
        self._save_state()

    def _save_state(self) -> None:
        """Replace the state whole; the one before stays beside it."""
        self.state.parent.mkdir(exist_ok=True)
        if self.state.exists():
            link = self.previous.with_name(self.previous.name + ".partial")
            link.unlink(missing_ok=True)
            try:
                os.link(self.state, link)
            except OSError:  # a file system without hard links: for a moment there is the previous one only
                self.state.replace(self.previous)
            else:
                link.replace(self.previous)
                link.unlink(missing_ok=True)  # to rename one link of a file to another leaves both
        with replaced(self.state) as file:
            torch.save(self._everything(), file)

    def _data_name(self) -> str:
        """The dataset for the card, which travels: a folder's name without the path that leads there."""
        kind, colon, path = self.config.data.partition(":")
        return f"{kind} {Path(path).expanduser().resolve().name}" if colon else kind

    def _everything(self) -> dict[str, object]:
        """What a resumed run needs; random numbers follow from seed and step, so no generator is among it."""
        return {
            "models": {name: model.state_dict() for name, model in self.models.items()},
            "better": self.better,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
            "parts": self.parts,
            "best": None if self.best is None else tuple(self.best),
            "best_epoch": self.best_epoch,
            "improved_epoch": self.improved_epoch,
            "test": None if self.test is None else tuple(self.test),
            "config": self.config.model_dump(),
            "data": self._fingerprint(),
        }

    def _fingerprint(self) -> list[object]:
        """What has to be the same about the pictures when a run is resumed."""
        counts = [len(self.train_set.labels), len(self.validation_set.labels)]
        return [*self.dataset.classes, *counts, *self.preprocess.mean, *self.preprocess.std]

    def load(self) -> None:
        """Take up the saved state.

        Raises:
            InvalidRun: there is none that is sound, or it is of a run whose test pictures chose its best epoch.
            InvalidConfig, InvalidDataset: it is of a run with other settings or other pictures.
        """
        saved = self._read_state()
        for name, value in self.config.model_dump().items():
            before = saved["config"].get(name, TrainConfig.model_fields[name].default)
            if name not in _MAY_CHANGE and value != before:
                raise InvalidConfig(
                    f"{name} was {before!r} in this run, not {value!r}. Resume it as it was, or start another run."
                )
        if "models" not in saved:
            raise InvalidRun(
                "This run is of a version in which test pictures chose the best epoch; some of the pictures that it "
                f"learnt from are for validation now. {begin_anew(self.run)}"
            )
        if saved["data"] != self._fingerprint():
            raise InvalidDataset(f"{self.config.data} has changed since this run began. Start another run.")
        for name, model in self.models.items():
            model.load_state_dict(saved["models"][name])
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.better = saved["better"]
        self.step, self.seconds, self.parts = saved["step"], saved["seconds"], saved["parts"]
        self.best, self.test = (None if saved[key] is None else Evaluation(*saved[key]) for key in ("best", "test"))
        self.best_epoch, self.improved_epoch = saved["best_epoch"], saved["improved_epoch"]

    def _read_state(self) -> dict[str, Any]:
        """The saved state, or the one before it if that is damaged."""
        for path in (self.state, self.previous):
            try:
                saved = torch.load(path, map_location=self.place.device, weights_only=True)
                if not isinstance(saved, dict) or not {"config", "step"} <= saved.keys():
                    raise ValueError("something else")
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # damaged bytes make the unpickler stumble in ways that cannot be listed
                log.warning("%s cannot be read: %s", path, error)
                continue
            if path == self.previous:
                epochs = saved["step"] / self.steps_per_epoch
                self.notes.append(
                    f"The last saved state was damaged or missing: the run went on from the one before it, of epoch "
                    f"{epochs:.4g}."
                )
                if self.place.leads:
                    self.state.unlink(missing_ok=True)  # or the next save would put it in place of the sound one
            return saved
        raise InvalidRun(f"The saved state of {self.run.name} is damaged. {begin_anew(self.run)}")


def _merit(result: Evaluation) -> tuple[float, float]:
    """What makes one evaluation better than another: accuracy, and where that is equal a low loss."""
    return result.accuracy, -result.loss


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


def hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads on {platform.processor() or platform.machine()}"
