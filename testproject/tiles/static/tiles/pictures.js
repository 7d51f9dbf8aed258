// The pictures that have been fetched, by layer and tile; the least recently used go first. A few fetches at a time.

import { nameOf } from "./geometry.js";

const MOST = 420; // of 256 KiB each
const AT_ONCE = 5; // browsers open six connections to a server, and one waits for news

export class Pictures {
  #kept = new Map();
  #fetching = new Set();
  #queue = [];

  constructor(server, changed) {
    this.server = server;
    this.changed = changed;
  }

  /** `{bitmap, since}` with the time at which it came; undefined when it is not here. */
  get(layer, tile) {
    const name = `${layer}/${nameOf(tile)}`;
    const picture = this.#kept.get(name);
    if (picture) {
      this.#kept.delete(name);
      this.#kept.set(name, picture);
    }
    return picture;
  }

  has(layer, tile) {
    return this.#kept.has(`${layer}/${nameOf(tile)}`);
  }

  /** Fetch these next, in their order; what waits from earlier calls is forgotten. */
  fetch(layer, tiles) {
    this.#queue = tiles.filter((tile) => !this.has(layer, tile)).map((tile) => ({ layer, tile }));
    while (this.#fetching.size < AT_ONCE && this.#next());
  }

  #next() {
    const wanted = this.#queue.shift();
    if (!wanted) return false;
    const name = `${wanted.layer}/${nameOf(wanted.tile)}`;
    if (this.#fetching.has(name) || this.#kept.has(name)) return true;
    this.#fetching.add(name);
    this.server
      .picture(wanted.layer, wanted.tile)
      .then((bitmap) => bitmap && this.#keep(name, bitmap))
      .catch(() => {}) // the next look asks again
      .finally(() => {
        this.#fetching.delete(name);
        this.#next();
      });
    return true;
  }

  #keep(name, bitmap) {
    this.#kept.set(name, { bitmap, since: performance.now() });
    for (const [oldest, { bitmap: discarded }] of this.#kept) {
      if (this.#kept.size <= MOST) break;
      this.#kept.delete(oldest);
      discarded.close();
    }
    this.changed();
  }
}
