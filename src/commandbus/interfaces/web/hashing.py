"""Hashes of passwords and tokens. They are slow on purpose, and hold their parameters, so that a later
version can make them slower without a change of old ones."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Literal

from commandbus.errors import ConfigurationError
from commandbus.interfaces.web.refusals import Refused

Algorithm = Literal["scrypt", "pbkdf2"]

SCHEMES: dict[Algorithm, str] = {"scrypt": "scrypt$ln=17,r=8,p=1", "pbkdf2": "pbkdf2-sha256$i=600000"}
"""What OWASP asks for; PBKDF2 is for machines on which only FIPS algorithms are allowed."""
LENGTH_MIN = 12
SECRET_CHARACTERS_MAX = 1_024
_WEAK = frozenset(
    ("password", "passwort", "passw", "administrator", "commandbus", "dashboard", "changeme", "letmein",
     "welcome", "qwertyuiop", "qwertzuiop", "iloveyou", "operator", "default", "secret")
)  # fmt: skip
_SCRYPT = re.compile(r"scrypt\$ln=(\d{1,2}),r=(\d{1,2}),p=(\d{1,2})")
_PBKDF2 = re.compile(r"pbkdf2-sha256\$i=(\d{1,8})")
_HASHING_THREADS, _WAITING_MAX = 2, 16


def hash_secret(secret: str, *, name: str = "", algorithm: Algorithm = "scrypt") -> str:
    """What to keep of a password or token: it proves the secret and does not tell it.

    Raises ConfigurationError for a secret that is easy to guess, such as the account's `name`.
    """
    _check_strength(secret, name)
    return hash_with(SCHEMES[algorithm], secret)


def _check_strength(secret: str, name: str) -> None:
    if not LENGTH_MIN <= len(secret) <= SECRET_CHARACTERS_MAX:
        raise ConfigurationError(
            f"A password or token needs {LENGTH_MIN} to {SECRET_CHARACTERS_MAX} characters, not "
            f"{len(secret)}. A sentence of a few words is easy to keep in mind."
        )
    letters = re.sub(r"[\W\d_]", "", secret.casefold())
    word = re.sub(r"^(.+?)\1*$", r"\1", letters)  # of a word that is repeated
    is_name = bool(name) and name.casefold() in (secret.casefold(), word)
    if is_name or word in _WEAK or len(letters) < 3 or len(set(secret)) < 5:
        raise ConfigurationError(
            "The password is easy to guess: it is a well-known word, the account's name, a number, or "
            "has few different characters. Choose a sentence of a few words, or a random one."
        )


def hash_with(scheme: str, secret: str) -> str:
    salt = secrets.token_bytes(16)
    return f"{scheme}${salt.hex()}${_derive(scheme, secret, salt).hex()}"


def scheme_of(kept: str) -> str:
    """The algorithm and parameters of a hash. Raises ValueError for what is none."""
    scheme, salt, digest = kept.rsplit("$", 2)
    if not (_SCRYPT.fullmatch(scheme) or _PBKDF2.fullmatch(scheme)):
        raise ValueError(f"{scheme[:40]!r} is not a known hash")
    if len(bytes.fromhex(salt)) < 8 or len(bytes.fromhex(digest)) != 32:
        raise ValueError("the hash was cut")
    return scheme


def proves(secret: str, kept: str) -> bool:
    """Whether a secret is the one of which a hash was kept; as slow for a wrong secret."""
    scheme, salt, digest = kept.rsplit("$", 2)
    return hmac.compare_digest(_derive(scheme, secret, bytes.fromhex(salt)), bytes.fromhex(digest))


def _derive(scheme: str, secret: str, salt: bytes) -> bytes:
    if found := _SCRYPT.fullmatch(scheme):
        ln, r, p = map(int, found.groups())
        memory = 128 * r * (2**ln + p + 2)
        return hashlib.scrypt(
            secret.encode(), salt=salt, n=2**ln, r=r, p=p, maxmem=memory + 1_048_576, dklen=32
        )
    found = _PBKDF2.fullmatch(scheme)
    assert found is not None, scheme
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt, int(found[1]), dklen=32)


@cache
def dummy(scheme: str) -> str:
    """A hash of no one's secret: an unknown name takes as long as a known one."""
    return hash_with(scheme, secrets.token_urlsafe(24))


class Hasher:
    """Proves secrets in a few threads of its own, so that guesses hold up neither the event loop nor
    the threads that other work needs."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_HASHING_THREADS, "commandbus-hashing")
        self._waiting = 0

    async def proves(self, secret: str, kept: str) -> bool:
        """Raises Refused when too many wait already."""
        if self._waiting >= _WAITING_MAX:
            raise Refused(503, "Many sign-ins are being checked; try again in a moment.", retry_after=2)
        self._waiting += 1
        try:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, proves, secret, kept)
        finally:
            self._waiting -= 1
