import { api } from './api.js';
import { plot, plotWidth } from './chart.js';
import { h } from './dom.js';
import { bytes, seconds, timeOf } from './format.js';
import { card, sign, skeleton } from './parts.js';

const number = (v) => (v >= 100 ? Math.round(v).toLocaleString('en') : String(Number(v.toPrecision(2))));
const speed = (v) => `${bytes(Math.round(v))}/s`;
const size = (v) => bytes(Math.round(v));

// What each chart shows: its series with a name for a person, or one series for each replica. primary: only the primary
// knows it. whole: it counts things.
const charts = [
  { id: 'writes', title: 'Writes', about: 'WAL made durable on this node', show: speed, series: [['write_bytes_per_second', 'WAL']] },
  { id: 'wait', title: 'Commits wait for secondaries', about: 'the synchronous part of a commit’s time', show: seconds, primary: true, empty: 'No commit has waited for a secondary.', series: [['commit_wait_seconds', 'mean'], ['commit_wait_p99_seconds', '99 of 100']] },
  { id: 'lag', title: 'Not received', about: 'WAL that a replica does not have durably', show: size, each: 'lag_bytes' },
  { id: 'redo', title: 'Not replayed', about: 'WAL that a replica has and has not replayed', show: size, each: 'redo_queue_bytes' },
  { id: 'loss', title: 'Estimated data loss', about: 'commits that a forced failover would lose (RPO)', show: seconds, primary: true, each: 'data_loss_seconds' },
  { id: 'recovery', title: 'Estimated recovery', about: 'time to replay the queue (RTO)', show: seconds, each: 'recovery_seconds' },
  { id: 'send', title: 'Not sent', about: 'WAL that the primary’s server has not sent', show: size, primary: true, each: 'send_queue_bytes' },
  { id: 'held', title: 'Held', about: 'commits that wait, and answers held at the gate', show: number, whole: true, series: [['commits_waiting', 'commits waiting'], ['answers_held_per_second', 'answers held per second']] },
  { id: 'sessions', title: 'Sessions', about: 'of clients at this node’s listener', show: number, whole: true, series: [['sessions', 'open'], ['logins_per_second', 'logins per second']] },
];

const spans = { hour: ['Hour', 10, 'every 5 s'], day: ['Day', 60, 'every minute'] };

/** lookAtHistory asks for the history of this node, where what the page has is old. */
export async function lookAtHistory(app) {
  const span = app.span ?? 'hour';
  const past = app.past;
  if (past && past.span === span && past.of === app.me.node && Date.now() - past.asked < spans[span][1] * 1000) return;
  const asked = Date.now();
  const doc = await api.history(span);
  const shift = Date.now() - Date.parse(doc.end); // by the browser's clock, the newest point is of now
  app.past = { ...doc, span, of: app.me.node, asked, end: Math.abs(shift) > 2 * doc.step_seconds * 1000 + 5000 ? Date.now() : Date.parse(doc.end) };
}

/** history is the screen of the last hour and day. */
export function history(app) {
  const span = app.span ?? 'hour';
  const past = app.past?.span === span ? app.past : null;
  const choose = (s) => {
    app.set({ span: s, pointed: null });
    lookAtHistory(app).then(() => app.set({}), (e) => app.failed(e));
  };
  const head = h('section', { class: 'card charts-head' },
    h('div', { class: 'chips', role: 'group', 'aria-label': 'time that is shown' }, Object.entries(spans).map(([s, [label]]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(s === span), onclick: () => choose(s) }, label))),
    h('p', { class: 'quiet' }, past ? said(app, past) : 'Asking this node…'));
  if (!past) return [head, h('div', { class: 'charts' }, charts.slice(0, 4).map((c) => card(c.title, null, skeleton(5))))];
  if (past.points === 0) return [head, card('Nothing is recorded yet', null, h('p', { class: 'blank' }, 'The first point comes within ten seconds of the agent’s start.'))];
  return [head, h('div', { class: 'charts' }, charts.map((c) => drawn(app, c, past)))];
}

function said(app, past) {
  const kept = past.points * past.step_seconds;
  const whole = kept >= (past.span === 'hour' ? 3600 : 86400);
  return [`As ${past.of} measured it, ${spans[past.span][2]}`, whole ? '.' : `; its agent has recorded ${seconds(kept)} so far.`,
    app.old && [' ', sign('warn'), ` The last point is of ${timeOf(past.end)}: the node is not heard.`],
    app.status?.primary && app.status.primary !== past.of && ` Some of it only the primary knows, which is ${app.status.primary} now.`];
}

