"""The form of web addresses in the catalogue: what a reader can open, written the one way that stays valid."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from app.catalog.fields import Fields

_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9-]*[a-z0-9])?\.)+[a-z]{2,}")
_ARXIV = re.compile(r"/abs/\d{4}\.\d{4,5}(?:v\d+)?")
_REPOSITORY = re.compile(r"/[\w.-]+/[\w.-]+(?:/[\w./%-]+)?")


def link_problem(url: str) -> str | None:
    """What is wrong with the form of an address, or None. Nothing is fetched."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return "is no web address"
    host = parts.hostname or ""
    if parts.scheme != "https":
        return "must start with https://"
    if not _HOST.fullmatch(host) or port is not None or "@" in parts.netloc:
        return "must name a public host, without port or user"
    if host == "arxiv.org" and (not _ARXIV.fullmatch(parts.path) or parts.query):
        return "of arXiv must be that of the abstract: https://arxiv.org/abs/2205.14135"
    if host == "github.com" and not _REPOSITORY.fullmatch(parts.path):
        return "of GitHub must name a repository: https://github.com/owner/name"
    return None


def checked_link(fields: Fields, key: str) -> str | None:
    """The address in a field. Raises InvalidInput where its form is wrong."""
    url = fields.link(key)
    problem = None if url is None else link_problem(url)
    if problem is not None:
        raise fields.fail(key, problem)
    return url
