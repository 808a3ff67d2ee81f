"""One spec: all that decides the numbers of a run, in one TOML file or as key=value words."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from splitrelay.errors import InputError, UnknownName
from splitrelay.runs.packed_records import read_record
from splitrelay.runs.presets import PRESET_KEYS, expand_presets
from splitrelay.structured_text import parse_toml

MAX_NORM = 10.0  # of the paper
SEEDS = (1234, 666, 22)  # default seeds of studies: the paper's; the first is the default of `seed`
PASSES_ON = ("ssl", "random-reshuffling")  # algorithms that hand x on and never average it


class Part(BaseModel):
    """A section: frozen, and nothing unknown in it."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSpec(Part):
    """Which images, and what is done to them."""

    name: str = Field("digits", description="a set by name, or the path of one's own")
    augment: bool = Field(True, description="crops and flips where the set has them")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's samples kept from training and scored"
    )


class PartitionSpec(Part):
    """Who holds what."""

    kind: str = Field("exdir", description="exdir iid dirichlet pathological shards")
    M: int = Field(10, ge=1, description="clients")
    C: int = Field(2, ge=1, description="classes a client, for exdir and pathological")
    alpha: float = Field(10.0, gt=0, description="of the Dirichlet law")
    form: Literal["paper", "balanced"] = Field("paper", description="of exdir")
    seed: int | None = Field(None, ge=0, description="of the partition alone; it follows the seed unless set")


class ModelSpec(Part):
    """What is trained."""

    name: str = Field("lenet-small", description="a model of the house, or module:function")
    cut: str | int | None = Field(None, description="last layer of the client's half; the usual one unless set")
    init: str | None = Field(None, description="a .safetensors file to start from")
    loss: str = Field("cross-entropy", description="cross-entropy, mse, or module:function")
    dtype: Literal["float32", "float64"] = Field("float32", description="float32 or float64")


class OptimiserSpec(Part):
    """One local step, and the batches it sees."""

    eta: float = Field(0.1, gt=0, le=1e30, description="learning rate")
    weight_decay: float = Field(1e-4, ge=0, description="added to the gradient after clipping")
    clip: float | None = Field(None, gt=0, description="largest norm of the whole model's gradient")
    per_half: bool = Field(False, description="clip each half by its own norm: another algorithm")
    momentum: float = Field(0.0, ge=0, lt=1, description="kept within a visit")
    batch: int = Field(20, ge=1, description="images a step")
    draw: Literal["passes", "replacement", "full"] = Field("passes", description="of batches: passes replacement full")

    @model_validator(mode="before")
    @classmethod
    def _by_halves(cls, content: Any) -> Any:
        """clip=per-half is short for the paper's max norm on each half by itself."""
        if isinstance(content, dict) and content.get("clip") == "per-half":
            return {**content, "clip": MAX_NORM, "per_half": True}
        return content


class Spec(Part):
    """A run, without where it is kept and on how many cores."""

    algorithm: str = Field("ssl", description="ssl fedavg splitfed-v2 splitfed-v3 sflg scaffold fedseq ...")
    placement: Literal["cut", "whole"] = Field("cut", description="cut in two, or whole at the client")
    route: Literal["centralized", "peer-to-peer"] = Field(
        "centralized", description="how the clients' half travels: centralized or peer-to-peer"
    )
    order: str = Field("permutation", description="permutation sampled consumed fixed replacement")
    S: int | None = Field(None, ge=1, description="clients a round; all of them unless set")
    K: int = Field(5, ge=1, description="local steps a visit")
    tau: Literal["same", "proportional"] = Field(
        "same", description="proportional: client m takes K n_m M / N steps, at least one"
    )
    R: int = Field(20, ge=1, description="rounds; not part of the run's name, so a finished run can be extended")
    gamma: float = Field(1.0, gt=0, description="global step")
    weighted: bool = Field(False, description="FedAvg weighs clients by their samples")
    G: int = Field(1, ge=1, description="groups of sflg and fedseq")
    engine: Literal["auto", "reference", "fast"] = Field(
        "auto", description="reference (torch), fast (kernels), or auto: written out before the run begins"
    )
    seed: int = Field(SEEDS[0], ge=0, description="root of all randomness")
    every: int = Field(1, ge=1, description="rounds between two looks at the test set")
    evaluator: int = Field(0, ge=0, description="the client that looks, where the route is peer-to-peer")
    data: DataSpec = DataSpec()
    partition: PartitionSpec = PartitionSpec()
    model: ModelSpec = ModelSpec()
    optimiser: OptimiserSpec = OptimiserSpec()

    @model_validator(mode="after")
    def _possible(self) -> Spec:
        if self.S is not None and self.S > self.partition.M:
            raise ValueError(f"S = {self.S} clients a round are more than M = {self.partition.M}")
        if self.optimiser.per_half and (self.placement == "whole" or self.optimiser.clip is None):
            raise ValueError("per_half clips the halves of a cut model: it needs placement=cut and a clip")
        if self.evaluator >= self.partition.M:
            raise ValueError(f"evaluator = {self.evaluator} is none of the M = {self.partition.M} clients")
        if self.route == "peer-to-peer":
            self._handed_on()
        return self

    def _handed_on(self) -> None:
        """Peer to peer, the server never holds the clients' halves: it can pass them on, and nothing else."""
        if self.placement == "whole":
            raise ValueError("peer-to-peer hands on the clients' half of a cut model: it needs placement=cut")
        if self.algorithm not in PASSES_ON or self.gamma != 1:
            what = self.algorithm if self.algorithm not in PASSES_ON else f"gamma = {self.gamma:g}"
            where = "which the server does not hold peer to peer; take route=centralized"
            raise ValueError(f"{what} combines the clients' halves, {where}")

    @property
    def identity(self) -> str:
        """The SHA-256 of all keys but R, so that a finished run can be extended; 64 hexadecimal digits."""
        return _sha256(self.model_dump(exclude={"R"}))

    @property
    def digest(self) -> str:
        """The SHA-256 of all keys; 64 hexadecimal digits."""
        return _sha256(self.model_dump())

    @property
    def hash(self) -> str:
        """The run's name: the beginning of its identity."""
        return self.identity[:12]

    def flat(self) -> dict[str, Any]:
        """Every key with its value, dotted."""
        return {name: reduce(getattr, name.split("."), self) for name in _dotted(Spec)}

    def toml(self) -> str:
        """The spec as a file that runs again."""
        return "\n".join(_toml(self.model_dump()))


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


