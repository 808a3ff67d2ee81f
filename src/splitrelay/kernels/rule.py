"""Which engine `auto` means: a static rule on layer shapes, so that every host that reads a spec finds the same."""

from __future__ import annotations

from splitrelay.kernels.buffer_layout import pool_behind
from splitrelay.kernels.network_plan import Conv2d, Plan

WIDE = 32 * 64  # inputs times outputs of a convolution


def better_elsewhere(plan: Plan) -> str | None:
    """The layer for whose sake torch is faster: a wide convolution without a pool, whose gradients are all needed."""
    for j, layer in enumerate(plan.layers):
        if isinstance(layer, Conv2d) and plan.shapes[j][0] * layer.outputs >= WIDE and pool_behind(plan, j) is None:
            wide = f"{plan.shapes[j][0]} to {layer.outputs} channels"
            return f"layer '{layer.name}' (Conv2d, {wide}, no pool behind it) is faster in torch"
    return None
