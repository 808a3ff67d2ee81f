"""Models as plain sequences of layers, laid out in one flat vector whose prefix is the client's half."""

from splitrelay.models.blueprint import Blueprint, cut_index
from splitrelay.models.layout import Layout, Slot, lay_out
from splitrelay.models.stretch import Stretch
from splitrelay.models.zoo import MODELS, blueprint

__all__ = ["MODELS", "Blueprint", "Layout", "Slot", "Stretch", "blueprint", "cut_index", "lay_out"]
