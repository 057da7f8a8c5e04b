import { h } from './dom.js';
import { ago, list, seconds, timeOf } from './format.js';
import { failoverButton, foundingButton } from './actions.js';
import { aged, card, role, sign, skeleton, state, table } from './parts.js';
import { replicaTable } from './screens.js';
import { underWayCopies } from './seedings.js';
import { topology } from './topology.js';

/** safe answers whether the data is safe, by the node's judgement. */
export function safe(st) {
  const a = st.availability;
  if (!a.writable) return ['bad', 'No writes now', sentence(a.because, st)];
  if (a.commits_blocked) return ['bad', `Commits wait${a.commits_blocked_seconds ? ` for ${seconds(a.commits_blocked_seconds)}` : ''}`, `${sentence(a.because, st)} What was acknowledged before is safe.`];
  const v = (st.v ?? []).map((m) => m.id);
  if (!st.k) return ['warn', `On ${st.primary} alone`, `No secondary has to have a commit before it is acknowledged.${v.length ? '' : ' None is synchronized.'}`];
  const others = st.k >= v.length ? list(v) : `${st.k} of ${list(v)}`;
  return [a.level === 'healthy' ? 'good' : 'warn', 'Yes', `Every acknowledged commit is on ${st.primary} and on ${others}, flushed.`];
}

/** ready answers whether a failover is possible now. */
export function ready(st) {
  const a = st.availability;
  const next = (a.failures ?? []).find((f) => f.member === st.primary);
  if (a.automatic_failover === 'ready') return ['good', 'Yes, by itself', next?.primary ? `If ${st.primary} fails, ${next.primary} takes over without loss.` : 'A replica takes over without loss.'];
  const why = sentence(a.automatic_failover.replace(/^not ready: /, ''), st);
  return [a.writable ? 'warn' : 'bad', 'Not by itself', why];
}

// sentence ends a text as one, and begins it with a capital unless its first word is the name of a member.
function sentence(text, st) {
  if (!text) return '';
  const name = st.replicas?.some((r) => r.name === text.split(/[^a-z0-9_]/)[0]);
  const t = name ? text : text[0].toUpperCase() + text.slice(1);
  return /[.!?]$/.test(t) ? t : t + '.';
}

const outcomes = {
  SURVIVED: ['good', 'can fail'], BLOCKED: ['warn', 'must not fail: commits would wait'], STOPS: ['bad', 'must not fail: no primary would be left'], DOWN: ['bad', 'does not answer'],
};

// asOf turns an answer of a node that is not heard any more into one about the past: nobody may take it for the present.
function asOf(app, [, short, long]) {
  return ['calm', 'Not known now', `At ${timeOf(app.heard)} ${app.me.node} said: ${short}. ${long}`];
}

const answer = (question, [tone, short, long], more) => h('section', { class: `card answer ${tone}` },
  h('h2', null, question), h('p', { class: 'short' }, sign(tone), short), h('p', { class: 'long' }, long), more);

function failures(st) {
  return h('ul', { class: 'failures', 'aria-label': 'what the failure of each member leads to' }, (st.availability.failures ?? []).map((f) => {
    const [tone, text] = outcomes[f.outcome] ?? ['calm', f.outcome];
    return h('li', { title: f.because ?? '' }, sign(tone), h('b', null, f.member), ` ${text}`);
  }));
}

function happened(events, st) {
  const last = events.findLast((e) => e.kind === 'leadership') ?? events.at(-1);
  const lately = st.availability.problems?.length;
  if (!last) return answer('What happened?', ['calm', 'Nothing known', 'No member that answers remembers an event.']);
  return answer('What happened?', [lately ? 'warn' : 'calm', `${last.node} ${last.what}`, last.because ? sentence(last.because, st) : ''],
    h('p', { class: 'quiet when' }, h('time', { datetime: last.at, title: last.at }, ago(last.at)), ' · ', h('a', { href: '#/events' }, 'all events')));
}

