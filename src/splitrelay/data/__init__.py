"""Data sets: known sets by name, data of the user, downloads, the cache, and partitions among clients."""

from splitrelay.data.augment import Augmentation, Crops
from splitrelay.data.cache import save
from splitrelay.data.datasets import load
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.data.partition import Partition, check_partition
from splitrelay.data.partition_io import load_partition, save_partition
from splitrelay.data.partition_schemes import draw_partition
from splitrelay.data.samples import SampleSet
from splitrelay.data.user_datasets import load_user_dataset
from splitrelay.data.user_samples import TableFormat, load_any, load_samples, load_table

__all__ = [
    "Augmentation",
    "Crops",
    "DataSet",
    "ImageSet",
    "Partition",
    "SampleSet",
    "TableFormat",
    "check_partition",
    "draw_partition",
    "load",
    "load_any",
    "load_partition",
    "load_samples",
    "load_table",
    "load_user_dataset",
    "save",
    "save_partition",
]
