"""The controls of a page, whose keys begin with their names."""

from collections.abc import Iterable
from typing import Any

from pages.shared.page_links import PageLink


def control(some: Iterable[Any], name: str) -> Any:
    """The one of this name, whichever of that name it is by now."""
    return next(one for one in some if (one.key or "").split(" ")[0] == name)


def texts(link: PageLink) -> dict[str, str]:
    """What an address says, by name."""
    return {name: values[-1] for name, values in link.to_query().items()}
