"""Run a module's own forward pass on noise, and adapt the model that was read from its weights until both agree.

What `forward` does beside the Vision Transformer is in no tensor: it may normalise pictures, average other tokens than
usual, or end in a sigmoid. Hooks on the patch embedding and on the last LayerNorm show where two passes part.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, product
from typing import Any, NamedTuple, get_args

import torch
from torch import Tensor, nn

from vit.checkpoints.checkpoint import hollow, with_weights
from vit.checkpoints.families.tensor_shapes import Tensors, possible_heads
from vit.checkpoints.modules.live_module import TOLERANCE, evaluating, tensors_of
from vit.checkpoints.modules.module_facts import part_at
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import Activation, FinalNorm, Pool, ViTConfig
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

_NOISE = 4  # pictures
_EXACT = 1e-4  # tolerance in float32 on a CPU, see `_difference`; other activations change 1e-4 to 6e-3
_ROUNDING = 2e-6  # of float32, as a share of the largest value
_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "": lambda logits: logits,
    "sigmoid": torch.sigmoid,
    "softmax": lambda logits: logits.softmax(-1),
    "log-softmax": lambda logits: logits.log_softmax(-1),
}
_POOLS = {"cls": "the class token", "mean": "the mean of the patches", "all": "the mean of all tokens"}
_NORMS = {"before_pool": "", "after_pool": ", which is normalised then", "none": ", without the last LayerNorm"}


class Places(NamedTuple):
    """Where a module holds the parts that are compared.

    Attributes:
        part: prefix of the Vision Transformer's names in the module's state dict; "" for the module itself.
        names: our names of tensors -> those in the module's state dict.
        pooler: weight and bias of a layer on the class token that a head may read; empty without.
    """

    part: str
    names: Mapping[str, str]
    pooler: tuple[Tensor, ...]


class Agreed(NamedTuple):
    """A model whose pass agrees with the module's.

    Attributes:
        model: in evaluation mode.
        assumed: what is still assumed, and what was found by comparing.
        scale: factor and offset per channel by which the module changes pictures; None if it does not.
    """

    model: VisionTransformer
    assumed: dict[str, str]
    scale: tuple[Tensor, Tensor] | None = None


class _Pass(NamedTuple):
    """A module's pass.

    Attributes:
        pixels: that reach the patch embedding.
        tokens: after the last LayerNorm, of all tokens or pooled.
        answers: tensors that the module returns.
        problem: why only its Vision Transformer was run; "" if all of it was.
    """

    pixels: Tensor
    tokens: Tensor | None
    answers: list[Tensor]
    problem: str

    @property
    def whole(self) -> Tensor | None:
        """The tokens (B, N, D) if they are not pooled."""
        return self.tokens if self.tokens is not None and self.tokens.ndim == 3 else None


def agree(module: nn.Module, model: VisionTransformer, assumed: Mapping[str, str], places: Places) -> Agreed:
    """Compare a module with the model read from its weights, and find what makes them equal.

    Args:
        assumed: config field -> why it has its value, for fields that nothing states.

    Raises:
        InvalidCheckpoint: they differ whatever is tried, or the module changes pictures by more than a mean and a
            deviation per channel.
    """
    try:
        return _agree(module, model, dict(assumed), places)
    except InvalidCheckpoint as error:
        inner = f" Hand over the Vision Transformer in it, `{brief(places.part.rstrip('.'))}`." if places.part else ""
        raise InvalidCheckpoint(f"{error}{inner}") from error


def _agree(module: nn.Module, model: VisionTransformer, assumed: dict[str, str], places: Places) -> Agreed:
    eps = getattr(part_at(module, places.names["blocks.0.norm1.weight"]), "eps", None)
    if "eps" in assumed and isinstance(eps, float):
        model = _rebuilt(model, eps=eps) or model
        del assumed["eps"]
    config = model.config
    noise = torch.rand(_NOISE, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    # Other contrast and brightness in each picture reveal a normalisation by the pictures' own values.
    noise = 0.5 + (noise - 0.4) * torch.linspace(0.2, 0.8, _NOISE)[:, None, None, None]
    own = _observe(module, places, noise)
    if isinstance(own, str):
        return Agreed(model, assumed | {"forward": f"The module's own pass was not compared: {own}"})
    weight = next(module.parameters())
    tolerance = _EXACT if weight.dtype is torch.float32 and not weight.is_cuda else TOLERANCE
    scale = _scale(noise, own.pixels, tolerance)
    bodies = _bodies(model, assumed)
    if own.whole is None:
        models = [one for one, _ in bodies]
    else:
        what = "tokens after the last block"
        models = [one for one, _, _ in _equal(bodies, _tokens, own.pixels, own.whole, tolerance, what)]
    model, proven = models[0], len({one.config for one in models}) == 1
    if (goal := _outputs_of(own, config)) is not None:
        model, remarks = _same_outputs(models, own, goal, places.pooler, tolerance)
        assumed = {field: why for field, why in assumed.items() if field not in _OF_HEAD} | remarks
    elif config.num_classes:
        why = own.problem or "it does not return one number per class in a form that is read here."
        assumed["forward"] = f"The module's answers were not compared: {why}"
    proven |= (model.config.heads, model.config.activation) != (config.heads, config.activation)
    return Agreed(model, {field: why for field, why in assumed.items() if not (proven and field in _OTHERS)}, scale)


def with_scale(preprocess: Preprocess, scale: tuple[Tensor, Tensor], known: bool) -> tuple[Preprocess, str]:
    """Add what a module does to pictures to mean and deviation; also return a remark.

    Args:
        known: the caller states the preprocessing before the module. Otherwise the module takes values from 0 to 1, or
            to 255 if its own numbers are so large.
    """
    factor, offset = scale
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (preprocess.mean, preprocess.std))
    if not known:
        mean, std = torch.zeros_like(mean), torch.ones_like(std)
    mean, std = mean - std * offset / factor, std / factor
    white = 255 if not known and float(torch.cat([mean, std / 10]).max()) > 1 else 1  # a deviation may exceed 1
    numbers = [tuple(round(float(value) / white, 5) for value in values) for values in (mean, std)]
    why = "The module normalises pictures itself, as its own pass shows: mean and deviation include that."
    return replace(preprocess, mean=numbers[0], std=numbers[1]), why


# --- The module's pass --------------------------------------------------------------------------------------------


def _observe(module: nn.Module, places: Places, noise: Tensor) -> _Pass | str:
    """Run a module, or the Vision Transformer in it if the whole needs more than pictures; else return why not."""
    seen: dict[str, list[Tensor]] = {"pixels": [], "tokens": []}
    outputs: list[list[Tensor]] = []

    def keep(name: str, value: Any) -> None:
        if isinstance(value, Tensor) and len(seen[name]) == len(outputs):  # the first of a pass
            seen[name].append(value.detach().to("cpu", torch.float32, copy=True))

    embedding = part_at(module, places.names["patch_embed.weight"])
    hooks = [embedding.register_forward_pre_hook(lambda _, inputs: keep("pixels", next(iter(inputs), None)))]
    if "norm.weight" in places.names:
        norm = part_at(module, places.names["norm.weight"])
        hooks.append(norm.register_forward_hook(lambda _, inputs, output: keep("tokens", output)))
    weight, problem = next(module.parameters()), ""
    try:
        for part in dict.fromkeys((module, part_at(module, places.part))):
            try:
                inputs = noise.to(weight.device, weight.dtype, copy=True)  # the module may change them
                with evaluating(module), torch.no_grad():
                    for pictures in inputs.split(_NOISE // 2):  # two batches reveal a normalisation over a batch
                        outputs.append([one.detach().float().cpu() for one in tensors_of(part(pictures))])
            except Exception as error:  # anybody's code, which may need other arguments
                problem = problem or f"{type(error).__name__}: {brief(str(error).partition(chr(10))[0])}"
                seen, outputs = {name: [] for name in seen}, []
                continue
            if len(seen["pixels"]) < len(outputs):
                return "it does not call its patch embedding as a module."
            tokens = torch.cat(seen["tokens"]) if seen["tokens"] else None
            answers = [torch.cat(each) for each in zip(*outputs, strict=True)] if part is module else []
            return _Pass(torch.cat(seen["pixels"]), tokens, answers, problem)
    finally:
        for hook in hooks:
            hook.remove()
    return problem


def _scale(noise: Tensor, pixels: Tensor, tolerance: float) -> tuple[Tensor, Tensor] | None:
    """Return factor and offset per channel by which a module changed pictures; None if it did not."""
    if pixels.shape != noise.shape:
        sizes = [" x ".join(map(str, pictures.shape[:1:-1])) for pictures in (noise, pixels)]
        raise InvalidCheckpoint(
            f"The module changes pictures from {sizes[0]} to {sizes[1]} before its patch embedding, so a map would not "
            "lie where it looked."
        )
    x, y = (pictures.transpose(0, 1).flatten(1).double() for pictures in (noise, pixels))
    centred = x - x.mean(1, keepdim=True)
    factor = (centred * y).sum(1) / centred.square().sum(1)
    offset = y.mean(1) - factor * x.mean(1)
    rest = (factor[:, None] * x + offset[:, None] - y).abs().max() / y.abs().max()
    if rest > tolerance or factor.min() <= 0:
        raise InvalidCheckpoint(
            "The module changes pictures before its patch embedding by more than a mean and a deviation per channel."
        )
    same = max((factor - 1).abs().max(), offset.abs().max()) < tolerance
    return None if same else (factor, offset)


# --- Comparing ----------------------------------------------------------------------------------------------------

# What else a field may be if nothing states it, given the model's width.
_OTHERS: dict[str, Callable[[int], tuple[Any, ...]]] = {
    "heads": possible_heads,
    "activation": lambda dim: get_args(Activation),
}
_OF_HEAD = ("head", "pool", "pooler", "outputs")  # assumptions that equal outputs prove or replace
_Candidates = Iterator[tuple[VisionTransformer, str]]


def _equal(
    candidates: _Candidates,
    of: Callable[[VisionTransformer, Tensor], Tensor],
    pixels: Tensor,
    goal: Tensor,
    tolerance: float,
    what: str,
) -> list[tuple[VisionTransformer, str, str]]:
    """Return the models whose result is the module's, their remarks and links; of outputs only the first."""
    differences, found = [], list[tuple[VisionTransformer, str, str]]()
    for model, why in candidates:
        with torch.inference_mode():
            ours = of(model, pixels)
        if ours.shape != goal.shape:
            raise InvalidCheckpoint(
                f"The module makes {goal.shape[1]} tokens of a picture, and the model read from its weights "
                f"{ours.shape[1]}: patches overlap, or tokens are added or dropped, which is not computed here."
            )
        for name, link in _LINKS.items() if what == "outputs" else (("", _LINKS[""]),):
            differences.append(_difference(link(ours), goal, tolerance))
            if differences[-1] <= tolerance:
                found.append((model, why, name))
        if found and what == "outputs":
            break
    if not found:
        raise InvalidCheckpoint(
            f"The module's {what} and those of the model read from its weights differ by {100 * min(differences):.3g}% "
            "of the largest change between pictures of noise, so it computes something else."
        )
    return found


