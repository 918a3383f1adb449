"""Datasets for training and evaluation: named ones, folders, uploaded archives, generated shapes."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.data.datasets import Dataset, load_dataset
    from vit.data.import_archive import ImportedDataset, import_dataset

__all__, __getattr__ = names_of(__name__, __path__)
