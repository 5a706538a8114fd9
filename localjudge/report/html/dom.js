/* Elements out of data. Every text becomes a text node, never markup: what a record or a model says is shown and
   never run. Knows no judge and no page. */

const WORDS = JSON.parse(document.getElementById("words").textContent);
let language = document.documentElement.dataset.language;
const say = (key, ...values) => (WORDS[language][key] ?? key).replace(/\{(\d)\}/g, (_, n) => values[n]);

/* Controls that would hide text or turn its direction; joiners are spared, Persian and emoji need them. */
const MARKS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]|[\ud800-\udbff](?![\udc00-\udfff])/u;
const MARK = new RegExp(MARKS.source, "gu");
const named = (c) => "U+" + c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0");
const plain = (text) => String(text).replace(MARK, (c) => `[${named(c)}]`);

function visible(text) {
  text = String(text);
  if (!MARKS.test(text)) return [document.createTextNode(text)];
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(MARK)) {
    if (found[0] === "\r" && text[found.index + 1] === "\n") continue;
    nodes.push(document.createTextNode(text.slice(from, found.index)));
    const mark = document.createElement("span");
    mark.className = "mark";
    mark.textContent = named(found[0]);
    nodes.push(mark);
    from = found.index + found[0].length;
  }
  nodes.push(document.createTextNode(text.slice(from)));
  return nodes;
}

/* h("p.note", {title: "..."}, child, ...): a child is an element, a text, a list of them, or nothing. */
function h(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(" ");
  if (rest.length && isOptions(rest[0])) {
    for (const [key, value] of Object.entries(rest.shift())) {
      if (value === undefined || value === null || value === false) continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else if (key === "css") for (const [property, what] of Object.entries(value)) element.style.setProperty(property, what);
      else if (key === "value" || key === "checked" || key === "selected" || key === "open") element[key] = value;
      else element.setAttribute(key, value === true ? "" : plain(value));
    }
  }
  put(element, rest);
  return element;
}
const isOptions = (it) => it !== null && typeof it === "object" && !Array.isArray(it) && !(it instanceof Node);
function put(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    if (Array.isArray(child)) put(element, child);
    else if (child instanceof Node) element.append(child);
    else element.append(...visible(child));
  }
}
function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  put(element, children);
  return element;
}

const number = (value, digits = 3) =>
  value === null || value === undefined ? "–" : Number(value.toFixed(digits)).toLocaleString("en", { maximumFractionDigits: digits });
const percent = (part, digits = 1) => (part === null || part === undefined ? "–" : `${(100 * part).toFixed(digits)} %`);
const count = (n) => Number(n).toLocaleString("en");
const span = (low, high, told = number) => (low === null || low === undefined ? "" : say("interval", told(low), told(high)));
const duration = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

/* rows: lists of cells. numeric: columns to set to the right. */
function table(head, rows, numeric = [], caption = null) {
  const side = (i) => (numeric.includes(i) ? { class: "number" } : {});
  return h("div.scroll", { tabindex: 0, role: "region", "aria-label": caption || head.filter(Boolean).join(", ") },
    h("table",
      caption && h("caption.hidden", caption),
      h("thead", h("tr", head.map((cell, i) => h("th", { scope: "col", ...side(i) }, cell)))),
      h("tbody", rows.map((row) => h("tr", row.map((cell, i) => (i ? h("td", side(i), cell) : h("th", { scope: "row", ...side(i) }, cell))))))));
}
const section = (title, ...children) => h("section", h("h2", title), children);
const button = (text, onclick, options = {}) => h("button", { type: "button", onclick, ...options }, text);
const badge = (text, kind = "", title = null) => h(`span.badge${kind && "." + kind}`, { title }, text);

/* Long text by parts: a browser takes seconds to lay out megabytes. */
const SHOWN = 20000;
function long(text, draw) {
  if (text.length <= SHOWN) return draw(text, 0);
  const box = h("div", draw(text.slice(0, SHOWN), 0));
  let at = SHOWN;
  const more = button(say("showrest", count(text.length - at)), () => {
    const next = at + 10 * SHOWN;
    more.before(draw(text.slice(at, next), at));
    at = next;
    if (at >= text.length) more.remove();
    else more.textContent = say("showrest", count(text.length - at));
  }, { class: "more" });
  box.append(more);
  return box;
}

