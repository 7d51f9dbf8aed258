// The page: one view of one layer, moved by gestures, buttons and addresses, painted when something has changed.

import { Attention } from "./attention.js";
import { clamp, confined, coveringZoom, extent, levelOf, openingView, tilesOf, zoomedAt } from "./geometry.js";
import { listen } from "./gestures.js";
import { FRICTION, coast, fly, glide } from "./motion.js";
import { Painter } from "./painter.js";
import { Pictures } from "./pictures.js";
import { Server } from "./server.js";
import { Strip } from "./strip.js";

const REMEMBER = 300; // ms after the last move until the address says where we are

class FractalMap {
  constructor(settings, byId) {
    this.settings = settings;
    this.byId = byId;
    this.canvas = byId("map");
    this.still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    const server = new Server(settings, document.body.dataset.csrf);
    this.pictures = new Pictures(server, () => this.dirty());
    this.painter = new Painter(this.canvas, this.pictures, this.still);
    this.attention = new Attention(server, this.pictures, (reachable) => reachable || this.strip.refresh());
    this.strip = new Strip(server, byId);
    this.views = new Map(); // where each layer was left
    this.motion = null;
    this.target = null; // the zoom that a glide is on its way to
    this.flying = false; // then what is asked for is the destination, not what passes by
    this.frame = 0;
  }

  start() {
    this.resize();
    this.#followAddress();
    listen(this.canvas, this.#wishes());
    this.#listenToPanels();
    addEventListener("hashchange", () => this.#followAddress());
    addEventListener("pagehide", () => this.attention.leave());
    addEventListener("pageshow", ({ persisted }) => persisted && this.show(this.view));
    new ResizeObserver(() => this.resize()).observe(this.canvas);
    this.strip.refresh();
    this.canvas.focus({ preventScroll: true });
  }

  resize() {
    this.size = { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
    this.pixelRatio = devicePixelRatio || 1;
    this.painter.fit(this.size, this.pixelRatio);
    if (this.view) this.show(this.view);
  }

  /** Show a layer where it was left, or whole. */
  choose(layer, view = this.views.get(layer.slug) ?? this.#opening()) {
    if (this.layer) this.views.set(this.layer.slug, this.view);
    this.layer = layer;
    document.querySelector(`input[name="layer"][value="${layer.slug}"]`).checked = true;
    this.canvas.setAttribute("aria-label", `${layer.title} fractal map`);
    this.byId("places").replaceChildren(...layer.places.map((place) => this.#placeButton(place)));
    this.stop();
    this.show(view);
  }

  show(view) {
    this.view = confined(view, this.size, this.settings.maxZoom);
    this.tiles = this.#tilesOf(this.view);
    if (!this.flying) {
      const { screen, margin, backdrop } = this.tiles;
      this.attention.turn(this.layer.slug, { screen: [...backdrop, ...screen], margin });
    }
    this.#showWhere();
    this.dirty();
  }

  /** Let a motion move the view until it is done or another takes over. */
  move(motion) {
    this.flying = false;
    this.motion = motion;
    this.dirty();
  }

  stop() {
    this.motion = null;
    this.target = null;
    this.flying = false;
  }

  dirty() {
    this.frame ||= requestAnimationFrame((now) => this.#draw(now));
  }

  #draw(now) {
    this.frame = 0;
    if (this.motion) {
      const { view, done } = this.motion(now);
      if (done) this.stop();
      this.show(view);
    }
    const more = this.painter.paint(this.layer.slug, this.view, this.tiles.screen, now);
    this.#showProgress();
    if (more || this.motion) this.dirty();
  }

  #tilesOf(view) {
    return tilesOf(view, this.size, levelOf(view, this.pixelRatio, this.settings.maxZoom));
  }

  #opening() {
    return openingView(this.size, this.settings.openingZoom);
  }

  #wishes() {
    return {
      grab: () => this.stop(),
      pan: (dx, dy) => this.#pan(dx, dy),
      step: (dx, dy) => {
        if (this.still) this.#pan(dx, dy);
        else this.#coast({ x: dx / FRICTION, y: dy / FRICTION });
      },
      throwAt: (velocity) => this.still || this.#coast(velocity),
      zoomBy: (levels, at, smooth) => this.#zoomBy(levels, at ?? this.#centre(), smooth),
      home: () => this.#travel(this.#opening()),
      choose: (index) => this.settings.layers[index] && this.choose(this.settings.layers[index]),
    };
  }

  #pan(dx, dy) {
    this.stop();
    const scale = extent(this.view.zoom);
    this.show({ ...this.view, x: this.view.x - dx / scale, y: this.view.y - dy / scale });
  }

  #coast(velocity) {
    this.stop();
    this.move(coast(this.view, velocity, performance.now()));
  }

