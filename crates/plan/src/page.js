'use strict';
// The formulas of the plan, worked out again for what the sliders say.
const $ = (id) => document.getElementById(id);
const sheet = JSON.parse($('sheet').textContent);
const COLOURS = ['#1f6fc0', '#c9793a', '#3a8f5c', '#8a5bb0', '#b3261e', '#7a8290', '#c2a11d', '#2a9aa8', '#d46a9b', '#556b2f'];
const SVG = 'http://www.w3.org/2000/svg';
const now = { ...sheet };

const both = (bytes) => {
  if (bytes >= 1e9) return `${(bytes / 1e9).toFixed(3)} GB (${(bytes / 2 ** 30).toFixed(3)} GiB)`;
  if (bytes >= 1e6) return `${(bytes / 1e6).toFixed(3)} MB (${(bytes / 2 ** 20).toFixed(3)} MiB)`;
  return bytes >= 1e4 ? `${(bytes / 1e3).toFixed(3)} kB (${(bytes / 1024).toFixed(3)} KiB)` : `${bytes} B`;
};
const stored = (values, kind) => {
  const [block, bytes] = sheet.kinds.find(([name]) => name === kind)[1];
  return Math.ceil(values / block) * bytes;
};

function serveTerms(s) {
  const context = Math.ceil(s.context / s.page_tokens) * s.page_tokens;
  const step = Math.ceil(Math.max(s.step_tokens, s.requests) / s.page_tokens);
  const pages = (context / s.page_tokens) * s.requests;
  const near = s.near_pages === null
    ? Math.min(context, s.window) * s.requests
    : Math.min(pages, s.near_pages * s.requests + step) * s.page_tokens;
  const positions = s.far_layers * context * s.requests + s.near_layers * near;
  const kept = s.engine || s.weights === sheet.weights;
  return [
    ['weights', kept ? s.weight_bytes : stored(s.parameters, s.weights)],
    ['K/V cache', s.engine ? positions * s.kv_rows[s.kv] : stored(positions * s.row, s.kv)],
    ['workspace', s.workspace[s.kv].find(([requests]) => requests === s.requests)[1]],
    ['runtime', s.runtime],
  ];
}

// The lists that allocate, where this program runs such a training.
function listed(s) {
  const by_unit = s.ranks > 1 && s.zero === 3 ? ' 3' : '';
  const list = s.lists[`${s.precision} ${s.recompute} ${s.batch} ${s.length}${by_unit}`];
  const more = s.ranks > 1 ? s.shares[`${s.precision} ${s.zero} ${s.ranks}`] : s.accounts.map(() => 0);
  return list && more ? list.map((bytes, i) => bytes + more[i]) : undefined;
}

function trainTerms(s) {
  const list = listed(s);
  const more = (name) => (name === 'data' ? s.data ?? 0 : 0);
  if (list) return [...s.accounts.map((name, i) => [name, list[i] + more(name)]), ['runtime', s.runtime]];
  const bytes = s.precisions[s.precision];
  const held = (n, from) => (s.zero >= from ? Math.ceil(n / s.ranks) : n);
  const trained = s.adapters ?? s.parameters;
  const frozen = s.adapters === null ? 0 : held(s.parameters, 3) * bytes.weights;
  const wide = s.precision === 'f32' ? 2 : 1;
  const how = s.activations.find(({ name }) => name === s.recompute);
  const rows = ([a, b]) => wide * s.batch * (a * s.length + b * s.length * s.length);
  const logits = s.whole ? s.batch * s.length : Math.min(s.batch * s.length, s.chunk);
  const gradient = bytes.gradients * Math.min(s.units.largest, trained);
  const gathered = bytes.weights * (s.units.largest + s.units.layer);
  const sent = [Math.min(s.bucket, bytes.gradients * trained), Math.min(s.bucket, bytes.gradients * trained), gradient, gradient + gathered];
  return [
    ['weights', frozen + held(trained, 3) * bytes.weights],
    ['master weights', held(trained, 1) * bytes.master],
    ['gradients', held(trained, 2) * bytes.gradients],
    ['optimizer', held(trained - s.single, 1) * bytes.moments + held(s.single, 1) * Math.min(bytes.moments, 4)],
    ['activations', rows(how.kept)],
    ['recomputed layer', rows(how.live)],
    ['logits', 4 * logits * s.vocabulary],
    ['communication', s.ranks === 1 ? 0 : sent[s.zero]],
    ['data', s.data ?? 0],
    ['runtime', s.runtime ?? 0],
  ];
}

