"""One module per format of files with many pictures; `vit.data.packed.index` finds them here.

Each has `SUFFIXES`, of its files, and `read(files)`, which yields their pictures, see `vit.data.packed.contract`. With
`ALONE = True` its files count only in folders without pictures and without files of other formats.
"""
