"""Suggest a smaller recipe for a run that would take too long on this machine."""

from typing import Any, NamedTuple

from vit.explain.timing import products
from vit.training.config import TrainConfig
from vit.training.dry_run import DryRun
from vit.training.fine_tuning import model_config
from vit.training.memory import parameters_of

FITTING_SECONDS = 2 * 3600.0  # [s] maximum duration of a suggested run


class FittedRecipe(NamedTuple):
    """A recipe that suits a machine.

    Attributes:
        settings: the changed ones.
        params: number of trained parameters.
        seconds: estimated duration [s].
    """

    settings: dict[str, Any]
    params: int
    seconds: float


# Small models that still learn something, in descending order: input size and architecture.
_SMALLER_MODELS: tuple[dict[str, Any], ...] = (
    dict(image_size=96, size="cifar-small", patch_size=8, dim=192, heads=3, mlp_dim=768),
    dict(image_size=64, size="cifar-small", patch_size=8),
    dict(image_size=32, size="cifar-small", patch_size=4, dim=64, depth=4, mlp_dim=128),
)
_INPUT_SIZES = (224, 160, 128, 96, 64, 32)  # input sizes for a fixed model [px]
_FEWER_EPOCHS = (30, 10)


def fitting(config: TrainConfig, dry_run: DryRun, seconds: float = FITTING_SECONDS) -> FittedRecipe | None:
    """Return the largest recipe for the same pictures that meets the time limit on this machine; None if there is none.

    Args:
        dry_run: of the original settings.
        seconds: time limit [s].
    """
    own = model_config(config, dry_run.classes)
    work, side = products(own, own.image_size), min(own.image_size)
    each = dry_run.seconds_per_epoch / work  # [s] per epoch and multiply-add of a picture
    if config.init_from:
        sides = sorted({size - size % own.patch_size for size in _INPUT_SIZES if size >= own.patch_size}, reverse=True)
        options: list[dict[str, Any]] = [dict(image_size=smaller) for smaller in sides]
    else:
        follows = dict.fromkeys(("patch_size", "dim", "depth", "heads", "mlp_dim", "pool", "norm", "activation"))
        options = [follows | changes for changes in _SMALLER_MODELS]
    options = [one | {"crop_padding": min(config.crop_padding, one["image_size"] // 8)} for one in options]
    fewer = ({"epochs": epochs} for epochs in _FEWER_EPOCHS if epochs < config.epochs)
    for epochs in ({}, *fewer):
        for changes in ({}, *(one for one in options if one["image_size"] <= side)):
            settings = changes | epochs
            changed = config.model_copy(update=settings)
            model = model_config(changed, dry_run.classes)
            share = products(model, model.image_size) / work
            if (share < 1 or (share == 1 and epochs)) and (takes := changed.epochs * each * work * share) <= seconds:
                return FittedRecipe(settings, parameters_of(model), takes)
    return None
