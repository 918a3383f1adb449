"""Mounts the viewer on a Streamlit page: a feeder fetches the bytes, a view draws them.

They are two components because Streamlit sends all of a component's data again when any of it changes. The megabytes
travel beside its messages, as pictures of a page do: the browser fetches them once, and a rerun neither copies nor
hashes them. Call `feed` outside and `show` inside an `st.fragment`: a click then reruns the fragment alone.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NotRequired, TypedDict

import streamlit as st

from pages.streamlit_internals import server
from vit.explain.settings import Direction
from vit.view.payload import read_header
from vit.view.selection import Selection, View
from vit.view.web import joined, read

_feeder = st.components.v2.component("vit_feeder", js=joined("feeder.js"))
_view = st.components.v2.component(
    "vit_viewer", html=read("viewer.html"), css=read("viewer.css"), js=joined("component.js")
)


class ComputedMap(TypedDict):
    """A map that the browser does not compute itself: of rollout for large models, or of a class.

    Attributes:
        view: "rollout" or "relevance".
        token: that it was asked about; -1 for the class itself.
        settings: of the method, see `vit.explain.settings.Settings.settings`.
        values: (N,), in the unit of the method.
    """

    view: View
    token: int
    direction: Direction
    settings: Mapping[str, Any]
    values: Sequence[float]


class Method(TypedDict):
    """What the view "relevance" shows.

    Attributes:
        title: of the method, for people.
        sentence: what it does, for people.
        target: the class, for people; "" for a method that is not of one.
        chain: from `feed`, "" for a method whose maps are given one by one.
        tokens: it can be asked about any token, not about the class alone.
        settings: those of `vit.explain.settings.Settings` that mean something to it.
    """

    title: str
    sentence: NotRequired[str]
    target: str
    chain: str
    tokens: bool
    settings: Sequence[str]


class Occlusion(TypedDict):
    """What the model answers with the patch under the pointer replaced.

    Attributes:
        target: the class, for people.
        before: its probability as it is.
        after: (P,), with each patch by itself replaced.
        answers: (P,), the most probable class then, where it is another one, and "".
    """

    target: str
    before: float
    after: Sequence[float]
    answers: Sequence[str]


@dataclass
class _Sent:
    """What was sent to a viewer.

    Attributes:
        seed: what to show.
        passed: what `show` was called with last, fitted to the model.
        revision: how often that was something else.
        answered: it has said what was chosen in it since.
    """

    seed: Selection
    passed: Selection
    revision: int = 0
    answered: bool = False


def feed(key: str, payload: bytes, name: str = "", on_more: Callable[[], None] | None = None) -> str:
    """Let the browser fetch a payload, once; returns the id that `show` takes.

    The server holds it while this session's page shows it.

    Args:
        name: by which viewers find it, whatever its id is; what came under this name before is replaced.
        on_more: there will be more under this name; called once the browser has this, and somebody looks at the page.

    Raises:
        ValueError: `payload` does not come from `vit.view.payload.pack`.
    """
    header = read_header(payload)
    shape = f"{header['blocks']}x{header['heads']}x{header['tokens']}"
    payload_id = f"{shape}-{hashlib.blake2b(payload, digest_size=16).hexdigest()}"
    # With the id as its name: of large files, Streamlit's own hash reads parts only.
    address = server.add_media(payload, "application/octet-stream", f"payload {key}", payload_id)
    # As text: of a dictionary's values that are no plain ones, Streamlit asks pandas what they are.
    layout = json.dumps(header) if header["kind"] in ("maps", "qk") else ""  # of these, a viewer makes room beforehand
    data = {"payload": payload_id, "address": address, "name": name, "header": layout, "more": on_more is not None}
    _feeder(key=key, data=data, height=1, on_more_change=on_more or _nothing)
    return payload_id


def _nothing() -> None:
    """Nobody asks for more."""


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
    masks: str = "",
    model: str = "",
    features: str | None = None,
    on_change: Callable[[Selection], None] | None = None,
) -> Selection:
    """Draw the viewer and return what it shows.

    Args:
        key: of this viewer; its state lives in `st.session_state[key]`.
        payload_id: from `feed`.
        selection: what to show at first. Later, passing something else than last time moves the viewer there;
            passing the same, or what `show` returned, leaves it alone.
        computed: the map for the selection's view, token and direction, where the browser does not compute it.
        method: None hides the view "relevance".
        group: viewers of one name move together, and maps of one kind share a colour scale.
        own_view: it keeps its view when the others of its group change theirs.
        compact: without controls and numbers, beside another one of its group.
        paintable: patches can be hidden by dragging; which ones is in the selection.
        occlusion: to say what becomes of the answer without the patch under the pointer.
        masks: name under which `feed` brings what maps are judged by, see `vit.view.payload.pack_masks`.
        model: of two viewers of one group, features can be compared where these are the same: a patch of one picture
            is then looked for in the other.
        features: id from `feed` of what `vit.view.payload.pack_features` makes of the selection's block and view, ""
            where these need none; None where features after other blocks, and components, cannot be had.
        on_change: called with the selection before the rerun that a click causes.
    """
    shape = tuple(int(part) for part in payload_id.partition("-")[0].split("x"))

    def parsed(values: Mapping[str, Any]) -> Selection:
        return Selection.from_query(values, *shape)

    passed = target = parsed(asdict(selection))
    sent: _Sent = st.session_state.setdefault(f"{key} (sent)", _Sent(target, passed))

    def browsers_choice() -> Selection | None:
        """What the browser chose since it was last sent what to show."""
        values = (st.session_state.get(key) or {}).get("selection")
        if not isinstance(values, Mapping) or values.get("revision") != sent.revision:
            return None
        return parsed(values)

    def changed() -> None:
        chosen = browsers_choice()
        if on_change and chosen:
            on_change(chosen)

    chosen = browsers_choice()
    current = chosen or parsed(asdict(sent.seed))
    if not target.colormap:
        target = replace(target, colormap=current.colormap)
    moved = passed != sent.passed and target != current
    reopened = chosen is None and sent.answered  # the page was left and its widgets forgotten
    if moved or reopened:
        sent.seed, sent.revision = target, sent.revision + 1
        chosen, current = None, target
    sent.passed, sent.answered = passed, chosen is not None

    if computed is not None:
        computed = {**computed, "values": [float(f"{float(value):.6g}") for value in computed["values"]]}
    message = {
        "name": key,  # the browser is told another one at each mount
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
        "masks": masks,
        "model": model,
        "features": features,
    }
    _view(
        key=key,
        data=[message],  # a dictionary's values may be tables: to know, Streamlit imports pandas, half a second
        default={"selection": None},
        on_selection_change=changed,
    )
    return current
