/* One case: the record, and what was judged of it. Knows a row, its detail and the judge. */

function case_page(it, row, detail) {
  const panel_hides = panels.some((panel) => panel.hides?.(row, detail));
  const hidden = detail.blind || panel_hides;
  const quotes = hidden ? [] : quotes_of(it, detail);
  const head = h("div.case-head", h("h1", { dir: "auto", tabindex: -1 }, row.id), hidden ? null : case_badges(it, row));
  const box = h(`div.case${detail.pairs?.length ? ".paired" : ""}`, head,
    h("div.panels", panels.map((panel) => {
      const place = h("div.panel", { "data-panel": panel.name });
      panel.case?.(place, { it, row, detail, next: () => step(1), previous: () => step(-1) });
      return place.childNodes.length ? place : null;
    })));
  const record = h("div.record", h("h2", say("record")), record_fields(detail, quotes));
  const said = h("div.judgement", h("h2", say("judgement")), hidden ? h("p.note", say("hidden"))
    : detail.sides ? detail.sides.map((side) => h("div.side", h("h3", { dir: "auto" }, side.name), judgement(side.it ?? it, side.row, side)))
    : judgement(it, row, detail));
  box.append(h("div.halves", record, said));
  if (!hidden && detail.report) box.append(h("details.section", h("summary", say("report")), markdown(detail.report)));
  if (!hidden && detail.asks?.length) box.append(asks_box(detail.asks));
  if (!hidden && detail.asks === null) box.append(h("p.told", say("noprompt")));
  return box;
}
function case_badges(it, row) {
  return h("div.badges",
    row.status && row.status !== "ok" ? badge(say(row.status), "bad") : null,
    row.overall !== null && row.overall !== undefined ? badge(`${say("overall")} ${number(row.overall, 3)}`, tone(row, it.judge?.bounds)) : null,
    row.grade && badge(`${say("grade")} ${row.grade}`),
    row.passed === true ? badge(say("passed"), "good") : row.passed === false ? badge(say("notpassed"), "bad") : null,
    row.preference && badge(row.preference, row.inconsistent ? "warn" : ""),
    (row.red_lines ?? []).map((code) => badge(code, "bad")),
    row.unsure && badge(say("unsure"), "warn"),
    row.order_gap !== null && row.order_gap !== undefined ? badge(say("ordergap", number(row.order_gap, 2)), row.order_gap > 0.3 ? "warn" : "") : null);
}

/* The judge's inputs in its order, pairs side by side; then what else the record has, short things together. */
function record_fields(detail, quotes) {
  const rest = detail.fields.filter((field) => field.name !== "id");
  const short = (field) => !field.input && (field.kind === "text" ? field.value.length <= 80 && !field.value.includes("\n") : field.kind === "json" && (field.value === null || typeof field.value !== "object"));
  const facts = rest.filter(short);
  return [
    boxes(detail, rest.filter((field) => field.input), quotes),
    boxes(detail, rest.filter((field) => !field.input && !short(field)), quotes),
    facts.length ? h("dl.facts", facts.map((field) => h("div", h("dt", field.label ?? field.name), h("dd", { dir: "auto" }, String(field.value))))) : null,
  ];
}
/* Both of a pair stand where the first of them does. */
function boxes(detail, fields, quotes) {
  const drawn = new Set();
  return fields.map((field) => {
    const stem = (detail.pairs ?? []).find((one) => field.name === `${one}_a` || field.name === `${one}_b`);
    const [a, b] = ["a", "b"].map((end) => stem !== undefined && fields.find((one) => one.name === `${stem}_${end}`));
    if (!a || !b) return field_box(field, quotes);
    if (drawn.has(stem)) return null;
    drawn.add(stem);
    return pair_box(a, b, quotes);
  });
}
function pair_box(a, b, quotes) {
  if (a.kind !== "text" || b.kind !== "text") return h("div.pair", field_box(a, quotes), field_box(b, quotes));
  let marks = true;
  const box = h("div.pair");
  const told = h("span.told");
  const draw = () => {
    const apart = marks ? difference(a.value, b.value) : null;
    told.textContent = marks && !apart ? ` (${say("toolong")})` : "";
    const body = (one, i) => (apart && one.value.length <= SHOWN
      ? h("div.text", { dir: "auto" }, apart[i].map((token) => (token.own && token.text.trim() ? h(i ? "ins" : "del", token.text) : visible(token.text))))
      : null);
    box.replaceChildren(field_box(a, quotes, body(a, 0)), field_box(b, quotes, body(b, 1)));
  };
  draw();
  return [box, h("label.check", h("input", { type: "checkbox", checked: true, onchange: (event) => { marks = event.target.checked; draw(); } }), say("differences"), told)];
}

