// Live updates, lighting up what a pod holds, and local times. Every page works without this script.
"use strict";

(() => {
  const root = document.documentElement;

  // What a pod holds: every element with its data-holder.
  let lit = null;
  function light(holder) {
    if (holder === lit) return;
    lit = holder;
    root.classList.toggle("lighting", holder !== null);
    for (const one of document.querySelectorAll("[data-holder]")) {
      one.classList.toggle("lit", holder !== null && one.dataset.holder === holder);
    }
  }
  function holderOf(target) {
    const found = target instanceof Element ? target.closest("[data-holder]") : null;
    return found === null ? null : found.dataset.holder;
  }
  document.addEventListener("pointerover", (event) => light(holderOf(event.target) ?? holderOf(document.activeElement)));
  document.addEventListener("focusin", (event) => light(holderOf(event.target)));
  document.addEventListener("focusout", () => light(null));
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") light(null); });
  document.addEventListener("click", (event) => {
    const shape = event.target instanceof Element ? event.target.closest("svg [data-holder]") : null;
    if (shape === null) return;
    const link = document.querySelector(`tr[data-holder="${CSS.escape(shape.dataset.holder)}"] a`);
    if (link !== null) link.click();
  });

  function showTimes(where) {
    for (const one of where.querySelectorAll("time")) {
      const time = new Date(one.dateTime);
      if (!Number.isNaN(time.getTime())) {
        one.title = one.dateTime;
        one.textContent = time.toLocaleString();
      }
    }
  }
  showTimes(document);

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
      say("not connected");
    } finally {
      renewing = false;
    }
  }
  function replaceParts(page) {
    const active = document.activeElement;
    const link = active instanceof HTMLAnchorElement ? active.getAttribute("href") : null;
    showTimes(page);
    for (const old of document.querySelectorAll("[data-live]")) {
      const found = page.getElementById(old.id);
      if (found !== null && found.innerHTML !== plain(old)) {
        const had = old.contains(active);
        old.replaceWith(document.adoptNode(found));
        if (had && link !== null) {
          const same = found.querySelector(`a[href="${CSS.escape(link)}"]`);
          if (same !== null) same.focus({ preventScroll: true });
        }
      }
    }
    const now = lit;
    lit = null;
    light(now);
    root.dataset.renewed = String(Number(root.dataset.renewed ?? "0") + 1);
  }
  function plain(element) {
    const copy = element.cloneNode(true);
    for (const one of copy.querySelectorAll(".lit")) {
      one.classList.remove("lit");
      if (one.getAttribute("class") === "") one.removeAttribute("class");
    }
    return copy.innerHTML;
  }

  // Cards of many nodes: those near the window are in the page, the others are empty places of the right height.
  const chunks = document.querySelector(".chunks");
  const NEAR = "800px";
  const loading = new Map();
  async function fill(chunk) {
    if (loading.has(chunk)) return;
    loading.set(chunk, true);
    try {
      const answer = await fetch(chunk.dataset.chunk);
      if (!answer.ok || chunk.dataset.near !== "yes") return;
      const list = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("ol");
      if (list !== null && chunk.dataset.near === "yes") {
        chunk.replaceChildren(document.adoptNode(list));
        chunk.style.height = "";
      }
    } catch {
      say("not connected");
    } finally {
      loading.delete(chunk);
    }
  }
  if (chunks !== null) {
    document.querySelector(".pages")?.remove();
    const first = chunks.querySelector(".card");
    const columns = () => getComputedStyle(chunks.querySelector(".cards")).gridTemplateColumns.split(" ").length;
    const height = () => (first === null ? 120 : first.getBoundingClientRect().height + 8);
    const guess = (chunk) => `${Math.ceil(Number(chunk.dataset.count ?? "60") / columns()) * height()}px`;
    const places = [...chunks.querySelectorAll(".chunk")];
    for (const chunk of places) if (chunk.childElementCount === 0) chunk.style.height = guess(chunk);
    const watcher = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.dataset.near = isIntersecting ? "yes" : "no";
        if (isIntersecting && target.childElementCount === 0) fill(target);
        if (!isIntersecting && target.childElementCount > 0 && !target.contains(document.activeElement)) {
          target.style.height = `${target.getBoundingClientRect().height}px`;
          target.replaceChildren();
        }
      }
    }, { rootMargin: NEAR });
    for (const chunk of places) watcher.observe(chunk);
  }
  function renewChunks() {
    if (chunks === null) return;
    for (const chunk of chunks.querySelectorAll('.chunk[data-near="yes"]')) {
      if (!chunk.contains(document.activeElement)) fill(chunk);
    }
  }

  const status = document.getElementById("connection");
  function say(text) { if (status !== null && status.textContent !== text) status.textContent = text; }
  const events = document.body.dataset.events;
  if (events !== undefined) {
    const source = new EventSource(events);
    let first = true;
    source.onopen = () => { say("live"); if (!first) renew(); first = false; };
    source.onerror = () => say("not connected");
    const KINDS = ["admitted", "kept", "rejected", "waiting", "released", "announced", "stopped", "gone", "missed", "changed"];
    for (const kind of KINDS) source.addEventListener(kind, () => { renew(); renewChunks(); });
  }
})();