/* Where quotes are in a text, compared as the judge's check does: NFKC, and white space as one blank. */
function folded(text) {
  let fold = "";
  const at = [];
  let blank = true;
  let i = 0;
  for (const c of text) {
    for (const d of c.normalize("NFKC")) {
      const space = /\s/.test(d);
      if (space && blank) continue;
      fold += space ? " " : d;
      for (let k = 0; k < (space ? 1 : d.length); k++) at.push(i);
      blank = space;
    }
    i += c.length;
  }
  at.push(text.length);
  return { fold, at };
}
function places(text, quotes) {
  if (!quotes.length || text.length > 500000) return [];
  const { fold, at } = folded(text);
  const found = [];
  for (const quote of quotes) {
    const wanted = folded(quote.text).fold.trim();
    if (!wanted) continue;
    for (let i = fold.indexOf(wanted), n = 0; i >= 0 && n < 20; i = fold.indexOf(wanted, i + wanted.length), n++) {
      found.push({ from: at[i], to: at[i + wanted.length - 1] + 1, quote });
    }
  }
  return found.sort((a, b) => a.from - b.from);
}
/* The text with its found quotes marked. offset: where in the whole text it begins. */
function marked_text(text, found, offset = 0) {
  const nodes = [];
  let at = 0;
  for (const { from, to, quote } of found) {
    const start = Math.max(at, from - offset);
    const end = Math.min(text.length, to - offset);
    if (end <= start) continue;
    nodes.push(...visible(text.slice(at, start)));
    nodes.push(h("mark", { title: quote.title, class: quote.kind, "data-finding": quote.key, tabindex: 0 }, text.slice(start, end)));
    at = end;
  }
  nodes.push(...visible(text.slice(at)));
  return nodes;
}

/* JSON as a tree, drawn as it is opened. */
const CHILDREN = 200;
function tree(value, quotes = [], name = null, depth = 0) {
  const label = name === null ? [] : [h("span.key", String(name)), ": "];
  if (value === null || typeof value !== "object") {
    const text = typeof value === "string" ? value : JSON.stringify(value);
    const found = typeof value === "string" ? places(text, quotes) : [];
    const kind = typeof value === "string" ? "string" : "literal";
    return h("div.leaf", label, h(`span.${kind}`, { dir: "auto" }, long(text, (part, at) => h("span", marked_text(part, found, at)))));
  }
  const entries = Array.isArray(value) ? value.map((item, i) => [i, item]) : Object.entries(value);
  const size = Array.isArray(value) ? `[${entries.length}]` : `{${entries.length}}`;
  const body = h("div.branch");
  let drawn = 0;
  const draw = () => {
    const next = Math.min(entries.length, drawn + CHILDREN);
    for (; drawn < next; drawn++) body.append(tree(entries[drawn][1], quotes, entries[drawn][0], depth + 1));
    if (drawn < entries.length) {
      const more = button(say("showmore", count(entries.length - drawn)), () => { more.remove(); draw(); }, { class: "more" });
      body.append(more);
    }
  };
  const holds = quotes.length > 0 && depth < 40 && holds_quote(value, quotes);
  const opened = depth < 40 && (depth < 2 || holds);
  if (opened) draw();
  return h("details", { open: opened, ontoggle: (event) => { if (event.target.open && !drawn) draw(); } },
    h("summary", label, h("span.literal", size)), body);
}
function holds_quote(value, quotes, depth = 0) {
  if (typeof value === "string") return places(value, quotes).length > 0;
  if (value === null || typeof value !== "object" || depth > 40) return false;
  return Object.values(value).some((inner) => holds_quote(inner, quotes, depth + 1));
}

/* Markdown by marked's lexer alone: its tokens become elements here, so that no markup of a text is ever parsed as
   such. Links lead nowhere, pictures are named, HTML is text. */
