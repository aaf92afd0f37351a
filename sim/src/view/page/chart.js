// The chart: a head with flags, curve and axis, and the tracks below it. Only the visible part is drawn.

/// Round intervals between times.
const TICKS = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 108e5, 216e5, 432e5, ...[1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 1e4].map((days) => days * 864e5)];
const GUTTER = 116, CURVE = 74, AXIS = 38, FLAG = 19, SYMBOL = 8;

class Chart {
  constructor(data, head, tracks, scroll) {
    Object.assign(this, { data, head, tracks, scroll, byTime: false, scale: 1, left: 0, chosen: 0, hover: -1, passes: null, drawn: 0 });
    this.count = data.steps.length;
    // A lease that is running at the end needs space for its label.
    this.extent = this.count + (data.leases.some(({ to }) => to === null) ? Math.min(.6, this.count * .08) : 0);
    // If every action is needed, none is highlighted.
    const needed = data.explained?.slice ?? [];
    this.slice = new Set(needed.length < this.count ? needed.map((step) => step - 1) : []);
    this.neighbours();
    this.stack();
    this.place();
  }

  /// For every step the previous and the next one in its track.
  neighbours() {
    const last = this.data.tracks.map(() => -1);
    this.before = new Int32Array(this.count).fill(-1);
    this.after = new Int32Array(this.count).fill(-1);
    this.data.steps.forEach(({ track }, n) => {
      this.before[n] = last[track];
      if (last[track] >= 0) this.after[last[track]] = n;
      last[track] = n;
    });
  }

  /// Assigns every lease a row of its track without overlaps.
  stack() {
    this.rows = this.data.tracks.map(() => 0);
    const free = this.data.tracks.map(() => []);
    this.leases = this.data.leases.map((lease) => ({ ...lease, last: lease.to ?? this.count - 1 }));
    for (const lease of this.leases) {
      const ends = free[lease.track];
      let row = ends.findIndex((end) => end <= lease.from);
      if (row < 0) row = ends.length;
      ends[row] = Math.max(lease.last, lease.from + .01);
      lease.row = row;
      this.rows[lease.track] = ends.length;
    }
  }

  /// The position of every step, in units; there are as many units as steps. By time, gaps are proportional to the time that passes, and a
  /// step without duration still has a minimum width.
  place() {
    const { steps } = this.data, whole = steps.length ? steps[steps.length - 1].at_ms : 0;
    this.at = new Float64Array(this.count);
    const share = this.byTime && whole > 0 ? .62 : 0;
    let x = 0, time = 0;
    steps.forEach(({ at_ms }, n) => {
      const gap = Math.max(0, at_ms - time) / (whole || 1) * share * this.count;
      this.at[n] = x + gap + (1 - share) / 2;
      x += gap + (1 - share);
      time = Math.max(time, at_ms);
    });
  }

  /// The position of a time: between the last step before it and the first at or after it.
  timeAt(ms) {
    const { steps } = this.data;
    let low = 0, high = this.count;
    while (low < high) { const mid = low + high >> 1; if (steps[mid].at_ms < ms) low = mid + 1; else high = mid; }
    if (low === this.count) return Infinity;
    const to = this.at[low], from = low ? this.at[low - 1] : 0, begin = low ? steps[low - 1].at_ms : 0, end = steps[low].at_ms;
    return this.byTime && end > begin ? from + (to - from) * Math.max(0, ms - begin) / (end - begin) : to;
  }

  get width() { return Math.max(60, this.full - GUTTER); }
  x(unit) { return GUTTER + (unit - this.left) * this.scale; }
  unit(x) { return (x - GUTTER) / this.scale + this.left; }
  least() { return this.width / Math.max(1, this.extent); }
  most() { return Math.max(this.least(), 260); }

  setScale(scale, around = GUTTER + this.width / 2) {
    const unit = this.unit(around);
    this.scale = Math.min(this.most(), Math.max(this.least(), scale));
    this.left = unit - (around - GUTTER) / this.scale;
    this.bound();
  }
  bound() { this.left = Math.max(0, Math.min(this.left, this.extent - this.width / this.scale)); }
  fit() { this.scale = this.least(); this.left = 0; }
  show(n) {
    const x = this.x(this.at[n]), margin = Math.min(90, this.width / 4);
    if (x < GUTTER + margin || x > this.full - margin) { this.left = this.at[n] - this.width / this.scale / 2; this.bound(); }
  }

