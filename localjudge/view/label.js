/* Labelling: one case at a time, without the judge's verdict until the person has given theirs. What is kept, and what
   may be sent before, the server decides. Keys: an option's own, Enter on and to save, Backspace back, u undo, s skip. */

Object.assign(WORDS.en, {
  whoareyou: "Who labels?", yourname: "Your name", begin: "Begin", pick: "Next", pick_random: "at random",
  "pick_least-sure": "least sure first", pick_disagreements: "disagreements first", left: "{0} labelled by you · {1} left",
  pickedtold: "What is not picked at random does not stand for the whole run; agree will say so.",
  save: "Save", saveanyway: "Save without the rest", undo: "Undo", skip_case: "Skip", nextcase: "Next case", cannotlabel: "cannot be judged",
  noneapply: "none of these", unanswered: "Not answered yet: {0}. Enter again saves without it.", alldone: "You have labelled all there is.",
  waiting: "Nothing is judged yet that could be labelled.", saved: "Saved.", yours: "you: {0}", judges: "judge: {0}", others: "others",
  undone: "Taken back; give it again, or skip it.", nothingtoundo: "There is nothing to take back.", notblind: "verdict seen", notblindtold: "You have been shown the judge's verdict on it; the label will say so.",
  keptin: "Kept in", holdagainst: "Hold the run against it", numberhint: "{0} to {1}", changeperson: "Not you?", nolabels: "Nobody has labelled it yet.",
  labelthis: "Label this case", labelkeys: "An option's key chooses it · Enter: on, then save · Backspace: back · u: undo · s: skip · Esc: the run",
  bypeople: "Labels", leftopen: "left open", yes: "yes", no: "no",
});
Object.assign(WORDS.zh, {
  whoareyou: "谁在标注？", yourname: "你的名字", begin: "开始", pick: "下一个", pick_random: "随机",
  "pick_least-sure": "最不确定优先", pick_disagreements: "分歧优先", left: "你已标注 {0} 个 · 还剩 {1} 个",
  pickedtold: "非随机挑选的案例不能代表整个运行；agree 会说明这一点。",
  save: "保存", saveanyway: "其余不答，保存", undo: "撤销", skip_case: "跳过", nextcase: "下一个案例", cannotlabel: "无法判断",
  noneapply: "都没有", unanswered: "尚未回答：{0}。再按回车则不答而保存。", alldone: "全部标注完毕。",
  waiting: "还没有可标注的评审结果。", saved: "已保存。", yours: "你：{0}", judges: "裁判：{0}", others: "其他人",
  undone: "已撤回；请重新标注或跳过。", nothingtoundo: "没有可撤销的。", notblind: "已看过结论", notblindtold: "你已看过裁判对它的结论，标注中会注明。",
  keptin: "保存在", holdagainst: "用它核对本次运行", numberhint: "{0} 至 {1}", changeperson: "不是你？", nolabels: "还没有人标注。",
  labelthis: "标注此案例", labelkeys: "按选项的键选择 · 回车：下一题、保存 · 退格：上一题 · u：撤销 · s：跳过 · Esc：返回运行",
  bypeople: "人工标注", leftopen: "未作答", yes: "是", no: "否",
});

const sheet = { key: null, form: null, who: null, pick: "random", picked: "random", id: null, box: null, answers: {}, at: 0, saved: null, told: "", warned: false, busy: false, left: null };
const remembered = (key, value) => {
  try {
    if (value === undefined) return localStorage.getItem(`localjudge-${key}`);
    localStorage.setItem(`localjudge-${key}`, value);
  } catch { /* a browser that keeps nothing asks again */ }
  return value ?? null;
};

