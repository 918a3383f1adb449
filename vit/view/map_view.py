"""The numbers of views: one map as the viewer shows it, with the facts that figures and files need."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast

import numpy as np
import torch
from torch import Tensor

from vit.explain import methods
from vit.explain.components import Components
from vit.explain.faithfulness_correlation import faithfulness_verdict
from vit.explain.maps import select_head
from vit.explain.methods import METHODS
from vit.explain.record import AttentionRecord
from vit.explain.recorded_pass import RecordedPass
from vit.explain.settings import DEFAULTS, ROLLOUT, Direction, Settings
from vit.view.captions import class_sentence, sentence, token_name
from vit.view.payload import read_header, unpack
from vit.view.selection import Selection, View

Unit = Literal["weight", "share", "cosine", "component"]


@dataclass(frozen=True)
class MapView:
    """One map as the viewer shows it, with everything that figures and files need.

    Attributes:
        weights: (N,).
        facts: method and parameters, under the names used in files.
        sentence: human-readable caption.
        low, top: values of the first and the last colour.
        unit: "weight" of attention or "share" of the whole map, both from 0 to 1, "cosine", or "component", the
            projection onto a principal component.
        verdict: human-readable faithfulness; "" if not measured.
        colours: (rows, cols, 3), 0 to 1; None if colours follow from the weights.
    """

    weights: Tensor
    facts: dict[str, Any]
    sentence: str
    low: float
    top: float
    unit: Unit = "weight"
    verdict: str = ""
    colours: Tensor | None = None

    @property
    def signed(self) -> bool:
        """Whether negative values count: colours then run from `low`, which is -top, over a pale 0 to `top`."""
        return self.facts["method"] in METHODS and METHODS[self.facts["method"]].signed

    @classmethod
    def of(cls, record: AttentionRecord, selection: Selection, payload: bytes = b"") -> Self:
        """Build the map to export; the attention map if the record lacks the data of the selected view.

        Args:
            payload: provides the end of the grid's colour scale; without it, the map has its own scale.
        """
        numbers, facts = weights(record, selection), facts_of(record, selection)
        low, top = _scale_ends(record, selection, numbers, payload)
        unit: Unit = "cosine" if facts["method"] == "similar" else "weight"
        return cls(numbers, facts, sentence(facts, record.prefix, record.grid), low, top, unit)

    @classmethod
    def of_method(
        cls,
        recorded: RecordedPass,
        method: str,
        label: str = "",
        query: int | None = None,
        direction: Direction = "from",
        settings: Settings = DEFAULTS,
        numbers: Tensor | None = None,
    ) -> Self:
        """Build the map of an explanation method.

        Args:
            method: a name in `vit.explain.methods.METHODS`.
            label: name of the class; "" for a class-independent method.
            query: token to explain, for methods that support it; None for the model's output.
            direction: of the query token.
            settings: of the method.
            numbers: (N,), the map if it is known already, see `vit.explain.methods.weights`.
        """
        record, unusual = recorded.record, settings.changed(METHODS[method].settings)
        if numbers is None:
            numbers = methods.weights(recorded, method, query, direction, **unusual)
        facts = method_facts(recorded, method, label, query, direction, unusual)
        name = "" if query is None else token_name(query, record.prefix, record.grid)
        signed = METHODS[method].signed
        caption = class_sentence(METHODS[method].title, label, name, direction, unusual, signed)
        top = _strongest_patch(numbers.abs() if signed else numbers, record, without=query)
        return cls(numbers, facts, caption, -top if signed else 0.0, top, METHODS[method].unit)

    @classmethod
    def of_components(cls, record: AttentionRecord, block: int, of: Components, colours: Tensor) -> Self:
        """Build the map of principal components; its weights are the first component.

        Args:
            record: with the features after the block.
            of: the basis.
            colours: (rows, cols, 3), colours of this picture in the basis.
        """
        assert record.features is not None, "a record with features"
        numbers = ((record.features.double() - of.mean) @ of.directions[0]).float()
        facts = {"method": "components", "block": block, "shares": [round(share, 4) for share in of.shares.tolist()]}
        caption, patches = sentence(facts, record.prefix, record.grid), record.heatmap(numbers)
        low, top = float(patches.min()), float(patches.max())
        return cls(numbers, facts, caption, low, top, "component", colours=colours)

    def with_faithfulness(self, record: AttentionRecord, masks: bytes | None) -> Self:
        """Return the map with its faithfulness in `facts` and `verdict`; unchanged if there are no masks.

        Args:
            masks: from `vit.view.payload.pack_masks`.
        """
        if not masks or self.colours is not None:
            return self
        header, sections = unpack(masks)
        patches, drops = header["tokens"], torch.from_numpy(sections["drops"].copy())
        covered = torch.from_numpy(np.unpackbits(sections["masks"], axis=1, bitorder="little")[:, :patches]).bool()
        verdict = faithfulness_verdict(record.heatmap(self.weights), covered, drops)
        facts = {"class": header["target"], "masks": len(drops), "ceiling": header["ceiling"], "decidable": False}
        words = f"Masks hardly change “{header['target']}”, so the faithfulness of this map cannot be measured"
        if header["decidable"]:
            facts |= verdict._asdict() | {"decidable": True, "verdict": verdict.label}
            words = (
                f"Faithfulness to “{header['target']}” {verdict.correlation:.2f} (removal map "
                f"{header['ceiling']:.2f}), {verdict.label}, by {len(drops):,} masks"
            )
        return replace(self, facts=self.facts | {"faithfulness": facts}, verdict=f"{words}.")


def method_facts(
    recorded: RecordedPass,
    method: str,
    label: str,
    query: int | None,
    direction: Direction,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Collect the facts of a method's map for files: the method, all settings, the query token and the class.

    Args:
        label: name of the class; ignored for class-independent methods.
        settings: non-default settings.

    Returns:
        facts with blocks and heads from 0, never negative.
    """
    how, record = METHODS[method], recorded.record
    facts: dict[str, Any] = {"method": method} | dict(how.settings) | dict(settings)
    if method == "attention" and query is None and facts["block"] == -1 and record.pool_attention is not None:
        facts["block"] = "pooling query"
    for name, count in (("block", record.blocks), ("start_block", record.blocks), ("head", record.heads)):
        if isinstance(number := facts.get(name), int):
            facts[name] = number % count
    if how.of_tokens:
        facts |= {"query": query, "direction": direction}
    if how.of_class:
        facts["target"] = {"index": recorded.explained, "label": label}
    return facts


