"""The training loop.

    python -m vit train --preset shapes
    python -m vit train --preset cifar-cpu --data folder:data/cifar10
    torchrun --nproc-per-node=2 -m vit train --preset cifar

`vit/recipes.py` says what each preset takes and reaches. A run is a folder:

    config.json        the validated description
    environment.json   versions, hardware, command
    metrics.jsonl      one record per line, read with `vit.metrics.read_metrics`
    events/            the same for TensorBoard
    checkpoints/best, checkpoints/last   open in the explorer
    checkpoints/state.pt                 everything that --resume needs, in one file

Every random choice is a function of the seed and the step (`vit.augment.Chance`), and the state is replaced whole at
the end of each epoch. A run killed at any moment and resumed therefore repeats exactly what it would have done.
"""

import json
import math
import os
import pickle
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from vit.augment import Chance
from vit.checkpoints import save_checkpoint
from vit.datasets import Pictures, Resident, load_dataset
from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidDataset, UserError
from vit.evaluate import Evaluation, Normalise, evaluate
from vit.images import Preprocess
from vit.metrics import MetricsWriter
from vit.model import VisionTransformer
from vit.recipes import TrainConfig
from vit.start import mimetic_

_LOG_EVERY = 20  # steps between records; each costs one wait for the device
_MAY_CHANGE = {"epochs", "device", "workers", "data_root", "compile"}  # between a run and its resumption


class Diverged(UserError):
    """The loss is no longer a number."""


