"use strict";
// Works the shaping rules out again from the recorded logits (after the edits), in the order of
// the recorded chain. Beside the best tokens a step has every other logit (`row`, named by
// `record.texts`), or bins of nearly equal logits whose tokens are not known one by one.
const record = JSON.parse(document.getElementById("record").textContent);
const SHAPERS = ["temperature", "top_k", "top_p", "min_p"];
const SLACK = 1e-12; // sums of exp(log p) miss exact ties by less than this
const state = { step: 0, changed: {} };
const byId = (id) => document.getElementById(id);

const cache = new Map();
function itemsOf(step) {
  if (!cache.has(step)) cache.set(step, itemsAnew(step));
  return cache.get(step);
}

function itemsAnew(step) {
  const tokens = step.tokens.filter((t) => t.edited_logit !== null)
    .map((t) => ({ logit: t.edited_logit, count: 1, token: t }));
  const rest = step.rest.map((r) => ({ logit: r.logit, count: r.count, token: null }));
  const named = new Set(step.tokens.map((t) => t.id));
  const others = (step.row || []).map((logit, id) => ({ logit, count: 1, token: null, id }))
    .filter((one) => one.logit !== null && !named.has(one.id));
  const idOf = (one) => (one.token ? one.token.id : one.id ?? Infinity);
  return tokens.concat(rest, others).sort((a, b) => b.logit - a.logit || idOf(a) - idOf(b));
}

function shape(step, rules) {
  const items = itemsOf(step);
  const possible = items.reduce((n, i) => n + i.count, 0);
  const s = { items, keep: possible, possible, t: 1, greedy: false };
  const top = items[0].logit;
  s.weight = (item) => Math.exp((item.logit - top) / s.t);
  s.mass = (count) => {
    let mass = 0;
    for (const item of items) {
      if (count <= 0) break;
      mass += s.weight(item) * Math.min(item.count, count);
      count -= item.count;
    }
    return mass;
  };
  const effects = [];
  for (const rule of rules) {
    const before = s.keep;
    if (APPLY[rule.rule]) APPLY[rule.rule](s, rule);
    effects.push({ name: rule.t === 0 ? "temperature 0" : rule.rule, from: s.keep, to: before });
  }
  return told(s, effects);
}

const APPLY = {
  temperature(s, { t }) {
    if (t === 0) { s.keep = Math.min(s.keep, 1); s.greedy = true; } else s.t *= t;
  },
  top_k(s, { k, ties }) {
    if (k === 0 || k >= s.keep) return;
    let keep = 0, last = null;
    for (const item of s.items) {
      if (keep >= k && !(ties === "all" && item.logit === last)) break;
      keep += ties === "all" || item.count === 1 ? item.count : Math.min(item.count, k - keep);
      last = item.logit;
    }
    s.keep = Math.min(s.keep, keep);
  },
  top_p(s, { p, boundary, of }) {
    if (p >= 1) return;
    const total = s.mass(of === "whole" ? s.possible : s.keep);
    let before = 0, keep = 0;
    for (const item of s.items) {
      if (keep >= s.keep) break;
      const w = s.weight(item), goal = p * total * (1 - SLACK);
      const ended = boundary === "beyond" ? before > p * total * (1 + SLACK) : before >= goal;
      if (keep > 0 && ended) break;
      const taken = item.count === 1 ? 1
        : Math.max(1, Math.min(item.count, s.keep - keep, Math.ceil((goal - before) / w)));
      before += w * taken;
      keep += taken;
      if (taken < item.count) break;
    }
    s.keep = Math.min(s.keep, keep);
  },
  min_p(s, { p }) {
    let keep = 0;
    for (const item of s.items) {
      if (s.weight(item) < p * (1 - SLACK)) break;
      keep += item.count;
    }
    s.keep = Math.min(s.keep, Math.max(keep, 1));
  },
};

// Probabilities, intervals and who dropped whom, for every item.
function told(s, effects) {
  const whole = s.mass(s.possible), kept = s.mass(s.keep);
  let place = 0, cumulated = 0, entropy = 0;
  const rows = s.items.map((item) => {
    const inside = Math.max(0, Math.min(item.count, s.keep - place));
    const w = s.weight(item);
    const start = cumulated / kept;
    cumulated += w * inside;
    const p = (w * inside) / kept;
    if (p > 0) entropy -= p * Math.log(w / kept);
    const by = inside > 0 ? null : effects.find((e) => place >= e.from && place < e.to);
    place += item.count;
    return { ...item, inside, p, tempered: (w * item.count) / whole, start, end: cumulated / kept,
      droppedBy: by ? by.name : null };
  });
  return { rows, keep: s.keep, possible: s.possible, entropy, greedy: s.greedy, t: s.t };
}

