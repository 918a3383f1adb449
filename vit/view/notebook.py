"""The viewer in a notebook: `vit.view(model, picture)`.

A cell shows the viewer as a sandboxed iframe with a self-contained page, see `vit.view.standalone_page`. The page works
without a kernel, without a network, and in a saved notebook, and is isolated from the notebook. If anywidget is
installed and the kernel is running, kernel and viewer synchronise the selection.
"""

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast, get_args

from PIL import Image
from torch import Tensor, nn

from vit.checkpoints import abstention
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import size_near
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.errors import UserError
from vit.explain.attention_tensors import record_of_attention
from vit.explain.heatmap import find_token
from vit.explain.maps import checked_index
from vit.explain.methods import METHODS
from vit.explain.record import AttentionRecord
from vit.explain.recorded_ranking import recommended
from vit.explain.settings import Direction, Fusion
from vit.images.geometry import Box
from vit.images.pictures import picture_of
from vit.view.explanation import explain_picture
from vit.view.kernel_link import KernelLink, Update, can_link
from vit.view.map_source import MapSource
from vit.view.method_choice import MethodChoice
from vit.view.notebook_frame import framed
from vit.view.overlay import COLORMAPS
from vit.view.payload import pack
from vit.view.prediction import written
from vit.view.selection import Selection
from vit.view.selection import View as ViewKind
from vit.view.standalone_page import standalone

_GREY = (128, 128, 128)  # background if there is no picture


class ViewSelection(NamedTuple):
    """Selection of a view. Indices count from 0.

    Attributes:
        block, head: an index, or how all of them are fused.
        query: the query token; None for the model's output, or for a view without a query.
        direction: "from" for attention from the query to others, "to" for attention from others to it.
        method: "attention", "rollout", "similar", "pool", or a class-specific method in `METHODS`.
    """

    block: int | Fusion
    head: int | Fusion
    query: int | None
    direction: Direction
    method: str


