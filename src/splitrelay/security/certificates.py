"""Whom a certificate names: one authority signs them all, and each says what its holder is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from splitrelay.errors import InputError

SERVER, CLIENT, EVALUATOR, OBSERVER, FED = ROLES = ("server", "client", "evaluator", "observer", "fed-server")
SCHEME = "splitrelay"  # roles stand in the certificate as splitrelay:server, splitrelay:client:3, ...
SKEW = timedelta(hours=1)  # a host whose clock is this much behind takes a new certificate at once
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")

Key = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Peer:
    """Whom a certificate names, what it may be, and until when."""

    name: str
    roles: tuple[str, ...]
    m: int | None  # the client's number
    hosts: tuple[str, ...]
    consortium: str
    serial: int
    not_before: datetime
    not_after: datetime

    @property
    def role(self) -> str:
        """The first of its roles."""
        return self.roles[0]

    @property
    def opens_halves(self) -> bool:
        """Whether the clients' sealing secret is for it: never the server's, never an observer's."""
        return bool({CLIENT, EVALUATOR, FED} & set(self.roles))

    def days_left(self, now: datetime) -> int:
        """Whole days until it expires; negative afterwards."""
        return (self.not_after - now) // timedelta(days=1)


@dataclass(frozen=True)
class Signer:
    """The authority's certificate; its key is never shown."""

    certificate: x509.Certificate
    key: Key

    def __repr__(self) -> str:
        return f"Signer({self.certificate.subject.rfc4514_string()})"


def new_key() -> Key:
    """A private key on P-256, which every TLS library takes."""
    return ec.generate_private_key(ec.SECP256R1())


def own_authority(consortium: str, key: Key, not_before: datetime, not_after: datetime) -> x509.Certificate:
    """The certificate that a consortium signs for itself; it signs certificates and revocation lists, nothing else."""
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, consortium)])
    bare = _bare(subject, subject, key.public_key(), x509.random_serial_number(), not_before, not_after)
    signs = bare.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    signs = signs.add_extension(_usage(signs_others=True), critical=True)
    named = signs.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return named.sign(key, SHA256())


def signed(who: Peer, public_key: ec.EllipticCurvePublicKey, signer: Signer) -> x509.Certificate:
    """The certificate of one holder."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, who.consortium),
            x509.NameAttribute(NameOID.COMMON_NAME, who.name),
        ]
    )
    above = signer.certificate
    bare = _bare(subject, above.subject, public_key, who.serial, who.not_before, who.not_after)
    leaf = bare.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(_usage(signs_others=False), critical=True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage(_purposes(who)), critical=False)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([*_role_names(who), *map(host_name, who.hosts)]), False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    return leaf.add_extension(issuer, critical=False).sign(signer.key, SHA256())


@lru_cache(maxsize=1024)  # a server asks again and again for every open link
def peer_identity(certificate: bytes) -> Peer:
    """Whom a certificate names, from its PEM or DER bytes; that our authority signed it is for TLS to see to."""
    with _a_certificate_of_ours():
        return described(parsed(certificate))


def parsed(certificate: bytes) -> x509.Certificate:
    """A certificate from PEM or DER bytes."""
    with _a_certificate_of_ours():
        if certificate.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(certificate)
        return x509.load_der_x509_certificate(certificate)


def described(certificate: x509.Certificate) -> Peer:
    """What a certificate says."""
    with _a_certificate_of_ours():
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        roles, m = _roles(names.get_values_for_type(x509.UniformResourceIdentifier))
        addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        return Peer(
            name=_one(certificate.subject, NameOID.COMMON_NAME),
            roles=roles,
            m=m,
            hosts=(*names.get_values_for_type(x509.DNSName), *addresses),
            consortium=_one(certificate.subject, NameOID.ORGANIZATION_NAME),
            serial=certificate.serial_number,
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )


def host_name(host: str) -> x509.GeneralName:
    """A host as certificates spell it: an address, or a DNS name."""
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if len(host) <= 253 and all(LABEL.fullmatch(label) for label in host.split(".")):
            return x509.DNSName(host)
    hint = "Give a DNS name (in its xn-- form if it is not ASCII) or an IP address, without port and wildcard."
    raise InputError("not a host", value=repr(host), hint=hint)


def shown_serial(serial: int) -> str:
    """A serial number as people compare it."""
    return f"{serial:040x}"


def instant(now: datetime | None) -> datetime:
    """The time of day, to the second as certificates have it."""
    return (now or datetime.now(UTC)).replace(microsecond=0)


def _bare(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    bare = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    return bare.serial_number(serial).not_valid_before(not_before).not_valid_after(not_after)


def _usage(signs_others: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_others,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_others,
        crl_sign=signs_others,
        encipher_only=False,
        decipher_only=False,
    )


def _purposes(who: Peer) -> list[x509.ObjectIdentifier]:
    """The server only serves; everybody else calls, and serves too if peers shall reach it at a host."""
    if SERVER in who.roles:
        return [ExtendedKeyUsageOID.SERVER_AUTH]
    return [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * bool(who.hosts)


def _role_names(who: Peer) -> list[x509.GeneralName]:
    words = [f"{role}:{who.m}" if role == CLIENT else role for role in who.roles]
    return [x509.UniformResourceIdentifier(f"{SCHEME}:{word}") for word in words]


def _roles(names: list[str]) -> tuple[tuple[str, ...], int | None]:
    ours = [name.removeprefix(f"{SCHEME}:").partition(":") for name in names if name.startswith(f"{SCHEME}:")]
    roles = tuple(role for role, _, _ in ours)
    numbers = [number for role, _, number in ours if role == CLIENT]
    if not roles or len(set(roles)) < len(roles) or not set(roles) <= set(ROLES):
        raise ValueError("roles")
    if not all(NUMBER.fullmatch(number) for number in numbers):
        raise ValueError("number")
    return roles, int(numbers[0]) if numbers else None


def _one(subject: x509.Name, which: x509.ObjectIdentifier) -> str:
    (attribute,) = subject.get_attributes_for_oid(which)
    return str(attribute.value)


@contextmanager
def _a_certificate_of_ours() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
        hint = "Use one made by splitrelay keys issue."
        raise InputError("this is no certificate of a splitrelay authority", hint=hint) from None
