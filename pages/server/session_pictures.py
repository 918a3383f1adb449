"""In-memory store of pictures that visitors of a public server upload; each is private to its visit."""

import threading
from collections import OrderedDict

from pages.server import public
from pages.streamlit_internals.sessions import current_id
from vit.images.files import video as videos


class VisitPictures:
    """A thread-safe LRU store of pictures by visit and key.

    Args:
        most: maximum total size [bytes].
    """

    def __init__(self, most: int):
        self.most = most
        self._lock = threading.Lock()
        self._pictures: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def keep(self, key: str, content: bytes) -> bool:
        """Store a picture for the current visit; return False if it is too large."""
        if len(content) > self.most:
            return False
        with self._lock:
            self._pictures[current_id(), key] = content
            self._pictures.move_to_end((current_id(), key))
            while sum(map(len, self._pictures.values())) > self.most:
                _forget_frames(self._pictures.popitem(last=False)[1])
        return True

    def find(self, key: str) -> bytes | None:
        """Return the current visit's picture of a key; None if there is none."""
        with self._lock:
            if (current_id(), key) in self._pictures:
                self._pictures.move_to_end((current_id(), key))
            return self._pictures.get((current_id(), key))

    def retain(self, visits: set[str]) -> None:
        """Delete the pictures of all other visits."""
        with self._lock:
            for visit, key in list(self._pictures):
                if visit not in visits:
                    _forget_frames(self._pictures.pop((visit, key)))


def _forget_frames(content: bytes) -> None:
    if videos.is_video(content):
        videos.forget(content)


PICTURES = VisitPictures(public.UPLOADS * public.MB)
