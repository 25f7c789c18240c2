"""A certificate authority for tests and benchmarks, and the certificates that it signs."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Authority:
    """A certificate authority of ours, and the certificates it signs, as PEM files in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tests")])
        self.certificate = directory / "ca.pem"
        self._sign(self._name, self._key, x509.BasicConstraints(ca=True, path_length=None), self.certificate, days=1)

    def issue(self, name: str, *, days: float = 1, password: str = "", units: Sequence[str] = ()) -> Path:
        """Key and certificate of `name`, in one file, for the loopback address or as a client. It is valid for `days` from now;
        it has expired if they are negative. `units` come before the name in the subject."""
        key, path = ec.generate_private_key(ec.SECP256R1()), self.directory / f"{name}.pem"
        subject = [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit) for unit in units]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, name))
        self._sign(x509.Name(subject), key, x509.BasicConstraints(ca=False, path_length=None), path, days=days)
        encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
        how = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        path.write_bytes(key.private_bytes(encoding, form, how) + path.read_bytes())
        return path

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, basic: x509.BasicConstraints, path: Path, *, days: float
    ) -> None:
        now = datetime.now(UTC)
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now - timedelta(days=30),
            not_valid_after=now + timedelta(days=days),
        ).add_extension(basic, critical=True)
        if not basic.ca:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
