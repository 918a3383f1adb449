"""Engines that compute runs: this machine, and the clusters that an administrator has set up.

`contract` is what each of them answers, `clusters` what is set up, `watch` the last answer of each.
"""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__, {})
