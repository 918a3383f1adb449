"""Engines that compute runs: this machine, and the clusters that an administrator has configured.

`contract` is the interface of every engine, `clusters` reads the configuration, `watch` caches each engine's last
response.
"""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
