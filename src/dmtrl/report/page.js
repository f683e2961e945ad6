// The behaviour of a report page: draw plots in light or dark colours, hide series by the legend, sort and search tables.
// Names from users are set as text (textContent), never as HTML.
"use strict";
(async function () {
  // Text that was compressed with gzip and has seven bits in each character.
  async function unpacked(id) {
    const element = document.getElementById(id);
    const text = element.textContent;
    const bytes = new Uint8Array(Number(element.dataset.size));
    for (let i = 0, at = 0, bits = 0, count = 0; at < bytes.length; i++) {
      bits = ((bits << 7) | (text.charCodeAt(i) & 127)) & 0xffff;
      count += 7;
      if (count >= 8) bytes[at++] = bits >> (count -= 8);
    }
    element.remove();
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  let data = null; // the plots and their dark colours, once they are unpacked
  const root = document.documentElement;
  const wantsDark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displaylogo: false, responsive: true, displayModeBar: false, doubleClick: "reset", scrollZoom: false };
  const hidden = new Map(); // item name -> names of the series that are switched off
  let chosen = null; // "light" or "dark" after the button was pressed
  try {
    chosen = window.localStorage.getItem("dmtrl-theme");
  } catch {
    // a browser may forbid storage for local files; the choice then lasts until the page is closed
  }

  function theme() {
    return chosen === "light" || chosen === "dark" ? chosen : wantsDark.matches ? "dark" : "light";
  }

  // The same figure in dark colours. Only values under a key with "color" are replaced, never labels.
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
    figure.layout.dragmode = window.matchMedia("(pointer: coarse)").matches ? false : "zoom"; // touch scrolls the page
    return figure;
  }

  // Label as many rows and columns of a heat map as fit: more of them after zooming in.
  function ticks(plot) {
    const change = {};
    const figure = data.plots[plot.dataset.plot][Number(plot.dataset.panel)];
    for (const side of Object.keys(figure.layout.meta || {})) {
      const texts = figure.layout.meta[side];
      const names = figure.data[0][side === "xaxis" ? "x" : "y"];
      const range = (plot.layout && plot.layout[side].range) || [-0.5, names.length - 0.5];
      const low = Math.max(0, Math.ceil(Math.min(...range)));
      const high = Math.min(names.length - 1, Math.floor(Math.max(...range)));
      const space = 0.8 * (side === "xaxis" ? plot.clientWidth : plot.clientHeight);
      const step = Math.max(1, Math.ceil(((high - low + 1) * 13) / space));
      const chosen = names.map((_, place) => place).filter((place) => place >= low && place <= high && place % step === 0);
      change[side + ".tickvals"] = chosen.map((place) => names[place]);
      change[side + ".ticktext"] = chosen.map((place) => texts[place]);
    }
    return change;
  }

  function labelCells(plot) {
    const change = ticks(plot);
    const same = (side) => change[side + ".tickvals"].join() === (plot.layout[side].tickvals || []).join();
    if (!Object.keys(change).every((key) => same(key.split(".")[0]))) Plotly.relayout(plot, change);
  }

  function draw(mode) {
    root.dataset.theme = mode;
    for (const plot of document.querySelectorAll(".plot")) {
      const figure = figureFor(plot, mode);
      const alt = plot.querySelector(".alt");
      if (alt) alt.remove();
      Plotly.react(plot, figure.data, figure.layout, config);
      if (figure.layout.meta) {
        labelCells(plot);
        plot.removeAllListeners("plotly_relayout"); // after each zoom, and when the window changes its width
        plot.on("plotly_relayout", () => labelCells(plot));
      }
      plot.firstElementChild.setAttribute("aria-hidden", "true"); // the label of the plot describes its content
    }
    const ruler = document.getElementById("js-plotly-tester"); // plotly uses this hidden element to measure text
    if (ruler) ruler.setAttribute("aria-hidden", "true");
    for (const legend of document.querySelectorAll(".legend")) fillLegend(legend, mode);
    const button = document.getElementById("theme");
    button.hidden = false;
    button.setAttribute("aria-pressed", String(mode === "dark"));
    button.textContent = mode === "dark" ? "Light" : "Dark";
    button.setAttribute("aria-label", mode === "dark" ? "Use light colours" : "Use dark colours");
  }

  // Plotly labels are HTML; a legend button needs plain text.
  function plainText(label) {
    return label.replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
  }

  function swatch(trace) {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    svg.setAttribute("width", "24");
    svg.setAttribute("height", "12");
    svg.setAttribute("aria-hidden", "true");
    const colour = trace.marker.color;
    const kind = trace.mode === "markers" ? "circle" : "line";
    const shape = { diamond: "M12 1L17 6L12 11L7 6Z", square: "M8 2H16V10H8Z", "triangle-up": "M12 1L17 10H7Z" }[trace.marker.symbol];
    const mark = document.createElementNS("http://www.w3.org/2000/svg", shape ? "path" : kind);
    const ring = trace.marker.symbol === "circle-open";
    const looks = shape ? { d: shape, fill: colour } : {
      circle: ring ? { cx: 12, cy: 6, r: 5, fill: "none", stroke: colour, "stroke-width": 1.6 } : { cx: 12, cy: 6, r: 4, fill: colour },
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
      words.textContent = plainText(name);
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
    const empty = (row) => row.cells[column].textContent === "–"; // empty cells stay last in both directions
    rows.sort((a, b) => empty(a) - empty(b) || (up ? 1 : -1) * compare(a.cells[column], b.cells[column]));
    table.tBodies[0].append(...rows);
  }

  function search(field) {
    const wanted = field.value.trim().toLocaleLowerCase();
    const rows = [...field.closest("figure").querySelectorAll("tbody tr")];
    let shown = 0;
    for (const row of rows) {
      row.hidden = wanted !== "" && !row.textContent.toLocaleLowerCase().includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    const words = shown === rows.length ? "" : `${shown.toLocaleString("en")} of `;
    field.closest(".find").querySelector("output").textContent = `${words}${rows.length.toLocaleString("en")} rows`;
  }

  // Mark the sides on which a table can be scrolled.
  function markEdges(box) {
    const beyond = box.scrollWidth - box.clientWidth;
    const more = [box.scrollLeft > 1 ? "left" : "", box.scrollLeft < beyond - 1 ? "right" : ""];
    box.parentNode.dataset.more = more.join(" ").trim();
  }

  const resized = new ResizeObserver((boxes) => boxes.forEach((box) => markEdges(box.target)));
  for (const box of document.querySelectorAll(".scroll")) {
    resized.observe(box);
    box.addEventListener("contentvisibilityautostatechange", () => markEdges(box)); // long tables are laid out late
    box.addEventListener("scroll", () => markEdges(box), { passive: true });
  }
  for (const field of document.querySelectorAll(".find input")) {
    field.closest(".find").hidden = false;
    field.addEventListener("input", () => search(field));
  }
  for (const button of document.querySelectorAll("th button")) {
    button.addEventListener("click", () => sortBy(button.closest("th")));
  }
  if (window.matchMedia("(max-width: 860px)").matches) document.querySelector("nav details").open = false;
  root.dataset.theme = theme();

  // Tables work from here on; plots take a moment more.
  const [library, json] = await Promise.all([unpacked("library"), unpacked("data")]);
  const script = document.createElement("script");
  script.textContent = library; // runs at once: the policy of the page has its hash
  document.head.append(script);
  data = JSON.parse(json);
  document.getElementById("theme").addEventListener("click", () => {
    chosen = theme() === "dark" ? "light" : "dark";
    try {
      window.localStorage.setItem("dmtrl-theme", chosen);
    } catch {
      // see above
    }
    draw(chosen);
  });
  wantsDark.addEventListener("change", () => draw(theme()));
  window.addEventListener("beforeprint", () => draw("light"));
  window.addEventListener("afterprint", () => draw(theme()));
  draw(theme());
})();
