// How a view gets from here to there: at once, gliding after a target, coasting after a throw, or flying in an arc.
// Each motion is a function of the time that answers {view, done}.

import { extent } from "./geometry.js";

const GLIDE = 90; // ms, the time in which about two thirds of the way are made
export const FRICTION = 260; // ms, likewise, for a throw to slow down: it goes on for velocity * FRICTION
const ARC = Math.SQRT2; // how high a flight goes (rho of van Wijk and Nuij, "Smooth and efficient zooming and panning")

/** Glide from a view to the zoom `to`; `anchored(zoom)` is the view at a zoom on the way. */
export function glide(from, to, anchored, started) {
  let zoom = from.zoom;
  let last = started;
  return (now) => {
    zoom += (to - zoom) * (1 - Math.exp(-(now - last) / GLIDE));
    last = now;
    const done = Math.abs(to - zoom) < 0.002;
    return { view: anchored(done ? to : zoom), done };
  };
}

/** Coast on with a velocity in CSS pixels per millisecond. */
export function coast(from, velocity, started) {
  return (now) => {
    const way = FRICTION * (1 - Math.exp(-(now - started) / FRICTION));
    return {
      view: {
        zoom: from.zoom,
        x: from.x - (velocity.x * way) / extent(from.zoom),
        y: from.y - (velocity.y * way) / extent(from.zoom),
      },
      done: now - started > 6 * FRICTION,
    };
  };
}

/** Fly: out, across and in, so that the ground passes at an even pace. */
export function fly(from, to, size, started) {
  const width = (view) => size.width / extent(view.zoom); // of the ground in sight
  const [near, far] = [width(from), width(to)];
  const way = Math.hypot(to.x - from.x, to.y - from.y);
  const rise = (own, sign) => {
    const b = (far ** 2 - near ** 2 + sign * ARC ** 4 * way ** 2) / (2 * own * ARC ** 2 * way);
    return -Math.asinh(b);
  };
  const straight = way < near * 1e-6;
  const [begin, end] = straight ? [0, 0] : [rise(near, 1), rise(far, -1)];
  const length = straight ? Math.abs(Math.log(far / near)) / ARC : (end - begin) / ARC;
  const time = Math.min(700 + 420 * Math.abs(length), 6500);
  return (now) => {
    const elapsed = Math.min((now - started) / time, 1);
    if (elapsed >= 1) return { view: to, done: true };
    const s = ease(elapsed) * length;
    const seen = straight
      ? near * Math.exp((far > near ? 1 : -1) * ARC * s)
      : (near * Math.cosh(begin)) / Math.cosh(ARC * s + begin);
    const share = straight
      ? ease(elapsed)
      : (near / (ARC ** 2 * way)) * (Math.cosh(begin) * Math.tanh(ARC * s + begin) - Math.sinh(begin));
    return {
      view: {
        zoom: from.zoom + Math.log2(near / seen),
        x: from.x + (to.x - from.x) * share,
        y: from.y + (to.y - from.y) * share,
      },
      done: false,
    };
  };
}

const ease = (t) => t * t * (3 - 2 * t);
