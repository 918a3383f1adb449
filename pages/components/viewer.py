"""Mounts the viewer on a Streamlit page: a feeder fetches the payload, a view draws it.

They are two components because Streamlit resends all data of a component when any of it changes. The payload of several
megabytes is served as a media file instead: the browser fetches it once, and reruns neither copy nor hash it. Call
`feed` outside and `show` inside an `st.fragment`, so that a click reruns only the fragment.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NotRequired, TypedDict

import streamlit as st

from pages.streamlit_internals import server
from vit.view.method_choice import ComputedMap, Method
from vit.view.payload import read_header
from vit.view.selection import Selection
from vit.view.web import joined, read

_feeder = st.components.v2.component("vit_feeder", js=joined("feeder.js"))
_view = st.components.v2.component(
    "vit_viewer", html=read("viewer.html"), css=read("viewer.css"), js=joined("component.js")
)


class Occlusion(TypedDict):
    """Predictions with single patches replaced.

    Attributes:
        target: label of the class.
        before: its probability without replacement, or its value if it is one of `numbers` without probabilities.
        after: (P,), its probability with each patch replaced.
        answers: (P,), the new most probable class, "" where it does not change.
    """

    target: str
    before: float
    after: Sequence[float]
    answers: Sequence[str]
    numbers: bool


class Answers(TypedDict):
    """The most probable classes.

    Attributes:
        bars: label and probability, 0 to 1, most probable first; or label, 0 and the text of a number.
        target, against: labels of the explained class, and of the one that it is compared with, "" for none; without
            them bars are no buttons.
        says: the answer in a few words, for presentations.
        note: text below.
    """

    bars: Sequence[tuple[str, float] | tuple[str, float, str]]
    target: NotRequired[str]
    against: NotRequired[str]
    says: str
    note: str


class Ablation(TypedDict):
    """Prediction with hidden patches and switched-off heads.

    Attributes:
        hidden: the hidden patches. While the browser's selection has others, the viewer shows nothing.
        target: label of the class.
        before, after: its probability without and with the changes, or its value, see `Occlusion`.
        answer: the new most probable class, "" if it does not change.
    """

    hidden: Sequence[int]
    target: str
    before: float
    after: float
    answer: str
    numbers: bool


@dataclass
class _Sent:
    """State that was sent to a viewer.

    Attributes:
        seed: selection that the viewer must show.
        passed: last argument of `show`, fitted to the model.
        revision: number of changes of `seed`.
        answered: whether the viewer has reported a selection for this revision.
    """

    seed: Selection
    passed: Selection
    revision: int = 0
    answered: bool = False


def payload_id(payload: bytes) -> str:
    """Return the id of a payload: its shape, and a hash of its content."""
    header = read_header(payload)
    shape = f"{header['blocks']}x{header['heads']}x{header['tokens']}"
    return f"{shape}-{hashlib.blake2b(payload, digest_size=16).hexdigest()}"


def feed(key: str, payload: bytes, name: str = "", on_more: Callable[[], None] | None = None) -> str:
    """Serve a payload, which the browser fetches once, and return its id for `show`.

    The server stores it while this session's page refers to it.

    Args:
        name: name under which viewers find it independently of its id; replaces the previous payload of this name.
        on_more: called when the browser has fetched this payload and the page is visible, to provide the next one.

    Raises:
        ValueError: `payload` does not come from `vit.view.payload.pack`.
    """
    header, identifier = read_header(payload), payload_id(payload)
    # The id is passed as name because Streamlit's own hash samples large files.
    address = server.add_media(payload, f"payload {key}", identifier)
    # Serialised as JSON, because Streamlit passes nested values of a dictionary to pandas.
    layout = json.dumps(header) if header["kind"] in ("maps", "qk") else ""  # viewers reserve space for these kinds
    data = {"payload": identifier, "address": address, "name": name, "header": layout, "more": on_more is not None}
    _feeder(key=key, data=data, height=1, on_more_change=on_more or _ignore)
    return identifier


def _ignore() -> None:
    """Do nothing; the callback of a feeder without `on_more`."""


def show(
    key: str,
    payload_id: str,
    selection: Selection,
    computed: ComputedMap | None = None,
    method: Method | None = None,
    *,
    group: str = "",
    own_view: bool = False,
    compact: bool = False,
    paintable: bool = False,
    occlusion: Occlusion | None = None,
    ablation: Ablation | None = None,
    answers: Answers | None = None,
    masks: str = "",
    model: str = "",
    features: str | None = None,
    on_change: Callable[[Selection], None] | None = None,
    on_ask: Callable[[str], None] | None = None,
) -> Selection:
    """Draw the viewer and return its selection.

    Args:
        key: of this viewer; its state is stored in `st.session_state[key]`.
        payload_id: from `feed`.
        selection: initial selection. In later calls, a changed value moves the viewer; the same value, or the one that
            `show` returned, has no effect.
        computed: the map for the selection's view, token and direction, if the browser does not compute it.
        method: method of the view "relevance"; None hides the view.
        group: viewers of the same group move together and share colour scales.
        own_view: the viewer keeps its view when others of its group change theirs.
        compact: hide controls and numbers, for a viewer beside another one of its group.
        paintable: patches can be hidden by dragging; the selection contains them.
        occlusion: predictions to show for the patch under the pointer.
        ablation: prediction to show for hidden patches and switched-off heads.
        answers: the most probable classes, drawn as bars; the numbers are folded then.
        masks: name of the masks that `feed` serves for judging maps, see `vit.view.payload.pack_masks`.
        model: identifies the model. Two viewers of a group with the same model compare features: a patch of one
            picture is matched in the other.
        features: id from `feed` of the result of `vit.view.payload.pack_features` for the selection's block and view,
            "" if these need none; None if features after other blocks, and components, are not available.
        on_change: called with the selection before the rerun that a click causes.
        on_ask: called with the label of a bar that is clicked; the first click asks, the next one ends it.
    """
    shape = tuple(int(part) for part in payload_id.partition("-")[0].split("x"))

    def parsed(values: Mapping[str, Any]) -> Selection:
        return Selection.from_query(values, *shape)

    def ask() -> None:
        label = (st.session_state.get(key) or {}).get("ask")
        if on_ask and answers and isinstance(label, str) and label in [name for name, *_ in answers["bars"]]:
            on_ask(label)

    passed = target = parsed(asdict(selection))
    sent: _Sent = st.session_state.setdefault(f"{key} (sent)", _Sent(target, passed))

    def browser_selection() -> Selection | None:
        """Return the selection that the browser reported for the current revision."""
        values = (st.session_state.get(key) or {}).get("selection")
        if not isinstance(values, Mapping) or values.get("revision") != sent.revision:
            return None
        return parsed(values)

    def changed() -> None:
        chosen = browser_selection()
        if on_change and chosen:
            on_change(chosen)

    # The browser and the page can both move the viewer, and their messages cross. So each move by the page is a new
    # seed with a revision: the browser adopts a seed of a higher revision, and reports its selections with that number.
    # A report with another number was made before the browser saw the move, and counts as none. Then the seed is
    # current. A report that existed and is gone (`answered`) means a new mount, which needs its seed again.
    chosen = browser_selection()
    current = chosen or parsed(asdict(sent.seed))
    if not target.colormap:
        target = replace(target, colormap=current.colormap)
    moved = passed != sent.passed and target != current
    reopened = chosen is None and sent.answered  # the visitor left the page, and Streamlit deleted its widget state
    if moved or reopened:
        sent.seed, sent.revision = target, sent.revision + 1
        chosen, current = None, target
    sent.passed, sent.answered = passed, chosen is not None

    if computed is not None:
        computed = {**computed, "values": [float(f"{float(value):.6g}") for value in computed["values"]]}
    message = {
        "name": key,  # stable, while Streamlit's own name in the browser changes with each mount
        "payload": payload_id,
        "seed": asdict(sent.seed),
        "revision": sent.revision,
        "computed": computed,
        "method": method,
        "group": group,
        "ownView": own_view,
        "compact": compact,
        "paintable": paintable,
        "occlusion": occlusion,
        "ablation": ablation,
        "answers": answers,
        "masks": masks,
        "model": model,
        "features": features,
    }
    _view(
        key=key,
        data=[message],  # a list, because Streamlit imports pandas (half a second) to inspect a dictionary's values
        default={"selection": None},
        on_selection_change=changed,
        on_ask_change=ask,
    )
    return current
