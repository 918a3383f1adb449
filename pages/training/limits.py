"""Limits of this server for runs."""

from pages.server import access
from vit.training.runs.launch_checks import Limits


def limits() -> Limits:
    """Return the configured limits for the visitor's runs."""
    return Limits(access.runs_per_person(), access.free_bytes())
