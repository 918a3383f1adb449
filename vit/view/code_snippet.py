"""A view as the Python that computes its numbers, to be read, copied and run elsewhere."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.settings import ROLLOUT
from vit.view.explanation import Explanation

START = ("start_block",)  # what methods know that go through the blocks from one on
_FUSED = {"mean": "mean(0)", "max": "amax(0)", "min": "amin(0)"}

# Of each method, what computes it from a record; for the facts of `vit.view.export.Shown`.
METHODS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "attention": lambda facts: (
        f"record.weights(query={facts['query']}, block={_quoted(facts['block'])}, head={_quoted(facts['head'])}"
        f"{_direction(facts)})"
    ),
    "rollout": lambda facts: f"record.rollout(query={facts['query']}{_direction(facts)}{_set(facts, ROLLOUT)})",
    "similar": lambda facts: f"record.similarity({facts['query']})",
    "pool": lambda facts: f"record.pool_attention{_pooled(facts['head'])}",
}
# The same of a class; what is shown are shares of all of it.
OF_CLASS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "relevance": lambda facts: _relevance(facts),
    "gradient-rollout": lambda facts: (
        f"record.gradient_rollout({_arguments(_asked(facts), _set(facts, ('discard', *START)))})"
    ),
    "attention-gradient": lambda facts: f"record.attention_gradient({_asked(facts)})",
    "attention-gradient-last": lambda facts: "record.attention_gradient(block=-1)",
    "input-gradient": lambda facts: f"record.last_attention({_asked(facts)}) * record.input_gradient",
    "relevance-rollout": lambda facts: (
        f"geometric_mean({_relevance(facts)}, "
        f"record.rollout({facts.get('query', 'record.read')}{_direction(facts)}{_set(facts, ROLLOUT)}))"
    ),
    "legrad": lambda facts: f"vit.legrad(checkpoint.model, pixels, target={facts['target']}{_set(facts, START)})",
    "gradcam": lambda facts: "record.gradcam()",
}


def snippet(
    explanation: Explanation,
    checkpoint: Checkpoint,
    facts: Mapping[str, Any],
    picture: str = "photo.jpg",
    *,
    sample: str = "",
    frame: int = 0,
    video: bool = False,
) -> str:
    """Python that computes the numbers of a view, with the public names of `vit` alone.

    Args:
        facts: of a map whose method is one of `METHODS`; or of `OF_CLASS`, with the class's index as `target`.
        picture: the name of its file.
        sample: its name, of a picture of the gallery.
        frame: of an animation or a video.
        video: it is a frame of one.

    Returns:
        a program that leaves `weights` (N,) and `heatmap` (rows, cols).
    """
    record, size = explanation.record, explanation.preprocess.size
    own = size == checkpoint.preprocess.size
    imports = ["import vit"]
    if sample:
        imports.append("from vit.images import samples")
    of_class = facts["method"] in OF_CLASS
    if facts["method"] == "relevance-rollout":
        imports.append("from vit.attention import geometric_mean")
    if not own:
        imports.append("from vit.explain import resized")
    if video:
        imports.append("from vit.images import decode_frames")
    if not sample:
        imports = ["from pathlib import Path", "", *imports]
    data = f"samples.read({_quoted(sample)})" if sample else f"Path({_quoted(picture)}).read_bytes()"
    heads = f", heads={checkpoint.config.heads}" if "heads" in checkpoint.assumed else ""
    preprocess = "checkpoint.preprocess" if own else f"resized(checkpoint.preprocess, {size})"
    precision = str(record.queries[0].dtype).removeprefix("torch.")
    rounded = f", {_quoted(precision)}" if precision != "float32" else ""
    lines = [
        *imports,
        "",
        f"checkpoint = vit.load_checkpoint({_quoted(_reference(checkpoint))}{heads})",
        f"assert checkpoint.hash == {_quoted(checkpoint.hash)}",
        f"picture = next(decode_frames({data}, [{frame}])).picture"
        if video
        else f"picture = vit.decode_image({data}{f', frame={frame}' if frame else ''})",
        f"pixels = {preprocess}(picture)  # (1, {explanation.preprocess.channels}, {size[0]}, {size[1]})",
        f"record = vit.relevance_record(checkpoint.model, pixels, target={facts['target']})"
        if of_class
        else f"record = vit.record(checkpoint.model, pixels{rounded})",
        "",
        f"weights = {(METHODS | OF_CLASS)[facts['method']](facts)}  # ({record.tokens},)",
        *(["weights = weights / weights.sum().clamp_min(1e-30)"] if of_class else []),
        f"heatmap = record.heatmap(weights)  # {tuple(record.grid)}",
    ]
    return "\n".join(lines) + "\n"


def _reference(checkpoint: Checkpoint) -> str:
    """What `load_checkpoint` takes: the name, or of a run's checkpoint its place."""
    run = checkpoint.name.removeprefix("run-")
    return checkpoint.name if run == checkpoint.name else f"runs/{run}/checkpoints/best"


def _quoted(value: str | int) -> str:
    """A literal, in double quotes where that is as safe.

    >>> _quoted("cat"), _quoted('a"b'), _quoted(3)
    ('"cat"', '\\'a"b\\'', '3')
    """
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'\\")
    return f'"{value}"' if plain else repr(value)


def _direction(facts: Mapping[str, Any]) -> str:
    return ', direction="to"' if facts.get("direction") == "to" else ""


def _relevance(facts: Mapping[str, Any]) -> str:
    return f"record.relevance({_arguments(_asked(facts), _set(facts, START), ', own=False')})"


def _set(facts: Mapping[str, Any], names: Sequence[str]) -> str:
    """Settings that are not as usual, as more arguments."""
    return "".join(
        f", {name}={_quoted(facts[name]) if isinstance(facts[name], str) else facts[name]}"
        for name in names
        if name in facts
    )


def _arguments(*parts: str) -> str:
    """Parts of a call, of which some may be empty or begin with a comma.

    >>> _arguments("", ", start_block=2"), _arguments("query=3", ", start_block=2")
    ('start_block=2', 'query=3, start_block=2')
    """
    return "".join(parts).removeprefix(", ")


def _asked(facts: Mapping[str, Any]) -> str:
    return f"query={facts['query']}{_direction(facts)}" if "query" in facts else ""


def _pooled(head: str | int) -> str:
    return f".{_FUSED[head]}" if isinstance(head, str) else f"[{head}]"
