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
import platform
import shutil
import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from vit.datasets import Resident, load_dataset
from vit.errors import InvalidConfig, UserError
from vit.evaluate import Evaluation, Normalise, evaluate
from vit.images import Preprocess
from vit.metrics import MetricsWriter
from vit.model import VisionTransformer
from vit.recipes import TrainConfig
from vit.start import mimetic_

_LOG_EVERY = 20  # steps between records; each costs one wait for the device


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
        """The precision of forward passes."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast)


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
        Diverged: the loss became NaN or infinite; the last complete epoch is kept.
    """
    place = choose_place(config)
    try:
        return _Run(config, run, place).train(resume)
    finally:
        if place.world > 1:
            dist.destroy_process_group()


class _Run:
    """The parts of one training run, put together once."""

    def __init__(self, config: TrainConfig, run: Path, place: Place):
        self.config, self.run, self.place = config, run, place
        sizes = config.vit_config(num_classes=1)
        plain = (0.0,) * sizes.channels, (1.0,) * sizes.channels
        self.dataset = load_dataset(
            config.data, Preprocess(sizes.image_size, mean=plain[0], std=plain[1]),
            root=Path(config.data_root), budget=_memory_budget(place.device), workers=config.workers,
        )  # fmt: skip
        self.train_set = _resident_on(self.dataset.train, place.device, config.limit)
        self.test_set = _resident_on(self.dataset.test, place.device, None)
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
        self.averaged = (
            AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(config.ema)) if config.ema else None
        )
        self.optimizers = _optimizers(self.model, config, place.device)
        self.peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.logits = self._forward()
        self.augment = config.augmentation()
        self.chance = Chance(place.device)
        self.step, self.attempt, self.seconds = 0, 0, 0.0
        self.best: Evaluation | None = None

    def train(self, resume: bool) -> Evaluation:
        state = self.run / "checkpoints" / "state.pt"
        self.run.mkdir(parents=True, exist_ok=True)
        if resume and state.exists():
            self._load(state)
        if self.place.leads:
            self._describe()
        with _Log(self.run, self.step, self.total_steps, self.place.leads, self.attempt) as log:
            for epoch in range(self.step // self.steps_per_epoch, self.config.epochs):
                started = time.perf_counter()
                self._epoch(epoch, log)
                if self.place.leads:
                    result = self._evaluate()
                    self.seconds += time.perf_counter() - started
                    log.epoch(self.step, epoch + 1, result, self.batch_size * self.steps_per_epoch, self.seconds)
                    self._save(epoch + 1, result, state)
                if self.place.world > 1:
                    dist.barrier()
        if self.best is None:  # another process leads
            return Evaluation(math.nan, math.nan, 0)
        return self.best

    def _forward(self) -> Any:
        """Pictures (B, channels, height, width) to logits (B, C), by the fastest path of this device."""
        model: nn.Module = self.model
        if self.place.world > 1:
            devices = [self.place.device.index] if self.place.device.type == "cuda" else None
            model = DistributedDataParallel(model, device_ids=devices)
        # The backward of torch's fused attention on CPU takes half of a step at 65 tokens; two products do not.
        explicit = self.place.device.type == "cpu"

        def logits(images: Tensor) -> Tensor:
            return model(images, output_attentions=explicit).logits

        if self.config.compile and self.place.device.type == "cpu" and not (shutil.which("g++") or shutil.which("clang++")):
            print("No C++ compiler was found, so torch.compile is left out: training takes longer.", file=sys.stderr)
            return logits
        return torch.compile(logits) if self.config.compile else logits

    def _epoch(self, epoch: int, log: "_Log") -> None:
        config, place = self.config, self.place
        self.model.train()
        self.chance.seed(config.seed, -1 - epoch)  # steps count from 0, so the order of an epoch has its own numbers
        order = torch.randperm(len(self.train_set.labels), generator=torch.Generator().manual_seed(self.chance.host.getrandbits(63)))
        order = order[: self.steps_per_epoch * self.batch_size].view(self.steps_per_epoch, self.batch_size)
        mine = order[:, place.rank :: place.world].flatten()
        for images, labels in self.train_set.batches(mine, self.batch_size // place.world, place.device):
            self.chance.seed(config.seed, self.step * place.world + place.rank)
            torch.manual_seed(self.chance.host.getrandbits(63))  # dropout and stochastic depth
            log.step(self.step, *self._step(images, labels))
            self.step += 1

    def _step(self, images: Tensor, labels: Tensor) -> tuple[Tensor, float]:
        """One update; returns the loss, still on the device, and the share of the peak learning rate."""
        config = self.config
        share = learning_rate_share(self.step, self.total_steps, self.steps_per_epoch, config)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self.peaks, strict=True):
            group["lr"] = peak * share
        inputs = self.normalise(self.augment(images, self.chance))
        targets = labels
        if config.mixup or config.cutmix:
            inputs, targets = self.augment.mix(inputs, F.one_hot(labels, len(self.dataset.classes)).float(), self.chance)
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
        return self.model if self.averaged is None else self.averaged.module

    def _evaluate(self) -> Evaluation:
        return evaluate(
            self.shown, self.test_set, self.normalise, device=self.place.device, autocast=self.place.autocast
        )

    def _save(self, epoch: int, result: Evaluation, state: Path) -> None:
        """First what people open, then the state: a kill in between repeats the epoch and writes the same again."""
        facts = {
            "data": self.config.data,
            "accuracy": round(result.accuracy, 4),
            "epoch": epoch,
            "seconds": round(self.seconds, 1),
            "hardware": _hardware(self.place.device),
            "recipe": self.config.model_dump(exclude_defaults=True),
        }
        folders = ["last"]
        if self.best is None or result.accuracy > self.best.accuracy:
            self.best = result
            folders.append("best")
        for name in folders:
            save_checkpoint(state.parent / name, self.shown, self.dataset.classes, self.preprocess, facts=facts)
        saved = {
            "model": self.model.state_dict(),
            "averaged": None if self.averaged is None else self.averaged.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step, "attempt": self.attempt, "seconds": self.seconds, "best": tuple(self.best),
        }  # fmt: skip
        temporary = state.with_suffix(".partial")
        with temporary.open("wb") as file:
            torch.save(saved, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(state)

    def _load(self, state: Path) -> None:
        saved = torch.load(state, map_location=self.place.device, weights_only=True)
        self.model.load_state_dict(saved["model"])
        if self.averaged is not None:
            self.averaged.load_state_dict(saved["averaged"])
        for optimizer, values in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(values)
        self.step, self.attempt, self.seconds = saved["step"], saved["attempt"] + 1, saved["seconds"]
        self.best = Evaluation(*saved["best"])

    def _describe(self) -> None:
        (self.run / "config.json").write_text(self.config.model_dump_json(indent=2) + "\n")
        environment = {
            "command": sys.argv, "python": platform.python_version(), "torch": torch.__version__,
            "hardware": _hardware(self.place.device), "devices": self.place.world, "attempt": self.attempt,
            "bfloat16": self.place.autocast, "threads": torch.get_num_threads(),
        }  # fmt: skip
        (self.run / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")


class _Log(AbstractContextManager["_Log"]):
    """Bar on the terminal, metrics.jsonl and TensorBoard events; silent in all processes but the leading one."""

    def __init__(self, run: Path, step: int, total: int, leads: bool, attempt: int):
        self.leads, self.attempt = leads, attempt
        self.losses: list[Tensor] = []
        if leads:
            from torch.utils.tensorboard import SummaryWriter

            self.metrics = MetricsWriter(run / "metrics.jsonl")
            self.events = SummaryWriter(run / "events", purge_step=step)
            self.bar = tqdm(total=total, initial=step, unit="steps", smoothing=0.05, dynamic_ncols=True)
            self.facts: dict[str, str] = {}

    def step(self, step: int, loss: Tensor, share: float) -> None:
        self.losses.append(loss)
        if len(self.losses) < _LOG_EVERY:
            return
        mean = torch.stack(self.losses).mean().item()
        count = len(self.losses)
        self.losses.clear()
        if not math.isfinite(mean):
            raise Diverged(
                f"The loss became {mean} before step {step + 1}. Lower the learning rate, or raise warmup_epochs; "
                "the last complete epoch is kept."
            )
        if self.leads:
            self.metrics.write(kind="step", step=step + 1, loss=mean, lr_share=share, t=time.time(), attempt=self.attempt)
            self.events.add_scalar("train/loss", mean, step + 1)
            self.events.add_scalar("train/lr_share", share, step + 1)
            self.facts["loss"] = f"{mean:.3f}"
            self.bar.set_postfix(self.facts, refresh=False)
            self.bar.update(count)

    def epoch(self, step: int, epoch: int, result: Evaluation, pictures: int, seconds: float) -> None:
        rate = self.bar.format_dict["rate"]
        self.metrics.write(
            kind="epoch", step=step, epoch=epoch, accuracy=result.accuracy, test_loss=result.loss,
            seconds=seconds, t=time.time(), attempt=self.attempt,
        )  # fmt: skip
        self.events.add_scalar("test/accuracy", result.accuracy, step)
        self.events.add_scalar("test/loss", result.loss, step)
        self.facts["accuracy"] = f"{result.accuracy:.2%}"
        if rate:
            self.facts["pictures/s"] = f"{rate * pictures / max(1, step / epoch):.0f}"
        self.bar.update(step - self.bar.n)
        self.bar.set_postfix(self.facts)

    def __exit__(self, *error: object) -> None:
        if self.leads:
            self.bar.close()
            self.events.close()
            self.metrics.close()


def learning_rate_share(step: int, total: int, per_epoch: int, config: TrainConfig) -> float:
    """Share of the peak learning rate at a step: linear warm-up, then a half cosine to 0 or a constant."""
    warmup = config.warmup_epochs * per_epoch
    if step < warmup:
        return (step + 1) / warmup if warmup >= 1 else 1.0
    if config.schedule == "constant":
        return 1.0
    return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, total - warmup)))


