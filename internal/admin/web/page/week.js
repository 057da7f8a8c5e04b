// What part of the sessions an outage would have kept, by hour of the last week.

import { h, s } from './dom.js';
import { dayOf, timeOf } from './format.js';
import { aged, card, lacking, skeleton } from './parts.js';

export const weekView = 'coterie.continuity_history';

const hours = 168, hour = 3600e3, W = hours * 4, H = 48;
const outages = [['failover', 'Planned failover'], ['node_loss', 'Its node dies'], ['server_loss', 'PostgreSQL dies'], ['replayed', 'Open transactions']];

/** week is a card with a strip for each outage: a bar of an hour is as high as the share that was kept. */
export function week(app) {
  const rows = app.rows(weekView)?.filter((r) => Number.isFinite(Date.parse(r.hour)));
  return card('What an outage would have kept, in the last week', aged(app, weekView), !rows ? lacking(app, weekView) ?? skeleton(4)
    : rows.length === 0 ? h('p', { class: 'blank' }, 'Nothing is recorded yet: each node looks at the sessions of its listener once a minute.')
      : [h('div', { class: 'week' }, outages.map(([of, label]) => strip(app, rows, of, label))), h('p', { class: 'quiet' }, 'Of the sessions that were open in each hour, at the listeners of all nodes that answer. The right end is now. ', h('code', null, 'coterie check continuity --history'), ' has applications and users.')]);
}

// byHour adds the nodes up: how many sessions there were in each hour, what share of them was kept, and the reason of
// the node that lost most.
function byHour(rows, of) {
  const by = new Map(), weight = of === 'replayed' ? 'open_transactions' : 'sessions';
  for (const r of rows) {
    const n = r[weight] ?? 0, at = Math.floor(Date.parse(r.hour) / hour), share = r[`${of}_pct`];
    if (!n || share === null || share === undefined) continue;
    const x = by.get(at) ?? { at, all: 0, kept: 0, lost: 0, why: '' };
    const lost = n * (100 - share) / 100;
    x.all += n;
    x.kept += n - lost;
    if (lost > x.lost) Object.assign(x, { lost, why: r[`${of}_reason`] ?? '' });
    by.set(at, x);
  }
  return [...by.values()].sort((a, b) => a.at - b.at);
}

function strip(app, rows, of, label) {
  const list = byHour(rows, of), now = Math.floor(Date.now() / hour);
  const drawn = list.filter((x) => x.at > now - hours && x.at <= now);
  const all = drawn.reduce((n, x) => n + x.all, 0), kept = drawn.reduce((n, x) => n + x.kept, 0);
  const shown = (share) => `${Math.floor(1000 * share + 1e-6) / 10} %`;
  const low = drawn.reduce((a, x) => (a === null || x.kept / x.all < a.kept / a.all ? x : a), null);
  const said = all === 0 ? 'none was open' : `${shown(kept / all)} kept`;
  const worst = low && low.kept < low.all * 0.9999 ? `least ${shown(low.kept / low.all)}, ${dayOf(low.at * hour)} ${timeOf(low.at * hour).slice(0, 5)}${low.why ? `: ${low.why}` : ''}` : '';
  return h('div', { class: 'outage', 'data-key': of },
    h('h3', null, label, h('span', { class: 'quiet' }, ` ${said}`)),
    s('svg', { viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${label}, by hour of the last week: ${said}${worst && `; ${worst}`}` },
      s('g', { memo: `${of} ${app.seen[weekView]}`, build: () => s('g', null, s('path', { class: 'grid', d: `M0 ${H - 0.5}H${W}M0 0.5H${W}`, 'vector-effect': 'non-scaling-stroke' }), ['good', 'warn', 'bad'].map((tone) => s('path', { class: tone, d: drawn.filter((x) => toneOf(x) === tone).map((x) => bar(x, now)).join('') }))) })),
    worst && h('p', { class: 'quiet' }, worst));
}

const toneOf = (x) => (x.kept > x.all * 0.9999 ? 'good' : x.kept < x.all / 2 ? 'bad' : 'warn');

// bar returns the path of an hour's bar; all bars of a tone are one element.
function bar(x, now) {
  const high = Math.max(2, Math.round(x.kept / x.all * (H - 2)));
  return `M${W - (now - x.at + 1) * 4} ${H - high}h3.2v${high}h-3.2z`;
}
