// Injected into a copy of the page by the test. Dispatches real events and writes the results into the document.

async function selftest(name) {
  const seen = [], $ = (id) => document.getElementById(id), page = window.driftq;
  const check = (what, good, saw) => seen.push({ what, good: Boolean(good), seen: saw === undefined ? null : saw });
  const same = (what, saw, wanted) => check(what, JSON.stringify(saw) === JSON.stringify(wanted), saw);
  const key = (key, more = {}, target = document) => target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true, ...more }));
  const tracks = $("tracks");
  const point = (type, x, y, Kind = PointerEvent, more = {}) => {
    const box = tracks.getBoundingClientRect();
    tracks.dispatchEvent(new Kind(type, { clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true, pointerId: 1, ...more }));
  };
  // By the browser's virtual clock, which costs no time: long enough for a machine that is busy.
  const wait = (ms) => new Promise((done) => setTimeout(done, 4 * ms));
  const colors = () => {
    const { data } = tracks.getContext("2d").getImageData(0, 0, tracks.width, tracks.height), all = new Set();
    for (let n = 0; n < data.length; n += 4) all.add(data[n] << 16 | data[n + 1] << 8 | data[n + 2]);
    return all.size;
  };
  const write = () => {
    const out = document.createElement("pre");
    out.id = "seen";
    out.textContent = JSON.stringify(seen);
    document.body.append(out);
  };
  const errors = [];
  // Browsers report a resize that causes another one and continue in the next frame.
  addEventListener("error", (event) => { if (!event.message.startsWith("ResizeObserver loop")) errors.push(event.message); });

  async function short() {
    await wait(200);
    same("the violation is selected first", page.selected(), 7);
    check("the violation is shown", !$("violation").hidden && $("violation").textContent.includes("Invariant 6 violated by action 8"), $("violation").textContent);
    check("the panel shows the action", $("detail").textContent.includes("w0 nacks m0") && $("detail").textContent.includes('"nack"'), $("detail").textContent);
    check("something is drawn", colors() > 20, colors());
    check("the number of needed actions is shown", $("facts").textContent.includes("needed actions"), $("facts").textContent);
    check("and when it was inevitable", $("detail").textContent.includes("not inevitable before"), $("detail").textContent);

    key("ArrowLeft");
    same("left selects the previous", page.selected(), 6);
    check("the panel follows", $("detail").textContent.includes("lease of m0 ends; leased again to w0") && $("detail").textContent.includes("in flight at w0 until 4.0 s"), $("detail").textContent);
    same("so does the counter", $("where").textContent, "action 7 of 8");
    same("so does the list", document.querySelector(".row.chosen")?.id, "row-6");
    check("so does the accessible name", tracks.getAttribute("aria-label").includes("action 7 is selected"), tracks.getAttribute("aria-label"));
    await wait(300);
    same("the URL names the action", location.hash, "#action-7");
    key("ArrowRight");
    same("right selects the next", page.selected(), 7);
    key("ArrowRight");
    same("and stops at the end", page.selected(), 7);
    key("Home");
    same("home selects the first", page.selected(), 0);
    key("ArrowRight", { shiftKey: true });
    same("shift goes to the next severe one", page.selected(), 7);
    key("Home"); key("End");
    same("end selects the last", page.selected(), 7);
    location.hash = "#action-3";
    await wait(50);
    same("a URL with an action selects it", page.selected(), 2);

    key("+"); key("+");
    const zoomed = page.zoom();
    check("plus zooms in", zoomed > 1.4, zoomed);
    await wait(50);
    const left = page.view().left;
    point("pointerdown", 600, 40); point("pointermove", 500, 40); point("pointerup", 500, 40);
    check("dragging pans", page.view().left > left, [left, page.view().left]);
    same("and does not select", page.selected(), 2);
    key("-");
    check("minus zooms out", page.zoom() < zoomed, page.zoom());
    key("0");
    same("0 shows everything", Math.round(page.zoom() * 1000), 1000);
    await wait(50);
    const before = page.place(4).x;
    point("wheel", before, 40, WheelEvent, { deltaY: -400 });
    await wait(50);
    check("the wheel zooms", page.zoom() > 1.2, page.zoom());
    check("around the pointer", Math.abs(page.place(4).x - before) < 1, [before, page.place(4).x]);
    key("0");
    await wait(50);

    const at = page.place(2);
    point("pointerdown", at.x, at.y); point("pointerup", at.x, at.y);
    same("a click selects", page.selected(), 2);
    const there = page.place(6);
    point("pointermove", there.x, there.y);
    const card = $("card");
    check("hovering shows a card with request, change and label", !card.hidden && ['"wake"', "in flight at w0 until 4.0 s", "leased again"].every((text) => card.textContent.includes(text)), card.textContent);
    const box = card.getBoundingClientRect();
    check("within the window", box.left >= 0 && box.top >= 0 && box.right <= innerWidth && box.bottom <= innerHeight, [box.left, box.top, box.right, box.bottom]);
    point("pointerleave", 0, 0);
    check("and leaving hides it", card.hidden);
    document.querySelector("#row-4").click();
    same("a row selects", page.selected(), 4);

    same("nothing is dimmed at first", page.dimmed(), 0);
    key("f");
    same("f focuses the filter", document.activeElement.id, "message");
    key("t", {}, $("message"));
    same("keys typed there are no commands", page.view().byTime, false);
    $("message").value = "m0";
    $("message").dispatchEvent(new Event("input", { bubbles: true }));
    same("a filter dims what does not match", page.dimmed(), page.data.steps.filter(({ messages }) => !messages?.includes("m0")).length);
    check("in the list as well", document.querySelector("#row-0").classList.contains("dim") && !document.querySelector("#row-2").classList.contains("dim"));
    same("and shows the number of matches", $("matches").textContent, `${8 - page.dimmed()} of 8 actions`);
    $("message").blur();
    key("Home"); key("n");
    same("n selects the next match", page.selected(), 2);
    key("Escape");
    same("escape clears it", [page.dimmed(), $("message").value], [0, ""]);

    key("t");
    same("t switches to time", [page.view().byTime, $("by-time").getAttribute("aria-pressed")], [true, "true"]);
    await wait(50);
    const gap = (n) => page.place(n + 1).x - page.place(n).x;
    check("two seconds are wider than none", gap(4) > 4 * gap(3), [gap(4), gap(3)]);
    key("t");
    same("and back", page.view().byTime, false);

    const color = () => getComputedStyle(document.body).backgroundColor;
    $("theme").click();
    const light = color();
    same("a theme can be chosen", page.theme(), "light");
    $("theme").click();
    check("and another", page.theme() === "dark" && color() !== light, [light, color()]);
    await wait(50);
    const [red, green, blue] = tracks.getContext("2d").getImageData(tracks.width - 3, 3, 1, 1).data;
    check("the chart follows", red + green + blue < 200, [red, green, blue]);
    key("?");
    check("? shows the help", !$("keys").hidden);
    key("Escape");
    check("escape hides it", $("keys").hidden);
    tracks.focus();
    key("ArrowRight", {}, tracks);
    await wait(60);
    check("with the focus on the chart, the card follows the keys", !tracks.matches(":focus-visible") || !card.hidden && card.textContent.includes(page.data.steps[page.selected()].label), card.textContent);
    check("every button has a name", [...document.querySelectorAll("button")].every((button) => (button.getAttribute("aria-label") || button.textContent).trim()));
    same("nothing was fetched", performance.getEntriesByType("resource").map(({ name }) => name), []);
  }

  // By the real clock: durations are reported, and only counts are checked.
  function long() {
    const timed = (what, times, act) => {
      let most = 0;
      const begun = performance.now();
      for (let n = 0; n < times; n++) { const one = performance.now(); act(n); page.redraw(); most = Math.max(most, performance.now() - one); }
      check(`figure: ${what}, ms each and at most`, true, [(performance.now() - begun) / times, most].map((ms) => Number(ms.toFixed(2))));
    };
    same("all actions are there", page.data.steps.length, 5000);
    timed("selecting with everything in view", 60, () => key("ArrowRight"));
    same("sixty actions on", page.selected(), 60);
    timed("zooming in", 20, () => key("+"));
    check("single actions are labelled", page.view().labelled, page.view());
    check("and only visible ones are drawn", page.view().inView[1] - page.view().inView[0] < 60, page.view().inView);
    timed("selecting zoomed in", 60, () => key("ArrowRight"));
    check("the selection stays in view", page.place(120).x > 0 && page.place(120).x < innerWidth, page.place(120));
    timed("by action and by time", 10, () => key("t"));
    key("0");
    timed("filtering", 10, (n) => { $("message").value = `m${n}`; $("message").dispatchEvent(new Event("input")); });
    key("Escape");
    timed("hovering, everything in view", 40, (n) => point("pointermove", 200 + n * 12, 60));
    key("End");
    same("the end", page.selected(), 4999);
    key("ArrowLeft", { shiftKey: true });
    check("shift goes to the next severe one", ["crash", "torn", "io_fault", "clock_jump", "dead", "duplicate"].includes(page.data.steps[page.selected()].glyph), page.selected());
    check("the list holds only the visible rows", document.querySelectorAll(".row").length < 60, document.querySelectorAll(".row").length);
    const nodes = document.querySelectorAll("*").length - document.querySelectorAll("option").length;
    check("the page stays small", nodes < 900, nodes);
  }

  try {
    if (name === "short") await short(); else long();
  } catch (error) {
    check(`no error: ${error.stack}`, false);
  }
  same("no error was thrown", errors, []);
  write();
}