@dataclass
class Place:
    """Where this process computes, and which share of the work is its own."""

    device: torch.device
    autocast: bool
    rank: int = 0
    world: int = 1

    @property
    def leads(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def arithmetic(self) -> torch.autocast:
        """The precision of forward passes in training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)

    @contextmanager
    def leader_first(self) -> Iterator[None]:
        """The leading process does this before all others: a download happens once."""
        if not self.leads:
            dist.barrier()
        yield
        if self.leads and self.world > 1:
            dist.barrier()


def choose_place(config: TrainConfig) -> Place:
    """Resolve "auto" device and precision; join the other processes when started by torchrun.

    Raises:
        InvalidConfig: the device asked for is not there.
    """
    world, local = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise InvalidConfig("device: there is no CUDA GPU that torch can use. Choose cpu or auto.")
    if name == "mps" and not torch.backends.mps.is_available():
        raise InvalidConfig("device: there is no Apple GPU that torch can use. Choose cpu or auto.")
    device = torch.device(f"cuda:{local}" if world > 1 and name.startswith("cuda") else name)
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InvalidConfig(f"device: there is no GPU {device.index}; torch sees {torch.cuda.device_count()}.")
    if device.type == "cuda":
        torch.cuda.set_device(device)
        torch.set_float32_matmul_precision("high")
        fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        cpu = torch.cpu.get_capabilities()
        fast = device.type == "cpu" and bool(cpu.get("avx512_bf16") or cpu.get("amx_bf16"))
    autocast = fast if config.precision == "auto" else config.precision == "bfloat16"
    if world > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return Place(device, autocast, dist.get_rank() if world > 1 else 0, world)


def train(config: TrainConfig, run: Path, *, resume: bool = False) -> Evaluation:
    """Train a model and leave everything about it in the folder `run`.

    Args:
        config: what to do.
        run: a new or empty folder; with `resume`, one that an earlier call left behind.
        resume: continue where the last complete epoch ended.

    Returns:
        the best evaluation of the run, on the test pictures.

    Raises:
        InvalidConfig, InvalidDataset: the description cannot be carried out.
        InvalidCheckpoint: the state to resume from is damaged.
        Diverged: the loss became NaN or infinite; the last complete epoch is kept.
    """
    if not resume and run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise InvalidConfig(f"{run} exists and is not empty. Continue it with --resume {run}, or choose another --run.")
    place = choose_place(config)
    attempt = _describe(config, run, place) if place.leads else 0
    try:
        job = _Run(config, run, place)
        if resume and job.state.exists():
            job.load()
        return job.train(attempt)
    except UserError:
        if place.leads and not resume and not (run / "metrics.jsonl").exists():  # nothing was begun
            shutil.rmtree(run)
        raise
    except torch.OutOfMemoryError as error:
        raise InvalidConfig(
            f"The device has too little memory for batch_size {config.batch_size}. Lower it, or choose a smaller model."
        ) from error
    finally:
        if place.world > 1:
            dist.destroy_process_group()


class _Run:
    """The parts of one training run, put together once."""

    def __init__(self, config: TrainConfig, run: Path, place: Place):
        self.config, self.run, self.place = config, run, place
        self.state = run / "checkpoints" / "state.pt"
        sizes = config.vit_config(num_classes=1)
        as_they_are = Preprocess(sizes.image_size, mean=(0.0,) * sizes.channels, std=(1.0,) * sizes.channels)
        with place.leader_first():
            self.dataset = load_dataset(
                config.data,
                as_they_are,
                root=Path(config.data_root),
                budget=_memory_budget(place.device),
                workers=config.workers,
            )
        self.train_set = _placed(self.dataset.train, place.device, config.limit)
        self.test_set = _placed(self.dataset.test, place.device, None)
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
        if config.start == "mimetic":
            mimetic_(self.model)
        self.model.to(place.device)
        self.averaged = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
        self.optimizers = make_optimizers(self.model, config, place.device)
        self.peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.logits = self._forward()
        self.augment = config.augmentation()
        self.chance = Chance(place.device)
        self.step, self.seconds = 0, 0.0
        self.best: Evaluation | None = None

    def train(self, attempt: int) -> Evaluation:
        """Do the epochs that are left; only the leading process knows the result."""
        with _Log(self.run, self.step, self.total_steps, self.place, attempt) as log:
            for epoch in range(self.step // self.steps_per_epoch, self.config.epochs):
                started = time.perf_counter()
                self._epoch(epoch, log)
                if self.place.leads:
                    result = self._evaluate()
                    self.seconds += time.perf_counter() - started
                    log.epoch(self.step, epoch + 1, result, self.batch_size, self.seconds)
                    self._save(epoch + 1, result)
                if self.place.world > 1:
                    dist.barrier()
        return self.best or Evaluation(math.nan, math.nan, 0)

    def _forward(self) -> Callable[[Tensor], Tensor]:
        """Pictures (B, channels, height, width) to logits (B, C), by the fastest path of this device."""
        model: nn.Module = self.model
        on_cpu = self.place.device.type == "cpu"
        if self.place.world > 1:
            model = DistributedDataParallel(model, device_ids=None if on_cpu else [self.place.device.index])

        def logits(images: Tensor) -> Tensor:
            # The backward of torch's fused attention on CPU takes half of a step at 65 tokens; two products do not.
            return model(images, output_attentions=on_cpu).logits

        if not self.config.compile:
            return logits
        if on_cpu and not (shutil.which("g++") or shutil.which("clang++")):
            print("No C++ compiler was found, so torch.compile is left out: training takes longer.", file=sys.stderr)
            return logits
        return torch.compile(logits)

    def _epoch(self, epoch: int, log: "_Log") -> None:
        config, place = self.config, self.place
        self.model.train()
        self.chance.seed(config.seed, -1 - epoch)  # steps count from 0, so the order of an epoch has its own numbers
        shuffle = torch.Generator().manual_seed(self.chance.host.getrandbits(63))
        order = torch.randperm(len(self.train_set.labels), generator=shuffle)
        order = order[: self.steps_per_epoch * self.batch_size].view(self.steps_per_epoch, self.batch_size)
        mine = order[:, place.rank :: place.world].flatten()
        for images, labels in self.train_set.batches(mine, self.batch_size // place.world, place.device):
            self.chance.seed(config.seed, self.step * place.world + place.rank)
            torch.manual_seed(self.chance.host.getrandbits(63))  # dropout and stochastic depth
            loss, share = self._step(images, labels)
            self.step += 1
            log.step(self.step, loss, share)
        log.flush()

    def _step(self, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """One update; returns the loss, still on the device, and the share of the peak learning rate."""
        config = self.config
        share = learning_rate_share(self.step, self.total_steps, self.steps_per_epoch, config)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self.peaks, strict=True):
            group["lr"] = peak * share
        inputs, targets = self.normalise(self.augment(images, self.chance)), labels
        if config.mixup or config.cutmix:
            certain = F.one_hot(labels, len(self.dataset.classes)).float()
            inputs, targets = self.augment.mix(inputs, certain, self.chance)
        with self.place.arithmetic():
            logits = self.logits(inputs)
        loss = F.cross_entropy(logits.float(), targets, label_smoothing=config.label_smoothing)
        loss.backward()
        if config.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip, foreach=True)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        if self.averaged is not None:
            self.averaged.update_parameters(self.model)
        return loss.detach(), share

    @property
    def shown(self) -> VisionTransformer:
        """The model that is evaluated and saved: the averaged one where there is one."""
        return self.model if self.averaged is None else cast(VisionTransformer, self.averaged.module)

    def _evaluate(self) -> Evaluation:
        """In float32, as `python -m vit evaluate` does, so that the card states what that prints."""
        result = evaluate(self.shown, self.test_set, self.normalise, device=self.place.device)
        if not math.isfinite(result.loss):
            raise Diverged(_diverged(result.loss, self.step))
        return result

    def _save(self, epoch: int, result: Evaluation) -> None:
        """First what people open, then the state: a kill in between repeats the epoch and writes the same again."""
        facts = {
            "data": self._data_name(),
            "accuracy": round(result.accuracy, 4),
            "epoch": epoch,
            "seconds": round(self.seconds, 1),
            "hardware": _hardware(self.place.device),
            "recipe": self.config.model_dump(exclude_defaults=True, exclude={"data", "data_root", "device", "workers"}),
        }
        names = ["last"]
        if self.best is None or result.accuracy > self.best.accuracy:
            self.best = result
            names.append("best")
        for name in names:
            save_checkpoint(self.state.parent / name, self.shown, self.dataset.classes, self.preprocess, facts=facts)
        with _replaced(self.state) as file:
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
            "best": None if self.best is None else tuple(self.best),
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
            if name not in _MAY_CHANGE and value != saved["config"].get(name):
                raise InvalidConfig(
                    f"{name} was {saved['config'].get(name)!r} in this run, not {value!r}. "
                    "Resume it as it was, or start another run."
                )
        if saved["data"] != self._fingerprint():
            raise InvalidDataset(f"{self.config.data} has changed since this run began. Start another run.")
        self.model.load_state_dict(saved["model"])
        if self.averaged is not None:
            self.averaged.load_state_dict(saved["averaged"])
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.seconds = saved["step"], saved["seconds"]
        self.best = Evaluation(*saved["best"])


def _describe(config: TrainConfig, run: Path, place: Place) -> int:
    """Write what the run is and where it computes, before anything that takes long; returns the attempt, from 0."""
    environment = run / "environment.json"
    try:
        run.mkdir(parents=True, exist_ok=True)
        attempt = json.loads(environment.read_text())["attempt"] + 1 if environment.exists() else 0
        with _replaced(run / "config.json") as file:
            file.write(config.model_dump_json(indent=2).encode() + b"\n")
        facts = {
            "command": sys.argv,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "hardware": _hardware(place.device),
            "devices": place.world,
            "bfloat16": place.autocast,
            "threads": torch.get_num_threads(),
            "attempt": attempt,
        }
        with _replaced(environment) as file:
            file.write(json.dumps(facts, indent=2).encode() + b"\n")
    except OSError as error:
        raise InvalidConfig(f"The run's folder {run} cannot be written: {error.strerror}.") from error
    return attempt


@contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Write a file whole: whoever reads it, also after a kill or a power cut, meets the old content or the new."""
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)


