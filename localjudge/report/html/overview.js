/* The overview of a run, and that of a comparison. Knows what `data.py` and `compare.py` tell; goes to cases by
   `show`. */

function overview_page(it, rows) {
  const s = it.summary, judge = it.judge;
  const page = h("div.page");
  put(page, [
    h("h1", { dir: "auto" }, judge.name, h("small", ` ${it.title.split(", judged by ").slice(1).join(", judged by ")}`)),
    judge.description && h("p.lead", { dir: "auto" }, judge.description),
    h("p.opening", it.opening),
    [...it.warnings, ...it.notes].map((text) => h("p.note", text)),
    it.beside ? h("p.note", say("beside", count(it.beside), it.files)) : null,
    it.listed < it.cases ? h("p.note", say("listedonly", count(it.listed), count(it.cases))) : null,
    tiles(it),
    h("div.columns", scores_section(it), red_lines_section(it)),
    answers_section(it, rows),
    sureness_section(it, rows),
    h("div.columns", ranking_section(it.ranking), wins_section(it.wins)),
    slices_section(it),
    h("div.columns", worth_reading(it, rows)),
    panel_section(s.panel),
    credits_section(s.credits),
    diagnosis_section(s.diagnosis),
    cascade_section(s.cascade),
    agreement_section(it),
    audit_section(it.audit),
    distilled_section(it.distilled),
    section(say("provenance"), h("details", h("summary", judge.name, " ", judge.version),
      table(["", ""], it.provenance.map(([key, value]) => [key, h("span.wrap", value)])))),
  ]);
  return page;
}

