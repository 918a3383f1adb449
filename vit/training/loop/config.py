"""Settings of a training run: one validated model for the command line, the page and the run's config.json."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from vit.data import augment
from vit.model.config import Activation, FinalNorm, ViTConfig
from vit.validation import one_sentence_errors

if TYPE_CHECKING:
    from vit.data.augment import Augmentation

Optimizer = Literal["adamw", "muon"]
Schedule = Literal["cosine", "constant"]
Balance = Literal["auto", "none", "prior", "loss", "sampling"]
Start = Literal["paper", "mimetic"]
Precision = Literal["auto", "float32", "bfloat16"]


BACKBONE = "backbone"  # value of `TrainConfig.freeze`
FINE_TUNING = ("freeze", "lora_rank", "layer_decay", "probe_first")  # need `init_from`
# Model settings that the checkpoint in `init_from` determines.
FROM_CHECKPOINT = (
    "size", "patch_size", "dim", "depth", "heads", "mlp_dim", "registers", "pool", "norm", "activation", "layer_scale",
    "start",
)  # fmt: skip
STORED = 1.25  # value of `TrainConfig.train_scale` for random crops
# Model settings that override those of the named size.
_SIZES = (
    "image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "pool", "norm", "activation", "layer_scale",
)  # fmt: skip


UNEQUAL = 3  # ratio of the largest to the smallest class above which "auto" balances


def unequal(counts: Iterable[int]) -> bool:
    """Whether classes with these numbers of training pictures differ so much that "auto" balances them.

    >>> unequal([10, 30, 0]), unequal([10, 31])
    (False, True)
    """
    some = [count for count in counts if count]
    return bool(some) and max(some) > UNEQUAL * min(some)


def resolve_balance(balance: Balance, counts: Iterable[int]) -> Balance:
    """Replace "auto" by the balance of classes with these numbers of training pictures."""
    return balance if balance != "auto" else "prior" if unequal(counts) else "none"


class TrainConfig(BaseModel):
    """Settings of a training run: data, model, recipe, machine. Fields that are None follow from the others."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    # Data
    data: str = Field("shapes", description="cifar10, cifar100, mnist, fashion-mnist, shapes or folder:PATH")
    data_root: str = Field("data", description="folder of downloads")
    limit: int | None = Field(None, ge=1, description="maximum number of training pictures")

    # Model: a named size, and overrides
    size: str = Field("shapes", description='a named size, such as "S/16" or "cifar"')
    image_size: int | None = Field(None, ge=4, le=1024, description="side of the input [px]")
    patch_size: int | None = Field(None, ge=1, le=128, description="side of a patch [px]")
    dim: int | None = Field(None, ge=8, le=4096, description="width of a token")
    depth: int | None = Field(None, ge=1, le=64, description="blocks")
    heads: int | None = Field(None, ge=1, le=64, description="attention heads per block")
    mlp_dim: int | None = Field(None, ge=8, le=16384, description="width of the MLP")
    registers: int = Field(
        0,
        ge=0,
        le=16,
        description="extra tokens without a position, besides the class token, that the model can use as scratch space",
    )
    pool: Literal["cls", "mean"] | None = Field(
        None, description="input of the head: the class token or the mean of the patches"
    )
    norm: FinalNorm | None = Field(None, description="position of the final LayerNorm")
    activation: Activation | None = Field(None, description="activation in the MLP")
    layer_scale: float | None = Field(
        None, gt=0, le=1, description="initial scale of each residual branch; none if left out"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="share of activations that are zeroed")
    drop_path: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="stochastic depth: share of residual branches skipped in the last block, less in earlier ones",
    )
    start: Start = Field("paper", description="initial weights: the paper's, or mimetic with sine-cosine positions")
    init_from: str = Field("", description="name or path of a checkpoint to fine-tune, which determines the model")

    # From a checkpoint
    freeze: str = Field(
        "",
        pattern=r"^(backbone|last:[1-9]\d?|)$",
        description="backbone, to freeze all but the head; last:K, to freeze all but the last K blocks and the head",
    )
    lora_rank: int = Field(
        0, ge=0, le=256, description="rank of LoRA adapters, trained in place of the attention matrices; 0 for none"
    )
    layer_decay: float = Field(
        1.0, gt=0, le=1, description="learning rate of each block, relative to the block above it"
    )
    probe_first: bool = Field(False, description="fit the head to the checkpoint's frozen features before training")

    # Recipe
    epochs: int = Field(10, ge=1, le=10000)
    batch_size: int = Field(256, ge=1, le=65536, description="pictures per step, over all devices")
    optimizer: Optimizer = Field("adamw", description="muon: Muon for the blocks' matrices, AdamW for the rest")
    lr: float = Field(1e-3, gt=0, le=10, description="peak learning rate of AdamW")
    muon_lr: float = Field(0.02, gt=0, le=10, description="peak learning rate of Muon")
    weight_decay: float = Field(0.05, ge=0, le=10)
    schedule: Schedule = Field("cosine", description="after the warm-up")
    warmup_epochs: float = Field(1.0, ge=0, le=10000, description="epochs of linear warm-up; at most half of the run")
    label_smoothing: float = Field(0.1, ge=0, lt=1)
    balance: Balance = Field(
        "auto",
        description="balance classes of different size: by their shares added to the logits in the loss (prior), by "
        "weights in the loss, or by resampling; auto: by prior if the largest has more than 3 times the pictures of "
        "the smallest",
    )
    grad_clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0 for no limit")
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the moving average of the weights (EMA) per step, lower in the first steps; 0 for none",
    )
    validate_every: int = Field(
        1,
        ge=1,
        le=10000,
        description="epochs between validations, each of which also takes attention snapshots and saves checkpoints",
    )
    patience: int | None = Field(None, ge=1, description="early stopping: epochs without a better validation accuracy")

    # Augmentation
    crop_padding: int = Field(0, ge=0, le=256, description="maximum random shift [px]")
    crop_scale: float = Field(
        1.0, gt=0, le=1, description="RandomResizedCrop: smallest share of the picture's area; 1 for off"
    )
    zoom_out: float = Field(
        1.0,
        ge=1,
        le=16,
        description="maximum area of a random crop, relative to the picture, which is mirrored at its edges: shows "
        "small photos as sharp as large ones; 1 for off",
    )
    flip: bool = Field(False, description="mirror pictures horizontally, with probability 0.5")
    operations: int = Field(0, ge=0, le=8, description="RandAugment: operations per picture")
    magnitude: float = Field(0.3, ge=0, le=1, description="RandAugment: magnitude")
    erase: float = Field(0.0, ge=0, le=1, description="random erasing: share of pictures that lose a random square")
    mixup: float = Field(0.0, ge=0, le=10, description="parameter of the Beta distribution; 0 for off")
    cutmix: float = Field(0.0, ge=0, le=10, description="parameter of the Beta distribution; 0 for off")

    # Machine
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?|mps)$", description="auto, cpu, cuda, cuda:1 or mps")
    precision: Precision = Field("auto", description="auto: bfloat16 autocast if the hardware supports it")
    compile: bool = Field(False, description="torch.compile; needs a C++ compiler on CPU")
    workers: int = Field(2, ge=0, le=64, description="data loader processes, for data too large for memory")
    seed: int = Field(0, ge=0, lt=2**31)
    track: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9_.-]{0,39}|)$",
        description="the experiment tracker that receives the metrics: mlflow, wandb or a plug-in; none if left out",
    )

    @model_validator(mode="after")
    def _check_combination(self) -> "TrainConfig":
        """Check what the settings alone determine; `fine_tuning.resolve` checks against the checkpoint."""
        if self.freeze and self.lora_rank:
            raise ValueError("lora_rank already freezes the backbone. Set only one of freeze and lora_rank.")
        if not self.init_from:
            for name in FINE_TUNING:
                if getattr(self, name) != type(self).model_fields[name].default:
                    raise ValueError(f"{name} is for runs that start from a checkpoint. Name one with init_from.")
            self.vit_config(num_classes=1)  # raises ValueError, which pydantic reports
        elif self.image_size:
            self._check_crop(self.image_size)
        return self

    def _check_crop(self, side: int) -> None:
        if self.crop_padding > side // 2:
            raise ValueError(
                f"crop_padding {self.crop_padding} is more than half of the input of {side} px. "
                "Lower it, or use crop_scale, which suits every size."
            )

    def vit_config(self, num_classes: int, base: ViTConfig | None = None) -> ViTConfig:
        """Return the configuration of the model that this run trains.

        Args:
            num_classes: number of the dataset's classes.
            base: model configuration of the checkpoint in `init_from`; see `fine_tuning.resolve`.

        Raises:
            ValueError: the settings are inconsistent or contradict the checkpoint; or `base` is missing.
        """
        changes: dict[str, Any] = {name: getattr(self, name) for name in _SIZES if getattr(self, name) is not None}
        # A picture of a class folder has exactly one class, so the loss is softmax's, whatever the checkpoint's was.
        changes |= dict(num_classes=num_classes, multi_label=False, regression=False)
        changes |= dict(dropout=self.dropout, drop_path=self.drop_path)
        if self.init_from:
            if base is None:
                raise ValueError(f"The model follows from {self.init_from}, which has to be resolved first.")
            model = self._fine_tuned(base, changes)
        else:
            if self.registers:
                changes["prefix"] = ("cls", *(f"reg{i + 1}" for i in range(self.registers)))
            model = ViTConfig.preset(self.size, **changes)
        self._check_crop(min(model.image_size))
        return model

    def _fine_tuned(self, base: ViTConfig, changes: dict[str, Any]) -> ViTConfig:
        for name in _SIZES:
            value = getattr(base, name)
            if name != "image_size" and changes.get(name, value) != value:
                raise ValueError(f"{name} is {value!r} in {self.init_from}, which this run starts from. Leave it out.")
        if self.registers and self.registers != sum(token.startswith("reg") for token in base.prefix):
            raise ValueError(f"registers follow from {self.init_from}, which this run starts from. Leave them out.")
        with one_sentence_errors():
            return replace(base, **changes)

    def augmentation(self, size: tuple[int, int] | None = None) -> "Augmentation":
        """Return the augmentation of each batch.

        Args:
            size: input size (height, width) [px], if the pictures in memory are larger, see `train_scale`.
        """
        names = (
            "crop_padding", "crop_scale", "zoom_out", "flip", "operations", "magnitude", "erase", "mixup", "cutmix",
        )  # fmt: skip
        return augment.Augmentation(size=size, **{name: getattr(self, name) for name in names})

    @property
    def train_scale(self) -> float:
        """Side of a training picture in memory over that of the input; above 1 for random crops from files.

        A crop from a picture that was reduced to the input's size would have to be enlarged, which blurs it. Generated
        pictures and those of the named datasets have no higher resolution.

        >>> TrainConfig(data="folder:photos", crop_scale=0.4).train_scale
        1.25
        """
        return STORED if self.crop_scale < 1 and self.data.startswith("folder:") else 1.0


def unused_settings(settings: Mapping[str, Any]) -> set[str]:
    """Return the settings that have no effect, whatever their value; missing settings have their defaults.

    >>> sorted(unused_settings({}))
    ['freeze', 'layer_decay', 'lora_rank', 'magnitude', 'muon_lr', 'probe_first']
    """
    unused = {*(FROM_CHECKPOINT if settings.get("init_from") else FINE_TUNING)}
    if settings.get("optimizer") != "muon":
        unused.add("muon_lr")
    if not settings.get("operations"):
        unused.add("magnitude")
    return unused
