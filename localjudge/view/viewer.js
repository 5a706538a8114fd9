/* The viewer's part of the page: data fetched from the server it came from, the list of runs, and news of one that goes
   on. It shares the report's own script, and so its elements and words. */

Object.assign(WORDS.en, {
  runs: "Runs", run: "run", judge: "judge", progress: "judged", peoplelabels: "labels", folder: "folder",
  howfar: "{0} of {1}", state_done: "complete", state_judging: "judging now", state_stopped: "stopped at {0} of {1}", state_broken: "cannot be read",
  look: "Look", label: "Label", news: "{0} more judged: show them", compareruns: "Compare these {0}", choose: "compare",
  gone: "The viewer does not answer: is it still running?", nothing: "No run is there any more.",
});
Object.assign(WORDS.zh, {
  runs: "运行", run: "运行", judge: "裁判", progress: "已评审", peoplelabels: "标注", folder: "文件夹",
  howfar: "{0} / {1}", state_done: "已完成", state_judging: "正在评审", state_stopped: "停在 {1} 个中的第 {0} 个", state_broken: "无法读取",
  look: "查看", label: "标注", news: "又评审了 {0} 个：显示", compareruns: "比较这 {0} 个", choose: "比较",
  gone: "查看器没有回应：它还在运行吗？", nothing: "没有任何运行了。",
});

