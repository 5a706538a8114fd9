/* The list of cases: what is looked for, in which order, and the rows that are in sight. Knows rows only. */

const NO_FILTER = { text: "", status: "", answer: "", redline: "", field: "", low: "", high: "", surelow: "", surehigh: "", unsure: false, inconsistent: false, gold: false, failed: false, sort: "order" };
const ROW = 52;

const at_end = (value, worst) => (value === null || value === undefined ? worst : value);
const ORDERS = {
  order: null,
  worst: (a, b) => (b.red_lines?.length ? 1 : 0) - (a.red_lines?.length ? 1 : 0) || at_end(a.overall, 1e9) - at_end(b.overall, 1e9),
  best: (a, b) => at_end(b.overall, -1e9) - at_end(a.overall, -1e9),
  unsure: (a, b) => at_end(a.confidence, 2) - at_end(b.confidence, 2),
  gap: (a, b) => at_end(b.order_gap, -1) - at_end(a.order_gap, -1) || Number(b.inconsistent ?? 0) - Number(a.inconsistent ?? 0),
  apart: (a, b) => at_end(b.gap, -1) - at_end(a.gap, -1),
  id: (a, b) => a.id.localeCompare(b.id, undefined, { numeric: true }),
};
const differs = (row) => Object.values(row.gold ?? {}).some((one) => one.same === false);
const answered = (row, question, label) => {
  const value = row.answers?.[question];
  return Array.isArray(value) ? value.includes(label) : String(value ?? "cannot_judge") === label;
};

/* A question or field, and the value that stands after the first tab. */
const halves = (text) => [text.slice(0, Math.max(text.indexOf("\t"), 0)), text.slice(text.indexOf("\t") + 1)];

/* The rows that a filter leaves, in its order. haystacks: row -> what is searched, in small letters. */
function filtered(rows, filter, haystacks) {
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const [question, label] = halves(filter.answer), [field, value] = halves(filter.field);
  const bound = (text, otherwise) => (text === "" || Number.isNaN(Number(text)) ? otherwise : Number(text));
  const low = bound(filter.low, -Infinity), high = bound(filter.high, Infinity);
  const surelow = bound(filter.surelow, -Infinity), surehigh = bound(filter.surehigh, Infinity);
  const ranged = low !== -Infinity || high !== Infinity, sure = surelow !== -Infinity || surehigh !== Infinity;
  const left = rows.filter((row) =>
    (!filter.status || row.status === filter.status) &&
    (!filter.redline || row.red_lines?.includes(filter.redline)) &&
    (!filter.unsure || row.unsure) &&
    (!filter.inconsistent || row.inconsistent) &&
    (!filter.failed || row.passed === false) &&
    (!filter.gold || differs(row)) &&
    (!filter.answer || answered(row, question, label)) &&
    (!filter.field || row.fields[field] === value) &&
    (!ranged || (row.overall !== null && row.overall >= low && row.overall <= high)) &&
    (!sure || (row.confidence !== null && row.confidence >= surelow && row.confidence <= surehigh)) &&
    (!words.length || words.every((word) => haystacks.get(row).includes(word))));
  const order = ORDERS[filter.sort];
  return order ? left.sort(order) : left;
}

function tone(row, bounds) {
  if (row.passed !== null && row.passed !== undefined) return row.passed ? "good" : "bad";
  if (row.overall === null || row.overall === undefined || !bounds) return "";
  const part = (row.overall - bounds[0]) / (bounds[1] - bounds[0] || 1);
  return part < 1 / 3 ? "bad" : part < 2 / 3 ? "warn" : "good";
}

class CaseList {
  /* picked: called with a row that is chosen. */
  constructor(it, rows, filter, picked) {
    Object.assign(this, { it, rows, picked, current: null });
    this.filter = { ...NO_FILTER, ...filter };
    this.haystacks = new Map(rows.map((row) => [row, `${row.id} ${row.text}`.toLowerCase()]));
    this.told = h("p.told", { role: "status" });
    this.inner = h("div.inner");
    this.box = h("div.rows", { role: "listbox", tabindex: 0, "aria-label": say("cases"), onscroll: () => this.draw(), onkeydown: (event) => this.key(event) }, this.inner);
    this.controls = h("form.filters", { role: "search", onsubmit: (event) => event.preventDefault() });
    this.element = h("div.list", this.controls, this.told, this.box);
    this.draw_controls();
    this.apply();
    new ResizeObserver(() => this.draw()).observe(this.box);
  }

  set(change) {
    Object.assign(this.filter, change);
    this.apply();
  }

