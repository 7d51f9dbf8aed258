/* What the pages do more conveniently with a script: the dashboard refreshes itself, a box ticks all others.
   Without it there is a link to refresh, and each box is ticked by itself. */
"use strict";
{
    const LIVE = "wq-live";

    /* Take the new page's part in place of the old one's; what is open stays open, what has the focus keeps it. */
    const replace = (fresh) => {
        const old = document.getElementById(LIVE);
        const open = [...old.querySelectorAll("details[open][id]")].map((details) => details.id);
        const scrolled = [...old.querySelectorAll("details[open] .wq-scroll")].map((box) => box.scrollTop);
        const links = [...old.querySelectorAll("a, button, summary")];
        const focused = links.indexOf(document.activeElement);
        const [x, y] = [window.scrollX, window.scrollY];
        old.replaceWith(fresh);
        open.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
        [...fresh.querySelectorAll("details[open] .wq-scroll")].forEach((box, i) => { box.scrollTop = scrolled[i] ?? 0; });
        addSwitch(fresh);
        if (focused >= 0) {
            [...fresh.querySelectorAll("a, button, summary")][focused]?.focus({preventScroll: true});
        }
        window.scrollTo(x, y);
    };

    let running = true;
    let asking = false;

    const refresh = async () => {
        const live = document.getElementById(LIVE);
        if (!running || asking || document.hidden || !live || window.getSelection().toString()) {
            return;
        }
        asking = true;
        try {
            const answer = await fetch(window.location.href, {headers: {"X-Requested-With": "fetch"}, cache: "no-store"});
            if (answer.ok && !answer.redirected) {
                const page = new DOMParser().parseFromString(await answer.text(), "text/html");
                const fresh = page.getElementById(LIVE);
                if (fresh && running) {
                    replace(document.importNode(fresh, true));
                }
            }
        } catch {
            /* The server is away for a moment: the next time will do. */
        } finally {
            asking = false;
        }
    };

    const addSwitch = (live) => {
        const now = live.querySelector(".wq-now");
        const button = document.createElement("button");
        button.type = "button";
        const label = () => { button.textContent = running ? live.dataset.wqStop : live.dataset.wqGo; };
        button.addEventListener("click", () => { running = !running; label(); refresh(); });
        label();
        now?.append(button);
    };

    /* What takes a moment to find out comes afterwards. */
    const load = async (place) => {
        try {
            const answer = await fetch(place.dataset.wqLoad, {headers: {"X-Requested-With": "fetch"}});
            const page = new DOMParser().parseFromString(await answer.text(), "text/html");
            const fresh = answer.ok && !answer.redirected && page.getElementById(place.id);
            if (fresh) {
                place.replaceWith(document.importNode(fresh, true));
            }
        } catch {
            /* The link stays. */
        }
    };

    const tickAll = (all) => {
        const boxes = () => [...document.querySelectorAll(`input[type=checkbox][name="${all.dataset.wqTicks}"]`)];
        all.closest("[hidden]")?.removeAttribute("hidden");
        all.addEventListener("change", () => boxes().forEach((box) => { box.checked = all.checked; }));
    };

    document.addEventListener("DOMContentLoaded", () => {
        const live = document.getElementById(LIVE);
        if (live) {
            addSwitch(live);
            window.setInterval(refresh, Number(live.dataset.wqRefresh) * 1000);
        }
        document.querySelectorAll("[data-wq-load]").forEach(load);
        document.querySelectorAll("input[data-wq-ticks]").forEach(tickAll);
    });
}
