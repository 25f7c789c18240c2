"""A certificate authority for one home: it signs what the brokers there show, so that clients know whom they tell their password.

    DIRECTORY/ca.pem        the authority's certificate: what clients trust (ssl.ca.location). No secret
    DIRECTORY/ca.key        its key, which signs nothing but the next files
    DIRECTORY/server.pem    key and certificate of the brokers (ssl.keystore.location)
    DIRECTORY/registry.pem  key and certificate of a schema registry (logbus registry serve --certificate)

The keys are ECDSA on P-256, whose handshake costs a broker half of RSA's, and readable by their owner only. A server's
certificate is valid for three months and renewed when a third of that is left, or when the server gets another name: it reads a
changed file while it runs. The authority stays: with another one every client would need another file.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from logbus import atomic_write, errors, model

AUTHORITY_VALID = timedelta(days=3650)
SERVER_VALID = timedelta(days=90)
RENEWED_BEFORE = SERVER_VALID / 3  # its end
CLOCKS_APART = timedelta(hours=1)  # of the machines that check it
USAGES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
NO_ENCRYPTION = serialization.NoEncryption()
PEM = serialization.Encoding.PEM


class Authority:
    """Made at the first use. UserError where its files cannot be used."""

    def __init__(self, directory: Path, *, clock: Callable[[], datetime] = model.utc_now) -> None:
        self.certificate_path = directory / "ca.pem"
        self._key_path = directory / "ca.key"
        self._clock = clock
        self._renewals: dict[Path, datetime] = {}  # when it is time; not known before the file was looked at
        if not self.certificate_path.exists():
            self._make()
        try:
            key = serialization.load_pem_private_key(self._key_path.read_bytes(), None)
            self._certificate = x509.load_pem_x509_certificate(self.certificate_path.read_bytes())
        except (OSError, ValueError, TypeError) as error:
            raise errors.UserError(
                f"the certificate authority in {directory} cannot be used ({error}): restore it, or remove the folder, and give "
                "every client its file again"
            ) from None
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def keep_server_certificate(self, path: Path, names: Collection[str]) -> None:
        """Makes or renews a server's certificate if need be. `names`: host names and addresses by which clients reach it."""
        if path in self._renewals and self._clock() < self._renewals[path]:
            return
        ends_at = self._end_of_current(path, names)
        if ends_at is None or self._clock() >= ends_at - RENEWED_BEFORE:
            ends_at = self._issue(path, names)
        self._renewals[path] = ends_at - RENEWED_BEFORE

    def _end_of_current(self, path: Path, names: Collection[str]) -> datetime | None:
        """None if there is none, or it is another authority's or for other names."""
        try:
            certificate = x509.load_pem_x509_certificate(path.read_bytes())
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # whatever is wrong with it, another one is made
            return None
        alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        return certificate.not_valid_after_utc if set(map(general_name, names)) <= set(alternatives) else None

    def _make(self) -> None:
        key, name = ec.generate_private_key(ec.SECP256R1()), common_name("logbus")
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        self.certificate_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        certificate = (
            self._builder(name, name, key, AUTHORITY_VALID)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(usage("key_cert_sign", "crl_sign"), critical=True)
            .add_extension(own, critical=False)
            .sign(key, hashes.SHA256())
        )
        atomic_write.replace_atomically(self._key_path, private_pem(key), mode=0o600)
        atomic_write.replace_atomically(self.certificate_path, certificate.public_bytes(PEM), mode=0o644)

    def _issue(self, path: Path, names: Collection[str]) -> datetime:
        """When the new one ends."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([general_name(name) for name in names])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(common_name(f"logbus {path.stem}"), self._certificate.subject, key, SERVER_VALID)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(usage("digital_signature"), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
            )
            .add_extension(alternatives, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        # One file, replaced at once: a server never reads a key beside another key's certificate.
        atomic_write.replace_atomically(path, private_pem(key) + certificate.public_bytes(PEM), mode=0o600)
        return certificate.not_valid_after_utc

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, valid: timedelta
    ) -> x509.CertificateBuilder:
        now = self._clock()
        return x509.CertificateBuilder(
            issuer_name=issuer,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - CLOCKS_APART,
            not_valid_after=now + valid,
        )


def usage(*purposes: str) -> x509.KeyUsage:
    names = (*USAGES, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    return x509.KeyUsage(**{name: name in purposes for name in names})


def common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def general_name(name: str) -> x509.GeneralName:
    """An address, or a host's name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_ENCRYPTION)
