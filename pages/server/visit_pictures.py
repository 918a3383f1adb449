"""Pictures that visitors of a public place uploaded: in memory, each for the visit that brought it alone."""

import threading
from collections import OrderedDict

from pages.server import public
from pages.streamlit_internals.sessions import current_id
from vit.images import video as videos


class VisitPictures:
    """Contents by the visit and by what they are called in links; for any thread.

    Args:
        most: [bytes] of all of them; the longest unused ones go first.
    """

    def __init__(self, most: int):
        self.most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, key: str, content: bytes) -> bool:
        """Remember a content for this visit; whether there is room for it."""
        if len(content) > self.most:
            return False
        with self._lock:
            self._kept[current_id(), key] = content
            self._kept.move_to_end((current_id(), key))
            while sum(map(len, self._kept.values())) > self.most:
                _forget_frames(self._kept.popitem(last=False)[1])
        return True

    def find(self, key: str) -> bytes | None:
        """What this visit brought under that key."""
        with self._lock:
            if (current_id(), key) in self._kept:
                self._kept.move_to_end((current_id(), key))
            return self._kept.get((current_id(), key))

    def stay(self, visits: set[str]) -> None:
        """Forget what others brought than those that are still here."""
        with self._lock:
            for owner, key in [one for one in self._kept if one[0] not in visits]:
                _forget_frames(self._kept.pop((owner, key)))


def _forget_frames(content: bytes) -> None:
    if videos.is_video(content):
        videos.forget(content)


PICTURES = VisitPictures(public.UPLOADS * public.MB)
