"""Training runs: start, list, queue, stop, resume. A run is a process and a folder, and the folder is the truth."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
