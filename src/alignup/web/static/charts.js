// Charts over time, drawn with uPlot from the JSON in each figure. Without this script readers have the tables.
"use strict";

(() => {
  const root = document.documentElement;
  const PRINTED = 680; // pixels across a sheet
  const STYLES = 8;
  const charts = [];

  const count = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });
  const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
  const share = new Intl.NumberFormat("en-US", { style: "percent", maximumFractionDigits: 1 });
  const UNITS = {
    count: { text: (value) => count.format(value), tick: (value) => short.format(value), steps: powers([1, 2, 5], 0, 12), least: 1 },
    share: { text: (value) => share.format(value), tick: (value) => share.format(value), steps: powers([1, 2, 5], -5, 2), least: 1 },
  };
  const PARTS = [[86400, "d"], [3600, "h"], [60, "min"]];
  const DURATIONS = [
    ...powers([1, 2, 5], -3, -1), 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800,
    ...[1, 2, 3, 6, 12].map((hours) => hours * 3600), ...powers([1, 2, 5], 0, 6).map((days) => days * 86400),
  ];

  function powers(digits, from, to) {
    const steps = [];
    for (let power = from; power <= to; power++) {
      for (const digit of digits) steps.push(Number(`${digit}e${power}`));
    }
    return steps;
  }

  // A duration in at most two units: "1 d 6 h", "45 s".
  function duration(seconds) {
    const texts = [];
    let rest = seconds;
    for (const [size, unit] of PARTS) {
      const whole = Math.floor(rest / size);
      if (whole > 0) texts.push(`${count.format(whole)} ${unit}`);
      rest -= whole * size;
    }
    if (rest > 0 || texts.length === 0) texts.push(`${Number(rest.toPrecision(3))} s`);
    return texts.slice(0, 2).join(" ");
  }

  function color(name) {
    return getComputedStyle(root).getPropertyValue(name).trim();
  }

  function make(name, className, text = "") {
    const element = document.createElement(name);
    element.className = className;
    element.textContent = text;
    return element;
  }

  // All charts of a page show the same span of time; without times, all of it.
  function zoom(min, max) {
    const all = min === undefined;
    for (const chart of charts) {
      chart.reset.hidden = all;
      chart.plot.setScale("x", all ? { min: start, max: end } : { min: Math.max(min, start), max: Math.min(max, end) });
    }
  }
  let start = Infinity;
  let end = -Infinity;

  function draw(figure) {
    const { unit, names, columns } = JSON.parse(figure.querySelector("script").textContent);
    const { text, tick, steps, least } = UNITS[unit];
    const [times] = columns;
    const caption = figure.querySelector("figcaption");
    const keys = make("div", "keys");
    const when = make("span", "when");
    const reset = make("button", "reset", "Reset zoom");
    reset.type = "button";
    reset.hidden = true;
    reset.addEventListener("click", () => zoom());
    const area = make("div", "plot");
    area.tabIndex = 0;
    area.setAttribute("role", "group");
    area.setAttribute("aria-label", `${caption.textContent}: chart. Arrow keys read values, + and - zoom, Escape resets.`);
    caption.after(keys, area);

    const values = names.map((name, number) => {
      const several = names.length > 1;
      const key = make(several ? "button" : "span", `series series${number % STYLES}`);
      const value = make("span", "value");
      key.append(make("span", "line"), make("span", "name", name), value);
      if (several) {
        key.type = "button";
        key.setAttribute("aria-pressed", "true");
        key.addEventListener("click", () => {
          const shown = key.getAttribute("aria-pressed") !== "true";
          key.setAttribute("aria-pressed", String(shown));
          plot.setSeries(number + 1, { show: shown });
        });
        key.addEventListener("pointerenter", () => plot.setSeries(number + 1, { focus: true }));
        key.addEventListener("pointerleave", () => plot.setSeries(null, { focus: true }));
      }
      keys.append(key);
      return value;
    });
    keys.append(when, reset);
    const peaks = names.map((_, number) => columns[number + 1].reduce((most, value) => Math.max(most, value), 0));

    function showValues() {
      const place = plot?.cursor.idxs?.find((index) => index !== null && index !== undefined);
      const hovered = place !== undefined && plot.cursor.left >= 0;
      when.textContent = hovered ? duration(plot.posToVal(plot.cursor.left, "x") - start) : "";
      values.forEach((value, number) => {
        value.textContent = hovered ? text(columns[number + 1][place]) : `max ${text(peaks[number])}`;
      });
    }

    const axis = { stroke: () => color("--dim"), font: "12px system-ui, sans-serif", ticks: { stroke: () => color("--line"), width: 1 }, grid: { stroke: () => color("--line"), width: 1 } };
    let plot = null;
    plot = new uPlot({
      width: area.clientWidth,
      height: area.clientHeight,
      legend: { show: false },
      focus: { alpha: 0.3 },
      padding: [12, 12, 0, 0],
      scales: {
        x: { time: false, range: (_, min, max) => (min === max ? [min, min + 1] : [min, max]) },
        y: { range: (_, min, max) => [0, Math.max(least, (max ?? 0) * 1.05)] },
      },
      axes: [
        { ...axis, size: 36, space: 90, incrs: DURATIONS, splits: (self, _, min, max, step) => ticks(min, max, step), values: (_, splits) => splits.map((time) => duration(time - start)) },
        { ...axis, size: 56, incrs: steps, values: (_, splits) => splits.map(tick) },
      ],
      series: [
        {},
        ...names.map((name, number) => ({
          label: name,
          width: 2,
          stroke: () => color(`--series${number % STYLES}`),
          dash: number ? [10, 6 * number] : undefined, // equal curves stay visible below each other
          fill: names.length === 1 ? () => `${color("--series0")}26` : undefined,
          paths: uPlot.paths.stepped({ align: 1 }),
          points: { show: false },
        })),
      ],
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: false },
        sync: { key: "charts" },
        focus: { prox: 16 },
        // A value lasts until the next point, however near that is.
        dataIdx: (self, _, closest, time) => (closest > 0 && self.data[0][closest] > time ? closest - 1 : closest),
        bind: { dblclick: () => () => zoom() },
      },
      hooks: {
        setCursor: [showValues],
        setSelect: [(self) => {
          const { left, width } = self.select;
          if (width === 0) return;
          zoom(self.posToVal(left, "x"), self.posToVal(left + width, "x"));
          self.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
        }],
      },
    }, columns, area);

    // Ticks are at whole multiples since the start, which may be any time.
    function ticks(min, max, step) {
      const splits = [];
      for (let number = Math.ceil((min - start) / step - 1e-9); start + number * step <= max; number++) splits.push(start + number * step);
      return splits;
    }

    area.addEventListener("keydown", (event) => {
      const { min, max } = plot.scales.x;
      const width = plot.over.clientWidth;
      const at = Math.min(Math.max(plot.cursor.left ?? 0, 0), width);
      const move = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
      const factor = { "+": 0.5, "=": 0.5, "-": 2 }[event.key];
      if (move !== undefined) {
        plot.setCursor({ left: Math.min(Math.max(at + move * width / 100, 0), width), top: 1 });
      } else if (factor !== undefined) {
        const middle = plot.posToVal(at, "x");
        if (factor > 1 && (max - min) * factor >= end - start) zoom();
        else zoom(middle - (middle - min) * factor, middle + (max - middle) * factor);
      } else if (event.key === "Escape") {
        zoom();
      } else {
        return;
      }
      event.preventDefault();
    });
    area.addEventListener("blur", () => plot.setCursor({ left: -10, top: -10 }));
    new ResizeObserver(() => resize(plot, area.clientWidth, area.clientHeight)).observe(area);
    charts.push({ plot, area, reset });
    showValues();
  }

  function resize(plot, width, height) {
    if (width > 0 && (plot.width !== width || plot.height !== height)) plot.setSize({ width, height });
  }

  function redraw() {
    for (const { plot } of charts) plot.redraw(false, true);
  }

  const figures = [...document.querySelectorAll("figure[data-chart]")];
  for (const figure of figures) {
    const [times] = JSON.parse(figure.querySelector("script").textContent).columns;
    start = Math.min(start, times[0]);
    end = Math.max(end, times.at(-1));
  }
  for (const figure of figures) {
    draw(figure);
    figure.querySelector("details").open = false;
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  // Paper is light, and narrower than most windows.
  const dark = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules])
    .filter((rule) => rule instanceof CSSMediaRule && rule.conditionText.includes("prefers-color-scheme: dark"))
    .map((rule) => [rule.media, rule.media.mediaText]);
  addEventListener("beforeprint", () => {
    root.style.colorScheme = "light";
    for (const [media] of dark) media.mediaText = "not all";
    for (const { plot, area } of charts) resize(plot, Math.min(PRINTED, area.clientWidth), area.clientHeight);
    redraw();
  });
  addEventListener("afterprint", () => {
    root.style.colorScheme = "";
    for (const [media, text] of dark) media.mediaText = text;
    for (const { plot, area } of charts) resize(plot, area.clientWidth, area.clientHeight);
    redraw();
  });
  root.dataset.charts = String(charts.length);
})();
