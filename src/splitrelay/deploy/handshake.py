"""The terms on which server and clients agree at the handshake: build them, write them, compare them.

The server fixes its terms with one 256-bit digest: the complete spec, the form of the images, the layers (fast engine)
or constants (reference engine) of a model that is not built in, and which parties read the clients' half. A client
joins only where this digest is the one that its operator has agreed to, or where its own copy of the spec is the same
in every key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from splitrelay.data.images import LEVELS, DataSet, ImageSet
from splitrelay.deploy.backend import get_backend
from splitrelay.deploy.sample_terms import IMAGE_PLACEHOLDER, check_target, describe_samples, read_sample_terms
from splitrelay.errors import InputError
from splitrelay.network.limits import Timeouts
from splitrelay.network.messages import Accept, Terms
from splitrelay.runs.code_hashes import compute_code, find_module_file, list_definitions
from splitrelay.runs.spec import Spec, parse_spec, read_toml
from splitrelay.structured_text import parse_toml

SPEC_LENGTH, LINE_LENGTH = 2**14, 2**12  # characters of a spec that a client parses, and of one line of it
LARGEST_INTEGER = 2**63 - 1  # in a spec from a server
FIXED = ("shape", "classes", "mean", "std", "peak", "pad", "flip", "plan", "sealed", "judged")  # beside the spec


def build_terms(
    spec: Spec,
    data: DataSet,
    heartbeat: float = Timeouts.heartbeat,
    sealed: bool = False,
    judged: bool = False,
    salt: bytes = b"",
    device: str = "cpu",
) -> Terms:
    """Return the terms of a spec: the spec itself, and how a pixel becomes a number. Its engine is written out."""
    train, augmentation, backend = data.train, data.augmentation, get_backend(spec.engine)
    images, samples = (train, None) if isinstance(train, ImageSet) else (None, describe_samples(train))
    own = ":" in spec.model.name  # the layers of built-in models come with the package
    inputs = train.shape if spec.engine == "fast" else train.inputs
    terms = Terms(
        spec=_write_spec(spec),
        spec_hash="",
        engine=spec.engine,
        cpu=backend.get_cpu_level(device),
        shape=images.shape if images else IMAGE_PLACEHOLDER,
        classes=train.classes,
        mean=images.mean if images else (),
        std=images.std if images else (),
        peak=images.peak if images else LEVELS - 1,
        pad=augmentation.pad if augmentation else 0,
        flip=augmentation.flip if augmentation else False,
        heartbeat=heartbeat,
        plan=backend.write_document(spec, inputs, train.outputs) if own else "",
        sealed=sealed,
        judged=judged,
        salt=salt,
        samples=samples.to_text() if samples else "",
    )
    return replace(terms, spec_hash=compute_digest(terms, spec))


def _write_spec(spec: Spec) -> str:
    """Return the spec as TOML, with a section [code] that has the hash of each module of the user that it names."""
    code = compute_code(spec)
    lines = [f"{json.dumps(name)} = {json.dumps(digest)}" for name, digest in sorted(code.items())]
    return "\n".join([spec.to_toml(), "", "[code]", *lines]) if code else spec.to_toml()


def read_code(text: str) -> dict[str, str]:
    """Return the hashes in the section [code] of a spec from a server; empty if it names no code of the user."""
    code = parse_toml(text).get("code", {})
    if not isinstance(code, dict):
        raise InputError("the section [code] of the server's spec is no table", value=str(code)[:60])
    return {str(name): str(digest) for name, digest in code.items()}


def check_named_files(code: Sequence[str], files: Sequence[Path]) -> None:
    """Raise InputError unless each `module:function` is in a file that the operator has named with --code.

    The end of the path is compared first, because a module is only found by importing the packages above it. A module
    of the same name may be imported already, or come first on the path. Therefore the file is compared as well. The
    function must be defined in the file: the server could otherwise name any function that the file imports.
    """
    for name in code:
        module = name.partition(":")[0]
        parts = tuple(module.split("."))
        named = [file for file in files if file.resolve().with_suffix("").parts[-len(parts) :] == parts]
        if not named:
            hint = "Give --code with your own copy of the code, or --spec, so that you say which code is run."
            raise InputError("the server's spec names code of its own", value=", ".join(code), hint=hint)
        found = find_module_file(module)
        if found is None or found not in [file.resolve() for file in named]:
            hint = "Give the file a name that no installed module has, on the server too."
            what = f"Python would import another file for the module {module}"
            raise InputError(what, value=found, limit=named[0], hint=hint)
        function = name.partition(":")[2]
        if function not in list_definitions(found):
            hint = "The server must not choose among what the file imports. Define the function in it, or give --spec."
            raise InputError(f"the server's spec names what {found} does not define", value=function, hint=hint)


def check_code(spec: Spec, terms: Terms) -> None:
    """Raise InputError unless this host has exactly the code of the user that the server has."""
    offered, own = read_code(terms.spec), compute_code(spec)
    different = sorted(name for name in offered.keys() | own.keys() if offered.get(name) != own.get(name))
    if different:
        value, limit = (_shorten({name: side.get(name, "none")[:12] for name in different}) for side in (own, offered))
        hint = "Nothing was sent. Get the server's file, read it, and name it with --code."
        what = "this host does not have the code that the server's spec names"
        raise InputError(what, value=value, limit=limit, hint=hint)


def compute_digest(terms: Terms, spec: Spec) -> str:
    """Return the digest of everything that the terms fix, 64 hexadecimal digits; `spec` is the spec in them."""
    content = {"spec": spec.model_dump(mode="json"), **{name: getattr(terms, name) for name in _list_fixed(terms)}}
    code = read_code(terms.spec)
    if code:
        content["code"] = code
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _list_fixed(terms: Terms) -> tuple[str, ...]:
    """Return the fields that the digest covers beside the spec. Terms of images have no field `samples`."""
    return (*FIXED, "samples") if terms.samples else FIXED


def write_terms(terms: Terms) -> str:
    """Return the terms as a TOML file: the spec with a section [terms], for clients to join with (--spec)."""
    fixed = _list_fixed(terms)
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in asdict(terms).items() if name in fixed
    ]
    return "\n".join([terms.spec, "", "[terms]", f'digest = "{terms.spec_hash}"', *lines, ""])


@dataclass(frozen=True)
class AgreedSpec:
    """A client's own copy of the spec, and of all terms where its file has them (see write_terms)."""

    spec: Spec
    terms: Mapping[str, Any] | None = None


