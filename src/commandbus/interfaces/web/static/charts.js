// Charts: values under the pointer or the arrow keys, in all charts at once; dragging, or Shift with the
// arrows and Enter, zooms into a range. The address of the page is the range.

"use strict";

(() => {
  const root = document.documentElement;
  const tip = document.createElement("div");
  tip.className = "chart-tip";
  tip.hidden = true;
  const spoken = document.createElement("div");
  spoken.className = "unseen";
  spoken.setAttribute("aria-live", "polite");
  document.body.append(tip, spoken);
  const state = { chart: null, index: -1, from: -1 };

  const isUtc = () => root.dataset.times === "utc";

  function formatted(seconds, options) {
    return new Intl.DateTimeFormat("en-GB", { ...options, timeZone: isUtc() ? "UTC" : undefined }).format(seconds * 1000);
  }

  const CLOCK = { hour: "2-digit", minute: "2-digit" };
  const EXACT = { ...CLOCK, second: "2-digit" };
  const DAY = { day: "2-digit", month: "short" };

  // The server writes UTC; here the marks of an axis follow the time zone of the browser.
  function localise(page) {
    for (const mark of page.querySelectorAll("[data-time]")) {
      const step = mark.dataset.step;
      const form = step === "range" ? { ...DAY, ...EXACT } : step >= 86400 ? DAY : step < 60 ? EXACT : CLOCK;
      mark.textContent = formatted(Number(mark.dataset.time), form);
    }
  }

  const dataOf = (chart) => JSON.parse(chart.dataset.chart);

  const charts = () => [...document.querySelectorAll("svg[data-chart]")];

  function part(chart, name) {
    const found = chart.querySelector(`.${name}`);
    if (found) return found;
    const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    made.setAttribute("class", `ours ${name}`);
    const plot = chart.querySelector("line.grid");
    const box = chart.viewBox.baseVal;
    made.setAttribute("y", "12");
    made.setAttribute("height", String(box.height - 36));
    if (plot) chart.append(made);
    return made;
  }

  const placeOf = (data, index) => {
    const [left, right] = data.plot;
    return left + (index / data.values[0].length) * (right - left);
  };

  function indexAt(chart, clientX) {
    const data = dataOf(chart);
    const box = chart.getBoundingClientRect();
    const [left, right, width] = data.plot;
    const x = ((clientX - box.left) / box.width) * width;
    const count = data.values[0].length;
    return Math.min(count - 1, Math.max(0, Math.floor(((x - left) / (right - left)) * count)));
  }

  function draw() {
    for (const chart of charts()) {
      const data = dataOf(chart);
      const from = state.from < 0 ? state.index : Math.min(state.from, state.index);
      const to = Math.max(state.from, state.index);
      const cursor = part(chart, "cursor");
      const isShown = state.index >= 0 && state.index < data.values[0].length;
      cursor.setAttribute("visibility", isShown ? "visible" : "hidden");
      if (!isShown) continue;
      cursor.setAttribute("x", String(placeOf(data, from)));
      cursor.setAttribute("width", String(Math.max(1, placeOf(data, to + 1) - placeOf(data, from))));
    }
  }

  function show(chart, index, isSpoken) {
    Object.assign(state, { chart, index });
    const data = dataOf(chart);
    const begin = data.begin + index * data.width;
    const last = state.from < 0 ? index : Math.max(state.from, index);
    const first = state.from < 0 ? index : Math.min(state.from, index);
    const heading = `${formatted(data.begin + first * data.width, { ...DAY, ...EXACT })} – ${formatted(data.begin + (last + 1) * data.width, EXACT)}${isUtc() ? " UTC" : ""}`;
    const lines = data.names.map((name, at) => [data.kinds[at], name, data.values[at][index]]);
    for (const [at, text] of data.marks) if (at >= begin && at < begin + data.width) lines.push(["mark", text, ""]);
    tip.replaceChildren();
    const head = document.createElement("b");
    head.textContent = heading;
    tip.append(head);
    for (const [kind, name, value] of lines) {
      const line = document.createElement("div");
      line.className = kind;
      const [label, number] = [document.createElement("span"), document.createElement("span")];
      label.textContent = name;
      number.textContent = value;
      line.append(label, number);
      tip.append(line);
    }
    tip.hidden = false;
    const box = chart.getBoundingClientRect();
    const x = box.left + (placeOf(data, index + 0.5) / data.plot[2]) * box.width;
    const size = tip.getBoundingClientRect();
    const isLeft = x + 14 + size.width > document.documentElement.clientWidth;
    tip.style.left = `${Math.max(4, isLeft ? x - 14 - size.width : x + 14)}px`;
    tip.style.top = `${Math.max(4, box.top + 10)}px`;
    if (isSpoken) spoken.textContent = `${heading}: ${lines.map((line) => `${line[1]} ${line[2]}`).join(", ")}`;
    draw();
  }

  function hide() {
    Object.assign(state, { chart: null, index: -1, from: -1 });
    tip.hidden = true;
    draw();
  }

  function zoom(chart, from, to) {
    const data = dataOf(chart);
    const [first, last] = [Math.min(from, to), Math.max(from, to) + 1];
    let [begin, end] = [data.begin + first * data.width, data.begin + last * data.width];
    if (end - begin < 60) [begin, end] = [begin - 30, end + 30];
    const moment = (seconds) => new Date(seconds * 1000).toISOString().replace(".000Z", "Z");
    const address = new URL(location.href);
    address.searchParams.delete("span");
    address.searchParams.set("from", moment(begin));
    address.searchParams.set("to", moment(end));
    location.assign(address);
  }

  const chartOf = (event) => (event.target instanceof Element ? event.target.closest("svg[data-chart]") : null);

  document.addEventListener("pointermove", (event) => {
    const chart = state.from >= 0 && state.chart ? state.chart : chartOf(event);
    if (chart) show(chart, indexAt(chart, event.clientX), false);
    else if (!tip.hidden && !document.activeElement.matches("svg[data-chart]")) hide();
  });
  document.addEventListener("pointerdown", (event) => {
    const chart = chartOf(event);
    if (!chart || event.button !== 0 || event.pointerType === "touch") return;
    event.preventDefault();
    chart.focus({ preventScroll: true });
    state.from = indexAt(chart, event.clientX);
    show(chart, state.from, false);
  });
  document.addEventListener("pointerup", () => {
    if (!state.chart || state.from < 0) return;
    if (state.from === state.index) state.from = -1;
    else zoom(state.chart, state.from, state.index);
  });
  document.addEventListener("keydown", (event) => {
    const chart = chartOf(event);
    if (!chart) return;
    const last = dataOf(chart).values[0].length - 1;
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -last, End: last }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      const here = state.index < 0 ? last : state.index;
      if (!event.shiftKey) state.from = -1;
      else if (state.from < 0) state.from = here;
      show(chart, Math.min(last, Math.max(0, state.index < 0 ? last : here + step)), true);
    } else if (event.key === "Enter" && state.from >= 0) zoom(chart, state.from, state.index);
    else if (event.key === "Escape") hide();
  });
  document.addEventListener("focusout", (event) => {
    if (chartOf(event)) hide();
  });
  document.addEventListener("fresh", (event) => localise(event.detail));
  document.addEventListener("updated", () => {
    if (state.chart && state.chart.isConnected && state.index >= 0) show(state.chart, state.index, false);
  });
  document.addEventListener("preferred", () => localise(document));
  localise(document);
})();
