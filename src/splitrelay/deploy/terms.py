"""What server and clients agree on at the handshake, made from a spec and read back from the terms."""

from __future__ import annotations

import tomllib

from pydantic import ValidationError

from splitrelay.data.images import DataSet
from splitrelay.deploy.shapes import Shape, engine_room
from splitrelay.errors import InputError
from splitrelay.experiments.spec import Spec
from splitrelay.wire import limits
from splitrelay.wire.messages import Accept, Terms


def terms_of(
    spec: Spec,
    data: DataSet,
    shape: Shape,
    heartbeat: float = limits.HEARTBEAT,
    sealed: bool = False,
    judged: bool = False,
    salt: bytes = b"",
) -> Terms:
    """The spec, and how a pixel becomes a number: all that a client needs to know. The spec's engine is written out."""
    train, augmentation, room = data.train, data.augmentation, engine_room(spec.engine)
    plan = room.document_of(spec, train.shape, len(train.classes)) if spec.engine == "fast" else ""
    return Terms(
        spec=spec.toml(),
        spec_hash=spec.hash,
        engine=spec.engine,
        cpu=room.cpu_level(),
        shape=train.shape,
        classes=train.classes,
        mean=train.mean,
        std=train.std,
        peak=train.peak,
        pad=augmentation.pad if augmentation else 0,
        flip=augmentation.flip if augmentation else False,
        heartbeat=heartbeat,
        plan=plan,
        cut=shape.cut,
        sealed=sealed,
        judged=judged,
        salt=salt,
    )


def spec_in(terms: Terms) -> Spec:
    """The spec that the server sent, if it is the one that it names, and if this host has its engine."""
    try:
        spec = Spec.model_validate(tomllib.loads(terms.spec))
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise InputError("the server's spec cannot be read", value=str(error).splitlines()[0]) from None
    if spec.hash != terms.spec_hash or spec.engine != terms.engine:
        way_out = "Ask the server's keeper: both sides need the same version of Splitrelay."
        raise InputError(
            "the server's spec is not the one it names", value=spec.hash, limit=terms.spec_hash, way_out=way_out
        )
    if spec.engine not in ("reference", "fast"):
        raise InputError("the server's spec leaves the engine open", value=spec.engine)
    lacking = engine_room(spec.engine).missing()
    if lacking is not None:
        way_out = "See splitrelay doctor; or have the run begun with engine=reference."
        raise InputError(f"this host lacks the engine {spec.engine}", value=lacking, way_out=way_out)
    return spec


def disagreement(terms: Terms, accept: Accept, *, trains: bool = True) -> str | None:
    """Why a client cannot take part; None where it can. Another CPU level is allowed, and recorded."""
    if accept.spec_hash != terms.spec_hash:
        return f"this run is of spec {terms.spec_hash}, not {accept.spec_hash}"
    if accept.engine != terms.engine:
        return f"this run is computed by the engine {terms.engine}, not {accept.engine}. Join with its spec."
    if trains and accept.n == 0:
        return "a client without samples cannot train"
    return None
