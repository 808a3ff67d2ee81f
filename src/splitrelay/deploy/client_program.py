"""`splitrelay join`: a client with its own data, from the first handshake to the server's goodbye."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any

from splitrelay import __version__
from splitrelay.atomic_files import check_writable
from splitrelay.data.images import ImageSet
from splitrelay.data.user_datasets import Raw
from splitrelay.deploy.authorization import identity_in
from splitrelay.deploy.backend import ClientContext, Shape, engine_backend, half_bytes, import_backend
from splitrelay.deploy.client_data import DataDigests, convert_images, describe_data, read_raw
from splitrelay.deploy.client_options import ClientOptions, get_client_name, get_client_number
from splitrelay.deploy.client_usage import UsageTimer
from splitrelay.deploy.client_visit import Evaluator, VisitRunner
from splitrelay.deploy.handshake import check_agreed, read_spec
from splitrelay.deploy.visit_limits import (
    AllowedVisits,
    Disclosure,
    ServerBrokeSpec,
    UsedVisits,
    check_client_half,
    compute_disclosure,
    derive_allowed_visits,
)
from splitrelay.errors import Diverged, InputError, OutputError, SplitrelayError, StorageError, WorkError
from splitrelay.kernels.evaluator import SLICE
from splitrelay.network import limits
from splitrelay.network.client_session import (
    ClientStopped,
    HeldVisit,
    ServerEnded,
    ServerRefused,
    Session,
    VisitCancelled,
)
from splitrelay.network.codec import BadMessage, Bounds
from splitrelay.network.connection_handler import EVALUATOR_NUMBER, FED_SERVER_NUMBER
from splitrelay.network.grpc_channel import ConnectionLost, open_channel
from splitrelay.network.messages import Accept, EvaluationRequest, Fail, Lease, Terms
from splitrelay.network.peer_transfer import PeerEndpoint
from splitrelay.runs.spec import Spec
from splitrelay.security import certificates
from splitrelay.security.certificates import CLIENT, EVALUATOR
from splitrelay.security.credential_reload import IdentityReloader
from splitrelay.security.encryption import RejectedHalf, SecretUnavailable, WrongEpoch
from splitrelay.security.identity import build_channel_credentials
from splitrelay.security.sealing_session import Sealer

if TYPE_CHECKING:
    from splitrelay.deploy.fed_server import FedServer

Say = Callable[[str], None]
DIVERGED = "Check this client's data with join --check. Only the operator of the server can lower eta or set clip."


class EndedEarly(WorkError):
    """The server said goodbye before the last round."""


class TermsNotAgreed(SplitrelayError):
    """A check ends before anything is sent, as nobody has agreed to the server's terms."""