# Plain words for what lies in a section.
SHORT = {
    "data": "data.name",
    "model": "model.name",
    "partition": "partition.kind",
    **{name: f"data.{name}" for name in ("augment", "validation")},
    **{name: f"partition.{name}" for name in ("M", "C", "alpha", "form")},
    **{name: f"model.{name}" for name in ("cut", "init", "loss", "dtype")},
    **{name: f"optimiser.{name}" for name in ("eta", "weight_decay", "clip", "per_half", "momentum", "batch", "draw")},
}


def spec_of(file: Path | None = None, words: Sequence[str] = ()) -> Spec:
    """A spec from a TOML file, or from nothing, with the given words on top; presets and protocols are written out."""
    content = {} if file is None else read_toml(file)
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InputError(f"'{word}' is not of the form key=value", hint=f"Keys: {', '.join(keys())}.")
        _set(content, name, None if text == "none" else text)
    return parse_spec(content)


def parse_spec(content: dict[str, Any]) -> Spec:
    """Return the spec in the content of a file; presets and protocols are written out."""
    try:
        return Spec.model_validate(expand_presets(content))
    except ValidationError as error:
        raise _one_line(error) from None


def keys() -> list[str]:
    """Every key that may stand left of the = sign."""
    return [*PRESET_KEYS, *SHORT, *(name for name in _dotted(Spec) if name not in SHORT.values())]


def _dotted(part: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in part.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _dotted(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _set(content: dict[str, Any], name: str, value: Any) -> None:
    known = {*PRESET_KEYS, *_dotted(Spec)}
    path = SHORT.get(name, name)
    if path not in known:
        raise UnknownName("key", name, keys())
    *sections, last = path.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    content[last] = value


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a spec's file."""
    try:
        return parse_toml(read_record(file).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        value = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        hint = "splitrelay run --print-spec writes one to begin with."
        raise InputError(f"cannot read the spec {file}", value=value, hint=hint) from None


def _one_line(error: ValidationError) -> InputError:
    first = error.errors()[0]
    where = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return UnknownName("key", where, keys())
    if not where:  # a combination that cannot be
        return InputError(first["msg"].removeprefix("Value error, "))
    return InputError(f"{where} is not possible", limit=_limit(first), value=repr(first["input"]))


def _limit(error: Any) -> str:
    """What would be allowed, in our words."""
    name, bounds = error["loc"][-1], error.get("ctx", {})
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    for key, sign in signs.items():
        if key in bounds:
            return f"{name} {sign} {bounds[key]:g}"
    kinds = {"int_parsing": "a whole number", "float_parsing": "a number", "bool_parsing": "true or false"}
    return kinds.get(error["type"]) or str(bounds.get("expected", error["msg"]))


def _toml(content: dict[str, Any], section: str = "") -> Iterator[str]:
    if section:
        yield f"\n[{section}]"
    for name, value in content.items():
        if not isinstance(value, dict) and value is not None:
            yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
    for name, value in content.items():
        if isinstance(value, dict):
            yield from _toml(value, f"{section}.{name}" if section else name)
