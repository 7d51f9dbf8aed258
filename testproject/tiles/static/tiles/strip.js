// The strip at the foot of the page: asks what the queue does, more often while something goes on, not at all while
// nobody looks.

const BUSY = 600; // ms
const IDLE = 3000;
const REMEMBERED = 40; // rates in the little plot

const number = new Intl.NumberFormat("en");

export class Strip {
  #rates = [];
  #timer = 0;

  constructor(server, byId) {
    this.server = server;
    this.byId = byId;
    this.reachable = true;
    document.addEventListener("visibilitychange", () => this.refresh());
  }

  /** Ask now, and again before long. */
  async refresh() {
    clearTimeout(this.#timer);
    if (document.hidden) return;
    let busy = true;
    try {
      busy = this.#show(await this.server.status());
    } catch {
      this.#light("offline", "unreachable");
    }
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), busy ? BUSY : IDLE);
  }

  #show({ queue, rate, asked, rendered }) {
    for (const name of ["ready", "leased", "completed"]) this.byId(name).textContent = number.format(queue[name]);
    this.byId("rate").textContent = rate >= 10 ? Math.round(rate) : rate.toFixed(1);
    this.byId("asked").textContent = number.format(asked);
    this.byId("rendered").textContent = number.format(rendered);
    this.#plot(rate);
    if (queue.leased) this.#light("working", "rendering");
    else if (queue.ready) this.#light("waiting", "waiting");
    else this.#light("idle", "idle");
    return queue.ready + queue.leased > 0 || rate > 0;
  }

  #light(state, words) {
    this.byId("lamp").dataset.state = state;
    this.byId("state").textContent = words;
  }

  #plot(rate) {
    this.#rates = [...this.#rates, rate].slice(-REMEMBERED);
    const highest = Math.max(...this.#rates, 1);
    const points = this.#rates.map((value, index) => {
      const x = 60 - (this.#rates.length - 1 - index) * (60 / (REMEMBERED - 1));
      return `${x.toFixed(1)} ${(19 - (value / highest) * 18).toFixed(1)}`;
    });
    this.byId("spark").firstElementChild.setAttribute("d", `M${points.join("L")}`);
  }
}
