// Paints a view onto a canvas from the pictures that are there: a tile, else the part of an ancestor or the descendants
// that show the same place, else a quiet placeholder. Pictures that just came fade in.

import { childrenOf, extent, nameOf, parentOf } from "./geometry.js";

const FADE = 260; // ms
const GENERATIONS = 8; // beyond, a tile is less than one pixel of its ancestor
const BEAT = 1400; // ms, of a placeholder's pulse

export class Painter {
  constructor(canvas, pictures, still) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.pictures = pictures;
    this.still = still; // whether the person asked for less motion
  }

  /** Make the canvas as fine as the screen. */
  fit(size, pixelRatio) {
    this.canvas.width = Math.round(size.width * pixelRatio);
    this.canvas.height = Math.round(size.height * pixelRatio);
    this.pixelRatio = pixelRatio;
  }

  /** Paint; true if there is more to come without the view changing: something fades or pulses. */
  paint(layer, view, tiles, now) {
    const { context } = this;
    context.imageSmoothingEnabled = true;
    context.imageSmoothingQuality = "high";
    context.fillStyle = "#070b18";
    context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    let moving = false;
    for (const tile of tiles) {
      const box = this.#box(view, tile);
      const picture = this.pictures.get(layer, tile);
      const shown = picture ? (this.still ? 1 : Math.min((now - picture.since) / FADE, 1)) : 0;
      if (shown < 1) {
        moving = true;
        const covered = this.#paintRelatives(layer, view, tile, box);
        if (!picture) this.#paintPlaceholder(tile, box, now, covered);
      }
      if (shown > 0) {
        context.globalAlpha = shown;
        context.drawImage(picture.bitmap, box.left, box.top, box.width, box.height);
        context.globalAlpha = 1;
      }
    }
    return moving && !(this.still && tiles.every((tile) => this.pictures.has(layer, tile)));
  }

  /** Whole pixels, so that neighbours meet without a seam. */
  #box(view, tile) {
    const side = 2 ** tile.zoom;
    const scale = extent(view.zoom) * this.pixelRatio;
    const across = (x) => Math.round((x / side - view.x) * scale + this.canvas.width / 2);
    const down = (y) => Math.round((y / side - view.y) * scale + this.canvas.height / 2);
    const left = across(tile.x);
    const top = down(tile.y);
    return { left, top, width: across(tile.x + 1) - left, height: down(tile.y + 1) - top };
  }

  #paintRelatives(layer, view, tile, box) {
    let covered = false;
    for (let generations = 1; generations <= Math.min(tile.zoom, GENERATIONS); generations += 1) {
      const ancestor = parentOf(tile, generations);
      const picture = this.pictures.get(layer, ancestor);
      if (!picture) continue;
      const part = picture.bitmap.width / 2 ** generations;
      const left = (tile.x - ancestor.x * 2 ** generations) * part;
      const top = (tile.y - ancestor.y * 2 ** generations) * part;
      this.context.drawImage(picture.bitmap, left, top, part, part, box.left, box.top, box.width, box.height);
      covered = true;
      break;
    }
    for (const child of childrenOf(tile)) {
      const picture = this.pictures.get(layer, child);
      if (!picture) continue;
      const { left, top, width, height } = this.#box(view, child);
      this.context.drawImage(picture.bitmap, left, top, width, height);
    }
    return covered;
  }

  /** A dot that breathes, in a wave from tile to tile; on bare ground, with the tile's outline. */
  #paintPlaceholder(tile, { left, top, width, height }, now, covered) {
    const { context, pixelRatio } = this;
    const phase = ((now / BEAT) * 2 - (tile.x % 64) / 4 - (tile.y % 64) / 6) * Math.PI;
    const breath = this.still ? 0.5 : (1 + Math.sin(phase)) / 2;
    if (!covered) {
      context.fillStyle = `rgb(134 205 240 / ${0.025 + 0.035 * breath})`;
      const inset = 2 * pixelRatio;
      context.beginPath();
      context.roundRect(left + inset, top + inset, width - 2 * inset, height - 2 * inset, 8 * pixelRatio);
      context.fill();
    }
    context.beginPath();
    context.arc(left + width / 2, top + height / 2, (2 + 1.5 * breath) * pixelRatio, 0, 2 * Math.PI);
    context.fillStyle = `rgb(255 255 255 / ${0.18 + 0.4 * breath})`;
    context.fill();
  }
}
