"""The spec of a run: every setting that decides its numbers, from a TOML file or from key=value settings.

The fields of `Spec` are the only list of keys. The command line's keys, the template of `splitrelay new`, the JSON
schema and the table in docs/experiments.md are generated from them.

Rule for new keys: a new key with its default value does not change the hash of a spec. Runs that were made before the
key existed keep their names. `Spec.identity` therefore leaves out every key that is not in `ORIGINAL_KEYS` and has its
default value.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo

from splitrelay.errors import InputError, OutOfRange, UnknownName
from splitrelay.runs.packed_records import read_record
from splitrelay.runs.presets import PRESET_KEYS, expand_presets
from splitrelay.structured_text import parse_toml

MAX_NORM = 10.0  # the paper's largest gradient norm
SEEDS = (1234, 666, 22)  # default seeds of studies: the paper's; the first is the default of `seed`
PASSES_ON = ("ssl", "random-reshuffling")  # algorithms that hand x to the next client and never average it
# algorithms whose clients have the whole model by definition
WHOLE_AT_CLIENTS = ("fedavg", "fedprox", "fedavgm", "fedadam", "scaffold", "fedseq")
TEMPLATE_WIDTH = 34  # columns before a comment in the template of a spec
# fmt: off
ORIGINAL_KEYS = frozenset((  # keys that are always part of the hash; do not add new keys
    "algorithm", "placement", "route", "order", "S", "K", "tau", "R", "gamma", "weighted", "G", "engine", "seed",
    "every", "evaluator", "data.name", "data.augment", "data.validation", "partition.kind", "partition.M",
    "partition.C", "partition.alpha", "partition.form", "partition.seed", "model.name", "model.cut", "model.init",
    "model.loss", "model.dtype", "optimiser.eta", "optimiser.weight_decay", "optimiser.clip", "optimiser.per_half",
    "optimiser.momentum", "optimiser.batch", "optimiser.draw",
))
# fmt: on
LocalStepsList = tuple[Annotated[int, Field(ge=1)], ...]
_STEPS = TypeAdapter(LocalStepsList)
STEPS = "R is the number of rounds, K the number of local steps per visit, or with tau=epochs of local epochs."
CLIENTS = "The number of clients is M (S of them per round)."
OPTIMISER = "The key is optimiser: sgd, adam, adamw or adagrad. See also eta, momentum, weight_decay and clip."
COMMON_WORDS = {  # words of other programs, and the hint that leads to our key
    "lr": "The learning rate is eta.",
    "learning_rate": "The learning rate is eta.",
    "epochs": STEPS,
    "epoch": STEPS,
    "local_epochs": STEPS,
    "rounds": "The number of rounds is R.",
    "local_steps": "The number of local steps per visit is K.",
    "steps": "The number of local steps per visit is K.",
    "batch_size": "The number of images per step is batch.",
    "clients": CLIENTS,
    "num_clients": CLIENTS,
    "n_clients": CLIENTS,
    "classes": "The number of classes per client is C.",
    "dataset": "The data set is data.",
    "optimizer": OPTIMISER,
    "betas": "The keys are beta1 and beta2.",
    "eps": "The key is epsilon.",
    "device": "The device is not part of a spec. Use the option --device of splitrelay run.",
    "workers": "The number of workers is not part of a spec. Use the option --workers of splitrelay run.",
}


class Part(BaseModel):
    """Base of the sections of a spec: immutable, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")