  draw_controls() {
    const { rows, it, filter } = this;
    const select = (label, key, options) => (options.length > 1 || filter[key])
      && h("label", label, h("select", { "data-filter": key, onchange: (event) => this.set({ [key]: event.target.value }) },
        h("option", { value: "" }, say("any")), options.map(([value, text]) => h("option", { value, selected: filter[key] === value }, text))));
    const check = (label, key) => (rows.some(TESTS[key]) || filter[key])
      && h("label.check", h("input", { type: "checkbox", "data-filter": key, checked: filter[key], onchange: (event) => this.set({ [key]: event.target.checked }) }), label);
    const bound = (key, label) => h("input", { type: "number", step: "any", "data-filter": key, value: filter[key], "aria-label": label, oninput: (event) => this.set({ [key]: event.target.value }) });
    const statuses = [...new Set(rows.map((row) => row.status))].filter(Boolean);
    const lines = [...new Set(rows.flatMap((row) => row.red_lines ?? []))].sort();
    const questions = (it.judge?.questions ?? []).filter((question) => question.labels.length && rows.some((row) => row.answers && question.id in row.answers));
    const answers = questions.flatMap((question) => question.labels.map(([label]) => [`${question.id}\t${label}`, `${question.id}: ${label}`]));
    const fields = Object.entries(it.slices ?? {}).flatMap(([field, values]) => Object.keys(values).map((value) => [`${field}\t${value}`, `${field}: ${value}`]));
    const sorts = ["order", "worst", "best", "unsure", "gap", "apart", "id"].filter((name) => name === "order" || name === "id" || rows.some((row) => ({
      worst: row.overall, best: row.overall, unsure: row.confidence, gap: row.order_gap ?? (row.inconsistent || null), apart: row.gap }[name] ?? null) !== null));
    const scored = rows.some((row) => row.overall !== null && row.overall !== undefined);
    this.controls.replaceChildren();
    const few = h("div.more-filters",
      select(say("status"), "status", statuses.map((name) => [name, say(name)])),
      select(say("redlines"), "redline", lines.map((code) => [code, code])),
      select(say("answer"), "answer", answers),
      select(say("slices"), "field", fields),
      scored && h("label", say("overall"), h("span.range", bound("low", `${say("overall")} ${say("from")}`), "–", bound("high", `${say("overall")} ${say("to")}`))),
      rows.some((row) => (row.confidence ?? null) !== null) && h("label", say("confidence"), h("span.range", bound("surelow", `${say("confidence")} ${say("from")}`), "–", bound("surehigh", `${say("confidence")} ${say("to")}`))),
      h("div.checks", check(say("onlyunsure"), "unsure"), check(say("onlyinconsistent"), "inconsistent"), check(say("onlyfailed"), "failed"), check(say("onlygold"), "gold")));
    put(this.controls, [
      h("label", say("search"), h("input", { type: "search", id: "search", "data-filter": "text", value: filter.text, placeholder: say("searchhint"), oninput: (event) => this.set({ text: event.target.value }) })),
      h("div.sorting",
        h("label", say("sort"), h("select", { "data-filter": "sort", onchange: (event) => this.set({ sort: event.target.value }) }, sorts.map((name) => h("option", { value: name, selected: filter.sort === name }, say(`sort_${name}`))))),
        button(say("clear"), () => { this.filter = { ...NO_FILTER }; this.draw_controls(); this.apply(); })),
      few.childElementCount ? few : null,
    ]);
  }

  apply() {
    this.left = filtered(this.rows, this.filter, this.haystacks);
    this.told.textContent = this.left.length ? say("shown", count(this.left.length), count(this.rows.length)) : say("none");
    this.inner.style.height = `${this.left.length * ROW}px`;
    this.box.scrollTop = 0;
    this.draw(true);
  }

  /* Only what is in sight, and a little around it. */
  draw(anew = false) {
    const from = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 4);
    const to = Math.min(this.left.length, Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + 4);
    if (!anew && from === this.from && to === this.to && this.marked === this.current) return;
    Object.assign(this, { from, to, marked: this.current });
    this.inner.replaceChildren(...this.left.slice(from, to).map((row, i) => this.row(row, from + i)));
    const at = this.left.indexOf(this.current);
    if (at >= from && at < to) this.box.setAttribute("aria-activedescendant", `row-${at}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  row(row, place) {
    const chosen = row === this.current;
    const extra = panels.map((panel) => panel.badge?.(row)).filter(Boolean);
    return h(`div.row${chosen ? ".current" : ""}`, {
      id: `row-${place}`, role: "option", "aria-selected": String(chosen), "aria-setsize": this.left.length, "aria-posinset": place + 1,
      css: { top: `${place * ROW}px` }, onclick: () => this.picked(row),
    },
    h("div.first", h("strong.id", { dir: "auto" }, row.id), h("span.badges", extra,
      row.red_lines?.length ? badge(row.red_lines.length > 1 ? `${row.red_lines[0]} +${row.red_lines.length - 1}` : row.red_lines[0], "bad", row.red_lines.join(", ")) : null,
      row.unsure && badge("?", "warn", say("unsure")), row.inconsistent && badge("⇄", "warn", say("inconsistent")), differs(row) && badge("≠", "warn", say("onlygold")),
      row.status && row.status !== "ok" ? badge(say(row.status), "bad") : null,
      row.preference && row.preference !== "inconsistent" ? badge(row.preference) : null,
      row.sides ? row.sides.map((side) => badge(side.told, tone(side, side.bounds), side.name)) : null,
      row.grade ? badge(row.grade) : null,
      row.status === "ok" && row.overall !== null && !row.preference ? badge(number(row.overall, 2), tone(row, this.it.judge?.bounds), say("overall")) : null)),
    h("div.second", { dir: "auto" }, row.text.slice(0, 160)));
  }

  reveal(row) {
    this.current = row;
    const at = this.left.indexOf(row);
    if (at >= 0) {
      const top = at * ROW;
      if (top < this.box.scrollTop) this.box.scrollTop = top;
      else if (top + ROW > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + ROW - this.box.clientHeight;
    }
    this.draw(true);
  }

  /* The row `by` places on from the current one. */
  beside(by) {
    const at = this.left.indexOf(this.current);
    return this.left[at < 0 ? (by > 0 ? 0 : this.left.length - 1) : at + by] ?? null;
  }

  key(event) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (by) { event.preventDefault(); const row = this.beside(by); if (row) this.reveal(row); }
    if (event.key === "Enter" && this.current) this.picked(this.current);
  }
}
const TESTS = { unsure: (row) => row.unsure, inconsistent: (row) => row.inconsistent, failed: (row) => row.passed === false, gold: differs };
