"use strict";
// Draws the grids once from the embedded numbers, then lights what belongs to the chosen lane.
const DATA = JSON.parse(document.getElementById("data").textContent);
const at = (id) => document.getElementById(id);
const state = { lane: 13, step: 0, k: "natural" };
const lit = []; // elements that the last choice lit, with the text they had

function element(kind, text, of, parent) {
  const made = document.createElement(kind);
  if (of) made.className = of;
  made.textContent = text;
  parent.append(made);
  return made;
}

// --- the grids

/** A grid of cells with names above and beside it; `cell(row, column)` gives [text, lane or null]. */
function grid(id, across, down, cell) {
  const box = at(id).querySelector(".grid");
  box.style.gridTemplateColumns = `2.1rem repeat(${across.length}, minmax(0, 1fr))`;
  box.setAttribute("role", "img");
  element("span", "", "name", box);
  across.forEach((name) => element("span", name, "name", box));
  const cells = down.map((name, row) => {
    element("span", name, "name", box);
    return across.map((_, column) => {
      const [text, lane] = cell(row, column);
      const made = element("span", text, lane === null ? "" : `t${DATA.lanes[lane].t}`, box);
      if (lane !== null) made.dataset.lane = lane;
      return made;
    });
  });
  return cells;
}

const count = (n, by = 1) => Array.from({ length: n }, (_, i) => String(by * i));
const pairs = count(8).map((i) => `${2 * i},${2 * i + 1}`);

function operand(name, across, down) {
  const { lane, register } = DATA.cells[name];
  return grid(name, across, down, (row, column) => {
    const owner = lane[row][column];
    return [`${owner} ${name}${register[row][column]}`, owner];
  });
}

const cells = {
  A: operand("A", pairs, count(16)),
  B: operand("B", count(8), pairs),
  C: operand("C", count(8), count(16)),
};
// Memory: a cell is 4 bytes, one register; 16 cells are the 64 bytes of a line.
const maps = {
  W: grid("W", count(16, 2), count(16), () => ["", null]),
  P: grid("P", count(16, 4), count(16, 64), () => ["", null]),
  X: grid("X", count(16, 2), count(8), () => ["", null]),
};
const width = 2 * DATA.k; // bytes of a row
at("pitch").textContent = width.toLocaleString("en");

/** Which map cell a byte is in, row-major or packed. */
const rowMajor = (map) => (byte) => maps[map][Math.floor(byte / width)][(byte % width) / 4];
const packed = (byte) => maps.P[Math.floor(byte / 64)][(byte % 64) / 4];

/** Tint every map cell by the lane that reads it under the chosen naming of k. */
function own() {
  DATA.lanes.forEach((lane, number) => {
    for (const step of [0, 1]) {
      const claim = (cell) => {
        cell.className = `t${lane.t}`;
        cell.dataset.lane = number;
      };
      lane.A[state.k][step].forEach(([, , byte]) => claim(rowMajor("W")(byte)));
      lane.B[state.k][step].forEach(([, , byte]) => claim(rowMajor("X")(byte)));
      for (let r = 0; r < 4; r++) claim(packed(lane.unit[step] + 4 * r));
    }
  });
}

// --- the chosen lane

function light(cell, name) {
  lit.push([cell, cell.textContent]);
  cell.classList.add(name === null ? "other" : "lit");
  if (name) cell.textContent = name;
}

function show(number) {
  const lane = DATA.lanes[number];
  const { step, k } = state;
  lit.splice(0).forEach(([cell, text]) => {
    cell.classList.remove("lit", "other");
    cell.textContent = text;
  });
  for (const [name, rows] of Object.entries(cells)) {
    rows.flat().filter((cell) => Number(cell.dataset.lane) === number).forEach((cell) => light(cell, ""));
  }
  for (const each of [0, 1]) {
    const name = (operand, r) => (each === step ? `${operand}${r}` : null);
    lane.A[k][each].forEach(([, , byte], r) => light(rowMajor("W")(byte), name("A", r)));
    lane.B[k][each].forEach(([, , byte], r) => light(rowMajor("X")(byte), name("B", r)));
    if (k === "natural") continue; // the packed array holds other k together
    for (let r = 0; r < 4; r++) light(packed(lane.unit[each] + 4 * r), name("A", r));
  }
  at("P").classList.toggle("away", k === "natural");
  const picked = at("picker").querySelector(`input[value="${number}"]`).parentElement;
  light(picked.querySelector("span"), "");
  tell(number, lane);
}

const span = (from, length) => `${from}–${from + length - 1}`;