function pick(result, u) {
  if (result.greedy) return result.rows[0];
  const kept = result.rows.filter((r) => r.inside > 0);
  return kept.find((r) => r.end > u) || kept[kept.length - 1];
}

// What the program itself chose under these settings, if it recorded that: the recorded choice, or
// that of another temperature.
function known(step, changed) {
  const names = Object.keys(changed);
  if (names.some((name) => name !== "temperature")) return null;
  if (!names.length || changed.temperature === recorded("temperature")) return { id: step.choice.id, text: step.text };
  return (step.beside || []).find((one) => one.t === changed.temperature) || null;
}

// What is picked and how to name it. A bin has no name unless the program knew the choice.
function picked(result, step, changed) {
  const row = pick(result, step.u), sure = row.count > 1 || !nameable(row) ? known(step, changed) : null;
  if (!sure) return { row, name: nameable(row) ? labelOf(row) : null, id: row.token ? row.token.id : row.id };
  const own = result.rows.find((r) => r.token && r.token.id === sure.id);
  return { row: own || row, name: visible(sure.text), id: sure.id };
}

const nameable = (row) => row.token !== null || row.id !== undefined;
const OUTSIDE = (step) => `a token outside the ${step.tokens.length} recorded here (autoreg generate with these settings names it)`;

// The recorded chain with some numbers changed; a rule it lacks enters at its usual place.
function rulesWith(changed) {
  const rules = record.rules.filter((r) => SHAPERS.includes(r.rule)).map((r) => ({ ...r }));
  for (const name of SHAPERS) {
    if (changed[name] === undefined) continue;
    const key = { temperature: "t", top_k: "k", top_p: "p", min_p: "p" }[name];
    const present = rules.filter((r) => r.rule === name);
    if (present.length) {
      present.forEach((r, i) => { r[key] = i === 0 ? changed[name] : name === "temperature" ? 1 : r[key]; });
    } else {
      const later = SHAPERS.slice(SHAPERS.indexOf(name) + 1);
      const at = rules.findIndex((r) => later.includes(r.rule));
      rules.splice(at < 0 ? rules.length : at, 0,
        { rule: name, [key]: changed[name], ties: "exact", boundary: "reach", of: "kept" });
    }
  }
  return rules;
}

function current(name) {
  return state.changed[name] !== undefined ? state.changed[name] : recorded(name);
}

function recorded(name) {
  const off = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 }[name];
  const values = record.rules.filter((r) => r.rule === name).map((r) => r.t ?? r.k ?? r.p);
  if (!values.length) return off;
  return name === "temperature" ? values.reduce((a, b) => a * b, 1) : values[0];
}

const SIGNS = { " ": "␣", "\n": "↵", "\t": "→" };
const visible = (text) => text.replace(/[ \n\t]/g, (c) => SIGNS[c]).replace(/[\u0000-\u001f\u007f]/g, "�");
const labelOf = (row) => (row.token ? visible(row.token.text)
  : row.id !== undefined ? visible((record.texts || [])[row.id] ?? "#" + row.id) : row.count + " others");
const percent = (p) => (p >= 0.1 ? (100 * p).toFixed(1) : p >= 0.001 ? (100 * p).toFixed(2) : p > 0 ? "<0.1" : "0") + " %";
function cut(text, chars) {
  const signs = Array.from(text);
  return signs.length > chars ? signs.slice(0, chars - 1).join("") + "…" : text;
}

function svg(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function canvas(box, height, label) {
  const width = Math.max(220, Math.floor(box.clientWidth));
  const node = svg("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": label });
  box.replaceChildren(node);
  return [node, width];
}

// Rows to draw: the first tokens one by one, the picked one, all others as one row.
function gathered(result, chosen, limit) {
  const rows = result.rows.filter((r, i) => (r.token && i < limit) || (r === chosen && nameable(r)));
  const rest = result.rows.filter((r) => !rows.includes(r));
  const sum = (key) => rest.reduce((a, r) => a + r[key], 0);
  if (rest.length) {
    const by = new Set(rest.map((r) => r.droppedBy));
    rows.push({ token: null, count: sum("count"), inside: sum("inside"), p: sum("p"), tempered: sum("tempered"),
      droppedBy: by.size === 1 ? rest[0].droppedBy : null });
  }
  return rows;
}