  #centre() {
    return { x: this.size.width / 2, y: this.size.height / 2 };
  }

  #zoomBy(levels, at, smooth) {
    const from = this.view;
    const lowest = coveringZoom(this.size);
    const to = clamp((this.target ?? from.zoom) + levels, lowest, Math.max(this.settings.maxZoom, lowest));
    if (!smooth || this.still) {
      this.stop();
      this.show(zoomedAt(from, this.size, at, to));
      return;
    }
    this.move(glide(from, to, (zoom) => zoomedAt(from, this.size, at, zoom), performance.now()));
    this.target = to;
  }

  #travel(view) {
    const to = confined(view, this.size, this.settings.maxZoom);
    this.stop();
    if (this.still) {
      this.show(to);
      return;
    }
    const { screen, foundations } = this.#tilesOf(to);
    this.attention.turn(this.layer.slug, { screen: [...foundations, ...screen], margin: [] });
    this.move(fly(this.view, to, this.size, performance.now()));
    this.flying = true;
  }

  #listenToPanels() {
    this.byId("layers").addEventListener("change", (event) => {
      this.choose(this.settings.layers.find(({ slug }) => slug === event.target.value));
    });
    const acts = {
      in: () => this.#zoomBy(1, this.#centre(), true),
      out: () => this.#zoomBy(-1, this.#centre(), true),
      home: () => this.#travel(this.#opening()),
    };
    for (const button of document.querySelectorAll("[data-act]")) {
      button.addEventListener("click", acts[button.dataset.act]);
    }
  }

  #placeButton(place) {
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = place.name;
    button.addEventListener("click", () => this.#travel(place));
    return button;
  }

  #showProgress() {
    const { screen } = this.tiles;
    const here = screen.filter((tile) => this.pictures.has(this.layer.slug, tile)).length;
    const progress = this.byId("progress");
    const before = progress.value;
    progress.value = here / screen.length;
    if (progress.value === before) return;
    if (before === 1) this.strip.refresh();
    this.byId("announcer").textContent = here === screen.length ? `All ${here} tiles on screen are finished.` : "";
  }

  #showWhere() {
    const { x, y, zoom } = this.view;
    const width = this.settings.planeWidth;
    const digits = clamp(Math.ceil(zoom * 0.302) + 2, 3, 15);
    const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(digits)}`;
    const re = this.layer.origin.x + x * width;
    const im = this.layer.origin.y + y * width;
    this.byId("where").textContent = `${signed(re)} ${signed(im)}i\nzoom ${zoom.toFixed(1)}`;
    document.querySelector('[data-act="in"]').disabled = zoom >= this.settings.maxZoom;
    document.querySelector('[data-act="out"]').disabled = zoom <= coveringZoom(this.size);
    clearTimeout(this.remembering);
    this.remembering = setTimeout(() => this.#rememberAddress(), REMEMBER);
  }

  #rememberAddress() {
    const { x, y, zoom } = this.view;
    this.address = `#${this.layer.slug}/${zoom.toFixed(2)}/${x}/${y}`;
    history.replaceState(null, "", this.address);
  }

  #followAddress() {
    if (this.address && location.hash === this.address) return;
    const [slug, ...numbers] = location.hash.slice(1).split("/");
    const layer = this.settings.layers.find((one) => one.slug === slug) ?? this.settings.layers[0];
    const [zoom, x, y] = numbers.map(Number);
    const known = [zoom, x, y].every((value) => Number.isFinite(value));
    this.choose(layer, known ? { zoom, x, y } : undefined);
  }
}

const byId = (id) => document.getElementById(id);
new FractalMap(JSON.parse(byId("settings").textContent), byId).start();