function problems(st) {
  const all = st.availability.problems ?? [];
  if (all.length === 0) return null;
  return h('section', { class: 'card problems' }, h('header', null, h('h2', null, all.length === 1 ? 'One problem' : `${all.length} problems`)),
    h('ul', null, all.map((p) => h('li', null, state(p.severity === 'Critical' ? 'bad' : 'warn', p.severity), h('div', null, !p.finding.startsWith(`${p.target} `) && h('b', null, p.target), ' ', p.finding,
      p.run && h('p', { class: 'run' }, h('span', { class: 'quiet' }, 'next: '), h('code', null, p.run)))))));
}

function lately(app) {
  const list = app.events.filter((e) => e.kind !== 'link').slice(-7).reverse();
  return card('Lately', h('a', { href: '#/events' }, 'all events'),
    list.length ? h('ol', { class: 'lately' }, list.map((e) => h('li', { 'data-key': e.id }, h('time', { datetime: e.at, title: e.at }, timeOf(e.at)), h('div', null, h('b', null, e.node), ' ', e.what, e.because && h('p', { class: 'quiet' }, e.because)))))
      : h('p', { class: 'blank' }, 'Nothing is remembered yet.'));
}

// draft shows nodes that have joined each other, and no group yet.
function draft(app, st) {
  const nodes = (st.replicas ?? []).map((r) => ({ ...r, first: r.name === st.primary, witness: r.availability_mode === 'CONFIGURATION_ONLY' }));
  return [
    h('section', { class: 'card begin' },
      h('h2', null, 'No availability group yet'),
      h('p', null, st.primary ? `${st.primary} has the data and ${st.write_open ? 'takes writes' : 'takes no writes now'}, on its own: nothing is copied, and nothing takes over when it fails.` : 'No node takes writes now.'),
      h('p', { class: 'row' }, foundingButton(app), h('span', { class: 'quiet' }, 'nothing is changed before you have seen the statements'))),
    problems(st),
    h('div', { class: 'two' },
      card(nodes.length === 1 ? 'This node' : 'Nodes that have joined each other', st.postgresql && h('span', { class: 'quiet' }, `PostgreSQL ${st.postgresql}`), table('Nodes', [
        { label: 'Name', cell: (r) => [r.name, r.name === app.me?.node && h('span', { class: 'quiet' }, ' this node')] },
        { label: 'Part', cell: (r) => (r.first ? role('primary') : r.witness ? role('witness') : h('span', { class: 'quiet' }, 'none yet')) },
        { label: 'State', cell: (r) => (r.connected_state === 'CONNECTED' ? state('good', 'answers') : state('bad', 'does not answer')) },
        { label: 'Vote', cell: (r) => (r.voter ? 'votes' : h('span', { class: 'quiet' }, 'none')) },
      ], nodes, 'No node is known yet.')),
      lately(app)),
  ];
}

export function overview(app) {
  const st = app.status;
  if (!st) return [h('div', { class: 'answers' }, [1, 2, 3].map(() => h('section', { class: 'card answer' }, skeleton(3)))), h('section', { class: 'card' }, skeleton(6))];
  if (st.draft) return draft(app, st);
  const now = (a) => (app.old ? asOf(app, a) : a);
  return [
    h('div', { class: 'answers' },
      answer('Is my data safe?', now(safe(st))),
      answer('Can I fail over now?', now(ready(st)), !app.old && [failures(st), h('p', { class: 'row' }, failoverButton(app, null, 'Fail over…'))]),
      happened(app.events, st)),
    problems(st),
    underWayCopies(app),
    h('div', { class: 'two' },
      card('Topology', h('span', { class: 'quiet' }, `epoch ${st.epoch} · ${st.voters} votes · ${st.commit_rule?.toLowerCase()} commit rule`), topology(app)),
      lately(app)),
    card('Replicas', [aged(app, 'coterie.replicas', 'coterie.streams'), h('a', { href: '#/replicas' }, 'details')], replicaTable(app)),
  ];
}