// The series of a chart that have a value, with names for a person.
function seriesOf(c, past) {
  if (c.each) return past.series.filter((s) => s.name === c.each).map((s) => ({ ...s, label: s.replica }));
  return c.series.map(([name, label]) => ({ ...past.series.find((s) => s.name === name), label })).filter((s) => s.name);
}

function drawn(app, c, past) {
  const series = seriesOf(c, past);
  const title = [h('b', null, c.title), h('span', { class: 'quiet' }, ` ${c.about}`)];
  const frame = (...body) => h('section', { class: 'card chart', 'data-key': c.id }, h('h2', null, title), body);
  if (series.length === 0) {
    const elsewhere = c.primary && app.status?.primary && app.status.primary !== past.of;
    return frame(h('p', { class: 'blank' }, elsewhere ? `The primary knows this: open the console of ${app.status.primary}.` : c.empty ?? 'There is no value in this time.'));
  }
  const at = app.pointed?.chart === c.id ? Math.min(app.pointed.at, past.points - 1) : null;
  const when = (i) => past.end - (past.points - 1 - i + 0.5) * past.step_seconds * 1000;
  const point = (i) => app.set({ pointed: i === null ? null : { chart: c.id, at: Math.max(0, Math.min(past.points - 1, i)) } });
  const value = (s, i) => (s.mean[i] === null ? '–' : c.show(s.mean[i]));
  const newest = (s) => s.mean.findLastIndex((v) => v !== null);
  const text = (i) => `${timeOf(when(i))}: ${series.map((s) => `${s.label} ${value(s, i)}`).join(', ')}`;
  const width = plotWidth();
  return frame(
    h('ul', { class: 'legend' }, series.map((s, n) => h('li', null, h('i', { class: `key s${n % 5} d${Math.floor(n / 5)}` }), s.label, ' ',
      h('b', null, at === null ? value(s, newest(s)) : value(s, at)))), h('li', { class: 'quiet at' }, at === null && !app.old ? 'now' : timeOf(when(at ?? past.points - 1)))),
    h('div', {
      class: 'plot', role: 'slider', tabindex: '0', 'aria-label': `${c.title}, by time`, 'aria-orientation': 'horizontal', 'aria-valuemin': '0', 'aria-valuemax': String(past.points - 1),
      'aria-valuenow': String(at ?? past.points - 1), 'aria-valuetext': text(at ?? past.points - 1),
      onkeydown: (e) => {
        const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: 12, PageDown: -12, Home: -Infinity, End: Infinity }[e.key];
        if (step === undefined && e.key !== 'Escape') return;
        e.preventDefault();
        point(step === undefined ? null : (app.pointed?.chart === c.id ? app.pointed.at : past.points - 1) + step); // keys may come faster than pictures
      },
      onblur: () => at !== null && point(null),
      onpointermove: (e) => point(plot.at(e, past.points)),
      onpointerleave: () => point(null),
    }, plot(c, series, past, width, at)),
    h('details', { class: 'numbers' }, h('summary', null, 'As a table'), h('div', { memo: `${past.span} ${past.end}`, build: () => table(c, series, past, when) })));
}

// table has the numbers behind a chart, thirty rows of them at most, the newest first.
function table(c, series, past, when) {
  const every = Math.ceil(past.points / 30), rows = [];
  for (let end = past.points; end > 0; end -= every) {
    const from = Math.max(0, end - every);
    rows.push(h('tr', null, h('th', { scope: 'row' }, timeOf(when(end - 1))), series.map((s) => {
      const known = s.mean.slice(from, end).filter((v) => v !== null);
      const mean = known.reduce((sum, v) => sum + v, 0) / known.length, most = Math.max(...s.highest.slice(from, end).filter((v) => v !== null));
      return known.length ? [h('td', { class: 'right' }, c.show(mean)), h('td', { class: 'right' }, c.show(most))] : [h('td', { class: 'right' }, '–'), h('td', { class: 'right' }, '–')];
    })));
  }
  return h('div', { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': `${c.title} as a table` }, h('table', { class: 'plain' },
    h('thead', null, h('tr', null, h('th', { scope: 'col' }, `${seconds(every * past.step_seconds)} until`), series.map((s) => [h('th', { scope: 'col', class: 'right' }, `${s.label}, mean`), h('th', { scope: 'col', class: 'right' }, `${s.label}, highest`)]))),
    h('tbody', null, rows)));
}
