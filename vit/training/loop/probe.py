"""Accuracy of a model's frozen features, with a linear probe and with nearest neighbours."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.data.pictures import InMemoryPictures, Pictures
from vit.data.splits import interleave_classes
from vit.explain.features import pooled_features
from vit.images.preprocess import Normalise
from vit.model.classification_heads import NeighbourHead
from vit.model.cost import images_in_memory
from vit.model.transformer import VisionTransformer
from vit.training.loop import feature_store
from vit.training.loop.ladder import RungResult
from vit.training.loop.optimizers import step_
from vit.training.loop.pictures import RunData

MOST_PICTURES = 20_000  # training pictures of a probe, at most
_BATCH_PICTURES = 250  # pictures per batch, at most
_STEPS = 300  # iterations of the solver, at most
STRENGTHS = (0.001, 0.01, 0.1, 1.0)  # inverse regularisation, as C of scikit-learn's LogisticRegression
_FOLDS, _FOLD_PICTURES = 5, 2000  # cross-validation that selects the strength


def choose_pictures(labels: Tensor) -> Tensor:
    """Choose training pictures for a probe by their labels (n,): all, or `MOST_PICTURES`, balanced over the classes."""
    return torch.as_tensor(interleave_classes(labels.tolist())[:MOST_PICTURES])


def features_of(
    model: VisionTransformer,
    pictures: Pictures,
    normalise: Normalise,
    order: Tensor,
    device: torch.device,
    tick: Callable[[float], object] = lambda share: None,
) -> tuple[Tensor, Tensor]:
    """Compute the input of a model's head for some pictures, (n, D) float32, and their labels (n,), both on the CPU.

    Features of pictures in memory are cached on disk.

    Args:
        order: (n,) indices of pictures; pictures larger than the input are downscaled.
        tick: called after every batch with the share done, 0 to 1.
    """
    if not isinstance(pictures, InMemoryPictures):
        return _compute_features(model, pictures, normalise, order, device, tick)
    stored = feature_store.place(model, pictures, normalise, order, device)
    width, labels = next(model.head.parameters()).shape[1], pictures.labels.cpu()[order]
    features = feature_store.load(stored, len(order), width)
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
    batch = images_in_memory(model.config, size, _BATCH_PICTURES)
    for images, own in pictures.batches(order, batch, device):
        if images.shape[2:] != size:
            images = F.interpolate(images.float(), size, mode="bilinear", antialias=True)
        vectors.append(pooled_features(model, normalise(images)).float().cpu())
        labels.append(own.cpu())
        tick(sum(map(len, labels)) / len(order))
    return torch.cat(vectors).clone(), torch.cat(labels)


def fit(features: Tensor, labels: Tensor, classes: int, strength: float | None = None) -> tuple[Tensor, Tensor]:
    """Fit a multinomial logistic regression with L2 regularisation, on standardised features.

    Args:
        features: (n, D).
        labels: (n,), below `classes`.
        strength: inverse regularisation, C of scikit-learn's LogisticRegression; None chooses among STRENGTHS.

    Returns:
        weights (C, D) and biases (C,), float32, for features that are not standardised.
    """
    x = features.double()
    mean, spread = x.mean(0), x.std(0, correction=0)
    spread = torch.where(spread > 1e-12, spread, 1.0)
    x = (x - mean) / spread
    weight, bias = _solve(x, labels, classes, strength or choose_strength(features, labels, classes))
    weight = weight / spread
    return weight.float(), (bias - weight @ mean).float()


def choose_strength(features: Tensor, labels: Tensor, classes: int) -> float:
    """Choose the inverse regularisation with the lowest cross-entropy in a cross-validation.

    It uses at most 2,000 pictures, balanced over the classes. With few pictures, weak regularisation overfits: on 1,000
    pictures of CIFAR-10, C = 1 has a cross-entropy of 2.7 on test pictures, and C = 0.01 of 1.5.

    Args:
        features: (n, D).
        labels: (n,), below `classes`.
    """
    few = torch.as_tensor(interleave_classes(labels.tolist())[:_FOLD_PICTURES])
    x, y = features[few].double(), labels[few]
    fold = torch.zeros_like(y)
    for label in range(classes):
        of_class = y == label
        fold[of_class] = torch.arange(int(of_class.sum())) % _FOLDS
    losses = torch.zeros(len(STRENGTHS), dtype=torch.float64)
    for number in fold.unique():
        out = fold == number
        if out.all():  # one picture per class leaves none to train on
            return STRENGTHS[-1]
        mean, spread = x[~out].mean(0), x[~out].std(0, correction=0)
        z = (x - mean) / torch.where(spread > 1e-12, spread, 1.0)
        begin = None
        # From strong to weak regularisation, each starting at the solution before it, which is close.
        for index, strength in enumerate(STRENGTHS):
            begin = _solve(z[~out], y[~out], classes, strength, begin, exact=False)
            losses[index] += F.cross_entropy(z[out] @ begin[0].T + begin[1], y[out], reduction="sum")
    return STRENGTHS[int(losses.argmin())]


def _solve(
    x: Tensor,
    labels: Tensor,
    classes: int,
    strength: float,
    begin: tuple[Tensor, Tensor] | None = None,
    exact: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return weights and biases for standardised features (n, D) float64."""
    weight, bias = begin or (x.new_zeros(classes, x.shape[1]), x.new_zeros(classes))
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias],
        max_iter=_STEPS if exact else _STEPS // 6,
        tolerance_grad=1e-7 if exact else 1e-4,
        tolerance_change=1e-12,
        line_search_fn="strong_wolfe",
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        misfit = F.cross_entropy(x @ weight.T + bias, labels)
        value = misfit + weight.square().sum() / (2 * strength * len(x))
        value.backward()
        return value

    step_(optimizer, loss)
    return weight.detach(), bias.detach()


def without_training(
    model: VisionTransformer,
    data: RunData,
    device: torch.device,
    tick: Callable[[float], object] = lambda share: None,
) -> dict[str, RungResult]:
    """Evaluate nearest neighbours and a linear probe on the validation pictures; keys are rungs of the ladder.

    Args:
        tick: called repeatedly with the share done, 0 to 1.
    """
    order, held_out = choose_pictures(data.train.labels), torch.arange(len(data.validation.labels))
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
    right = {name: float((logits.argmax(1) == truth).float().mean()) for name, logits in answers.items()}
    losses = {"probe": float(F.cross_entropy(answers["probe"], truth))}  # the neighbours' votes are no probabilities
    return {name: RungResult(share, len(truth), losses.get(name)) for name, share in right.items()}
