"""Splitrelay: sequential split learning, from its theory to its runs.

    import splitrelay as sr

    run = sr.fit(net, X, y, clients=ward, cut="layers.0", algorithm="ssl", K=5, eta=0.05, R=50)

The names below are the public interface. They are imported when they are first used: `import splitrelay` is fast and
does not import torch.
"""

TYPE_CHECKING = False  # type checkers take it for true; an import of typing would double the time of this module
__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from splitrelay import runs as runs
    from splitrelay import theory as theory
    from splitrelay.algorithms import (
        SFLG as SFLG,
    )
    from splitrelay.algorithms import (
        SSL as SSL,
    )
    from splitrelay.algorithms import (
        Done as Done,
    )
    from splitrelay.algorithms import (
        FedAvg as FedAvg,
    )
    from splitrelay.algorithms import (
        FedSeq as FedSeq,
    )
    from splitrelay.algorithms import (
        MinibatchSGD as MinibatchSGD,
    )
    from splitrelay.algorithms import (
        RandomReshuffling as RandomReshuffling,
    )
    from splitrelay.algorithms import (
        Scaffold as Scaffold,
    )
    from splitrelay.algorithms import (
        Skipped as Skipped,
    )
    from splitrelay.algorithms import (
        SplitFedV2 as SplitFedV2,
    )
    from splitrelay.algorithms import (
        SplitFedV3 as SplitFedV3,
    )
    from splitrelay.algorithms import (
        Step as Step,
    )
    from splitrelay.algorithms import (
        Visit as Visit,
    )
    from splitrelay.api.estimators import SplitClassifier as SplitClassifier
    from splitrelay.api.estimators import SplitRegressor as SplitRegressor
    from splitrelay.api.fit import fit as fit
    from splitrelay.api.partitions import (
        IID as IID,
    )
    from splitrelay.api.partitions import (
        Dirichlet as Dirichlet,
    )
    from splitrelay.api.partitions import (
        ExDir as ExDir,
    )
    from splitrelay.api.partitions import (
        Pathological as Pathological,
    )
    from splitrelay.api.partitions import (
        Shards as Shards,
    )
    from splitrelay.api.runs import Run as Run
    from splitrelay.api.runs import RunCollection as RunCollection
    from splitrelay.api.task import SplitTask as SplitTask
    from splitrelay.data.partition import Partition as Partition
    from splitrelay.errors import (
        Diverged as Diverged,
    )
    from splitrelay.errors import (
        InputError as InputError,
    )
    from splitrelay.errors import (
        SplitrelayError as SplitrelayError,
    )
    from splitrelay.models import Stages as Stages
    from splitrelay.participation import (
        Consumed as Consumed,
    )
    from splitrelay.participation import (
        Fixed as Fixed,
    )
    from splitrelay.participation import (
        Permutation as Permutation,
    )
    from splitrelay.participation import (
        Sampled as Sampled,
    )
    from splitrelay.participation import (
        WithReplacement as WithReplacement,
    )
    from splitrelay.runs.spec import Spec as Spec
    from splitrelay.runs.spec import load_spec as load_spec
    from splitrelay.runs.spec import make_spec as make_spec
    from splitrelay.testing import Golden as Golden
    from splitrelay.testing import check_algorithm as check_algorithm
    from splitrelay.training import resume as resume
    from splitrelay.training import train as train
    from splitrelay.vectors import mean as mean

_HOMES = {  # module: its public names
    "splitrelay.algorithms": (
        "SSL", "FedAvg", "SplitFedV2", "SplitFedV3", "SFLG", "Scaffold", "FedSeq", "MinibatchSGD", "RandomReshuffling",
        "Step", "Visit", "Done", "Skipped",
    ),
    "splitrelay.api.estimators": ("SplitClassifier", "SplitRegressor"),
    "splitrelay.api.fit": ("fit",),
    "splitrelay.api.partitions": ("ExDir", "IID", "Dirichlet", "Pathological", "Shards"),
    "splitrelay.api.runs": ("Run", "RunCollection"),
    "splitrelay.api.task": ("SplitTask",),
    "splitrelay.data.partition": ("Partition",),
    "splitrelay.errors": ("SplitrelayError", "InputError", "Diverged"),
    "splitrelay.models": ("Stages",),
    "splitrelay.participation": ("Permutation", "Sampled", "Consumed", "Fixed", "WithReplacement"),
    "splitrelay.runs.spec": ("Spec", "load_spec", "make_spec"),
    "splitrelay.testing": ("check_algorithm", "Golden"),
    "splitrelay.training": ("train", "resume"),
    "splitrelay.vectors": ("mean",),
}  # fmt: skip
_PACKAGES = ("runs", "theory")
_EXTRAS = {"torch": "learn", "safetensors": "learn", "sklearn": "learn"}  # package: the extra that installs it
_NAMES = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", *_PACKAGES, *_NAMES]


def __getattr__(name: str) -> "Any":
    """Import a public name when it is first used."""
    from importlib import import_module  # noqa: PLC0415 - it takes longer than the rest of this module

    if name in _PACKAGES:
        return import_module(f"splitrelay.{name}")
    if name not in _NAMES:
        raise AttributeError(f"module 'splitrelay' has no attribute '{name}'")
    try:
        value = getattr(import_module(_NAMES[name]), name)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get(error.name or "")
        if extra is None:
            raise
        hint = f"pip install 'splitrelay[{extra}]'"
        raise ModuleNotFoundError(f"splitrelay.{name} needs {error.name}: {hint}", name=error.name) from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
