import { api, Refused } from './api.js';
import { outcome, typed } from './change.js';
import { h } from './dom.js';
import { bytes, seconds, timeOf } from './format.js';
import { sign } from './parts.js';

const steps = {
  asked: 'Asked for', 'hand-over': 'Sessions are held, the old primary hands over', seal: 'The members seal the old epoch', promote: 'The new primary is promoted', lead: 'It leads, and opens', open: 'It takes writes',
};

const candidates = (app) => (app.status.replicas ?? []).filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY' && r.name !== app.status.primary);

/** openFailover opens the dialog, and has the node say what would happen. */
export function openFailover(app, to) {
  const list = candidates(app);
  const target = to ?? list.find((r) => r.synchronization_state === 'SYNCHRONIZED')?.name ?? list[0]?.name;
  app.set({ dialog: { kind: 'failover', title: 'Fail over', to: target } });
  if (target) tryIt(app, target, false);
}

// tryIt asks what a failover would do. An answer to an earlier question is not shown.
async function tryIt(app, to, force) {
  const mine = Symbol('question');
  app.set({ dialog: { ...app.dialog, to, force, type: to, trial: null, refused: null, error: '', mine } });
  const set = (x) => app.dialog?.mine === mine && app.set({ dialog: { ...app.dialog, ...x } });
  try {
    set({ trial: await api.change('failover', { to, dry_run: true, ...(force ? { allow_data_loss: true } : {}) }) });
  } catch (e) {
    app.failed(e);
    set({ refused: e instanceof Refused ? e : new Refused(0, { message: 'This node does not answer.' }) });
  }
}

/** failoverBody returns what the dialog shows: first what would happen, then what happens. */
export function failoverBody(app, d, send, proof) {
  if (d.deed) return { content: progress(app.deeds[d.deed]) };
  const list = candidates(app);
  if (list.length === 0) return { content: h('p', null, 'There is no replica to fail over to.') };
  return {
    verb: d.force ? 'Force the failover' : 'Fail over now', tone: d.force ? 'danger' : '',
    blocked: !d.trial || d.force && d.typed !== d.to,
    submit: (form) => send('failover', { to: d.to, ...(d.force ? { allow_data_loss: true, confirm: d.typed } : {}) }, form),
    content: [
      h('label', { for: 'target' }, 'New primary'),
      h('select', { id: 'target', onchange: (e) => tryIt(app, e.target.value, false) }, list.map((r) => h('option', { value: r.name, selected: r.name === d.to }, `${r.name}, ${r.synchronization_state.toLowerCase()}`))),
      d.trial ? foreseen(app, d) : d.refused ? refused(app, d) : h('p', { class: 'outcome', role: 'status' }, h('i', { class: 'spin' }), h('span', null, 'Asking what would happen…')),
      d.force && d.trial && typed(app, d),
      d.proof && proof(),
    ],
  };
}

function refused(app, d) {
  return [
    h('p', { class: 'outcome bad', role: 'status' }, sign('bad'), h('span', null, d.refused.number ? `Msg ${d.refused.number}: ` : '', d.refused.message)),
    d.refused.hint && h('p', { class: 'quiet' }, d.refused.hint),
    !d.force && [409, 503].includes(d.refused.code) && h('p', null, h('button', { type: 'button', class: 'act risky', onclick: () => tryIt(app, d.to, true) }, 'Force it, and accept losses…')),
  ];
}

function foreseen(app, d) {
  const t = d.trial;
  const known = app.rows('coterie.replicas')?.find((r) => r.name === t.to);
  if (d.force) {
    return h('div', { class: 'warning', role: 'status' }, h('p', null, sign('bad'), h('b', null, ` ${t.to} leads without asking ${t.from || 'anybody'}.`)),
      h('ul', null,
        h('li', null, t.synchronized ? `${t.to} was synchronized when it was heard last: probably nothing acknowledged is lost.` : [`Commits that ${t.to} has not received are lost`, t.behind_bytes === null || t.behind_bytes === undefined ? '; how many is not known.' : `: it was ${bytes(t.behind_bytes)} behind when that was known last.`]),
        known?.estimated_data_loss > 0 && h('li', null, `Estimated: the last ${seconds(known.estimated_data_loss)} of commits.`),
        h('li', null, 'Every session ends.'),
        h('li', null, 'Every other copy stays as it is, suspended, until you have looked at it and resume it.')));
  }
  return h('div', { role: 'status' },
    h('p', { class: 'outcome good' }, sign('good'), h('span', null, `${t.from} hands over to ${t.to}. Nothing that was acknowledged is lost.`)),
    t.waits > 0 && h('p', null, `${count(t.waits, 'session')} ${t.waits === 1 ? 'is' : 'are'} busy and ${t.waits === 1 ? 'is' : 'are'} waited for.`),
    h('p', null, t.ends === 0 ? (t.sessions === 0 && t.waits === 0 ? 'There are no sessions of clients.' : `${count(t.sessions, 'session')} of clients move and keep their connections.`)
      : `${count(t.sessions, 'session')} of clients move; ${t.ends === 1 ? '1 ends' : `${t.ends} end`}:`),
    t.ending.length > 0 && h('div', { class: 'scroll ending', tabindex: '0', role: 'region', 'aria-label': 'sessions that end' }, h('table', { class: 'plain' },
      h('thead', null, h('tr', null, ['Role', 'Database', 'Client', 'Why'].map((x) => h('th', { scope: 'col' }, x)))),
      h('tbody', null, t.ending.map((m, i) => h('tr', { 'data-key': String(i) }, [m.user, m.database, m.client, m.why].map((x) => h('td', null, x))))))),
    t.ends > t.ending.length && h('p', { class: 'quiet' }, `and ${t.ends - t.ending.length} more`));
}

const count = (n, what) => `${n} ${what}${n === 1 ? '' : 's'}`;

function progress(deed) {
  if (!deed) return outcome(deed);
  const last = deed.state === 'running' ? deed.steps?.findLast((s) => s.at) : null; // it has begun, and goes on
  return [
    h('ol', { class: 'steps', 'aria-label': 'steps of the failover' }, (deed.steps ?? []).map((s) => {
      const now = s === last;
      return h('li', { class: now ? 'now' : s.at ? 'done' : '', 'aria-current': now ? 'step' : null }, now ? h('i', { class: 'spin' }) : s.at ? sign('good') : h('i', { class: 'dot' }), h('span', null, steps[s.name] ?? s.name), s.at && h('time', { datetime: s.at }, timeOf(s.at)));
    })),
    outcome(deed),
  ];
}