def _outputs_of(own: _Pass, config: ViTConfig) -> Tensor | None:
    """Return the module's logits (B, C), or the features (B, D) of one without classes; None if it returns neither."""
    features = own.answers[:1] if own.whole is not None or own.tokens is None else [own.tokens]
    width = config.num_classes or config.dim
    fitting = (one for one in (own.answers if config.num_classes else features) if one.numel() == _NOISE * width)
    return next((one.reshape(_NOISE, -1) for one in fitting), None)


def _same_outputs(
    models: list[VisionTransformer], own: _Pass, goal: Tensor, pooler: tuple[Tensor, ...], tolerance: float
) -> tuple[VisionTransformer, dict[str, str]]:
    """Return the model that gives the module's outputs, and remarks on what was found."""
    classes = models[0].config.num_classes
    every = chain.from_iterable(_readings(one, pooler if classes else ()) for one in models)
    try:
        model, why, link = _equal(every, _answers, own.pixels, goal, tolerance, "outputs")[0]
    except InvalidCheckpoint:
        if classes or own.whole is None:
            raise
        return models[0], {"pool": "The module returns other features than those of tokens that are read here."}
    remarks = {"pool": why} if why else {}
    if link and models[0].config.regression:
        remarks["outputs"] = f"The module ends in a {link}, as its own pass shows; these are the numbers before it."
    elif link and classes:
        model = _rebuilt(model, multi_label=link == "sigmoid") or model
        remarks["outputs"] = f"The module returns probabilities ({link}), as its own pass shows."
    return model, remarks


