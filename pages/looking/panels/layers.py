"""Panels Layers and Weights: predictions after every block for picture and patches; views of the weights alone."""

import numpy as np
import plotly.graph_objects as go
import streamlit as st
from PIL import Image

from pages.looking.controls.method_choice import Example, MethodChoice, pass_of
from pages.looking.panels import registers
from pages.shared import download_buttons
from pages.shared.escape import for_plotly, plain
from vit.explain.logit_lens import Lens, logit_lens
from vit.explain.weight_views import filters, outliers, position_similarity
from vit.exports import tables
from vit.view.captions import file_stem
from vit.view.chart_colours import QUIET
from vit.view.overlay import COLORMAPS
from vit.view.prediction import written
from vit.view.selection import Selection

CURVES = 4  # classes in the chart
TILE = 96  # size of a map [px]
RAMP = 160  # width of a colour scale [px]


@st.cache_resource(show_spinner="Reading the answer after every block…", max_entries=8)
def lens(key: str, target: int, _example: Example) -> Lens:
    """Cached `vit.explain.logit_lens.logit_lens`."""
    with pass_of(_example):
        return logit_lens(_example.checkpoint.model, _example.pixels, target)


def show(example: Example, choice: MethodChoice, selection: Selection) -> None:
    """Draw probabilities or a number over blocks, and a map of the class after each block."""
    checkpoint, labels = example.checkpoint, example.checkpoint.labels
    target = choice.target_index
    name = plain(labels[target])
    reading = lens(example.key, target, example)
    final = reading.answers[-1]
    blocks = np.arange(1, len(reading.answers) + 1)
    figure = go.Figure()
    classes = [target, *(i for i in final.topk(min(CURVES, len(final))).indices.tolist() if i != target)]
    for index in classes[: 1 if checkpoint.estimates else CURVES]:
        figure.add_scatter(
            x=blocks,
            y=reading.answers[:, index].tolist(),
            name=for_plotly(labels[index]),
            line={"width": 3 if index == target else 1.5},
        )
    figure.update_layout(height=280, margin={"l": 0, "r": 0, "t": 10, "b": 0}, legend={"orientation": "h", "y": 1.15})
    figure.update_xaxes(title="block", dtick=1 if len(blocks) <= 16 else 4, fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    decided = f"**Decided at block {reading.decided + 1}**: from there on it is “{plain(labels[int(final.argmax())])}”."
    if not checkpoint.estimates:
        figure.add_vline(x=reading.decided + 1, line={"color": QUIET, "dash": "dot"})
        figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    st.markdown(
        f"**“{name}” after each block**" if checkpoint.estimates else decided,
        help="The logit lens: the model's last norm and head, applied to the tokens after each block. Early blocks "
        "were not trained to be read like this, so low numbers there say little.",
    )
    st.plotly_chart(figure, config={"displayModeBar": False}, key="lens", alt="Probabilities after every block")
    st.markdown(f"**“{name}” in each patch**, by the patch's own token after each block")
    record = example.explanation.record
    maps = record.heatmap(reading.targets).numpy()
    low, top = float(maps.min()) if checkpoint.estimates else 0.0, float(maps.max())
    with st.container(horizontal=True):
        for block, one in enumerate(maps):
            most = written(checkpoint, one.max(), ".0%")
            st.image(_tile((one - low) / ((top - low) or 1.0)), caption=f"{block + 1}: to {most}", width=TILE)
    stem = file_stem(example.checkpoint.name, example.explanation.preprocess.size, "layers")
    download_buttons.numbers("Layers", lambda: tables.layers_table(reading, labels, checkpoint.estimates), stem)
    if _show_outliers(example, reading):
        registers.show(example, choice, selection)


def _tile(shares: np.ndarray) -> Image.Image:
    colors = COLORMAPS["viridis"][np.rint(np.clip(shares, 0, 1) * 255).astype(np.uint8)]
    height, width = shares.shape
    return Image.fromarray(colors).resize((TILE, TILE * height // width), Image.Resampling.NEAREST)


def _show_outliers(example: Example, reading: Lens) -> bool:
    """Show patch tokens with outlier norms; return whether there are any."""
    first = len(example.explanation.record.prefix)
    is_outlier = outliers(reading.lengths[:, first:])
    if not is_outlier.any():
        st.caption("No patch token has an outlying norm in any block.")
        return False
    block = int(is_outlier.sum(1).argmax())
    count = int(is_outlier[block].sum())
    many = "1 patch token has an outlying norm" if count == 1 else f"{count} patch tokens have outlying norms"
    st.caption(
        f"{many} after block {block + 1}.",
        help="More than six median deviations above the median. Large models keep global facts in such tokens, and "
        "attention to them says little about what is in those patches (Darcet et al. 2024).",
    )
    tiles = example.explanation.record.heatmap(reading.lengths)[block].numpy()
    st.image(_tile(tiles / tiles.max()), caption=f"Norms after block {block + 1}", width=TILE)
    return True


def show_weights(example: Example) -> None:
    """Draw position embeddings and patch filters, which do not depend on a picture."""
    model = example.checkpoint.model
    left, right = st.columns(2, gap="large")
    with left:
        st.markdown("**Similarity of position embeddings**, one map per patch")
        similar = position_similarity(model)
        if similar is None:
            st.caption("This model's positions are rotary: none are learnt.")
        else:
            low, top = float(similar.min()), float(similar.max())
            st.image(_positions(similar.numpy(), low, top), width="stretch", alt="Similarity of position embeddings")
            with st.container(horizontal=True, vertical_alignment="center"):
                st.caption(f"{low:.2f}".replace("-", "−"), width="content")
                st.image(_ramp(), width=RAMP, alt="Colours from dark to bright")
                st.caption(f"{top:.2f}", width="content")
            st.caption(
                "Each map is at the position of its patch, and is brightest where positions are most similar to that "
                "patch's. Colours are the cosine similarity of two position embeddings, from the lowest to the highest."
            )
    with right:
        st.markdown("**What the patch embedding looks for**, its strongest principal components")
        components, shares = filters(model)
        st.image(_filters(components.numpy()), width="stretch")
        st.caption(
            "Each tile is one patch of the input. Grey is a weight of zero; brighter, darker or coloured pixels are "
            "what the filter responds to, or to its negative. Together they explain "
            f"{float(shares.sum()):.0%} of the filters' variance, the first one {float(shares[0]):.0%}."
        )


MAPS_PER_SIDE = 14  # maximum number of position maps along a side


def _ramp() -> Image.Image:
    return Image.fromarray(np.broadcast_to(COLORMAPS["viridis"], (12, 256, 3)).copy())


def _positions(similar: np.ndarray, low: float, top: float) -> Image.Image:
    _, rows, cols = similar.shape
    down, right = (np.unique(np.linspace(0, n - 1, min(n, MAPS_PER_SIDE)).round().astype(int)) for n in (rows, cols))
    scale = max(1, 1000 // (len(right) * (cols + 1)))
    sheet = np.full((len(down) * (rows + 1) - 1, len(right) * (cols + 1) - 1, 3), 128, np.uint8)
    for i, row in enumerate(down):
        for j, col in enumerate(right):
            levels = np.rint((similar[row * cols + col] - low) / ((top - low) or 1) * 255).astype(np.uint8)
            sheet[i * (rows + 1) : i * (rows + 1) + rows, j * (cols + 1) : j * (cols + 1) + cols] = COLORMAPS[
                "viridis"
            ][levels]
    image = Image.fromarray(sheet)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)


def _filters(components: np.ndarray) -> Image.Image:
    count, channels, height, width = components.shape
    across = 7
    down = -(-count // across)
    sheet = np.full((down * (height + 1) - 1, across * (width + 1) - 1, 3), 128, np.uint8)
    for i, one in enumerate(components):
        shade = one / (2 * np.abs(one).max() + 1e-12) + 0.5
        pixels = np.rint(shade.transpose(1, 2, 0) * 255).astype(np.uint8)
        y, x = i // across * (height + 1), i % across * (width + 1)
        sheet[y : y + height, x : x + width] = pixels if channels == 3 else pixels[..., :1]
    image = Image.fromarray(sheet)
    scale = max(1, 600 // image.width)
    return image.resize((image.width * scale, image.height * scale), Image.Resampling.NEAREST)