/* What the server answers, or an error with its words. */
async function ask(path, body) {
  let reply;
  const sent = body === undefined ? {} : { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  try {
    reply = await fetch(path, { cache: "no-store", ...sent });
  } catch {
    throw new Error(say("gone"));
  }
  const text = await reply.text();
  let told = null;
  try { told = JSON.parse(text); } catch { /* a refusal is plain text */ }
  if (reply.ok && told !== null) return told;
  throw new Error(told ? [told.where, told.error, told.fix].filter(Boolean).join(" · ") : text.trim());
}
const at_run = (key, what, query = {}) => {
  const asked = new URLSearchParams(query).toString();
  return `/api/${encodeURIComponent(key)}/${what}${asked && `?${asked}`}`;
};

const seen_runs = { all: [], books: [], annotator: null, chosen: new Set() };
const server_source = {
  get books() { return seen_runs.books; },
  start: () => look_again(),
  overview: (book) => ask(at_run(book, "overview")),
  cases: (book) => ask(at_run(book, "rows")),
  detail: (id, book) => ask(at_run(book, "detail", { id })),
};
window.localjudge.source = server_source;

async function look_again() {
  const told = await ask("/api/runs");
  Object.assign(seen_runs, { all: told.runs, annotator: told.annotator });
  // A book stays the same one for as long as its run is there: another would be loaded anew.
  const before = new Map(seen_runs.books.map((book) => [book.key, book]));
  seen_runs.books = told.runs.filter((run) => run.key && !run.problem).map((run) =>
    Object.assign(before.get(run.key) ?? { key: run.key, kind: "run" }, { title: name_of(run) }));
  // Runs side by side are a book of their own, whose key is theirs with dots between.
  for (const key of new Set([...before.keys(), location.hash.slice(1).split("/")[0]])) {
    const sides = key.split(".").map((part) => told.runs.find((run) => run.key === part && !run.problem));
    if (sides.length > 1 && sides.every(Boolean)) seen_runs.books.push(Object.assign(before.get(key) ?? { key, kind: "comparison" }, { title: sides.map(name_of).join(" · ") }));
  }
  return told.runs;
}
/* A path's last parts, as far as they tell the runs apart. */
function name_of(run) {
  const parts = (one) => one.path.split("/").filter(Boolean);
  const mine = parts(run);
  for (let n = 1; n < mine.length; n++) {
    const tail = mine.slice(-n).join("/");
    if (seen_runs.all.every((other) => other === run || parts(other).slice(-n).join("/") !== tail)) return tail;
  }
  return run.path;
}

/* The list of runs */

const state_of = (run) => (run.problem ? badge(say("state_broken"), "bad") : run.state === "judging" ? badge(say("state_judging"), "good")
  : run.state === "stopped" ? badge(say("state_stopped", count(run.judged), count(run.total)), "warn") : badge(say("state_done")));
function run_card(run) {
  if (run.problem) {
    return h("section.run", h("h2", { dir: "auto" }, name_of(run), " ", state_of(run)), h("p.note", { dir: "auto" }, run.problem));
  }
  const lost = Object.entries(run.statuses).filter(([name, n]) => n && name !== "ok");
  return h("section.run", { "data-run": run.key },
    h("div.run-head", h("h2", { dir: "auto" }, h("a", { href: address("overview", null, run.key) }, name_of(run))), state_of(run)),
    h("p.told", { dir: "auto", title: run.path }, `${run.judge} · ${run.model}${run.started ? ` · ${run.started.slice(0, 16).replace("T", " ")}` : ""}`),
    h("div.progress", { role: "progressbar", "aria-valuemin": 0, "aria-valuemax": run.total, "aria-valuenow": run.judged, "aria-label": say("progress") },
      h("span.fill", { css: { width: `${run.total ? (100 * run.judged) / run.total : 0}%` } })),
    h("p.run-told", h("span", say("howfar", count(run.judged), count(run.total))),
      run.mean !== null ? h("span", `${say("mean")} `, h("strong", number(run.mean, 2)), h("span.told", ` (${number(run.bounds[0])}–${number(run.bounds[1])})`)) : null,
      run.graded ? h("span", `${say("passed")} `, h("strong", percent(run.passed / run.graded, 0))) : null,
      lost.map(([name, n]) => badge(`${say(name)} ${count(n)}`, "bad"))),
    h("p.run-ways", h("a.way", { href: address("overview", null, run.key) }, say("overview")), h("a.way", { href: address("cases", null, run.key) }, say("cases")),
      h("a.way", { href: address("label", null, run.key) }, say("label")),
      h("label.check", h("input", { type: "checkbox", checked: seen_runs.chosen.has(run.key), onchange: (event) => {
        seen_runs.chosen[event.target.checked ? "add" : "delete"](run.key);
        main.querySelector(".compare-bar").replaceWith(compare_bar());
      } }), say("choose"))));
}
function compare_bar() {
  const keys = seen_runs.all.map((run) => run.key).filter((key) => key && seen_runs.chosen.has(key));
  return h("div.compare-bar", h("h1", say("runs")), keys.length > 1 ? h("button.main", { type: "button", id: "compare", onclick: async () => {
    location.hash = address("overview", null, keys.join("."));
  } }, say("compareruns", count(keys.length))) : null);
}
let home_clock = null;
const at_home = () => location.hash === "" || location.hash === "#";
async function home_page() {
  clearTimeout(home_clock);
  Object.assign(state, { row: null, detail: null, page: "home" });
  let told;
  try { told = (await look_again()).map(run_card); } catch (error) { told = [h("p.note", error.message)]; }
  if (!at_home()) return;
  const focus = document.activeElement?.closest?.("[data-run]") ? [document.activeElement.closest("[data-run]").dataset.run, document.activeElement.getAttribute("href")] : null;
  document.title = `${say("runs")} · localjudge`;
  bar.replaceChildren(h("span.brand", "localjudge"), h("nav", { "aria-label": "localjudge" }, h("a", { href: "#", "aria-current": "page" }, say("runs"))), h("span.space"), ...bar_buttons());
  main.replaceChildren(h("div.page", compare_bar(), h("div.runs", told.length ? told : h("p.note", say("nothing")))));
  if (focus) main.querySelector(`[data-run="${focus[0]}"] [href="${CSS.escape(focus[1])}"]`)?.focus();
  const soon = seen_runs.all.some((run) => run.state === "judging") ? 2000 : 10000;
  home_clock = setTimeout(() => { if (at_home()) home_page(); }, soon);
}
function bar_buttons() {
  return [
    button(say("language"), () => { language = language === "en" ? "zh" : "en"; document.documentElement.lang = language; route(); }, { class: "quiet", id: "language" }),
    button("◐", toggle_theme, { class: "quiet", id: "theme", "aria-label": say("theme"), title: say("theme") }),
  ];
}

addEventListener("hashchange", (event) => {
  // Before the page is drawn: a book that is not known yet would be taken for the first one.
  const key = location.hash.slice(1).split("/")[0];
  if (key.includes(".") && !seen_runs.books.some((book) => book.key === key)) {
    event.stopImmediatePropagation();
    look_again().then(route);
  }
}, true);
addEventListener("unhandledrejection", (event) => {
  main.replaceChildren(h("div.page", h("p.note", { role: "alert", dir: "auto" }, event.reason?.message ?? String(event.reason)), h("p", h("a", { href: "#" }, say("runs")))));
});

/* News of a run that goes on, wherever in it one is. */
const news = h("button.news", { type: "button", hidden: true, onclick: async () => { news.hidden = true; await refresh(); } });
setInterval(async () => {
  if (document.hidden || at_home() || !state.book || state.page === "label") return;
  const before = seen_runs.all.find((run) => run.key === state.book.key);
  if (before && before.state !== "judging") return;
  try { await look_again(); } catch { return; }
  const now = seen_runs.all.find((run) => run.key === state.book.key);
  const more = now ? now.judged - state.rows.length : 0;
  news.hidden = more <= 0;
  if (more > 0) news.textContent = say("news", count(more));
}, 5000);

window.localjudge.register({
  name: "viewer",
  pages: { "": home_page },
  links: (book) => [h("a", { href: "#" }, say("runs")), book?.kind === "run" ? h("a", { href: address("label") }, say("label")) : null, news],
});