async function label_page(key, id) {
  const anew = sheet.key !== key || state.page !== "label";
  Object.assign(state, { row: null, detail: null, page: "label" });
  try {
    if (!seen_runs.all.length) await look_again();
    if (anew) Object.assign(sheet, { key, id: null, saved: null, answers: {}, told: "", form: await ask(at_run(key, "label/form")) });
    sheet.who ??= seen_runs.annotator ?? remembered("annotator");
    if (!sheet.form.picks.includes(sheet.pick)) sheet.pick = "random";
    if (!sheet.who) return draw_sheet(ask_who());
    if (id !== undefined && id !== sheet.id) show_asked(await ask(at_run(key, "label/case", { id, annotator: sheet.who })));
    else if (sheet.id === null) await next_case();
  } catch (error) {
    sheet.form = anew ? null : sheet.form;
    sheet.key = anew ? null : sheet.key;
    return draw_sheet(h("p.note", { dir: "auto", role: "alert" }, error.message));
  }
  return draw_sheet();
}
async function next_case() {
  const told = await ask(at_run(sheet.key, "label/next", { annotator: sheet.who, pick: sheet.pick }));
  Object.assign(sheet, { left: told.left, labelled: told.labelled });
  show_asked({ ...told, picked: sheet.pick });
}
function show_asked({ id, case: shown, answers = {}, picked }) {
  Object.assign(sheet, { id, shown, picked, answers: { ...answers }, at: 0, saved: null, told: "", warned: false });
  if (id !== null) live.textContent = plain(id);
}
/* Something that takes the server's time; what goes wrong is told, and what was answered stays. */
async function doing(work) {
  if (sheet.busy) return;
  sheet.busy = true;
  try { await work(); } catch (error) { sheet.told = error.message; }
  sheet.busy = false;
  if (state.page === "label") draw_sheet();
}
const save = () => doing(async () => {
  const open = sheet.form.asked.filter((one) => !(one.name in sheet.answers));
  if (open.length && !sheet.warned && open.length < sheet.form.asked.length) {
    Object.assign(sheet, { warned: true, told: say("unanswered", open.map((one) => one.name).join(", ")), at: sheet.form.asked.indexOf(open[0]) });
    return;
  }
  if (open.length === sheet.form.asked.length) return;
  const reply = await ask(at_run(sheet.key, "label/save"), { id: sheet.id, annotator: sheet.who, picked: sheet.picked, answers: sheet.answers });
  sheet.left = sheet.left === null ? null : Math.max(0, sheet.left - 1);
  Object.assign(sheet, { saved: reply, labelled: reply.counts[sheet.who], told: reply.told.join(" ") });
  sheet.form.counts = reply.counts;
  state.book = null; // its rows have this label now
  live.textContent = say("saved");
});
const onward = () => doing(async () => {
  if (location.hash !== address("label", null, sheet.key)) history.replaceState(null, "", address("label", null, sheet.key));
  await next_case();
  scrollTo(0, 0);
});
const skip = () => doing(async () => {
  await ask(at_run(sheet.key, "label/skip"), { annotator: sheet.who, id: sheet.id });
  await next_case();
});
const undo = () => doing(async () => {
  const told = await ask(at_run(sheet.key, "label/undo"), { annotator: sheet.who });
  if (told.id === null) { sheet.told = say("nothingtoundo"); return; }
  show_asked(told);
  sheet.left = sheet.left === null ? null : sheet.left + 1;
  Object.assign(sheet, { told: say("undone"), labelled: told.counts[sheet.who] ?? 0 });
});

/* Answers */

function answer(question, value) {
  if (value === undefined) delete sheet.answers[question.name];
  else sheet.answers[question.name] = value;
  sheet.warned = false;
  sheet.told = "";
}
function choose(question, option) {
  if (question.how === "some") {
    const now = sheet.answers[question.name] ?? [];
    answer(question, question.options.map((one) => one.value).filter((value) => (value === option.value) !== now.includes(value)));
  } else {
    answer(question, option.value);
    const open = sheet.form.asked.findIndex((one, i) => i > sheet.at && !(one.name in sheet.answers));
    if (open > 0) sheet.at = open;
  }
  draw_sheet();
}
function forth() {
  const question = sheet.form.asked[sheet.at];
  const open = sheet.form.asked.findIndex((one, i) => i > sheet.at && !(one.name in sheet.answers));
  if (open > 0 && (question.name in sheet.answers)) { sheet.at = open; draw_sheet(); } else save();
}
function to_question(at) {
  sheet.at = Math.min(sheet.form.asked.length - 1, Math.max(0, at));
  draw_sheet();
}
function label_key(event) {
  if (state.page !== "label" || !sheet.form || sheet.id === null) return state.page === "label" && event.key.length === 1 && !/^(BUTTON|A|SUMMARY)$/.test(event.target.tagName);
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (key === "Enter" && /^(BUTTON|A|SUMMARY)$/.test(event.target.tagName) && event.target.dataset.option === undefined) return false;
  if (key === "u") { undo(); return true; }
  if (key === "Escape") { go("cases", null, sheet.key); return true; }
  if (sheet.saved) {
    if (key === "Enter") { onward(); return true; }
    return /^[a-z0-9]$/.test(key);
  }
  if (key === "s") { skip(); return true; }
  if (key === "Enter") { forth(); return true; }
  if (key === "Backspace" || key === "ArrowUp") { to_question(sheet.at - 1); return true; }
  if (key === "ArrowDown") { to_question(sheet.at + 1); return true; }
  const question = sheet.form.asked[sheet.at];
  const digits = question.options.some((one) => /\d/.test(one.key));
  const option = question.options.find((one) => one.key === key) ?? (!digits && /^[1-9]$/.test(key) ? question.options[key - 1] : undefined);
  if (option) { choose(question, option); return true; }
  if (key === "x" && question.cannot) { choose(question, { value: question.cannot }); return true; }
  if (key === "0" && question.how === "some") { answer(question, []); draw_sheet(); return true; }
  return /^[a-z0-9/]$/.test(key);
}

