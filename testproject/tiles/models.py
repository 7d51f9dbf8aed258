"""The finished tiles, in a table: where every process finds them, whichever rendered them."""

from collections.abc import Iterable
from datetime import timedelta

from django.db import models
from django.db.models import F, Sum
from django.db.models.functions import Now

from .grid import TileKey


class TileManager(models.Manager["Tile"]):
    """Finished tiles by key."""

    def finished(self, keys: Iterable[TileKey]) -> set[TileKey]:
        """Which of the keys have been rendered."""
        wanted = [(key.layer, key.zoom, key.x, key.y) for key in keys]
        return {TileKey(*found) for found in self.filter(pk__in=wanted).values_list("layer", "zoom", "x", "y")}

    def png(self, key: TileKey) -> bytes | None:
        """The picture, or None while there is none."""
        found = self.filter(pk=(key.layer, key.zoom, key.x, key.y)).values_list("png", flat=True).first()
        return None if found is None else bytes(found)

    def store(self, key: TileKey, png: bytes, *, took: timedelta) -> None:
        """Keep the picture, and count that it was rendered."""
        self.update_or_create(
            layer=key.layer,
            zoom=key.zoom,
            x=key.x,
            y=key.y,
            defaults={"png": png, "took": took, "rendered_at": Now(), "renders": F("renders") + 1},
            create_defaults={"png": png, "took": took},
        )

    def renders(self, within: timedelta | None = None) -> int:
        """How often a tile was rendered, counting tiles that were rendered last within the time."""
        tiles = self.all() if within is None else self.filter(rendered_at__gt=Now() - within)
        total: int | None = tiles.aggregate(total=Sum("renders"))["total"]
        return total or 0

    def rendered_again(self, keys: Iterable[TileKey]) -> dict[TileKey, int]:
        """Which of the keys were rendered more than once, and how often."""
        wanted = [(key.layer, key.zoom, key.x, key.y) for key in keys]
        again = self.filter(pk__in=wanted, renders__gt=1).values_list("layer", "zoom", "x", "y", "renders")
        return {TileKey(layer, zoom, x, y): renders for layer, zoom, x, y, renders in again}


class Tile(models.Model):
    """One rendered tile."""

    pk = models.CompositePrimaryKey("layer", "zoom", "x", "y")
    layer = models.CharField(max_length=32)
    zoom = models.SmallIntegerField()
    x = models.BigIntegerField()
    y = models.BigIntegerField()
    png = models.BinaryField()
    took = models.DurationField()
    rendered_at = models.DateTimeField(db_default=Now(), db_index=True)
    renders = models.PositiveIntegerField(default=1)

    objects = TileManager()

    def __str__(self) -> str:
        return f"{self.layer} {self.zoom}/{self.x}/{self.y}"