def _diverged(loss: float, step: int) -> str:
    return (
        f"The loss became {loss} by step {step}. Lower the learning rate, or raise warmup_epochs; "
        "the last complete epoch is kept."
    )


class _Log(AbstractContextManager["_Log"]):
    """Bar on the terminal, metrics.jsonl and TensorBoard events; silent in all processes but the leading one."""

    def __init__(self, run: Path, step: int, total: int, place: Place, attempt: int):
        self.place, self.attempt = place, attempt
        self.losses: list[Tensor] = []
        self.at, self.share = step, 0.0
        if place.leads:
            from torch.utils.tensorboard import SummaryWriter

            self.metrics = MetricsWriter(run / "metrics.jsonl")
            self.events = SummaryWriter(run / "events", purge_step=step)
            self.bar = tqdm(total=total, initial=step, unit="steps", smoothing=0.05, dynamic_ncols=True)
            self.bar.mininterval = 0.5 if sys.stderr.isatty() else 10  # [s]; a log file needs fewer lines
            self.facts: dict[str, str] = {}

    def step(self, step: int, loss: Tensor, share: float) -> None:
        """Note one step; `step` of them are done. The loss stays on the device until it is recorded."""
        self.losses.append(loss)
        self.at, self.share = step, share
        if len(self.losses) == _LOG_EVERY:
            self.flush()

    def flush(self) -> None:
        """Record the mean loss since the last record; at the end of an epoch, so that a resumed run does the same."""
        if not self.losses:
            return
        average = torch.stack(self.losses).mean()
        if self.place.world > 1:  # over all processes, which also go on or give up together
            dist.all_reduce(average)
            average /= self.place.world
        loss, count = average.item(), len(self.losses)
        self.losses.clear()
        if not math.isfinite(loss):
            raise Diverged(_diverged(loss, self.at))
        if self.place.leads:
            self.metrics.write(
                kind="step", step=self.at, loss=loss, lr_share=self.share, t=time.time(), attempt=self.attempt
            )
            self.events.add_scalar("train/loss", loss, self.at)
            self.events.add_scalar("train/lr_share", self.share, self.at)
            self.facts["loss"] = f"{loss:.3f}"
            self.bar.set_postfix(self.facts, refresh=False)
            self.bar.update(count)

    def epoch(self, step: int, epoch: int, result: Evaluation, batch_size: int, seconds: float) -> None:
        """Record the evaluation after an epoch, counted from 1."""
        self.metrics.write(
            kind="epoch",
            step=step,
            epoch=epoch,
            accuracy=result.accuracy,
            test_loss=result.loss,
            seconds=seconds,
            t=time.time(),
            attempt=self.attempt,
        )
        self.events.add_scalar("test/accuracy", result.accuracy, step)
        self.events.add_scalar("test/loss", result.loss, step)
        self.events.flush()  # a kill after this epoch is saved must not lose its events
        self.facts["accuracy"] = f"{result.accuracy:.2%}"
        if rate := self.bar.format_dict["rate"]:
            self.facts["pictures/s"] = f"{rate * batch_size:.0f}"
        self.bar.set_postfix(self.facts)

    def __exit__(self, *error: object) -> None:
        if self.place.leads:
            self.bar.close()
            self.events.close()
            self.metrics.close()


