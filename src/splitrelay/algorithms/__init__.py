"""The algorithms of the paper and related algorithms, written like pseudo-code.

An algorithm defines in which order the clients train and how the results are combined. It does not know whether the
model is cut, how a half is sent, or what x is: floats, Fractions, arrays and networks use the same code.
"""

from splitrelay.algorithms.base import (
    Algorithm,
    AlgorithmSettings,
    Clients,
    Cost,
    Cut,
    Done,
    LocalSteps,
    Memory,
    Outcome,
    Skipped,
    Step,
    UpdateRule,
    Visit,
)
from splitrelay.algorithms.fedavg import FedAvg
from splitrelay.algorithms.fedprox import FedProx
from splitrelay.algorithms.fedseq import FedSeq
from splitrelay.algorithms.iterate_averaging import Averaged, AveragedState
from splitrelay.algorithms.minibatch import MinibatchSGD
from splitrelay.algorithms.optimiser_memory import Remembered, RememberedState
from splitrelay.algorithms.scaffold import Scaffold, ScaffoldState
from splitrelay.algorithms.sequential import SSL, RandomReshuffling
from splitrelay.algorithms.server_optimisers import FedAdam, FedAdamState, FedAvgM, FedAvgMState
from splitrelay.algorithms.splitfed import SFLG, SplitFedV2, SplitFedV3, SplitFedV3State

__all__ = [
    "SFLG",
    "SSL",
    "Algorithm",
    "AlgorithmSettings",
    "Averaged",
    "AveragedState",
    "Clients",
    "Cost",
    "Cut",
    "Done",
    "FedAdam",
    "FedAdamState",
    "FedAvg",
    "FedAvgM",
    "FedAvgMState",
    "FedProx",
    "FedSeq",
    "LocalSteps",
    "Memory",
    "MinibatchSGD",
    "Outcome",
    "RandomReshuffling",
    "Remembered",
    "RememberedState",
    "Scaffold",
    "ScaffoldState",
    "Skipped",
    "SplitFedV2",
    "SplitFedV3",
    "SplitFedV3State",
    "Step",
    "UpdateRule",
    "Visit",
]
