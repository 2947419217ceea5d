// Live updates, lighting up what a pod holds, and times. Every page works without this script.
"use strict";

(() => {
  const root = document.documentElement;

  // What a pod holds: every element with its data-holder.
  let lit = null;
  function light(holder) {
    if (holder === lit) return;
    lit = holder;
    root.classList.toggle("lighting", holder !== null);
    for (const element of document.querySelectorAll("[data-holder]")) {
      element.classList.toggle("lit", holder !== null && element.dataset.holder === holder);
    }
  }
  function holderOf(target) {
    return target instanceof Element ? target.closest("[data-holder]")?.dataset.holder ?? null : null;
  }
  document.addEventListener("pointerover", (event) => light(holderOf(event.target) ?? holderOf(document.activeElement)));
  document.addEventListener("focusin", (event) => light(holderOf(event.target)));
  document.addEventListener("focusout", () => light(null));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") light(null); });
  document.addEventListener("click", (event) => {
    const shape = event.target instanceof Element ? event.target.closest("svg [data-holder]") : null;
    if (shape !== null) document.querySelector(`tr[data-holder="${CSS.escape(shape.dataset.holder)}"] a`)?.click();
  });

  // Times: relative to now, and exact in the reader's zone on hover.
  const UNITS = [["second", 60], ["minute", 60], ["hour", 24], ["day", 30], ["month", 12], ["year", Infinity]];
  const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto" });
  const exact = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
  function relativeTime(time) {
    let amount = (time - Date.now()) / 1000;
    if (Math.abs(amount) < 10) return "just now";
    for (const [unit, size] of UNITS) {
      if (Math.abs(amount) < size) return relative.format(Math.round(amount), unit);
      amount /= size;
    }
    return "";
  }
  function showTimes(where) {
    for (const element of where.querySelectorAll("time")) {
      const time = new Date(element.dateTime);
      if (Number.isNaN(time.getTime())) continue;
      element.title = exact.format(time);
      element.textContent = relativeTime(time.getTime());
    }
  }
  showTimes(document);
  setInterval(() => showTimes(document), 30_000);

  // After an event, get the page again and replace the parts that changed; the focus stays where it was.
  let renewing = false;
  let again = false;
  async function renew() {
    if (renewing) { again = true; return; }
    renewing = true;
    try {
      do {
        again = false;
        const answer = await fetch(location.href, { headers: { Accept: "text/html" } });
        if (answer.status === 401) { location.reload(); return; }
        if (answer.ok) replaceParts(new DOMParser().parseFromString(await answer.text(), "text/html"));
        await new Promise((resolve) => setTimeout(resolve, 100));
      } while (again);
    } catch {
      lose();
    } finally {
      renewing = false;
    }
  }
  function replaceParts(page) {
    const active = document.activeElement;
    const link = active instanceof HTMLAnchorElement ? active.getAttribute("href") : null;
    for (const old of document.querySelectorAll("[data-live]")) {
      const part = page.getElementById(old.id);
      if (part === null || comparable(part) === comparable(old)) continue;
      const had = old.contains(active);
      showTimes(part);
      old.replaceWith(document.adoptNode(part));
      if (had && link !== null) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({ preventScroll: true });
    }
    const now = lit;
    lit = null;
    light(now);
    root.dataset.renewed = String(Number(root.dataset.renewed ?? "0") + 1);
  }
  // The content of an element without what this script changes in it.
  function comparable(element) {
    const copy = element.cloneNode(true);
    for (const other of copy.querySelectorAll(".lit")) {
      other.classList.remove("lit");
      if (other.getAttribute("class") === "") other.removeAttribute("class");
    }
    for (const time of copy.querySelectorAll("time")) {
      time.textContent = "";
      time.removeAttribute("title");
    }
    return copy.innerHTML;
  }

  // The stream of events; a lost connection is shown, and tried again.
  const RETRY_SECONDS = 3;
  const KINDS = ["admitted", "kept", "rejected", "waiting", "released", "announced", "stopped", "gone", "missed", "changed"];
  const status = document.getElementById("connection");
  function say(text) { if (status !== null && status.textContent !== text) status.textContent = text; }
  function lose() {
    say("connection lost, trying again");
    status?.classList.add("lost");
  }
  let opened = false;
  function connect() {
    const source = new EventSource(document.body.dataset.events);
    source.onopen = () => {
      say("live");
      status?.classList.remove("lost");
      if (opened) announce();
      opened = true;
    };
    source.onerror = () => {
      lose();
      if (source.readyState === EventSource.CLOSED) setTimeout(connect, RETRY_SECONDS * 1000);
    };
    for (const kind of KINDS) source.addEventListener(kind, announce);
  }
  function announce() {
    renew();
    document.dispatchEvent(new Event("changed"));
  }
  if (document.body.dataset.events !== undefined) connect();
})();
