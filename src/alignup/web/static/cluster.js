// The nodes of a cluster: a map of their NUMA nodes, and a table, filtered and sorted as the reader types.
// The server sends rows (see NodeCard.row in schedule/node_cards.py), and after a change only those that changed.
"use strict";

(() => {
  const canvas = document.getElementById("heat");
  if (canvas === null) return;
  const element = (id) => document.getElementById(id);
  const form = element("filter");
  const body = document.querySelector("#nodes tbody");
  const heads = [...document.querySelectorAll("#nodes thead th")];
  const ROWS = matchMedia("(max-width: 40rem)").matches ? 8 : 20;
  const RESERVED = 0, HELD = 1, STRANDED = 2, FREE = 3;

  const nodes = new Map();
  let serial = 0;
  let resources = [];
  let labels = [];
  let selected = [];
  let shown = ROWS;
  let loaded = false;

  // Data.

  function read(row) {
    const [name, policy, pods, unknown, restrictions, labelNumbers, numa, largest] = row;
    const totals = resources.map(() => [0, 0, 0, 0]);
    for (const cells of numa) {
      cells.forEach((cell, resource) => { if (cell) cell.forEach((amount, use) => { totals[resource][use] += amount; }); });
    }
    const stranded = totals.reduce((sum, cell) => sum + cell[STRANDED], 0);
    const free = totals.length > 0 ? totals[0][FREE] + totals[0][STRANDED] : 0;
    return { name, policy, pods, unknown, restrictions, labelNumbers, numa, largest, totals, stranded, free };
  }
  async function load() {
    const answer = await fetch(`/nodes.json?since=${serial}`);
    if (!answer.ok) return;
    const document_ = await answer.json();
    ({ serial, resources, labels } = document_);
    if (document_.whole) nodes.clear();
    if (!loaded) body.replaceChildren(); // the rows of the script have another form
    loaded = true;
    for (const row of document_.nodes) nodes.set(row[0], read(row));
    update();
  }

  // Filter and order.

  const SORTS = {
    name: () => 0,
    free: (one, other) => other.free - one.free,
    largest: (one, other) => (other.largest[0] ?? 0) - (one.largest[0] ?? 0),
    stranded: (one, other) => other.stranded - one.stranded,
    pods: (one, other) => other.pods - one.pods,
  };
  function matcher() {
    const words = element("q").value.split(/\s+/).filter((word) => word !== "");
    const wanted = words.filter((word) => word.includes("=")).map((word) => labels.indexOf(word));
    const parts = words.filter((word) => !word.includes("="));
    const policy = element("policy").value;
    const least = Number(element("free").value);
    const onlyStranded = element("stranded").checked;
    return (node) => parts.every((part) => node.name.includes(part))
      && wanted.every((number) => node.labelNumbers.includes(number))
      && (policy === "" || policy === (node.policy || "unknown"))
      && node.free >= least
      && (!onlyStranded || node.stranded > 0);
  }
  function update() {
    const order = SORTS[element("sort").value] ?? SORTS.name;
    selected = [...nodes.values()].filter(matcher());
    selected.sort((one, other) => order(one, other) || (one.name < other.name ? -1 : 1));
    const count = selected.length === 1 ? "1 node" : `${selected.length} nodes`;
    const text = selected.length === nodes.size ? count : `${count} of ${nodes.size}`;
    if (element("matches").textContent !== text) element("matches").textContent = text;
    fillTable();
    draw();
  }

  // The table: rows are changed in place, so that nothing jumps and the focus stays.

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  function amount(resource, number) {
    if (resource !== "memory" && !resource.startsWith("hugepages-")) return String(number);
    let unit = 0;
    while (number >= 1024 && unit + 1 < UNITS.length) { number /= 1024; unit += 1; }
    return `${Number(number.toFixed(1))} ${UNITS[unit]}`;
  }
  const columns = [...document.querySelectorAll("#resource option")].map((option) => option.value);
  const shownColumns = columns.filter((name) => !name.startsWith("hugepages-")).slice(0, heads.length - 5);
  function cells(node) {
    const free = shownColumns.map((name) => {
      const total = node.totals[resources.indexOf(name)];
      const sum = total === undefined ? 0 : total.reduce((all, part) => all + part, 0);
      return sum === 0 ? "" : `${amount(name, total[FREE] + total[STRANDED])} / ${amount(name, sum)}`;
    });
    const policy = [node.unknown === "" ? node.policy : `no report: ${node.unknown}`, ...node.restrictions].join(" · ");
    const stranded = node.unknown !== "" ? "" : node.stranded > 0 ? `! ${node.stranded}` : "0";
    return [policy, node.unknown === "" ? String(node.pods) : "", ...free, stranded, String(node.largest[0] ?? "")];
  }
  function makeRow() {
    const row = document.createElement("tr");
    heads.forEach((head, number) => {
      const cell = document.createElement(number === 0 ? "th" : "td");
      if (number === 0) {
        cell.scope = "row";
        cell.append(document.createElement("a"));
      } else {
        cell.dataset.label = head.textContent;
        cell.className = head.className;
      }
      row.append(cell);
    });
    return row;
  }
  function set(target, text) { if (target.textContent !== text) target.textContent = text; }
  function fillTable() {
    const visible = selected.slice(0, shown);
    while (body.rows.length > visible.length) body.lastElementChild.remove();
    visible.forEach((node, number) => {
      const row = body.rows[number] ?? body.appendChild(makeRow());
      const link = row.cells[0].firstElementChild;
      const where = `/nodes/${encodeURIComponent(node.name)}`;
      if (link.getAttribute("href") !== where) link.setAttribute("href", where);
      set(link, node.name);
      cells(node).forEach((text, place) => set(row.cells[place + 1], text));
    });
    element("more").hidden = selected.length <= shown;
  }

  // The map: each node is a box, each NUMA node a column in it that is filled from below.

  let boxes = { across: 1, width: 1, height: 1, column: 1, label: 0 };
  function layout(width) {
    const numa = Math.max(1, ...selected.slice(0, 200).map((node) => Math.min(node.numa.length, 8)));
    // The largest boxes with which all nodes fit into some 600 pixels.
    for (const column of [72, 56, 40, 28, 20, 14, 12, 10, 8, 7, 6, 5, 4, 3]) {
      const label = column >= 28 ? 16 : 0; // few nodes: their names are below the boxes
      const [boxWidth, boxHeight] = [numa * column + 4, Math.round(column * 1.8) + 4 + label];
      const across = Math.max(1, Math.floor(width / boxWidth));
      boxes = { across, width: boxWidth, height: boxHeight, column, label };
      if (Math.ceil(selected.length / across) * boxHeight <= (label ? 320 : 600)) break;
    }
  }
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  function draw() {
    const width = canvas.parentElement.clientWidth;
    layout(width);
    const height = Math.max(1, Math.ceil(selected.length / boxes.across)) * boxes.height;
    const ratio = devicePixelRatio || 1;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = `${height}px`;
    }
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    const resource = resources.indexOf(element("resource").value);
    const inside = boxes.height - 4 - boxes.label;
    const places = selected.map((node, number) => ({
      node,
      x: (number % boxes.across) * boxes.width,
      y: Math.floor(number / boxes.across) * boxes.height,
      width: Math.max(1, Math.min(node.numa.length, 8)) * boxes.column + 1,
    }));
    // One color at a time: to change it takes longer than to fill a rectangle.
    context.fillStyle = color("--edge");
    for (const { x, y, width: across } of places) context.fillRect(x, y, across + 1, inside + 2);
    context.fillStyle = color("--raised");
    for (const { x, y, width: across } of places) context.fillRect(x + 1, y + 1, across - 1, inside);
    for (const use of [RESERVED, HELD, STRANDED]) {
      context.fillStyle = color(["--reserved-fill", "--held-fill", "--stranded-fill"][use]);
      eachPart(places, resource, use, inside, (left, top, height) => context.fillRect(left, top, boxes.column - 1, height));
    }
    // Not by color alone: lines across what is stranded, and through nodes without a report.
    context.fillStyle = color("--bad");
    eachPart(places, resource, STRANDED, inside, (left, top, height) => {
      for (let line = 1; line < height; line += 3) context.fillRect(left, top + line, boxes.column - 1, 1);
    });
    context.strokeStyle = color("--edge");
    context.beginPath();
    for (const { node, x, y, width: across } of places) {
      if (node.unknown === "") continue;
      context.moveTo(x + 1, y + inside);
      context.lineTo(x + across, y + 1);
    }
    context.stroke();
    if (boxes.label === 0) return;
    context.fillStyle = color("--ink");
    context.font = "11px system-ui, sans-serif";
    for (const { node, x, y } of places) {
      let name = node.name;
      while (name.length > 1 && context.measureText(name).width > boxes.width - 6) name = `${name.slice(0, -2)}…`;
      context.fillText(name, x + 1, y + inside + 14);
    }
  }
  // Call `paint` with the place and height of the part of each NUMA node that has one use.
  function eachPart(places, resource, use, inside, paint) {
    for (const { node, x, y } of places) {
      for (let column = 0; column < Math.min(node.numa.length, 8); column += 1) {
        const cell = node.numa[column][resource];
        if (!cell || cell[use] === 0) continue;
        const unit = inside / (cell[RESERVED] + cell[HELD] + cell[STRANDED] + cell[FREE]);
        let below = 0;
        for (let other = 0; other < use; other += 1) below += cell[other];
        const height = cell[use] * unit;
        paint(x + 1 + column * boxes.column, y + 1 + inside - below * unit - height, height);
      }
    }
  }
  function nodeAt(event) {
    const place = canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - place.left) / boxes.width);
    if (column >= boxes.across) return undefined;
    return selected[Math.floor((event.clientY - place.top) / boxes.height) * boxes.across + column];
  }
  const tip = element("tip");
  function describe(node) {
    const name = element("resource").value;
    const resource = resources.indexOf(name);
    if (node.unknown !== "") return `${node.name}: no report: ${node.unknown}`;
    const texts = node.numa.map((parts, number) => {
      const cell = parts[resource] || [0, 0, 0, 0];
      const stranded = cell[STRANDED] > 0 ? `, ${amount(name, cell[STRANDED])} stranded` : "";
      return `NUMA node ${number}: ${amount(name, cell[HELD])} held, ${amount(name, cell[FREE])} free${stranded}`;
    });
    return [`${node.name} · ${node.policy} · ${node.pods} pods`, ...texts].join("\n");
  }
  canvas.addEventListener("pointermove", (event) => {
    const node = nodeAt(event);
    tip.hidden = node === undefined;
    canvas.style.cursor = node === undefined ? "" : "pointer";
    if (node === undefined) return;
    tip.textContent = describe(node);
    const area = canvas.parentElement.getBoundingClientRect();
    const left = Math.min(event.clientX - area.left + 12, area.width - tip.offsetWidth);
    tip.style.left = `${Math.max(0, left)}px`;
    tip.style.top = `${event.clientY - area.top + 16}px`;
  });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("click", (event) => {
    const node = nodeAt(event);
    if (node !== undefined) location.assign(`/nodes/${encodeURIComponent(node.name)}`);
  });

  // The form: no button; the address has what was chosen, so that it can be shared.

  function changed() {
    shown = ROWS;
    const query = new URLSearchParams();
    for (const [name, value] of new FormData(form)) if (value !== "" && !(name === "sort" && value === "name")) query.set(name, value);
    const text = query.toString();
    history.replaceState(null, "", text === "" ? location.pathname : `?${text}`);
    update();
  }
  form.addEventListener("input", changed);
  form.addEventListener("submit", (event) => { event.preventDefault(); changed(); });
  element("resource").addEventListener("change", draw);
  element("more").firstElementChild.addEventListener("click", () => { shown += ROWS; fillTable(); });
  document.addEventListener("changed", () => load().catch(() => {}));
  addEventListener("resize", draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  element("pages").remove();
  element("map").hidden = element("map-resource").hidden = false;
  load().then(() => { document.documentElement.dataset.nodes = String(nodes.size); });
})();
