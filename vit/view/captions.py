"""Captions of maps. The viewer's `captions.js` makes the same text of the same templates."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from vit.explain.names import display_name
from vit.view import web

# Templates that the viewer uses, too: one object of JavaScript, which is valid JSON.
_SENTENCES: dict[str, str] = json.loads(
    web.read("sentences.js").partition("SENTENCES = ")[2].rstrip().removesuffix(";")
)


def _say(key: str, /, **values: object) -> str:
    return _SENTENCES[key].format(**values)


def token_name(token: int, prefix: Sequence[str], grid: tuple[int, int]) -> str:
    """Return the display name of a token.

    >>> token_name(0, ["cls"], (2, 2)), token_name(4, ["cls"], (2, 2))
    ('the class token', 'patch (row 2, col 2)')
    """
    if token >= len(prefix):
        row, col = divmod(token - len(prefix), grid[1])
        return _say("patch", where=_say("where", row=row + 1, col=col + 1))
    name = prefix[token]
    if name in ("cls", "dist"):
        return _say(name)
    register = re.fullmatch(r"reg(\d+)", name)
    return _say("register", number=register[1]) if register else _say("otherToken", name=name)


def sentence(facts: Mapping[str, Any], prefix: Sequence[str], grid: tuple[int, int]) -> str:
    """Describe a map in one sentence.

    Args:
        facts: method, and its block, head, query and direction; see `vit.view.map_view.MapView`.

    >>> facts = {"method": "attention", "block": 2, "head": "max", "query": 0, "direction": "to"}
    >>> sentence(facts, ["cls"], (2, 2))
    'Block 3, max of heads: attention to the class token.'
    """
    method, to = facts["method"], facts.get("direction") == "to"
    name = token_name(facts["query"], prefix, grid) if "query" in facts else ""
    if method == "rollout":
        return _say("rolloutTo" if to else "rolloutFrom", settings=settings(facts), name=name)
    if method in ("similar", "components"):
        after = display_name("block", facts["block"]) if "block" in facts else _say("lastBlock")
        return _say("similar", name=name, after=after) if method == "similar" else f"{_say('components', after=after)}."
    if method == "pool":
        return _say("pool", heads=_heads(facts["head"]))
    where = format_block_and_head(facts["block"], facts["head"])
    return _say("attentionTo" if to else "attentionFrom", map=where, name=name)


def class_sentence(
    title: str,
    target: str,
    name: str = "",
    direction: str = "from",
    unusual: Mapping[str, Any] = MappingProxyType({}),
    signed: bool = False,
) -> str:
    """Describe the map of an explanation method in one sentence.

    Args:
        title: of the method.
        target: name of the class; "" for a class-independent method.
        name: of the query token; "" for the model's output.
        unusual: non-default settings of the method, see `vit.explain.settings.Settings.changed`.
        signed: whether the method's numbers can be negative.

    >>> class_sentence("Relevance", "cat")
    'Relevance: evidence for “cat”.'
    >>> class_sentence("Rollout", "")
    'Rollout: tokens that the prediction is based on.'
    """
    title += settings(unusual)
    if not name:
        evidence = _say("speaksForOrAgainst" if signed else "speaksFor", target=target)
        return f"{title}: {evidence if target else _say('readFrom')}."
    title += _say("forClass", target=target) if target else ""
    return f"{title}: {_say('whichDrewOn' if direction == 'to' else 'drewOn', name=name)}."


def settings(facts: Mapping[str, Any]) -> str:
    """Describe non-default settings, as a suffix to a method's name.

    >>> settings({"discard": 0.9, "start_block": 2})
    ' (from block 3 on, weakest 90% discarded)'
    """
    phrases = []
    if "start_block" in facts:
        phrases.append(_say("start_block", block=facts["start_block"] + 1))
    if "residual" in facts:
        phrases.append(_say("residual", percent=_percent(facts["residual"])))
    if "fusion" in facts:
        phrases.append(_say("fusion", fusion=facts["fusion"]))
    if "discard" in facts:
        phrases.append(_say("discard", percent=_percent(facts["discard"])))
    return f" ({', '.join(phrases)})" if phrases else ""


def outline(contour: str, mass: float) -> str:
    """Describe the outline; "" if there is none.

    >>> outline("mass", 0.6)
    'Outlined: the fewest patches with 60% of the weight.'
    """
    if contour == "none":
        return ""
    kind = f"the fewest patches with {_percent(mass)}% of the weight"
    return f"Outlined: {kind if contour == 'mass' else 'the stronger of two groups of patches (Otsu)'}."


def clear(cover: str) -> str:
    """Describe which part of the picture is uncovered; "" if the map covers all of it.

    >>> clear("weight")
    'The picture is clear where patches have less than their mean.'
    """
    return "The picture is clear where patches have less than their mean." if cover == "weight" else ""


def map_stem(facts: Mapping[str, Any], target: str = "") -> str:
    """Name a map, for a file name.

    Args:
        facts: of the map, see `sentence`.
        target: name of the class, for a class-specific map.

    >>> map_stem({"method": "attention", "block": 2, "head": "max", "query": 0})
    'attention-block-3-head-max-token-0'
    >>> map_stem({"method": "rollout", "query": 0, "direction": "to"})
    'rollout-to-token-0'
    """
    parts = [facts["method"], target]
    parts += ["to"] if facts.get("direction") == "to" else []
    for name, key in (("block", "block"), ("head", "head"), ("token", "query")):
        if key in facts:
            value = facts[key]
            parts += [name, str(value + 1 if isinstance(value, int) and key != "query" else value)]
    return "-".join(filter(None, parts))


def file_stem(checkpoint: str, size: tuple[int, int], what: str, picture: str = "") -> str:
    """Build a file name without extension, so that files of two models, sizes or pictures have different names.

    Args:
        checkpoint: its name.
        size: (height, width) of the input [px].
        what: content of the file.
        picture: file name of the picture.

    >>> file_stem("facebook/dinov2-small@0d9846e", (224, 224), "rollout-token-0", "my cat.jpg")
    'my-cat-dinov2-small-0d9846e-224px-rollout-token-0'
    >>> file_stem("cifar10", (32, 64), "heads")
    'cifar10-32x64px-heads'
    """
    height, width = size
    pixels = f"{height}px" if height == width else f"{height}x{width}px"
    parts = [picture.rpartition(".")[0] or picture, checkpoint.rpartition("/")[2], pixels, what]
    return re.sub(r"[^\w.]+", "-", "-".join(filter(None, parts))).strip("-.")[:120]


def format_block_and_head(block: int | str, head: int | str) -> str:
    """Describe the block and head of a map.

    >>> format_block_and_head(0, 3), format_block_and_head("mean", "mean"), format_block_and_head("max", 3)
    ('Block 1, head 4', 'Mean of all blocks and heads', 'Head 4, max of blocks')
    """
    if not isinstance(block, str):
        return _say("blockAndHeads", block=block + 1, heads=_heads(head))
    if not isinstance(head, str):
        return _say("headOfBlocks", head=head + 1, fusion=block)
    return _say("everything" if block == head else "fusedBlocks", Fusion=block.capitalize(), heads=_heads(head))


def format_duration(seconds: float) -> str:
    """Describe an estimated duration roughly; estimates are not more accurate than that.

    >>> format_duration(0.4), format_duration(4), format_duration(11), format_duration(28), format_duration(55)
    ('a moment', 'a few seconds', 'about ten seconds', 'about half a minute', 'about a minute')
    >>> format_duration(200), format_duration(1400), format_duration(2500)
    ('some minutes', 'about 25 minutes', 'about 40 minutes')
    >>> format_duration(4000), format_duration(11_000), format_duration(780_000)
    ('about an hour', 'about 3 hours', 'about 9 days')
    """
    for below, phrase in _ORDERS:
        if seconds < below:
            return phrase
    if seconds < 52 * 60:
        return f"about {5 * round(seconds / 300)} minutes"
    if seconds < 90 * 60:
        return "about an hour"
    if seconds < 36 * 3600:
        return f"about {seconds / 3600:.0f} hours"
    days = seconds / 86400
    return f"about {days:.0f} days" if days < 1000 else "years"


_ORDERS = (
    (1, "a moment"), (8, "a few seconds"), (20, "about ten seconds"), (45, "about half a minute"),
    (90, "about a minute"), (480, "some minutes"),
)  # fmt: skip


def _heads(head: int | str) -> str:
    return _say("fusedHeads", fusion=head) if isinstance(head, str) else _say("head", head=head + 1)


def _percent(share: float) -> int:
    """Return whole percent, rounding half up as JavaScript does; Python rounds half to even."""
    return math.floor(100 * share + 0.5)
