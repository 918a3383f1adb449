"""Named training recipes, with their expected results."""

from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from vit.errors import InvalidConfig
from vit.model.config import ViTConfig
from vit.training.loop.config import TrainConfig
from vit.untrusted import brief
from vit.validation import sentence


class Preset(NamedTuple):
    """A complete recipe, and the result to expect."""

    title: str
    expect: str
    settings: dict[str, Any]


# `expect` states measured or published figures only: test accuracy of the epoch with the best validation, by default.
PRESETS = {
    "shapes": Preset(
        "Four generated shapes, no download",
        "97.9% of their test pictures, at the epoch that validation chose, in half a minute on two CPU cores.",
        dict(
            data="shapes", size="shapes", epochs=8, batch_size=50, optimizer="muon", start="mimetic", lr=2e-3,
            flip=True,
        ),
    ),
    "cifar-cpu": Preset(
        "CIFAR-10 on a CPU in about two hours",
        "CIFAR-10, re-encoded as JPEG: 84.2% at the best epoch by test accuracy, in 100 minutes on two CPU cores.",
        dict(
            data="cifar10", size="cifar-small", epochs=40, batch_size=256, optimizer="muon", start="mimetic",
            lr=2e-3, warmup_epochs=3, crop_padding=4, flip=True, compile=True,
        ),
    ),
    "cifar": Preset(
        "CIFAR-10 on a GPU",
        "CIFAR-10: aimed at 95%, not measured to its end yet.",
        dict(
            data="cifar10", size="cifar", epochs=200, validate_every=10, batch_size=512, optimizer="muon",
            start="mimetic", lr=2e-3, warmup_epochs=5, crop_padding=4, flip=True, operations=2, magnitude=0.35,
            erase=0.2, mixup=0.2, cutmix=1.0, drop_path=0.1, ema=0.999, compile=True,
        ),
    ),
    "tintn": Preset(
        "CIFAR-10 with the size of tintn's tutorial",
        "CIFAR-10, re-encoded as JPEG: 82.0% at the best epoch by test accuracy, in two hours on one busy CPU core. "
        "75.5% is published for the tutorial's recipe.",
        dict(
            data="cifar10", size="tintn", epochs=100, batch_size=256, optimizer="muon", start="mimetic", lr=2e-3,
            warmup_epochs=3, crop_padding=4, flip=True, compile=True,
        ),
    ),
    "notebook": Preset(
        "CIFAR-10 with patches of 8 px, the size of a well-known notebook",
        "CIFAR-10, re-encoded as JPEG: 77.2% at the best epoch by test accuracy, in 11 minutes on two CPU cores. "
        "About 69% is published.",
        dict(
            data="cifar10", size="notebook", epochs=50, batch_size=256, optimizer="muon", start="mimetic", lr=2e-3,
            warmup_epochs=3, crop_padding=4, flip=True,
        ),
    ),
    "mnist": Preset(
        "Handwritten digits",
        "MNIST: 98.5% is published for this size.",
        dict(data="mnist", size="mnist", epochs=10, batch_size=128, lr=5e-4, crop_padding=2),
    ),
    "pictures": Preset(
        "Your own photos at 224 px, a small ViT from scratch",
        "From scratch: plan for thousands of pictures per class and a GPU.",
        dict(
            data="folder:PATH", size="S/16", epochs=100, batch_size=256, weight_decay=0.1, warmup_epochs=5,
            crop_padding=28, flip=True, operations=2, magnitude=0.5, erase=0.25, mixup=0.2, cutmix=1.0,
            drop_path=0.1, ema=0.9998,
        ),
    ),
    "photos": Preset(
        "Real photos of ten classes on a GPU, from scratch",
        "Imagenette: aimed at 90% in 15 minutes, not measured yet.",
        dict(
            data="folder:PATH", size="S/8", image_size=128, epochs=100, batch_size=256, optimizer="muon",
            start="mimetic", lr=2e-3, warmup_epochs=5, crop_scale=0.35, flip=True, operations=2, magnitude=0.3,
            erase=0.2, mixup=0.2, cutmix=1.0, drop_path=0.1, ema=0.9998, compile=True,
        ),
    ),
    "photos-cpu": Preset(
        "Real photos of ten classes on a CPU, from scratch, in about two hours",
        "Imagenette: 77.9% of the test pictures, at the epoch that validation chose, in 91 minutes on two shared CPU "
        "cores.",
        dict(
            data="folder:PATH", size="Ti/8", image_size=96, depth=6, epochs=70, batch_size=128, optimizer="muon",
            start="mimetic", lr=2e-3, warmup_epochs=3, crop_scale=0.35, flip=True, mixup=0.2, cutmix=1.0,
            drop_path=0.05, ema=0.999, compile=True,
        ),
    ),
    "fine-tune": Preset(
        "Your own photos, from a checkpoint",
        "What it reaches depends on your photos: the ladder measures that on them before the start.",
        dict(
            data="folder:PATH", init_from="everyday", epochs=20, batch_size=64, lr=3e-4, layer_decay=0.75,
            crop_scale=0.6, flip=True,
        ),
    ),
}  # fmt: skip


