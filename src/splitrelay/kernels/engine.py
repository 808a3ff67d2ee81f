"""The two placements of the fast engine. `auto` chooses it by a rule on the shapes of the layers."""

from __future__ import annotations

import numpy as np

from splitrelay.algorithms.base import Done, Visit
from splitrelay.engine.base import (
    ByteCountingHalf,
    LocalServerHalf,
    check_finite,
    check_joint_clip,
    compute_mean_loss,
    get_whole_cost,
    split_visit,
    train_client_half,
)
from splitrelay.kernels.batches import DrawVisit, Images, Table
from splitrelay.kernels.buffer_layout import find_pool
from splitrelay.kernels.ctypes_structs import Floats
from splitrelay.kernels.local_steps import KernelClientHalf, KernelServerLayers, LocalTraining, train_whole
from splitrelay.kernels.network_plan import Conv2d, Plan
from splitrelay.kernels.workspace import Workspace, ensure_workspace

WIDE = 32 * 64  # inputs times outputs of a convolution


class WholeEngine:
    """Placement `whole`: the whole model is at the client."""

    def __init__(self, plan: Plan, images: Images, draw: DrawVisit, seed: int) -> None:
        self.plan, self.table, self.draw, self.seed = plan, Table(images, plan), draw, seed
        self.work: Workspace | None = None

    def run(self, visit: Visit[Floats], /) -> Done[Floats]:
        """Take K local steps. The model travels to the client and back."""
        check_joint_clip(visit.step)
        draw = self.draw(visit)
        self.work = ensure_workspace(self.work, self.plan, 0, len(self.plan.layers), max(draw.sizes))
        losses, x, is_finite = train_whole(LocalTraining(self.work, visit, self.seed), self.table, draw)
        cost = get_whole_cost(visit, compute_mean_loss(losses, visit))
        check_finite(is_finite, visit)
        return Done(x, cost)


class SplitEngine:
    """Placement `cut`: the model is cut after `cut` layers, and both halves are in this process."""

    def __init__(self, plan: Plan, images: Images, draw: DrawVisit, seed: int, cut: int) -> None:
        self.plan, self.table, self.draw, self.seed, self.cut = plan, Table(images, plan), draw, seed, cut
        self.boundary = plan.ends[cut]
        self.bottom: Workspace | None = None
        self.top: Workspace | None = None

    def run(self, visit: Visit[Floats], /) -> Done[Floats]:
        """Take K local steps. The traffic is the client half to the client and back, and two messages for each step."""
        draw, (client_visit, server_visit) = self.draw(visit), split_visit(visit, self.boundary)
        batch = max(draw.sizes)
        self.bottom = ensure_workspace(self.bottom, self.plan, 0, self.cut, batch)
        self.top = ensure_workspace(self.top, self.plan, self.cut, len(self.plan.layers), batch, input_gradient=True)
        layers = KernelServerLayers(LocalTraining(self.top, server_visit, self.seed))
        server = ByteCountingHalf(LocalServerHalf(layers))
        client = KernelClientHalf(LocalTraining(self.bottom, client_visit, self.seed), self.table, draw)
        loss = compute_mean_loss(train_client_half(client, server, len(draw.sizes)), visit)
        (bottom, is_bottom_finite), (top, is_top_finite) = self.bottom.save(), self.top.save()
        check_finite(is_bottom_finite and is_top_finite, visit)
        return Done(np.concatenate([bottom, top]), server.get_cost(client_visit, loss))


def find_layer_for_torch(plan: Plan) -> str | None:
    """Name a layer that makes torch faster than the kernels, or return None.

    It is a wide convolution without a pool behind it, because all its gradients are needed. The rule uses nothing but
    the plan, so every host that reads a spec chooses the same engine.
    """
    for j, layer in enumerate(plan.layers):
        if isinstance(layer, Conv2d) and plan.shapes[j][0] * layer.outputs >= WIDE and find_pool(plan, j) is None:
            wide = f"{plan.shapes[j][0]} to {layer.outputs} channels"
            return f"layer '{layer.name}' (Conv2d, {wide}, no pool behind it) is faster in torch"
    return None
