// The menu, the colours, and the search. The pages are complete without it.
"use strict";
(() => {
  const page = document.documentElement, root = page.dataset.root;
  const by = (id) => document.getElementById(id);
  page.classList.add("js");

  // Colours: the system's, until the reader chooses. A browser that keeps nothing for a file forgets the choice.
  const kept = { get() { try { return localStorage.getItem("theme"); } catch { return null; } }, set(v) { try { localStorage.setItem("theme", v); } catch { /* forgotten */ } } };
  const dark = () => (page.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = by("theme");
  const named = () => { button.textContent = dark() ? "Light" : "Dark"; };
  if (kept.get()) page.dataset.theme = kept.get();
  button.addEventListener("click", () => { page.dataset.theme = dark() ? "light" : "dark"; kept.set(page.dataset.theme); named(); });
  named();

  const nav = by("nav"), menu = by("menu");
  menu.addEventListener("click", () => menu.setAttribute("aria-expanded", String(nav.classList.toggle("open"))));
  const here = nav.querySelector("[aria-current]");
  if (here) nav.scrollTop = here.offsetTop - nav.clientHeight / 2;

  // A button on each block of code. It copies by selection where the page is not from a secure place.
  for (const pre of document.querySelectorAll("main pre")) {
    const frame = document.createElement("div"), copy = document.createElement("button");
    frame.className = "code";
    copy.type = "button";
    copy.textContent = "Copy";
    copy.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(pre.textContent);
        copy.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(pre);
        copy.textContent = "Selected";
      }
    });
    pre.replaceWith(frame);
    frame.append(pre, copy);
  }

  // The search. Its data are a script, which is read when the reader first turns to it.
  const input = by("search"), list = by("found"), count = by("count"), most = 20;
  let loading = null, chosen = -1;
  const load = () => loading ??= new Promise((resolve, reject) => {
    const s = document.createElement("script");
    s.src = root + "words.js";
    s.onload = () => {
      for (const r of window.words.sections) r.push(r[2].toLowerCase(), r[3].toLowerCase(), window.words.pages[r[0]][1].toLowerCase());
      resolve(window.words);
    };
    s.onerror = reject;
    document.head.append(s);
  });

  // weigh says how well a text has a word: at the beginning of a word more than within.
  const weigh = (text, word) => {
    const at = text.indexOf(word);
    if (at < 0) return 0;
    return at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]) ? 2 : text.includes(" " + word) ? 2 : 1;
  };
  // find returns the sections that have every word, best first.
  const find = (data, question) => {
    const words = question.toLowerCase().split(/\s+/).filter(Boolean), hits = [];
    for (const r of words.length ? data.sections : []) {
      let score = 0;
      for (const w of words) {
        const n = 8 * weigh(r[4], w) + 6 * weigh(r[6], w) + 2 * weigh(r[5], w);
        if (!n) { score = 0; break; }
        score += n;
      }
      if (score && words.length > 1 && r[5].includes(words.join(" "))) score += 12;
      if (score) hits.push([score * data.pages[r[0]][2], r]);
    }
    return { words, hits: hits.sort((a, b) => b[0] - a[0]).map((h) => h[1]) };
  };

  // excerpt returns the words around the first one that was asked for, with each marked.
  const excerpt = (r, words) => {
    const low = r[5], first = words.map((w) => low.indexOf(w)).filter((n) => n >= 0);
    const from = first.length ? Math.max(0, Math.min(...first) - 60) : 0;
    const text = (from ? "…" : "") + r[3].slice(from, from + 200);
    const out = document.createElement("small");
    const pattern = new RegExp("(" + words.map((w) => w.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|") + ")", "gi");
    text.split(pattern).forEach((part, i) => {
      if (i % 2 === 0) { out.append(part); return; }
      const m = document.createElement("mark");
      m.textContent = part;
      out.append(m);
    });
    return out;
  };

  const choose = (n) => {
    const all = list.querySelectorAll("[role=option]");
    if (chosen >= 0 && all[chosen]) all[chosen].setAttribute("aria-selected", "false");
    chosen = all.length ? (n + all.length) % all.length : -1;
    if (chosen < 0) { input.removeAttribute("aria-activedescendant"); return; }
    all[chosen].setAttribute("aria-selected", "true");
    all[chosen].scrollIntoView({ block: "nearest" });
    input.setAttribute("aria-activedescendant", all[chosen].id);
  };
  const close = () => { list.hidden = true; input.setAttribute("aria-expanded", "false"); choose(-1); chosen = -1; };

  const show = (data) => {
    const { words, hits } = find(data, input.value);
    list.replaceChildren(...hits.slice(0, most).map((r, i) => {
      const li = document.createElement("li"), a = document.createElement("a"), b = document.createElement("b");
      const [url, title] = data.pages[r[0]];
      li.id = "found-" + i;
      li.setAttribute("role", "option");
      li.setAttribute("aria-selected", "false");
      a.href = root + url + (r[1] ? "#" + r[1] : "");
      a.tabIndex = -1;
      b.textContent = r[2] && r[2] !== title ? title + " › " + r[2] : title;
      a.append(b, excerpt(r, words));
      a.addEventListener("click", close);
      li.append(a);
      return li;
    }));
    if (!hits.length && words.length) {
      const li = document.createElement("li"), none = document.createElement("p");
      li.setAttribute("role", "presentation");
      none.textContent = "Nothing has all these words.";
      li.append(none);
      list.append(li);
    }
    count.textContent = words.length ? hits.length + " found" : "";
    list.hidden = !words.length;
    input.setAttribute("aria-expanded", String(!!words.length));
    chosen = -1;
    if (hits.length) choose(0);
  };
  const search = () => load().then(show, () => { count.textContent = "The search's data cannot be read."; });

  input.addEventListener("focus", load);
  input.addEventListener("input", search);
  input.addEventListener("keydown", (e) => {
    if (e.key === "ArrowDown") choose(chosen + 1);
    else if (e.key === "ArrowUp") choose(chosen - 1);
    else if (e.key === "Enter" && chosen >= 0) list.querySelectorAll("[role=option] a")[chosen].click();
    else if (e.key === "Escape") { close(); input.blur(); }
    else return;
    e.preventDefault();
  });
  document.addEventListener("click", (e) => { if (!e.target.closest(".search")) close(); });
  document.addEventListener("keydown", (e) => {
    if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName)) return;
    e.preventDefault();
    input.focus();
    input.select();
  });
})();
