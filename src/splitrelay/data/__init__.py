"""Data: sets known by name, one's own, how they come here, and what becomes of them on the way to a model."""

from splitrelay.data.augment import Augmentation, Crops
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.data.loading import load
from splitrelay.data.partition import Partition, check_partition
from splitrelay.data.partition_io import load_partition, save_partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.data.saved import save
from splitrelay.data.user_datasets import own

__all__ = [
    "Augmentation",
    "Crops",
    "DataSet",
    "ImageSet",
    "Partition",
    "check_partition",
    "draw_partition",
    "load",
    "load_partition",
    "own",
    "save",
    "save_partition",
]