  resize() {
    const first = !this.full, whole = !first && this.scale <= this.least() * 1.001;
    this.full = this.scroll.clientWidth;
    // On a narrow screen the chart is as high as needed.
    this.available = matchMedia("(max-width: 980px)").matches ? 0 : this.scroll.clientHeight;
    if (first || whole) this.fit(); else { this.scale = Math.min(this.most(), Math.max(this.least(), this.scale)); this.bound(); }
  }

  /// Computes all heights at this scale.
  layout() {
    const { data } = this;
    this.labelled = this.scale >= 58 || this.byTime && this.count <= 40;
    this.rowHeight = Math.max(...this.rows, 0) > 10 ? 8 : this.labelled ? 21 : 15;
    let y = 0;
    this.tops = []; this.heights = [];
    const wanted = data.tracks.map((_, n) => 2 * SYMBOL + 18 + (this.labelled ? this.scale < 96 ? 62 : 48 : 0) + (this.rows[n] ? this.rows[n] * this.rowHeight + 8 : 0));
    const sum = wanted.reduce((a, b) => a + b, 0), spare = Math.min(2.2, Math.max(1, (this.available - 2) / Math.max(1, sum)));
    for (const height of wanted) { this.tops.push(y); this.heights.push(height * spare); y += height * spare; }
    this.bottom = y;
    this.flags = (data.violation ? 1 : 0) + (data.explained?.inevitable ? 1 : 0);
    this.curveTop = this.flags * FLAG + (this.flags ? 10 : 4);
    this.axisTop = this.curveTop + (data.explained?.curve?.length ? CURVE + 10 : 0);
  }

  symbolY(track) { return this.tops[track] + SYMBOL + 9; }
  rowY(lease) {
    if (!this.labelled) return this.symbolY(lease.track) + SYMBOL + 7 + lease.row * this.rowHeight;
    return this.tops[lease.track] + this.heights[lease.track] - (this.rows[lease.track] - lease.row) * this.rowHeight - 4;
  }

  colors() {
    const style = getComputedStyle(document.documentElement);
    this.color = new Proxy({}, { get: (kept, name) => kept[name] ??= style.getPropertyValue(`--${name}`).trim() });
    this.font = getComputedStyle(document.body).fontFamily;
  }