class View:
    """A viewer in a notebook.

    With anywidget, setting properties updates the displayed viewer, and selections in the viewer update the properties.
    Without it, changes appear when the view is displayed again.
    """

    def __init__(
        self,
        source: MapSource,
        picture: Image.Image,
        box: Box,
        title: str,
        facts: Sequence[str],
        selection: Selection,
        choice: MethodChoice | None,
    ):
        self._source, self._picture, self._box = source, picture, box
        self._title, self._facts = title, tuple(facts)
        self._payload = pack(source.record, picture, box, dict(COLORMAPS))
        self._selection, self._choice = selection, choice
        self._revision = 1
        self._name = f"vit-{secrets.token_hex(8)}"
        self._callbacks: list[Callable[[ViewSelection], object]] = []
        self._sent_chains: set[str] = set()
        self._link: KernelLink | None = None
        if can_link():
            # A weak reference, so that the link does not keep the view alive.
            own = weakref.ref(self)
            self._link = KernelLink(
                self._name,
                lambda: _dereferenced(own)._full_state(),
                lambda message: _dereferenced(own)._on_selection(message),
            )
            weakref.finalize(self, self._link.close).atexit = False  # at exit, the kernel closes all widgets itself

    @property
    def record(self) -> AttentionRecord:
        """Attention of the picture."""
        return self._source.record

    @property
    def linked(self) -> bool:
        """Whether kernel and viewer synchronise the selection."""
        return self._link is not None

    @property
    def selection(self) -> ViewSelection:
        """Current selection of the viewer."""
        current = self._selection
        of_class = current.view == "relevance" and self._choice is not None
        query = None if (of_class and not current.pinned) or current.view == "pool" else current.token
        method = self._choice.method if of_class and self._choice else current.view
        return ViewSelection(current.block, current.head, query, current.direction, method)

    @property
    def block(self) -> int | Fusion:
        """The block, or how all of them are fused. Setting it switches the method to "attention"."""
        return self._selection.block

    @block.setter
    def block(self, block: int | Fusion) -> None:
        self._select(block=_index("block", block, self.record.blocks), view="attention")

    @property
    def head(self) -> int | Fusion:
        """The head, or how all of them are fused. Setting it switches the method to "attention"."""
        return self._selection.head

    @head.setter
    def head(self, head: int | Fusion) -> None:
        self._select(head=_index("head", head, self.record.heads), view="attention")

    @property
    def query(self) -> int | None:
        """The query token. Set it by name, (row, col) or index to pin it, or to None to unpin it."""
        return self.selection.query

    @query.setter
    def query(self, query: str | int | tuple[int, int] | None) -> None:
        self._select(**_pinned(query, self._source))

    @property
    def direction(self) -> Direction:
        """Attention from the query to others ("from"), or from others to it ("to")."""
        return self._selection.direction

    @direction.setter
    def direction(self, direction: Direction) -> None:
        self._select(direction=_checked("direction", direction, get_args(Direction)))

    @property
    def method(self) -> str:
        """The method: "attention", "rollout", "similar", "pool", or a class-specific method in `METHODS`."""
        return self.selection.method

    @method.setter
    def method(self, method: str) -> None:
        kind = _kind_of(method, self.record)
        if kind == "relevance":
            self._choice = self._source.choose(method, self._choice.target if self._choice else None)
        self._select(view=kind)

    @property
    def target(self) -> str | None:
        """Label of the class that methods explain; None without classes. Can be set by label or index."""
        return self._source.labels[self._choice.target_index] if self._choice else None

    @target.setter
    def target(self, target: str | int | None) -> None:
        method = self._choice.method if self._choice else self._source.recommended
        self._choice = self._source.choose(method, target)
        self._select()

    def heatmap(self) -> Tensor:
        """Compute the map that the viewer shows, (rows, cols), as `vit.heatmap` does."""
        return self.record.heatmap(self._source.weights(self._selection, self._choice))

    def observe(self, callback: Callable[[ViewSelection], object]) -> None:
        """Register a callback that is called with the selection whenever it is changed in the viewer."""
        self._callbacks.append(callback)

    def page(self) -> str:
        """Return the viewer as a self-contained HTML page, as shown in a cell."""
        of_class = self._selection.view == "relevance"
        needed = self._source.required_data(self._selection, self._choice if of_class else None)
        return standalone(
            self._payload,
            self._selection,
            self._title,
            self._facts,
            computed=needed.computed,
            method=needed.method,
            chain=needed.chain,
            cell=self._name,
        ).decode()

    def __repr__(self) -> str:
        record = self.record
        rows, cols = record.grid
        return f"View of {self._title}: {record.blocks} blocks, {record.heads} heads, {rows} x {cols} patches"

    def _repr_html_(self) -> str:
        """Return the HTML that a notebook displays and saves."""
        signed = self.method in METHODS and METHODS[self.method].signed
        return framed(self.page(), self._name, self._title, self._picture, self._box, self.heatmap(), signed)

    def _select(self, **values: Any) -> None:
        """Change the selection, here and in the frames."""
        self._selection = replace(self._selection, **values)
        self._revision += 1
        if self._link:
            self._link.send(self._update())

    def _full_state(self) -> Update:
        """Return an update with everything, for a frame that has just opened."""
        self._sent_chains.clear()
        return self._update()

    def _update(self) -> Update:
        needed = self._source.required_data(self._selection, self._choice)
        method, payloads = needed.method, dict[str, bytes]()
        if method and needed.chain and self._choice:
            method["chain"] = chain = f"{self._name} chain {self._choice.target}"
            if chain not in self._sent_chains:
                payloads[chain] = needed.chain
                self._sent_chains.add(chain)
        message = {
            "seed": asdict(self._selection),
            "revision": self._revision,
            "method": method,
            "computed": needed.computed,
        }
        return Update(message, payloads)

    def _on_selection(self, message: Mapping[str, Any]) -> None:
        """Apply a selection from the viewer, unless the kernel has changed the selection since."""
        if message.get("revision") != self._revision:
            return
        record = self.record
        self._selection = Selection.from_query(message, record.blocks, record.heads, record.tokens)
        if self._link and self._selection.view in ("relevance", "rollout"):  # views that may need the kernel
            self._link.send(self._update())
        for callback in tuple(self._callbacks):
            callback(self.selection)


def view(
    anything: Any,
    picture: Any = None,
    *,
    method: str = "attention",
    target: str | int | None = None,
    block: int | Fusion = -1,
    head: int | Fusion = "mean",
    query: str | int | tuple[int, int] | None = None,
    direction: Direction = "from",
    size: int | None = None,
    labels: Sequence[str] | None = None,
    preprocess: Any = None,
    grid: tuple[int, int] | None = None,
    prefix: Sequence[str] | None = None,
    **settings: Any,
) -> View:
    """Show the attention of a model in a notebook, in an interactive viewer that works offline.

    Args:
        anything: a `vit.Checkpoint` or an argument for `vit.load_checkpoint`; a Vision Transformer in memory, see
            `vit.checkpoint_from_module`; or attention, see `vit.explain.attention_tensors.record_of_attention`.
        picture: a Pillow image, path, bytes, array or tensor, see `vit.images.pictures.picture_of`. Optional for
            attention.
        method: "attention", "rollout", "similar", "pool", or a class-specific method in `METHODS`.
        target: class to explain, by label or index; None for the predicted one.
        block, head: an index from 0, negative from the end, or "mean", "max" or "min" of all.
        query: query token by name, (row, col) or index, which is pinned; None for the class token.
        direction: "from" for attention from the query to others, "to" for attention from others to it.
        size: shorter side of the model's input [px]; None for its own.
        labels, preprocess: for a model in memory that does not state them, see `vit.checkpoint_from_module`.
        grid, prefix: (rows, cols) of patches and names of the prefix tokens, for attention.
        settings: of the method and the display, fields of `vit.view.selection.Selection`.

    Raises:
        UserError: an argument cannot be used.
    """
    allowed = {field.name for field in fields(Selection)} - {"block", "head", "token", "pinned", "view", "direction"}
    if unknown := sorted(settings.keys() - allowed):
        raise UserError(f"There is no setting {unknown[0]!r}. Choose from {', '.join(sorted(allowed))}.")
    if isinstance(anything, Checkpoint | nn.Module | str | Path):
        if grid is not None or prefix is not None:
            raise UserError("grid and prefix are for attention alone; a model knows its own.")
        source, image, box, title, facts = _of_model(_checkpoint(anything, labels, preprocess), picture, size)
    else:
        source, image, box, title, facts = _of_attention(anything, picture, grid, prefix)
    kind = _kind_of(method, source.record)
    name = method if kind == "relevance" else source.recommended
    explains_class = kind == "relevance" or target is not None
    choice = source.choose(name, target) if explains_class or source.labels else None
    selection = Selection(
        block=_index("block", block, source.record.blocks),
        head=_index("head", head, source.record.heads),
        view=kind,
        direction=_checked("direction", direction, get_args(Direction)),
        **_pinned(query, source),
        **settings,
    )
    return View(source, image, box, title, facts, selection, choice)


