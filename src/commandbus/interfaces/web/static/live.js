// Keeps a page up to date: on a hint from the server the page is asked for again, and the parts that are
// marked data-live take on their new content. Focus, scroll, opened details and whatever somebody is
// typing stay. Nothing is asked for while the page is hidden or paused.

"use strict";

(() => {
  const body = document.body;
  const button = document.getElementById("live");
  const word = button && button.querySelector(".word");
  const QUIET_MS = 700;
  let source = null;
  let paused = false;
  let asking = false;
  let again = false;
  let last = 0;
  let timer = 0;

  const isLive = () => body.dataset.livePage === "yes" && document.querySelector("main [data-live]") !== null;

  function show(state) {
    if (!button) return;
    button.hidden = !isLive();
    button.classList.toggle("off", state === "paused");
    button.classList.toggle("lost", state === "lost");
    word.textContent = state;
    button.setAttribute("aria-label", state === "paused" ? "Paused; go on" : "Live; pause");
  }

  // Somebody is at work inside: a field with the focus or with words of theirs, or a choice that was made.
  function isBusy(part) {
    const active = document.activeElement;
    if (active && part.contains(active) && active.matches("input, textarea, select")) return true;
    const fields = [...part.querySelectorAll("input, textarea")];
    return fields.some((field) => field.checked || field.value !== field.defaultValue);
  }

  // A way to find an element again after its surroundings were replaced.
  function pathOf(part, element) {
    const path = [];
    for (let node = element; node !== part; node = node.parentElement) {
      path.unshift(Array.prototype.indexOf.call(node.parentElement.children, node));
    }
    return path;
  }

  function follow(part, path) {
    return path.reduce((node, index) => node && node.children[index], part);
  }

  function replace(part, fresh) {
    if (part.innerHTML === fresh.innerHTML || isBusy(part)) return;
    const active = document.activeElement;
    const focused = active && active !== part && part.contains(active) ? pathOf(part, active) : null;
    const folded = [...part.querySelectorAll("details")].map((d) => [pathOf(part, d), d.open, d.textContent]);
    const scrolled = [...part.querySelectorAll(".scroll, pre")]
      .filter((e) => e.scrollLeft || e.scrollTop)
      .map((e) => [pathOf(part, e), e.scrollLeft, e.scrollTop]);
    part.replaceChildren(...fresh.childNodes);
    for (const [path, open, text] of folded) {
      const found = follow(part, path);
      if (found instanceof HTMLDetailsElement && (open || found.textContent === text)) found.open = open;
    }
    for (const [path, left, top] of scrolled) {
      const found = follow(part, path);
      if (found) [found.scrollLeft, found.scrollTop] = [left, top];
    }
    const found = focused && follow(part, focused);
    if (found instanceof HTMLElement) found.focus({ preventScroll: true });
  }

  async function refresh() {
    if (paused || document.hidden || !isLive()) return;
    if (asking) {
      again = true;
      return;
    }
    asking = true;
    last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, credentials: "same-origin" });
      if (!answer.ok) throw new Error(String(answer.status));
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      for (const part of document.querySelectorAll("[data-live][id]")) {
        const fresh = page.getElementById(part.id);
        if (fresh) replace(part, fresh);
      }
      if (!paused) show("live");
    } catch {
      show("lost");
    } finally {
      asking = false;
      if (again) {
        again = false;
        hinted();
      }
    }
  }

  // Hints come in bursts; one look is enough for all of them.
  function hinted() {
    clearTimeout(timer);
    timer = setTimeout(refresh, Math.max(0, QUIET_MS - (Date.now() - last)));
  }

  function listen() {
    if (source || paused || document.hidden || !isLive()) return;
    source = new EventSource(body.dataset.stream);
    source.addEventListener("hint", hinted);
    source.addEventListener("open", () => show("live"));
    source.addEventListener("error", () => show("lost"));
  }

  function rest() {
    if (source) source.close();
    source = null;
    clearTimeout(timer);
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) rest();
    else listen();
  });

  if (button) {
    button.addEventListener("click", () => {
      paused = !paused;
      if (paused) {
        rest();
        show("paused");
      } else {
        show("live");
        listen();
        refresh();
      }
    });
  }

  // Keys: / goes to the filter; g and a letter to a page; j and k move along the rows.
  const PAGES = { o: 0, d: 1, c: 2, t: 3, b: 4, p: 5, s: 6, w: 7, k: 8, a: 9, y: 10 };
  let going = false;

  function move(step) {
    const rows = [...document.querySelectorAll(".list tbody tr a.strong, .list tbody tr td a")].filter(
      (a, i, all) => all.findIndex((b) => b.closest("tr") === a.closest("tr")) === i,
    );
    if (rows.length === 0) return;
    const here = rows.findIndex((a) => a.closest("tr").contains(document.activeElement));
    const next = here === -1 ? 0 : Math.min(rows.length - 1, Math.max(0, here + step));
    rows[next].focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target instanceof Element && event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (going) {
      going = false;
      const link = document.querySelectorAll(".top nav a")[PAGES[event.key]];
      if (link) link.click();
      return;
    }
    const filter = document.getElementById("filter");
    if (event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
      filter.select();
    } else if (event.key === "g") going = true;
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  });

  // On a phone the pages are in a row that scrolls; the present one is to be seen.
  const present = document.querySelector(".top nav [aria-current]");
  if (present) present.scrollIntoView({ block: "nearest", inline: "center" });

  show("live");
  listen();
})();
