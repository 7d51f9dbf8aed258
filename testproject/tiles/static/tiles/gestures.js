// What fingers, mouse and keys want: translates events on the map into pans, zooms and throws. Knows no views.

const WHEEL = 1 / 300; // zoom levels per pixel of wheel travel
const LINE = 16;
const STEP = 120; // CSS pixels that an arrow key moves
const RECENT = 80; // ms of a drag from which its throw is taken

/** `wishes`: pan(dx, dy), step(dx, dy), throwAt(velocity), zoomBy(levels, at, smooth), grab(), home(), choose(index). */
export function listen(map, wishes) {
  listenToPointers(map, wishes);
  listenToWheel(map, wishes);
  listenToKeys(map, wishes);
}

function listenToPointers(map, wishes) {
  const held = new Map();
  let trail = [];
  const centre = () => {
    const points = [...held.values()];
    const sum = points.reduce((total, point) => ({ x: total.x + point.x, y: total.y + point.y }), { x: 0, y: 0 });
    return { x: sum.x / points.length, y: sum.y / points.length };
  };
  const spread = () => {
    const [one, other] = held.values();
    return other ? Math.hypot(one.x - other.x, one.y - other.y) : 0;
  };

  map.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    map.setPointerCapture(event.pointerId);
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    trail = [];
    map.classList.add("dragging");
    wishes.grab();
  });

  map.addEventListener("pointermove", (event) => {
    if (!held.has(event.pointerId)) return;
    const [before, wide] = [centre(), spread()];
    held.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    const after = centre();
    wishes.pan(after.x - before.x, after.y - before.y);
    if (wide > 0 && spread() > 0) wishes.zoomBy(Math.log2(spread() / wide), after, false);
    trail.push({ ...after, at: event.timeStamp });
  });

  const release = (event) => {
    if (!held.delete(event.pointerId) || held.size) return;
    map.classList.remove("dragging");
    const recent = trail.filter(({ at }) => event.timeStamp - at < RECENT);
    if (event.type === "pointerup" && recent.length > 1) {
      const [first, last] = [recent[0], recent.at(-1)];
      const time = Math.max(event.timeStamp - first.at, 1);
      wishes.throwAt({ x: (last.x - first.x) / time, y: (last.y - first.y) / time });
    }
  };
  map.addEventListener("pointerup", release);
  map.addEventListener("pointercancel", release);

  map.addEventListener("dblclick", (event) => {
    wishes.zoomBy(event.shiftKey ? -1 : 1, { x: event.offsetX, y: event.offsetY }, true);
  });
}

function listenToWheel(map, wishes) {
  const zoom = (event) => {
    event.preventDefault();
    const travel = event.deltaY * (event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE : 1);
    const pinch = event.ctrlKey ? 3 : 1; // a trackpad's pinch comes as a small wheel with ctrl
    wishes.zoomBy(-travel * pinch * WHEEL, { x: event.offsetX, y: event.offsetY }, true);
  };
  map.addEventListener("wheel", zoom, { passive: false });
}

function listenToKeys(map, wishes) {
  const pans = { ArrowLeft: [1, 0], ArrowRight: [-1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
  const zooms = { "+": 1, "=": 1, "-": -1, _: -1 };
  map.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in pans) {
      const [across, down] = pans[event.key];
      wishes.step(across * STEP, down * STEP);
    } else if (event.key in zooms) {
      wishes.zoomBy(zooms[event.key] / 2, null, true);
    } else if (event.key === "Home" || event.key === "0") {
      wishes.home();
    } else if (/^[1-9]$/.test(event.key)) {
      wishes.choose(Number(event.key) - 1);
    } else {
      return;
    }
    event.preventDefault();
  });
}