class _Parts(NamedTuple):
    """Parts of a view, without its selection."""

    source: MapSource
    picture: Image.Image
    box: Box
    title: str
    facts: list[str]


def _checkpoint(anything: Any, labels: Sequence[str] | None, preprocess: Any) -> Checkpoint:
    if isinstance(anything, nn.Module):
        return checkpoint_from_module(anything, labels=labels, preprocess=preprocess)
    if labels is not None or preprocess is not None:
        raise UserError("labels and preprocess are for models in memory; a checkpoint states its own.")
    return anything if isinstance(anything, Checkpoint) else load_checkpoint(anything)


def _of_model(checkpoint: Checkpoint, picture: Any, size: int | None) -> _Parts:
    if picture is None:
        raise UserError("A picture is missing: vit.view(model, picture).")
    explained = explain_picture(checkpoint, picture_of(picture), None if size is None else size_near(checkpoint, size))
    pixels = explained.preprocess(explained.picture)
    source = MapSource(explained.record, checkpoint.model, pixels, checkpoint.labels, recommended(checkpoint.facts))
    likely = ", ".join(f"{label} {written(checkpoint, value)}" for label, value in explained.predictions[:3])
    if abstention.is_sure(explained.logit, checkpoint.facts) is False:
        likely = abstention.perhaps(explained.predictions)
    facts = [likely] if likely else []
    facts += [f"Assumed: {why}" for why in checkpoint.assumed.values()]
    return _Parts(source, explained.picture, explained.geometry.box, checkpoint.name, facts)


def _of_attention(attention: Any, picture: Any, grid: tuple[int, int] | None, prefix: Sequence[str] | None) -> _Parts:
    if not (isinstance(attention, list | tuple) or hasattr(attention, "__array__")):
        raise UserError(
            f"A {type(attention).__name__} cannot be shown: give a checkpoint, its name, a model, or attention tensors."
        )
    recorded = record_of_attention(attention, grid, prefix)
    rows, cols = recorded.grid
    image = Image.new("RGB", (16 * cols, 16 * rows), _GREY) if picture is None else picture_of(picture)
    before = f" after {', '.join(recorded.prefix)}" if recorded.prefix else ""
    facts = [f"{rows} × {cols} patches{before}, laid over the whole picture."]
    return _Parts(MapSource(recorded), image, Box(0, 0, *image.size), "Attention", facts)


def _kind_of(method: str, record: AttentionRecord) -> ViewKind:
    """Return the viewer's kind of view for a method."""
    if method in METHODS and METHODS[method].of_class:
        return "relevance"
    kinds = ["attention", "rollout"]
    kinds += ["similar"] if record.features is not None else []
    kinds += ["pool"] if record.pool_attention is not None else []
    if method in kinds:
        return cast(ViewKind, method)
    of_class = [name for name, one in METHODS.items() if one.of_class]
    raise UserError(f"There is no method {method!r} here. Choose from {', '.join((*kinds, *of_class))}.")


def _pinned(query: str | int | tuple[int, int] | None, source: MapSource) -> dict[str, Any]:
    """Return the fields of a selection that pin a query token, or unpin it for None."""
    prefix = source.record.prefix
    if query is None:
        return {"token": prefix.index("cls") if "cls" in prefix else 0, "pinned": False}
    return {"token": find_token(query, source.record), "pinned": True}


def _index(what: str, value: int | Fusion, count: int) -> int | Fusion:
    """Validate a block or head: an index, returned from 0, or how to fuse all of them."""
    if isinstance(value, str):
        return cast(Fusion, _checked(what, value, get_args(Fusion)))
    try:
        return checked_index(what, value, count)
    except ValueError as error:
        raise UserError(str(error)) from None


def _checked(what: str, value: str, choices: tuple[str, ...]) -> Any:
    if value not in choices:
        raise UserError(f"There is no {what} {value!r}. Choose from {', '.join(choices)}.")
    return value


def _dereferenced(reference: "weakref.ref[View]") -> View:
    view = reference()
    assert view is not None, "the link is closed before the view is deleted"
    return view