def _optimizers(model: VisionTransformer, config: TrainConfig, device: torch.device) -> list[Optimizer]:
    """AdamW for everything, or Muon for the blocks' matrices and AdamW for the rest; no decay on vectors.

    Source of Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon.
    """
    matrices = [p for p in model.blocks.parameters() if p.ndim == 2]
    chosen = {id(p) for p in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    decayed = [p for p in others if p.ndim > 1 and p is not model.pos_embed and p is not model.prefix_tokens]
    kept = {id(p) for p in decayed}
    plain = [p for p in others if id(p) not in kept]
    if config.optimizer == "adamw":
        decayed = matrices + decayed
    fused = device.type in ("cuda", "cpu")
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=(0.9, 0.99), fused=fused)
    if config.optimizer == "adamw":
        return [adamw]
    return [adamw, torch.optim.Muon(matrices, lr=config.muon_lr, weight_decay=config.weight_decay, momentum=0.95)]


def _memory_budget(device: torch.device) -> int:
    """Bytes that pictures may take before they are streamed: half of what is free on the device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0] // 2
    pages = os.sysconf("SC_AVPHYS_PAGES") if "SC_AVPHYS_PAGES" in os.sysconf_names else 0
    return pages * os.sysconf("SC_PAGE_SIZE") // 2 if pages else 4 << 30


def _resident_on(pictures: Any, device: torch.device, limit: int | None) -> Any:
    if not isinstance(pictures, Resident):
        if limit:
            raise InvalidConfig("limit: works for pictures that fit into memory; this folder is streamed.")
        return pictures
    if limit and limit < len(pictures.labels):
        chosen = torch.randperm(len(pictures.labels), generator=torch.Generator().manual_seed(0))[:limit]
        pictures = Resident(pictures.images[chosen], pictures.labels[chosen])
    return pictures.to(device)


def _mean_and_std(pictures: Any, device: torch.device) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Per channel, for pixels from 0 to 1, over at most 10,000 training pictures, to four decimals."""
    count = min(len(pictures.labels), 10_000)
    order = torch.linspace(0, len(pictures.labels) - 1, count).long()
    sums = torch.zeros(2, 0)
    total = 0
    for images, _ in pictures.batches(order, 500, device):
        pixels = images.double().transpose(0, 1).flatten(1) / 255  # (channels, pixels)
        part = torch.stack([pixels.sum(1), pixels.square().sum(1)]).cpu()
        sums = part if not total else sums + part
        total += pixels.shape[1]
    mean = sums[0] / total
    std = (sums[1] / total - mean.square()).clamp_min(1e-6).sqrt()
    return tuple(round(v, 4) for v in mean.tolist()), tuple(max(round(v, 4), 1e-3) for v in std.tolist())


def _hardware(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{torch.get_num_threads()} threads on {platform.processor() or platform.machine()}"
