"""Define the names of algorithms, data sets, partitions and keys in tables, figures and reports, and their order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitrelay.runs.spec import KEYS, PartitionSpec, Spec

ALGORITHMS = {
    "fedavg": "FedAvg",  # the paper's tables have it first
    "ssl": "SSL",
    "splitfed-v1": "SplitFed V1",  # FedAvg over a cut
    "splitfed-v2": "SplitFed V2",
    "splitfed-v3": "SplitFed V3",
    "sflg": "SFLG",
    "scaffold": "SCAFFOLD",
    "fedprox": "FedProx",
    "fedavgm": "FedAvgM",
    "fedadam": "FedAdam",
    "fedseq": "FedSeq",
    "minibatch-sgd": "minibatch SGD",
    "random-reshuffling": "random reshuffling",
}
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
PLAIN = {key.path: key.name for key in KEYS.values()}


def get_algorithm_label(name: str) -> str:
    """Return the name as its authors write it."""
    return ALGORITHMS.get(name, name)


def is_splitfed_v1(spec: Spec) -> bool:
    """Return whether a run is FedAvg over a cut. It has the accuracies of FedAvg, but other traffic."""
    return spec.algorithm == "fedavg" and spec.placement == "cut"


def get_run_label(spec: Spec) -> str:
    """Return the name of the algorithm of a run. FedAvg over a cut is SplitFed V1."""
    return get_algorithm_label("splitfed-v1" if is_splitfed_v1(spec) else spec.algorithm)


def get_data_label(name: str) -> str:
    """Return the proper name of a data set, or the file name of a user's data set."""
    return DATA.get(name) or Path(name).stem or name


def get_partition_label(part: PartitionSpec) -> str:
    """Return the partition scheme and its parameters, without the form of ExDir and the seed."""
    laws = {
        "exdir": f"ExDir({part.C}, {part.alpha:g})",
        "dirichlet": f"Dirichlet({part.alpha:g})",
        "pathological": f"{part.C} classes a client",
    }
    return laws.get(part.kind, part.kind)


def get_setting_label(spec: Spec) -> str:
    """Return the setting: cross-device (some of many clients per round) or cross-silo (all of a few)."""
    M, S = spec.partition.M, spec.S
    return f"cross-silo, M={M}" if S is None or S == M else f"cross-device, M={M}, S={S}"


def describe_setting(spec: Spec) -> str:
    """Return a short description of a setting, for notes."""
    where = f"{get_data_label(spec.data.name)} {get_partition_label(spec.partition)}"
    step = spec.optimiser
    norm = "" if step.clip is None else f", clip {step.clip:g}"
    return f"{get_algorithm_label(spec.algorithm)} on {where}, M={spec.partition.M}, K={spec.K}, η={step.eta:g}{norm}"


def get_key_label(key: str) -> str:
    """Return the short name of a dotted key, if there is one."""
    return PLAIN.get(key, key)


def format_value_label(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return ("+" if isinstance(value[0], int) else ",").join(map(str, value)) if value else "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def find_place(names: dict[str, str], name: str) -> tuple[int, str]:
    """Return a sort key: known names in their order, then the others by name."""
    return (list(names).index(name) if name in names else len(names)), name
