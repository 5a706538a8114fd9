"""Ed25519 signatures over a manifest, with keys in PEM files. Knows no bundles.

The same keys and signatures are openssl's own:

    openssl genpkey -algorithm ed25519 -out key.pem && openssl pkey -in key.pem -pubout -out public.pem
    openssl pkeyutl -verify -pubin -inkey public.pem -rawin -in manifest.json -sigfile manifest.json.sig
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from localjudge.errors import BundleError

MAKE_KEYS = (
    "make a pair: openssl genpkey -algorithm ed25519 -out key.pem; openssl pkey -in key.pem -pubout -out public.pem"
)


def load_private(file: Path) -> Any:
    """The key to sign with. Raises BundleError for what is not an ed25519 private key without a password."""
    ed25519, serialization = _library()
    data = _read(file)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError:
        fix = f"openssl pkey -in {file} -out plain.pem, and keep that safe"
        raise BundleError("the key is locked with a password", where=str(file), fix=fix) from None
    except ValueError:
        key = None
    if not isinstance(key, ed25519.Ed25519PrivateKey):
        raise BundleError("holds no ed25519 private key", where=str(file), fix=MAKE_KEYS)
    return key


def load_public(file: Path) -> Any:
    """The key to check with. Raises BundleError for what is not an ed25519 public key."""
    ed25519, serialization = _library()
    data = _read(file)
    try:
        key = serialization.load_pem_public_key(data)
    except ValueError:
        key = None
    if not isinstance(key, ed25519.Ed25519PublicKey):
        private = b"PRIVATE KEY" in data
        fix = f"openssl pkey -in {file} -pubout -out public.pem" if private else MAKE_KEYS
        what = "is a private key; verifying takes the public one" if private else "holds no ed25519 public key"
        raise BundleError(what, where=str(file), fix=fix)
    return key


def is_by(key: Any, signature: bytes, data: bytes) -> bool:
    """Whether `signature` over `data` was made with the private half of `key`."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, data)
    except InvalidSignature:
        return False
    return True


def _read(file: Path) -> bytes:
    if not file.is_file():
        raise BundleError("there is no such key", where=str(file), fix=MAKE_KEYS)
    return file.read_bytes()


def _library() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError:
        raise BundleError(
            "signatures need the package cryptography",
            fix="pip install 'localjudge[sign]'; or, only to check: openssl pkeyutl -verify -pubin "
            "-inkey PUBLIC.pem -rawin -in manifest.json -sigfile manifest.json.sig",
        ) from None
    return ed25519, serialization
