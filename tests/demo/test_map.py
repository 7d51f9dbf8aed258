"""The page, its tiles, and what it tells and asks over HTTP."""

import json
import threading
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from testproject.tiles import viewers
from testproject.tiles.grid import TileKey
from testproject.tiles.layers import LAYERS
from testproject.tiles.models import Tile
from testproject.tiles.queues import tiles
from testproject.tiles.tasks import render_tile
from tests.demo.page import holds_nothing_inline

pytestmark = pytest.mark.django_db

PNG = b"\x89PNG, as far as HTTP is concerned"
NEAR, FAR, OFF = TileKey("julia", 3, 4, 4), TileKey("julia", 3, 5, 4), TileKey("julia", 3, 6, 4)


def url(tile):
    return reverse("tiles:tile", args=[tile.layer, tile.zoom, tile.x, tile.y])


def finish(*keys):
    for key in keys:
        Tile.objects.store(key, PNG, took=timedelta(0))


def post(client, what, body, layer="julia"):
    return client.post(f"/tiles/{layer}/{what}", json.dumps(body), content_type="application/json")


def triple(tile):
    return [tile.zoom, tile.x, tile.y]


def claimed():
    """The keys of the queue, in the order in which workers get them."""
    return [item.key for item in tiles.claim()]


def work_off():
    """What workers do, by hand, until nothing is left."""
    while items := tiles.claim():
        for item in items:
            render_tile(item)
        tiles.complete(*items)


# Tiles


def test_a_finished_tile_is_a_picture_that_may_be_kept(client):
    finish(NEAR)
    response = client.get(url(NEAR))
    assert (response.status_code, response["Content-Type"], response.content) == (200, "image/png", PNG)
    assert "max-age" in response["Cache-Control"]


def test_a_finished_tile_is_not_enqueued_again(client):
    finish(NEAR)
    client.get(url(NEAR))
    assert claimed() == []


def test_an_unfinished_tile_is_on_its_way(client):
    response = client.get(url(NEAR))
    assert (response.status_code, response["Cache-Control"]) == (202, "no-store")
    assert claimed() == [NEAR]


@pytest.mark.parametrize(
    "path", ["nothing/0/0/0", "julia/0/1/0", "julia/0/0/-1", "julia/41/0/0", "julia/99999999999999999999/0/0"]
)
def test_a_tile_that_the_map_does_not_have_is_not_found_and_not_enqueued(client, path):
    assert client.get(f"/tiles/{path}.png").status_code == 404
    assert claimed() == []


# What is on screen comes first


def test_the_screen_goes_before_its_margin_and_its_centre_before_its_rim(client):
    screen = [TileKey("julia", 6, x, 10) for x in range(44, 29, -1)]  # not as keys sort
    margin = [TileKey("julia", 6, x, 9) for x in range(30, 45)]
    post(client, "look", {"screen": [triple(tile) for tile in screen], "margin": [triple(tile) for tile in margin]})
    order = claimed()
    assert set(order[:4]) == set(screen[:4])
    assert set(order[:15]) == set(screen)
    assert set(order[15:]) == set(margin)


def test_panning_raises_what_comes_on_screen(client):
    post(client, "look", {"screen": [triple(NEAR)], "margin": [triple(FAR), triple(OFF)]})
    tiles.claim(1)
    post(client, "look", {"screen": [triple(OFF)], "margin": [triple(FAR)]})
    assert claimed() == [OFF, FAR]


def test_what_has_left_the_screen_is_no_longer_wanted(client):
    post(client, "look", {"screen": [triple(NEAR)], "margin": [triple(FAR)]})
    post(client, "look", {"screen": [triple(OFF)], "left": [triple(NEAR), triple(FAR)]})
    assert claimed() == [OFF]


def test_what_is_being_rendered_is_not_taken_away_from_its_worker(client):
    post(client, "look", {"screen": [triple(NEAR)], "margin": [triple(FAR)]})
    (item,) = tiles.claim(1)
    post(client, "look", {"left": [triple(NEAR), triple(FAR)]})
    assert claimed() == []
    assert tiles.complete(item) == 1


def test_the_view_answers_what_is_finished_already(client):
    finish(FAR, OFF)
    response = post(client, "look", {"screen": [triple(NEAR), triple(FAR)], "margin": [triple(OFF)]})
    assert sorted(response.json()["finished"]) == [triple(FAR), triple(OFF)]
    assert claimed() == [NEAR]


