// Copies to replicas: those under way with their course, and those that have ended.

import { actionButton } from './actions.js';
import { h, s } from './dom.js';
import { bytes, dayOf, seconds, timeOf } from './format.js';
import { aged, card, lacking, sign, state, table } from './parts.js';

export const copiesView = 'seedings';

const W = 600, H = 128;

/** running returns the copies that are under way. */
export const running = (app) => (app.rows(copiesView) ?? []).filter((x) => !x.ended);

/** underWayCopies returns a card for each copy that is under way. */
export const underWayCopies = (app) => running(app).map((x) => h('div', { 'data-key': `copy to ${x.replica}` }, course(app, x)));

/** remembered returns a card of all copies that are remembered. */
export function remembered(app) {
  const all = app.rows(copiesView);
  return card('Copies', aged(app, copiesView), table('Copies', [
    { label: 'To', cell: (x) => x.replica },
    { label: 'From', wide: true, cell: (x) => x.source ?? '–' },
    { label: 'State', cell: (x) => (x.ended ? state({ COMPLETED: 'good', CANCELLED: 'calm' }[x.state] ?? 'bad', x.state.toLowerCase()) : state('calm', 'under way')) },
    { label: 'Size', right: true, cell: (x) => bytes(x.total_bytes) },
    { label: 'Began', cell: (x) => h('time', { datetime: x.started, title: x.started }, `${timeOf(x.started)}, ${dayOf(x.started)}`) },
    { label: 'Took', right: true, cell: (x) => seconds(((x.ended ? Date.parse(x.ended) : Date.now()) - Date.parse(x.started)) / 1000) },
    { label: 'Rate', right: true, wide: true, cell: (x) => (x.bytes_per_second ? `${bytes(x.bytes_per_second)}/s` : '–') },
    { label: 'Why it failed', class: 'now', cell: (x) => x.failure ?? '' },
  ], all?.map((x) => ({ ...x, $key: `${x.replica} ${x.started}` })), 'No copy to a replica is remembered.', lacking(app, copiesView)));
}

// course draws how a copy has come along, and where it will probably end.
function course(app, x) {
  const share = x.total_bytes ? Math.min(1, x.done_bytes / x.total_bytes) : 0;
  const left = x.expected_end ? (Date.parse(x.expected_end) - Date.now()) / 1000 : null;
  const text = x.state.replace(/^[A-Z]+:? ?/, '');
  return h('section', { class: 'card copy' },
    h('header', null, h('h2', null, h('i', { class: 'spin' }), ` A copy to ${x.replica}`, x.source && h('span', { class: 'quiet' }, ` from ${x.source}`)), [aged(app, copiesView), actionButton(app, 'coterie_operator', 'Cancel…', `the copy to ${x.replica}`,
      () => app.set({ dialog: { kind: 'plain', title: `Cancel the copy to ${x.replica}`, text: `The copy ends, and ${x.replica} has none until it is seeded again. What has arrived is kept, and not sent again then.`, change: 'cancel-seed', body: { replica: x.replica }, verb: 'Cancel the copy' } }), 'risky')]),
    h('p', { class: 'progress' }, h('b', { class: 'number' }, x.total_bytes ? `${Math.floor(100 * share)} %` : '…'), h('span', null, `${bytes(x.done_bytes)} of ${x.total_bytes ? bytes(x.total_bytes) : 'a size that is not known yet'}`),
      h('span', null, `${bytes(x.bytes_per_second)}/s`), left !== null && h('span', null, left > 0 ? `ready in about ${seconds(left)}, at ${timeOf(x.expected_end)}` : 'ready any moment')),
    x.seconds.length > 1 && picture(x),
    text && h('p', { class: 'quiet' }, text),
    /^RETRYING/.test(x.state) && x.failure && h('p', { class: 'quiet' }, sign('warn'), ` The last attempt failed: ${x.failure}.`));
}

function picture(x) {
  const now = x.seconds.at(-1), end = x.expected_end ? Math.max(now, (Date.parse(x.expected_end) - Date.parse(x.started)) / 1000) : now * 1.25;
  const high = Math.max(x.total_bytes, ...x.bytes, 1);
  const px = (t) => Math.round(t / Math.max(end, 1) * W * 10) / 10, py = (b) => Math.round((H - 4 - b / high * (H - 12)) * 10) / 10;
  const line = x.seconds.map((t, i) => `${i ? 'L' : 'M'}${px(t)} ${py(x.bytes[i])}`).join('');
  const share = Math.floor(100 * x.bytes.at(-1) / high);
  return [
    s('svg', { class: 'course', viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `Course of the copy: ${share} % of ${bytes(high)} after ${seconds(now)}` },
      s('path', { class: 'grid', d: `M0 ${py(0)}H${W}M0 ${py(high)}H${W}M0 ${py(high / 2)}H${W}` }),
      s('path', { class: 'area', d: `${line}L${px(now)} ${py(0)}L${px(x.seconds[0])} ${py(0)}Z` }), s('path', { class: 'line', d: line }),
      x.expected_end && s('path', { class: 'ahead', d: `M${px(now)} ${py(x.bytes.at(-1))}L${px(end)} ${py(high)}` })),
    h('p', { class: 'legend quiet' }, h('span', null, timeOf(x.started)), h('span', { class: 'at' }, x.expected_end ? `${timeOf(x.expected_end)}, when it is probably ready` : timeOf(Date.parse(x.started) + end * 1000))),
  ];
}
