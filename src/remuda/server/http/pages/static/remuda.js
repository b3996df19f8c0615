// Beyond plain links and forms: theme, charts, live tail, selections, confirmations, shortcuts.
"use strict";

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-theme-switch], [data-copy], [data-ask]");
  if (!target) return;
  if (target.matches("[data-theme-switch]")) switchTheme();
  if (target.matches("[data-copy]")) copy(target);
  if (target.matches("[data-ask]") && !agreed(target)) event.preventDefault();
});

// These buttons are disabled until here: an earlier click would do nothing, or skip the question.
for (const button of all("[data-theme-switch], [data-copy], [data-ask]")) button.disabled = false;

// Where the navigation scrolls, as on a phone, the current page is in view.
document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });

// The question of a button, with what it is about: the selection, or what the chosen scope says. A button that asks
// only about many does not ask about messages that were selected one by one.
function agreed(button) {
  const scope = button.form?.elements.scope;
  const option = scope?.selectedOptions?.[0];
  const chosen = all("[name=offset]:checked", button.form ?? document).length;
  const selected = option?.value === "selection";
  if (selected && (button.dataset.askMany !== undefined || !chosen)) return true;
  const what = selected ? `${chosen} message${chosen === 1 ? "" : "s"}` : option?.dataset.what ?? "";
  return confirm(button.dataset.ask.replace("{what}", what));
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("remuda-theme", root.dataset.theme);
  charts.forEach((chart) => chart.draw(true));
}

function copy(button) {
  // The clipboard API needs HTTPS; a hidden field works over plain HTTP too.
  const field = document.createElement("textarea");
  field.value = button.dataset.copy;
  field.className = "sr";
  document.body.append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
  button.focus();
  button.dataset.label ??= button.textContent; // on a second click the text may still be "Copied"
  button.textContent = "Copied";
  setTimeout(() => (button.textContent = button.dataset.label), 4000);
}

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select")) return;
  const field = document.querySelector("[data-shortcut='/']");
  if (field) {
    event.preventDefault();
    field.focus();
  }
});

// A typed confirmation enables its button.
for (const form of all("form[data-confirm]")) {
  const field = form.querySelector("[name=confirm]");
  const button = form.querySelector("button");
  const check = () => (button.disabled = field.value !== form.dataset.confirm);
  field.addEventListener("input", check);
  check();
}

for (const form of all("form[data-selection]")) {
  const boxes = () => all("tbody [type=checkbox]", form);
  const every = form.querySelector("[data-select-all]");
  const count = form.querySelector("[data-count]");
  const tell = () => {
    const chosen = boxes().filter((box) => box.checked).length;
    if (count) count.textContent = chosen ? `${chosen} selected` : "";
    if (every) every.checked = chosen > 0 && chosen === boxes().length;
  };
  form.addEventListener("change", (event) => {
    if (event.target === every) boxes().forEach((box) => (box.checked = every.checked));
    tell();
  });
}

// Rows that the index found come without their bodies; the excerpts are fetched once the page is shown.
for (const list of all("[data-excerpts]")) {
  const cells = all("[data-excerpt]", list);
  if (!cells.length) continue;
  const offsets = [...new Set(cells.map((cell) => cell.dataset.excerpt))];
  fetch(`${list.dataset.excerpts}?at=${offsets.join(",")}`)
    .then((answer) => (answer.ok ? answer.json() : {}))
    .then((found) => cells.forEach((cell) => (cell.textContent = found[cell.dataset.excerpt] ?? "")))
    .catch(() => {});
}

// Charts

const charts = [];
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colours = { waiting: "--blue", "in flight": "--violet", delayed: "--amber", published: "--blue", done: "--green", failed: "--red", succeeded: "--green", "wait p95": "--amber", "processing p95": "--violet", "dead letters": "--red", p50: "--green", p95: "--amber", p99: "--red" };

const utc = (seconds, from, to) => new Date(seconds * 1000).toISOString().replace("T", " ").slice(from, to);

// The labels of a time axis, as short as the distance between them allows.
function clocks(_, times, axis, space, step) {
  const days = times.length > 1 && times.at(-1) - times[0] >= 86400;
  return times.map((at) => (step >= 86400 ? utc(at, 0, 10) : utc(at, days ? 5 : 11, step < 60 ? 19 : 16)));
}