function tile(label, value, more = null, go = null) {
  const inner = [h("span.tile-label", label), h("span.tile-value", value), more && h("span.tile-more", more)];
  return go ? h("button.tile", { type: "button", onclick: go }, inner) : h("div.tile", inner);
}
function tiles(it) {
  const s = it.summary, u = s.usage, pairs = s.pairwise;
  const lost = s.total - s.statuses.ok;
  return h("div.tiles",
    tile(say("judged"), count(s.statuses.ok), say("of", count(s.records)), () => show({ status: "ok" })),
    lost ? Object.entries(s.statuses).filter(([name, n]) => n && name !== "ok").map(([name, n]) => tile(say(name), count(n), null, () => show({ status: name }))) : null,
    pairs?.win_rate_a && tile(say("winrate"), percent(pairs.win_rate_a.share), span(pairs.win_rate_a.low, pairs.win_rate_a.high, percent)),
    !pairs && s.overall && tile(say("meanoverall"), number(s.overall.mean, 2), span(s.overall.low, s.overall.high, (v) => number(v, 2))),
    s.passed && tile(say("passrate"), percent(s.passed.share), span(s.passed.low, s.passed.high, percent), () => show({ failed: true })),
    pairs?.inconsistent_share && tile(say("inconsistent"), percent(pairs.inconsistent_share.share), span(pairs.inconsistent_share.low, pairs.inconsistent_share.high, percent), () => show({ inconsistent: true })),
    tile(say("unsure"), count(s.unsure), null, () => show({ unsure: true })),
    tile(say("tokens"), count(u.prompt + u.written), say("written", count(u.written), count(u.prompt), count(u.cached))),
    tile(say("time"), duration(s.seconds), s.verdicts_per_second ? say("persecond", number(s.verdicts_per_second, 2)) : null));
}
const title_of = (it, name) => it.judge.dimensions.find((one) => one.id === name)?.title ?? it.judge.questions.find((one) => one.id === name)?.id ?? name;
function scores_section(it) {
  const means = Object.entries({ [say("overall")]: it.summary.overall, ...it.summary.scores }).filter(([, mean]) => mean);
  if (!means.length) return null;
  return section(say("scores"), table([say("score"), "", say("mean"), "95 %", "n", say("missing")],
    means.map(([name, mean]) => [title_of(it, name), whisker(mean.mean, mean.low, mean.high, mean.scale, 140), number(mean.mean, 2),
      mean.low === null ? "–" : `${number(mean.low, 2)} – ${number(mean.high, 2)}`, count(mean.n), count(mean.missing)]), [2, 3, 4, 5], say("scores")));
}
function red_lines_section(it) {
  const lines = Object.entries(it.summary.red_lines).sort((a, b) => b[1] - a[1]);
  if (!lines.length) return null;
  const texts = Object.fromEntries(it.judge.red_lines.map((line) => [line.code, line.text]));
  for (const question of it.judge.questions) for (const [code, text] of question.labels) texts[code] ??= text;
  return section(say("redlines"), bars(lines.map(([code, n]) => [code, n, texts[code]]), it.summary.statuses.ok, (code) => show({ redline: code })));
}
function answers_section(it, rows) {
  const questions = it.judge.questions.filter((question) => it.summary.histograms[question.id]);
  const parts = questions.map((question) => {
    const meanings = Object.fromEntries(question.labels);
    const entries = Object.entries(it.summary.histograms[question.id]).map(([label, n]) => [label, n, meanings[label]]);
    return h("figure", h("figcaption", h("strong", question.id), h("span.ask", { dir: "auto" }, question.ask)),
      bars(entries, it.summary.statuses.ok, (label) => show({ answer: `${question.id}\t${label}` })));
  });
  const values = rows.map((row) => row.overall).filter((value) => value !== null && value !== undefined);
  if (new Set(values.map((value) => value.toFixed(4))).size > 8) {
    parts.unshift(h("figure", h("figcaption", h("strong", say("distribution", say("overall"))), h("span.ask", say("dragme"))),
      histogram(values, it.judge.bounds, say("overall"), (low, high) => show({ low: low.toFixed(3), high: high.toFixed(3) }))));
  }
  return parts.length ? section(say("answersgiven"), h("div.grid", parts)) : null;
}
function sureness_section(it, rows) {
  const reading = Object.entries(it.reading);
  if (!reading.length) return null;
  const values = rows.map((row) => row.confidence).filter((value) => value !== null && value !== undefined);
  return section(say("howsure"), h("div.grid",
    values.length > 1 && h("figure", h("figcaption", h("strong", say("distribution", say("confidence"))), h("span.ask", say("dragme"))),
      histogram(values, [0, 1], say("confidence"), (low, high) => show({ surelow: low.toFixed(3), surehigh: high.toFixed(3), sort: "unsure" }))),
    table([say("question"), "n", say("confidence"), say("mass")],
      reading.map(([name, one]) => [name, count(one.n), percent(one.confidence), percent(one.mass)]), [1, 2, 3], say("howsure"))));
}
function slices_section(it) {
  const fields = Object.keys(it.slices);
  if (!fields.length) return null;
  const scale = it.summary.overall?.scale ?? it.judge.bounds;
  const body = h("div");
  const draw = (field) => body.replaceChildren(table([field, "", say("mean"), "95 %", say("passed"), say("judged"), "n"],
    Object.entries(it.slices[field]).map(([value, one]) => [
      button(value, () => show({ field: `${field}\t${value}` }), { class: "plain" }),
      one.mean === null ? "" : whisker(one.mean, one.low, one.high, scale), number(one.mean, 2),
      one.low === null ? "–" : `${number(one.low, 2)} – ${number(one.high, 2)}`, percent(one.passed), count(one.judged), count(one.n)]), [2, 3, 4, 5, 6], field));
  draw(fields[0]);
  return section(say("slices"), h("label.inline", say("sliceby"), " ", h("select", { onchange: (event) => draw(event.target.value) },
    fields.map((field) => h("option", { value: field }, field)))), body);
}
function case_list(title, entries) {
  if (!entries.length) return null;
  return section(title, h("ol.cases", entries.map(([id, told, more]) =>
    h("li", button([h("strong", id), told && h("span.told", told)], () => open_case(id), { class: "plain" }), more && h("p.told", { dir: "auto" }, more.length > 220 ? more.slice(0, 220) + "…" : more)))));
}
function worth_reading(it, rows) {
  const s = it.summary;
  const told = (one) => [number(one.overall, 2), ...one.red_lines].join(" · ");
  const text = (id) => state.by_id.get(id)?.text;
  const sure = rows.filter((row) => row.confidence !== null && row.status === "ok").sort((a, b) => a.confidence - b.confidence).slice(0, 5);
  return [
    case_list(say("worst"), s.worst.map((one) => [one.id, told(one), one.rationale ?? text(one.id)])),
    case_list(say("best"), s.best.map((one) => [one.id, told(one), one.rationale ?? text(one.id)])),
    case_list(say("leastsure"), sure.map((row) => [row.id, `${say("confidence")} ${percent(row.confidence)}`, row.text])),
    case_list(say("undecided"), s.undecided.map((one) => [one.id, one.preferences.join(" / "), one.rationales.filter(Boolean).join(" / ")])),
    case_list(say("failures"), s.failures.map((one) => [one.id, say(one.status), one.error])),
  ];
}
function panel_section(panel) {
  if (!panel) return null;
  return section(say("members"),
    table([say("model"), say("judged"), say("mean"), "95 %"], Object.entries(panel.members).map(([name, one]) => [name, `${count(one.judged)}${one.failed ? ` (−${one.failed})` : ""}`,
      number(one.overall?.mean, 2), one.overall?.low == null ? "–" : `${number(one.overall.low, 2)} – ${number(one.overall.high, 2)}`]), [1, 2, 3], say("members")),
    h("h3", say("memberagreement")),
    table([say("question"), say("alpha"), say("unanimous"), say("split")], Object.entries(panel.agreement).map(([name, one]) =>
      [name, one.alpha === null ? "–" : number(one.alpha, 3), percent(one.unanimous?.share), count(one.split)]), [1, 2, 3], say("memberagreement")));
}
function credits_section(credits) {
  if (!credits) return null;
  const earned = (name) => h("figure", h("figcaption", h("strong", say(name))), bars(["1", "0.5", "0"].map((credit) => [credit, credits[name][credit]]), Object.values(credits[name]).reduce((a, b) => a + b, 0)));
  return [section(say("checklist"), h("div.grid", earned("essential"), earned("additional"))),
    case_list(`${say("criticals")} (${credits.critical})`, credits.failed.map((one) => [one.id, number(one.overall, 2), one.items.join("; ")]))];
}
function diagnosis_section(it) {
  if (!it) return null;
  const told = (one) => [`${say("technical")} ${number(one.technical, 2)}`, one.persona === null ? null : `${say("persona")} ${number(one.persona, 2)}`, one.spread === null ? null : `± ${number(one.spread, 2)}`].filter(Boolean).join(" · ");
  const readers = [...new Set(it.prompts.map((one) => one.persona))], prompts = [...new Set(it.prompts.map((one) => one.prompt_id))];
  const cell = (prompt, reader) => { const one = it.prompts.find((each) => each.prompt_id === prompt && each.persona === reader); return one ? `${number(one.fused, 2)} (${count(one.n)})` : ""; };
  return [h("div.columns",
    Object.keys(it.gate).length ? section(say("gate"), bars(Object.entries(it.gate), it.n)) : null,
    ["style", "danger", "unstable"].map((name) => case_list(`${say(name)} (${it[name].count})`, it[name].records.map((one) => [one.id, told(one)])))),
  prompts.length ? section(say("whoserves"), table(["", ...readers], prompts.map((prompt) => [prompt, ...readers.map((reader) => cell(prompt, reader))]), readers.map((_, i) => i + 1), say("whoserves"))) : null];
}
function cascade_section(it) {
  if (!it) return null;
  return section(say("cascade"), it.escalated && h("p", `${say("escalated")} ${count(it.escalated.count)} / ${count(it.escalated.n)} (${percent(it.escalated.share)})`),
    table([say("model"), say("judged"), say("decided"), say("tokens"), say("time")], [it.student, it.teacher].map((side) => [side.model, count(side.judged), count(side.decided), count(side.tokens), duration(side.seconds)]), [1, 2, 3, 4], say("cascade")));
}
function agreement_section(it) {
  if (!it.agreement?.held) return null;
  const told = (value) => number(value, 3);
  return section(say("agreement"), it.agreement.held.map((held) => [
    h("h3", held.target),
    table([say("figure"), say("value"), "95 %", "n", say("constant"), say("longer"), say("shuffled"), say("people")],
      held.figures.map((f) => [f.name.replaceAll("_", " "), told(f.value), f.low === null ? "–" : `${told(f.low)} – ${told(f.high)}`, count(f.n), told(f.constant), told(f.longer), told(f.shuffled), told(f.people)]), [1, 2, 3, 4, 5, 6, 7], held.target),
    held.confusion && held.confusion.gold.length <= 15 && h("figure", h("figcaption", say("confusion")), heat(held.confusion.judge, held.confusion.gold, held.confusion.table)),
  ]), it.gold ? button(say("onlygold"), () => show({ gold: true })) : null,
  it.figures.length ? h("details", h("summary", say("pictures")), h("div.grid", it.figures.map((one) => h("figure", h("figcaption", one.name), picture(one.image, one.name))))) : null);
}
function picture(uri, alt) {
  return /^data:image\/(png|jpe?g|webp|gif|bmp);base64,/.test(uri) ? h("img", { src: uri, alt, loading: "lazy" }) : h("span.note", alt);
}
/* A table of counts, shaded within its rows. */
function heat(rows, columns, counts, cell = count) {
  return table(["", ...columns], rows.map((name, i) => {
    const most = Math.max(1, ...counts[i].map((n) => n || 0));
    return [name, ...counts[i].map((n) => h("span.heat", { css: { "--part": String(Math.max(0, Math.min(1, (n || 0) / most))) } }, cell(n)))];
  }), columns.map((_, i) => i + 1), rows.join(", "));
}
function audit_section(audit) {
  if (!audit?.findings) return null;
  const told = (one) => (one ? `${percent(one.value)} (${percent(one.low)} – ${percent(one.high)})` : "–");
  return section(say("audit"), table([say("changed"), "n", say("mindchanged"), say("shift"), say("verdict")],
    audit.findings.filter((one) => one.n).map((one) => [h("span", { title: one.what }, one.name), count(one.n), told(one.flips), told(one.shift),
      badge(one.grade, one.grade === "serious" ? "bad" : one.grade === "none seen" ? "good" : "warn")]), [1, 2, 3], say("audit")));
}

