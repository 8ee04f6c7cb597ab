"""Checklists: started, ticked with the time, shared to read or to tick, by page and by API."""

from __future__ import annotations

import re
from datetime import datetime

from fastapi.testclient import TestClient

HTMX = {"HX-Request": "true", "HX-Request-Type": "partial"}
API = "/api/v1/team-checklists"


def started(client: TestClient, title: str = "Our server") -> str:
    """The address of a team's copy of the decode list."""
    answer = client.post("/library/checklists/decode", data={"title": title})
    assert answer.status_code == 303
    return str(answer.headers["location"])


def ticked(page: str) -> set[str]:
    return set(re.findall(r'name="tick\.([a-z-]+)" value="1" checked', page))


def test_a_list_is_started_and_ticked_without_javascript(client: TestClient) -> None:
    address = started(client)
    page = client.get(address).text
    assert "0 of 5 done" in page
    assert ticked(page) == set()
    answer = client.post(f"{address}/ticks", data={"was": "", "tick.kv-bytes": "1", "tick.weights": "1"})
    assert (answer.status_code, answer.headers["location"]) == (303, address)
    page = client.get(address).text
    assert ticked(page) == {"kv-bytes", "weights"}
    assert "2 of 5 done" in page
    assert re.search(r"Ticked \d{4}-\d\d-\d\d \d\d:\d\d UTC\.", page)
    assert "Our server" in client.get("/library/checklists").text
    assert "2 of 5" in client.get("/library/checklists/decode").text


def test_two_people_do_not_undo_each_other(client: TestClient) -> None:
    address = started(client)
    client.post(f"{address}/ticks", data={"was": "", "tick.kv-bytes": "1"})
    # a second form was opened before, and ticks something else
    swapped = client.post(f"{address}/ticks", data={"was": "", "tick.kernel": "1"}, headers=HTMX)
    assert swapped.status_code == 200
    assert "<html" not in swapped.text
    assert ticked(swapped.text) == {"kv-bytes", "kernel"}
    undone = client.post(f"{address}/ticks", data={"was": "kv-bytes kernel", "tick.kernel": "1"}, headers=HTMX)
    assert ticked(undone.text) == {"kernel"}


def test_a_link_to_read_and_a_link_to_tick(client: TestClient) -> None:
    address = started(client)
    links = {}
    for may in ("read", "tick"):
        page = client.post(f"{address}/shares", data={"may": may, "expires": "604800"})
        assert page.status_code == 201
        assert page.headers["Cache-Control"] == "no-store"
        found = re.search(r"/library/checklists/shares/([A-Za-z0-9_-]{22})\"", page.text)
        assert found is not None
        links[may] = f"/library/checklists/shares/{found[1]}"
    assert links["read"] not in client.get(address).text, "a token is shown once"
    for may, link in links.items():
        shown = client.get(link)
        assert shown.status_code == 200
        assert "noindex" in shown.headers["X-Robots-Tag"]
        assert shown.headers["Cache-Control"] == "private, no-store"
        assert ("disabled" in shown.text) == (may == "read")
        assert address not in shown.text
        answer = client.post(f"{link}/ticks", data={"was": "", f"tick.{'kernel' if may == 'tick' else 'weights'}": "1"})
        assert answer.status_code == (303 if may == "tick" else 404)
    assert ticked(client.get(address).text) == {"kernel"}
    records = client.get(f"{API}/{address.rsplit('/', 1)[1]}/shares").json()["items"]
    assert [record["can_tick"] for record in records] == [True, False]
    for record in records:
        assert client.post(f"{address}/shares/{record['id']}/revoke").status_code == 303
    assert [client.get(link).status_code for link in links.values()] == [404, 404]
    assert client.get("/library/checklists/shares/unknown").status_code == 404


def test_the_api_ticks_renames_and_shares(client: TestClient) -> None:
    made = client.post(API, json={"list": "month-plan"})
    assert made.status_code == 201
    team = made.json()
    assert (team["title"], team["items"], team["done"]) == ("One month of engineering", 11, 0)
    place = f"{API}/{team['id']}"
    assert made.headers["location"] == place
    first = client.patch(place, json={"ticks": {"breaks": True}, "title": "October"}).json()
    assert first["title"] == "October"
    when = first["ticks"]["breaks"]
    assert datetime.fromisoformat(when).tzinfo is not None
    again = client.patch(place, json={"ticks": {"breaks": True, "harness": True}}).json()
    assert again["ticks"]["breaks"] == when, "what is ticked keeps its time"
    assert again["done"] == 2
    assert client.patch(place, json={"ticks": {"breaks": False}}).json()["done"] == 1
    link = client.post(f"{place}/share", json={"can_tick": True}).json()
    opened = client.get(f"/api/v1/checklist-shares/{link['token']}").json()
    assert opened["ticks"].keys() == {"harness"}
    assert "id" not in opened
    by_link = client.patch(f"/api/v1/checklist-shares/{link['token']}", json={"ticks": {"tail": True}, "title": "No"})
    assert by_link.json()["done"] == 2
    assert client.get(place).json()["title"] == "October"
    assert client.get(API, params={"list": "month-plan"}).json()["total"] == 1
    assert client.get(API, params={"list": "decode"}).json()["total"] == 0
    assert client.delete(f"{place}/shares/{link['id']}").status_code == 204
    assert client.get(f"/api/v1/checklist-shares/{link['token']}").status_code == 404
    assert client.delete(place).status_code == 204
    assert client.get(place).status_code == 404


def test_what_is_wrong_is_said(client: TestClient) -> None:
    assert client.post(API, json={"list": "coffee"}).status_code == 422
    place = f"{API}/{client.post(API, json={'list': 'decode'}).json()['id']}"
    refused = client.patch(place, json={"ticks": {"tea": True}})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["loc"] == ["ticks", "tea"]
    assert client.patch(place, json={"ticks": {"kernel": 1}}).status_code == 422
    assert client.patch(place, json={"title": "a\nb"}).status_code == 422
    for title in ("x" * 201, "a\x01b"):
        page = client.post("/library/checklists/decode", data={"title": title})
        assert page.status_code == 422
        assert "field-error" in page.text
    hostile = started(client, "<script>alert(1)</script>")
    assert "<script>alert" not in client.get(hostile).text
    assert client.post("/library/checklists/nothing", data={}).status_code == 404
    assert client.post("/library/checklists/team/nothing/ticks", data={}).status_code == 404


def test_a_copy_and_its_links_are_deleted(client: TestClient) -> None:
    address = started(client)
    page = client.post(f"{address}/shares", data={"may": "read"})
    link = re.search(r"(/library/checklists/shares/[A-Za-z0-9_-]+)\"", page.text)
    assert link is not None
    assert client.post(f"{address}/delete").headers["location"] == "/library/checklists"
    assert client.get(address).status_code == 404
    assert client.get(link[1]).status_code == 404
