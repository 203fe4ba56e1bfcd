"""The webhook's CA and the certificate that it serves: what they are, when they are made again. Pure but for keys.

The API server is the one that looks at the certificate, so all times are by its clock. Both begin a day before they
were made, because servers of one cluster may differ. A new CA stands in the bundle beside the old one until that is
over: who knows only one of them trusts the webhook all the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

__all__ = ["Kept", "is_valid", "renewed"]

OF_CA, OF_SERVER = timedelta(days=365), timedelta(days=30)
"""How long each is valid."""
BEFORE = timedelta(days=1)
SHORT = 3
"""One of which less than a third is left is made again."""
MOST_IN_BUNDLE = 4
USUAL_KEY = dict.fromkeys(
    ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
)
UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.ExtensionNotFound)


@dataclass(frozen=True, slots=True)
class Kept:
    """As PEM."""

    bundle: bytes = b""
    """CAs that the API server is to trust, the newest first."""
    ca_key: bytes = b""
    certificate: bytes = b""
    key: bytes = b""


def renewed(kept: Kept, names: Sequence[str], now: datetime) -> tuple[Kept, str]:
    """What is to be kept from now on, and why; the same and "" where all is well."""
    why = _wrong_with_ca(kept, now)
    if why:
        key = ec.generate_private_key(ec.SECP256R1())
        bundle = _certificate(_ca(key, now)) + b"".join(map(_certificate, _still_good(kept.bundle, now)))
        return _with_server(Kept(bundle, _key(key)), names, now), f"a new CA and a new certificate: {why}"
    why = _wrong_with_server(kept, names, now)
    return (_with_server(kept, names, now), f"a new certificate: {why}") if why else (kept, "")


def is_valid(certificate: bytes, now: datetime) -> bool:
    try:
        return not _outside(x509.load_pem_x509_certificate(certificate), now)
    except UNREADABLE:
        return False


# ---- what is wrong -------------------------------------------------------------------------------------


def _wrong_with_ca(kept: Kept, now: datetime) -> str:
    if not kept.bundle:
        return "there was none"
    try:
        ca = x509.load_pem_x509_certificates(kept.bundle)[0]
        fits = _public(_read_key(kept.ca_key).public_key()) == _public(ca.public_key())
    except UNREADABLE:
        return "the CA cannot be read"
    return _outside(ca, now) or _short(ca, now) or ("" if fits else "the key is not the CA's")


def _wrong_with_server(kept: Kept, names: Sequence[str], now: datetime) -> str:
    try:
        one = x509.load_pem_x509_certificate(kept.certificate)
        one.verify_directly_issued_by(x509.load_pem_x509_certificates(kept.bundle)[0])
        fits = _public(_read_key(kept.key).public_key()) == _public(one.public_key())
        said = one.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        known = said.get_values_for_type(x509.DNSName)
    except UNREADABLE:
        return "the one that is kept cannot be read, or is not of this CA"
    if not fits:
        return "the key is not its own"
    return _outside(one, now) or _short(one, now) or ("" if known == list(names) else "it has other names")


def _outside(one: x509.Certificate, now: datetime) -> str:
    if now >= one.not_valid_after_utc:
        return f"the last one expired at {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC"
    if now < one.not_valid_before_utc:
        return f"the last one begins only at {one.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; a clock was wrong"
    return ""


def _short(one: x509.Certificate, now: datetime) -> str:
    whole = one.not_valid_after_utc - one.not_valid_before_utc
    near = one.not_valid_after_utc - now < whole / SHORT
    return f"the last one expires at {one.not_valid_after_utc:%Y-%m-%d %H:%M} UTC" if near else ""


def _still_good(bundle: bytes, now: datetime) -> list[x509.Certificate]:
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except UNREADABLE:
        return []
    return [one for one in found if not _outside(one, now)][: MOST_IN_BUNDLE - 1]


# ---- what is made --------------------------------------------------------------------------------------


def _ca(key: ec.EllipticCurvePrivateKey, now: datetime) -> x509.Certificate:
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, key_encipherment=False, **USUAL_KEY
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpushare-webhook {now:%Y-%m-%d}")])
    made = _begun(name, name, key.public_key(), OF_CA, now)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    return made.sign(key, hashes.SHA256())


def _with_server(kept: Kept, names: Sequence[str], now: datetime) -> Kept:
    ca = x509.load_pem_x509_certificates(kept.bundle)[0]
    signer = _read_key(kept.ca_key)
    key = ec.generate_private_key(ec.SECP256R1())
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False, key_encipherment=False, **USUAL_KEY
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0][:64])])
    made = _begun(name, ca.subject, key.public_key(), OF_SERVER, now)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    made = made.add_extension(usage, critical=True)
    made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    made = made.add_extension(x509.SubjectAlternativeName(list(map(x509.DNSName, names))), critical=False)
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    made = made.add_extension(authority, critical=False)
    return Kept(kept.bundle, kept.ca_key, _certificate(made.sign(signer, hashes.SHA256())), _key(key))


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lasts: timedelta, now: datetime
) -> x509.CertificateBuilder:
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    made = made.serial_number(x509.random_serial_number())
    return made.not_valid_before(now - BEFORE).not_valid_after(now + lasts)


def _read_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    found = serialization.load_pem_private_key(pem, None)
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise TypeError("not a key on a curve")
    return found


def _public(key: object) -> bytes:
    encoding, shape = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(encoding, shape))  # type: ignore[attr-defined]


def _certificate(one: x509.Certificate) -> bytes:
    return one.public_bytes(serialization.Encoding.PEM)


def _key(key: ec.EllipticCurvePrivateKey) -> bytes:
    shape, encryption = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, shape, encryption)
