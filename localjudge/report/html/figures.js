/* Bars, means with their intervals, and histograms. Bars and means are elements, so that they print, follow the
   theme and are read aloud; histograms over a number are uPlot's, where a range can be dragged. */

/* entries: [[label, n, title]]. of: what the shares are of. pick: called with the label of a bar that is chosen. */
function bars(entries, of, pick = null) {
  const longest = Math.max(1, ...entries.map(([, n]) => n));
  return h("div.bars", { role: "list" }, entries.map(([label, n, title]) => {
    const inner = [
      h("span.label", { title: title || label, dir: "auto" }, label),
      h("span.track", { "aria-hidden": true }, h("span.fill", { css: { width: `${(100 * n) / longest}%` } })),
      h("span.n", count(n)),
      h("span.share", of ? percent(n / of) : ""),
    ];
    return pick && n
      ? h("button.bar", { type: "button", role: "listitem", onclick: () => pick(label), title }, inner)
      : h("div.bar", { role: "listitem", title }, inner);
  }));
}

/* A label's probabilities. given: the label that was answered. */
function likely(distribution, given, flags = false) {
  return h("div.bars.likely", { role: "list" }, distribution.map(([label, p]) => {
    const chosen = flags ? (given || []).includes(label) : String(given) === label;
    return h(`div.bar${chosen ? ".chosen" : ""}`, { role: "listitem" },
      h("span.label", { title: label, dir: "auto" }, label),
      h("span.track", { "aria-hidden": true }, h("span.fill", { css: { width: `${100 * p}%` } })),
      h("span.share", percent(p)));
  }));
}

/* A mean and its interval on its scale. */
function whisker(mean, low, high, scale, width = 220) {
  const [least, greatest] = scale;
  const x = (value) => 6 + ((width - 12) * (value - least)) / (greatest - least || 1);
  const title = `${number(mean)}${low === null || low === undefined ? "" : ` (${span(low, high)})`}`;
  return svg("svg", { class: "whisker", width, height: 22, viewBox: `0 0 ${width} 22`, role: "img", "aria-label": title },
    svg("title", {}, title),
    svg("line", { x1: x(least), x2: x(greatest), y1: 11, y2: 11, class: "axis" }),
    least < 0 && greatest > 0 ? svg("line", { x1: x(0), x2: x(0), y1: 4, y2: 18, class: "axis" }) : null,
    low !== null && low !== undefined && svg("rect", { x: x(low), y: 7, width: Math.max(2, x(high) - x(low)), height: 8, rx: 4, class: "range" }),
    svg("circle", { cx: x(mean), cy: 11, r: 5, class: "dot" }));
}

const drawn = new Set();
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/* values: numbers. ranged: called with the range that was dragged over. */
function histogram(values, scale, title, ranged = null) {
  const bins = 24, [least, greatest] = scale, step = (greatest - least) / bins || 1;
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[Math.min(bins - 1, Math.max(0, Math.floor((value - least) / step)))]++;
  const centres = counts.map((_, i) => least + (i + 0.5) * step);
  const box = h("div.plot", { role: "img", "aria-label": `${title}: ${counts.map((n, i) => n && `${number(least + i * step, 2)} ${n}`).filter(Boolean).join(", ")}` });
  const plot = { box, draw() {
    box.replaceChildren();
    const ink = colour("--muted"), line = colour("--line"), fill = colour("--accent");
    const axis = { stroke: ink, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    new uPlot({
      width: Math.max(260, Math.min(620, box.clientWidth || 460)), height: 170, legend: { show: false },
      scales: { x: { time: false, range: () => [least, greatest] }, y: { range: (_, __, max) => [0, Math.max(1, max * 1.08)] } },
      axes: [axis, { ...axis, size: 46, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 50000] }],
      cursor: { drag: { x: Boolean(ranged), y: false, setScale: false }, points: { show: false } },
      series: [{}, { fill, stroke: fill, width: 0, points: { show: false }, paths: uPlot.paths.bars({ size: [0.92, 100], align: 0 }) }],
      hooks: { setSelect: [(u) => {
        if (!ranged || u.select.width < 4) return;
        ranged(u.posToVal(u.select.left, "x"), u.posToVal(u.select.left + u.select.width, "x"));
      }] },
    }, [centres, counts], box);
  } };
  drawn.add(plot);
  requestAnimationFrame(() => plot.draw());
  return box;
}
function redraw() {
  for (const plot of drawn) plot.box.isConnected ? plot.draw() : drawn.delete(plot);
}
