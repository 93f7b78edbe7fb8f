"use strict";
(() => {
  const sections = [...document.querySelectorAll("main > section")];
  const links = [...document.querySelectorAll("nav a")];
  const steps = sections.map((section) => [...section.querySelectorAll(".step")]);
  const at = steps.map(() => 0); // the step of each section
  let here = 0;

  function show(section, step, quiet) {
    here = Math.max(0, Math.min(section, sections.length - 1));
    at[here] = Math.max(0, Math.min(step, Math.max(steps[here].length - 1, 0)));
    sections.forEach((each, i) => each.classList.toggle("here", i === here));
    links.forEach((link, i) => (i === here ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    steps[here].forEach((each, i) => each.classList.toggle("here", i === at[here]));
    const bar = sections[here].querySelector(".stepbar");
    const title = steps[here].length ? steps[here][at[here]].dataset.title : "";
    if (bar) {
      bar.querySelector("input").value = at[here] + 1;
      bar.querySelector("output").textContent = `${at[here] + 1} of ${steps[here].length}`;
    }
    wide();
    if (quiet) return;
    const where = steps[here].length ? `${sections[here].id}/${at[here] + 1}` : sections[here].id;
    history.replaceState(null, "", `#${where}`);
    document.getElementById("said").textContent = `${sections[here].querySelector("h2").textContent}. ${title}`;
  }

  // figures that are wider than the window say that they scroll, and can be reached by keyboard
  function wide() {
    document.querySelectorAll(".scroll").forEach((each) => {
      const cut = each.scrollWidth > each.clientWidth + 1;
      each.parentElement.classList.toggle("wide", cut);
      cut ? (each.tabIndex = 0) : each.removeAttribute("tabindex");
    });
  }

  function move(by) {
    const next = at[here] + by;
    if (next >= 0 && next < steps[here].length) show(here, next);
    else if (by > 0 && here + 1 < sections.length) go(here + 1, 0);
    else if (by < 0 && here > 0) go(here - 1, steps[here - 1].length - 1);
  }

  function go(section, step) {
    show(section, step);
    if (document.body.classList.contains("stepping")) window.scrollTo(0, 0);
    else sections[here].scrollIntoView();
  }

  function read() {
    const [key, step] = decodeURIComponent(location.hash.slice(1)).split("/");
    const found = sections.findIndex((section) => section.id === key);
    if (found >= 0) go(found, step ? Number(step) - 1 : at[found]);
  }

  function all() {
    const stepping = document.body.classList.toggle("stepping");
    document.getElementById("all").setAttribute("aria-pressed", String(!stepping));
  }

  function theme() {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  }

  const keys = {
    ArrowRight: () => move(1), ArrowLeft: () => move(-1), PageDown: () => go(here + 1, 0), PageUp: () => go(here - 1, 0),
    Home: () => go(0, 0), End: () => go(sections.length - 1, 0), a: all, t: theme,
  };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.target.matches("input")) return;
    if (keys[event.key]) {
      event.preventDefault();
      keys[event.key]();
    }
  });
  links.forEach((link, i) => link.addEventListener("click", (event) => { event.preventDefault(); go(i, at[i]); }));
  sections.forEach((section, i) => {
    section.querySelector(".back")?.addEventListener("click", () => move(-1));
    section.querySelector(".on")?.addEventListener("click", () => move(1));
    section.querySelector(".stepbar input")?.addEventListener("input", (event) => show(i, event.target.value - 1));
    section.addEventListener("pointerover", (event) => {
      const key = event.target.dataset ? event.target.dataset.key : undefined;
      section.querySelectorAll("[data-key].on").forEach((each) => each.classList.remove("on"));
      if (key) section.querySelectorAll(`[data-key="${CSS.escape(key)}"]`).forEach((each) => each.classList.add("on"));
    });
  });
  document.getElementById("all").addEventListener("click", all);
  document.getElementById("theme").addEventListener("click", theme);
  window.addEventListener("hashchange", read);
  window.addEventListener("resize", wide);
  document.body.classList.add("stepping");
  sections.forEach((_, i) => show(i, 0, true));
  show(0, 0, true);
  read();
  window.addEventListener("load", () => document.body.classList.contains("stepping") && window.scrollTo(0, 0)); // the browser has gone to the address's section
})();