class Chart {
  constructor(element) {
    this.element = element;
    this.plot = null;
    this.values = null;
  }
  update(answer) {
    this.values = { times: answer.times, lines: answer[this.element.dataset.chart], marks: answer.marks ?? [] };
    this.draw(false);
  }
  draw(anew) {
    if (!this.values) return;
    const { times, lines } = this.values;
    const data = [times, ...Object.values(lines)];
    if (this.plot && !anew) return this.plot.setData(data);
    if (this.plot) this.plot.destroy();
    const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false }, font: "12px system-ui" };
    const series = Object.keys(lines).map((label) => ({ label, stroke: colour(colours[label]), width: 2, points: { show: lines[label].includes(null), size: 5 } }));
    const size = { width: this.element.clientWidth, height: 200 };
    const range = (_, low, high) => [0, ["latency", "wait", "took"].includes(this.element.dataset.chart) ? high || 1 : Math.max(high, 1)];
    // At least a minute: without two points far enough apart, uPlot would show milliseconds, or years.
    const span = (_, first, last) => [Math.min(first ?? Infinity, (last ?? Date.now() / 1000) - 60), last ?? Date.now() / 1000];
    const time = { label: "Time (UTC)", value: (_, at) => (at == null ? "–" : utc(at, 0, 19)) };
    this.plot = new uPlot({ ...size, series: [time, ...series], axes: [{ ...axis, values: clocks, space: 90 }, { ...axis, size: 56 }], scales: { x: { range: span }, y: { range } }, hooks: { draw: [(plot) => this.mark(plot)] } }, data, this.element);
  }
  // Dashed lines where workers began.
  mark(plot) {
    const { ctx, bbox } = plot;
    ctx.save();
    ctx.strokeStyle = colour("--muted");
    ctx.setLineDash([4, 4]);
    for (const at of this.values.marks) {
      const x = Math.round(plot.valToPos(at, "x", true));
      if (x < bbox.left || x > bbox.left + bbox.width) continue;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
    ctx.restore();
  }
}

for (const element of all("[data-chart]")) charts.push(new Chart(element));

async function refresh() {
  const sources = new Set(charts.map((chart) => chart.element.dataset.from));
  for (const source of sources) {
    try {
      const answer = await fetch(source);
      if (!answer.ok) continue;
      const values = await answer.json();
      charts.filter((chart) => chart.element.dataset.from === source).forEach((chart) => chart.update(values));
    } catch {
      // The server does not answer; the next round asks again.
    }
  }
}

if (charts.length) {
  refresh();
  if (charts.some((chart) => !("once" in chart.element.dataset))) setInterval(refresh, 2000);
  addEventListener("resize", () => charts.forEach((chart) => chart.plot && chart.plot.setSize({ width: chart.element.clientWidth, height: 200 })));
}

// Live tail: rows are made of text, never of markup.

const tail = document.querySelector("[data-tail]");
if (tail) {
  const said = document.querySelector("[data-tail-state]");
  const pause = document.querySelector("[data-tail-pause]");
  const empty = document.querySelector("[data-tail-empty]");
  const kept = 500;
  let waiting = [];
  let drawing = false;
  const source = new EventSource(tail.dataset.tail);
  source.onopen = () => (said.textContent = "live");
  source.onerror = () => (said.textContent = "reconnecting");
  source.addEventListener("problem", () => (said.textContent = "the broker does not answer"));
  source.onmessage = (event) => {
    waiting.push(JSON.parse(event.data));
    if (waiting.length > kept) waiting = waiting.slice(-kept);
    schedule();
  };
  const schedule = () => {
    if (drawing || pause.getAttribute("aria-pressed") === "true") return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      if (waiting.length) empty.hidden = true;
      for (const entry of waiting) tail.prepend(row(entry));
      waiting = [];
      while (tail.rows.length > kept) tail.deleteRow(-1);
    });
  };
  pause.addEventListener("click", () => {
    const paused = pause.getAttribute("aria-pressed") === "true";
    pause.setAttribute("aria-pressed", String(!paused));
    pause.textContent = paused ? "Pause" : "Resume";
    schedule();
  });
  addEventListener("pagehide", () => source.close());
}

const words = { L: "logged", U: "unchanged", Q: "waiting", F: "in flight", S: "success", K: "sent", R: "retry", E: "dead", I: "invalid", N: "not interested", X: "completed" };
const tones = { Q: "wait", F: "busy", S: "good", X: "good", K: "good", R: "warn", N: "warn", E: "bad", I: "bad" };

function row(entry) {
  const line = document.createElement("tr");
  const heads = tail.closest("table").tHead.rows[0].cells;
  const cell = (content, kind) => {
    const made = document.createElement("td");
    if (kind) made.className = kind;
    made.dataset.head = heads[line.cells.length].textContent; // its label on a phone
    if (content instanceof Node) made.append(content);
    else made.textContent = content;
    line.append(made);
  };
  const time = new Date(entry.time / 1000).toISOString().slice(11, 23);
  cell(entry.position ?? entry.offset, "num");
  cell(time, "mono nowrap");
  if ("position" in entry) {
    const chip = document.createElement("span");
    chip.className = `chip ${tones[entry.state] ?? "calm"}`;
    chip.textContent = words[entry.state] ?? entry.state;
    cell(chip);
    cell(entry.queue);
    const many = entry.count > 1 ? `messages ${entry.offset}–${entry.offset + entry.count - 1}` : `message ${entry.offset}`;
    cell([many, entry.reason, entry.consumer && `by ${entry.consumer}`, entry.who && `by ${entry.who}`].filter(Boolean).join(" · "), "excerpt");
  } else {
    const link = document.createElement("a");
    link.href = tail.dataset.message + encodeURIComponent(entry.id);
    link.textContent = entry.name;
    cell(link);
    cell(entry.queues.join(", "));
    cell(entry.excerpt, "excerpt mono");
  }
  return line;
}
