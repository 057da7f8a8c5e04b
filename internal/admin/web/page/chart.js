import { s } from './dom.js';

// A picture of series over time: lines of the means, with the highest values as a pale line where they differ. It is drawn
// for its width in pixels, so that its text has the size of other text.

const H = 168, top = 8, bottom = 22, left = 60, right = 8;

/** plotWidth returns the width that a chart has on this screen. */
export function plotWidth() {
  const room = Math.min(document.documentElement.clientWidth, 1440) - (innerWidth <= 640 ? 24 : 48);
  return Math.max(240, Math.floor((innerWidth > 900 ? (room - 16) / 2 : room) - 34));
}

/** plot draws series of the same length; at is the point that is pointed at, or null. */
export function plot(c, series, past, width, at) {
  const n = past.points, most = past.span === 'hour' ? 720 : 1440;
  const high = Math.max(0, ...series.flatMap((x) => x.highest.filter((v) => v !== null)));
  const ticks = scale(high, c);
  const x = (i) => left + (i + most - n + 0.5) * (width - left - right) / most;
  const y = (v) => H - bottom - v / ticks.at(-1) * (H - top - bottom);
  return s('svg', { viewBox: `0 0 ${width} ${H}`, 'aria-hidden': 'true', 'data-most': String(most), 'data-width': String(width) },
    s('g', { memo: `${past.span} ${past.end} ${width} ${c.id}`, build: () => s('g', null,
      ticks.map((t) => [s('path', { class: 'grid', d: `M${left} ${round(y(t))}H${width - right}` }), s('text', { class: 'axis', x: left - 8, y: round(y(t)) + 4, 'text-anchor': 'end' }, t === 0 ? '0' : c.show(t).replace('.0 ', ' '))]),
      times(past, most, x).map(([i, text]) => s('text', { class: 'axis', x: round(x(i)), y: H - 4, 'text-anchor': 'middle' }, text)),
      series.map((v, k) => differs(v) && s('path', { class: `line high s${k % 5}`, d: line(v.highest, x, y) })),
      series.map((v, k) => s('path', { class: `line s${k % 5} d${Math.floor(k / 5)}`, d: line(v.mean, x, y) }))) }),
    at !== null && s('path', { class: 'pointer', d: `M${round(x(at))} ${top}V${H - bottom}` }),
    at !== null && series.map((v, k) => v.mean[at] !== null && s('circle', { class: `point s${k % 5}`, cx: round(x(at)), cy: round(y(v.mean[at])), r: 3 })));
}

/** at returns the point of a chart at which a pointer is. */
plot.at = (e, points) => {
  const svg = e.currentTarget.querySelector('svg');
  const box = svg.getBoundingClientRect(), most = Number(svg.dataset.most), width = Number(svg.dataset.width);
  const px = (e.clientX - box.left) * width / box.width;
  return Math.round((px - left) * most / (width - left - right) - 0.5) - (most - points);
};

const round = (v) => Math.round(v * 10) / 10;

const differs = (v) => v.highest.some((x, i) => x !== v.mean[i]);

// line returns the path of the values. What is not known is a gap, and a value between two gaps is a dot.
function line(values, x, y) {
  let d = '', open = false;
  values.forEach((v, i) => {
    if (v === null) {
      open = false;
      return;
    }
    d += `${open ? 'L' : 'M'}${round(x(i))} ${round(y(v))}`;
    if (!open && (values[i + 1] ?? null) === null) d += 'h.1';
    open = true;
  });
  return d;
}

// scale returns the values of the grid, of which the last is not below the highest value.
function scale(high, c) {
  const least = c.whole ? 4 : c.show(0.001).endsWith('s') ? 0.004 : 4000;
  const want = Math.max(high, least) / 4;
  const unit = 10 ** Math.floor(Math.log10(want));
  const step = unit * [1, 2, 2.5, 5, 10].find((m) => m * unit >= want * 0.9999 && (!c.whole || Number.isInteger(m * unit)));
  const out = [0];
  while (out.at(-1) < high || out.length < 3) out.push(Number((out.at(-1) + step).toPrecision(6)));
  return out;
}

const clock = new Intl.DateTimeFormat(undefined, { hour: '2-digit', minute: '2-digit', hour12: false });

// times returns the points that the axis names: full quarters of an hour, or full hours. The last ones before the edges
// are left out, since their text would not fit.
function times(past, most, x) {
  const step = past.step_seconds * 1000, apart = past.span === 'hour' ? 15 * 60e3 : 4 * 3600e3;
  const zone = new Date(past.end).getTimezoneOffset() * 60e3, out = [];
  for (let t = Math.floor((past.end - zone) / apart) * apart + zone; t > past.end - most * step; t -= apart) {
    const i = past.points - (past.end - t) / step - 0.5;
    if (x(i) > left + 12 && past.end - t > most * step / 40) out.push([i, clock.format(t)]);
  }
  return out;
}