def _difference(ours: Tensor, theirs: Tensor, tolerance: float) -> float:
    """Return the largest difference, relative to the largest change of `theirs` between pictures.

    Half precision rounds by a share of the values, so there it is relative to the largest value.
    """
    largest = theirs.abs().max()
    spread = (theirs - theirs.mean(0)).abs().max() if tolerance == _EXACT else largest
    share = float(((ours - theirs).abs().max() - _ROUNDING * largest).clamp_min(0) / spread.clamp_min(1e-12))
    return share if share == share else float("inf")


def _tokens(model: VisionTransformer, pixels: Tensor) -> Tensor:
    tokens = model(pixels, output_queries_keys=True).tokens
    assert tokens is not None
    return tokens if model.config.norm == "before_pool" else model.norm(tokens)


def _answers(model: VisionTransformer, pixels: Tensor) -> Tensor:
    output = model(pixels, output_queries_keys=True)
    answers = output.logits if model.config.num_classes else output.pooled
    assert answers is not None
    return answers


def _bodies(model: VisionTransformer, assumed: Mapping[str, str]) -> _Candidates:
    """Yield the model, and others in what was assumed about its blocks."""
    yield model, ""
    fields = {field: values(model.config.dim) for field, values in _OTHERS.items() if field in assumed}
    for values in product(*fields.values()):
        if (other := _rebuilt(model, **dict(zip(fields, values, strict=True)))) is not None:
            yield other, ""


