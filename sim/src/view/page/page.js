// Everything around the chart: the banner, the panel, the list, the filters, the keys.

(() => {
  const $ = (id) => document.getElementById(id);
  const data = JSON.parse($("timeline-data").textContent);
  const { steps, unit } = data, count = steps.length, last = Math.max(0, count - 1);
  const chart = new Chart(data, $("head"), $("tracks"), $("scroll"));
  const element = (tag, cls, text) => {
    const made = document.createElement(tag);
    if (cls) made.className = cls;
    if (text !== undefined) made.textContent = text;
    return made;
  };

  // Drawing, at most once per frame.
  let due = false;
  const draw = () => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; chart.draw(); });
  };

  // The header.
  for (const named of document.querySelectorAll("[data-unit]")) named.textContent = named.textContent.replace("action", unit);
  $("title").textContent = data.title;
  $("about").textContent = data.about;
  const needed = data.explained?.slice?.length;
  if (needed) data.facts.push([`needed ${unit}s`, needed < count ? `${needed} of ${count}` : "all"]);
  for (const [name, value] of data.facts) {
    const pair = element("div");
    pair.append(element("dt", "", name), element("dd", "", value));
    $("facts").append(pair);
  }
  if (data.violation) {
    const { invariant, sentence, found, step } = data.violation;
    $("violation").hidden = false;
    const where = steps[step] ? ` by ${unit} ${steps[step].number}` : "";
    $("violation-where").textContent = `Invariant ${invariant} violated${where}:`;
    $("violation-sentence").textContent = sentence;
    $("violation-found").textContent = found;
    $("violation-go").onclick = () => select(step);
  }

  // A step as text, for the panel and the card.
  function describe(n, lease) {
    const step = steps[n], all = document.createDocumentFragment();
    if (!step) return all;
    all.append(element("div", "when", `${unit} ${step.number} · ${span(step.at_ms)} · ${data.tracks[step.track].name}`));
    all.append(element("h2", "", step.label));
    if (data.violation?.step === n) all.append(element("span", "badge bad", `violates invariant ${data.violation.invariant}`));
    if (data.explained?.inevitable === n + 1) all.append(element("span", "badge inevitable", chart.inevitability()));
    if (chart.slice.has(n)) all.append(element("span", "badge slice", "needed for the violation"));
    const list = (title, lines, cls) => {
      if (!lines?.length) return;
      all.append(element("h3", "", title));
      const items = element("ul");
      for (const line of lines) {
        const item = element("li", cls), at = line.lastIndexOf(" → ");
        if (cls && at > 0) {
          const colon = line.indexOf(": ") + 2;
          item.append(line.slice(0, colon), element("span", "was", line.slice(colon, at)), " → ", element("span", "is", line.slice(at + 3)));
        } else item.textContent = line;
        items.append(item);
      }
      all.append(items);
    };
    if (lease) list("Lease", [`${lease.message} of ${lease.topic} for ${lease.group}, attempt ${lease.attempt}, token ${lease.token}, until ${span(lease.until_ms)}: ${ENDS[lease.end]}`]);
    list("Changes", step.diff ?? (n >= 0 ? ["none"] : []), "change");
    list("Replies and deliveries", step.outputs);
    all.append(element("h3", "", `The ${unit}`));
    all.append(element("pre", "", step.detail));
    return all;
  }

  // Selection.
  let hash = 0;
  function select(n, quiet) {
    if (!count) return;
    chart.chosen = Math.max(0, Math.min(last, n));
    chart.show(chart.chosen);
    const step = steps[chart.chosen];
    $("detail").replaceChildren(describe(chart.chosen));
    $("detail").scrollTop = 0;
    $("where").textContent = `${unit} ${step.number} of ${steps[last].number}`;
    if (!quiet) $("announcement").textContent = `${unit} ${step.number}: ${step.label}`;
    $("tracks").setAttribute("aria-label", `Timeline of ${count} ${unit}s; ${unit} ${step.number} is selected: ${step.label}. Arrow keys navigate.`);
    reveal();
    clearTimeout(hash);
    hash = setTimeout(() => { try { history.replaceState(null, "", `#${unit}-${step.number}`); } catch { location.hash = `${unit}-${step.number}`; } }, 120);
    draw();
  }
  function jump(way) {
    for (let n = chart.chosen + way; n >= 0 && n <= last; n += way) {
      if (SEVERE.includes(steps[n].glyph) || data.violation?.step === n) return select(n);
    }
  }
  function matching(way) {
    for (let n = chart.chosen + way; n >= 0 && n <= last; n += way) if (!chart.passes || chart.passes[n]) return select(n);
  }

  // The list; only the visible rows exist.
  const ROW = 44, list = $("list"), rows = $("rows");
  rows.style.height = `${count * ROW}px`;
  const made = new Map();
  function make(n) {
    const step = steps[n], row = element("div", "row"), texts = element("div");
    row.id = `row-${n}`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-posinset", n + 1);
    row.setAttribute("aria-setsize", count);
    row.classList.toggle("violating", data.violation?.step === n);
    row.classList.toggle("cause", chart.slice.has(n));
    row.style.top = `${n * ROW}px`;
    row.onclick = () => select(n);
    texts.append(element("div", "label", step.label), element("div", "who", `${step.number} · ${span(step.at_ms)} · ${data.tracks[step.track].name}`));
    texts.firstChild.title = step.label;
    row.append(symbol(step.glyph, 22), texts);
    rows.append(row);
    return row;
  }
  function fill() {
    const from = Math.max(0, Math.floor(list.scrollTop / ROW) - 4), to = Math.min(count, Math.ceil((list.scrollTop + list.clientHeight) / ROW) + 4);
    for (const [n, row] of made) if (n < from || n >= to) { row.remove(); made.delete(n); }
    for (let n = from; n < to; n++) {
      if (!made.has(n)) made.set(n, make(n));
      const row = made.get(n);
      row.setAttribute("aria-selected", n === chart.chosen);
      row.classList.toggle("chosen", n === chart.chosen);
      row.classList.toggle("dim", !chart.lit(n));
    }
    list.setAttribute("aria-activedescendant", `row-${chart.chosen}`);
  }
  function reveal() {
    const top = chart.chosen * ROW, seen = list.clientHeight;
    if (top < list.scrollTop) list.scrollTop = top;
    else if (top + ROW > list.scrollTop + seen) list.scrollTop = top + ROW - seen;
    fill();
  }
  list.addEventListener("scroll", () => requestAnimationFrame(fill), { passive: true });

  function symbol(kind, size) {
    const canvas = element("canvas"), ratio = window.devicePixelRatio || 1, c = canvas.getContext("2d");
    canvas.width = canvas.height = size * ratio;
    canvas.style.width = canvas.style.height = `${size}px`;
    c.scale(ratio, ratio);
    if (!chart.color) chart.colors();
    drawGlyph(c, kind, size / 2, size / 2, size * .36, chart.color[GLYPHS[kind][1]], chart.color.face);
    return canvas;
  }
  function legend() {
    const symbols = Object.keys(GLYPHS).filter((kind) => steps.some(({ glyph }) => glyph === kind));
    const ends = Object.keys(ENDS).filter((end) => data.leases.some((lease) => lease.end === end));
    $("legend").replaceChildren(
      ...symbols.map((kind) => { const entry = element("span"); entry.append(symbol(kind, 17), GLYPHS[kind][0]); return entry; }),
      ...(ends.length ? [element("span", "", "leases:")] : []),
      ...ends.map((end) => {
        const entry = element("span", `lease ${end}`, ENDS[end]);
        Object.assign(entry.style, { background: chart.color[end], color: chart.color[`${end}-ink`], borderColor: chart.color[`${end}-ink`] });
        return entry;
      }),
    );
  }

  // The filters: what does not match is dimmed.
  const names = (field) => [...new Set(steps.flatMap((step) => step[field] ?? []))].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  for (const [id, field] of [["topic", "topics"], ["group", "groups"]]) for (const name of names(field)) $(id).append(new Option(name, name));
  for (const name of names("messages").slice(0, 2000)) $("messages").append(new Option(name));
  function filter() {
    const topic = $("topic").value, group = $("group").value, message = $("message").value.trim();
    const has = (names, name) => !name || (names ?? []).includes(name);
    if (!topic && !group && !message) chart.passes = null;
    else {
      chart.passes = steps.map((step) => has(step.topics, topic) && has(step.groups, group) && has(step.messages, message));
      chart.passes.lease = (lease) => (!topic || lease.topic === topic) && (!group || lease.group === group) && (!message || lease.message === message);
    }
    $("clear").hidden = !chart.passes;
    $("matches").textContent = chart.passes ? `${chart.passes.filter(Boolean).length} of ${count} ${unit}s` : "";
    fill();
    draw();
  }
  for (const id of ["topic", "group", "message"]) $(id).addEventListener("input", filter);
  $("clear").onclick = () => { for (const id of ["topic", "group", "message"]) $(id).value = ""; filter(); };

  // Axis, zoom, theme, help.
  function axis(byTime) {
    chart.byTime = byTime;
    const middle = chart.unit(chart.full / 2), near = Math.min(last, chart.firstAt(middle));
    chart.place();
    if (chart.scale > chart.least() * 1.001 && count) { chart.left = chart.at[near] - chart.width / chart.scale / 2; chart.bound(); chart.show(chart.chosen); }
    $("by-step").setAttribute("aria-pressed", !byTime);
    $("by-time").setAttribute("aria-pressed", byTime);
    draw();
  }
  const center = () => { const x = count ? chart.x(chart.at[chart.chosen]) : 0; return x > GUTTER && x < chart.full ? x : GUTTER + chart.width / 2; };
  const zoom = (by, around = center()) => { chart.setScale(chart.scale * by, around); draw(); };
  const fit = () => { chart.fit(); draw(); };
  const themes = ["auto", "light", "dark"], system = matchMedia("(prefers-color-scheme: dark)");
  let theme = "auto";
  try { theme = themes.find((name) => name === localStorage.getItem("driftq-theme")) ?? "auto"; } catch { /* a file URL may have no storage */ }
  function paint() {
    document.documentElement.toggleAttribute("data-dark", theme === "dark" || theme === "auto" && system.matches);
    $("theme").textContent = `theme: ${theme}`;
    chart.colors();
    legend();
    made.clear();
    rows.replaceChildren();
    fill();
    draw();
  }
  function setTheme(name) {
    theme = name;
    try { localStorage.setItem("driftq-theme", theme); } catch { /* as above */ }
    paint();
  }
  system.addEventListener("change", paint);
  const help = (open) => { $("keys").hidden = !open; $("help").setAttribute("aria-expanded", open); };
  $("prev").onclick = () => select(chart.chosen - 1);
  $("next").onclick = () => select(chart.chosen + 1);
  $("by-step").onclick = () => axis(false);
  $("by-time").onclick = () => axis(true);
  $("in").onclick = () => zoom(1.6);
  $("out").onclick = () => zoom(1 / 1.6);
  $("fit").onclick = fit;
  $("theme").onclick = () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]);
  $("help").onclick = () => help($("keys").hidden);

  // The card: the step under the pointer, or the selected one while the chart has the focus.
  const card = $("card");
  function showCard(n, lease, x, y) {
    if (n < 0) { card.hidden = true; return; }
    card.replaceChildren(describe(n, lease));
    card.hidden = false;
    const { width, height } = card.getBoundingClientRect();
    const left = x + 18 + width > innerWidth ? x - width - 14 : x + 18;
    card.style.left = `${Math.max(6, left)}px`;
    card.style.top = `${Math.max(6, Math.min(y + 14, innerHeight - height - 8))}px`;
  }
  function cardAtSelected() {
    if (document.activeElement !== $("tracks") || !$("tracks").matches(":focus-visible")) return;
    const box = $("tracks").getBoundingClientRect();
    showCard(chart.chosen, null, box.left + chart.x(chart.at[chart.chosen]) + 14, box.top + chart.symbolY(steps[chart.chosen].track) + 40);
  }
  $("tracks").addEventListener("blur", () => { card.hidden = true; });

  const keys = {
    ArrowLeft: (event) => event.shiftKey ? jump(-1) : select(chart.chosen - 1),
    ArrowRight: (event) => event.shiftKey ? jump(1) : select(chart.chosen + 1),
    Home: () => select(0), End: () => select(last),
    "+": () => zoom(1.6), "=": () => zoom(1.6), "-": () => zoom(1 / 1.6), "_": () => zoom(1 / 1.6), 0: fit,
    f: () => $("message").focus(), t: () => axis(!chart.byTime), n: () => matching(1), p: () => matching(-1),
    "?": () => help($("keys").hidden),
    Escape: () => { if (!$("keys").hidden) help(false); else if (!card.hidden) card.hidden = true; else $("clear").onclick(); },
  };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input, select, textarea");
    if (typing) { if (event.key === "Escape") { typing.blur(); } return; }
    if (event.ctrlKey || event.metaKey || event.altKey || !Object.hasOwn(keys, event.key)) return;
    event.preventDefault();
    keys[event.key](event);
    if (event.key !== "Escape") cardAtSelected();
  });

  // The pointer: hover, click, drag, wheel, pinch.
  const pointers = new Map();
  let pressed = null;
  for (const canvas of [$("head"), $("tracks")]) {
    const inTracks = canvas === $("tracks");
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture?.(event.pointerId);
      pointers.set(event.pointerId, event.offsetX);
      pressed = { x: event.clientX, left: chart.left, moved: false };
      card.hidden = true;
    });
    canvas.addEventListener("pointermove", (event) => {
      if (pointers.has(event.pointerId) && pointers.size === 2) {
        const before = [...pointers.values()];
        pointers.set(event.pointerId, event.offsetX);
        const after = [...pointers.values()], wide = ([a, b]) => Math.max(8, Math.abs(a - b));
        return zoom(wide(after) / wide(before), (after[0] + after[1]) / 2);
      }
      if (pressed && pointers.size) {
        const by = event.clientX - pressed.x;
        if (Math.abs(by) > 4) pressed.moved = true;
        if (pressed.moved) { document.body.classList.add("dragging"); chart.left = pressed.left - by / chart.scale; chart.bound(); draw(); }
        return;
      }
      const { step, lease } = chart.find(event.offsetX, event.offsetY, inTracks);
      if (chart.hover !== step) { chart.hover = step; draw(); }
      showCard(step, lease, event.clientX, event.clientY);
    });
    const up = (event) => {
      pointers.delete(event.pointerId);
      document.body.classList.remove("dragging");
      if (pressed && !pressed.moved && event.type === "pointerup") {
        const { step } = chart.find(event.offsetX, event.offsetY, inTracks);
        if (step >= 0) select(step);
      }
      pressed = null;
    };
    canvas.addEventListener("pointerup", up);
    canvas.addEventListener("pointercancel", up);
    canvas.addEventListener("pointerleave", () => { card.hidden = true; if (chart.hover >= 0) { chart.hover = -1; draw(); } });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        chart.left += (event.deltaX || event.deltaY) / chart.scale;
        chart.bound();
        return draw();
      }
      zoom(Math.exp(-event.deltaY * (event.ctrlKey ? .01 : .0016)), event.offsetX);
    }, { passive: false });
  }

  // Drawing the head can change the space for the tracks.
  const resized = () => { for (let pass = 0; pass < 2; pass++) { chart.resize(); chart.draw(); } fill(); };
  new ResizeObserver(resized).observe($("scroll"));
  addEventListener("hashchange", () => { const n = named(); if (n >= 0) select(n); });
  /// The step named in the URL.
  function named() {
    const number = Number(/^#(?:[a-z]+-)?(\d+)$/.exec(location.hash)?.[1] ?? NaN);
    return steps.findIndex((step) => step.number === number);
  }
  resized();
  paint();
  const first = named();
  select(first >= 0 ? first : data.violation?.step ?? 0, true);

  // For tests and the console.
  window.driftq = {
    data, select, fit,
    selected: () => chart.chosen,
    zoom: () => chart.scale / chart.least(),
    view: () => ({ left: chart.left, scale: chart.scale, inView: chart.inView, byTime: chart.byTime, labelled: chart.labelled }),
    theme: () => theme,
    dimmed: () => chart.passes ? chart.passes.filter((passes) => !passes).length : 0,
    place: (n) => ({ x: chart.x(chart.at[n]), y: chart.symbolY(steps[n].track) }),
    draws: () => chart.drawn,
    redraw: () => chart.draw(),
  };
})();
