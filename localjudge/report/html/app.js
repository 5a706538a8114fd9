/* The pages: where the data comes from, which page is shown, and the keys.

   window.localjudge.source has books [{key, title, kind: run | comparison | volume}], and overview(book),
   cases(book) and detail(id, book), each a promise. In a file it reads the blocks beside the page; the viewer puts
   another in its place before the page is loaded, which fetches.

   window.localjudge.register({name, case(place, {it, row, detail, next, previous}), hides(row, detail), badge(row),
   key(event, {row, detail}) -> true if it was for it}) adds a panel to every case; with pages {name: draw(book, id)} and
   links(book) it adds pages (#BOOK/NAME; the one named "" comes first of all) and ways to them. refresh() reads anew. */

const panels = [];
const bar = document.getElementById("bar"), main = document.getElementById("main"), live = document.getElementById("live");
const state = { book: null, it: null, rows: [], by_id: new Map(), list: null, filter: {}, row: null, detail: null, page: "" };

async function opened(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
const file_source = {
  get books() { return this._books; },
  block: [null, null],
  held(name) { return document.getElementById(name)?.textContent; },
  async start() { this._books = await opened(this.held("books")); },
  overview(book) { return opened(this.held(`overview-${book}`)); },
  cases(book) { return opened(this.held(`rows-${book}`)); },
  async detail(id) {
    const row = state.by_id.get(id);
    const volume = state.it.volumes?.[row.block];
    if (volume) return { elsewhere: volume };
    if (this.block[0] !== row.block) this.block = [row.block, await opened(this.held(`block-${row.block}`))];
    return this.block[1][row.place];
  },
};
const source = () => window.localjudge.source;

/* #BOOK/overview, #BOOK/cases, #BOOK/case/ID */
const address = (page, id = null, book = state.book?.key) => `#${encodeURIComponent(book)}/${page}${id === null ? "" : `/${encodeURIComponent(id)}`}`;
function go(page, id = null, book) {
  const to = address(page, id, book);
  if (location.hash === to) route();
  else location.hash = to;
}
function show(filter) {
  state.filter = filter;
  state.list = null;
  go("cases");
}
const open_case = (id) => go("case", id);
const close_case = () => go("cases");
function step(by) {
  const row = state.list?.beside(by);
  if (row) go("case", row.id);
}

async function route() {
  const [book, page = "overview", id] = location.hash.slice(1).split("/").map(decodeURIComponent);
  const added = panels.find((panel) => panel.pages?.[location.hash ? page : ""]);
  if (added) return added.pages[location.hash ? page : ""](book, id);
  const chosen = source().books.find((one) => one.key === book) ?? source().books[0];
  if (chosen !== state.book) await load(chosen);
  const wanted = page === "case" || page === "cases" || chosen.kind === "volume" ? "cases" : "overview";
  document.title = `${plain(state.it.title)} · localjudge`;
  draw_bar(wanted);
  if (wanted === "overview") {
    state.row = state.detail = null;
    if (state.page !== "overview") scrollTo(0, 0);
    main.replaceChildren(state.book.kind === "comparison" ? comparison_page(state.it, state.rows) : overview_page(state.it, state.rows));
  } else await cases_page(page === "case" ? id : null);
  state.page = wanted;
}
async function load(book) {
  const [it, rows] = await Promise.all([source().overview(book.key), source().cases(book.key)]);
  Object.assign(state, { book, it, rows, by_id: new Map(rows.map((row) => [row.id, row])), list: null, row: null, detail: null });
}
async function cases_page(id) {
  if (!state.list) {
    state.list = new CaseList(state.it, state.rows, state.filter, (row) => open_case(row.id));
    state.filter = {};
  }
  const list = state.list;
  const place = h("div.pane", { tabindex: -1 });
  if (!main.contains(list.element) || !main.querySelector(".split")) main.replaceChildren(h("div.split", list.element, place));
  const pane = main.querySelector(".pane");
  const split = main.querySelector(".split");
  split.classList.toggle("opened", id !== null);
  if (id === null) {
    state.row = state.detail = null;
    pane.replaceChildren(h("p.told.keys", say("keys")));
    list.reveal(null);
    return;
  }
  const row = state.by_id.get(id);
  if (!row) { pane.replaceChildren(h("p.note", say("none"))); return; }
  list.reveal(row);
  const detail = await source().detail(id, state.book.key);
  if (state.list !== list || list.current !== row) return;
  Object.assign(state, { row, detail });
  const at = list.left.indexOf(row);
  const steps = h("nav.steps", { "aria-label": say("cases") }, button(`← ${say("back")}`, close_case, { class: "back" }),
    button(say("previous"), () => step(-1), { disabled: at <= 0 }), button(say("next"), () => step(1), { disabled: at < 0 || at + 1 >= list.left.length }),
    at >= 0 ? h("span.told", `${count(at + 1)} / ${count(list.left.length)}`) : null);
  pane.replaceChildren(steps, detail.elsewhere
    ? h("p.note", say("volume"), " ", h("a", { href: `${state.it.files}/${detail.elsewhere}.html${address("case", id, "v")}` }, say("openvolume")))
    : case_page(state.it, row, detail));
  pane.scrollTop = 0;
  live.textContent = plain(row.id);
}

function draw_bar(page) {
  const link = (to, text) => h("a", { href: address(to), "aria-current": page === to ? "page" : null }, text);
  const books = source().books;
  bar.replaceChildren();
  put(bar, [
    h("span.brand", "localjudge"),
    books.length > 1 ? h("select", { "aria-label": say("judgement"), onchange: (event) => go("overview", null, event.target.value) },
      books.map((one) => h("option", { value: one.key, selected: one === state.book }, one.title))) : null,
    h("nav", { "aria-label": "localjudge" }, state.it.home ? h("a", { href: state.it.home }, say("home")) : link("overview", state.book.kind === "comparison" ? say("comparison") : say("overview")), link("cases", `${say("cases")} (${count(state.rows.length)})`), panels.map((panel) => panel.links?.(state.book))),
    h("span.space"),
    button(say("language"), () => { language = language === "en" ? "zh" : "en"; document.documentElement.lang = language; again(); }, { class: "quiet", id: "language" }),
    button("◐", toggle_theme, { class: "quiet", id: "theme", "aria-label": say("theme"), title: say("theme") }),
  ]);
}
function toggle_theme() {
  const dark = getComputedStyle(document.documentElement).getPropertyValue("--dark").trim() === "1";
  document.documentElement.dataset.theme = dark ? "light" : "dark";
  redraw();
}
/* The same page, drawn anew. */
function again() {
  if (state.list) { state.filter = state.list.filter; state.list = null; }
  return route();
}
async function refresh() {
  await load(state.book);
  return again();
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox";
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (panels.some((panel) => panel.key?.(event, state))) { event.preventDefault(); return; }
  const does = {
    j: () => step(1), k: () => step(-1), o: () => go("overview"), c: () => go("cases"), Escape: () => state.row && close_case(),
    "/": async () => { if (state.page !== "cases") { location.hash = address("cases"); await cases_page(null); } document.getElementById("search")?.focus(); },
  }[event.key];
  if (does) { event.preventDefault(); does(); }
});
addEventListener("hashchange", route);
addEventListener("resize", redraw);
addEventListener("beforeprint", () => { for (const one of main.querySelectorAll(".case details")) one.open = true; });

const api = window.localjudge ?? {};
window.localjudge = Object.assign(api, {
  source: api.source ?? file_source, state, refresh, go, open: open_case, step, h, say, words: WORDS,
  register(panel) { panels.push(panel); if (state.row) route(); },
});
async function start() {
  if (typeof DecompressionStream === "undefined" && source() === file_source) { main.replaceChildren(h("p.note", say("old"))); return; }
  await source().start?.();
  await route();
  document.documentElement.dataset.ready = "true";
}
if (document.readyState === "loading") addEventListener("DOMContentLoaded", start);
else start();