def learning_rate_share(step: int, total: int, per_epoch: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a half cosine to 0 or a constant.

    The warm-up takes at most half of the run.
    """
    warmup = min(config.warmup_epochs * per_epoch, total / 2)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (total - warmup)))


def make_optimizers(model: VisionTransformer, config: TrainConfig, device: torch.device) -> list[Optimizer]:
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest.

    Weights of products decay; biases, scales, positions and prefix tokens do not.

    Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    decayed, plain, matrices = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1 or name in ("pos_embed", "prefix_tokens"):
            plain.append(parameter)
        elif config.optimizer == "muon" and name.startswith("blocks."):
            matrices.append(parameter)
        else:
            decayed.append(parameter)
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    fused = device.type in ("cuda", "cpu")
    optimizers: list[Optimizer] = [torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.99), fused=fused)]
    if matrices:
        optimizers.append(
            torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)
        )
    return optimizers


def _memory_budget(device: torch.device) -> int:
    """Bytes that pictures may take before they are streamed: half of what is free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2 if pages else 4 << 30


def _placed(pictures: Pictures, device: torch.device, limit: int | None) -> Pictures:
    """On the device where they are held in memory, and no more of them than `limit`."""
    if not isinstance(pictures, Resident):
        if limit:
            raise InvalidConfig("limit works for pictures that fit into memory; these are streamed. Leave it out.")
        return pictures
    if limit and limit < len(pictures.labels):
        chosen = torch.randperm(len(pictures.labels), generator=torch.Generator().manual_seed(0))[:limit]
        pictures = Resident(pictures.images[chosen], pictures.labels[chosen])
    return pictures.to(device)


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
