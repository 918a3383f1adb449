"""One training step: augmentation, gradients in micro-batches, optimizers, weight averaging."""

import json
import shutil
import sys
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from vit.data.augment import Augmentation, RandomGenerators
from vit.errors import UserError
from vit.files import replaced
from vit.model.attention import Attention
from vit.model.transformer import VisionTransformer
from vit.out_of_memory import is_out_of_memory
from vit.training.loop.config import Balance, TrainConfig, resolve_balance
from vit.training.loop.cuda_graph import GraphedGradients
from vit.training.loop.distributed import Process
from vit.training.loop.optimizers import average_, make_optimizers, step_
from vit.training.loop.pictures import RunData
from vit.training.loop.run_folder import AGAIN
from vit.training.loop.schedule import learning_rate_factor


def class_weights(labels: Tensor, classes: int) -> Tensor:
    """Return weights that make all classes count equally, (C,), with mean 1 over the pictures.

    Args:
        labels: (n,), of all training pictures.

    >>> class_weights(torch.tensor([0, 0, 0, 1]), 2)
    tensor([0.6667, 2.0000])
    """
    counts = labels.bincount(minlength=classes).clamp_min(1)
    return len(labels) / (classes * counts.float())


class OutOfMemory(UserError):
    """Memory is too small: for a single picture, or, with several processes, for the current micro-batches."""


