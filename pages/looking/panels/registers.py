"""A test-time register for models with outlier tokens: responsible neurons, and changes of norms and predictions."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import plotly.graph_objects as go
import streamlit as st
import torch
from torch import Tensor

from pages.links import link_controls
from pages.looking.controls import method_choice
from pages.looking.controls.method_choice import Example, MethodChoice
from pages.looking.panels import what_if
from pages.server import pass_queue
from pages.server.result_cache import cached, with_bar
from vit.explain.head_census import artefacts_sentence
from vit.explain.logit_lens import logit_lens
from vit.explain.maps import entropy
from vit.explain.record import record
from vit.explain.registers import RegisterNeurons, register_neurons, with_register
from vit.explain.weight_views import LEAST, high_norm
from vit.images import samples
from vit.images.files.decode import decode_image
from vit.untrusted import brief_list
from vit.view.chart_colours import QUIET, STRONG
from vit.view.overlay import COLORMAPS, colorize
from vit.view.payload import pack
from vit.view.selection import Selection

NAMED = 3  # neurons that the caption lists
HELP = """A few neurons cause these large norms. Their activations are moved to an empty token that is added after the
prefix; no weight changes, and the patches keep their own content (Jiang et al. 2025). They are found on this picture
and the samples."""


def show(example: Example, choice: MethodChoice, selection: Selection) -> None:
    """Draw the toggle for the register, and compare the model with and without it."""
    if not link_controls.toggle("Add a register at test time", "register", help=HELP):
        return
    moved = _neurons(example)
    if not moved.neurons:
        st.caption(
            f"No patch token of this picture and the samples has {LEAST:.0f} times the median norm, so a register has "
            "nothing to take over."
        )
        return
    neurons = [
        f"block {block + 1} neuron {number + 1} ({share:.0%})"
        for (block, number), share in zip(moved.neurons, moved.shares, strict=True)
    ]
    st.caption(
        f"Moved neurons, with their share of the norm of the {moved.tokens} outliers after block {moved.block + 1}: "
        f"{brief_list(neurons, NAMED)}."
    )
    changed = _changed(example, moved)
    before, after = (_lengths(one, choice.target_index) for one in (example, changed))
    here, with_it = (float(high_norm(one[-1:].flatten(1)).float().mean()) for one in (before, after))
    st.caption(f"{artefacts_sentence(moved.artefacts)} On this picture {here:.1%}, with the register {with_it:.1%}.")
    _show_lengths(before, after, moved.block)
    left, right = st.columns(2, gap="large")
    with left:
        _show_lines("Longest and median patch token", _extremes(before), _extremes(after), "lengths")
    with right:
        _show_lines("Entropy of attention (1 is uniform)", [_entropies(example)], [_entropies(changed)], "entropies")
    answers = [example.checkpoint.model.probabilities(one.explanation.record.logits[0]) for one in (example, changed)]
    what_if.show_answers(example, answers[0], answers[1], choice)
    what_if.show_after(changed, example, choice, selection, "register", "With the register")


def _neurons(example: Example) -> RegisterNeurons:
    checkpoint, preprocess = example.checkpoint, example.explanation.preprocess

    def work(progress: Callable[[float], object]) -> RegisterNeurons:
        pictures = [example.pixels, *(preprocess(decode_image(samples.read(name))) for name in samples.SAMPLES)]
        progress(0.1)
        with pass_queue.reserved(checkpoint, preprocess.size, len(pictures)):
            return register_neurons(checkpoint.model, pictures)

    neurons: RegisterNeurons = with_bar(("register neurons", example.key), "Looking for the neurons…", work)
    return neurons


def _changed(example: Example, moved: RegisterNeurons) -> Example:
    """Return the example with the register added to the model, with its own payload."""
    name = f"{example.key} with a register {moved.neurons}"

    def work() -> Example:
        model = with_register(example.checkpoint.model, moved.neurons)
        checkpoint = replace(example.checkpoint, model=model, config=model.config)
        explanation = example.explanation
        with pass_queue.reserved(checkpoint, explanation.preprocess.size):
            recorded = record(model, example.pixels)
            payload = pack(recorded, explanation.picture, explanation.geometry.box, COLORMAPS)
        return Example(name, checkpoint, replace(explanation, record=recorded, payload=payload), example.masked)

    changed: Example = cached(("changed", name), work)
    return changed


def _lengths(example: Example, target: int) -> Tensor:
    """Compute the norms of patch tokens after every block: (L, rows, cols)."""

    def work() -> Tensor:
        with method_choice.pass_of(example):
            lengths = logit_lens(example.checkpoint.model, example.pixels, target).lengths
        return example.explanation.record.heatmap(lengths)

    lengths: Tensor = cached(("lengths", example.key), work)
    return lengths


def _entropies(example: Example) -> list[float]:
    """Compute the entropy of attention from patches in every block, averaged over heads and patches."""

    def work() -> list[float]:
        one = example.explanation.record
        first, means = len(one.prefix), []
        for block in range(one.blocks):
            rows = torch.cat([entropy(rows).mean(0) for _, rows in one.row_chunks(block)])
            means.append(float(rows[first:].mean()))
        return means

    entropies: list[float] = cached(("entropies", example.key), work)
    return entropies


def _extremes(lengths: Tensor) -> list[list[float]]:
    patches = lengths.flatten(1)
    return [patches.amax(1).tolist(), patches.median(1).values.tolist()]


def _show_lengths(before: Tensor, after: Tensor, block: int) -> None:
    """Draw maps of token norms after a block, with a shared scale."""
    top = float(max(before[block].max(), after[block].max()))
    with st.container(horizontal=True):
        for title, lengths in (("as it is", before), ("with the register", after)):
            rows, cols = lengths.shape[1:]
            image = np.kron(
                colorize(lengths[block].numpy(), vmax=top), np.ones((160 // rows or 1, 160 // rows or 1, 1))
            )
            st.image(
                image.astype(np.uint8),
                width=max(1, 160 * cols // rows),
                caption=f"{title}: to {float(lengths[block].max()):,.1f}",
                alt=f"Norms after block {block + 1}, {title}",
            )


def _show_lines(title: str, before: list[list[float]], after: list[list[float]], key: str) -> None:
    figure = go.Figure()
    for name, lines, color in (("as it is", before, QUIET), ("with the register", after, STRONG)):
        for number, line in enumerate(lines):
            figure.add_scatter(
                x=list(range(1, len(line) + 1)),
                y=line,
                name=name,
                showlegend=not number,
                line={"color": color, "width": 2, "dash": "dot" if number else "solid"},
            )
    figure.update_layout(
        height=240,
        margin={"l": 0, "r": 0, "t": 30, "b": 0},
        title={"text": title, "font": {"size": 14}},
        legend={"orientation": "h", "y": -0.3},
    )
    figure.update_xaxes(title="block", dtick=1 if len(before[0]) <= 16 else 4, fixedrange=True)
    figure.update_yaxes(rangemode="tozero", fixedrange=True)
    st.plotly_chart(figure, config={"displayModeBar": False}, key=f"register {key}", alt=title)
