"""A visitor without a browser: asks for a screenful over HTTP as the map does, and looks closely; fills in the form."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.cookiejar import CookieJar
from io import BytesIO
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

from PIL import Image

from testproject.tiles.grid import TILE, TileKey

from .errors import DemoError

CONNECTIONS: Final = 6  # as browsers have to one server
TIMEOUT: Final = 10.0  # seconds, for one answer


class Visitor:
    """Somebody who looks at the map at `url`, no longer than until `deadline` (in `time.monotonic()` seconds)."""

    def __init__(self, url: str, *, deadline: float) -> None:
        self.url = url
        self.deadline = deadline
        self._cookies = CookieJar()
        # No proxy: whatever the environment says, the loopback is here.
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies))

    def open_page(self) -> None:
        """Open the page; its cookie allows what follows."""
        self._get("")

    def ask_often(self, tiles: Iterable[TileKey], *, times: int) -> None:
        """Ask for each tile's picture `times` times at once, whether or not it is finished."""
        asked = [tile for tile in tiles for _ in range(times)]
        self._at_once(self._picture, asked, connections=CONNECTIONS * times)

    def fetch(self, tiles: Sequence[TileKey], *, alive: Callable[[], None]) -> dict[TileKey, bytes]:
        """Look at the tiles, wait for them, fetch them: those that were finished in time.

        `alive` is called while waiting and raises if nobody can be rendering any more.
        """
        here: dict[TileKey, bytes] = {}
        finished = self._post("look", tiles, {"screen": _triples(tiles)})
        while True:
            pictures = self._at_once(self._picture, sorted(finished, key=tiles.index))
            here |= {tile: png for tile, png in pictures if png is not None}
            missing = [tile for tile in tiles if tile not in here]
            if not missing or time.monotonic() > self.deadline:
                return here
            alive()
            finished = self._post("wait", missing, {"tiles": _triples(missing)})

    def send_mail(self, address: str) -> None:
        """Fill in the form of the mail page."""
        form = urlencode({"address": address, "csrfmiddlewaretoken": self._token}).encode()
        self._send(Request(self.url + "mail/", form))  # noqa: S310

    def happenings(self) -> Generator[str, None, None]:
        """What the activity page is fed: the name of each event as it comes, the first at once. Ends in a silence."""
        try:
            with self._opener.open(self.url + "activity/events", timeout=TIMEOUT) as lines:
                for line in lines:
                    if line.startswith(b"event: "):
                        yield line.removeprefix(b"event: ").decode().strip()
        except (URLError, TimeoutError):
            return

    @property
    def _token(self) -> str:
        return next(cookie.value or "" for cookie in self._cookies if cookie.name == "csrftoken")

    def _picture(self, tile: TileKey) -> tuple[TileKey, bytes | None]:
        status, body = self._get(f"tiles/{tile.layer}/{tile.zoom}/{tile.x}/{tile.y}.png")
        return tile, body if status == 200 else None

    def _get(self, path: str) -> tuple[int, bytes]:
        return self._send(Request(self.url + path))  # noqa: S310

    def _post(self, what: str, tiles: Sequence[TileKey], body: dict[str, Any]) -> set[TileKey]:
        layer = tiles[0].layer
        headers = {"Content-Type": "application/json", "X-CSRFToken": self._token}
        request = Request(f"{self.url}tiles/{layer}/{what}", json.dumps(body).encode(), headers)  # noqa: S310
        _, answer = self._send(request)
        return {TileKey(layer, *triple) for triple in json.loads(answer)["finished"]}

    def _send(self, request: Request) -> tuple[int, bytes]:
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                return response.status, response.read()
        except HTTPError as error:
            raise DemoError(f"{request.full_url} answers {error.code} {error.reason}") from error
        except (URLError, TimeoutError) as error:
            raise DemoError(f"{request.full_url} does not answer: {error}") from error

    def _at_once(
        self,
        work: Callable[[TileKey], tuple[TileKey, bytes | None]],
        tiles: Iterable[TileKey],
        *,
        connections: int = CONNECTIONS,
    ) -> list[tuple[TileKey, bytes | None]]:
        with ThreadPoolExecutor(connections, thread_name_prefix="demo-visitor") as pool:
            return list(pool.map(work, tiles))


def flaw(png: bytes) -> str | None:
    """What is wrong with a tile's picture, found by decoding it; None if it is as it should be."""
    try:
        with Image.open(BytesIO(png), formats=["PNG"]) as image:
            image.load()
            size = image.size
    except (OSError, SyntaxError) as error:
        return f"not a PNG that can be decoded ({error})"
    return None if size == (TILE, TILE) else f"{size[0]} by {size[1]} pixels instead of {TILE} by {TILE}"


def _triples(tiles: Iterable[TileKey]) -> list[list[int]]:
    return [[tile.zoom, tile.x, tile.y] for tile in tiles]