class ClientProgram:
    """A client that takes part until the server says goodbye."""

    def __init__(self, wish: ClientOptions, say: Say, stop: Event | None = None) -> None:
        identity = identity_in(wish.keys, wish.keys is None, (CLIENT, EVALUATOR, certificates.FED))
        self.m = get_client_number(wish, identity)
        self.wish, self.say, self.warn = wish, say, say
        self.keys = None if identity is None else IdentityReloader(identity, lambda text: self.warn(text))
        self.post = (
            None
            if self.keys is None
            else PeerEndpoint(self.keys, lambda text: self.say(text), lambda text: self.warn(text), wish.timeouts)
        )
        self.stop = stop or Event()
        self.visitor: VisitRunner | FedServer | None = None
        self.images: ImageSet | None = None
        self.test_images: ImageSet | None = None  # an evaluator's
        self.digests = DataDigests(self.m, wish.keys)
        self.digest = b""  # of the data, as it was sent last
        self.raw: Raw | None = None  # what was brought, read before anybody is called
        self.brought, self.told = False, ""
        self.terms: Terms | None = None
        self.disclosure: Disclosure | None = None
        self.visits = 0
        self.last_round: int | None = None  # of its last committed visit
        self.usage = UsageTimer(lambda: self.session.meter.waiting)
        self.session = Session(
            self.m,
            self._dial,
            self._agree,
            software=f"splitrelay {__version__}",
            patience=wish.patience,
            stop=self.stop,
            address=wish.address,
            timeouts=wish.timeouts,
            limits=wish.limits,
        )
        self.session.note = say
        self.session.warn = lambda text: self.warn(text)

    def bring(self) -> None:
        """Whatever does not depend on the server, before anybody is called: its own port, its data."""
        if not self.brought:
            self._listen()
            self.raw = None if self.m == FED_SERVER_NUMBER else self._read()
        self.brought = True

    def leave(self) -> None:
        """Nothing is open any more."""
        self.session.disconnect()
        if self.post is not None:
            self.post.close()

    def run(self) -> str:
        """Take part; the server's last words."""
        try:
            self.bring()
            self.session.connect()
            if self.wish.check:
                self.session.leave("it was a check")
                return "\n".join([*self._describe(), "all is well: the server would take this client"])
            self.say(f"joined as {get_client_name(self.m)} with {len(self.images or ())} images")
            return self._taking_part()
        except ServerEnded as error:
            self._check_complete(error)
            return str(error)
        except TermsNotAgreed as error:
            return "\n".join([*self._describe(), str(error)])
        except ClientStopped:
            return "left"
        finally:
            self.leave()

    def _check_complete(self, error: ServerEnded) -> None:
        """Raise EndedEarly if the server said goodbye before this client has done its part of the last round.

        A client that is drawn in some rounds only cannot know when its last visit was (UsedVisits.is_complete).
        """
        visitor, R = self.visitor, 0 if self.visitor is None else self.visitor.spec.R
        if isinstance(visitor, VisitRunner):
            if self.m == EVALUATOR_NUMBER:
                is_complete = visitor.has_model
            else:
                is_complete = visitor.used.is_complete(visitor.spec, self.last_round)
        else:
            is_complete = visitor is not None and visitor.newest > 0
        if not is_complete:
            last = "none" if self.last_round is None else f"in round {self.last_round}"
            hint = "Ask the operator of the server whether it was stopped, or went on without this client."
            what = f"the server ended the run early ({error})"
            raise EndedEarly(
                what, value=f"last part of {get_client_name(self.m)}: {last}", limit=f"{R} rounds", hint=hint
            )

    def _describe(self) -> list[str]:
        """Say what was brought, for --check."""
        found = [] if self.images is None else [describe_data(get_client_name(self.m), self.images, self.digest)]
        if self.test_images is not None and self.m != EVALUATOR_NUMBER:
            found.append(describe_data(f"{get_client_name(self.m)} as the evaluator", self.test_images))
        if self.disclosure is not None and self.terms is not None:
            found += ["it would send", *(f"  {line}" for line in self.disclosure.describe())]
            found.append(f"  digest of the terms: {self.terms.spec_hash}")
        return found

    def _listen(self) -> None:
        """Where other clients may bring the half, if it was asked for."""
        if not self.wish.listen:
            return
        if self.post is None:
            raise InputError("other clients reach only who has keys", hint="Join with --keys, or without --listen.")
        self.post.listen(self.wish.listen)

    def _taking_part(self) -> str:
        while not self.stop.is_set():
            try:
                self._turn()
            except VisitCancelled as error:
                self.say(f"visit taken back: {error}")
                self.session.holding = HeldVisit()
            except (ConnectionLost, ServerEnded, ServerRefused, BadMessage) as error:
                if (isinstance(error, ServerEnded) and not error.again) or (
                    isinstance(error, ServerRefused) and error.final
                ):
                    raise
                self.say(f"{error}; connecting again")
                self.session.holding = HeldVisit()
                self.session.reconnect()
        self.session.leave("the client was told to stop")
        return "left"

    def _turn(self) -> None:
        """Wait for a lease, and make the visit; or for a half to be scored."""
        word = self._next_word()
        if word is None:
            return
        self.session.fruitless = 0
        try:
            self._follow(word)
        except ServerBrokeSpec as error:  # the server is told, and this client leaves for good
            self.session.send(Fail(word.fence, str(error)[: limits.TEXT]))
            self.session.leave("the server does not keep to the spec")
            raise
        except Diverged as error:
            self._tell(f"the visit failed: {error.what}. {DIVERGED}")
            self.session.send(Fail(word.fence, str(error)[: limits.TEXT], diverged=True))
        except (
            RejectedHalf,
            WrongEpoch,
            SecretUnavailable,
            OutputError,
            StorageError,
        ) as error:  # the server is told, and this client keeps what it knows
            why = f"{type(error).__name__}: {error}"
            later = not isinstance(error, RejectedHalf)  # keys that are still on their way, a disk that is full
            self._tell(f"{'not yet' if later else 'refused'}: {why}")
            self.session.send(Fail(word.fence, why[: limits.TEXT], later=later))
        finally:
            self.session.holding = HeldVisit()

    def _tell(self, text: str) -> None:
        """Warn the operator once; report the same text again only through `say`."""
        (self.say if text == self.told else self.warn)(text)
        self.told = text

    def _follow(self, word: Lease | EvaluationRequest) -> None:
        assert self.visitor is not None
        if isinstance(word, EvaluationRequest):
            self.visitor.look(self.session, word)
            return
        if not isinstance(self.visitor, VisitRunner):
            raise ServerBrokeSpec("the server asks the fed server for a visit", hint="Ask its operator.")
        with self.usage.visit():
            self.visitor.visit(self.session, word)
        self.visits, self.last_round = self.visits + 1, word.r
        self.say(f"round {word.r}: {word.K} steps, committed")

    def _next_word(self) -> Lease | EvaluationRequest | None:
        connection = self.session.connection
        assert connection is not None
        while not self.stop.is_set():
            if connection.wait_for_message(1.0):
                word = self.session.receive()
                if isinstance(word, Lease | EvaluationRequest):
                    return word
        return None

    def _dial(self) -> Any:
        credentials = None if self.keys is None else build_channel_credentials(self.keys.get_identity())
        return open_channel(self.wish.address, credentials)

    def _agree(self, terms: Terms) -> Accept:
        """Everything is checked before the first turn; what does not fit is an error here, not at the server."""
        spec = read_spec(terms)
        if self.terms is None:
            self._prepare(spec, terms)
        elif terms.spec_hash != self.terms.spec_hash:
            hint = "Nothing of the new run was sent. Read its spec, and join again."
            what = "the server's terms have changed since this client joined"
            raise InputError(what, value=terms.spec_hash, limit=self.terms.spec_hash, hint=hint)
        if self.wish.check and not self._has_agreed():
            accept = f"--accept-spec {terms.spec_hash}"
            raise TermsNotAgreed(
                f"nothing was sent. Give --spec or {accept} to ask the server whether it takes this client"
            )
        cpu = engine_backend(spec.engine).get_cpu_level()
        n = 0 if self.m >= EVALUATOR_NUMBER else len(self.images or ())
        address = "" if self.post is None or spec.route == "centralized" else self.post.address
        self.digest = self.digests.find(terms.salt, self.images, self.test_images)
        return Accept(
            terms.spec_hash, spec.engine, cpu, n, check=self.wish.check, address=address, data_digest=self.digest
        )

    def _prepare(self, spec: Spec, terms: Terms) -> None:
        self._check_terms(spec, terms)
        self.terms = terms
        if self.m == FED_SERVER_NUMBER:
            assert self.wish.keys is not None  # number_of has seen to it
            self.visitor = import_backend("fed_server").FedServer(spec, terms, self.wish.keys)  # with torch
            return
        seals = self._seals(spec, terms)
        self._refuse_blind(spec, terms)
        plan = terms.plan if self._has_agreed_to_all(terms) else ""
        images = (terms.shape[0], terms.shape[1], terms.shape[2])
        backend = engine_backend(spec.engine)
        with getattr(backend, "BUILDING", nullcontext()):
            shape = backend.shape_of(spec, images, len(terms.classes), plan)
        agreed, allowed = self.wish.agreed, derive_allowed_visits(spec, self.m)
        check_client_half(spec, shape, None if agreed is None else agreed.spec)
        # Ask before the data are compared with the terms: a server that nobody has agreed to must not learn from the
        # end of the connection whether they fit.
        raw = self.raw or self._read()
        self._approve(spec, terms, shape, allowed, len(raw.x))
        self.images = convert_images(raw, terms)
        self.raw = None
        context = ClientContext(self.m, spec, terms, self.images, plan)
        used = UsedVisits(allowed, self._usage_file(spec), self.wish.repeats)
        self.visitor = VisitRunner(context, used, seals, self._judge(context), self.post, self.usage)
        self.session.bounds = Bounds(
            batch=self.wish.limits.batch if spec.optimiser.draw == "full" else max(spec.optimiser.batch, SLICE),
            h=shape.h,
            out=None if ":" in spec.model.name else len(terms.classes),
            dtype=spec.model.dtype,
            norms=shape.norms,
        )
        if self.post is not None:
            self.post.expect(half_bytes(spec, shape))

    def _check_terms(self, spec: Spec, terms: Terms) -> None:
        """Raise InputError where these are not the terms that this client's operator has agreed to."""
        wish = self.wish
        if wish.agreed is not None:
            check_agreed(wish.agreed, spec, terms)
        if wish.accept_spec and wish.accept_spec.lower() != terms.spec_hash:
            hint = "Nothing was sent. Ask the operator of the server; splitrelay join --check shows what it offers."
            what = "the server's terms are not the accepted ones"
            raise InputError(what, value=terms.spec_hash, limit=wish.accept_spec, hint=hint)
        code = [name for name in (spec.model.name, spec.model.loss) if ":" in name]
        if code and not (wish.agreed or (wish.accept_spec and spec.engine == "fast")):
            hint = "Give --spec with your own copy of the spec, so that you say which code is run."
            raise InputError("the server's spec names code of its own", value=", ".join(code), hint=hint)
        if wish.sealed and not terms.sealed:
            raise InputError("the server of this run reads the clients' half", hint="Leave --sealed out, or stay.")

    def _has_agreed_to_all(self, terms: Terms) -> bool:
        """Whether the operator has agreed to the complete terms, not only to the spec."""
        agreed = self.wish.agreed
        return bool(self.wish.accept_spec) or (agreed is not None and agreed.terms is not None)

    def _has_agreed(self) -> bool:
        """Whether the operator has agreed to the spec before the server was asked for it."""
        return bool(self.wish.accept_spec) or self.wish.agreed is not None

    def _approve(self, spec: Spec, terms: Terms, shape: Shape, allowed: AllowedVisits, n: int) -> None:
        """Ask the operator where nothing was agreed to before; a check only shows what would be sent."""
        self.disclosure = compute_disclosure(spec, shape, allowed, n)
        if not (self._has_agreed() or self.wish.check):
            self.wish.approval.obtain(spec, terms, self.disclosure)

    def _usage_file(self, spec: Spec) -> Path | None:
        """Return the file in which this client counts its visits of a spec, over restarts and over other terms.

        The server chooses the terms beside the spec, and the engine where the client leaves it open. Neither may give
        it another allowance.
        """
        folder, name = self.wish.state or self.wish.keys, spec.model_copy(update={"engine": "auto"}).identity
        return None if folder is None else folder / f"usage-{self.m}-{name[:16]}.json"

    def _refuse_blind(self, spec: Spec, terms: Terms) -> None:
        """Where the server does not score, its evaluator brings a test set, and can write the model down."""
        judges = self.m == EVALUATOR_NUMBER or (self.m == spec.evaluator and not terms.judged)
        if not terms.sealed or not judges:
            return
        if self.wish.test is None:
            hint = "Give --test; or have the server started with --judge, for an evaluator of its own."
            raise InputError(f"{get_client_name(self.m)} is this run's evaluator and brings no test set", hint=hint)
        check_writable(self.wish.keep)

    def _seals(self, spec: Spec, terms: Terms) -> Sealer | None:
        """Peer to peer always; else where a fed server averages."""
        chain = spec.route == "peer-to-peer"
        if not chain and not terms.sealed:
            return None
        if self.wish.keys is None:
            raise InputError("the clients' half is sealed in this run", hint="Join with --keys.")
        return Sealer(self.wish.keys, spec.identity, self.m, chain=chain)

    def _read(self) -> Raw:
        """Who only judges trains on nothing, and brings what it judges on."""
        brought = self.wish.test if self.m == EVALUATOR_NUMBER else self.wish.data
        assert brought is not None  # number_of has seen to it
        return read_raw(brought, test=self.m == EVALUATOR_NUMBER)

    def _judge(self, context: ClientContext) -> Evaluator | None:
        if self.wish.test is None or self.m not in (context.spec.evaluator, EVALUATOR_NUMBER):
            return None
        images = convert_images(read_raw(self.wish.test, test=True), context.terms)
        self.test_images = images
        judge: Evaluator = import_backend("remote_evaluator").EvaluatorClient(
            context, images, self.wish.keep
        )  # with torch
        return judge


def join_all(
    wishes: Sequence[ClientOptions], say: Callable[[int], Say], warn: Callable[[int], Say], stop: Event
) -> Iterator[str]:
    """Each client on a thread and a connection of its own; their last words, as they leave."""
    joined = [ClientProgram(wish, lambda text: None, stop) for wish in wishes]
    for one in joined:
        one.say = one.session.note = say(one.m)
        one.warn = warn(one.m)
    try:
        for one in joined:
            one.bring()
    except BaseException:
        for one in joined:
            one.leave()
        raise
    if len(joined) == 1:
        yield joined[0].run()
    else:
        yield from _together(joined, stop)


def _together(joined: Sequence[ClientProgram], stop: Event) -> Iterator[str]:
    """Who fails says so at once and the others go on; the first failure is raised when all have left."""
    failures = []
    with ThreadPoolExecutor(len(joined)) as threads:
        running = {threads.submit(one.run): one for one in joined}
        for ended in as_completed(running):
            try:
                yield ended.result()
            except SplitrelayError as error:
                running[ended].warn(str(error))
                failures.append(error)
            except BaseException:
                stop.set()
                raise
    if failures:
        raise failures[0]


__all__ = ["ClientOptions", "ClientProgram", "get_client_name", "join_all"]