/* Drawn */

function ask_who() {
  const name = h("input", { type: "text", id: "annotator", name: "annotator", autocomplete: "off", maxlength: 60, required: true, value: sheet.who ?? "" });
  const begin = (event) => {
    event.preventDefault();
    if (!name.value.trim()) return;
    sheet.who = remembered("annotator", name.value.trim().replace(/\s+/g, " "));
    sheet.id = null;
    route();
  };
  return h("form.who", { onsubmit: begin }, h("h1", say("whoareyou")), h("label", { for: "annotator" }, say("yourname")), name, h("button", { type: "submit" }, say("begin")));
}
function draw_sheet(instead = null) {
  const run = seen_runs.all.find((one) => one.key === sheet.key);
  document.title = `${say("label")} · localjudge`;
  bar.replaceChildren(h("span.brand", "localjudge"),
    h("nav", { "aria-label": "localjudge" }, h("a", { href: "#" }, say("runs")), run && h("a", { href: address("overview", null, run.key), dir: "auto" }, name_of(run)), h("a", { href: address("label", null, sheet.key ?? ""), "aria-current": "page" }, say("label"))),
    h("span.space"), ...bar_buttons());
  const held = document.activeElement, field = held?.closest?.("fieldset")?.dataset.question;
  const again_at = held?.dataset?.option !== undefined ? `[data-question="${CSS.escape(field)}"] [data-option="${CSS.escape(held.dataset.option)}"]` : held?.id && held !== main ? `#${CSS.escape(held.id)}` : null;
  const before = main.querySelector(".sheet");
  sheet.scrolled = before && !sheet.saved ? { of: sheet.shown, top: before.scrollTop } : null;
  const top = main.querySelector(".labelling .case")?.dataset.id === sheet.id ? scrollY : 0;
  main.replaceChildren(instead ? h("div.page", instead) : h("div.page.wide", sheet_head(), sheet.id === null ? sheet_end() : sheet_case()));
  scrollTo(0, top);
  const side = main.querySelector(".sheet"), question = main.querySelector("fieldset.current");
  if (side && sheet.shown === sheet.scrolled?.of) side.scrollTop = sheet.scrolled.top;
  if (side && question) {
    const below = question.offsetTop + question.offsetHeight + side.querySelector(".sheet-foot").offsetHeight - side.clientHeight;
    side.scrollTop = Math.min(Math.max(side.scrollTop, below), question.offsetTop);
  }
  const wanted = main.querySelector("fieldset.current #number-answer:not(:disabled)") ?? (again_at && main.querySelector(again_at));
  (wanted && !wanted.disabled ? wanted : main).focus({ preventScroll: true });
  if (instead) main.querySelector("#annotator")?.focus();
}
function sheet_head() {
  const form = sheet.form;
  return h("div.sheet-head",
    h("span", { dir: "auto" }, h("strong", sheet.who), " ", h("button.plain", { type: "button", onclick: () => draw_sheet(ask_who()) }, say("changeperson"))),
    sheet.left === null ? null : h("span.told", { id: "left" }, say("left", count(sheet.labelled ?? 0), count(sheet.left))),
    h("label.pick", `${say("pick")} `, h("select", { id: "pick", onchange: (event) => { sheet.pick = event.target.value; event.target.blur(); if (!sheet.saved) onward(); } },
      form.picks.map((name) => h("option", { value: name, selected: name === sheet.pick }, say(`pick_${name}`))))),
    sheet.pick === "random" ? null : h("span.told", say("pickedtold")));
}
function sheet_end() {
  return h("section", h("p.opening", say(sheet.form.judged ? "alldone" : "waiting")), sheet.told && h("p.note", { role: "status" }, sheet.told), buttons(), kept_box());
}
/* The record, drawn once: what is opened in it stays open while one answers. */
function record_box() {
  const { shown, saved } = sheet;
  if (sheet.box?.of === shown && sheet.box.saved === saved) return sheet.box.element;
  const quotes = saved ? quotes_of(sheet.form, saved.detail) : [];
  const element = h(`div.case${shown.pairs.length ? ".paired" : ""}`, { "data-id": sheet.id },
    h("div.case-head", h("h1", { dir: "auto", tabindex: -1 }, sheet.id), shown.seen && !saved ? badge(say("notblind"), "warn", say("notblindtold")) : null),
    boxes(shown, shown.fields.filter((field) => field.name !== "id"), quotes));
  sheet.box = { of: shown, saved, element };
  return element;
}
function sheet_case() {
  return h("div.labelling", record_box(),
    h("div.sheet", { "aria-label": say("label"), role: "region" },
      sheet.form.asked.map((question, i) => question_box(question, i)),
      h("div.sheet-foot", sheet.told && h("p.note", { role: "alert", dir: "auto" }, sheet.told), buttons()),
      sheet.saved ? h("div.judgement", h("h2", say("judgement")), others_box(sheet.saved.detail.labels), judgement(sheet.form, { id: sheet.id }, sheet.saved.detail)) : h("p.note.hidden-verdict", say("hidden")),
      h("p.told", say("labelkeys")), kept_box()));
}
const worded = (question, value) => (typeof value !== "boolean" ? String(value) : question.name !== "passed" ? say(value ? "yes" : "no") : say(value ? "passed" : "notpassed"));
function question_box(question, i) {
  const given = sheet.answers[question.name];
  const locked = Boolean(sheet.saved);
  const picked = (value) => (question.how === "some" ? (given ?? []).includes(value) : given === value);
  const option = (value, key, text, means, chosen, act) => h(`button.option${chosen ? ".chosen" : ""}`, {
    type: "button", "data-option": String(value), disabled: locked, onclick: () => { sheet.at = i; act(); },
    ...(question.how === "some" ? { "aria-pressed": String(chosen) } : { role: "radio", "aria-checked": String(chosen) }),
  }, h("kbd", key || "·"), h("span.option-text", { dir: "auto" }, h("strong", text), means ? h("span.told", ` ${means}`) : null));
  const open = question.options.filter((one) => !locked || picked(one.value));
  const options = open.map((one) => option(one.value, one.key, worded(question, one.value), one.means, picked(one.value), () => choose(question, one)));
  const none = Array.isArray(given) && !given.length;
  if (question.how === "some" && (!locked || none)) options.push(option("", "0", say("noneapply"), "", none, () => { answer(question, []); draw_sheet(); }));
  if (question.cannot && (!locked || given === question.cannot)) options.push(option(question.cannot, "x", say("cannotlabel"), "", given === question.cannot, () => choose(question, { value: question.cannot })));
  return h(`fieldset${i === sheet.at && !locked ? ".current" : ""}`, {
    "data-question": question.name,
    onfocusin: () => {
      sheet.at = i;
      for (const other of main.querySelectorAll("fieldset")) other.classList.toggle("current", !sheet.saved && other.dataset.question === question.name);
    },
  },
    h("legend", { dir: "auto" }, h("span.name", question.name), " ", question.ask === question.name ? null : question.ask),
    question.how === "number" ? number_box(question, given, locked, i === sheet.at) : null,
    options.length ? h("div.options", { role: question.how === "some" ? "group" : "radiogroup", "aria-label": question.name }, options) : null,
    locked ? compared(question, given) : null);
}
function number_box(question, given, locked, current) {
  const [low, high] = question.bounds;
  const read = (event) => {
    const value = event.target.value === "" ? undefined : Number(event.target.value);
    answer(question, value === undefined || Number.isNaN(value) ? undefined : value);
  };
  return h("label.number-answer", `${say("numberhint", number(low), number(high))} `, h("input", {
    type: "number", id: current ? "number-answer" : null, min: low, max: high, step: question.whole ? 1 : "any", disabled: locked, value: typeof given === "number" ? given : "", oninput: read,
    onkeydown: (event) => { if (event.key === "Enter") { event.preventDefault(); event.stopPropagation(); read(event); forth(); } },
  }));
}
function said_by_judge(question) {
  const shown = sheet.saved.detail;
  const own = shown.answers.find((one) => one.id === question.name);
  if (question.name === "red_lines") return shown.red_lines;
  if (own) return own.value;
  const [part, name] = question.name.split(".");
  if (part === "measures") return shown.measures[name]?.value;
  if (part === "dimensions") return shown.dimensions[name];
  if (name !== undefined) return (part === "red_lines" ? shown.red_lines : shown.answers.find((one) => one.id === part)?.value ?? []).includes(name);
  return shown[question.name];
}
function compared(question, given) {
  if (given === undefined) return h("p.told", say("leftopen"));
  const theirs = said_by_judge(question);
  const text = (value) => (value === null || value === undefined ? say("cannotlabel") : Array.isArray(value) ? value.join(", ") || say("noneapply")
    : value === question.cannot ? say("cannotlabel") : typeof value === "number" ? number(value, 2) : worded(question, value));
  const bare = (value) => (Array.isArray(value) ? [...value].sort().join("\n") : value === question.cannot ? "null" : String(value ?? null));
  const same = question.how === "number" ? typeof theirs === "number" && Math.abs(given - theirs) <= 0.125 * (question.bounds[1] - question.bounds[0]) : bare(given) === bare(theirs);
  return h("p.compared", badge(say(same ? "same" : "differs"), same ? "good" : "warn"), " ", say("yours", text(given)), " · ", say("judges", text(theirs)));
}
function others_box(labels) {
  const others = Object.entries(labels ?? {}).filter(([who]) => who !== sheet.who);
  return others.length ? people_box(Object.fromEntries(others), say("others")) : null;
}
function people_box(labels, title) {
  const people = Object.entries(labels ?? {});
  if (!people.length) return null;
  return h("div.answer", h("div.answer-head", h("span.name", title)), people.map(([who, answers]) =>
    h("p", { dir: "auto" }, h("strong", who), ": ", Object.entries(answers).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(" ") || "–" : value}`).join(" · "))));
}
function buttons() {
  return h("div.sheet-buttons",
    sheet.id === null ? null : sheet.saved ? button(say("nextcase"), onward, { class: "main", id: "next" }) : button(say(sheet.warned ? "saveanyway" : "save"), save, { class: "main", id: "save", disabled: !Object.keys(sheet.answers).length }),
    sheet.id === null || sheet.saved ? null : button(say("skip_case"), skip, { id: "skip" }),
    button(say("undo"), undo, { id: "undo" }));
}
function kept_box() {
  const people = Object.entries(sheet.form.counts);
  return h("details.kept", h("summary", say("keptin"), " ", h("span.wrap", { dir: "auto" }, sheet.form.gold)),
    people.length ? h("p", { dir: "auto" }, people.map(([who, n]) => `${who} ${count(n)}`).join(" · ")) : h("p.told", say("nolabels")),
    h("p.told", say("holdagainst")), h("pre.text", { dir: "ltr" }, sheet.form.agree));
}

window.localjudge.register({
  name: "label",
  pages: { label: label_page },
  key: label_key,
  badge: (row) => { const n = Object.keys(row.labels ?? {}).length; return n ? badge(`✎ ${n}`, "", say("bypeople")) : null; },
  case(place, { row, detail }) {
    if (detail.labels === undefined) return;
    place.append(h("div.people", people_box(detail.labels, say("bypeople")), h("a.way", { href: address("label", row.id) }, say("labelthis"))));
  },
});
