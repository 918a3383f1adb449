"""How long work takes here: timed on a little of it, done as all of it will be, and corrected by what it really took.

One pass says little about many: small pictures together take a third of what they take one by one, the first pass of a
model sets things up, and other programs use the machine too.
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

PIECE_REPEATS = 3  # of a piece; the fastest counts
PIECE_SECONDS = 0.5  # [s] of them, once there are two
TIMES_REMEMBERED = 3  # of those that work really took; the fastest counts
PIECE_TOKENS = 2048  # tokens of the pictures in a piece
PIECE_PRODUCTS = 10e9  # products; of a picture that has more, a piece is smaller
PIECE_SIDES = (16, 8)  # patches along the sides of such a piece


class Kind(NamedTuple):
    """Work whose passes through a model take alike.

    Attributes:
        name: of what is done, such as "verdict".
        size: (height, width) of the input [px].
    """

    name: str
    size: tuple[int, int]


class Piece(NamedTuple):
    """A little of some work.

    Attributes:
        kind: of work, which several may have in common.
        products: multiplications and additions in it.
        run: does it.
    """

    kind: Kind
    products: float
    run: Callable[[], object]


class Pace:
    """What passes take, for each architecture and kind of work.

    Args:
        clock: tells the time [s].
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock, self._lock = clock, RLock()
        self._rates: dict[Hashable, dict[Kind, float]] = {}  # [s] per product, of pieces
        self._predicted: dict[Hashable, dict[Kind, tuple[float, bool]]] = {}  # [s] per pass
        self._taken: dict[Hashable, dict[Kind, deque[float]]] = {}  # [s] per pass, real
        # Of what was taken to what was told, by the kind's name and whether its piece was smaller.
        self._ratios: defaultdict[tuple[str, bool], deque[float]] = defaultdict(partial(deque, maxlen=TIMES_REMEMBERED))

    def expected(
        self, architecture: Hashable, kind: Kind, passes: float, products: float, piece: Callable[[], Piece]
    ) -> float:
        """How long some work will take [s].

        Args:
            architecture: of the model that does it; models that are equal in it take equally long.
            passes: how many.
            products: of each.
            piece: gives a little of the work, which is done where no such model has done such work yet.
        """
        with self._lock:
            if taken := self._taken.get(architecture, {}).get(kind):
                return passes * min(taken)
            if kind not in self._predicted.setdefault(architecture, {}):
                little, rates = piece(), self._rates.setdefault(architecture, {})
                if little.kind not in rates:
                    rates[little.kind] = self._fastest_time(little.run) / little.products
                self._predicted[architecture][kind] = rates[little.kind] * products, little.kind.size != kind.size
            measured, scaled = self._predicted[architecture][kind]
            return passes * measured * min(self._ratios.get((kind.name, scaled), [1.0]))

    @contextmanager
    def doing(self, architecture: Hashable, kind: Kind, passes: float) -> Iterator[None]:
        """Remember how long some work took, unless it failed."""
        started = self._clock()
        yield
        each = (self._clock() - started) / passes
        with self._lock:
            kinds = self._taken.setdefault(architecture, {})
            kinds.setdefault(kind, deque(maxlen=TIMES_REMEMBERED)).append(each)
            if measured := self._predicted.get(architecture, {}).get(kind):
                self._ratios[kind.name, measured[1]].append(each / measured[0])

    def _fastest_time(self, run: Callable[[], object]) -> float:
        """The fastest of several [s], the first of which sets things up."""
        times: list[float] = []
        while len(times) < 2 or (len(times) < PIECE_REPEATS and sum(times) < PIECE_SECONDS):
            started = self._clock()
            run()
            times.append(self._clock() - started)
        return min(times)


PACE = Pace()  # of this process, whose work shares one machine


def products(config: ViTConfig, size: tuple[int, int]) -> float:
    """Multiplications and additions of a pass, those of attention weighed by what they take more than others.

    Args:
        size: (height, width) of the input [px].
    """
    tokens = len(config.prefix) + math.prod(side // config.patch_size for side in size)
    matrices = 4 * config.dim + (3 if config.gated_mlp else 2) * config.mlp_dim
    return config.depth * config.dim * (2 * tokens * matrices + 1.3 * 4 * tokens**2)


def doing(model: VisionTransformer, kind: Kind, passes: float) -> AbstractContextManager[None]:
    """Remember how long some work took, see `Pace.doing`."""
    return PACE.doing(_architecture(model), kind, passes)


def expected(
    model: VisionTransformer,
    kind: Kind,
    passes: float,
    run: Callable[[Tensor], object] | None = None,
    per_batch: int = PIECE_TOKENS,
) -> float:
    """How long so many passes will take [s].

    Args:
        run: what is done with a batch of pictures, in place of a plain pass.
        per_batch: pictures that the work takes together, at most.
    """
    config, whole = model.config, products(model.config, kind.size)

    def piece() -> Piece:
        size = piece_size(config, kind.size)
        tokens = len(config.prefix) + math.prod(side // config.patch_size for side in size)
        count = max(1, min(per_batch, PIECE_TOKENS // tokens, int(PIECE_PRODUCTS // products(config, size))))
        pixels = torch.zeros(count, config.channels, *size, device=next(model.parameters()).device)
        name = kind.name if run else "plain passes"
        return Piece(Kind(name, size), count * products(config, size), partial(run or partial(_pass, model), pixels))

    return PACE.expected(_architecture(model), kind, passes, whole, piece)


def _architecture(model: VisionTransformer) -> Hashable:
    """What decides how long a model takes, whatever its weights are: one that is opened again is not timed again."""
    weight = next(model.parameters())
    return model.config, weight.device, weight.dtype


def piece_size(config: ViTConfig, size: tuple[int, int]) -> tuple[int, int]:
    """The (height, width) of a picture that can be timed in a moment, `size` itself where that can [px]."""
    smaller = [
        (min(size[0], side), min(size[1], side)) for side in (patches * config.patch_size for patches in PIECE_SIDES)
    ]
    light = (one for one in (size, *smaller) if products(config, one) <= PIECE_PRODUCTS)
    return next(light, smaller[-1])


@torch.inference_mode()
def _pass(model: VisionTransformer, pixels: Tensor) -> list[float]:
    with onednn():
        return model(pixels).logits.flatten().tolist()  # a GPU has finished when the numbers are here