function tell(number, lane) {
  const { step, k } = state;
  at("who").textContent = `Lane ${number} = 4·${lane.g} + ${lane.t}: g = ${lane.g}, t = ${lane.t}`;
  at("renamed").textContent = k === "packed" ? ", k relabelled" : "";
  const body = at("registers");
  body.replaceChildren();
  const row = (texts, first) => {
    const line = element("tr", "", first ? "first" : "", body);
    texts.forEach((text, i) => element("td", text, i > 1 ? "number" : "", line));
  };
  lane.A[k][step].forEach(([n, first, byte], r) =>
    row([`A${r}`, `W[${n}][${first}, ${first + 1}]`, span(byte, 4), k === "packed" ? span(lane.unit[step] + 4 * r, 4) : "—"], r === 0));
  lane.B[k][step].forEach(([token, first, byte], r) =>
    row([`B${r}`, `x[${token}][${first}, ${first + 1}]`, span(byte, 4), ""], r === 0));
  lane.C.forEach(([n, token], r) => row([`C${r}`, `y[${token}][${n}]`, "", ""], r === 0));

  const runs = lane.apart[k][step];
  const apart = `${runs.length} pieces of ${runs[0][1]} bytes in row-major W (${runs.map((run) => run[0]).join(", ")})`;
  const one = `one 16-byte load from packed W (${span(lane.unit[step], DATA.unit)})`;
  at("loads").textContent = k === "packed" ? `Step ${step}: ${one}; the same weights are ${apart}.` : `Step ${step}: ${apart}: four loads.`;
  const ks = (each) => lane.B[k][each].map(([, first]) => `${first}, ${first + 1}`).join(", ");
  at("naming").textContent = `${k === "packed" ? "Packed" : "Natural"}: the slots of thread t = ${lane.t} stand for k = ${ks(0)} in step 0 and ${ks(1)} in step 1.`;
  at("xload").textContent = k === "packed"
    ? `x: k = ${8 * lane.t} to ${8 * lane.t + 7} of token ${lane.g}, one 16-byte load for both steps.`
    : `x: four loads of 4 bytes, two a step. The packed array does not hold these k together: choose packed to see what it does hold.`;
  for (const [name, said] of [["A", "row, slots"], ["B", "slots, token"], ["C", "row, token"]]) {
    at(name).querySelector(".grid").setAttribute("aria-label", `${name} by ${said}; lane ${number} is lit`);
  }
  const rows = [...new Set(lane.A[k][step].map((place) => place[0]))].join(" and ");
  at("W").querySelector(".grid").setAttribute("aria-label", `Row-major W: rows ${rows} lit, bytes ${runs.map((run) => span(...run)).join(", ")}`);
  at("P").querySelector(".grid").setAttribute("aria-label", k === "packed" ? `Packed W: bytes ${span(lane.unit[step], DATA.unit)} lit` : "Packed W: nothing lit under the natural naming");
  at("X").querySelector(".grid").setAttribute("aria-label", `x: token ${lane.g}, k ${ks(step)} lit`);
}

// --- choosing

function choose(changed) {
  Object.assign(state, changed);
  own();
  show(state.lane);
  document.querySelectorAll("input").forEach((input) => {
    input.checked = input.value === String(state[input.name]);
  });
  at("status").textContent = `${at("who").textContent}. ${at("loads").textContent}`;
  const hash = `#lane=${state.lane}&step=${state.step}&k=${state.k}`;
  if (location.hash !== hash) history.replaceState(null, "", hash);
}

function asked() {
  const given = new URLSearchParams(location.hash.slice(1));
  const lane = Number(given.get("lane") ?? state.lane);
  const step = Number(given.get("step") ?? state.step);
  const k = given.get("k") ?? state.k;
  return {
    lane: DATA.lanes[lane] ? lane : state.lane,
    step: step === 1 ? 1 : 0,
    k: k === "packed" ? k : "natural",
  };
}

element("span", "", "name", at("picker"));
count(4).forEach((t) => element("span", `t ${t}`, "name", at("picker")));
DATA.lanes.forEach((lane, number) => {
  if (lane.t === 0) element("span", `g ${lane.g}`, "name", at("picker"));
  const label = element("label", "", "", at("picker"));
  label.dataset.lane = number;
  const input = element("input", "", "", label);
  Object.assign(input, { type: "radio", name: "lane", value: String(number) });
  input.setAttribute("aria-label", `lane ${number}`);
  element("span", String(number), `t${lane.t}`, label);
});

document.addEventListener("change", ({ target }) => {
  choose({ [target.name]: target.name === "k" ? target.value : Number(target.value) });
});
document.addEventListener("click", ({ target }) => {
  const cell = target.closest("[data-lane]");
  if (cell) choose({ lane: Number(cell.dataset.lane) });
});
document.addEventListener("pointerover", ({ target, pointerType }) => {
  if (pointerType !== "mouse") return;
  const cell = target.closest?.("[data-lane]");
  show(cell ? Number(cell.dataset.lane) : state.lane);
});
document.documentElement.addEventListener("pointerleave", () => show(state.lane));
const MOVES = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -4, ArrowDown: 4 };
at("picker").addEventListener("keydown", (event) => {
  const by = event.key === "Home" ? -state.lane : event.key === "End" ? 31 - state.lane : MOVES[event.key];
  if (by === undefined) return;
  event.preventDefault();
  const lane = (state.lane + by + 32) % 32;
  choose({ lane });
  at("picker").querySelector(`input[value="${lane}"]`).focus();
});
addEventListener("hashchange", () => choose(asked()));
choose(asked());
