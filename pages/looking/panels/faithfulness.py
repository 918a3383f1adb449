"""Panel *Faithfulness*: faithfulness of the map on this picture, with two controls."""

from collections.abc import Callable, Mapping

import plotly.graph_objects as go
import streamlit as st
from torch import Tensor

from pages.components import viewer
from pages.links import link_controls, session
from pages.looking import mask_drops
from pages.looking.controls.method_choice import Example, MethodChoice, masks_name, pass_of, recorded_pass, weights
from pages.looking.mask_drops import MaskDrops
from pages.server.result_cache import cached
from pages.shared import bars
from pages.shared.escape import for_plotly, plain, visible
from vit.explain import faithfulness_correlation
from vit.explain.faithfulness import Curve, centre, deletion, insertion
from vit.explain.faithfulness_correlation import correlations
from vit.explain.methods import METHODS, heatmap_of, shares
from vit.explain.recorded_ranking import recorded_results
from vit.explain.settings import Settings
from vit.view.captions import format_duration
from vit.view.chart_colours import QUIET, STRONG
from vit.view.payload import pack_masks
from vit.view.selection import Selection

BUTTON_ABOVE_SECONDS = 1.0  # longer measurements start with a button [s]
HELP = f"""Random parts of the picture, {faithfulness_correlation.MASKED_SHARE:.0%} of the patches each,
are replaced by the mean colour, the same parts for every map. The number is the correlation between the map's weight on
a part and the drop of the class without it (faithfulness correlation, Bhatt et al. 2020).

Chance: the level that the best 5% of shifted and mirrored copies of the map reach. They have its values and smoothness
in other places.

Removal map: a map that is fitted to the measured drops. With enough masks no map can reach more. Its number is measured
on masks that were not used for the fit.

Error bars are two standard errors to both sides; they shrink with more masks."""
SAME = 0.01  # tolerance as a share of a map's maximum; rounding to bfloat16 stays below


@st.cache_resource(show_spinner=False, max_entries=32)
def curves(
    key: str, target: int, which: str, _example: Example, _heatmap: Callable[[], Tensor]
) -> dict[str, dict[str, Curve]]:
    """Compute deletion and insertion curves of a map, and of a blob in the middle."""
    model, pixels = _example.checkpoint.model, _example.pixels
    maps = {"this map": _heatmap(), "a blob in the middle": centre(_example.explanation.record.grid)}
    with pass_of(_example):
        return {
            title: {name: draw(model, pixels, target, one) for name, one in maps.items()}
            for title, draw in (("Deletion", deletion), ("Insertion", insertion))
        }


def maps_of(example: Example, target: int, settings: Settings) -> dict[str, Tensor]:
    """Compute the maps of all methods that need few passes."""

    def work() -> dict[str, Tensor]:
        of_class = recorded_pass(example, target)
        with pass_of(example):
            return {
                name: heatmap_of(of_class, name, **settings.settings(method.settings))
                for name, method in METHODS.items()
                if not method.passes
            }

    return cached(("maps", example.key, target, settings), work)


@st.fragment
def show(
    example: Example, choice: MethodChoice, selection: Selection, drawn: bool, link: Mapping[str, str] | None = None
) -> None:
    """Measure masks, send them to the viewer, and show the verdict on the current map.

    Measuring continues while the page is visible: the browser requests more masks when it has received a batch.

    Args:
        drawn: show the verdict; if False, only send earlier measurements to the viewer.
        link: values of the controls outside of the fragment when they were drawn.
    """
    link_controls.redraw_if_changed(link or {})
    target, state = choice.target_index, session.of(session.Explore)
    name = masks_name(example, target)
    feeder = st.container()
    if drawn and not _first_masks(example, target):
        return
    measured = mask_drops.measured(example, target)
    if measured is None:
        return
    if drawn:
        _show_verdict(example, choice, selection, measured)
    if drawn and state.more_masks == name and not measured.complete:
        # Measure after drawing, so that the elements above do not change meanwhile.
        mask_drops.measure_more(example, target, mask_drops.most(example))
        more = mask_drops.measured(example, target)
    else:
        more = measured
    state.more_masks = ""

    def on_more() -> None:
        state.more_masks = name

    assert more is not None
    with feeder:
        on_more_masks = on_more if drawn and not measured.complete else None
        viewer.feed("masks feeder", _packed(example, target, more), name, on_more_masks)


def packed(example: Example, target: int) -> bytes | None:
    """Return the packed masks for a standalone page; None if nothing was measured."""
    measured = mask_drops.measured(example, target)
    return measured and _packed(example, target, measured)


def _packed(example: Example, target: int, measured: MaskDrops) -> bytes:
    masks, drops, ceiling, complete, decidable = measured
    label, grid = visible(example.checkpoint.labels[target]), example.explanation.record.grid
    return pack_masks(
        masks,
        drops,
        grid,
        label,
        ceiling=ceiling,
        decidable=decidable,
        complete=complete,
    )


