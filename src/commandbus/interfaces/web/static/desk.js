// Comforts of a page: keys, times, theme, copying, and choosing many rows. Every page works without them.

"use strict";

(() => {
  const root = document.documentElement;
  const YEAR_SECONDS = 31536000;

  // What a person prefers is a cookie: the server draws the first picture of a page with it already.
  function prefer(name, value) {
    const path = document.body.dataset.home || "/";
    const secure = location.protocol === "https:" ? "; secure" : "";
    document.cookie = `commandbus_${name}=${value}; path=${path}; max-age=${YEAR_SECONDS}; samesite=strict${secure}`;
    root.dataset[name] = value;
  }

  // Times: by their distance, by the clock of this browser, or by UTC.
  const clock = new Intl.DateTimeFormat("sv", {
    year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit", minute: "2-digit", second: "2-digit",
  });
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;

  function telling(page) {
    const shown = root.dataset.times || "ago";
    for (const time of page.querySelectorAll("time[datetime]")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      const local = clock.format(moment);
      const utc = moment.toISOString().slice(0, 19).replace("T", " ");
      if (time.dataset.ago === undefined) time.dataset.ago = time.textContent;
      const isClock = time.classList.contains("clock");
      const plain = time.dataset.ago;
      time.title = isClock ? `${local} ${zone}\n${utc} UTC` : `${plain}\n${local} ${zone}\n${utc} UTC`;
      if (isClock) {
        const part = plain.slice(8);
        time.textContent = shown === "utc" ? plain : local.slice(11) + part;
      } else time.textContent = shown === "local" ? local : shown === "utc" ? `${utc} UTC` : plain;
    }
  }

  document.addEventListener("fresh", (event) => telling(event.detail));
  telling(document);

  for (const choice of document.querySelectorAll("[data-prefer]")) {
    const name = choice.dataset.prefer;
    choice.closest(".preferences").hidden = false;
    choice.value = root.dataset[name] || choice.value;
    choice.addEventListener("change", () => {
      prefer(name, choice.value);
      telling(document);
      document.dispatchEvent(new CustomEvent("preferred"));
    });
  }

  // Copying: a button beside what it copies.
  function copyable(page) {
    for (const element of page.querySelectorAll("[data-copy]")) {
      if (element.nextElementSibling && element.nextElementSibling.matches(".copy")) continue;
      const button = page.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "Copy";
      button.setAttribute("aria-label", `Copy ${element.dataset.copy}`);
      element.after(button);
    }
  }

  document.addEventListener("fresh", (event) => copyable(event.detail));
  copyable(document);

  document.addEventListener("click", async (event) => {
    const button = event.target instanceof Element ? event.target.closest(".copy") : null;
    if (!button) return;
    const text = button.previousElementSibling.textContent.trim();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Without TLS there is no clipboard, but a selection that a key copies.
      document.getSelection().selectAllChildren(button.previousElementSibling);
      button.textContent = document.execCommand("copy") ? "Copied" : "Selected";
      return;
    }
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });

  // Choosing rows: all of a page, all that match, and with Shift everything in between.
  const form = document.getElementById("chosen");
  let lastBox = null;

  const boxes = () => [...form.querySelectorAll("input[name=command_ids]")];

  function count() {
    const chosen = boxes().filter((box) => box.checked).length;
    const every = form.querySelector("[name=everything]");
    const isEvery = every !== null && every.checked;
    const all = form.querySelector(".choose-all");
    if (all) {
      all.checked = chosen > 0 && chosen === boxes().length;
      all.indeterminate = chosen > 0 && !all.checked;
    }
    const beyond = form.querySelector(".beyond");
    if (beyond) beyond.hidden = !(all && all.checked) && !isEvery;
    const counter = form.querySelector(".chosen-count");
    if (counter) counter.textContent = isEvery ? `all ${every.dataset.count} chosen` : `${chosen} chosen`;
    form.classList.toggle("choosing", chosen > 0 || isEvery);
    for (const button of form.querySelectorAll(".acts-bar button")) button.disabled = !chosen && !isEvery;
  }

  if (form) {
    form.addEventListener("click", (event) => {
      const box = event.target;
      if (!(box instanceof HTMLInputElement)) return;
      if (box.matches(".choose-all")) {
        for (const one of boxes()) one.checked = box.checked;
        const every = form.querySelector("[name=everything]");
        if (every && !box.checked) every.checked = false;
      } else if (box.name === "command_ids") {
        const all = boxes();
        const [from, to] = [all.indexOf(lastBox), all.indexOf(box)].sort((a, b) => a - b);
        if (event.shiftKey && from >= 0) for (const one of all.slice(from, to + 1)) one.checked = box.checked;
        lastBox = box;
      }
      count();
    });
    // "All that match" are named by the conditions, not by the ids of this page.
    form.addEventListener("submit", () => {
      const every = form.querySelector("[name=everything]");
      if (every && every.checked) for (const box of boxes()) box.disabled = true;
    });
    window.addEventListener("pageshow", () => {
      for (const box of boxes()) box.disabled = false;
      count();
    });
    document.addEventListener("updated", count);
    count();
  }

  // Keys: / goes to the filter; g and a letter to a page; j and k move along the rows; x ticks one.
  const PAGES = { o: 0, d: 1, c: 2, t: 3, b: 4, p: 5, s: 6, w: 7, k: 8, a: 9, y: 10 };
  let going = false;

  function move(step) {
    const rows = [...document.querySelectorAll(".list tbody tr")].map((row) => row.querySelector("a")).filter(Boolean);
    if (rows.length === 0) return;
    const here = rows.findIndex((a) => a.closest("tr").contains(document.activeElement));
    const next = here === -1 ? 0 : Math.min(rows.length - 1, Math.max(0, here + step));
    rows[next].focus();
  }

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const at = event.target;
    if (at instanceof Element && at.matches("textarea, select, input:not([type=checkbox])")) {
      if (event.key === "Escape") at.blur();
      return;
    }
    if (going) {
      going = false;
      const link = document.querySelectorAll(".top nav a")[PAGES[event.key]];
      if (link) link.click();
      return;
    }
    const filter = document.getElementById("filter");
    const row = document.activeElement && document.activeElement.closest("tr");
    const box = row && row.querySelector("input[name=command_ids]");
    if (event.key === "/" && filter) {
      event.preventDefault();
      filter.focus();
      filter.select();
    } else if (event.key === "x" && box) box.click();
    else if (event.key === "g") going = true;
    else if (event.key === "j") move(1);
    else if (event.key === "k") move(-1);
  });

  // A search that has found nothing so far goes on by itself, piece by piece, until it is stopped.
  async function searchOn() {
    const stop = document.createElement("button");
    stop.type = "button";
    stop.textContent = "Stop searching";
    stop.addEventListener("click", () => stop.remove());
    const next = () => document.querySelector(".more[data-searching] a[rel=next]");
    next().closest(".more").before(stop);
    document.body.dataset.livePage = "no"; // as on every page but the first
    while (next() && stop.isConnected) {
      const answer = await fetch(next().href).catch(() => null);
      if (!answer || !answer.ok || !stop.isConnected) break;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const more = page.querySelector(".more");
      const found = page.getElementById("chosen");
      if (!found) break; // the session has ended
      history.replaceState(null, "", next().href);
      document.getElementById("chosen").replaceChildren(...found.children);
      if (more) document.querySelector(".more").replaceWith(more);
      else document.querySelector(".more").remove();
      telling(document);
      document.dispatchEvent(new CustomEvent("updated"));
    }
    stop.remove();
  }
  if (document.querySelector(".more[data-searching] a[rel=next]")) searchOn();

  // On a phone the pages are in a row that scrolls; the present one is to be seen.
  const present = document.querySelector(".top nav [aria-current]");
  if (present) present.scrollIntoView({ block: "nearest", inline: "center" });
})();