def weights(record: AttentionRecord, selection: Selection) -> Tensor:
    """Compute the numbers of a selection: (N,); attention if the record does not support the selected view."""
    view = _selected_view(record, selection)
    if view == "rollout":
        how = selection
        return record.rollout(how.token, how.residual, how.direction, how.fusion, how.discard)
    if view == "similar":
        return record.similarity(selection.token)
    if view == "pool":
        heads = cast(Tensor, record.pool_attention)  # (H, N)
        return select_head(heads, selection.head)
    return record.weights(selection.token, selection.block, selection.head, selection.direction)


def facts_of(record: AttentionRecord, selection: Selection) -> dict[str, Any]:
    """Collect the facts of a selection: the method, its parameters with nonnegative indices, non-default settings."""
    method = _selected_view(record, selection)
    names = {
        "rollout": ("token", "direction"),
        "similar": ("token",),
        "pool": ("head",),
    }.get(method, ("block", "head", "token", "direction"))
    counts = {"block": record.blocks, "head": record.heads}

    def fact(name: str) -> Any:
        value = getattr(selection, name)
        return value % counts[name] if name in counts and isinstance(value, int) else value

    facts = {"method": method} | {"query" if name == "token" else name: fact(name) for name in names}
    if method == "similar" and selection.after_block % record.blocks < record.blocks - 1:
        facts["block"] = selection.after_block
    return facts | (selection.changed(ROLLOUT) if method == "rollout" else {})


def _selected_view(record: AttentionRecord, selection: Selection) -> View:
    """Return the selected view, or attention if the record does not support it."""
    missing = {"relevance": True, "similar": record.features is None, "pool": record.pool_attention is None}
    view: View = "similar" if selection.view == "components" else selection.view  # colours have no numbers of their own
    return "attention" if missing.get(view) else view


def _scale_ends(record: AttentionRecord, selection: Selection, numbers: Tensor, payload: bytes) -> tuple[float, float]:
    """Return the values of the first and the last colour, as in the viewer."""
    view, own = _selected_view(record, selection), selection.scale == "own" or not payload
    if view == "similar":
        patches = torch.arange(len(record.prefix), record.tokens)
        others = numbers[patches[patches != selection.token]]
        spread = selection.scale == "own" and len(others) > 0 and bool(others.max() > others.min())
        return (float(others.min()), float(others.max())) if spread else (0.0, 1.0)
    most = _strongest_patch(numbers, record, without=selection.token if view == "rollout" else None)
    if view == "rollout" or own:
        return 0.0, most
    return 0.0, min(most, read_header(payload)["pool_top"] if view == "pool" else shared_top(payload, selection))


def shared_top(payload: bytes, selection: Selection) -> float:
    """Return the end of the colour scale of the viewer's grid for the selected token."""
    tops = unpack(payload)[1]["tops"]  # (2, N)
    return float(tops[0 if selection.direction == "from" else 1, selection.token])


def _strongest_patch(numbers: Tensor, record: AttentionRecord, without: int | None) -> float:
    numbers = numbers.clone()
    if without is not None:
        numbers[without] = 0
    return float(record.heatmap(numbers).max())
