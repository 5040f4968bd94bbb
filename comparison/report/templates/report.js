"use strict";
const find = (selector, root = document) => root.querySelector(selector);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const read = (name) => JSON.parse(find("#data-" + name).textContent);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};

// Figures of which one is shown: the choice is the values of the radio buttons, in their order.
for (const controls of all("[data-switch]")) {
  const figures = all(`[data-of="${controls.dataset.switch}"]`);
  const show = () => {
    const choice = all("input:checked", controls).map((input) => input.value);
    const matches = (figure) => JSON.parse(figure.dataset.choice);
    // A combination that does not exist, such as a curve by time that was not logged, falls back to the nearest.
    const score = (figure) => matches(figure).reduce((sum, value, i) => sum * 2 + (value === choice[i]), 0);
    const best = figures.reduce((one, other) => (score(other) > score(one) ? other : one));
    figures.forEach((figure) => { figure.hidden = figure !== best; });
  };
  controls.addEventListener("change", show);
  show();
}

// A row of choices; the keys move through it, as in any group of radio buttons.
function choices(group, name, values, onChange) {
  const set = make("fieldset", { hidden: values.length < 2 }, make("legend", { textContent: name }));
  values.forEach((value, i) => {
    const input = make("input", { type: "radio", name: group + "-" + name, value: String(i), checked: i === 0 });
    input.addEventListener("change", () => onChange(i));
    set.append(make("label", {}, input, make("span", { textContent: value })));
  });
  return set;
}

// Attention maps and weight products: a view, a layer and a head, for every arm before and after.
for (const root of all("[data-picker]")) {
  const name = root.dataset.picker, data = read(name), colors = JSON.parse(root.dataset.colors);
  const views = Object.keys(data.views), chosen = { view: 0, layer: 0, head: 0 };
  const grid = make("div", { className: "maps" });
  const picture = (view, arm, moment) => {
    const layers = data.views[view][arm][moment];
    const image = layers && layers[chosen.layer] && layers[chosen.layer][chosen.head];
    const captions = ((data.captions[view] || {})[arm] || {})[moment];
    const text = moment + (captions ? " " + captions[chosen.head] : "");
    const alt = `${arm}, ${moment} training, layer ${data.layers[chosen.layer]}, ${data.heads[chosen.head]}`;
    const shown = image
      ? make("img", { alt, src: "data:image/png;base64," + image })
      : make("div", { className: "none", textContent: "none" });
    return make("figure", {}, shown, make("figcaption", { textContent: text }));
  };
  const draw = () => {
    const view = views[chosen.view];
    grid.replaceChildren(...Object.keys(data.views[view]).map((arm) => {
      const mark = make("i", { className: "mark" });
      mark.style.background = colors[arm];
      const moments = make("div", { className: "moments" }, ...["before", "after"].map((m) => picture(view, arm, m)));
      return make("div", {}, make("h4", {}, mark, arm), moments);
    }));
  };
  const set = (key) => (value) => { chosen[key] = value; draw(); };
  const controls = make("div", { className: "controls" },
    choices(name, "layer", data.layers, set("layer")),
    choices(name, "head", data.heads, set("head")),
    choices(name, "shown", views, set("view")));
  root.replaceChildren(controls, grid);
  draw();
}