def _readings(model: VisionTransformer, pooler: tuple[Tensor, ...]) -> _Candidates:
    """Yield the model, and others whose head reads the same tokens differently."""
    yield model, ""
    if pooler:
        added = dict(zip(("pre_logits.weight", "pre_logits.bias"), pooler, strict=False))
        if (other := _rebuilt(model, added, pool="cls", pre_logits=len(pooler[0]))) is not None:
            yield other, "The head reads the pooler, as the module's own pass shows."
    for pool, norm in product(get_args(Pool), get_args(FinalNorm)):
        if (other := _rebuilt(model, pool=pool, norm=norm)) is not None:
            yield other, f"The head reads {_POOLS.get(pool, pool)}{_NORMS[norm]}, as the module's own pass shows."


def _rebuilt(model: VisionTransformer, added: Tensors | None = None, **changes: Any) -> VisionTransformer | None:
    """Return a model of another config with the same weights; None if they do not fit."""
    try:
        other = hollow(replace(model.config, **changes))
    except ValueError:
        return None
    own = dict(model.state_dict()) | (added or {})
    wanted = other.state_dict()
    unused = own.keys() - wanted.keys() - ({"norm.weight", "norm.bias"} if other.config.norm == "none" else set())
    if unused or any(name not in own or own[name].shape != tensor.shape for name, tensor in wanted.items()):
        return None
    return with_weights(other, {name: own[name] for name in wanted})
