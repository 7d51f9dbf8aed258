// The server's addresses as functions. Knows nothing of views or canvases.

const triple = ({ zoom, x, y }) => [zoom, x, y];
const fill = (template, values) => template.replace(/\{(\w+)\}/g, (_, name) => values[name]);

export class Server {
  constructor(settings, csrf) {
    this.settings = settings;
    this.csrf = csrf;
  }

  /** Say what is on screen, what is just off it, and what is no longer wanted; the tiles that are finished. */
  look(layer, { screen, margin, left }) {
    const body = { screen: screen.map(triple), margin: margin.map(triple), left: left.map(triple) };
    return this.#finished(fill(this.settings.lookUrl, { layer }), body);
  }

  /** The tiles of these that are finished, as soon as there are any; none if it takes long. */
  wait(layer, tiles, signal) {
    return this.#finished(fill(this.settings.waitUrl, { layer }), { tiles: tiles.map(triple) }, signal);
  }

  /** The picture of a finished tile; null if it is not finished after all. */
  async picture(layer, tile) {
    const response = await this.#fetch(fill(this.settings.tileUrl, { layer, ...tile }));
    return response.status === 200 ? createImageBitmap(await response.blob()) : null;
  }

  async status() {
    return (await this.#fetch(this.settings.statusUrl)).json();
  }

  async #finished(url, body, signal) {
    const headers = { "Content-Type": "application/json", "X-CSRFToken": this.csrf };
    // Kept alive, so that a page that is closed can still say that it leaves.
    const options = { method: "POST", headers, body: JSON.stringify(body), signal, keepalive: true };
    const response = await this.#fetch(url, options);
    return (await response.json()).finished.map(([zoom, x, y]) => ({ zoom, x, y }));
  }

  async #fetch(url, options) {
    const response = await fetch(url, options);
    if (!response.ok) throw new Error(`${url}: ${response.status}`);
    return response;
  }
}