class TrainStep:
    """Updates a model's weights, a batch at a time.

    Random numbers depend on seed and step only, so that a repeated step gives the same weights.
    """

    config: TrainConfig
    run: Path
    process: Process
    data: RunData

    # model
    model: VisionTransformer
    models: dict[str, VisionTransformer]  # "raw", and with weight averaging "averaged"
    logits: Callable[[Tensor], Tensor]  # pictures (B, channels, height, width) to (B, C), by the fastest path
    parallel: DistributedDataParallel | None  # wraps the model if there are several processes

    # update
    optimizers: list[torch.optim.Optimizer]
    peaks: list[float]  # peak learning rate of each parameter group
    total_steps: int
    augment: Augmentation
    generators: RandomGenerators
    balance: Balance  # not "auto"
    class_weights: Tensor | None  # (C,), if the loss is balanced by weights
    log_prior: Tensor | None  # (C,), if the loss is balanced by the classes' shares
    parts: int  # micro-batches per batch
    graphed: GraphedGradients | None  # computes the gradients on a GPU, if the run is compiled

    def __init__(self, config: TrainConfig, run: Path, process: Process, data: RunData, model: VisionTransformer):
        self.config, self.run, self.process, self.data = config, run, process, data
        self.model = model
        self.models = {"raw": model}
        if config.ema:
            self.models["averaged"] = deepcopy(model).requires_grad_(False)
        self.optimizers = make_optimizers(model, config, process.device)
        self.peaks = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.total_steps = data.steps_per_epoch * config.epochs
        self.parallel = None
        self.logits = self._fastest_forward()
        self.augment = config.augmentation(model.config.image_size)
        if config.compile and process.device.type == "cuda":  # fuses the augmentation's many small kernels
            self.augment = self.augment.compiled()
        self.generators = RandomGenerators(process.device)
        weights = class_weights(data.train.labels, len(data.classes)).to(process.device)
        self.balance = resolve_balance(config.balance, data.train.labels.bincount().tolist())
        self.class_weights = weights if self.balance == "loss" else None
        self.log_prior = -weights.log() if self.balance == "prior" else None
        self.parts = 1
        whole = config.compile and process.device.type == "cuda" and process.world == 1
        self.graphed = GraphedGradients(self.gradients, model.parameters()) if whole else None

    def train_step(
        self, step: int, images: Tensor, labels: Tensor, note: Callable[[str], None]
    ) -> tuple[Tensor, float]:
        """Update the weights once.

        Args:
            step: number of steps done before.
            images, labels: uint8 (B, channels, height, width) and (B,), on the device.
            note: called with messages for the user.

        Returns:
            the loss, still on the device, and the factor of the peak learning rate.

        Raises:
            OutOfMemory: memory ran out in one of several processes; all have to restart with smaller micro-batches.
        """
        config, process = self.config, self.process
        self.generators.seed(config.seed, step * process.world + process.rank)
        factor = learning_rate_factor(step, self.total_steps, self.data.steps_per_epoch, config)
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        for group, peak in zip(groups, self.peaks, strict=True):
            group["lr"] = peak * factor
        dropout_seed = self.generators.host.getrandbits(63)
        inputs, targets = self.data.normalise(self.augment(images, self.generators)), labels
        if config.mixup or config.cutmix:
            certain = F.one_hot(labels, len(self.data.classes)).float()
            inputs, targets = self.augment.mix(inputs, certain, self.generators)
        while True:
            gradients: Callable[[Tensor, Tensor], Tensor] = self.gradients
            try:
                if self.graphed and self.parts == 1:
                    self.graphed.capture(inputs, targets)
                    gradients = self.graphed
                self._seed(dropout_seed)  # for dropout and stochastic depth
                loss = gradients(inputs, targets)
                break
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error) or self.parts >= len(inputs):
                    raise
            self._halve_microbatch(step, note)
        if config.grad_clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), config.grad_clip, foreach=True)
        for optimizer in self.optimizers:
            step_(optimizer)
            optimizer.zero_grad(set_to_none=True)
        if averaged := self.models.get("averaged"):
            average_(averaged, self.model, step, config.ema)
        return loss, factor

    def gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Accumulate the gradient of a batch's mean loss in the parameters; returns the loss.

        Args:
            inputs: (B, channels, height, width), normalised.
            targets: (B,) labels, or (B, C) probabilities.
        """
        total = torch.zeros((), device=inputs.device)
        pairs = list(zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True))
        for index, (part, part_targets) in enumerate(pairs):
            last = index == len(pairs) - 1
            with self.parallel.no_sync() if self.parallel and not last else nullcontext():
                with self.process.arithmetic():
                    logits = self.logits(part)
                loss = self._loss(logits.float(), part_targets) * (len(part) / len(inputs))
                loss.backward()
            total += loss.detach()
        return total

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits (B, C), balanced over the classes if the run asks for it.

        Source of the balance by prior: Menon et al. 2021, arXiv 2007.07314, equation 10 with tau = 1.
        """
        smoothing = self.config.label_smoothing
        if self.log_prior is not None:
            logits = logits + self.log_prior
        if self.class_weights is None:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        each = F.cross_entropy(logits, targets, weight=self.class_weights, label_smoothing=smoothing, reduction="none")
        return each.mean()

    def _fastest_forward(self) -> Callable[[Tensor], Tensor]:
        """Return the fastest function from pictures to logits on this device."""
        model: nn.Module = self.model
        on_cpu = self.process.device.type == "cpu"
        if self.process.world > 1:
            model = self.parallel = DistributedDataParallel(
                model, device_ids=None if on_cpu else [self.process.device.index]
            )

        for module in self.model.modules():
            if isinstance(module, Attention):
                # At 65 tokens on CPU, the backward of torch's fused attention takes half of a step, two products less.
                module.explicit = on_cpu

        def logits(images: Tensor) -> Tensor:
            return model(images).logits

        if not self.config.compile:
            return logits
        if on_cpu and not (shutil.which("g++") or shutil.which("clang++")):
            print("No C++ compiler was found, so torch.compile is left out: training takes longer.", file=sys.stderr)
            return logits
        return torch.compile(logits, dynamic=False)

    def _seed(self, seed: int) -> None:
        """Seed torch; on CPU without `torch.manual_seed`, which takes 2 ms to query every kind of accelerator."""
        if self.process.device.type == "cpu":
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)

    def _halve_microbatch(self, step: int, note: Callable[[str], None]) -> None:
        """Split batches into twice as many micro-batches from here on: the same gradients, with less memory."""
        self.parts *= 2
        message = f"Memory ran out at step {step}: each batch is computed in {self.parts} parts from here on."
        # The other processes wait in a collective operation of this step, so all have to restart.
        if self.process.world > 1:
            with replaced(self.run / AGAIN) as file:
                file.write(json.dumps({"parts": self.parts}).encode())
            raise OutOfMemory(f"{message} Resume the run.")
        for parameter in self.model.parameters():
            parameter.grad = None
        if self.process.device.type == "cuda":
            torch.cuda.empty_cache()
        note(message)
