// What moves on a report page: plots are drawn and re-coloured, legends hide series, headings sort tables.
// Names given by users reach the page as text only (textContent), never as HTML.
"use strict";
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", scrollZoom: false };
  const hidden = new Map(); // item name -> names of the series that are switched off
  let chosen = null; // "light" or "dark" once the reader has pressed the button
  try {
    chosen = window.localStorage.getItem("dmtrl-theme");
  } catch {
    // a browser may forbid storage to files: the choice then lasts as long as the page
  }

  function theme() {
    return chosen === "light" || chosen === "dark" ? chosen : wantsDark.matches ? "dark" : "light";
  }

  // The same figure in the dark colours. Only values under a key that speaks of colour are exchanged, never labels.
  function recoloured(value, inColour) {
    if (typeof value === "string") return inColour && value in data.dark ? data.dark[value] : value;
    if (Array.isArray(value)) return value.map((part) => recoloured(part, inColour));
    if (value === null || typeof value !== "object") return value;
    const copy = {};
    for (const key of Object.keys(value)) copy[key] = recoloured(value[key], /color/.test(key));
    return copy;
  }

  function figureFor(plot, mode) {
    const light = data.plots[plot.dataset.plot][Number(plot.dataset.panel)];
    const figure = mode === "dark" ? recoloured(light, false) : structuredClone(light);
    const off = hidden.get(plot.dataset.plot);
    for (const trace of figure.data) {
      trace.showlegend = false;
      if (off && off.has(trace.legendgroup)) trace.visible = false;
    }
    figure.layout.autosize = true;
    figure.layout.dragmode = window.matchMedia("(pointer: coarse)").matches ? false : "zoom"; // a finger scrolls the page
    return figure;
  }

  function draw(mode) {
    root.dataset.theme = mode;
    for (const plot of document.querySelectorAll(".plot")) {
      const figure = figureFor(plot, mode);
      const alt = plot.querySelector(".alt");
      if (alt) alt.remove();
      Plotly.react(plot, figure.data, figure.layout, config);
      plot.firstElementChild.setAttribute("aria-hidden", "true"); // the plot's label speaks for all inside
    }
    const ruler = document.getElementById("js-plotly-tester"); // plotly measures letters in it, out of sight
    if (ruler) ruler.setAttribute("aria-hidden", "true");
    for (const legend of document.querySelectorAll(".legend")) fillLegend(legend, mode);
    const button = document.getElementById("theme");
    button.hidden = false;
    button.setAttribute("aria-pressed", String(mode === "dark"));
    button.textContent = mode === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", mode === "dark" ? "Use light colours" : "Use dark colours");
  }

  // Plotly's labels are a small HTML; a legend button wants the letters themselves.
  function letters(label) {
    return label.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  }

  function swatch(trace) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", "24");
    svg.setAttribute("height", "12");
    svg.setAttribute("aria-hidden", "true");
    const colour = trace.marker.color;
    const kind = trace.type === "bar" ? "rect" : trace.mode === "markers" ? "circle" : "line";
    const mark = document.createElementNS("http://www.w3.org/2000/svg", kind);
    const looks = {
      rect: { x: 5, y: 0, width: 12, height: 12, rx: 2, fill: colour },
      circle: { cx: 12, cy: 6, r: 4, fill: colour },
      line: { x1: 1, x2: 23, y1: 6, y2: 6, stroke: colour, "stroke-width": 2.5 },
    }[kind];
    const dashes = { dash: "6 3", dot: "2 2.5", dashdot: "7 2.5 2 2.5" };
    if (kind === "line" && trace.line.dash in dashes) looks["stroke-dasharray"] = dashes[trace.line.dash];
    for (const [name, value] of Object.entries(looks)) mark.setAttribute(name, value);
    svg.append(mark);
    return svg;
  }

  function fillLegend(legend, mode) {
    const item = legend.closest("figure").id;
    const traces = new Map();
    for (const plot of legend.closest("figure").querySelectorAll(".plot")) {
      for (const trace of figureFor(plot, mode).data) {
        if (trace.legendgroup && trace.marker && !traces.has(trace.legendgroup)) traces.set(trace.legendgroup, trace);
      }
    }
    const focused = [...legend.children].indexOf(document.activeElement);
    legend.replaceChildren();
    legend.hidden = traces.size < 2;
    for (const [name, trace] of traces) {
      const off = hidden.has(item) && hidden.get(item).has(name);
      const button = document.createElement("button");
      const words = document.createElement("span");
      button.type = "button";
      button.setAttribute("aria-pressed", String(!off));
      words.textContent = letters(name);
      words.dir = "auto";
      button.append(swatch(trace), words);
      button.addEventListener("click", () => toggleSeries(legend, item, name));
      legend.append(button);
    }
    if (focused >= 0) legend.children[focused].focus();
  }

  function toggleSeries(legend, item, name) {
    const off = hidden.get(item) || new Set();
    if (!off.delete(name)) off.add(name);
    hidden.set(item, off);
    for (const plot of legend.closest("figure").querySelectorAll(".plot")) {
      const figure = figureFor(plot, theme());
      Plotly.react(plot, figure.data, figure.layout, config);
    }
    fillLegend(legend, theme());
  }

  function compare(a, b) {
    if (a.dataset.key !== undefined && b.dataset.key !== undefined) return Number(a.dataset.key) - Number(b.dataset.key);
    return a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
  }

  function sortBy(heading) {
    const table = heading.closest("table");
    const column = [...heading.parentNode.children].indexOf(heading);
    const up = heading.getAttribute("aria-sort") !== "ascending";
    for (const other of heading.parentNode.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", up ? "ascending" : "descending");
    const rows = [...table.tBodies[0].rows];
    const empty = (row) => row.cells[column].textContent === "–"; // a cell without a value stays last, either way
    rows.sort((a, b) => empty(a) - empty(b) || (up ? 1 : -1) * compare(a.cells[column], b.cells[column]));
    table.tBodies[0].append(...rows);
  }

  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    try {
      window.localStorage.setItem("dmtrl-theme", chosen);
    } catch {
      // as above
    }
    draw(chosen);
  });
  wantsDark.addEventListener("change", () => draw(theme()));
  window.addEventListener("beforeprint", () => draw("light"));
  window.addEventListener("afterprint", () => draw(theme()));
  if (window.matchMedia("(max-width: 860px)").matches) document.querySelector("nav details").open = false;
  draw(theme());
})();