/* body: what is shown as the text, where it is drawn already. */
function field_box(field, quotes, body = null) {
  const box = h(`div.field${field.input ? "" : ".aside"}`);
  const name = h("span.name", field.label ?? field.name);
  if (field.kind === "images") {
    put(box, [h("div.field-head", name), h("div.pictures", field.value.map((uri, i) => picture(uri, say("picture", i + 1, field.value.length))))]);
  } else if (field.kind === "json") {
    put(box, [h("div.field-head", name), h("div.tree", tree(field.value, quotes))]);
  } else {
    const text = field.value;
    const found = places(text, quotes);
    const as_text = () => body ?? h("div.text", { dir: "auto" }, long(text, (part, at) => h("span", marked_text(part, found, at))));
    const place = h("div", as_text());
    const ways = LOOKS_MARKDOWN.test(text.slice(0, 20000)) && text.length <= MARKDOWN_MOST
      ? h("span.ways", ["text", "markdown"].map((way) => button(say(way), (event) => {
        place.replaceChildren(way === "text" ? as_text() : markdown(text));
        for (const other of event.target.parentNode.children) other.setAttribute("aria-pressed", String(other === event.target));
      }, { "aria-pressed": String(way === "text") })))
      : null;
    put(box, [h("div.field-head", name, ways), place]);
  }
  return box;
}

function quotes_of(it, detail) {
  const quotes = [];
  for (const side of detail.sides ?? [detail]) {
    for (const answer of side.answers ?? []) {
      if (!Array.isArray(answer.value)) continue;
      answer.value.forEach((finding, i) => {
        if (finding?.quote && finding.verified !== false) quotes.push({ text: finding.quote, key: `${answer.id}-${i}`, title: `${answer.id} ${i + 1}`, kind: "" });
      });
    }
  }
  return quotes;
}