def test_a_screen_has_few_priorities_whatever_its_size():
    viewers.look([TileKey("julia", 9, x, y) for x in range(30) for y in range(30)])
    priorities = {item.priority for item in tiles.claim(900)}
    assert max(priorities) == viewers.SCREEN
    assert min(priorities) > viewers.MARGIN
    assert len(priorities) <= 64


# Asking twice renders once


def test_asking_twice_renders_once(client):
    for _ in range(2):
        client.get(url(NEAR))
        post(client, "look", {"screen": [triple(NEAR)]})
    work_off()
    assert client.get(url(NEAR)).status_code == 200
    assert Tile.objects.get(pk=("julia", 3, 4, 4)).renders == 1


def test_asking_while_it_is_being_rendered_renders_once(client):
    client.get(url(NEAR))
    (item,) = tiles.claim()
    client.get(url(NEAR))
    render_tile(item)
    tiles.complete(item)
    work_off()
    assert Tile.objects.get(pk=("julia", 3, 4, 4)).renders == 1


def test_a_second_rendering_would_be_counted():
    finish(NEAR, NEAR, FAR)
    assert Tile.objects.rendered_again([NEAR, FAR]) == {NEAR: 2}
    assert Tile.objects.renders() == 3


def test_the_strip_tells_asked_from_rendered(client, monkeypatch):
    monkeypatch.setattr(viewers, "asked", viewers.Asked())
    for _ in range(3):
        client.get(url(NEAR))
    work_off()
    client.get(url(NEAR))
    status = client.get(reverse("tiles:status")).json()
    assert (status["asked"], status["rendered"]) == (3, 1)
    assert status["rate"] > 0
    assert (status["queue"]["ready"], status["queue"]["completed"]) == (0, 1)


# Waiting


def test_a_wait_for_what_is_finished_returns_at_once(client):
    finish(FAR)
    assert post(client, "wait", {"tiles": [triple(NEAR), triple(FAR)]}).json() == {"finished": [triple(FAR)]}


@pytest.mark.django_db(transaction=True)
def test_a_wait_returns_when_a_tile_is_finished(aside, monkeypatch):
    looked = threading.Event()
    finished = Tile.objects.finished
    monkeypatch.setattr(Tile.objects, "finished", lambda keys: (finished(keys), looked.set())[0])
    waiting = aside(viewers.wait, [NEAR, FAR], timedelta(seconds=30))
    assert looked.wait(10)
    finish(FAR)
    assert waiting.result(10) == {FAR}


def test_a_wait_ends_when_patience_does():
    assert viewers.wait([NEAR], timedelta(0)) == set()


# What makes no sense


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("{", "not JSON"),
        ("[]", "object"),
        ('{"screen": 5}', "list"),
        ('{"screen": [[1, 2]]}', "[1, 2]"),
        ('{"screen": [["a", 0, 0]]}', "'a'"),
        ('{"screen": [[3, 8, 0]]}', "[3, 8, 0]"),
        ('{"margin": [[0.5, 0, 0]]}', "0.5"),
        ('{"left": [null]}', "None"),
        (json.dumps({"screen": [[12, x, 0] for x in range(1001)]}), "1000"),
    ],
)
def test_a_body_that_makes_no_sense_is_refused_in_a_sentence(client, body, says):
    response = client.post("/tiles/julia/look", body, content_type="application/json")
    assert response.status_code == 400
    assert says in response.json()["error"]
    assert claimed() == []


def test_a_look_at_an_unknown_layer_is_not_found(client):
    assert post(client, "look", {"screen": [[0, 0, 0]]}, layer="nothing").status_code == 404


def test_only_the_page_itself_may_look():
    client = Client(enforce_csrf_checks=True)
    assert post(client, "look", {"screen": [triple(NEAR)]}).status_code == 403
    token = client.get("/").cookies["csrftoken"].value
    response = client.post(
        "/tiles/julia/look",
        json.dumps({"screen": [triple(NEAR)]}),
        content_type="application/json",
        headers={"X-CSRFToken": token},
    )
    assert response.status_code == 200


# The page


def test_the_page_names_every_layer_and_holds_nothing_inline(client):
    page = client.get("/").content.decode()
    for layer in LAYERS.values():
        assert layer.title in page
    holds_nothing_inline(page)


def test_the_places_of_a_layer_lie_on_it(client):
    for layer in client.get("/").context["settings"]["layers"]:
        assert layer["places"]
        for place in layer["places"]:
            assert 0 < place["x"] < 1
            assert 0 < place["y"] < 1