  canvas(canvas, height) {
    const ratio = window.devicePixelRatio || 1, wide = Math.round(this.full * ratio), high = Math.round(height * ratio);
    if (canvas.width !== wide || canvas.height !== high) {
      canvas.width = wide; canvas.height = high;
      canvas.style.width = `${this.full}px`; canvas.style.height = `${height}px`;
    }
    const c = canvas.getContext("2d");
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, this.full, height);
    c.textBaseline = "middle";
    return c;
  }

  draw() {
    if (!this.color) this.colors();
    this.layout();
    const from = this.firstAt(this.unit(GUTTER - 120)), to = this.firstAt(this.unit(this.full + 120));
    this.inView = [from, to];
    this.drawHead(from, to);
    this.drawTracks(from, to);
    this.drawn += 1;
  }

  firstAt(unit) {
    let low = 0, high = this.count;
    while (low < high) { const mid = low + high >> 1; if (this.at[mid] < unit) low = mid + 1; else high = mid; }
    return low;
  }

  band(c, n, height, color) {
    const x = this.x(this.at[n]), wide = this.byTime ? Math.min(26, this.scale) : this.scale;
    c.fillStyle = color;
    c.fillRect(x - Math.max(2, wide) / 2, 0, Math.max(2, wide), height);
  }

  upright(c, n, height, color, dash) {
    const x = Math.round(this.x(this.at[n])) + .5;
    c.save();
    c.strokeStyle = color; c.lineWidth = 1.6; c.setLineDash(dash);
    c.beginPath(); c.moveTo(x, 0); c.lineTo(x, height); c.stroke();
    c.restore();
  }

  /// Whether a step passes the filter; crashes and starts always do.
  lit(n) { return !this.passes || this.passes[n] || ["crash", "boot", "clock_jump", "torn"].includes(this.data.steps[n].glyph); }

  drawHead(from, to) {
    const { data, color } = this, height = this.axisTop + AXIS, c = this.canvas(this.head, height);
    this.headHeight = height;
    c.save();
    c.beginPath(); c.rect(GUTTER, 0, this.width, height); c.clip();
    if (this.count) this.band(c, this.chosen, height, color["accent-soft"]);
    this.drawCurve(c);
    let row = 0;
    if (data.violation && this.count) this.flag(c, data.violation.step, row++, `invariant ${data.violation.invariant} violated`, color.bad, height);
    const inevitable = data.explained?.inevitable;
    if (inevitable && inevitable <= this.count) this.flag(c, inevitable - 1, row, this.inevitability(), color.inevitable, height);
    this.drawAxis(c, from, to, height);
    c.restore();
    c.strokeStyle = color.line;
    c.beginPath(); c.moveTo(0, height - .5); c.lineTo(this.full, height - .5); c.stroke();
  }

  /// The text about the action after which every future violates the invariant.
  inevitability() { return this.data.explained.inevitable - 1 === this.data.violation?.step ? "not inevitable before" : "inevitable from here on"; }

  flag(c, n, row, text, color, height) {
    const x = this.x(this.at[n]), y = 4 + row * FLAG;
    if (x < GUTTER || x > this.full) return;
    c.save();
    c.font = `600 11.5px ${this.font}`;
    const wide = c.measureText(text).width + 14, to = Math.min(this.full - 4, Math.max(GUTTER + wide, x + wide / 2));
    c.strokeStyle = color; c.lineWidth = 1.6; c.setLineDash(row || !this.data.violation ? [4, 3] : []);
    c.beginPath(); c.moveTo(Math.round(x) + .5, y + 8); c.lineTo(Math.round(x) + .5, height); c.stroke();
    c.setLineDash([]);
    c.fillStyle = color;
    c.beginPath(); c.roundRect(to - wide, y, wide, 17, 4); c.fill();
    c.fillStyle = this.color.face;
    c.fillText(text, to - wide + 7, y + 9);
    c.restore();
  }

  drawCurve(c) {
    const curve = this.data.explained?.curve;
    if (!curve?.length) return;
    const { color } = this, base = this.curveTop + CURVE, y = (share) => base - share * (CURVE - 10);
    const x = (steps) => this.x(steps ? this.at[Math.min(steps, this.count) - 1] : 0);
    c.strokeStyle = color.faint;
    for (const share of [0, .5, 1]) { c.beginPath(); c.moveTo(GUTTER, y(share) + .5); c.lineTo(this.full, y(share) + .5); c.stroke(); }
    c.beginPath();
    c.moveTo(x(curve[0][0]), base);
    for (const [steps, share] of curve) c.lineTo(x(steps), y(share));
    c.lineTo(x(curve[curve.length - 1][0]), base);
    c.fillStyle = color.curve; c.fill();
    c.beginPath();
    curve.forEach(([steps, share], n) => n ? c.lineTo(x(steps), y(share)) : c.moveTo(x(steps), y(share)));
    c.strokeStyle = color["curve-line"]; c.lineWidth = 1.8; c.stroke(); c.lineWidth = 1;
    if (this.scale < 44) return;
    c.font = `11px ${this.font}`;
    let clear = GUTTER - 1;
    for (const [steps, share] of curve) {
      c.fillStyle = color["curve-line"];
      c.beginPath(); c.arc(x(steps), y(share), 2.6, 0, 7); c.fill();
      const text = `${Math.round(share * 100)} %`, wide = c.measureText(text).width;
      const left = Math.max(GUTTER + 4, x(steps) - wide - 6);
      if (left < clear + 6) continue;
      clear = left + wide;
      c.fillStyle = color.ink;
      c.fillText(text, left, Math.max(this.curveTop + 4, y(share) - 8));
    }
  }

  drawAxis(c, from, to, height) {
    const { color, data } = this, top = this.axisTop;
    c.font = `11.5px ${this.font}`;
    c.textAlign = "center";
    const every = this.byTime ? 1 : this.nice(Math.max(1, 46 / this.scale), [1, 2, 5]);
    let clear = -1e9;
    for (let n = from; n < to; n++) {
      const x = this.x(this.at[n]), step = data.steps[n], special = this.scale >= 30 && this.slice.has(n);
      const tick = this.byTime ? x > clear : (n + 1) % every === 0 || this.count <= 12;
      if (!tick && !special || x < GUTTER || x > this.full) continue;
      c.strokeStyle = color.line;
      c.beginPath(); c.moveTo(Math.round(x) + .5, height - 5); c.lineTo(Math.round(x) + .5, height); c.stroke();
      if (special) {
        c.fillStyle = color.accent;
        c.beginPath(); c.roundRect(x - 13, top + 2, 26, 16, 8); c.fill();
      }
      else if (n === data.violation?.step) {
        c.fillStyle = color.bad;
        c.beginPath(); c.roundRect(x - 13, top + 2, 26, 16, 8); c.fill();
      }
      c.fillStyle = special || n === data.violation?.step ? color.face : color.ink;
      c.font = `${special ? 600 : 400} 11.5px ${this.font}`;
      const half = c.measureText(String(step.number)).width / 2 + 3;
      c.fillText(String(step.number), Math.max(GUTTER + half, Math.min(this.full - half, x)), top + 10.5);
      clear = x + 40;
    }
    c.font = `11px ${this.font}`;
    c.fillStyle = color.soft;
    if (this.byTime) this.drawTimes(c, top + 26); else this.drawTimesByStep(c, from, to, top + 26);
    c.textAlign = "left";
  }

  /// Times at even intervals; since every step has a minimum width, they are only almost evenly spaced.
  drawTimes(c, y) {
    const { steps } = this.data, whole = this.count ? steps[this.count - 1].at_ms : 0;
    if (!whole) return;
    const perPixel = whole / (this.count * this.scale * .62);
    const step = TICKS.find((ms) => ms >= perPixel * 84) ?? TICKS[TICKS.length - 1];
    let clear = -1e9;
    const [first] = this.inView, begin = first > 1 ? steps[first - 1].at_ms : 0;
    for (let ms = Math.floor(begin / step) * step; ms <= whole; ms += step) {
      const x = this.x(ms ? this.timeAt(ms) : this.at[0]);
      const wide = c.measureText(span(ms)).width;
      if (x + wide / 2 > this.full) break;
      if (x - wide / 2 < Math.max(GUTTER + 4, clear)) continue;
      c.fillText(span(ms), x, y);
      clear = x + wide / 2 + 16;
    }
  }

  /// The time, where it has changed.
  drawTimesByStep(c, from, to, y) {
    const { steps } = this.data;
    let clear = -1e9, shown = "";
    c.font = `11px ${this.font}`;
    for (let n = from; n < to; n++) {
      const x = this.x(this.at[n]);
      if (x < clear) continue;
      const text = span(steps[n].at_ms);
      if (text === shown) continue;
      const wide = c.measureText(text).width;
      if (x - wide / 2 < Math.max(GUTTER + 4, clear) || x + wide / 2 > this.full) continue;
      c.fillText(text, x, y);
      shown = text;
      clear = x + wide / 2 + 16;
    }
  }

  nice(atLeast, steps) {
    let power = 10 ** Math.floor(Math.log10(Math.max(1, atLeast)));
    for (;;) {
      for (const step of steps) if (step * power >= atLeast) return step * power;
      power *= 10;
    }
  }

  drawTracks(from, to) {
    const { data, color } = this, height = Math.max(this.bottom, this.available - 1), c = this.canvas(this.tracks, height);
    data.tracks.forEach((_, n) => {
      c.fillStyle = n % 2 ? color.face : color.stripe;
      c.fillRect(0, this.tops[n], this.full, this.heights[n]);
    });
    c.save();
    c.beginPath(); c.rect(GUTTER, 0, this.width, height); c.clip();
    if (this.hover >= 0 && this.hover !== this.chosen) this.band(c, this.hover, this.bottom, color.faint);
    if (this.count) this.band(c, this.chosen, this.bottom, color["accent-soft"]);
    if (data.violation && this.count) this.upright(c, data.violation.step, this.bottom, color.bad, []);
    const inevitable = data.explained?.inevitable;
    if (inevitable && inevitable <= this.count) this.upright(c, inevitable - 1, this.bottom, color.inevitable, [4, 3]);
    this.drawContent(c, from, to, height);
    c.restore();
    this.drawGutter(c, height);
  }

  /// Leases and symbols. A crowded chart is drawn once and cached until the view changes: selection and hovering then only redraw what is below.
  drawContent(c, from, to, height) {
    const draw = (c) => {
      this.drawLeases(c);
      if (this.scale >= 7 || this.byTime && to - from < 400) this.drawSymbols(c, from, to); else this.drawCrowd(c, from, to);
    };
    if (this.labelled) return draw(c);
    const { canvas } = c, kept = this.kept ??= { canvas: document.createElement("canvas"), of: [] };
    const of = [this.left, this.scale, this.byTime, this.passes, this.color, canvas.width, canvas.height];
    if (of.some((part, n) => part !== kept.of[n])) {
      kept.of = of;
      Object.assign(kept.canvas, { width: canvas.width, height: canvas.height });
      const layer = kept.canvas.getContext("2d");
      layer.setTransform(c.getTransform());
      layer.textBaseline = "middle";
      draw(layer);
    }
    c.save();
    c.resetTransform();
    c.drawImage(kept.canvas, 0, 0);
    c.restore();
  }

  drawGutter(c, height) {
    const { data, color } = this;
    data.tracks.forEach(({ kind, name }, n) => {
      c.fillStyle = n % 2 ? color.face : color.stripe;
      c.fillRect(0, this.tops[n], GUTTER, this.heights[n]);
      c.fillStyle = color.ink;
      c.font = `600 13px ${this.font}`;
      c.fillText(shortened(c, name, GUTTER - 18), 12, this.symbolY(n));
      if (kind === "worker" && this.heights[n] > 46) {
        c.font = `11px ${this.font}`; c.fillStyle = color.soft;
        c.fillText("worker", 12, this.symbolY(n) + 16);
        if (this.rows[n] && this.labelled) c.fillText("leases", 12, this.tops[n] + this.heights[n] - this.rows[n] * this.rowHeight / 2 - 4);
      }
      c.strokeStyle = color.line;
      c.beginPath(); c.moveTo(0, this.tops[n] + this.heights[n] - .5); c.lineTo(this.full, this.tops[n] + this.heights[n] - .5); c.stroke();
    });
    c.strokeStyle = color.line;
    c.beginPath(); c.moveTo(GUTTER - .5, 0); c.lineTo(GUTTER - .5, height); c.stroke();
    const curve = data.explained?.curve?.length, h = this.head.getContext("2d");
    h.font = `11px ${this.font}`; h.fillStyle = color.soft; h.textAlign = "left";
    if (curve) {
      h.fillText("futures that", 12, this.curveTop + CURVE / 2 - 4); h.fillText("violate it", 12, this.curveTop + CURVE / 2 + 10);
      h.textAlign = "right"; h.fillText("all", GUTTER - 6, this.curveTop + 10); h.fillText("none", GUTTER - 6, this.curveTop + CURVE);
      h.textAlign = "left";
    }
    h.fillText(this.data.unit, 12, this.axisTop + 10.5); h.fillText("time", 12, this.axisTop + 26);
  }

  drawLeases(c) {
    const { color } = this, high = this.rowHeight - 4;
    this.boxes = [];
    for (const lease of this.leases) {
      const from = this.x(this.at[lease.from]), to = lease.to === null ? this.full + 20 : this.x(this.at[lease.last]);
      if (to < GUTTER - 4 || from > this.full) continue;
      const wide = Math.max(3, to - from), y = this.rowY(lease), lit = !this.passes || this.passes.lease(lease);
      this.boxes.push({ lease, x: from, y, wide, high });
      c.save();
      c.globalAlpha = lit ? 1 : .2;
      const late = Math.min(wide, Math.max(0, this.x(this.timeAt(lease.until_ms)) - from));
      const ink = color[`${lease.end}-ink`], undone = lease.end === "undone";
      c.beginPath(); c.roundRect(from, y, wide, high, Math.min(6, high / 2));
      c.fillStyle = color[lease.end];
      c.globalAlpha *= undone ? .55 : 1; c.fill(); c.globalAlpha = lit ? 1 : .2;
      c.strokeStyle = ink; c.lineWidth = 1;
      if (undone) c.setLineDash([4, 3]);
      if (wide > 4) c.stroke();
      c.setLineDash([]);
      if (late < wide - 3) {
        c.save();
        c.beginPath(); c.roundRect(from, y, wide, high, Math.min(6, high / 2)); c.clip();
        c.fillStyle = color.face; c.globalAlpha *= .55; c.fillRect(from + late, y, wide - late, high);
        c.globalAlpha = lit ? 1 : .2; c.setLineDash([3, 3]);
        c.beginPath(); c.moveTo(from + late + .5, y); c.lineTo(from + late + .5, y + high); c.stroke();
        c.restore();
      }
      if (high >= 10) {
        const left = Math.max(from, GUTTER) + 7, right = Math.min(to, this.full) - (lease.to === null ? 4 : 17);
        c.fillStyle = c.strokeStyle = ink;
        if (wide > 26 && lease.to !== null) drawEnd(c, lease.end, to - 10, y + high / 2, 3.6);
        c.font = `${high >= 15 ? 600 : 500} ${high >= 15 ? 11.5 : 10}px ${this.font}`;
        if (right - left < 14) { c.restore(); continue; }
        const texts = [`${lease.message} · attempt ${lease.attempt} · token ${lease.token} · ${ENDS[lease.end]}`, `${lease.message} · attempt ${lease.attempt} · ${ENDS[lease.end]}`, `${lease.message} · ${ENDS[lease.end]}`, lease.message];
        const text = texts.find((text) => c.measureText(text).width <= right - left);
        if (text) c.fillText(text, left, y + high / 2 + .5);
      }
      c.restore();
    }
  }

  drawSymbols(c, from, to) {
    const { data, color } = this, r = Math.min(SYMBOL, Math.max(4, this.scale / 2.6));
    for (let n = from; n < to; n++) {
      const { track, also = [], glyph } = data.steps[n], x = this.x(this.at[n]), y = this.symbolY(track);
      c.globalAlpha = this.lit(n) ? 1 : .16;
      if (also.length) {
        c.strokeStyle = color.soft; c.lineWidth = this.labelled && n === this.chosen ? 1.6 : .9;
        for (const other of also) {
          const end = this.symbolY(other), down = end > y ? 1 : -1;
          c.beginPath(); c.moveTo(x, y + down * r); c.lineTo(x, end - down * 4); c.stroke();
          c.fillStyle = color.soft;
          c.beginPath(); c.moveTo(x - 3.5, end - down * 5); c.lineTo(x + 3.5, end - down * 5); c.lineTo(x, end); c.closePath(); c.fill();
        }
        c.lineWidth = 1;
      }
    }
    for (let n = from; n < to; n++) {
      const { track, glyph } = data.steps[n], x = this.x(this.at[n]), y = this.symbolY(track);
      c.globalAlpha = this.lit(n) ? 1 : .16;
      c.fillStyle = track % 2 ? color.face : color.stripe;
      c.beginPath(); c.arc(x, y, this.scale > 24 ? r + 3 : r, 0, 7); c.fill();
      if (this.slice.has(n)) { c.strokeStyle = color.accent; c.lineWidth = 2; c.beginPath(); c.arc(x, y, r + 3.5, 0, 7); c.stroke(); }
      const violated = data.violation?.step === n;
      if (violated) { c.strokeStyle = color.bad; c.lineWidth = 2.4; c.beginPath(); c.arc(x, y, r + 4, 0, 7); c.stroke(); }
      drawGlyph(c, glyph, x, y, r, color[GLYPHS[glyph][1]], color.face);
    }
    if (this.labelled) for (let n = from; n < to; n++) this.drawLabel(c, n);
    c.globalAlpha = 1;
  }

  /// A label has the space up to its neighbours in the track, and is cut to fit.
  drawLabel(c, n) {
    const { data, color } = this, { track, label } = data.steps[n], x = this.x(this.at[n]);
    if (x < GUTTER || x > this.full) return;
    const near = (other, edge) => other < 0 ? edge : Math.min(edge, Math.abs(this.x(this.at[other]) - x) / 2);
    const left = near(this.before[n], x - GUTTER), right = near(this.after[n], this.full - x);
    let wide = Math.min(2 * Math.min(left, right), 168) - 10, align = "center", start = x;
    if (wide < 54 && Math.max(left, right) > 70) {
      // There is space on one side.
      align = left > right ? "right" : "left";
      start = left > right ? x + Math.min(right, SYMBOL) : x - Math.min(left, SYMBOL);
      wide = Math.min(Math.max(left, right), 168) - 6;
    }
    if (wide < 44) return;
    const above = this.rows[track] * this.rowHeight + (this.rows[track] ? 6 : 0);
    const lines = Math.max(1, Math.floor((this.heights[track] - above - 2 * SYMBOL - 14) / 14));
    c.globalAlpha = this.lit(n) ? 1 : .16;
    c.font = `${n === this.chosen ? 600 : 400} 12px ${this.font}`;
    c.textAlign = align;
    c.strokeStyle = track % 2 ? color.face : color.stripe; c.lineWidth = 4; c.lineJoin = "round";
    c.fillStyle = data.violation?.step === n ? color.bad : color.ink;
    wrapped(c, label, wide, lines).forEach((line, row) => {
      const y = this.symbolY(track) + SYMBOL + 13 + row * 14;
      c.strokeText(line, start, y); c.fillText(line, start, y);
    });
    c.textAlign = "left"; c.lineWidth = 1;
  }

  /// Steps too dense to draw one by one: their density, and the severe ones.
  drawCrowd(c, from, to) {
    const { data, color } = this, size = 3, bins = data.tracks.map(() => new Map());
    const severe = data.tracks.map(() => new Map());
    for (let n = from; n < to; n++) {
      const { track, glyph } = data.steps[n], x = this.x(this.at[n]);
      const bin = Math.floor(x / size), lit = this.lit(n), seen = bins[track].get(bin) ?? [0, 0];
      seen[lit ? 0 : 1] += 1;
      bins[track].set(bin, seen);
      const rank = data.violation?.step === n ? 0 : SEVERE.indexOf(glyph) + 1;
      if (lit && (rank > 0 || data.violation?.step === n)) {
        // Repeated requests are common and must not hide the others.
        const slot = glyph === "duplicate" ? -1 - Math.floor(x / 68) : Math.floor(x / 17), best = severe[track].get(slot);
        if (!best || rank < best.rank) severe[track].set(slot, { rank, n, x });
      }
    }
    const most = Math.max(2, size / this.scale);
    data.tracks.forEach((_, track) => {
      const y = this.symbolY(track);
      for (const [bin, [lit, dim]] of bins[track]) {
        const high = 4 + 12 * Math.min(1, (lit + dim) / most);
        c.fillStyle = color.soft;
        c.globalAlpha = lit ? .75 : .18;
        c.fillRect(bin * size, y - high / 2, size - .6, high);
      }
      c.globalAlpha = 1;
      for (const { n, x } of severe[track].values()) {
        c.fillStyle = track % 2 ? color.face : color.stripe;
        c.beginPath(); c.arc(x, y, 8.5, 0, 7); c.fill();
        drawGlyph(c, data.steps[n].glyph, x, y, 6.5, color[GLYPHS[data.steps[n].glyph][1]], color.face);
      }
    });
  }

  /// The step under the pointer, and the lease, if any.
  find(x, y, inTracks) {
    if (x < GUTTER || !this.count) return { step: -1, lease: null };
    const near = this.firstAt(this.unit(x)), track = inTracks ? this.tops.findLastIndex((top) => top <= y) : -1;
    const box = inTracks && (this.boxes ?? []).find((box) => x >= box.x && x <= box.x + box.wide && y >= box.y && y <= box.y + box.high);
    let best = -1, least = Infinity;
    const reach = Math.ceil(Math.max(1, 9 / this.scale)) + 1;
    for (let n = Math.max(0, near - reach); n < Math.min(this.count, near + reach); n++) {
      const { track: own, glyph } = this.data.steps[n];
      const far = Math.abs(this.x(this.at[n]) - x) - (own === track ? 4 : 0) - (SEVERE.includes(glyph) ? 3 : 0);
      if (far < least) { least = far; best = n; }
    }
    return { step: best, lease: box ? box.lease : null };
  }
}

/// A duration as text.
function span(ms) {
  if (ms === 0) return "0 s";
  if (ms < 1000) return `${ms} ms`;
  if (ms < 60_000) return `${ms % 100 ? (ms / 1000).toFixed(3) : (ms / 1000).toFixed(1)} s`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(seconds / 86_400).toLocaleString("en")} days`;
}

function shortened(c, text, wide) {
  if (c.measureText(text).width <= wide) return text;
  let length = text.length;
  while (length > 1 && c.measureText(`${text.slice(0, length)}…`).width > wide) length -= 1;
  return `${text.slice(0, length).trimEnd()}…`;
}

/// The text in lines no wider than `wide`; the last is cut to fit.
function wrapped(c, text, wide, most) {
  const lines = [];
  let line = "";
  for (const word of text.split(" ")) {
    const longer = line ? `${line} ${word}` : word;
    if (!line || c.measureText(longer).width <= wide) { line = longer; continue; }
    lines.push(line);
    line = word;
  }
  lines.push(line);
  const shown = lines.slice(0, most);
  if (lines.length > most) shown[most - 1] = `${shown[most - 1]} …`;
  return shown.map((line) => shortened(c, line, wide));
}
