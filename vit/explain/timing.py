"""Estimate how long work takes on this machine: measured on a small sample, and corrected by actual durations.

The sample is run the way the whole work is, because a single pass is a poor predictor: small pictures take a third of
the time in batches, the first pass includes set-up, and other programs use the machine.
"""

import math
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from threading import RLock
from typing import NamedTuple

import torch
from torch import Tensor

from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer

PIECE_REPEATS = 3  # maximum number of runs of a sample; the fastest counts
PIECE_SECONDS = 0.5  # time limit of these runs, after the second [s]
TIMES_REMEMBERED = 3  # actual durations that are remembered; the fastest counts
PIECE_TOKENS = 2048  # tokens in a sample's batch
PIECE_PRODUCTS = 10e9  # maximum multiply-adds of a sample; larger pictures are timed at a smaller size
PIECE_SIDES = (16, 8)  # sides of these smaller sizes [patches]


class Kind(NamedTuple):
    """Kind of work. All passes of one kind take equally long.

    Attributes:
        name: such as "masks".
        size: (height, width) of the input [px].
    """

    name: str
    size: tuple[int, int]


class WorkSample(NamedTuple):
    """A small sample of some work.

    Attributes:
        kind: key of the measured rate, which several kinds of work may share.
        products: multiply-adds of the sample.
        run: runs the sample.
    """

    kind: Kind
    products: float
    run: Callable[[], object]


class Pace:
    """Duration of passes, by architecture and kind of work.

    Args:
        clock: returns the current time [s].
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._lock = clock, RLock()  # reentrant: a sample may itself run code inside of `timed`
        self._rates: dict[Hashable, dict[Kind, float]] = {}  # seconds per multiply-add, of samples or actual work
        # Seconds per pass as predicted from a sample, and whether the sample had a smaller input size.
        self._predicted: dict[Hashable, dict[Kind, tuple[float, bool]]] = {}
        self._actual: dict[Hashable, dict[Kind, deque[float]]] = {}  # seconds per pass
        # Ratio of actual to predicted time, by the kind's name and whether the sample had a smaller input size.
        self._ratios: defaultdict[tuple[str, bool], deque[float]] = defaultdict(partial(deque, maxlen=TIMES_REMEMBERED))

    def expected(
        self, architecture: Hashable, kind: Kind, passes: float, products: float, piece: Callable[[], WorkSample]
    ) -> float:
        """Estimate the duration of some work [s].

        Args:
            architecture: key of the model; models with equal keys take equally long.
            passes: number of passes.
            products: multiply-adds of each pass.
            piece: creates a sample of the work, which is run unless this kind of work was measured before.
        """
        with self._lock:
            if actual := self._actual.get(architecture, {}).get(kind):
                return passes * min(actual)
            if kind not in self._predicted.setdefault(architecture, {}):
                self._predicted[architecture][kind] = self._predict(architecture, kind, products, piece)
            predicted, scaled = self._predicted[architecture][kind]
            return passes * predicted * min(self._ratios.get((kind.name, scaled), [1.0]))

    def _predict(
        self, architecture: Hashable, kind: Kind, products: float, piece: Callable[[], WorkSample]
    ) -> tuple[float, bool]:
        """Predict the seconds of a pass from the same work at another input size, or else from a sample."""
        rates = self._rates.setdefault(architecture, {})
        for other, rate in rates.items():
            if other.name == kind.name and other in self._actual.get(architecture, {}):
                return rate * products, True
        sample = piece()
        if sample.kind not in rates:
            rates[sample.kind] = self._fastest_time(sample.run) / sample.products
        return rates[sample.kind] * products, sample.kind.size != kind.size

    @contextmanager
    def timed(self, architecture: Hashable, kind: Kind, passes: float, products: float) -> Iterator[None]:
        """Measure the actual duration of some work, unless it fails.

        Args:
            products: multiply-adds of each pass.
        """
        started = self._clock()
        yield
        each = (self._clock() - started) / passes
        with self._lock:
            kinds = self._actual.setdefault(architecture, {})
            kinds.setdefault(kind, deque(maxlen=TIMES_REMEMBERED)).append(each)
            self._rates.setdefault(architecture, {})[kind] = min(kinds[kind]) / products
            if prediction := self._predicted.get(architecture, {}).get(kind):
                predicted, scaled = prediction
                self._ratios[kind.name, scaled].append(each / predicted)

    def _fastest_time(self, run: Callable[[], object]) -> float:
        """Return the shortest of several runs [s]. There are at least two, because the first includes set-up."""
        times: list[float] = []
        while len(times) < 2 or (len(times) < PIECE_REPEATS and sum(times) < PIECE_SECONDS):
            started = self._clock()
            run()
            times.append(self._clock() - started)
        return min(times)


PACE = Pace()  # shared by the whole process


def products(config: ViTConfig, size: tuple[int, int]) -> float:
    """Return the multiply-adds of a pass; those of attention are weighted by 1.3, since they are slower.

    Args:
        size: (height, width) of the input [px].
    """
    tokens = len(config.prefix) + math.prod(side // config.patch_size for side in size)
    matrices = 4 * config.dim + (3 if config.gated_mlp else 2) * config.mlp_dim
    return config.depth * config.dim * (2 * tokens * matrices + 1.3 * 4 * tokens**2)


def timed(model: VisionTransformer, kind: Kind, passes: float) -> AbstractContextManager[None]:
    """Measure the actual duration of some work, see `Pace.timed`."""
    return PACE.timed(_architecture(model), kind, passes, products(model.config, kind.size))


def expected(
    model: VisionTransformer,
    kind: Kind,
    passes: float,
    run: Callable[[Tensor], object] | None = None,
    per_batch: int = PIECE_TOKENS,
) -> float:
    """Estimate the duration of a number of passes [s].

    Args:
        run: processes a batch of pictures; None for a plain forward pass.
        per_batch: maximum batch size of the work.
    """
    config, whole = model.config, products(model.config, kind.size)

    def piece() -> WorkSample:
        size = piece_size(config, kind.size)
        tokens = len(config.prefix) + math.prod(side // config.patch_size for side in size)
        count = max(1, min(per_batch, PIECE_TOKENS // tokens, int(PIECE_PRODUCTS // products(config, size))))
        pixels = torch.zeros(count, config.channels, *size, device=next(model.parameters()).device)
        name = kind.name if run else "plain passes"
        return WorkSample(
            Kind(name, size), count * products(config, size), partial(run or partial(_pass, model), pixels)
        )

    return PACE.expected(_architecture(model), kind, passes, whole, piece)


def _architecture(model: VisionTransformer) -> Hashable:
    """Return a key for a model's speed. It does not depend on weights, so a reloaded model is not timed again."""
    weight = next(model.parameters())
    return model.config, weight.device, weight.dtype


def piece_size(config: ViTConfig, size: tuple[int, int]) -> tuple[int, int]:
    """Return a (height, width) whose pass is short enough for a sample, `size` itself if possible [px]."""
    smaller = [
        (min(size[0], side), min(size[1], side)) for side in (patches * config.patch_size for patches in PIECE_SIDES)
    ]
    light = (candidate for candidate in (size, *smaller) if products(config, candidate) <= PIECE_PRODUCTS)
    return next(light, smaller[-1])


@torch.inference_mode()
def _pass(model: VisionTransformer, pixels: Tensor) -> list[float]:
    with onednn():
        return model(pixels).logits.flatten().tolist()  # waits for the GPU, whose kernels run asynchronously
