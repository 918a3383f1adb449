"""What pages draw as plain HTML."""

from streamlit.testing.v1 import AppTest


def drawn(page: AppTest, kind: str) -> list[str]:
    """What is drawn as plain HTML with a mark of this class."""
    found = [one.proto.body for one in page.get("html")]
    return [body.rpartition("</style>")[2] for body in found if f'class="{kind}' in body]
