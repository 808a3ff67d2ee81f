"""The paper's algorithms and their relatives, as pseudo-code that runs.

An algorithm says who trains after whom and how results combine. It does not know whether the model is cut, how a
half travels, or what x is made of: numbers, Fractions, arrays and networks go through the same lines.
"""

from splitrelay.algorithms.base import Algorithm, Clients, Cost, Cut, Done, LocalSteps, Outcome, Skipped, Step, Visit
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
