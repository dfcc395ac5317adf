"""The study's data: where they come from, how `prepare` checks and splits them, and how stages read them."""

from pipeline.data.imagesets import ImageSet, load_images
from pipeline.data.tablesets import Table, load_table

__all__ = ["ImageSet", "Table", "load_images", "load_table"]