// What was measured, at other numbers: in proportion where bytes are, shared out by stages.
function measuredTerms(s) {
  const held = (from) => (s.ranks > 1 && s.zero >= from ? s.ranks : 1);
  const times = {
    'K/V cache': s.context * s.requests, weights: 1 / held(3), 'master weights': 1 / held(1),
    gradients: 1 / held(2), optimizer: 1 / held(1),
  };
  const [, saved] = s.again.find(([name]) => name === s.recompute) ?? [];
  return s.terms.map(({ name, bytes }) => {
    if (name === 'activations') return [name, Math.round((bytes - (saved ?? 0)) * s.batch)];
    return [name, Math.round(bytes * (times[name] ?? 1))];
  });
}

const termsOf = (s) => {
  const all = { serve: serveTerms, train: trainTerms, measured: measuredTerms }[s.kind];
  return all ? all(s).filter(([, bytes]) => bytes > 0) : sheet.terms.map((t) => [t.name, t.bytes]);
};

function element(parent, name, attributes, text) {
  const made = parent.namespaceURI === SVG || name === 'svg' ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  parent.append(made);
  return made;
}

/// A stacked bar of [name, value], as long as `whole`.
function bar(parent, parts, whole, words) {
  parent.replaceChildren();
  const label = parts.map(([name, value]) => `${name} ${words(value)}`).join(', ');
  const svg = element(parent, 'svg', { viewBox: '0 0 1000 72', preserveAspectRatio: 'none', role: 'img', 'aria-label': label });
  let x = 0;
  parts.forEach(([name, value], i) => {
    const width = (1000 * value) / Math.max(whole, 1e-12);
    const part = element(svg, 'rect', { x, y: 8, width, height: 56, fill: COLOURS[i % COLOURS.length] });
    element(part, 'title', {}, `${name}: ${words(value)}`);
    x += width;
  });
  return svg;
}

/// The colour of a part, before its name.
const swatch = (cell, i) => {
  const mark = document.createElement('span');
  mark.className = 'key';
  mark.style.background = COLOURS[i % COLOURS.length];
  cell.prepend(mark);
};

function draw() {
  const terms = termsOf(now);
  const total = terms.reduce((sum, [, bytes]) => sum + bytes, 0);
  // A budget far beyond the terms would leave nothing to see of them.
  const budget = sheet.budget && sheet.budget <= 8 * total ? sheet.budget : 0;
  const whole = Math.max(total, budget, 1);
  const svg = bar($('bars'), terms, whole, both);
  if (budget) {
    const at = (1000 * budget) / whole;
    element(svg, 'line', { class: 'budget', x1: at, x2: at, y1: 0, y2: 72 });
  }
  const over = sheet.budget ? total - sheet.budget : 0;
  const judged = !sheet.budget ? '' : over > 0 ? `; ${both(over)} more than the budget` : `; fits, ${both(-over)} are left`;
  const by = sheet.kind === 'train' && Object.keys(sheet.lists).length
    ? `; counted by ${listed(now) ? "the trainer's lists" : 'formulas'}` : '';
  $('verdict').textContent = `${both(total)} in all${judged}${by}`;
  $('verdict').classList.toggle('over', over > 0);
  $('terms').replaceChildren();
  terms.forEach(([name, bytes], i) => {
    const row = element($('terms'), 'tr', {});
    swatch(element(row, 'td', {}, name), i);
    element(row, 'td', {}, both(bytes));
    element(row, 'td', {}, `${((100 * bytes) / Math.max(total, 1)).toFixed(1)} %`);
  });
  document.body.dataset.total = total;
  // One rank has nobody to share with.
  if ($('zero')) $('zero').disabled = now.ranks === 1;
}