/* A student, what it was and its teacher, by sets of records. */
function distilled_section(sets) {
  if (!sets) return null;
  const told = (one) => (one.value === null ? "–" : `${number(one.value, 3)}${one.low === null ? "" : ` (${number(one.low, 3)} – ${number(one.high, 3)})`}`);
  const of_point = (one) => [percent(one.escalated), `${percent(one.agreement)} (${percent(one.low)} – ${percent(one.high)})`];
  const held = (title, judges, side) => {
    const targets = [...new Set(judges.flatMap((judge) => judge[side].map((one) => one.target)))];
    return targets.map((target) => {
      const rows = judges.map((judge) => [judge, judge[side].find((one) => one.target === target)]).filter(([, one]) => one);
      const names = [...new Set(rows.flatMap(([, one]) => one.figures.map((figure) => figure.name)))];
      return h("figure", h("figcaption", h("strong", title), h("span.ask", target, " · ", say("intervals"))),
        table([say("judge"), say("model"), "n", ...names.map((name) => name.replaceAll("_", " "))], rows.map(([judge, one]) => [say(judge.role), judge.model, count(one.n),
          ...names.map((name) => { const figure = one.figures.find((each) => each.name === name); return figure ? told(figure) : "–"; })]), [2, ...names.map((_, i) => i + 3)], `${title}: ${target}`));
    });
  };
  return section(say("distilled"), Object.values(sets).map((one) => [
    h("h3", { dir: "auto" }, one.name),
    held(say("agreement"), one.judges, "people"),
    held(say("withteacher"), one.judges, "teacher"),
    one.kept.filter((kept) => kept.share !== null).map((kept) => h("p", say("keeps", percent(kept.share), kept.low === null ? "" : ` (${percent(kept.low)} – ${percent(kept.high)})`, kept.figure.replaceAll("_", " "), kept.target))),
    table([say("judge"), say("judged"), say("rate"), say("tokens"), say("relative")], one.judges.map((judge) => [say(judge.role), `${count(judge.judged)} / ${count(judge.verdicts)}`,
      number(judge.speed.per_second, 2), number(judge.speed.prompt + judge.speed.written, 0), number(judge.speed.relative, 3)]), [1, 2, 3, 4], say("distilled")),
    one.cascades.map((it) => h("figure", h("figcaption", h("strong", say("cascade")), h("span.ask", `${it.target} · ${say("wanted", percent(it.wanted))}`)),
      table(["", say("escalated"), say("agreementshare")], [["chosen", it.chosen], ["attainable", it.best], ["heldout", it.held_out]].filter(([, point]) => point).map(([name, point]) => [say(name), ...of_point(point)]), [1, 2], say("cascade")))),
    one.audits.length ? table([say("judge"), say("changed"), "n", say("mindchanged"), say("verdict")], one.audits.map((it) => [say(it.role), it.name, count(it.n),
      it.flips === null ? "–" : `${percent(it.flips)} (${percent(it.low)} – ${percent(it.high)})`, it.grade]), [2, 3], say("audit")) : null,
    one.notes.map((note) => h("p.note", note)),
  ]));
}

