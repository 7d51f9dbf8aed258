// The map's arithmetic: views, tiles, and which tiles a view shows. Knows nothing of the page.
//
// A layer spans 0 to 1 in x and y; at level n it is 2**n tiles wide and high. A view is the point {x, y} in the middle
// of the window and a zoom, which need not be whole. JavaScript's numbers are float64, so the tile numbers of every
// level that the server renders are exact.

export const TILE = 256;
const COARSER = 3; // levels, of the backdrop: up to 64 tiles behind one that is soon there
const FRAME = { width: 0.36, height: 0.3 }; // of a layer: what the opening view must show

export const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

/** CSS pixels from one side of the layer to the other. */
export const extent = (zoom) => TILE * 2 ** zoom;

export const nameOf = (tile) => `${tile.zoom}/${tile.x}/${tile.y}`;

export const parentOf = (tile, generations = 1) => ({
  zoom: tile.zoom - generations,
  x: Math.floor(tile.x / 2 ** generations),
  y: Math.floor(tile.y / 2 ** generations),
});

export const childrenOf = ({ zoom, x, y }) => [
  { zoom: zoom + 1, x: 2 * x, y: 2 * y },
  { zoom: zoom + 1, x: 2 * x + 1, y: 2 * y },
  { zoom: zoom + 1, x: 2 * x, y: 2 * y + 1 },
  { zoom: zoom + 1, x: 2 * x + 1, y: 2 * y + 1 },
];

/** The smallest zoom at which the layer covers the window. */
export const coveringZoom = (size) => Math.log2(Math.max(size.width, size.height) / TILE);

/** The view that shows a whole layer, no closer than `zoom`. */
export function openingView(size, zoom) {
  const fits = Math.log2(Math.min(size.width / FRAME.width, size.height / FRAME.height) / TILE);
  return { x: 0.5, y: 0.5, zoom: Math.max(coveringZoom(size), Math.min(fits, zoom)) };
}

/** The view, moved so that it shows nothing beyond the layer. */
export function confined(view, size, maxZoom) {
  const zoom = clamp(view.zoom, coveringZoom(size), maxZoom);
  const halfWidth = size.width / extent(zoom) / 2;
  const halfHeight = size.height / extent(zoom) / 2;
  return {
    zoom,
    x: halfWidth >= 0.5 ? 0.5 : clamp(view.x, halfWidth, 1 - halfWidth),
    y: halfHeight >= 0.5 ? 0.5 : clamp(view.y, halfHeight, 1 - halfHeight),
  };
}

/** The view at another zoom, with the point under `at` (CSS pixels) staying where it is. */
export function zoomedAt(view, size, at, zoom) {
  const across = at.x - size.width / 2;
  const down = at.y - size.height / 2;
  return {
    zoom,
    x: view.x + across / extent(view.zoom) - across / extent(zoom),
    y: view.y + down / extent(view.zoom) - down / extent(zoom),
  };
}

/** The level whose tiles look sharp: about one of their pixels to one of the screen's. */
export const levelOf = (view, pixelRatio, maxZoom) =>
  clamp(Math.round(view.zoom + Math.log2(clamp(pixelRatio, 1, 2))), 0, maxZoom);

/**
 * What is on screen, the nearest to the centre first; the margin, one more tile on each side; the backdrop, a few coarse
 * tiles of the same place to look at meanwhile; and its foundations, ever coarser, the coarsest first.
 */
export function tilesOf(view, size, level) {
  const side = 2 ** level;
  const middle = { x: view.x * side, y: view.y * side };
  const half = { x: (size.width / extent(view.zoom) / 2) * side, y: (size.height / extent(view.zoom) / 2) * side };
  const within = (at) => clamp(at, 0, side - 1);
  const [left, right] = [within(Math.floor(middle.x - half.x)), within(Math.ceil(middle.x + half.x) - 1)];
  const [top, bottom] = [within(Math.floor(middle.y - half.y)), within(Math.ceil(middle.y + half.y) - 1)];
  const screen = [];
  const margin = [];
  for (let y = within(top - 1); y <= within(bottom + 1); y += 1) {
    for (let x = within(left - 1); x <= within(right + 1); x += 1) {
      const onScreen = x >= left && x <= right && y >= top && y <= bottom;
      (onScreen ? screen : margin).push({ zoom: level, x, y });
    }
  }
  const distance = (tile) => Math.hypot(tile.x + 0.5 - middle.x, tile.y + 0.5 - middle.y);
  const nearestFirst = (one, other) => distance(one) - distance(other);
  screen.sort(nearestFirst);
  const foundations = [];
  for (let generations = COARSER; generations <= level; generations += COARSER) {
    foundations.unshift(...ancestorsOf(screen, generations));
  }
  const backdrop = ancestorsOf(screen, COARSER);
  return { screen, margin: margin.sort(nearestFirst), backdrop, foundations };
}

function ancestorsOf(tiles, generations) {
  if (tiles[0].zoom < generations) return [];
  const ancestors = tiles.map((tile) => parentOf(tile, generations));
  return [...new Map(ancestors.map((tile) => [nameOf(tile), tile])).values()];
}
