import { h, s } from './dom.js';
import { ago, timeOf } from './format.js';

// Signs differ in shape, not only in colour.
const shapes = {
  good: ['M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z', 'm5 8.2 2.1 2.1L11.2 6'],
  warn: ['M8 1.8 15 14H1Z', 'M8 6.2v3.6M8 11.6v.6'],
  bad: ['M5.3 1.5h5.4l3.8 3.8v5.4l-3.8 3.8H5.3l-3.8-3.8V5.3Z', 'm5.7 5.7 4.6 4.6m0-4.6-4.6 4.6'],
  calm: ['M8 1.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13Z', 'M5 8h6'],
};

/** sign returns the sign of a tone: good, warn, bad or calm. */
export function sign(tone) {
  const [body, mark] = shapes[tone];
  return s('svg', { class: `sign ${tone}`, viewBox: '0 0 16 16', 'aria-hidden': 'true' }, s('path', { class: 'body', d: body }), s('path', { class: 'mark', d: mark }));
}

/** state returns a word with its sign. */
export const state = (tone, text) => h('span', { class: `state ${tone}` }, sign(tone), text);

export const toneOfSync = (r) => {
  if (r.role === 'RESOLVING' || r.synchronization_state === 'NOT SYNCHRONIZING') return 'bad';
  if (r.synchronization_state === 'SYNCHRONIZED') return 'good';
  return r.availability_mode === 'ASYNCHRONOUS_COMMIT' ? 'calm' : 'warn';
};

export const role = (r) => h('span', { class: `role ${(r ?? '').toLowerCase()}` }, (r ?? '–').toLowerCase());

const oldView = 25000; // each view is looked at every two seconds, or every ten

/** aged says of when the data of views is, where it could not be renewed for a while and nothing else says so. */
export function aged(app, ...names) {
  const at = Math.min(...names.map((n) => app.seen[n] ?? Infinity));
  if (app.old || at === Infinity || Date.now() - at < oldView) return null;
  const why = names.map((n) => app.refused[n]).find(Boolean);
  return h('span', { class: 'aged', title: why }, sign('warn'), `of ${timeOf(at)}, ${ago(at)}`);
}

/** lacking says why there is nothing of a view yet; null where it is only under way. */
export function lacking(app, ...names) {
  const why = names.map((n) => !app.views[n] && app.refused[n]).find(Boolean);
  return why ? h('p', { class: 'blank', role: 'status' }, state('warn', `The node cannot tell now: ${why}. It is asked again.`)) : null;
}

/**
 * table returns rows under columns. A column is {label, cell, right, wide}: wide ones are left out on small screens.
 * Where there are no rows yet it returns missing, or a shape in place of them.
 */
export function table(name, columns, rows, empty, missing) {
  if (!rows) return missing ?? skeleton(3);
  if (rows.length === 0) return h('p', { class: 'blank' }, empty);
  const classOf = (c) => [c.right && 'right', c.wide && 'wide', c.class].filter(Boolean).join(' ') || null;
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': name },
    h('table', null,
      h('thead', null, h('tr', null, columns.map((c) => h('th', { class: classOf(c), scope: 'col', title: c.title }, c.label)))),
      h('tbody', null, rows.map((r, i) => h('tr', { 'data-key': r.$key ?? r.name ?? String(i) },
        columns.map((c, k) => h(k === 0 ? 'th' : 'td', { class: classOf(c), scope: k === 0 ? 'row' : null, 'data-label': c.label }, h('span', null, c.cell(r)))))))));
}

/** skeleton stands for what is not there yet. */
export const skeleton = (lines) => h('div', { class: 'skeleton', 'aria-busy': 'true', 'aria-label': 'loading' }, Array.from({ length: lines }, () => h('i')));

export const card = (title, side, ...body) => h('section', { class: 'card' }, h('header', null, h('h2', null, title), side), body);

export const because = (text) => (text ? h('span', { class: 'quiet' }, text) : null);