def train_config(preset: str | None = None, /, **settings: Any) -> TrainConfig:
    """Build and validate a run's configuration; `settings` override those of the preset.

    Raises:
        InvalidConfig: unknown preset or setting, a value out of range, or inconsistent values.
    """
    if preset is not None and preset not in PRESETS:
        raise InvalidConfig(f"There is no preset {preset!r}. Choose from: {', '.join(PRESETS)}.")
    try:
        return TrainConfig(**(PRESETS[preset].settings if preset else {}) | settings)
    except ValidationError as error:
        first, problem = error.errors()[0], sentence(error)
        if first["type"] == "extra_forbidden":
            problem += f" Choose from: {', '.join(TrainConfig.model_fields)}."
        elif first["type"] == "string_pattern_mismatch":
            name = str(first["loc"][0])
            problem = f"{name} must be {TrainConfig.model_fields[name].description}, not '{brief(first['input'])}'."
        raise InvalidConfig(problem) from error


def run_name(config: TrainConfig) -> str:
    """Return the default name of a run: its model, as blocks x width / patch if the size has no name.

    >>> run_name(train_config("pictures"))
    'ViT-S/16, 224 px'
    >>> run_name(train_config("pictures", dim=64, depth=4, heads=4, image_size=32, patch_size=4, crop_padding=4))
    'ViT 4x64/4, 32 px'
    >>> run_name(train_config("fine-tune", image_size=64))
    'everyday, fine-tuned at 64 px'
    """
    if config.init_from:
        side = f" at {config.image_size} px" if config.image_size else ""
        return f"{checkpoint_name(config.init_from)}, fine-tuned{side}"
    model = config.vit_config(num_classes=1)
    named = ViTConfig.preset(config.size)
    same = all(getattr(model, name) == getattr(named, name) for name in ("patch_size", "dim", "depth", "mlp_dim"))
    sizes = f"-{config.size}" if same and "/" in config.size else f" {model.depth}x{model.dim}/{model.patch_size}"
    return f"ViT{sizes}, {min(model.image_size)} px"


def checkpoint_name(spec: str) -> str:
    """Return the display name of an initial checkpoint: that of its folder, or of the run that wrote it."""
    path = Path(spec)
    return path.parent.parent.name if path.parent.name == "checkpoints" and path.name in ("best", "last") else path.name


def describe() -> str:
    """Describe every preset and every setting with its default, as text for the terminal."""
    presets = [f"  {name:<12} {preset.title}. {preset.expect}" for name, preset in PRESETS.items()]
    settings = [
        f"  {name:<16} {'' if field.default is None else field.default!s:<10} {field.description or ''}"
        for name, field in TrainConfig.model_fields.items()
    ]
    return "\n".join(["Presets", *presets, "", "Settings and their defaults", *settings])