def read_agreed_spec(file: Path) -> AgreedSpec:
    """Read the file given with join --spec: a spec, or the terms.toml that a server wrote."""
    content = read_toml(file)
    terms = content.pop("terms", None)
    content.pop("code", None)  # the client's own files are hashed, see check_code
    if terms is not None and (not isinstance(terms, dict) or not set(FIXED) <= set(terms)):
        hint = "Use terms.toml as the server wrote it, or remove the section [terms]."
        raise InputError(f"the section [terms] of {file} is not complete", limit=", ".join(FIXED), hint=hint)
    return AgreedSpec(parse_spec(content), terms)


def read_spec(terms: Terms) -> Spec:
    """Return the spec that the server sent, if it is the one that it names and if this host has its engine."""
    _check_length(terms.spec)
    try:
        content = parse_toml(terms.spec)
        content.pop("code", None)
        spec = Spec.model_validate(content)
    except (ValueError, RecursionError) as error:  # of TOML, of a number with too many digits, of the schema
        raise InputError("the server's spec cannot be read", value=str(error)[:200].splitlines()[0]) from None
    _check_numbers(spec)
    digest = compute_digest(terms, spec)
    if digest != terms.spec_hash or spec.engine != terms.engine:
        hint = "Ask the operator of the server: both sides need the same version of Splitrelay."
        what = "the server's terms do not have the digest that it names"
        raise InputError(what, value=digest, limit=terms.spec_hash, hint=hint)
    samples = read_sample_terms(terms)
    if samples is not None:
        check_target(spec, samples, terms.classes)
    if spec.engine not in ("reference", "fast"):
        raise InputError("the server's spec leaves the engine open", value=spec.engine)
    lacking = get_backend(spec.engine).find_obstacle()
    if lacking is not None:
        hint = "See splitrelay doctor; or have the run begun with engine=reference."
        raise InputError(f"this host lacks the engine {spec.engine}", value=lacking, hint=hint)
    return spec


def _check_length(text: str) -> None:
    """Raise InputError for a text that is too long to be parsed: dotted keys take the square of their length."""
    line = max(map(len, text.splitlines()), default=0)
    for what, value, limit in (("spec", len(text), SPEC_LENGTH), ("spec has a line that", line, LINE_LENGTH)):
        if value > limit:
            raise InputError(f"the server's {what} is too long", value=value, limit=f"<= {limit} characters")


def _check_numbers(spec: Spec) -> None:
    """Raise InputError for a whole number that no run needs: it may be too large to be converted to a float."""
    for name, value in spec.flatten().items():
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int) and number > LARGEST_INTEGER:
                raise InputError(f"{name} of the server's spec is too large", limit=f"<= {LARGEST_INTEGER}")


def check_agreed(agreed: AgreedSpec, offered: Spec, terms: Terms) -> None:
    """Raise InputError where the server's terms differ from the client's own copy in any key."""
    mine = agreed.spec
    if mine.engine == "auto":
        mine = mine.model_copy(update={"engine": offered.engine})  # both compute the same; the server chooses
    theirs, ours = dict(offered.flatten()), dict(mine.flatten())
    if agreed.terms is not None:
        names = _list_fixed(terms) if not agreed.terms.get("samples") else (*FIXED, "samples")
        theirs |= {name: _simplify_value(getattr(terms, name)) for name in names}
        ours |= {name: _simplify_value(agreed.terms.get(name, "")) for name in names}
    different = [name for name in ours if ours[name] != theirs[name]]
    if different:
        value, limit = (", ".join(f"{name}={_shorten(side[name])}" for name in different) for side in (theirs, ours))
        hint = "Nothing was sent. Ask the operator of the server which of the two is right."
        raise InputError("the server's spec is not the one in --spec", value=value, limit=limit, hint=hint)


def _simplify_value(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shorten(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."


def find_disagreement(terms: Terms, accept: Accept, *, trains: bool = True) -> str | None:
    """Return why a client cannot take part, or None. Another CPU level is allowed, and recorded."""
    if accept.spec_hash != terms.spec_hash:
        return f"this run is of spec {terms.spec_hash}, not {accept.spec_hash}. Join with its spec."
    if accept.engine != terms.engine:
        return f"this run is computed by the engine {terms.engine}, not {accept.engine}. Join with its spec."
    if trains and accept.n == 0:
        return "a client without samples cannot train"
    return None