def _first_masks(example: Example, target: int) -> bool:
    """Measure the first masks, behind a button if this takes long; return whether they are available."""
    state, request = session.of(session.Explore), f"{example.key} {target}"
    placeholder = st.empty()  # created in every run, so that later elements keep their positions
    if mask_drops.measured(example, target):
        return True
    expected = mask_drops.expected(example)
    if expected > BUTTON_ABOVE_SECONDS and state.verdict != request:
        with placeholder.container():
            st.caption("Measure whether the map shows what the prediction depends on, by masking parts of the picture.")
            if not st.button(f"Measure it ({format_duration(expected)})"):
                return False
    state.verdict = request  # no second button if the estimate grows on a busy machine
    text = "Masking parts of the picture…"
    mask_drops.measure_first(example, target, lambda share: placeholder.progress(share, text))
    placeholder.empty()
    return True


def _show_verdict(example: Example, choice: MethodChoice, selection: Selection, measured: MaskDrops) -> None:
    """Show the verdict on the current map, and on demand curves and a ranking of methods."""
    target = choice.target_index
    label, grid = plain(example.checkpoint.labels[target]), example.explanation.record.grid
    heatmap = example.explanation.record.heatmap(weights(example, selection, choice))
    verdict = faithfulness_correlation.faithfulness_verdict(heatmap, measured.masks, measured.drops)
    nonzero, decidable, numbers = bool(heatmap.any()), measured.decidable, example.checkpoint.estimates
    right = st.container()
    if nonzero and decidable:
        left, right = st.columns([3, 2], gap="large", vertical_alignment="center")
        with left:
            _show_gauge(verdict, measured, float(correlations(centre(grid).flatten(), *measured[:2])))
    with right:
        st.markdown(f"**{_sentence(verdict, label, nonzero, decidable, measured.complete)}**")
        done, planned = len(measured.drops), mask_drops.most(example)
        masks = f"{done:,} masks" if measured.complete else f"{done:,} of {planned:,} masks so far"
        st.caption(
            f"Measured {'by the change of' if numbers else 'for'} “{label}” on this picture with {masks}. This is the "
            f"selected map; the number next to it follows the pointer.{_on_many(example, choice, selection)}",
            help=HELP.replace("class", "output") if numbers else HELP,
        )
    with st.container(horizontal=True):
        both = link_controls.toggle("Deletion and insertion", "curves")
        compare = link_controls.toggle("All methods on this picture", "ranking")
    if both:
        _show_curves(
            curves(example.key, target, _map_name(choice, selection), example, lambda: heatmap),
            example.checkpoint.labels[target],
        )
    if compare:
        with st.spinner("Drawing the map of every method…"):
            maps = maps_of(example, target, Settings(**selection.settings()))
        _show_ranking(maps, measured, _method_of_map(maps, selection, choice, heatmap))


def _map_name(choice: MethodChoice, selection: Selection) -> str:
    """Return a cache key of the current map among those of its picture and class."""
    which = " ".join(f"{name}={getattr(selection, name)}" for name in ("view", "block", "head", "direction"))
    which += f" {selection.token} {selection.pinned} {selection.settings()}"
    return which + (choice.method if selection.view == "relevance" else "")


def _sentence(
    verdict: faithfulness_correlation.Verdict, label: str, nonzero: bool, decidable: bool, complete: bool
) -> str:
    """Return the verdict as a sentence."""
    if not nonzero:
        return f"The map is zero everywhere: it contains no evidence for “{label}”."
    if not decidable:
        return f"No mask changes “{label}” noticeably, so the faithfulness of a map cannot be measured on this picture."
    yet = "" if complete else " yet"
    return {
        "better than chance": "This map is better than chance: it shows what the model relies on.",
        "cannot be decided yet": f"It cannot be decided{yet} whether this map is better than chance.",
        "no better than chance": "This map is no better than chance: shifted copies of it score as high.",
    }[verdict.label]


def _on_many(example: Example, choice: MethodChoice, selection: Selection) -> str:
    """Return a sentence with the method's recorded results on a dataset; "" if the checkpoint has none."""
    last, record = METHODS["attention"].settings, example.explanation.record
    layers = selection.block, selection.head
    if selection.view == "attention" and layers != (last["block"] % record.blocks, last["head"]):
        return ""
    name = {"relevance": choice.method, "rollout": "rollout", "attention": "attention"}.get(selection.view, "")
    pictures, every = recorded_results(example.checkpoint.facts)
    if name not in every:
        return ""
    one = every[name].correlation
    return (
        f" On {pictures:,} test pictures {METHODS[name].title} reached {bars.number(one.mean)} on average "
        f"({bars.number(one.low)} to {bars.number(one.high)}), and was better than chance on {every[name].better:.0%}."
    )


def _method_of_map(maps: dict[str, Tensor], selection: Selection, choice: MethodChoice, heatmap: Tensor) -> str | None:
    """Return the method whose map for the model's output equals the current map up to rounding, or None."""
    name = {"relevance": choice.method, "rollout": "rollout", "attention": "attention"}.get(selection.view)
    if name not in maps:
        return None
    one, other = shares(heatmap), shares(maps[name])
    return name if bool((one - other).abs().max() <= SAME * other.abs().max()) else None


