"""Datasets for training and evaluation: named ones, folders, uploaded archives, generated shapes."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
