"""Secrets of links: 128 random bits, of which only the SHA-256 is stored, so the database alone opens nothing."""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta

from app.storage.errors import InvalidValue

MAX_TOKEN_LENGTH = 128


def new_token() -> tuple[str, str]:
    """A token, which its creator sees once, and the digest that is stored."""
    token = secrets.token_urlsafe(16)
    return token, hashlib.sha256(token.encode("ascii")).hexdigest()


def digest_of(token: str) -> str | None:
    """The digest under which a token would be stored; None for a text that is no token of ours."""
    if not token.isascii() or len(token) > MAX_TOKEN_LENGTH:
        return None
    return hashlib.sha256(token.encode("ascii")).hexdigest()


def expiry(moment: datetime, expires_in: timedelta | None) -> datetime | None:
    """When a link that is made at `moment` ends; None for never. Raises InvalidValue."""
    if expires_in is None:
        return None
    if expires_in <= timedelta(0):
        raise InvalidValue("a link must expire in the future")
    try:
        return moment + expires_in
    except OverflowError:
        raise InvalidValue("a link cannot expire after the year 9999; leave the time out instead") from None
