"""Certificates of a consortium: one authority signs them all, and each names its holder and the holder's roles.

A certificate has the subject O=consortium, CN=name. Its alternative names contain the hosts of the holder and one URI
for each role: splitrelay:server, splitrelay:client:3, splitrelay:evaluator, splitrelay:observer, splitrelay:fed-server.
"""

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
SCHEME = "splitrelay"  # of the URIs
CLOCK_SKEW = timedelta(hours=1)  # certificates are valid from this long ago, for hosts whose clock is late
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
CLIENT_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")
DNS_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")

PrivateKey = ec.EllipticCurvePrivateKey


@dataclass(frozen=True)
class Peer:
    """The holder of a certificate, its roles, and the time for which the certificate is valid.

    Attributes:
        name: Name in the consortium.
        roles: Some of ROLES.
        m: The client's number, or None.
        hosts: DNS names and IP addresses at which others can reach it.
        consortium: Name of the consortium.
        serial: Serial number of the certificate.
        not_before: Start of validity.
        not_after: End of validity.
    """

    name: str
    roles: tuple[str, ...]
    m: int | None
    hosts: tuple[str, ...]
    consortium: str
    serial: int
    not_before: datetime
    not_after: datetime

    @property
    def role(self) -> str:
        """The first role."""
        return self.roles[0]

    @property
    def can_open_halves(self) -> bool:
        """Whether it receives the clients' sealing secret. The server and observers do not."""
        return bool({CLIENT, EVALUATOR, FED} & set(self.roles))

    def count_days_left(self, now: datetime) -> int:
        """Return the whole days until the certificate expires; negative afterwards."""
        return (self.not_after - now) // timedelta(days=1)


@dataclass(frozen=True)
class Signer:
    """The authority's certificate and private key. Its repr does not contain the key."""

    certificate: x509.Certificate
    key: PrivateKey

    def __repr__(self) -> str:
        return f"Signer({self.certificate.subject.rfc4514_string()})"


def generate_key() -> PrivateKey:
    """Generate a private key on the curve P-256, which every TLS library supports."""
    return ec.generate_private_key(ec.SECP256R1())


def build_authority_certificate(
    consortium: str, key: PrivateKey, not_before: datetime, not_after: datetime
) -> x509.Certificate:
    """Build the self-signed certificate of an authority. It can only sign certificates and revocation lists."""
    subject = x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, consortium)])
    serial = x509.random_serial_number()
    builder = _start_certificate(subject, subject, key.public_key(), serial, not_before, not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_build_key_usage(signs_others=True), critical=True)
    builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return builder.sign(key, SHA256())


def build_certificate(peer: Peer, public_key: ec.EllipticCurvePublicKey, signer: Signer) -> x509.Certificate:
    """Build and sign the certificate of a holder."""
    subject = x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, peer.consortium),
            x509.NameAttribute(NameOID.COMMON_NAME, peer.name),
        ]
    )
    if SERVER in peer.roles:
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH]
    else:  # peers can connect to a client that has hosts
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH] + [ExtendedKeyUsageOID.SERVER_AUTH] * bool(peer.hosts)
    roles = [f"{role}:{peer.m}" if role == CLIENT else role for role in peer.roles]
    uris = [x509.UniformResourceIdentifier(f"{SCHEME}:{role}") for role in roles]
    names = x509.SubjectAlternativeName([*uris, *map(build_host_name, peer.hosts)])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.key.public_key())
    builder = _start_certificate(
        subject, signer.certificate.subject, public_key, peer.serial, peer.not_before, peer.not_after
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_build_key_usage(signs_others=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(names, critical=False)
    return builder.add_extension(issuer, critical=False).sign(signer.key, SHA256())


@lru_cache(maxsize=1024)  # the server asks repeatedly for every open connection
def parse_peer(certificate: bytes) -> Peer:
    """Return the holder of a certificate in PEM or DER. TLS has already checked the signature."""
    return read_peer(parse_certificate(certificate))


def parse_certificate(certificate: bytes) -> x509.Certificate:
    """Parse a certificate in PEM or DER."""
    with _convert_errors():
        if certificate.lstrip().startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(certificate)
        return x509.load_der_x509_certificate(certificate)


def read_peer(certificate: x509.Certificate) -> Peer:
    """Return the holder that a certificate names.

    Raises:
        InputError: The certificate was not issued by a Splitrelay authority.
    """
    with _convert_errors():
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        roles, m = _parse_roles(names.get_values_for_type(x509.UniformResourceIdentifier))
        addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
        return Peer(
            name=_get_attribute(certificate.subject, NameOID.COMMON_NAME),
            roles=roles,
            m=m,
            hosts=(*names.get_values_for_type(x509.DNSName), *addresses),
            consortium=_get_attribute(certificate.subject, NameOID.ORGANIZATION_NAME),
            serial=certificate.serial_number,
            not_before=certificate.not_valid_before_utc,
            not_after=certificate.not_valid_after_utc,
        )


def build_host_name(host: str) -> x509.GeneralName:
    """Return a host as an alternative name: an IP address, or a DNS name.

    Raises:
        InputError: It is neither.
    """
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        if len(host) <= 253 and all(DNS_LABEL.fullmatch(label) for label in host.split(".")):
            return x509.DNSName(host)
    hint = "Give a DNS name (in its xn-- form if it is not ASCII) or an IP address, without a port or a wildcard."
    raise InputError("the host is not valid", value=repr(host), hint=hint)


def format_serial(serial: int) -> str:
    """Return a serial number as 40 hexadecimal digits."""
    return f"{serial:040x}"


def round_time(now: datetime | None) -> datetime:
    """Return a time, or the current one if it is None, in whole seconds as in certificates."""
    return (now or datetime.now(UTC)).replace(microsecond=0)


def _start_certificate(
    subject: x509.Name,
    issuer: x509.Name,
    public_key: ec.EllipticCurvePublicKey,
    serial: int,
    not_before: datetime,
    not_after: datetime,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(public_key)
    return builder.serial_number(serial).not_valid_before(not_before).not_valid_after(not_after)


def _build_key_usage(signs_others: bool) -> x509.KeyUsage:
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


def _parse_roles(uris: list[str]) -> tuple[tuple[str, ...], int | None]:
    """Return the roles and the client's number; raise a ValueError if they are not valid."""
    parts = [uri.removeprefix(f"{SCHEME}:").partition(":") for uri in uris if uri.startswith(f"{SCHEME}:")]
    roles = tuple(role for role, _, _ in parts)
    numbers = [number for role, _, number in parts if role == CLIENT]
    if not roles or len(set(roles)) < len(roles) or not set(roles) <= set(ROLES):
        raise ValueError("roles")
    if not all(CLIENT_NUMBER.fullmatch(number) for number in numbers):
        raise ValueError("number")
    return roles, int(numbers[0]) if numbers else None


def _get_attribute(subject: x509.Name, which: x509.ObjectIdentifier) -> str:
    (attribute,) = subject.get_attributes_for_oid(which)
    return str(attribute.value)


@contextmanager
def _convert_errors() -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension):
        hint = "Use a certificate made by splitrelay keys issue."
        raise InputError("the certificate was not issued by a Splitrelay authority", hint=hint) from None