/// What a request of a fleet takes, under the load and by the servers that the sliders say.
function drawTimes() {
  const { fleet } = sheet;
  const seen = fleet.seen[fleet.loads.indexOf(now.load)][fleet.replicas.indexOf(now.servers)];
  const parts = [['queue', seen.queue.mean_ms], ['reading the prompt', seen.first_token.mean_ms - seen.queue.mean_ms],
    ['writing the answer', seen.whole.mean_ms - seen.first_token.mean_ms]];
  const ms = (value) => (value < 1e4 ? `${value.toFixed(1)} ms` : `${(value / 1e3).toFixed(1)} s`);
  bar($('times'), parts, seen.whole.mean_ms, ms);
  $('spread').replaceChildren();
  const row = (kind, cells) => {
    const line = element($('spread'), 'tr', {});
    cells.forEach((cell, i) => {
      const made = element(line, kind, {}, cell);
      if (i === 0 && parts.some(([name]) => name === cell)) swatch(made, parts.findIndex(([name]) => name === cell));
    });
  };
  const spread = (name, of) => row('td', [name, ...[of.mean_ms, of.p50_ms, of.p90_ms, of.p99_ms].map(ms)]);
  row('th', ['', 'mean', 'p50', 'p90', 'p99']);
  spread('queue', seen.queue);
  parts.slice(1).forEach(([name, value]) => row('td', [name, ms(value), '', '', '']));
  spread('first token', seen.first_token);
  spread('a token', seen.per_token);
  spread('whole', seen.whole);
  $('seen').textContent = `${now.load.toLocaleString('en')} ${fleet.unit} on ${now.servers === 1 ? 'one server' : `${now.servers} servers`}: `
    + `${seen.tokens_per_second.toFixed(1)} tokens/s, busy ${(100 * seen.busy_share).toFixed(0)} % of the time; `
    + `${seen.requests} requests were simulated with the pool and the steps of the plan.`;
}

/// A slider over a list of values, or a choice of words.
function control(key, title, values, parent = $('controls'), redraw = draw) {
  const label = element(parent, 'label', { for: key }, title);
  const words = values.some((value) => typeof value === 'string');
  if (words) {
    const choice = element(parent, 'select', { id: key });
    values.forEach((value) => element(choice, 'option', {}, value));
    choice.value = now[key];
    choice.addEventListener('input', () => { now[key] = choice.value; redraw(); });
    return;
  }
  const shown = element(label, 'output', { for: key }, now[key].toLocaleString('en'));
  const range = element(parent, 'input', { id: key, type: 'range', min: 0, max: values.length - 1, step: 1, value: Math.max(0, values.indexOf(now[key])) });
  range.addEventListener('input', () => {
    now[key] = values[Number(range.value)];
    shown.textContent = now[key].toLocaleString('en');
    redraw();
  });
}

const powers = (from, to, own) => {
  const all = new Set([own]);
  for (let n = from; n <= to; n *= 2) all.add(n);
  return [...all].sort((a, b) => a - b);
};

if (sheet.kind === 'serve') {
  control('context', 'Tokens of context', powers(128, sheet.longest, sheet.context));
  control('requests', 'Requests side by side', sheet.workspace[sheet.kv].map(([requests]) => requests));
  if (!sheet.engine) control('weights', 'Weights', sheet.kinds.map(([name]) => name));
  control('kv', 'K/V', sheet.kv_kinds);
} else if (sheet.kind === 'measured') {
  Object.assign(now, { context: 1, requests: 1, batch: 1, zero: 1, ranks: 1, recompute: 'as it is' });
  const times = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16];
  if (sheet.has_kv) {
    control('context', 'Context, times what it is', times);
    control('requests', 'Requests, times as many', times);
  }
  if (sheet.has_activations) control('batch', 'Tokens at once, times as many', times);
  if (sheet.again.length) control('recompute', 'Computed again', ['as it is', ...sheet.again.map(([name]) => name)]);
  if (sheet.alone) {
    control('zero', 'ZeRO stage', [0, 1, 2, 3]);
    control('ranks', 'Ranks', powers(1, 1024, 1));
  }
} else if (sheet.kind === 'train') {
  control('batch', 'Sequences at once', sheet.batches);
  control('length', 'Tokens of each', sheet.lengths);
  if (sheet.activations) {
    control('recompute', 'Computed again', sheet.activations.map(({ name }) => name));
    control('precision', 'Precision', Object.keys(sheet.precisions));
    control('zero', 'ZeRO stage', [0, 1, 2, 3]);
    control('ranks', 'Ranks', sheet.all_ranks);
  }
}
if (sheet.fleet) {
  now.load = sheet.fleet.load;
  now.servers = sheet.fleet.servers;
  control('load', `Load, ${sheet.fleet.unit}`, sheet.fleet.loads, $('fleet-controls'), drawTimes);
  control('servers', 'Servers', sheet.fleet.replicas, $('fleet-controls'), drawTimes);
  drawTimes();
}
document.querySelectorAll('.live').forEach((part) => { part.hidden = false; });
draw();
