"use strict";
// Works the shaping rules out again from the recorded logits (after the edits), in the order of
// the recorded chain. Tokens that are not recorded one by one enter as bins of equal logits.
const record = JSON.parse(document.getElementById("record").textContent);
const SHAPERS = ["temperature", "top_k", "top_p", "min_p"];
const SLACK = 1e-12; // sums of exp(log p) miss exact ties by less than this
const state = { step: 0, changed: {} };
const byId = (id) => document.getElementById(id);

function itemsOf(step) {
  const tokens = step.tokens.filter((t) => t.edited_logit !== null)
    .map((t) => ({ logit: t.edited_logit, count: 1, token: t }));
  const rest = step.rest.map((r) => ({ logit: r.logit, count: r.count, token: null }));
  return tokens.concat(rest).sort((a, b) => b.logit - a.logit);
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
  if (result.greedy || u === null) return result.rows[0];
  const kept = result.rows.filter((r) => r.inside > 0);
  return kept.find((r) => r.end > u) || kept[kept.length - 1];
}

// The recorded token's row, where the pick is it or a bin so near that their order is open.
function near(result, step) {
  const chosen = pick(result, step.choice.draw);
  const own = result.rows.find((r) => r.token && r.token.id === step.choice.id);
  return !chosen.token && own && Math.abs(chosen.logit - own.logit) < 1 / 8 ? own : chosen;
}

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
  const off = { temperature: 1, top_k: 0, top_p: 1, min_p: 0 }[name];
  if (state.changed[name] !== undefined) return state.changed[name];
  const values = record.rules.filter((r) => r.rule === name).map((r) => r.t ?? r.k ?? r.p);
  if (!values.length) return off;
  return name === "temperature" ? values.reduce((a, b) => a * b, 1) : values[0];
}

const SIGNS = { " ": "␣", "\n": "↵", "\t": "→" };
const visible = (text) => text.replace(/[ \n\t]/g, (c) => SIGNS[c]).replace(/[\u0000-\u001f\u007f]/g, "�");
const labelOf = (row) => (row.token ? visible(row.token.text) : row.count + " others");
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
  const rows = result.rows.filter((r, i) => r.token && (i < limit || r === chosen));
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
  const model = (r) => (r.token ? r.token.model_probability : Math.max(0, 1 - named));
  // Single tokens set the scale; the row of all others may reach beyond it and is cut there.
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
    const by = row.droppedBy ? (full && width >= 480 ? "dropped by " + row.droppedBy : row.droppedBy) : "dropped";
    const name = out ? by : percent(row.p);
    node.append(svg("text", { x: width - 4, y: y + line / 2 + 4, "text-anchor": "end", class: out ? "soft" : "" }, name));
  });
}

function interval(box, result, u, chosen) {
  const [node, width] = canvas(box, 64, "The unit interval divided among the kept tokens");
  result.rows.filter((r) => r.inside > 0).forEach((row, i) => {
    const x = row.start * width, w = Math.max(0.5, (row.end - row.start) * width);
    node.append(svg("rect", { x, y: 4, width: w, height: 30, class: i % 2 ? "odd" : "even" }));
    if (w > 34) node.append(svg("text", { x: x + 5, y: 24, class: "on" }, cut(labelOf(row), Math.floor((w - 8) / 8))));
  });
  if (u === null || result.greedy) {
    node.append(svg("text", { x: 0, y: 56, class: "soft" }, "Greedy: the best token, no draw."));
    return;
  }
  node.append(svg("line", { x1: u * width, x2: u * width, y1: 0, y2: 42 }));
  const right = u > 0.6;
  node.append(svg("text", { x: u * width + (right ? -4 : 4), y: 57, "text-anchor": right ? "end" : "start", class: "mark" },
    `u = ${u.toFixed(6)} → ${cut(labelOf(chosen), 12)}`));
}

function panel(title, result, u) {
  const node = document.createElement("div"), box = document.createElement("div"), note = document.createElement("p");
  const chosen = pick(result, u), head = document.createElement("h3");
  node.className = "panel";
  note.className = "hint";
  head.textContent = title;
  const how = result.greedy ? "takes" : "u takes";
  note.textContent = `keeps ${result.keep} of ${result.possible}; entropy ${result.entropy.toFixed(2)} nats; ${how} ${labelOf(chosen)}`;
  node.append(head, note, box);
  return { node, fill: () => bars(box, result, chosen, 6, false) };
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
  const rows = result.rows.filter((r) => r.token).map((r) => line([
    cell("td", r.token.id), cell("td", visible(r.token.text), "text"), cell("td", r.token.logit.toFixed(4)),
    cell("td", r.logit.toFixed(4)), cell("td", r.token.model_probability.toFixed(6)), cell("td", r.tempered.toFixed(6)),
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
  const step = record.steps[state.step], u = step.choice.draw;
  const result = shape(step, rulesWith(state.changed)), chosen = near(result, step);
  byId("heading").textContent = `Step ${step.step}: ${visible(step.text)} was chosen among ${step.vocabulary} tokens`;
  document.querySelectorAll("[data-step]").forEach((node) =>
    node.setAttribute("aria-pressed", Number(node.dataset.step) === state.step));
  for (const name of SHAPERS) {
    byId(name).value = current(name);
    byId(name + "_value").textContent = Number(current(name).toFixed(4));
  }
  bars(byId("bars"), result, chosen, 12, true);
  interval(byId("interval"), result, u, chosen);
  const same = chosen.token && chosen.token.id === step.choice.id;
  const p = chosen.token ? chosen.p : 0;
  byId("verdict").textContent = `${result.greedy ? "Greedy takes" : "u takes"} ${labelOf(chosen)}` +
    (chosen.token ? ` (${percent(p)} as drawn, ${percent(chosen.token.model_probability)} by the model)` : "") +
    `; ${result.keep} of ${result.possible} kept.` + (same ? "" : " The recorded choice was " + visible(step.text) + ".");
  figures(step, result, chosen);
  const uniform = u === null ? 0.5 : u;
  panels(byId("temperatures"), [0.5, 1, 2].map((t) =>
    panel("T = " + t, shape(step, rulesWith({ ...state.changed, temperature: t })), uniform)));
  const warm = current("temperature") === 0 ? 1 : current("temperature");
  panels(byId("methods"), [
    panel("Greedy", shape(step, [{ rule: "temperature", t: 0 }]), null),
    panel("Sampling, T = " + Number(warm.toFixed(4)), shape(step, rulesWith({ ...state.changed, temperature: warm })), uniform),
  ]);
}

// The recorded chain, worked out here, must give what was recorded.
function check() {
  const wrong = record.steps.filter((step) => {
    const result = shape(step, rulesWith({})), chosen = near(result, step);
    const p = Math.exp(step.choice.sample_logprob);
    return result.keep !== step.choice.kept || !chosen.token || chosen.token.id !== step.choice.id ||
      Math.abs(chosen.p - p) > 1e-3;
  });
  const node = byId("check");
  node.dataset.ok = wrong.length === 0;
  node.textContent = wrong.length === 0
    ? `Worked out again in this browser: all ${record.steps.length} steps give the recorded choice.`
    : `Worked out again in this browser, these steps differ from the record: ${wrong.map((s) => s.step).join(", ")}.`;
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