function bars(box, result, chosen, limit, full) {
  const rows = gathered(result, chosen, limit), line = full ? 34 : 24;
  const [node, width] = canvas(box, rows.length * line + 4, "Probabilities of the best tokens");
  const text = Math.min(130, width * 0.32), figures = full ? (width < 480 ? 62 : 150) : 62;
  const room = width - text - figures - 8;
  const named = rows.filter((r) => r.token).reduce((a, r) => a + r.token.model_probability, 0);
  // What the model itself thinks of a token outside the recorded is not recorded: no bar.
  const model = (r) => (r.token ? r.token.model_probability : r.id !== undefined ? 0 : Math.max(0, 1 - named));
  // Single tokens set the scale; the row of all others may reach beyond it: it is cut there and marked.
  const largest = Math.max(...rows.filter((r) => r.token).map((r) => Math.max(r.p, r.tempered, full ? model(r) : 0)));
  const bar = (p) => Math.max(p > 0 ? 1 : 0, Math.min(1, p / largest) * room);
  rows.forEach((row, i) => {
    const y = i * line + 2, out = row.inside === 0;
    if (row === chosen) node.append(svg("rect", { x: 0, y, width, height: line - 2, rx: 4, class: "picked" }));
    node.append(svg("text", { x: 6, y: y + line / 2 + 4, class: out ? "soft" : row === chosen ? "mark" : "" },
      cut(labelOf(row), Math.floor((text - 10) / 8))));
    const thin = full ? 8 : 16, x = text;
    let at = y + 3;
    if (full) {
      node.append(svg("rect", { x, y: at, width: bar(model(row)), height: thin, class: "model" }));
      node.append(svg("rect", { x, y: at + 10, width: bar(row.tempered), height: thin, class: "tempered" }));
      at += 20;
    }
    node.append(svg("rect", { x, y: at, width: bar(out ? row.tempered : row.p), height: thin,
      class: out ? "dropped" : "drawn" }));
    if (!row.token && Math.max(row.tempered, row.p, full ? model(row) : 0) > largest * (1 + 1e-9)) {
      node.append(svg("text", { x: text + room - 2, y: y + line / 2 + 4, "text-anchor": "end", class: "on" }, "» cut"));
    }
    const by = row.droppedBy ? (full && width >= 480 ? "dropped by " + row.droppedBy : row.droppedBy) : "dropped";
    const name = out ? by : percent(row.p);
    node.append(svg("text", { x: width - 4, y: y + line / 2 + 4, "text-anchor": "end", class: out ? "soft" : "" }, name));
  });
}

function interval(box, result, u, name) {
  const [node, width] = canvas(box, 64, "The unit interval divided among the kept tokens");
  result.rows.filter((r) => r.inside > 0).forEach((row, i) => {
    const x = row.start * width, w = Math.max(0.5, (row.end - row.start) * width);
    node.append(svg("rect", { x, y: 4, width: w, height: 30, class: i % 2 ? "odd" : "even" }));
    if (w > 34) node.append(svg("text", { x: x + 5, y: 24, class: "on" }, cut(labelOf(row), Math.floor((w - 8) / 8))));
  });
  if (result.greedy) {
    node.append(svg("text", { x: 0, y: 56, class: "soft" }, "Greedy: the best token, no draw."));
    return;
  }
  node.append(svg("line", { x1: u * width, x2: u * width, y1: 0, y2: 42 }));
  const right = u > 0.6;
  node.append(svg("text", { x: u * width + (right ? -4 : 4), y: 57, "text-anchor": right ? "end" : "start", class: "mark" },
    `u = ${u.toFixed(6)} → ${cut(name ?? "a token outside", 16)}`));
}

function panel(title, step, rules, changed) {
  const result = shape(step, rules), chosen = picked(result, step, changed);
  const node = document.createElement("div"), box = document.createElement("div"), note = document.createElement("p");
  const head = document.createElement("h3");
  node.className = "panel";
  note.className = "hint";
  head.textContent = title;
  const how = result.greedy ? "takes" : "u takes";
  note.textContent = `keeps ${result.keep} of ${result.possible}; entropy ${result.entropy.toFixed(2)} nats; ${how} ${chosen.name ?? OUTSIDE(step)}`;
  node.append(head, note, box);
  return { node, fill: () => bars(box, result, chosen.row, 6, false) };
}

function panels(box, list) {
  box.replaceChildren(...list.map((p) => p.node));
  list.forEach((p) => p.fill());
}