function judgement(it, row, detail) {
  const questions = Object.fromEntries(it.judge.questions.map((question) => [question.id, question]));
  const answers = detail.answers ?? [];
  const items = new Set((detail.items ?? []).map((item) => item.id));
  const shown = answers.filter((answer) => !items.has(answer.id) && !(answer.id === "red_lines" && detail.decisions?.length && !answer.distribution));
  return [
    detail.error && h("p.note", { dir: "auto" }, detail.error),
    gold_box(detail.gold),
    detail.decided_by && h("p.told", say("decidedmodel", detail.decided_by)),
    decisions_box(detail.decisions),
    dimensions_box(it, detail),
    dual_box(detail.dual),
    items_box(detail.items, Object.fromEntries(answers.map((answer) => [answer.id, answer]))),
    by_stream(detail.dual, shown).map(([name, list]) => [name && h("h3", say(name)), list.map((answer) => answer_box(questions[answer.id], answer, detail))]),
    orders_box(questions, detail),
    members_box(questions, detail),
    detail.usage && h("p.told", say("usage", detail.usage.asks, count(detail.usage.prompt), count(detail.usage.written))),
  ];
}
function gold_box(gold) {
  const entries = Object.entries(gold ?? {});
  if (!entries.length) return null;
  return h("div.answer", h("div.answer-head", h("span.name", say("gold"))), entries.map(([target, one]) =>
    h("p", `${target}: `, h("strong", String(one.gold ?? "–")), " ", one.same === null ? null : badge(one.same ? say("same") : say("differs"), one.same ? "good" : "warn"))));
}
function decisions_box(decisions) {
  if (!decisions?.length) return null;
  const standing = decisions.filter((one) => one.stands), fallen = decisions.filter((one) => !one.stands);
  const items = (list) => h("ul.lines", list.map((one) => h("li", h("div", badge(one.code, one.stands ? "bad" : "good", one.stands ? say("stands") : say("doesnotstand")), " ",
    h("span", { dir: "auto" }, one.text), h("span.told", ` · ${say("decidedby")}: ${say(one.by)}`)), one.why ? h("p.told", { dir: "auto" }, one.why) : null)));
  return h("div.answer", h("div.answer-head", h("span.name", say("redlines")), badge(String(standing.length), standing.length ? "bad" : "good")),
    standing.length ? items(standing) : null,
    fallen.length ? h("details", h("summary", `${say("doesnotstand")} (${fallen.length})`), items(fallen)) : null);
}
function dimensions_box(it, detail) {
  const dimensions = it.judge.dimensions;
  if (!dimensions.length || !detail.dimensions || !Object.keys(detail.dimensions).length) return null;
  const measure = (name) => {
    const one = detail.measures[name];
    return one && h("li", h("span.name", it.judge.measures[name] ?? name), " ", h("strong", one.value === null ? say("cannot") : number(one.value, 1)), h("span.told", { dir: "auto" }, " ", one.why.join("; ")));
  };
  return h("div.answer", h("div.answer-head", h("span.name", say("measures"))), dimensions.map((one) => {
    const value = detail.dimensions[one.id];
    return h("details", h("summary", h("span.dimension", { dir: "auto" }, one.title), whisker(value ?? 0, null, null, [0, 100]), h("strong", value === null || value === undefined ? say("cannot") : number(value, 1)), h("span.told", { title: say("weight") }, ` · ${one.weight} %`)),
      h("ul", one.measures.map(measure)));
  }));
}
/* [stream, its answers]; of a judge that has none, all under no name. */
function by_stream(dual, answers) {
  if (!dual) return [["", answers]];
  const readers = Object.keys(dual.personas);
  const of_reader = (answer) => answer.id === "persona_match" || readers.some((reader) => answer.id.startsWith(`${reader}_`));
  return [["technical", answers.filter((answer) => !of_reader(answer))], ["persona", answers.filter(of_reader)]].filter(([, list]) => list.length);
}
/* A dual-control judge's two streams, the gate between them, and what would help. */
function dual_box(dual) {
  if (!dual) return null;
  const lines = (parts, share = () => "") => Object.entries(parts).map(([name, value]) => [[name, h("span.told", share(name))], value === null ? "" : whisker(value, null, null, [0, 1], 150), value === null ? say("cannot") : number(value, 2)]);
  const several = Object.keys(dual.personas).length > 1;
  return h("div.answer", h("div.answer-head", h("span.name", say("streams")),
    badge(`${say("technical")} ${number(dual.technical, 2)}`), dual.persona === null ? null : badge(`${say("persona")} ${number(dual.persona, 2)}`),
    dual.gate.length ? badge(say("gateclosed", dual.gate.join(", ")), "bad") : badge(say("gateopen"), "good")),
  h("p.told", [say("fused", number(dual.weights[0], 2), number(dual.weights[1], 2), number(dual.fused, 3)), dual.ceiling === null ? null : say("ceiling", number(dual.ceiling, 3)), dual.skipped ? say("spared") : null].filter(Boolean).join(" ")),
  table([say("technical"), "", ""], lines(dual.parts), [2], say("technical")),
  Object.keys(dual.personas).length ? table([say("persona"), "", ""], lines(dual.personas, (name) => several ? ` · ${percent(dual.mix[name], 0)}` : ""), [2], say("persona")) : null,
  dual.suggestions.length ? [h("h3", say("suggestions")), h("ul", dual.suggestions.map((one) => h("li", { dir: "auto" }, one.text, h("span.told", ` · ${one.because}`))))] : null);
}
/* A checklist's items with what each earned; first what is worst, essential items of the greatest weight and no credit. */
function items_box(items, answers) {
  if (!items?.length) return null;
  const earned = (list) => `${number(list.reduce((sum, item) => sum + item.credit * item.weight, 0), 1)} / ${count(list.reduce((sum, item) => sum + item.weight, 0))}`;
  const kind = (credit) => (credit === 1 ? "good" : credit === 0 ? "bad" : "warn");
  const critical = (item) => item.essential && item.weight === 3 && item.credit === 0;
  const groups = [["criticals", items.filter(critical)], ["essential", items.filter((item) => item.essential && !critical(item))], ["additional", items.filter((item) => !item.essential)]];
  return h("div.answer.checklist", h("div.answer-head", h("span.name", say("checklist")), badge(say("earned", earned(items)))), groups.filter(([, list]) => list.length).map(([name, list]) => [
    h("h3", name === "criticals" ? badge(say(name), "bad") : say(name), name === "criticals" ? null : h("span.told", ` · ${earned(list)}`)),
    h("ul.lines", list.map((item) => h("li", badge(number(item.credit, 1), kind(item.credit), say("credit")),
      h("div", h("div", h("strong", { dir: "auto" }, item.criterion), h("span.told", ` · ${say("weight")} ${item.weight}`)),
        item.reference ? h("p.told", { dir: "auto" }, item.reference) : null, item.rationale ? h("p", { dir: "auto" }, item.rationale) : null,
        answers[item.id]?.distribution && likely(answers[item.id].distribution, item.credit)))))]));
}
function answer_box(question, answer, detail, small = false) {
  if (!question || question.type === "text") {
    if (!answer.value) return null;
    return h("div.answer", h("div.answer-head", h("span.name", answer.id)), h("div.text.said", { dir: "auto" }, long(String(answer.value), (part) => h("span", part))));
  }
  if (question.type === "findings") return findings_box(question, answer);
  const split = detail.split?.includes(answer.id);
  const given = answer.value === null ? (split ? say("split") : say("cannot")) : Array.isArray(answer.value) ? (answer.value.join(", ") || "–") : String(answer.value);
  const meanings = Object.fromEntries(question.labels);
  const told = [
    answer.expected !== undefined && say("expected", number(answer.expected, 2), answer.sd === undefined ? "–" : number(answer.sd, 2)),
    answer.entropy !== undefined && say("entropy", number(answer.entropy, 2)),
    answer.mass !== undefined && `${say("mass")} ${percent(answer.mass)}`,
  ].filter(Boolean);
  return h("div.answer", h("div.answer-head", h("span.name", answer.id), h("strong.given", given), told.length ? h("span.told", told.join(" · ")) : null),
    small ? null : h("p.ask", { dir: "auto" }, question.ask),
    !small && meanings[given] ? h("p.meaning", { dir: "auto" }, meanings[given]) : null,
    answer.distribution && likely(answer.distribution, answer.value, question.type === "flags"));
}
function findings_box(question, answer) {
  const items = answer.value ?? [];
  return h("div.answer", h("div.answer-head", h("span.name", answer.id), badge(String(items.length))), h("p.ask", { dir: "auto" }, question.ask),
    h("ol.findings", items.map((finding, i) => {
      const { quote, verified, settled, why, ...rest } = finding;
      const go = () => document.querySelector(`mark[data-finding="${CSS.escape(`${answer.id}-${i}`)}"]`)?.focus();
      return h(`li${verified === false ? ".unverified" : ""}`,
        verified === false ? h("s", { dir: "auto" }, quote) : button(quote, go, { class: "plain quote", dir: "auto" }),
        verified === false ? badge(say("unverified"), "warn") : null,
        Object.entries(rest).filter(([, value]) => value !== null).map(([key, value]) => h("div.told", { dir: "auto" }, `${key}: `, h("span.value", String(value)))),
        settled !== undefined ? h("div.told", { dir: "auto" }, badge(say("settledby")), ` ${why ?? ""}`) : null);
    })));
}
function orders_box(questions, detail) {
  if (!detail.orders?.length) return null;
  return h("details.answer", { open: true }, h("summary", say("orders")), h("div.pair", detail.orders.map((answers, i) =>
    h("div", h("p.told", i ? say("swapped") : say("straight")), answers.map((answer) => answer_box(questions[answer.id], answer, {}, true))))));
}
function members_box(questions, detail) {
  if (!detail.members?.length) return null;
  return h("details.answer", h("summary", `${say("members")} (${detail.members.length})`), detail.members.map((one) =>
    h("div.side", h("h3", one.model), h("p", one.status === "ok" ? `${say("overall")} ${number(one.overall, 2)}` : say(one.status)), one.error && h("p.note", one.error),
      one.answers.map((answer) => answer_box(questions[answer.id], answer, {}, true)))));
}
function asks_box(asks) {
  const first = asks[0].messages.map(([, text]) => text);
  const box = h("div");
  return h("details.section", { ontoggle: (event) => { if (event.target.open && !box.childNodes.length) draw(); } }, h("summary", `${say("prompt")} (${asks.length})`), box);
  function draw() {
    asks.forEach((ask, i) => put(box, [h("h3", say("ask", i + 1)), ask.messages.map(([role, text, n], place) => {
      const whole = (first[place] ?? "").slice(0, n) + text;
      const body = h("pre.text", { dir: "auto" });
      const fill = (part) => body.replaceChildren(long(part, (piece) => h("span", piece)));
      fill(n > 200 ? `… ${text}` : whole);
      return h("div.message", h("div.field-head", h("span.name", role), n > 200 ? [h("span.told", say("sameasfirst", count(n))), button(say("showall"), (event) => { fill(whole); event.target.remove(); })] : null), body);
    }),
    ask.thought && h("div.message", h("div.field-head", h("span.name", say("thought"))), h("pre.text", { dir: "auto" }, ask.thought)),
    ask.completion ? h("div.message", h("div.field-head", h("span.name", say("completion"))), h("pre.text", { dir: "auto" }, ask.completion)) : h("p.told", say("nocompletion"))]));
  }
}