def _show_gauge(verdict: faithfulness_correlation.Verdict, measured: MaskDrops, blob: float) -> None:
    """Draw faithfulness of the map, of a blob and of the removal map on an axis from -1 to 1, with the chance level."""
    rows = [
        bars.Marks("this map", verdict.correlation, "disc", 2 * verdict.error),
        bars.Marks("blob in the middle", blob, "diamond"),
        bars.Marks("removal map", measured.ceiling, "ring"),
    ]
    alt = (
        f"Faithfulness of this map {verdict.correlation:.2f}, of a blob in the middle {blob:.2f}, of the removal "
        f"map {measured.ceiling:.2f}; chance reaches {verdict.reach:.2f}"
    )
    bars.show_faithfulness(rows, verdict.reach, alt)


def _show_curves(every: dict[str, dict[str, Curve]], label: str) -> None:
    for column, (title, lines) in zip(st.columns(2, gap="large"), every.items(), strict=True):
        figure = go.Figure()
        for (name, curve), color in zip(lines.items(), (STRONG, QUIET), strict=True):
            figure.add_scatter(
                x=curve.shares,
                y=curve.probabilities,
                name=f"{name}: area {curve.area:{'.4g' if curve.numbers else '.2f'}}",
                line={"color": color, "width": 3 if color == STRONG else 2},
            )
        how = "gone, the most important first" if title == "Deletion" else "sharp, the most important first"
        figure.update_layout(
            height=260,
            margin={"l": 0, "r": 0, "t": 30, "b": 0},
            title={"text": f"{title}: “{for_plotly(label)}”", "font": {"size": 14}},
            legend={"orientation": "h", "y": -0.35},
        )
        figure.update_xaxes(title=f"pixels {how}", tickformat=".0%", range=[0, 1], fixedrange=True)
        shown = {} if lines["this map"].numbers else {"tickformat": ".0%", "range": [0, 1]}
        figure.update_yaxes(fixedrange=True, **shown)
        column.plotly_chart(figure, config={"displayModeBar": False}, key=f"curve {title}", alt=f"{title} curve")
        column.caption(_about(title, lines["this map"], plain(label)))


def _about(title: str, curve: Curve, label: str) -> str:
    """Return a sentence on how to read a curve, and why it may be inconclusive."""
    if title == "Deletion":
        left, better = f"With all pixels gone it is still “{label}” to {curve.probabilities[-1]:.0%}", "lower"
        why = f"{left}: there is little to lose"
    else:
        left, better = f"Blurred, the picture is “{label}” to {curve.probabilities[0]:.0%} already", "higher"
        why = f"{left}: sharp pixels have little to add"
    if curve.numbers:
        why = f"“{label}” ends near where it begins"
    sentence = f"The {better} the area, the better the map."
    return sentence if curve.is_informative else f"{sentence} {why}, so here the area alone says little."


def _show_ranking(maps: dict[str, Tensor], measured: MaskDrops, marked_method: str | None) -> None:
    verdicts = {
        name: faithfulness_correlation.faithfulness_verdict(one, measured.masks, measured.drops)
        for name, one in maps.items()
    }
    values = {name: one.correlation for name, one in verdicts.items()} | {"removal": measured.ceiling}
    names = sorted(values, key=values.__getitem__)
    better = [name not in verdicts or verdicts[name].label == "better than chance" for name in names]
    figure = go.Figure(
        go.Bar(
            x=[values[name] for name in names],
            y=[f"<b>▸ {METHODS[name].title}</b>" if name == marked_method else METHODS[name].title for name in names],
            orientation="h",
            marker={"color": [STRONG if one else QUIET for one in better]},
            error_x={
                "array": [2 * (1 - values[name] ** 2) / (len(measured.drops) - 1) ** 0.5 for name in names],
                "color": QUIET,
                "thickness": 1.5,
            },
            hoverinfo="skip",
        )
    )
    figure.update_layout(height=34 * len(names) + 80, margin={"l": 0, "r": 0, "t": 20, "b": 0})
    ends = [0, *values.values()]
    figure.update_xaxes(range=[min(ends) - 0.1, max(ends) + 0.1], title="faithfulness", fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    marked = f", {METHODS[marked_method].title} is the one shown" if marked_method else ""
    alt = f"Faithfulness of every method on this picture{marked}"
    st.plotly_chart(figure, config={"displayModeBar": False}, key="ranked", alt=alt)
    which = "▸ is shown above" if marked_method else "the map above comes from none of them"
    st.caption(
        f"Each method's map for the class as a whole; {which}. In colour: better than its own copies, and the removal "
        "map, which is fitted to the answers, on masks that it was not fitted to. One picture says little about a "
        "method: `python -m vit faithfulness` ranks them on a dataset."
    )
