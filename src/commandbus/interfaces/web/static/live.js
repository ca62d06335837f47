// Keeps a page up to date. On a hint from the server the page is fetched again, and the parts that are
// marked data-live are changed node by node until they equal their new content. Elements are matched by
// data-key or id, so focus, text selection, ticked boxes, typed text and opened details stay where they
// are. A list that is marked data-feed never shifts: a bar above it counts new rows, and a click inserts
// them. Nothing is fetched while the page is paused. While it is hidden, only the number of parked commands
// is, for the title of its tab: a dot there says that it grew since the page was looked at.

"use strict";

(() => {
  const body = document.body;
  const button = document.getElementById("live");
  const word = button && button.querySelector(".word");
  const QUIET_MS = 700;
  const HIDDEN_MS = 15000;
  const LABELS = {
    live: "Live updates are on; pause them",
    paused: "Live updates are paused; resume them",
    lost: "The server does not answer; pause live updates",
  };
  const isField = (node) => node instanceof Element && node.matches("input, textarea, select");
  let source = null;
  let paused = false;
  let asking = false;
  let again = false;
  let last = 0;
  let timer = 0;
  let polling = 0;
  let counting = 0;

  const isLive = () => body.dataset.livePage === "yes" && document.querySelector("main [data-live]") !== null;

  function show(state) {
    if (!button) return;
    button.hidden = !isLive();
    button.classList.toggle("off", state === "paused");
    button.classList.toggle("lost", state === "lost");
    word.textContent = state;
    button.setAttribute("aria-label", LABELS[state]);
  }

  // A field with the focus, or with input that the server does not have yet.
  function isEdited(field) {
    if (field === document.activeElement) return true;
    if (field.type === "checkbox" || field.type === "radio") return field.checked !== field.defaultChecked;
    if (field instanceof HTMLSelectElement) {
      const options = [...field.options];
      return options.some((o) => o.defaultSelected) && options.some((o) => o.selected !== o.defaultSelected);
    }
    return field.value !== field.defaultValue;
  }

  function isBusy(node) {
    if (!(node instanceof Element)) return false;
    return [node, ...node.querySelectorAll("input, textarea, select")].some((n) => isField(n) && isEdited(n));
  }

  function isSelected(node) {
    const selection = document.getSelection();
    return selection !== null && !selection.isCollapsed && selection.containsNode(node, true);
  }

  // What scripts added, and no page of the server has.
  const isOurs = (node) => node instanceof Element && node.matches(".news, .ours");

  const keyOf = (node) => (node instanceof Element ? node.dataset.key || node.id : "");

  const isAlike = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

  function setAttributes(old, fresh) {
    for (const { name } of [...old.attributes]) {
      if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
    }
    for (const { name, value } of fresh.attributes) {
      if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function morph(old, fresh) {
    if (old.isEqualNode(fresh)) return;
    if (!(old instanceof Element)) {
      if (!isSelected(old)) old.data = fresh.data;
      return;
    }
    if (old.matches("[data-feed]") && old.children.length) {
      feed(old, fresh);
      return;
    }
    setAttributes(old, fresh);
    setChildren(old, fresh);
  }

  function matching(old, next, place) {
    const key = keyOf(next);
    if (key) return [...old.children].find((child) => keyOf(child) === key) || null;
    for (let node = place; node; node = node.nextSibling) {
      if (isAlike(node, next)) return node;
    }
    return null;
  }

  function setChildren(old, fresh) {
    let place = old.firstChild;
    for (const next of [...fresh.childNodes]) {
      while (place && isOurs(place)) place = place.nextSibling;
      const match = matching(old, next, place);
      if (match === null) {
        old.insertBefore(document.importNode(next, true), place);
        continue;
      }
      if (match === place) place = place.nextSibling;
      else old.insertBefore(match, place);
      morph(match, next);
    }
    while (place) {
      const after = place.nextSibling;
      if (!isBusy(place) && !isOurs(place)) place.remove();
      place = after;
    }
  }

  // Rows that are shown change in place; older ones are added below; new ones wait for a click.
  function feed(rows, fresh) {
    const shown = new Map([...rows.children].map((row) => [keyOf(row), row]));
    const found = [...fresh.children];
    const known = found.filter((row) => shown.has(keyOf(row)));
    const end = found.indexOf(known.at(-1));
    const news = found.filter((row, at) => at < end && !shown.has(keyOf(row)));
    const newest = known.length ? news : found;
    const keys = new Set(found.map(keyOf));
    const lowest = known.length ? [...rows.children].indexOf(shown.get(keyOf(known.at(-1)))) : -1;
    [...rows.children].forEach((row, at) => {
      row.classList.toggle("gone", !keys.has(keyOf(row)) && at < lowest);
    });
    for (const row of known) {
      const old = shown.get(keyOf(row));
      morph(old, row);
    }
    if (known.length) rows.append(...found.slice(end + 1).map((row) => document.importNode(row, true)));
    announce(rows, fresh, newest.length, known.length === 0);
  }

  function announce(rows, fresh, count, isMore) {
    const list = rows.closest(".scroll") || rows.parentElement;
    let bar = list.previousElementSibling;
    if (!bar || !bar.matches(".news")) {
      if (!count) return;
      bar = document.createElement("button");
      bar.type = "button";
      bar.className = "news";
      bar.dataset.key = "news";
      list.before(bar);
    }
    bar.hidden = !count;
    bar.textContent = `${count.toLocaleString("en")}${isMore ? "+" : ""} new · show`;
    bar.onclick = () => {
      bar.remove();
      setChildren(rows, fresh);
      for (const row of rows.querySelectorAll(".gone")) row.classList.remove("gone");
      const first = rows.querySelector("a");
      if (first) first.focus({ preventScroll: true });
      list.scrollIntoView({ block: "nearest" });
    };
  }

  function update(page) {
    document.dispatchEvent(new CustomEvent("fresh", { detail: page }));
    const active = document.activeElement;
    for (const part of document.querySelectorAll("[data-live][id]")) {
      const fresh = page.getElementById(part.id);
      if (fresh) morph(part, fresh);
    }
    if (active && active !== document.activeElement && active.isConnected) active.focus({ preventScroll: true });
    document.title = page.title;
    body.dataset.poll = page.body.dataset.poll || "";
    body.dataset.parked = page.body.dataset.parked || "0";
    document.dispatchEvent(new CustomEvent("updated"));
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
      update(new DOMParser().parseFromString(await answer.text(), "text/html"));
      if (!paused) show("live");
    } catch {
      show("lost");
    } finally {
      asking = false;
      poll();
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

  // A page about something that moves without hints says how often to look, in milliseconds.
  function poll() {
    clearTimeout(polling);
    const every = Number(body.dataset.poll);
    if (every) polling = setTimeout(refresh, every);
  }

  function listen() {
    if (source || paused || document.hidden || !isLive()) return;
    source = new EventSource(body.dataset.stream);
    source.addEventListener("hint", hinted);
    source.addEventListener("open", () => show("live"));
    source.addEventListener("error", () => show("lost"));
    poll();
  }

  function rest() {
    if (source) source.close();
    source = null;
    clearTimeout(timer);
    clearTimeout(polling);
  }

  async function count() {
    const answer = await fetch(body.dataset.count, { credentials: "same-origin" }).catch(() => null);
    if (!answer || !answer.ok || !document.hidden) return;
    const { count: parked } = await answer.json();
    const plain = document.title.replace(/^(● )?(\([\d,]+\+?\) )?/, "");
    const number = parked ? `(${parked.toLocaleString("en")}) ` : "";
    document.title = `${parked > Number(body.dataset.parked) ? "● " : ""}${number}${plain}`;
  }

  document.addEventListener("visibilitychange", () => {
    clearInterval(counting);
    if (document.hidden) {
      rest();
      if (!paused && isLive()) counting = setInterval(count, HIDDEN_MS);
    } else listen();
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

  show("live");
  listen();
})();
