"""Parts of pages drawn as plain HTML."""

from streamlit.testing.v1 import AppTest


def html_elements(page: AppTest, kind: str) -> list[str]:
    """Return the HTML elements with a mark of this class."""
    found = [one.proto.body for one in page.get("html")]
    return [body.rpartition("</style>")[2] for body in found if f'class="{kind}' in body]
