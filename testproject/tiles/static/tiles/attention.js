// What the page pays attention to: tells the server what is on screen whenever that has changed, then waits for news of
// what is missing. One look and one wait at a time; after some waits without news comes another look, so that nothing
// stays forgotten, whatever happened at the other end.

import { nameOf } from "./geometry.js";

const SETTLE = 90; // ms: a moving map changes its mind many times a second
const RETRY = 1500;
const SILENCES = 3; // waits without news until we ask again

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export class Attention {
  #next = null;
  #wanted = null;
  #asked = new Map();
  #askedLayer = null;
  #finished = new Set();
  #running = false;
  #waiting = null;
  #timer = 0;

  constructor(server, pictures, reachable) {
    this.server = server;
    this.pictures = pictures;
    this.reachable = reachable;
  }

  /** The view has changed: these are the tiles on screen and in its margin, the most wanted first. */
  turn(layer, tiles) {
    const signature = `${layer} ${[...tiles.screen, ...tiles.margin].map(nameOf).join(" ")}`;
    if (this.#next?.signature === signature) return;
    this.#next = { layer, signature, ...tiles };
    // Throttled, not debounced: a long flight should fill in on its way.
    this.#timer ||= setTimeout(() => {
      this.#timer = 0;
      this.#wanted = this.#next;
      this.#waiting?.abort();
      this.#run();
    }, SETTLE);
  }

  /** Nobody looks any more. */
  leave() {
    this.#next = null;
    this.#leave().catch(() => {}); // the server is gone, or we are
  }

  async #run() {
    if (this.#running) return;
    this.#running = true;
    let seen = null;
    let silences = 0;
    for (;;) {
      const wanted = this.#wanted;
      try {
        if (wanted !== seen || silences >= SILENCES) {
          await this.#look(wanted);
          silences = 0;
        }
        seen = wanted;
        this.reachable(true);
        if (wanted !== this.#wanted) continue;
        const missing = this.#missing(wanted);
        if (!missing.length) break;
        silences = (await this.#wait(wanted, missing)) ? 0 : silences + 1;
      } catch (error) {
        if (error.name === "AbortError") continue;
        this.reachable(false);
        seen = null;
        await pause(RETRY);
      }
    }
    this.#running = false;
  }

  async #look(wanted) {
    const { layer, screen, margin } = wanted;
    const names = new Set([...screen, ...margin].map(nameOf));
    const left = [];
    if (layer === this.#askedLayer) {
      for (const [name, tile] of this.#asked) {
        if (!names.has(name)) left.push(tile);
      }
    } else {
      await this.#leave();
      this.#finished.clear();
    }
    const lacking = (tile) => !this.pictures.has(layer, tile);
    const asked = { screen: screen.filter(lacking), margin: margin.filter(lacking), left };
    this.#asked = new Map([...asked.screen, ...asked.margin].map((tile) => [nameOf(tile), tile]));
    this.#askedLayer = layer;
    if (!this.#asked.size && !left.length) return;
    this.#note(wanted, await this.server.look(layer, asked));
  }

  async #leave() {
    if (!this.#asked.size) return;
    await this.server.look(this.#askedLayer, { screen: [], margin: [], left: [...this.#asked.values()] });
    this.#asked.clear();
  }

  async #wait(wanted, missing) {
    this.#waiting = new AbortController();
    try {
      const finished = await this.server.wait(wanted.layer, missing, this.#waiting.signal);
      this.#note(wanted, finished);
      return finished.length > 0;
    } finally {
      this.#waiting = null;
    }
  }

  #note({ layer, screen, margin }, finished) {
    for (const tile of finished) {
      this.#finished.add(nameOf(tile));
      this.#asked.delete(nameOf(tile));
    }
    this.pictures.fetch(layer, [...screen, ...margin].filter((tile) => this.#finished.has(nameOf(tile))));
  }

  #missing({ screen, margin }) {
    return [...screen, ...margin].filter((tile) => this.#asked.has(nameOf(tile)));
  }
}
