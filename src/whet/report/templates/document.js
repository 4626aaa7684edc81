"use strict";
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, values) => Object.assign(document.createElement(tag), values);
const time = (ms) => (ms < 1000 ? `${ms} ms` : `${ms / 1000} s`);
const text = (cell) => cell.querySelector("span").firstChild?.textContent ?? "";

// A copy button on each command.
for (const code of all(".sh > pre")) {
  const button = make("button", { type: "button", className: "copy", textContent: "Copy", ariaLive: "polite" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected: press Ctrl+C";
    }
  });
  code.after(button);
}

// Tables are sorted by a click on a column's name, and longer ones filtered by a word.
for (const table of all("table[data-sort]")) {
  const rows = [...table.tBodies[0].rows];
  const figure = (row, at) => parseFloat(text(row.cells[at]).replace(/[$,]/g, ""));
  const heads = all("thead th", table);
  heads.forEach((head, at) => {
    const button = make("button", { type: "button" });
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const sign = head.ariaSort === "ascending" ? -1 : 1;
      heads.forEach((each) => each.removeAttribute("aria-sort"));
      head.ariaSort = sign > 0 ? "ascending" : "descending";
      const order = (a, b) => {
        const [x, y] = [figure(a, at), figure(b, at)];
        if (isNaN(x) && isNaN(y)) return sign * text(a.cells[at]).localeCompare(text(b.cells[at]));
        return isNaN(x) - isNaN(y) || sign * (x - y); // what has no figure is last
      };
      table.tBodies[0].append(...rows.sort(order));
    });
  });
  if (rows.length < 8) continue;
  const field = make("input", { type: "search" });
  field.addEventListener("input", () => {
    const word = field.value.trim().toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(word);
  });
  const label = make("label", { className: "filter", textContent: "Filter rows " });
  label.append(field);
  table.parentElement.before(label);
}

// A row and its marks in the charts have one name: "config at load".
const parts = new Map();
const add = (name, part) => parts.set(name, [...(parts.get(name) ?? []), part]);
for (const mark of all(".plot [aria-label]")) add(mark.getAttribute("aria-label").split(": ")[0], mark);
for (const row of all("tbody tr")) {
  const name = [...row.cells].slice(0, 2).map(text).join(" at ");
  if (!parts.has(name)) continue;
  add(name, row);
  row.addEventListener("mouseenter", () => parts.get(name).forEach((part) => part.classList.add("lit")));
  row.addEventListener("mouseleave", () => parts.get(name).forEach((part) => part.classList.remove("lit")));
}

// The limit: it moves the line, and names the cheapest cell below it.
for (const plot of all("figure[data-choice]")) {
  const { ends: [low, high], width, limit, decided, cells } = JSON.parse(plot.dataset.choice);
  const form = plot.querySelector(".choice");
  const [slider, number, output] = ["[type=range]", "[type=number]", "output"].map((name) => form.querySelector(name));
  const [line, label] = ["line", "label"].map((name) => plot.querySelector(`[aria-label="limit ${name}"]`));
  const place = (ms) => Math.min(1, Math.max(0, Math.log(ms / low) / Math.log(high / low)));
  const show = (ms) => {
    const x = width * place(ms);
    if (document.activeElement !== number) number.value = ms;
    slider.value = 1000 * place(ms);
    slider.ariaValueText = time(ms);
    for (const each of [line, label].filter(Boolean)) {
      const y = /, *([-\d.]+)\)/.exec(each.getAttribute("transform"))[1];
      each.setAttribute("transform", `translate(${x - (each === label ? 5 : 0)},${y})`);
    }
    if (label) label.lastChild.textContent = `limit ${time(ms)}`;
    const best = ms === limit ? cells.find((each) => each.name === decided) : cells.find((each) => each.ttft < ms);
    output.textContent = best ? `${best.name}: ${best.usd} per 1M output tokens, TTFT p95 ${Number(best.ttft.toPrecision(3))} ms.` : "No configuration qualifies below this limit.";
    if (ms === limit) output.textContent += " This is the limit that the run was decided for.";
    else if (best) output.textContent += ` Cheapest by its figures; the run tested the limit of ${time(limit)} only.`;
    all(".won").forEach((part) => part.classList.remove("won"));
    parts.get(best?.name)?.forEach((part) => part.classList.add("won"));
  };
  slider.addEventListener("input", () => show(Number((low * (high / low) ** (slider.value / 1000)).toPrecision(2))));
  number.addEventListener("input", () => { if (number.value > 0) show(Number(number.value)); });
  show(limit);
  form.hidden = false;
}
