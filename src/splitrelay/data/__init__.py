"""Data: sets known by name, one's own, how they come here, and what becomes of them on the way to a model."""

from splitrelay.data.augment import Augmentation, Crops
from splitrelay.data.images import DataSet, ImageSet
from splitrelay.data.loading import load
from splitrelay.data.own_sets import own
from splitrelay.data.saved import save

__all__ = ["Augmentation", "Crops", "DataSet", "ImageSet", "load", "own", "save"]