// One similarity of all layers with all layers, large.
const large = find("[data-similarity]");
if (large) {
  const data = read("similarity"), space = "http://www.w3.org/2000/svg";
  const stops = ["#440154", "#482878", "#3e4a89", "#31688e", "#26838f", "#1f9d8a", "#6cce5a", "#b6de2b", "#fee825"]
    .map((hex) => [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
  const color = (value) => {
    const place = Math.min(1, Math.max(0, value)) * (stops.length - 1), i = Math.min(Math.floor(place), stops.length - 2);
    return `rgb(${stops[i].map((from, k) => Math.round(from + (stops[i + 1][k] - from) * (place - i))).join(",")})`;
  };
  const draw = (row, column) => {
    const cell = data.cells[row][column], count = data.layers.length, side = 240 / count, edge = 34;
    const moments = row === column ? ["before", "after"] : row < column ? ["before", "before"] : ["after", "after"];
    const svg = document.createElementNS(space, "svg");
    const add = (tag, attributes, text) => {
      const element = document.createElementNS(space, tag);
      Object.entries(attributes).forEach(([key, value]) => element.setAttribute(key, value));
      if (text !== undefined) element.textContent = text;
      svg.append(element);
      return element;
    };
    svg.setAttribute("viewBox", "0 0 280 280");
    const names = [data.arms[row] + " " + moments[0], data.arms[column] + " " + moments[1]];
    svg.setAttribute("role", "img");
    svg.setAttribute("aria-label", `CKA of ${names[0]} and ${names[1]}`);
    const caption = make("figcaption", { textContent: `Rows: ${names[0]}; columns: ${names[1]}. Point at a square for its value.` });
    const shown = Math.ceil(count / 16);
    cell.forEach((values, i) => values.forEach((value, j) => {
      const place = { x: edge + j * side, y: 240 - (i + 1) * side + 4, width: side - 0.8, height: side - 0.8, rx: 1.5 };
      const square = add("rect", { ...place, fill: color(value) });
      square.addEventListener("pointerenter", () => {
        caption.textContent = `${names[0]}, layer ${data.layers[i]}; ${names[1]}, layer ${data.layers[j]}: CKA ${value.toFixed(2)}`;
      });
      if (count <= 8) {
        const dark = value > 0.6 ? "#16191d" : "#ffffff";
        add("text", { x: place.x + side / 2, y: place.y + side / 2 + 3, "text-anchor": "middle", "font-size": 8.5, fill: dark, "pointer-events": "none" }, value.toFixed(2));
      }
    }));
    data.layers.forEach((layer, i) => {
      if (i % shown) return;
      const look = { "font-size": 8.5, fill: "var(--faint)" };
      add("text", { ...look, x: edge - 5, y: 240 - (i + 0.5) * side + 7, "text-anchor": "end" }, layer);
      add("text", { ...look, x: edge + (i + 0.5) * side, y: 255, "text-anchor": "middle" }, layer);
    });
    add("text", { x: edge + 120, y: 272, "text-anchor": "middle", "font-size": 9, fill: "var(--ink)" }, "layer of " + names[1]);
    add("text", { x: 0, y: 0, "text-anchor": "middle", "font-size": 9, fill: "var(--ink)", transform: "translate(9 124) rotate(-90)" }, "layer of " + names[0]);
    large.replaceChildren(svg, caption);
    all(".squares button").forEach((button) => {
      button.classList.toggle("here", Number(button.dataset.row) === row && Number(button.dataset.column) === column);
    });
  };
  const buttons = all(".squares button");
  buttons.forEach((button) => button.addEventListener("click", () => draw(Number(button.dataset.row), Number(button.dataset.column))));
  if (buttons.length) draw(Number(buttons[0].dataset.row), Number(buttons[0].dataset.column));
}

for (const button of all("[data-copy]")) {
  button.addEventListener("click", async () => {
    const text = find("code", button.parentElement).textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // Pages opened from a disk may not be allowed to: then the old way.
      const area = make("textarea", { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

// A section that is folded opens where a link leads into it, and all of them do for paper.
const unfold = () => {
  const fold = location.hash && find(location.hash + " > .fold");
  if (fold && !fold.open) { fold.open = true; fold.scrollIntoView(); }
};
all(".contents a").forEach((link) => link.addEventListener("click", () => {
  const fold = find(link.hash + " > .fold");
  if (fold) fold.open = true;
}));
addEventListener("hashchange", unfold);
addEventListener("beforeprint", () => all(".fold").forEach((fold) => { fold.open = true; }));
unfold();

// The contents bar follows the reader.
const links = new Map(all(".contents a").map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => entries.forEach((entry) => {
  if (!entry.isIntersecting) return;
  links.forEach((link) => link.classList.remove("here"));
  const link = links.get(entry.target.id);
  link.classList.add("here");
  const bar = link.parentElement;
  bar.scrollLeft = link.offsetLeft - bar.clientWidth / 2 + link.clientWidth / 2;
}), { rootMargin: "-15% 0px -75% 0px" });
all("main > section").forEach((section) => { if (links.has(section.id)) seen.observe(section); });