def _split_names(value: Any) -> Any:
    """Return a list of names from text such as `a,b`. None means no names."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return () if value is None else value


Names = Annotated[tuple[str, ...], BeforeValidator(_split_names)]


class DataSpec(Part):
    """The samples, and how they are changed."""

    name: str = Field("digits", description="digits, mnist, fashion-mnist, cifar10, a path, or module:function")
    augment: bool = Field(True, description="crop and flip training images, for data sets that define it")
    validation: float = Field(
        0.0, ge=0, lt=1, description="share of each client's samples that is not trained on but evaluated"
    )
    label: Names = Field((), description="column of the labels; it makes a CSV or Parquet file a table of features")
    client: str | None = Field(None, description="column of a table that names the client of each row")
    test: str | float | None = Field(
        None, description="test set of a table or of arrays: a file, or the share of rows to hold out (default: 0.2)"
    )
    categorical: Names = Field((), description="columns of a table whose values are names, separated by commas")
    ignore: Names = Field((), description="columns of a table to leave out")
    missing: Literal["refuse", "mean", "median", "drop"] = Field(
        "refuse", description="missing values of a table: refuse, mean, median (of the training rows), or drop the row"
    )
    standardize: bool = Field(True, description="standardize the numbers of a table with the training rows")
    target: Literal["classes", "real", "multi-label", "tokens"] = Field(
        "classes", description="kind of the labels: classes, real, multi-label or tokens"
    )
    read_as: Literal["auto", "images", "samples"] = Field(
        "auto", description="samples: take the arrays of an .npz file as they are; auto: a table if label is set"
    )


class PartitionSpec(Part):
    """The samples of each client."""

    kind: str = Field(
        "exdir", description="exdir, iid, dirichlet, pathological, shards, column, file or module:function"
    )
    M: int = Field(10, ge=1, description="number of clients")
    C: int = Field(2, ge=1, description="classes per client, for exdir and pathological")
    alpha: float = Field(10.0, gt=0, description="parameter of the Dirichlet distribution")
    shards: int = Field(2, ge=1, description="pieces of the sorted set per client, for shards")
    form: Literal["paper", "balanced"] = Field("paper", description="variant of exdir: paper or balanced")
    seed: int | None = Field(None, ge=0, description="seed of the partition alone (default: seed)")


class ModelSpec(Part):
    """The model that is trained."""

    name: str = Field("lenet-small", description="a built-in model (see splitrelay model), or module:function")
    cut: str | int | None = Field(
        None, description="last layer of the client half, by name or number (default: the usual cut)"
    )
    init: str | None = Field(None, description="file of weights (.safetensors) to start from")
    loss: str = Field(
        "cross-entropy", description="cross-entropy, mse, squared-error, bce, token-cross-entropy, or module:function"
    )
    dtype: Literal["float32", "float64"] = Field("float32", description="float32 or float64")


class OptimiserSpec(Part):
    """One local step, and its batches."""

    kind: Literal["sgd", "adam", "adamw", "adagrad"] = Field("sgd", description="sgd, adam, adamw or adagrad")
    eta: float = Field(0.1, gt=0, le=1e30, description="learning rate")
    eta_server: float | None = Field(None, gt=0, le=1e30, description="learning rate of the server half (default: eta)")
    schedule: str = Field(
        "constant",
        description="learning rate of round r: constant, step, cosine, inverse-sqrt, or module:function of r",
    )
    warmup: int = Field(0, ge=0, description="rounds in which the learning rate rises to eta")
    period: int | None = Field(
        None, ge=1, description="rounds between two reductions (step), or until the end (cosine)"
    )
    factor: float = Field(0.1, gt=0, le=1, description="factor of each reduction, for schedule=step")
    weight_decay: float = Field(1e-4, ge=0, description="factor of x that is added to the gradient after clipping")
    clip: float | None = Field(
        None, gt=0, description="largest norm of the gradient, or per-half: 10 for each half (default: no clipping)"
    )
    per_half: bool = Field(False, description="clip each half by its own norm, as the authors' split code does")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd")
    nesterov: bool = Field(False, description="Nesterov's form of the momentum of sgd")
    beta1: float = Field(0.9, ge=0, lt=1, description="decay of the mean of the gradients, for adam and adamw")
    beta2: float = Field(0.999, ge=0, lt=1, description="decay of the mean of their squares, for adam and adamw")
    epsilon: float | None = Field(
        None, gt=0, description="term of the denominator (default: 1e-8 for adam and adamw, 1e-10 for adagrad)"
    )
    state: Literal["reset", "handed", "kept"] = Field(
        "reset",
        description="momentum and means after a visit: reset, handed (to the next client, with its half) or "
        "kept (by each client)",
    )
    batch: int = Field(20, ge=1, description="images per step")
    draw: Literal["passes", "replacement", "full"] = Field(
        "passes", description="how batches are drawn: passes, replacement or full"
    )
    drop_last: bool = Field(False, description="leave out the last batch of a pass if it is smaller than batch")

    @model_validator(mode="before")
    @classmethod
    def _expand_per_half(cls, content: Any) -> Any:
        """Replace clip=per-half by the paper's largest norm for each half."""
        if isinstance(content, dict) and content.get("clip") == "per-half":
            return {**content, "clip": MAX_NORM, "per_half": True}
        return content