function figures(step, result, chosen) {
  const cell = (tag, text, name) => {
    const node = document.createElement(tag);
    node.textContent = text;
    if (name) node.className = name;
    return node;
  };
  const line = (cells, name) => {
    const node = document.createElement("tr");
    node.append(...cells);
    if (name) node.className = name;
    return node;
  };
  const head = ["id", "token", "logit", "edited", "model", "after T", "drawn from", "dropped by"];
  const rows = result.rows.filter((r) => r.token || (r === chosen && nameable(r))).map((r) => line([
    cell("td", r.token ? r.token.id : r.id), cell("td", labelOf(r), "text"),
    cell("td", r.token ? r.token.logit.toFixed(4) : ""), cell("td", r.logit.toFixed(4)),
    cell("td", r.token ? r.token.model_probability.toFixed(6) : ""), cell("td", r.tempered.toFixed(6)),
    cell("td", r.inside ? r.p.toFixed(6) : "–"), cell("td", r.droppedBy || ""),
  ], r === chosen ? "picked" : r.inside ? "" : "out"));
  const forbidden = step.tokens.filter((t) => t.edited_logit === null).map((t) => line([
    cell("td", t.id), cell("td", visible(t.text), "text"), cell("td", t.logit.toFixed(4)), cell("td", "−∞"),
    cell("td", t.model_probability.toFixed(6)), cell("td", "0"), cell("td", "–"),
    cell("td", t.dropped_by === null ? "" : step.effects[t.dropped_by].name),
  ], "out"));
  byId("figures").replaceChildren(line(head.map((text) => cell("th", text))), ...rows, ...forbidden);
}

function draw() {
  const step = record.steps[state.step], u = step.u;
  const result = shape(step, rulesWith(state.changed)), chosen = picked(result, step, state.changed);
  byId("heading").textContent = `Step ${step.step}: ${visible(step.text)} was chosen among ${step.vocabulary} tokens`;
  document.querySelectorAll("[data-step]").forEach((node) =>
    node.setAttribute("aria-pressed", Number(node.dataset.step) === state.step));
  for (const name of SHAPERS) {
    byId(name).value = current(name);
    byId(name + "_value").textContent = Number(current(name).toFixed(4));
  }
  bars(byId("bars"), result, chosen.row, 12, true);
  interval(byId("interval"), result, u, chosen.name);
  const row = chosen.row, same = chosen.id === step.choice.id;
  const figures_of = row.token ? ` (${percent(row.p)} as drawn, ${percent(row.token.model_probability)} by the model)`
    : row.id !== undefined ? ` (${percent(row.p)} as drawn)` : "";
  byId("verdict").textContent = `${result.greedy ? "Greedy takes" : "u takes"} ${chosen.name ?? OUTSIDE(step)}` +
    `${figures_of}; ${result.keep} of ${result.possible} kept.` + (same ? "" : " The recorded choice was " + visible(step.text) + ".");
  figures(step, result, row);
  const at = (t) => ({ ...state.changed, temperature: t });
  panels(byId("temperatures"), [0.5, 1, 2].map((t) => panel("T = " + t, step, rulesWith(at(t)), at(t))));
  const warm = current("temperature") === 0 ? 1 : current("temperature");
  panels(byId("methods"), [
    panel("Greedy", step, [{ rule: "temperature", t: 0 }], { temperature: 0 }),
    panel("Sampling, T = " + Number(warm.toFixed(4)), step, rulesWith(at(warm)), at(warm)),
  ]);
}

// The recorded chain, worked out here, must give what was recorded. Where the draw falls among tokens
// recorded in bins only, and the recorded one lies there, nothing more can be said.
function check() {
  const verdict = (step) => {
    const result = shape(step, rulesWith({})), row = pick(result, step.u);
    if (result.keep !== step.choice.kept) return "wrong";
    const own = result.rows.find((r) => (r.token ? r.token.id : r.id) === step.choice.id);
    if (!own || Math.abs(own.p - Math.exp(step.choice.sample_logprob)) > 1e-3) return "wrong";
    if (row === own) return "same";
    return !nameable(row) && Math.abs(row.logit - own.logit) < 1 / 8 ? "open" : "wrong";
  };
  const all = record.steps.map((step) => [step.step, verdict(step)]);
  const steps = (what) => all.filter((one) => one[1] === what).map((one) => one[0]);
  const wrong = steps("wrong"), open = steps("open");
  const node = byId("check");
  node.dataset.ok = wrong.length === 0;
  const told = wrong.length ? `these steps differ from the record: ${wrong.join(", ")}.`
    : open.length ? `${all.length - open.length} of ${all.length} steps give the recorded choice.`
    : `all ${all.length} steps give the recorded choice.`;
  node.textContent = "Worked out again in this browser: " + told + (open.length
    ? ` Not decided here, because the draw falls among tokens that are recorded in groups: ${open.join(", ")}.` : "");
}

if (record.steps.length) {
  document.querySelectorAll(".live").forEach((node) => { node.hidden = false; });
  document.querySelectorAll("[data-step]").forEach((node) => node.addEventListener("click", () => {
    state.step = Number(node.dataset.step);
    draw();
  }));
  SHAPERS.forEach((name) => byId(name).addEventListener("input", (event) => {
    state.changed[name] = Number(event.target.value);
    draw();
  }));
  byId("reset").addEventListener("click", () => { state.changed = {}; draw(); });
  window.addEventListener("resize", draw);
  check();
  draw();
}
