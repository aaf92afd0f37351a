"use strict";
// The symbols. They differ in shape, not only in colour.

const GLYPHS = {
  call: ["request", "ink"], sent: ["sent, not arrived", "soft"], duplicate: ["repeated request", "warn"], produce: ["produce", "accent"],
  delivery: ["delivery", "accent"], ack: ["ack", "good"], nack: ["nack", "warn"], dead: ["dead-lettered", "bad"],
  effect: ["effect", "effect"], time: ["time", "soft"], clock_jump: ["clock jump", "bad"], io: ["I/O", "ink"],
  io_fault: ["I/O failure", "bad"], torn: ["torn write", "bad"], snapshot: ["snapshot", "ink"], crash: ["crash", "bad"],
  boot: ["start", "good"], probe: ["probe", "soft"], other: ["other", "soft"],
};
// Where Shift and an arrow key stop, the most severe first. A crowded chart shows these before all others.
const SEVERE = ["crash", "torn", "io_fault", "clock_jump", "dead", "duplicate"];
const ENDS = {
  open: "running", acked: "acked", nacked: "nacked", expired: "expired", released: "released", dead: "dead-lettered", undone: "undone by a crash", taken: "ended by seek or deletion",
};

/// Draws a symbol of about 2r by 2r around (x, y).
function drawGlyph(c, kind, x, y, r, color, face) {
  c.save();
  c.translate(x, y);
  c.lineWidth = Math.max(1.4, r / 5);
  c.lineJoin = c.lineCap = "round";
  c.strokeStyle = c.fillStyle = color;
  const path = (...points) => { c.beginPath(); points.forEach(([px, py], n) => n ? c.lineTo(px * r, py * r) : c.moveTo(px * r, py * r)); };
  const ring = (px, py, pr, fill) => { c.beginPath(); c.arc(px * r, py * r, pr * r, 0, 7); if (fill) { c.fillStyle = fill; c.fill(); } c.stroke(); };
  const inside = (draw) => { c.strokeStyle = c.fillStyle = face; draw(); };
  switch (kind) {
    case "call": ring(0, 0, .72, face); c.fillStyle = color; c.beginPath(); c.arc(0, 0, r * .28, 0, 7); c.fill(); break;
    case "sent": c.setLineDash([r * .4, r * .35]); ring(0, 0, .8, face); c.setLineDash([]); path([-.35, 0], [.35, 0]); c.stroke(); path([.08, -.3], [.38, 0], [.08, .3]); c.stroke(); break;
    case "duplicate": ring(-.35, 0, .6, face); ring(.35, 0, .6, face); break;
    case "produce": ring(0, 0, .85, color); inside(() => { path([0, -.45], [0, .45]); c.stroke(); path([-.45, 0], [.45, 0]); c.stroke(); }); break;
    case "delivery": path([-.75, -.8], [.85, 0], [-.75, .8]); c.closePath(); c.fill(); break;
    case "ack": ring(0, 0, .85, color); inside(() => { path([-.42, .02], [-.1, .36], [.45, -.34]); c.stroke(); }); break;
    case "nack": ring(0, 0, .85, color); inside(() => { path([-.34, -.34], [.34, .34]); c.stroke(); path([.34, -.34], [-.34, .34]); c.stroke(); }); break;
    case "dead": path([-.8, .85], [-.8, -.2], [-.45, -.85], [.45, -.85], [.8, -.2], [.8, .85]); c.closePath(); c.fill(); inside(() => { path([0, -.5], [0, .5]); c.stroke(); path([-.32, -.15], [.32, -.15]); c.stroke(); }); break;
    case "effect": path([0, -1], [.28, -.28], [1, 0], [.28, .28], [0, 1], [-.28, .28], [-1, 0], [-.28, -.28]); c.closePath(); c.fill(); break;
    case "time": ring(0, 0, .8, face); c.strokeStyle = color; path([0, -.48], [0, 0], [.34, .2]); c.stroke(); break;
    case "clock_jump": ring(-.28, 0, .68, face); path([-.28, -.38], [-.28, 0], [0, .1]); c.stroke(); path([.45, -.6], [1, 0], [.45, .6]); c.stroke(); break;
    case "io": path([-.75, -.75], [.75, -.75], [.75, .75], [-.75, .75]); c.closePath(); c.fill(); inside(() => { path([-.4, -.2], [.4, -.2]); c.stroke(); path([-.4, .25], [.4, .25]); c.stroke(); }); break;
    case "io_fault": path([0, -.95], [1, .8], [-1, .8]); c.closePath(); c.fill(); inside(() => { path([0, -.3], [0, .2]); c.stroke(); path([0, .52], [0, .54]); c.stroke(); }); break;
    case "torn": path([-.8, -.85], [.8, -.85], [.8, -.1], [.4, .3], [.1, -.15], [-.3, .35], [-.8, 0]); c.closePath(); c.fill(); path([-.8, .7], [-.3, .95], [.1, .5], [.4, .9], [.8, .55]); c.stroke(); break;
    case "snapshot": path([-.85, -.6], [.85, -.6], [.85, .7], [-.85, .7]); c.closePath(); c.stroke(); ring(0, .05, .36, face); break;
    case "crash": path([.25, -1], [-.65, .15], [-.05, .15], [-.3, 1], [.65, -.25], [.05, -.25]); c.closePath(); c.fill(); break;
    case "boot": c.beginPath(); c.arc(0, r * .1, r * .74, -1, 4.14); c.stroke(); path([0, -.9], [0, .05]); c.stroke(); break;
    case "probe": ring(-.18, -.18, .58, face); path([.25, .25], [.85, .85]); c.stroke(); break;
    default: c.beginPath(); c.arc(0, 0, r * .4, 0, 7); c.fill();
  }
  c.restore();
}

/// The symbol at the right end of a lease: how it ended.
function drawEnd(c, end, x, y, r) {
  c.save();
  c.translate(x, y);
  c.lineWidth = 1.6;
  c.lineJoin = c.lineCap = "round";
  const path = (...points) => { c.beginPath(); points.forEach(([px, py], n) => n ? c.lineTo(px * r, py * r) : c.moveTo(px * r, py * r)); };
  switch (end) {
    case "acked": path([-1, 0], [-.3, .7], [1, -.8]); c.stroke(); break;
    case "nacked": path([-.8, -.8], [.8, .8]); c.stroke(); path([.8, -.8], [-.8, .8]); c.stroke(); break;
    case "expired": path([-.8, -1], [.8, -1], [-.8, 1], [.8, 1]); c.closePath(); c.stroke(); break;
    case "dead": path([0, -1], [0, 1]); c.stroke(); path([-.7, -.35], [.7, -.35]); c.stroke(); break;
    case "released": path([.9, 0], [-.8, 0]); c.stroke(); path([-.1, -.7], [-.9, 0], [-.1, .7]); c.stroke(); break;
    case "undone": path([-.9, 0], [-.3, 0]); c.stroke(); path([.3, 0], [.9, 0]); c.stroke(); break;
    case "taken": c.beginPath(); c.arc(0, 0, r * .6, 0, 7); c.stroke(); break;
  }
  c.restore();
}
