"""Divide models into layers, stored in one flat vector whose prefix is the client half."""

from splitrelay.models.layers import Stages
from splitrelay.models.layout import Layout, Slot, build_layout
from splitrelay.models.model_spec import ModelSpec, find_cut_index
from splitrelay.models.registry import MODELS, get_model_spec
from splitrelay.models.submodel import SubModel

__all__ = [
    "MODELS",
    "Layout",
    "ModelSpec",
    "Slot",
    "Stages",
    "SubModel",
    "build_layout",
    "find_cut_index",
    "get_model_spec",
]
