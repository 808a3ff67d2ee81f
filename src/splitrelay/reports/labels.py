"""How tables, figures and reports call things: algorithms, data sets, partitions, keys, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from splitrelay.runs.spec import KEYS, PartitionSpec, Spec

ALGORITHMS = {
    "fedavg": "FedAvg",  # the paper's tables have it first
    "ssl": "SSL",
    "splitfed-v2": "SplitFed V2",
    "splitfed-v3": "SplitFed V3",
    "sflg": "SFLG",
    "scaffold": "SCAFFOLD",
    "fedseq": "FedSeq",
    "minibatch-sgd": "minibatch SGD",
    "random-reshuffling": "random reshuffling",
}
DATA = {"mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10": "CIFAR-10", "digits": "digits"}
PLAIN = {key.path: key.name for key in KEYS.values()}


def get_algorithm_label(name: str) -> str:
    """As its authors write it."""
    return ALGORITHMS.get(name, name)


def get_data_label(name: str) -> str:
    """A set by its proper name; one's own by its file's."""
    return DATA.get(name) or Path(name).stem or name


def get_partition_label(part: PartitionSpec) -> str:
    """The law and its numbers; the form of ExDir and the seed are said elsewhere."""
    laws = {
        "exdir": f"ExDir({part.C}, {part.alpha:g})",
        "dirichlet": f"Dirichlet({part.alpha:g})",
        "pathological": f"{part.C} classes a client",
    }
    return laws.get(part.kind, part.kind)


def get_setting_label(spec: Spec) -> str:
    """The paper's two settings: some of many clients in a round, or all of a few."""
    M, S = spec.partition.M, spec.S
    return f"cross-silo, M={M}" if S is None or S == M else f"cross-device, M={M}, S={S}"


def setting_words(spec: Spec) -> str:
    """A setting in a few words, for notes."""
    where = f"{get_data_label(spec.data.name)} {get_partition_label(spec.partition)}"
    step = spec.optimiser
    norm = "" if step.clip is None else f", clip {step.clip:g}"
    return f"{get_algorithm_label(spec.algorithm)} on {where}, M={spec.partition.M}, K={spec.K}, η={step.eta:g}{norm}"


def get_key_label(key: str) -> str:
    """The plain word for a dotted key, where there is one."""
    return PLAIN.get(key, key)


def format_value_label(value: Any) -> str:
    """A value as one would type it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def find_place(names: dict[str, str], name: str) -> tuple[int, str]:
    """A key for sorting: the known ones in their order, the others after them by name."""
    return (list(names).index(name) if name in names else len(names)), name
