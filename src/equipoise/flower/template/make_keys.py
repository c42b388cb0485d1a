"""Keys for a deployment: a certificate authority, a server certificate, and a key pair for each SuperNode.

    python make_keys.py keys --nodes 4 --host superlink.example.org

Private keys are readable by their owner alone. Nothing that exists is overwritten. Each SuperNode needs ca.crt and its
own private key, the SuperLink needs ca.crt, server.pem and server.key; ca.key is needed only to sign again.
"""

import argparse
import datetime
import ipaddress
import os
import sys
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey
LOCAL = ("localhost", "127.0.0.1")


def make_keys(folder: Path, nodes: int, hosts: list[str], days: int = 365) -> None:
    """Write all keys and certificates into a folder that is new or empty."""
    if folder.exists() and any(folder.iterdir()):
        raise SystemExit(f"{folder} is not empty: nothing was written. Name another folder, or move the old keys away.")
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / ".gitignore", b"*\n")  # keys do not belong into a repository
    authority, server = new_key(), new_key()
    issuer = named(f"{hosts[0]} certificate authority")
    root = certificate(issuer, issuer, authority, authority, days, hosts=None)
    leaf = certificate(named(hosts[0]), issuer, server, authority, days, hosts)
    for name, key in (("ca.key", authority), ("server.key", server)):
        write(folder / name, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), secret=True)
    for name, signed in (("ca.crt", root), ("server.pem", leaf)):
        write(folder / name, signed.public_bytes(Encoding.PEM))
    for number in range(nodes):
        key = new_key()
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        write(folder / f"node-{number}", private, secret=True)
        write(folder / f"node-{number}.pub", key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))


def certificate(
    subject: x509.Name, issuer: x509.Name, key: Key, signer: Key, days: int, hosts: list[str] | None
) -> x509.Certificate:
    """A certificate authority without ``hosts``, a server certificate for them with."""
    authority, now = hosts is None, datetime.datetime.now(datetime.UTC)
    usage = dict.fromkeys(
        ("content_commitment", "data_encipherment", "key_agreement", "encipher_only", "decipher_only"), False
    )
    built = (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))  # clocks differ a little
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=not authority, key_cert_sign=authority, crl_sign=authority,
                key_encipherment=False, **usage,
            ),
            critical=True,
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )  # fmt: skip
    if hosts is not None:
        names = x509.SubjectAlternativeName([host_name(host) for host in dict.fromkeys((*hosts, *LOCAL))])
        built = built.add_extension(names, critical=False)
        built = built.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    return built.sign(signer, hashes.SHA384())


def new_key() -> Key:
    return ec.generate_private_key(ec.SECP384R1())


def named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def host_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write(path: Path, content: bytes, secret: bool = False) -> None:
    """A new file; one that exists is an error, and a secret is never readable by others, not even for a moment."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if secret else 0o644), "wb") as file:
        file.write(content)


def main() -> None:
    parser = argparse.ArgumentParser(description="Make TLS certificates and SuperNode keys.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("keys"))
    parser.add_argument("--nodes", type=int, default=4, help="SuperNode key pairs to make")
    parser.add_argument("--host", action="append", help="name or address of the SuperLink; repeatable")
    parser.add_argument("--days", type=int, default=365, help="how long the certificates are valid")
    given = parser.parse_args()
    make_keys(given.folder, given.nodes, given.host or ["localhost"], given.days)
    print(f"{given.folder}: ca.crt, server.pem, server.key and {given.nodes} SuperNode key pairs", file=sys.stderr)


if __name__ == "__main__":
    main()
