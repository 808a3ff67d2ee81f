"""Models as plain sequences of layers, laid out in one flat vector whose prefix is the client's half."""

from splitrelay.models.architectures import MODELS, blueprint
from splitrelay.models.layout import Layout, Slot, lay_out
from splitrelay.models.model_spec import Blueprint, cut_index
from splitrelay.models.submodel import Stretch

__all__ = ["MODELS", "Blueprint", "Layout", "Slot", "Stretch", "blueprint", "cut_index", "lay_out"]
