"""The viewer alone on a page, for tests and benchmarks: `?case=` selects the data."""

from dataclasses import asdict, replace

import streamlit as st
from synthetic import chain, mask_drops, picture, record

from pages.components import viewer as component
from vit.view.overlay import COLORMAPS
from vit.view.payload import pack, pack_chain, pack_masks
from vit.view.selection import Selection

# case: (blocks, heads, grid, prefix, K, seed, D, pooled), size of the picture, box; the last three may be left out
CASES = {
    "maps": ((12, 12, (14, 14), ("cls",), 64, 0, 768), (900, 700), (100, 0, 800, 700)),
    "small": ((3, 2, (4, 6), ("cls", "reg1", "reg2"), 16), (600, 400), (0, 0, 600, 400)),
    "finer": ((3, 2, (8, 12), ("cls", "reg1", "reg2"), 16, 5), (600, 400), (0, 0, 600, 400)),
    "tiny": ((6, 4, (8, 8), ("cls",), 32), (32, 32), (0, 0, 32, 32)),
    "padded": ((3, 2, (8, 8), (), 16), (600, 300), (0, -150, 600, 450)),
    "hostile": ((2, 2, (4, 4), ("<img src=x onerror=alert(1)>",), 16), (64, 64), (0, 0, 64, 64)),
    "qk": ((12, 12, (32, 32), ("cls",), 64, 0, 768), (900, 900), (0, 0, 900, 900)),
    "huge": ((12, 6, (64, 64), ("cls",), 64, 0, 768), (900, 900), (0, 0, 900, 900)),
    "pooled": ((3, 2, (4, 6), (), 16, 0, 48, True), (600, 400), (0, 0, 600, 400)),
    "alike": ((3, 2, (4, 6), ("cls", "reg1"), 16, 0, 50), (600, 400), (0, 0, 600, 400)),
    "siglip": ((12, 12, (14, 14), (), 64, 0, 768, True), (900, 700), (100, 0, 800, 700)),
    "pooled-qk": ((2, 3, (16, 18), (), 18, 0, 50, True), (600, 400), (0, 0, 600, 400)),
    "small-qk": ((2, 2, (16, 18), ("cls",), 18), (600, 400), (0, 0, 600, 400)),
}


@st.cache_resource
def prepare(case: str):
    """Build the record and payload of a case."""
    model, size, box = CASES[case]
    kept = record(*model)
    maps = COLORMAPS if case != "hostile" else {"<b>bold</b>": COLORMAPS["viridis"]}
    return kept, pack(kept, picture(*size), box, maps)


st.set_page_config(layout="wide")
fresh = st.query_params.get("fresh", "")  # another case is another viewer, as after a reload
if st.session_state.get("fresh") != fresh:
    st.session_state.clear()
    st.session_state.fresh = fresh
case = st.query_params.get("case", "maps")
kept, payload = prepare(case)
view_first = "view-first" in st.query_params
if not view_first:
    payload_id = component.feed("feeder", payload)
else:
    import hashlib

    shape = f"{kept.blocks}x{kept.heads}x{kept.tokens}"
    payload_id = f"{shape}-{hashlib.blake2b(payload, digest_size=16).hexdigest()}"

how = st.query_params.get("method")
second_id = component.feed("second feeder", prepare(st.query_params["pair"])[1]) if "pair" in st.query_params else ""
chain_id = component.feed("chain feeder", pack_chain(*chain(kept))) if how == "chain" else ""
masks_name = f"masks of {case}" if "masks" in st.query_params else ""
if masks_name:  # first a few, then, when the browser has them, more
    more = st.session_state.get("more masks", False)

    def ask_for_more() -> None:
        st.session_state["more masks"] = True

    masks, drops = mask_drops(kept, 256 if more else 32)
    planted = pack_masks(masks, drops, kept.grid, "<b>cat</b>", ceiling=0.9, decidable=True)
    component.feed("masks feeder", planted, masks_name, None if more else ask_for_more)


@st.fragment
def viewer() -> None:
    shown = Selection.from_query(st.query_params, kept.blocks, kept.heads, kept.tokens)
    if st.button("Go to block 2, head 1"):
        shown = replace(shown, block=1, head=0)
        st.session_state.driven = shown
    computed = method = None
    now = st.session_state.get("shown", shown)
    if kept.tokens > 256 and now.view == "rollout":
        values = kept.rollout(now.token, now.residual, now.direction, now.fusion, now.discard)
        computed = component.ComputedMap(
            view="rollout",
            token=now.token,
            direction=now.direction,
            settings=now.settings(),
            values=values.tolist(),
        )
    if how == "chain":
        method = component.Method(
            title="Relevance", target="<b>cat</b>", chain=chain_id, tokens=True, settings=("start_block",)
        )
    if how == "computed":
        method = component.Method(title="LeGrad", target="cat", chain="", tokens=False, settings=())
        values = list(range(kept.tokens))
        computed = component.ComputedMap(
            view="relevance", token=-1, direction=now.direction, settings=now.settings(), values=values
        )

    def changed(selection: Selection) -> None:
        st.session_state.shown = selection
        st.query_params.update(selection.to_query())

    count = kept.tokens - len(kept.prefix)
    after = [0.5 - 0.01 * patch for patch in range(count)]
    answers = ["<b>dog</b>" if patch == 5 else "" for patch in range(count)]
    occlusion = component.Occlusion(target="cat", before=0.5, after=after, answers=answers)
    if "occlusion" not in st.query_params:
        occlusion = None
    ablation = component.Ablation(hidden=(7, 8), target="cat", before=0.5, after=0.34, answer="<b>dog</b>")
    paired = "pair" in st.query_params
    result = component.show(
        f"viewer {fresh}",
        payload_id,
        shown,
        computed,
        method,
        group="pair" if paired else "",
        paintable="paint" in st.query_params,
        occlusion=occlusion,
        ablation=ablation if "ablation" in st.query_params else None,
        masks=masks_name,
        on_change=changed,
    )
    if paired:
        component.show(f"second {fresh}", second_id, Selection(), group="pair", compact=True)
    st.session_state.shown = result
    st.text(f"runs {st.session_state.setdefault('runs', 0)}")
    st.session_state.runs += 1
    st.json(asdict(result), expanded=False)
    st.text(f"fresh {fresh}")
    st.text("selection " + " ".join(f"{k}={v}" for k, v in result.to_query().items()))


viewer()
if view_first:
    component.feed("feeder", payload)