class Spec(Part):
    """All settings of a run that decide its numbers. Directory, device and number of workers are not among them."""

    algorithm: str = Field(
        "ssl", description="ssl, fedavg, fedprox, splitfed-v2, splitfed-v3, sflg, scaffold, ..., or module:class"
    )
    placement: Literal["auto", "cut", "whole"] = Field(
        "auto",
        description="cut: model divided between client and server; whole: all at the client; "
        "auto: whole for scaffold, fedseq and fedavg with its variants, cut for all others",
    )
    route: Literal["centralized", "peer-to-peer"] = Field(
        "centralized", description="path of the client half: centralized (through the server) or peer-to-peer"
    )
    order: str = Field(
        "permutation",
        description="order of the clients: permutation, sampled, consumed, fixed, replacement, or module:class",
    )
    S: int | None = Field(None, ge=1, description="clients per round (default: all)")
    K: int = Field(5, ge=1, description="local steps per visit")
    tau: Literal["same", "proportional", "epochs"] | LocalStepsList = Field(
        "same",
        description="same: K steps for all; proportional: client m takes K n_m M / N steps, at least one; "
        "epochs: K passes over its samples; "
        "or the steps of each client: [3, 5, 2] in a file, tau=3+5+2 on the command line",
    )
    R: int = Field(20, ge=1, description="rounds; not part of the hash, so a finished run can be extended")
    gamma: float = Field(1.0, gt=0, description="global step size")
    weighted: bool = Field(False, description="FedAvg weights clients by their number of samples")
    G: int = Field(1, ge=1, description="groups of sflg and fedseq")
    prox: float = Field(0.1, gt=0, description="factor of the proximal term of fedprox")
    server_momentum: float = Field(0.9, ge=0, lt=1, description="momentum of fedavgm; beta1 of fedadam")
    server_beta2: float = Field(0.99, ge=0, lt=1, description="decay of the mean of squares of fedadam")
    server_epsilon: float = Field(1e-3, gt=0, description="term of the denominator of fedadam")
    engine: Literal["auto", "reference", "fast"] = Field(
        "auto", description="reference (torch), fast (compiled kernels for small networks), or auto"
    )
    threads: int = Field(
        1,
        ge=0,
        description="torch threads of the reference engine; 0: measured at the start of a run (1 in sweeps)",
    )
    seed: int = Field(SEEDS[0], ge=0, description="seed of all randomness")
    every: int = Field(1, ge=1, description="rounds between two evaluations")
    evaluator: int = Field(0, ge=0, description="the client that evaluates, if the route is peer-to-peer")
    metrics: Names = Field((), description="further metrics: auroc, auprc, f1, top5, mse, r2, ... or module:function")
    gradient_norm: bool = Field(False, description="record the norm of the gradient of F at every evaluation")
    output: Literal["last", "average"] = Field(
        "last", description="the model that is evaluated and saved: last, or average of the models of all rounds"
    )
    output_decay: float = Field(
        0.0, ge=0, lt=1, description="the average weights round r by (1 - output_decay)^-(r+1); 0: all equally"
    )
    data: DataSpec = DataSpec()
    partition: PartitionSpec = PartitionSpec()
    model: ModelSpec = ModelSpec()
    optimiser: OptimiserSpec = OptimiserSpec()

    @model_validator(mode="before")
    @classmethod
    def _choose_placement(cls, content: Any) -> Any:
        """Replace placement=auto by the placement that the algorithm is known for, so that a spec never holds auto.

        The hash therefore does not depend on whether the placement was written out or chosen.
        """
        if not isinstance(content, dict) or content.get("placement") not in (None, "auto"):
            return content
        algorithm = content.get("algorithm", cls.model_fields["algorithm"].default)
        return {**content, "placement": "whole" if algorithm in WHOLE_AT_CLIENTS else "cut"}

    @field_validator("tau", mode="before")
    @classmethod
    def _split_tau(cls, value: Any) -> Any:
        """Read the text 3+5+2 as a list. The separator is a plus sign because sweeps separate settings by commas."""
        if value in ("same", "proportional", "epochs"):
            return value
        steps = value.split("+") if isinstance(value, str) else value
        try:
            return _STEPS.validate_python(steps)
        except ValidationError:
            expected = "same, proportional, epochs, or a number of steps >= 1 for each client, for example 3+5+2"
            raise ValueError(expected) from None

    @model_validator(mode="after")
    def _check_combination(self) -> Spec:
        if not isinstance(self.tau, str) and len(self.tau) != self.partition.M and not self.has_open_clients:
            raise ValueError(f"tau has the steps of {len(self.tau)} clients, but M = {self.partition.M}")
        if self.S is not None and self.S > self.partition.M and not self.has_open_clients:
            raise ValueError(f"S = {self.S} clients per round is more than M = {self.partition.M} clients")
        if self.optimiser.per_half and (self.placement == "whole" or self.optimiser.clip is None):
            raise ValueError("per_half clips the halves of a cut model; it needs placement=cut and a value for clip")
        if self.evaluator >= self.partition.M and not self.has_open_clients:
            raise ValueError(f"evaluator = {self.evaluator} is not one of the M = {self.partition.M} clients")
        if self.route == "peer-to-peer":
            self._check_peer_to_peer()
        return self

    def _check_peer_to_peer(self) -> None:
        """Check the rules of route=peer-to-peer: the server never has the client halves, so it cannot combine them."""
        if self.algorithm not in PASSES_ON or self.gamma != 1:
            what = self.algorithm if self.algorithm not in PASSES_ON else f"gamma = {self.gamma:g}"
            why = "which the server does not have with route=peer-to-peer; use route=centralized"
            raise ValueError(f"{what} combines the client halves, {why}")
        if self.output == "average":
            raise ValueError(
                "output=average combines the client halves, which the server does not have with "
                "route=peer-to-peer; use route=centralized"
            )
        if self.placement == "whole":
            raise ValueError("route=peer-to-peer hands over the client half of a cut model; it needs placement=cut")

    @property
    def has_open_clients(self) -> bool:
        """Whether the data or a partition file decide the number of clients, and M has its default value.

        `runs.build.resolve_spec` then replaces M by this number.
        """
        is_default = PartitionSpec.model_fields["M"].default == self.partition.M
        return is_default and (self.data.client is not None or is_partition_file(self.partition.kind))

    @property
    def largest_K(self) -> int:
        """Return the largest number of local steps that a visit can have; with tau=epochs it depends on the samples."""
        if isinstance(self.tau, tuple):
            return max(self.tau)
        return self.K * self.partition.M if self.tau == "proportional" else self.K

    @property
    def mean_K(self) -> float:
        """Return the mean number of local steps of a visit, over all clients."""
        return sum(self.tau) / len(self.tau) if isinstance(self.tau, tuple) else self.K

    @property
    def identity(self) -> str:
        """Return the SHA-256 of all keys except R, in hexadecimal. It is the same for a run and its extension."""
        return _sha256(self._content_to_hash(without=("R",)))

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all keys, in hexadecimal."""
        return _sha256(self._content_to_hash())

    @property
    def hash(self) -> str:
        """Return the first 12 digits of the identity: the name of the run."""
        return self.identity[:12]

    def _content_to_hash(self, without: Sequence[str] = ()) -> dict[str, Any]:
        content = self.model_dump(exclude=set(without))
        for path, field in iterate_fields(type(self)):
            if path not in ORIGINAL_KEYS and self.get(path) == field.default:
                *sections, name = path.split(".")
                del reduce(dict.__getitem__, sections, content)[name]
        return content

    def get(self, path: str) -> Any:
        """Return the value of a key by its dotted name."""
        return reduce(getattr, path.split("."), self)

    def flatten(self) -> dict[str, Any]:
        """Return every key by its dotted name, with its value."""
        return {path: self.get(path) for path, _ in iterate_fields(type(self))}

    def to_toml(self) -> str:
        """Return the content of a TOML file with this spec. Keys without a value are omitted."""
        return tomli_w.dumps(self.model_dump(exclude_none=True)).removesuffix("\n")


def is_partition_file(kind: str) -> bool:
    """Return whether partition=KIND names a file instead of a scheme."""
    return kind.endswith((".npz", ".json", ".txt"))


def _sha256(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def iterate_fields(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, FieldInfo]]:
    """Yield (dotted name, field) for every key of a section and of the sections in it."""
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from iterate_fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


@dataclass(frozen=True)
class SpecKey:
    """One key as users write it on the left of the = sign."""

    name: str  # short name, for example eta
    path: str  # dotted name, for example optimiser.eta
    description: str
    default: Any = None
    number_type: type | None = None  # int or float if the key takes numbers, else None


def _make_keys() -> dict[str, SpecKey]:
    keys = {
        "preset": SpecKey("preset", "preset", "a group of settings by name, see splitrelay presets"),
        "protocol": SpecKey("protocol", "protocol", "paper or authors: their order, partition and weights"),
    }
    for path, field in iterate_fields(Spec):
        section, _, name = path.rpartition(".")
        if name in ("name", "kind"):
            name = section
        elif section and name in Spec.model_fields:
            name = path
        types = get_args(field.annotation) or (field.annotation,)
        number_type = next((kind for kind in (int, float) if kind in types and str not in types), None)
        keys[name] = SpecKey(name, path, field.description or "", field.default, number_type)
    return keys


KEYS = _make_keys()
PATHS = {key.path: key for key in KEYS.values()}


def get_key(name: str) -> SpecKey:
    """Return the key with this short or dotted name.

    Raises:
        UnknownName: There is no such key.
    """
    key = KEYS.get(name) or PATHS.get(name)
    if key is None:
        raise _make_unknown_key(name)
    return key


def _make_unknown_key(name: str) -> UnknownName:
    return UnknownName("key", name, KEYS, COMMON_WORDS.get(name.rpartition(".")[2].lower()))


def load_spec(file: Path | None = None, settings: Sequence[str] = ()) -> Spec:
    """Return the spec in a TOML file, or the default spec, with key=value settings on top.

    Example: `load_spec(Path("first.toml"), ["eta=0.03", "algorithm=fedavg"])`. The value `none` removes a key.

    Raises:
        InputError: The file cannot be read, a key is unknown, or a value is not possible.
    """
    content = {} if file is None else read_toml(file)
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals:
            raise InputError(f"'{setting}' is not of the form key=value", hint=f"Keys: {', '.join(KEYS)}.")
        _set_value(content, name, None if text == "none" else text)
    return parse_spec(content)


def make_spec(**settings: Any) -> Spec:
    """Return a spec with these settings, by the short names of the keys, and defaults for all others.

    Example: `make_spec(algorithm="fedavg", eta=0.3, M=20)`.

    Raises:
        InputError: A key is unknown, or a value is not possible.
    """
    content: dict[str, Any] = {}
    for name, value in settings.items():
        _set_value(content, name, value)
    return parse_spec(content)


def parse_spec(content: dict[str, Any]) -> Spec:
    """Return the spec with the content of a TOML file. Presets and protocols are expanded.

    Raises:
        InputError: A key is unknown, or a value is not possible.
    """
    try:
        return Spec.model_validate(expand_presets(content))
    except ValidationError as error:
        raise _make_input_error(error) from None


def read_toml(file: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        InputError: The file cannot be read or is not TOML.
    """
    try:
        return parse_toml(read_record(file).decode())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        value = (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]
        hint = "splitrelay new NAME writes a spec to start with."
        raise InputError(f"cannot read the spec {file}", value=value, hint=hint) from None


