"""What a model's features tell as they are: by a linear probe, and by the votes of the nearest pictures."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.data.datasets import in_turn
from vit.data.pictures import Pictures, Resident
from vit.explain.features import pooled
from vit.images.preprocess import Normalise
from vit.model.heads import NeighbourHead
from vit.model.transformer import VisionTransformer
from vit.training import feature_store
from vit.training.ladder import Reached
from vit.training.optimizers import step_
from vit.training.pictures import RunData

MOST_PICTURES = 20_000  # that a probe learns from
_BATCH_PICTURES = 250
_STEPS = 300  # of the solver, at most
_C = 1.0  # how little large weights cost, as scikit-learn's LogisticRegression counts


def chosen(labels: Tensor) -> Tensor:
    """Which pictures, of these labels (n,), a probe learns from: all, or as many as it may, evenly from the classes."""
    return torch.as_tensor(in_turn(labels.tolist())[:MOST_PICTURES])


def features_of(
    model: VisionTransformer,
    pictures: Pictures,
    normalise: Normalise,
    order: Tensor,
    device: torch.device,
    tick: Callable[[float], object] = lambda share: None,
) -> tuple[Tensor, Tensor]:
    """What a model's head reads of some pictures, (n, D) float32, and their labels (n,), both on the CPU.

    Of pictures that are held in memory it is computed once and kept on disk.

    Args:
        order: (n,), which ones; larger ones than the input are shrunk to it.
        tick: called after every batch with the share that is done, 0 to 1.
    """
    if not isinstance(pictures, Resident):
        return _compute_features(model, pictures, normalise, order, device, tick)
    stored = feature_store.place(model, pictures, normalise, order, device)
    features, labels = feature_store.load(stored, len(order)), pictures.labels.cpu()[order]
    if features is None:
        features, labels = _compute_features(model, pictures, normalise, order, device, tick)
        feature_store.save(stored, features)
    tick(1.0)
    return features, labels


def _compute_features(
    model: VisionTransformer,
    pictures: Pictures,
    normalise: Normalise,
    order: Tensor,
    device: torch.device,
    tick: Callable[[float], object],
) -> tuple[Tensor, Tensor]:
    model.eval()
    size, vectors, labels = model.config.image_size, [], []
    for images, own in pictures.batches(order, _BATCH_PICTURES, device):
        if images.shape[2:] != size:
            images = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
        vectors.append(pooled(model, normalise(images)).float().cpu())
        labels.append(own.cpu())
        tick(sum(map(len, labels)) / len(order))
    return torch.cat(vectors).clone(), torch.cat(labels)


def fit(features: Tensor, labels: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """Multinomial logistic regression on standardised features, its weights held small.

    Args:
        features: (n, D).
        labels: (n,), numbers below `classes`.

    Returns:
        weights (C, D) and biases (C,) for features as they are, float32.
    """
    x = features.double()
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-12, spread, 1.0)
    x = (x - mean) / spread
    weight = torch.zeros(classes, x.shape[1], dtype=torch.float64, requires_grad=True)
    bias = torch.zeros(classes, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=_STEPS, tolerance_grad=1e-7, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        misfit = F.cross_entropy(x @ weight.T + bias, labels)
        value = misfit + weight.square().sum() / (2 * _C * len(x))
        value.backward()
        return value

    step_(optimizer, loss)
    with torch.no_grad():
        weight, bias = weight / spread, bias
        bias = bias - weight @ mean
    return weight.float(), bias.float()


def without_training(
    model: VisionTransformer,
    data: RunData,
    device: torch.device,
    tick: Callable[[float], object] = lambda share: None,
) -> dict[str, Reached]:
    """What nearest neighbours and a linear probe reach on validation pictures, by their names on the ladder.

    Args:
        tick: called now and then with the share that is done, 0 to 1.
    """
    order, held_out = chosen(data.train.labels), torch.arange(len(data.validation.labels))
    share = len(order) / (len(order) + len(held_out))

    def first(done: float) -> None:
        tick(done * share)

    def then(done: float) -> None:
        tick(share + done * (1 - share))

    known, labels = features_of(model, data.train, data.normalise, order, device, first)
    seen, truth = features_of(model, data.validation, data.normalise, held_out, device, then)
    classes = len(data.classes)
    weight, bias = fit(known, labels, classes)
    answers = {"neighbours": NeighbourHead(known, labels, classes)(seen), "probe": seen @ weight.T + bias}
    return {
        name: Reached(float((logits.argmax(1) == truth).float().mean()), len(truth)) for name, logits in answers.items()
    }
