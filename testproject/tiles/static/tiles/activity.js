// The activity page: follows the server's events. Each is shown on top of the list, as the server wrote it.

const KINDS = ["enqueued", "started", "failed", "sent", "dead"];
const MOST = 50; // lines of the list
const PATIENCE = 4000; // ms until a browser that gave up is told to try again

class Activity {
  constructor(byId) {
    this.state = byId("state");
    this.link = byId("link");
    this.url = byId("activity").dataset.events;
  }

  follow() {
    this.#show("connecting", "connecting …");
    const source = new EventSource(this.url);
    source.addEventListener("open", () => this.#show("live", "live"));
    source.addEventListener("error", () => this.#lost(source));
    source.addEventListener("state", ({ data }) => this.#replace(data));
    source.addEventListener("rendered", () => this.#count("rendered"));
    for (const kind of KINDS) source.addEventListener(kind, ({ data }) => this.#add(kind, data));
    this.source = source;
  }

  leave() {
    this.source.close();
  }

  /** The browser comes back by itself, unless it was refused. */
  #lost(source) {
    this.#show("lost", "connection lost, trying again …");
    if (source.readyState === EventSource.CLOSED) setTimeout(() => this.follow(), PATIENCE);
  }

  #replace(html) {
    this.state.replaceChildren(parsed(html));
  }

  /** What was in the state already, since it happened while that was read, is not counted again. */
  #add(kind, html) {
    const line = parsed(html);
    const list = this.state.querySelector(".events");
    const { key } = line.firstElementChild.dataset;
    const known = list.querySelector(`[data-key="${CSS.escape(key)}"]`);
    if (known) known.remove();
    else this.#count(kind);
    line.firstElementChild.classList.add("new");
    list.prepend(line);
    while (list.children.length > MOST) list.lastElementChild.remove();
  }

  #count(kind) {
    const figure = this.state.querySelector(`[data-count="${kind}"]`);
    if (figure) figure.textContent = Number(figure.textContent) + 1;
  }

  #show(state, words) {
    this.link.dataset.state = state;
    this.link.textContent = words;
  }
}

/** The server's HTML, with its times as the clock on the wall shows them. */
function parsed(html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  for (const time of template.content.querySelectorAll("time")) {
    time.textContent = new Date(time.dateTime).toLocaleTimeString([], { hourCycle: "h23" });
  }
  return template.content;
}

const activity = new Activity((id) => document.getElementById(id));
activity.follow();
addEventListener("pagehide", () => activity.leave());
addEventListener("pageshow", ({ persisted }) => persisted && activity.follow());