/* Several runs side by side: `compare.py`. */
function comparison_page(it, rows) {
  const page = h("div.page", h("h1", { dir: "auto" }, it.title), it.opening && h("p.opening", it.opening), it.notes.map((text) => h("p.note", text)));
  for (const part of it.parts) {
    put(page, [
      part.title && h("h2.part", { dir: "auto" }, part.title),
      part.reason && h("p.opening", { dir: "auto" }, part.reason),
      part.warnings.map((text) => h("p.note", text)),
      h("div.columns",
        ranking_section(part.ranking),
        wins_section(part.wins)),
      part.differences?.length && section(say("criteria"), table([say("score"), "", "", say("difference"), "95 %", "n"], part.differences.map((one) => [
        part.titles[one.value] ?? (one.value === "overall" ? say("overall") : one.value), `${one.first} − ${one.second}`,
        whisker(one.difference, one.low, one.high, one.scale), number(one.difference, 2), one.low === null ? "–" : `${number(one.low, 2)} – ${number(one.high, 2)}`, count(one.n)]), [3, 4, 5], say("criteria"))),
      part.crossed?.length && section(say("disagree"), h("div.grid", part.crossed.map((one) => h("figure",
        h("figcaption", h("strong", one.question), h("span.ask", say("agreeshare", count(one.same), count(one.n), percent(one.n ? one.same / one.n : null)), one.kappa === null ? "" : ` · κ ${number(one.kappa, 2)}`)),
        h("p.told", `${one.first} ↓ · ${one.second} →`), heat(one.labels, one.labels, one.table))))),
    ]);
  }
  const apart = [...rows].filter((row) => row.gap > 0).sort((a, b) => b.gap - a.gap).slice(0, 10);
  put(page, [case_list(say("apart"), apart.map((row) => [row.id, row.sides.map((side) => `${side.name} ${side.told}`).join(" · "), row.text]))]);
  return page;
}
function ranking_section(ranking) {
  if (!ranking) return null;
  const judged = ranking.rows.some((row) => row.mean !== undefined);
  return section(say("ranking"), h("p.told", say("rankingnote", count(ranking.draws))),
    table([say("candidate"), "", say("strength"), "95 %", ...(judged ? [say("meanoverall"), say("passed")] : [])], ranking.rows.map((row) => [
      row.name, whisker(row.strength, row.low, row.high, [0, 1], 80), percent(row.strength), row.low === null ? "–" : `${percent(row.low)} – ${percent(row.high)}`,
      ...(judged ? [number(row.mean, 2), percent(row.passed)] : [])]), [2, 3, 4, 5], say("ranking")));
}
function wins_section(wins) {
  return wins && section(say("wins"), h("p.told", say("winsnote")), wins_table(wins));
}
function wins_table({ names, wins, ties }) {
  return table(["", ...names], names.map((name, i) => [name, ...names.map((_, j) => (i === j ? "" : `${count(wins[i][j])}${ties[i][j] ? ` (${count(ties[i][j])})` : ""}`))]), names.map((_, i) => i + 1), say("wins"));
}
