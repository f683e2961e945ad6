"""Sums over sites that the server can compute and from which it learns nothing about a single site.

Every pair of sites agrees on a secret by X25519. For each sum it makes a sequence of random integers from it, which the
one adds and the other subtracts: in the sum over all sites they cancel, modulo 2^64. What a single site sends is
uniformly random to anybody who does not know all its secrets.

A number travels as two integers, a coarse and a fine part, so that sums are exact to 2^-60 for numbers up to 2^52.
"""

from collections.abc import Sequence

import numpy as np

from dmtrl.exceptions import RefusedBySiteError

KEY_BYTES = 32
LEAST_SITES = 3  # with two, each could subtract its own part from the sum
_COARSE, _FINE = 10, 60  # bits after the binary point
_LARGEST = 2.0**62  # integer of a sum


def new_key() -> bytes:
    """A private key for one run."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.generate().private_bytes_raw()


def public_part(key: bytes) -> np.ndarray:
    """The public key of a private one, as bytes in an array."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return np.frombuffer(X25519PrivateKey.from_private_bytes(key).public_key().public_bytes_raw(), dtype=np.uint8)


def masked(values: np.ndarray, key: bytes, keys: np.ndarray, label: str, least: int = LEAST_SITES) -> np.ndarray:
    """What a site sends instead of its numbers. keys: public ones of all sites, of which there must be at least `least`
    different ones; label: must never be used twice."""
    own = public_part(key)
    places = np.flatnonzero((keys == own).all(axis=1))
    least = max(least, LEAST_SITES)
    if len(places) != 1 or len(keys) < least or len(np.unique(keys, axis=0)) != len(keys):
        raise RefusedBySiteError(f"masked sums need the keys of at least {least} different sites, each of them once")
    total = _encoded(values, len(keys))
    for place, other in enumerate(keys):
        if place != places[0]:
            mask = _mask(key, own, other, label, len(total))
            total = total + mask if places[0] < place else total - mask  # modulo 2^64
    return total


def unmasked(parts: Sequence[np.ndarray]) -> np.ndarray:
    """The sum of the numbers of all sites."""
    if len({part.shape for part in parts}) != 1 or any(part.dtype != np.uint64 for part in parts):
        raise ValueError("the sites sent masked sums of different lengths; one of them does not follow the study")
    total = np.zeros_like(parts[0])
    for part in parts:
        total = total + part
    signed = total.astype(np.int64)
    if np.abs(signed.astype(float)).max(initial=0.0) > _LARGEST:
        raise ValueError("a masked sum is beyond the agreed range: a site sent other numbers than it should")
    coarse, fine = np.split(signed.astype(float), 2)
    return np.asarray(coarse * 2.0**-_COARSE + fine * 2.0**-_FINE)


def _encoded(values: np.ndarray, sites: int) -> np.ndarray:
    values = np.asarray(values, dtype=float).ravel()
    coarse = np.round(values * 2.0**_COARSE)
    if not np.isfinite(values).all() or np.abs(coarse).max(initial=0.0) > _LARGEST / sites:
        raise RefusedBySiteError("one of its numbers is beyond the range of masked sums; scale the columns")
    fine = np.round((values - coarse * 2.0**-_COARSE) * 2.0**_FINE)
    return np.concatenate([coarse, fine]).astype(np.int64).astype(np.uint64)


def _mask(key: bytes, own: np.ndarray, other: np.ndarray, label: str, length: int) -> np.ndarray:
    """The random integers that two sites share for one sum: ChaCha20 with a key of their secret and the label."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    secret = X25519PrivateKey.from_private_bytes(key).exchange(X25519PublicKey.from_public_bytes(other.tobytes()))
    both = b"".join(sorted((own.tobytes(), other.tobytes())))
    stream_key = HKDF(hashes.SHA256(), 32, both, b"dmtrl mask " + label.encode()).derive(secret)
    encryptor = Cipher(ChaCha20(stream_key, bytes(16)), mode=None).encryptor()
    return np.frombuffer(encryptor.update(bytes(8 * length)), dtype="<u8").astype(np.uint64)