def _set_value(content: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = get_key(name).path.split(".")
    for section in sections:
        content = content.setdefault(section, {})
    content[last] = value


def _make_input_error(error: ValidationError) -> InputError:
    first = error.errors()[0]
    path = ".".join(str(step) for step in first["loc"] if step not in ("str", "int"))  # parts of a union type
    key = path.split(".")[-1]
    if first["type"] == "extra_forbidden":
        return _make_unknown_key(path)
    if not path:  # a combination of keys
        return InputError(first["msg"].removeprefix("Value error, "))
    bounds: dict[str, Any] = first.get("ctx", {})
    for bound, sign in (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<=")):
        if bound in bounds:
            limit = f"{key} {sign} {bounds[bound]:g}"
            return OutOfRange(f"{key} is out of range", limit=limit, value=first["input"])
    types = {"int_parsing": "a whole number", "float_parsing": "a number", "bool_parsing": "true or false"}
    limit = types.get(first["type"]) or str(bounds.get("expected", first["msg"].removeprefix("Value error, ")))
    return InputError(f"{key} has a wrong value", limit=limit, value=repr(first["input"]))


def format_template(name: str) -> str:
    """Return a commented TOML file with every key and its default value. It runs in seconds."""
    head = (
        f"# {name}: the spec of a training run. It decides all numbers of the run.",
        f"#   splitrelay run {name}.toml                    train, or continue a run that was stopped",
        f"#   splitrelay run {name}.toml algorithm=fedavg   override settings of this file",
        f"#   splitrelay sweep {name}.toml eta=.03,.1,.3 seed=1,2,3",
        "# A key in a comment has no value by default.",
        "",
    )
    return "\n".join((*head, *_format_section(Spec), ""))


def _format_section(section: type[BaseModel], title: str = "") -> Iterator[str]:
    if title:
        yield f"\n[{title}]  # {(section.__doc__ or '').rstrip('.').lower()}"
    inner = []
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            inner.append((name, field.annotation))
        else:
            setting = f"# {name} =" if field.default is None else f"{name} = {json.dumps(field.default)}"
            yield f"{setting:<{TEMPLATE_WIDTH}} # {field.description}"
    for name, kind in inner:
        yield from _format_section(kind, name)


def build_schema() -> dict[str, Any]:
    """Return the JSON schema of a spec, for editors that check and complete TOML files."""
    schema = Spec.model_json_schema()
    for name in PRESET_KEYS:
        schema["properties"][name] = {"type": "string", "description": KEYS[name].description}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "Splitrelay spec"}
