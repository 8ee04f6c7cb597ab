"""What stands in front of the routes: headers, same origin, rate limits, body caps, strict JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi.testclient import TestClient
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from app.main import create_app
from app.settings import RateLimits, Settings
from app.web.deps import client_address
from app.web.routes import ROUTERS
from app.web.security import MAX_DROPPED_BYTES, BodyLimits, KnownHost, NotStrictJson, TokenBuckets, check_json

GEMM = {"hardware": "nvidia-h100-sxm", "op": {"op": "gemm", "m": 64, "n": 64, "k": 64}}
OP = "/api/v1/estimates/op"

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='; "
    "style-src-attr 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


class Clock:
    """A monotonic clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def client_of(settings: Settings, clock: Clock | None = None) -> TestClient:
    return TestClient(create_app(settings, clock=clock or Clock()), follow_redirects=False)


# ---- headers --------------------------------------------------------------------------------------------------------


def plain_addresses() -> list[str]:
    """Every address that can be opened without knowing an id."""
    found = {route.path for router in ROUTERS for route in router.routes if "GET" in (route.methods or ())}
    return sorted({path for path in found if "{" not in path} | {"/nothing/here", "/static/css/app.css"})


@pytest.mark.parametrize("path", plain_addresses())
def test_every_answer_carries_the_headers(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code < 500
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] in ("same-origin", "no-referrer")
    assert answer.headers["cross-origin-opener-policy"] == "same-origin"
    assert "camera=()" in answer.headers["permissions-policy"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", plain_addresses())
def test_pages_have_no_inline_script_or_foreign_file(client: TestClient, path: str) -> None:
    answer = client.get(path)
    if not answer.headers.get("content-type", "").startswith("text/html"):
        return
    text = answer.text.lower()
    for chunk in text.split("<script")[1:]:
        tag = chunk.partition(">")[0]
        assert "src=" in tag or 'type="application/json"' in tag, tag
        assert "//" not in tag
    for attribute in (" onclick=", " onload=", " onerror=", " onchange=", " hx-on", "javascript:"):
        assert attribute not in text


def test_head_is_get_without_the_body(client: TestClient) -> None:
    for path in ("/healthz", "/api/docs", "/static/css/app.css"):
        answer = client.head(path)
        assert answer.status_code == 200
        assert answer.content == b""


# ---- same origin ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Sec-Fetch-Site": "same-origin"}, True),
        ({"Sec-Fetch-Site": "none"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://testserver"}, False),
        ({"Origin": "http://testserver"}, True),
        ({"Origin": "http://evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://testserver:81"}, False),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer abc"}, True),
        ({"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer abc", "Cookie": "a=b"}, False),
    ],
)
def test_a_change_must_come_from_our_own_pages(client: TestClient, headers: dict[str, str], allowed: bool) -> None:
    answer = client.post(OP, json=GEMM, headers=headers)
    assert answer.status_code == (200 if allowed else 403)
    if not allowed:
        assert answer.json()["type"] == "/api/docs#problem-cross-site"


def test_reading_is_not_restricted(client: TestClient) -> None:
    assert client.get("/api/v1/formats", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200


def test_the_public_address_counts_where_there_is_one(settings: Settings) -> None:
    client = client_of(replace(settings, public_url="https://bytebound.example.org/tools"))
    ours = client.post(OP, json=GEMM, headers={"Origin": "https://bytebound.example.org"})
    inner = client.post(OP, json=GEMM, headers={"Origin": "http://testserver"})
    assert (ours.status_code, inner.status_code) == (200, 403)


# ---- host -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("named", "listening", "public", "allowed"),
    [
        ("127.0.0.1:8000", "127.0.0.1", None, True),
        ("LocalHost:8000", "127.0.0.1", None, True),
        ("[::1]:8000", "::1", None, True),
        ("bytebound.localhost", "localhost", None, True),
        ("perfbox:8000", "127.0.0.1", None, True),
        ("evil.example:8000", "127.0.0.1", None, False),
        ("evil.example", "localhost", None, False),
        ("127.0.0.1.evil.example", "127.0.0.1", None, False),
        ("localhost.evil.example", "127.0.0.1", None, False),
        ("[::1", "127.0.0.1", None, False),
        ("bytebound.example.org", "127.0.0.1", "https://bytebound.example.org/tools", True),
        ("evil.example", "127.0.0.1", "https://bytebound.example.org/tools", False),
        ("box.example.org:8000", "0.0.0.0", None, True),
    ],
)
def test_a_local_server_answers_to_no_foreign_name(
    named: str, listening: str, public: str | None, allowed: bool
) -> None:
    """A page that points its own name at this machine would count as the same site to its browser."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        await Response("reached")(scope, receive, send)

    for path in ("/", "/api/v1/runs"):
        answer = TestClient(KnownHost(inner, listening, public)).get(path, headers={"Host": named})
        assert answer.status_code == (200 if allowed else 421)
        assert ("BYTEBOUND_PUBLIC_URL" in answer.text) is not allowed


def test_the_host_is_checked_before_anything_else(client: TestClient) -> None:
    headers = {"Host": "evil.example", "Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"}
    assert client.delete("/api/v1/runs/some", headers=headers).status_code == 421
    assert "evil.example" in client.get("/static/css/app.css", headers=headers).text


# ---- body caps ------------------------------------------------------------------------------------------------------


def pieces(size: int) -> Iterator[bytes]:
    for _ in range(size // 1000):
        yield b" " * 1000


@pytest.mark.parametrize("path", ["/api/v1/runs", "/runs", OP, "/api/v1/hardware", "/nothing/here"])
def test_a_body_that_announces_more_than_the_cap_is_refused_unread(settings: Settings, path: str) -> None:
    client = client_of(replace(settings, max_upload_bytes=5000))
    answer = client.post(path, content=b" " * 6000, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "5000 bytes" in answer.text


@pytest.mark.parametrize("path", ["/api/v1/runs", OP, "/api/v1/hardware"])
def test_a_body_without_a_length_is_counted_as_it_comes(settings: Settings, path: str) -> None:
    client = client_of(replace(settings, max_upload_bytes=5000))
    answer = client.post(path, content=pieces(6000), headers={"Content-Type": "application/json"})
    assert "content-length" not in answer.request.headers
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["/api/v1/runs", "/runs"])
def test_a_form_without_a_length_is_counted_as_it_comes(settings: Settings, path: str) -> None:
    def form() -> Iterator[bytes]:
        yield b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.json"\r\n\r\n'
        yield from pieces(6000)
        yield b"\r\n--x--\r\n"

    client = client_of(replace(settings, max_upload_bytes=5000))
    answer = client.post(path, content=form(), headers={"Content-Type": "multipart/form-data; boundary=x"})
    assert answer.status_code == 413
    assert "5000 bytes" in answer.text


def test_the_rest_of_a_refused_body_is_taken_off_the_line() -> None:
    """Else the connection is reset, and the sender never reads why."""

    def received(announced: int, **headers: str) -> tuple[int, int]:
        taken, sent = 0, []

        async def receive() -> Message:
            nonlocal taken
            taken += 2**20
            return {"type": "http.request", "body": bytes(2**20), "more_body": taken < announced}

        async def send(message: Message) -> None:
            sent.append(message)

        fields = {"content-length": str(announced), "content-type": "application/json", **headers}
        raw = [(name.encode(), value.encode()) for name, value in fields.items()]
        scope = {"type": "http", "method": "POST", "path": OP, "headers": raw, "query_string": b""}
        limits = BodyLimits(Response("reached"), max_upload_bytes=2**30)
        with start_blocking_portal() as portal:  # in a thread of its own: this one may drive a browser
            portal.call(limits, scope, receive, send)
        return sent[0]["status"], taken

    assert received(20 * 2**20) == (413, 20 * 2**20)
    assert received(10 * MAX_DROPPED_BYTES) == (413, MAX_DROPPED_BYTES)
    assert received(20 * 2**20, expect="100-continue") == (413, 0)


def test_only_uploads_may_be_large(settings: Settings) -> None:
    client = client_of(settings)
    large = b'{"a": "' + b"x" * (4 * 2**20) + b'"}'
    assert client.post(OP, content=large, headers={"Content-Type": "application/json"}).status_code == 413
    upload = client.post("/api/v1/runs?filename=a.json", content=large)
    assert upload.status_code == 422  # read in full, and not a benchmark


def test_a_content_length_that_is_no_number_is_no_way_around(settings: Settings) -> None:
    client = client_of(replace(settings, max_upload_bytes=5000))
    headers = {"Content-Type": "application/json", "Content-Length": "9" * 400}
    assert client.post(OP, content=b"{}", headers=headers).status_code == 413


# ---- strict JSON ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"hardware": ', "line 1"),
        (b"", None),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a":' * 70 + b"1" + b"}" * 70, "nested deeper"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "-Infinity"),
        (b'{"a": 1e999}', "larger than"),
        (b'{"a": ' + b"9" * 5000 + b"}", "thousands of digits"),
        (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": "\\ud800"}', "half a character"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
    ],
)
def test_a_body_that_is_no_strict_json_is_malformed(client: TestClient, body: bytes, words: str | None) -> None:
    answer = client.post(OP, content=body, headers={"Content-Type": "application/json"})
    if words is None:
        assert answer.status_code == 422
        return
    assert answer.status_code == 400
    assert answer.json()["type"] == "/api/docs#problem-malformed"
    assert words in answer.json()["detail"]


def test_what_json_allows_is_let_through() -> None:
    check_json(b'{"a": [1, -2.5e-3, null, true, "\\ud83d\\ude00", "\\\\ud800"], "b": {"a": {}}}')
    check_json(b'{"a":' * 63 + b"1" + b"}" * 63)
    check_json(b'"text"')
    with pytest.raises(NotStrictJson):
        check_json(b'{"a":' * 65 + b"1" + b"}" * 65)


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
def test_another_content_type_is_refused_with_the_right_one(client: TestClient, content_type: str) -> None:
    answer = client.post(OP, content=b'{"hardware": "h"}', headers={"Content-Type": content_type})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["detail"]


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8", "application/x+json"])
def test_json_by_any_of_its_names(client: TestClient, content_type: str) -> None:
    answer = client.post(OP, content=b'{"hardware": "h"}', headers={"Content-Type": content_type})
    assert answer.status_code == 422


# ---- rate limits ----------------------------------------------------------------------------------------------------


def test_a_bucket_refills_steadily(clock: Clock) -> None:
    bucket = TokenBuckets(60, clock)
    assert [bucket.take("a") for _ in range(60)] == [0.0] * 60
    assert bucket.take("a") == pytest.approx(1.0)
    assert bucket.take("b") == 0.0
    clock.now += 0.25
    assert bucket.take("a") == pytest.approx(0.75)
    clock.now += 0.75
    assert bucket.take("a") == 0.0
    assert bucket.take("a") > 0
    clock.now += 3600
    assert [bucket.take("a") for _ in range(60)] == [0.0] * 60
    assert bucket.take("a") > 0


def test_buckets_of_many_clients_take_bounded_memory(clock: Clock) -> None:
    bucket = TokenBuckets(60, clock, most=100)
    for client in range(1000):
        bucket.take(str(client))
    assert len(bucket._buckets) <= 100
    clock.now += 60
    bucket.take("one more")
    assert len(bucket._buckets) == 1


@pytest.mark.parametrize(
    ("method", "path", "limits"),
    [
        ("POST", OP, RateLimits(1000, 3, 1000)),
        ("GET", "/explore", RateLimits(1000, 3, 1000)),
        ("POST", "/api/v1/runs", RateLimits(3, 1000, 1000)),
        ("GET", "/s/abcdefgh", RateLimits(1000, 1000, 3)),
        ("GET", "/api/v1/shares/abcdefgh", RateLimits(1000, 1000, 3)),
    ],
)
def test_the_fourth_of_three_is_refused(
    settings: Settings, clock: Clock, method: str, path: str, limits: RateLimits
) -> None:
    client = client_of(replace(settings, rate_limits=limits), clock)
    statuses = [client.request(method, path).status_code for _ in range(4)]
    assert 429 not in statuses[:3]
    assert statuses[3] == 429
    refused = client.request(method, path)
    assert refused.headers["retry-after"] == "21"  # 3 a minute is one every 20 s
    assert client.get("/healthz").status_code == 200
    clock.now += 21
    assert client.request(method, path).status_code != 429


def test_zero_switches_a_limit_off(settings: Settings, clock: Clock) -> None:
    client = client_of(replace(settings, rate_limits=RateLimits(0, 0, 0)), clock)
    assert {client.post(OP, json=GEMM).status_code for _ in range(20)} == {200}


# ---- who asks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("peer", "forwarded", "trusted", "counted"),
    [
        ("192.0.2.1", None, (), "192.0.2.1"),
        ("192.0.2.1", "198.51.100.7", (), "192.0.2.1"),
        ("10.0.0.1", "198.51.100.7", ("10.0.0.0/8",), "198.51.100.7"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7", ("10.0.0.0/8",), "198.51.100.7"),
        ("10.0.0.1", "203.0.113.9, 198.51.100.7, 10.0.0.2", ("10.0.0.0/8",), "198.51.100.7"),
        ("10.0.0.1", None, ("10.0.0.0/8",), "10.0.0.1"),
        ("10.0.0.1", "no address", ("10.0.0.0/8",), "no address"),
        ("2001:db8::1:2:3:4", None, (), "2001:db8::"),
        ("::ffff:192.0.2.1", None, (), "192.0.2.1"),
    ],
)
def test_the_address_that_limits_count_by(
    peer: str, forwarded: str | None, trusted: tuple[str, ...], counted: str
) -> None:
    headers = [] if forwarded is None else [(b"x-forwarded-for", forwarded.encode())]
    assert client_address({"type": "http", "client": (peer, 1), "headers": headers}, trusted) == counted
