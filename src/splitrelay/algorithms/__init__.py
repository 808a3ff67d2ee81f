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
    Outcome,
    Skipped,
    Step,
    Visit,
)
from splitrelay.algorithms.fedavg import FedAvg
from splitrelay.algorithms.fedseq import FedSeq
from splitrelay.algorithms.iterate_averaging import Averaged, AveragedState
from splitrelay.algorithms.minibatch import MinibatchSGD
from splitrelay.algorithms.scaffold import Scaffold, ScaffoldState
from splitrelay.algorithms.sequential import SSL, RandomReshuffling
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
    "FedAvg",
    "FedSeq",
    "LocalSteps",
    "MinibatchSGD",
    "Outcome",
    "RandomReshuffling",
    "Scaffold",
    "ScaffoldState",
    "Skipped",
    "SplitFedV2",
    "SplitFedV3",
    "SplitFedV3State",
    "Step",
    "Visit",
]