const ENTITIES = { lt: "<", gt: ">", amp: "&", quot: '"', "#39": "'", nbsp: "\u00a0" };
const decoded = (text) => text.replace(/&(#\d{1,7}|#x[\da-f]{1,6}|\w{1,8});/gi, (all, name) => {
  if (ENTITIES[name]) return ENTITIES[name];
  if (name[0] !== "#") return all;
  const code = /^#x/i.test(name) ? parseInt(name.slice(2), 16) : parseInt(name.slice(1), 10);
  return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : all;
});
const MARKDOWN_MOST = 100000;
function markdown(text) {
  if (text.length > MARKDOWN_MOST) return h("pre.text", { dir: "auto" }, text);
  try {
    return h("div.markdown", { dir: "auto" }, blocks(marked.lexer(text), 0));
  } catch {
    return h("pre.text", { dir: "auto" }, text);
  }
}
function blocks(tokens, depth) {
  if (depth > 30) throw new RangeError("too deep");
  return (tokens || []).map((token) => {
    const inner = () => inlines(token.tokens, depth + 1) ?? decoded(token.text ?? "");
    switch (token.type) {
      case "space": case "def": return null;
      case "heading": return h(`h${Math.min(6, token.depth + 2)}`, inner());
      case "paragraph": return h("p", inner());
      case "text": return h("p.tight", token.tokens ? inner() : decoded(token.text));
      case "code": return h("pre.code", token.text);
      case "blockquote": return h("blockquote", blocks(token.tokens, depth + 1));
      case "hr": return h("hr");
      case "list":
        return h(token.ordered ? "ol" : "ul", token.ordered && token.start > 1 ? { start: token.start } : {},
          token.items.map((item) => h("li", item.task ? (item.checked ? "☑ " : "☐ ") : null, blocks(item.tokens, depth + 1))));
      case "table":
        return h("div.scroll", { tabindex: 0 }, h("table",
          h("thead", h("tr", token.header.map((cell, i) => h("th", { class: token.align[i] === "right" ? "number" : null }, inlines(cell.tokens, depth + 1))))),
          h("tbody", token.rows.map((row) => h("tr", row.map((cell, i) => h("td", { class: token.align[i] === "right" ? "number" : null }, inlines(cell.tokens, depth + 1))))))));
      default: return h("pre.text", token.raw ?? "");
    }
  });
}
function inlines(tokens, depth) {
  if (depth > 30) throw new RangeError("too deep");
  return (tokens || []).map((token) => {
    const inner = () => (token.tokens ? inlines(token.tokens, depth + 1) : decoded(token.text ?? ""));
    switch (token.type) {
      case "strong": return h("strong", inner());
      case "em": return h("em", inner());
      case "del": return h("del", inner());
      case "codespan": return h("code", token.text);
      case "br": return h("br");
      case "escape": return decoded(token.text);
      case "link": return h("span.link", { title: token.href }, inner());
      case "image": return h("span.link", { title: token.href }, `[${token.text || "picture"}]`);
      case "text": return token.tokens ? inner() : decoded(token.text);
      default: return token.raw ?? "";
    }
  });
}
const LOOKS_MARKDOWN = /^(#{1,6} |[-*+] |\d+[.)] |> |\||```)|\*\*[^*\n]+\*\*|`[^`\n]+`|\[[^\]\n]+\]\([^)\n]+\)/m;

/* The words of two texts that differ (Myers 1986), or nothing where that would take too long. */
const TOKENS = /\s+|[\p{L}\p{N}_'’-]+|./gsu;
const split = (text) => (text.match(TOKENS) || []).flatMap((t) => (/\p{Script=Han}/u.test(t) ? [...t] : [t]));
function difference(one, other) {
  if (one.length + other.length > 200000) return null;
  const a = split(one), b = split(other);
  let start = 0, enda = a.length, endb = b.length;
  while (start < enda && start < endb && a[start] === b[start]) start++;
  while (enda > start && endb > start && a[enda - 1] === b[endb - 1]) { enda--; endb--; }
  const kept = shared(a.slice(start, enda), b.slice(start, endb));
  if (!kept) return null;
  const own = (tokens, which, end) => tokens.map((text, i) => ({ text, own: i >= start && i < end && !kept[which].has(i - start) }));
  return [own(a, 0, enda), own(b, 1, endb)];
}
function shared(a, b) {
  const most = 800, n = a.length, m = b.length, trace = [];
  let v = new Map([[1, 0]]);
  for (let d = 0; d <= n + m; d++) {
    if (d > most) return null;
    trace.push(v);
    const next = new Map(v);
    for (let k = -d; k <= d; k += 2) {
      let x = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1)) ? v.get(k + 1) : v.get(k - 1) + 1;
      let y = x - k;
      while (x < n && y < m && a[x] === b[y]) { x++; y++; }
      next.set(k, x);
      if (x >= n && y >= m) return walked(trace, n, m, d);
    }
    v = next;
  }
  return null;
}
function walked(trace, n, m, end) {
  const kept = [new Set(), new Set()];
  let x = n, y = m;
  for (let d = end; d >= 0; d--) {
    const v = trace[d], k = x - y;
    const before = k === -d || (k !== d && (v.get(k - 1) ?? -1) < (v.get(k + 1) ?? -1)) ? k + 1 : k - 1;
    const fromx = d ? v.get(before) : 0, fromy = d ? fromx - before : 0;
    while (x > fromx && y > fromy) { x--; y--; kept[0].add(x); kept[1].add(y); }
    if (d) { x = fromx; y = fromy; }
  }
  return kept;
}
