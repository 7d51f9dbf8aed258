"""HTTP: the page, its tiles, and what the page tells and asks while it shows them."""

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict
from datetime import timedelta
from functools import wraps
from typing import Any, Final

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import ensure_csrf_cookie
from django.views.decorators.http import require_GET, require_POST, require_safe

from . import login, viewers
from .grid import MAX_ZOOM, TILE, Screen, TileKey
from .layers import LAYERS, WIDTH

PATIENCE: Final = timedelta(seconds=2)
"""How long a page waits in one request: short, since a page that has moved on leaves its request behind."""

MOST: Final = 1000
"""The most tiles of one request; a screen with its margin has a few hundred at the very most."""


class BadRequest(Exception):
    """What the page sent makes no sense; the message says what."""


def reports_bad_requests(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Answer a `BadRequest` with its message."""

    @wraps(view)
    def wrapped(*args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(*args, **kwargs)
        except BadRequest as error:
            return JsonResponse({"error": str(error)}, status=400)

    return wrapped


@require_safe
@ensure_csrf_cookie
def page(request: HttpRequest) -> HttpResponse:
    """The map."""
    return render(request, "tiles/map.html", {"layers": LAYERS, "settings": page_settings()})


@require_safe
def tile(request: HttpRequest, layer: str, zoom: int, x: int, y: int) -> HttpResponse:  # noqa: ARG001
    """The finished tile as a PNG; or 202, and it is on its way."""
    key = TileKey(_known(layer), zoom, x, y)
    if not key.exists:
        raise Http404(f"The map has no tile {zoom}/{x}/{y}")
    png = viewers.picture(key)
    if png is None:
        return HttpResponse(status=202, headers={"Retry-After": "1", "Cache-Control": "no-store"})
    return HttpResponse(png, content_type="image/png", headers={"Cache-Control": "public, max-age=3600"})


@require_POST
@reports_bad_requests
def look(request: HttpRequest, layer: str) -> HttpResponse:
    """The page says what it shows, its margin, and what it has left; we, what of that is finished."""
    told = _told(request)
    viewers.leave(_tiles(layer, told.get("left", [])))
    finished = viewers.look(_tiles(layer, told.get("screen", [])), _tiles(layer, told.get("margin", [])))
    return _answer(finished)


@require_POST
@reports_bad_requests
def wait(request: HttpRequest, layer: str) -> HttpResponse:
    """The page says what it lacks; we, as soon as some of it is finished, what."""
    return _answer(viewers.wait(_tiles(layer, _told(request).get("tiles", [])), PATIENCE))


@require_GET
@never_cache
def status(request: HttpRequest) -> HttpResponse:  # noqa: ARG001
    """What goes on, for the strip at the foot of the page."""
    now = viewers.status()
    queue = {name: value for name, value in asdict(now.queue).items() if isinstance(value, int)}
    return JsonResponse({"queue": queue, "rate": now.rate, "asked": now.asked, "rendered": now.rendered})


@require_GET
@never_cache
def admin_login(request: HttpRequest, token: str) -> HttpResponse:
    """Log in by a one-off link."""
    if not login.redeem(request, token):
        return render(
            request, "tiles/login_refused.html", {"minutes": login.VALID_FOR // timedelta(minutes=1)}, status=403
        )
    return redirect(reverse("admin:index"))


def page_settings() -> dict[str, Any]:
    """What the page's script has to know."""
    opening = Screen.opening(next(iter(LAYERS)))
    return {
        "tileSize": TILE,
        "maxZoom": MAX_ZOOM,
        "openingZoom": opening.zoom,
        "planeWidth": WIDTH,
        "tileUrl": reverse("tiles:page") + "tiles/{layer}/{zoom}/{x}/{y}.png",
        "lookUrl": reverse("tiles:page") + "tiles/{layer}/look",
        "waitUrl": reverse("tiles:page") + "tiles/{layer}/wait",
        "statusUrl": reverse("tiles:status"),
        "layers": [
            {
                "slug": slug,
                "title": layer.title,
                "origin": _point(layer.origin),
                "places": [
                    {"name": place.name, **_point((place.at - layer.origin) / WIDTH), "zoom": place.zoom}
                    for place in layer.places
                ],
            }
            for slug, layer in LAYERS.items()
        ],
    }


def _point(at: complex) -> dict[str, float]:
    return {"x": at.real, "y": at.imag}


def _known(layer: str) -> str:
    if layer not in LAYERS:
        raise Http404(f"There is no layer {layer}; there are {', '.join(LAYERS)}")
    return layer


def _told(request: HttpRequest) -> dict[str, Any]:
    try:
        told = json.loads(request.body)
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(told, dict):
        raise BadRequest("the body must be a JSON object")
    return told


def _tiles(layer: str, triples: Any) -> list[TileKey]:
    if not isinstance(triples, list) or len(triples) > MOST:
        raise BadRequest(f"tiles come as a list of at most {MOST} of [zoom, x, y]")
    keys = list(_keys(_known(layer), triples))
    return list(dict.fromkeys(keys))


def _keys(layer: str, triples: list[Any]) -> Iterable[TileKey]:
    for triple in triples:
        match triple:
            case [int(zoom), int(x), int(y)] if (key := TileKey(layer, zoom, x, y)).exists:
                yield key
            case _:
                raise BadRequest(f"not the [zoom, x, y] of a tile of this map: {triple!r}")


def _answer(finished: Iterable[TileKey]) -> HttpResponse:
    return JsonResponse({"finished": [[key.zoom, key.x, key.y] for key in finished]})
