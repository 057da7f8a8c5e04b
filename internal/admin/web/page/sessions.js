// Sessions of clients: who is served where, how readers are routed, and what a failover would end.

import { routingButton } from './actions.js';
import { grid } from './columns.js';
import { h, s } from './dom.js';
import { ago, bytes, list, timeOf } from './format.js';
import { inOrder } from './options.js';
import { aged, card, lacking, role, sign, skeleton, state, table } from './parts.js';
import { week } from './week.js';

const view = 'coterie.sessions';
const mostRows = 100;

const count = (rows, is) => rows.reduce((n, r) => n + (is(r) ? 1 : 0), 0);
const sum = (rows, of) => rows.reduce((n, r) => n + of(r), 0);
const readOnly = (r) => r.intent === 'READ_ONLY';
const percent = (part, all) => (all === 0 ? null : Math.floor(100 * part / all));
const quietly = (text) => h('span', { class: 'quiet' }, text);

export function sessions(app) {
  const all = app.rows(view), groups = app.rows('coterie.continuity');
  const missing = lacking(app, view, 'coterie.continuity');
  return [
    h('div', { class: 'tiles' }, all && groups ? tiles(app, all, groups) : [1, 2, 3, 4].map(() => h('section', { class: 'card tile' }, missing ?? skeleton(3)))),
    h('div', { class: 'two' },
      card('Served by', aged(app, view), servedBy(app, all)),
      card('Readers of the last minute', aged(app, 'coterie.routed'), readers(app))),
    card('Routing', aged(app, 'coterie.routes'), lists(app), routes(app)),
    card('What an outage would end', aged(app, 'coterie.continuity'), continuity(app, groups)),
    week(app),
    single(app, all, groups),
  ];
}

const tile = (title, number, ...more) => h('section', { class: 'card tile' }, h('h2', null, title), h('p', { class: 'number' }, number), h('p', { class: 'quiet' }, more));

function tiles(app, all, groups) {
  const total = sum(groups, (g) => g.sessions), readers = all.filter(readOnly);
  const away = count(readers, (r) => r.replica !== app.status?.primary);
  const kept = (of) => percent(sum(groups, (g) => (g[of] === 'ENDS' ? 0 : g.sessions)), total);
  const shown = (n) => (n === null ? '–' : `${n} %`);
  const open = groups.filter((g) => g.open_transaction);
  const again = sum(open, (g) => (g.open_transaction === 'KEPT' ? g.sessions : 0));
  return [
    tile('Sessions of clients', total, `${count(all, (r) => r.state === 'active')} active, ${count(all, (r) => r.state === 'idle')} idle, ${count(all, (r) => r.state === 'idle in transaction')} idle in a transaction`),
    tile('Readers on secondaries', shown(percent(away, readers.length)), readers.length === 0 ? 'no read-only session is open' : away === readers.length ? `all ${away} read-only sessions` : `${away} of ${readers.length} read-only sessions; the others are on the primary`),
    tile('Kept in a planned failover', shown(kept('failover')), total === 0 ? 'there is none to keep' : `${shown(kept('node_loss'))} if the node of their server dies, ${shown(kept('server_loss'))} if PostgreSQL alone does`),
    tile('Open transactions', sum(open, (g) => g.sessions), open.length === 0 ? 'none that would outlive its server' : `${again} would go on at the next primary, the others fail with 40001`),
  ];
}

// traffic returns the bytes per second to and from the clients of each replica, by the last two looks.
function traffic(app, all) {
  const at = app.seen[view], t = app.traffic;
  if (t?.at === at) return t.rates;
  const now = new Map(all.map((r) => [`${r.node} ${r.session_id}`, r]));
  const rates = new Map(), apart = t ? (at - t.at) / 1000 : 0;
  for (const [key, r] of apart > 0.5 ? now : []) {
    const before = t.rows.get(key), x = rates.get(r.replica) ?? [0, 0];
    x[0] += Math.max(0, r.bytes_out - (before?.bytes_out ?? 0)) / apart;
    x[1] += Math.max(0, r.bytes_in - (before?.bytes_in ?? 0)) / apart;
    rates.set(r.replica, x);
  }
  app.traffic = { at, rows: now, rates: apart > 0.5 ? rates : null };
  return app.traffic.rates;
}

// tally says how many there are of each kind, the most first.
function tally(rows, of) {
  const n = new Map();
  for (const r of rows) n.set(of(r), (n.get(of(r)) ?? 0) + 1);
  return [...n].sort((a, b) => b[1] - a[1]).map(([k, v]) => `${k} ${v}`).join(', ') || '–';
}

function servedBy(app, all) {
  const rates = all && traffic(app, all);
  const rate = (r, i) => (rates ? `${bytes(Math.round(rates.get(r.name)?.[i] ?? 0))}/s` : '…');
  const rows = all && (app.status?.replicas ?? []).filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY').map((r) => ({ ...r, of: all.filter((x) => x.replica === r.name) }));
  return table('Served by', [
    { label: 'Replica', cell: (r) => r.name },
    { label: 'Role', cell: (r) => role(r.role) },
    { label: 'Read-write', right: true, cell: (r) => count(r.of, (x) => !readOnly(x)) },
    { label: 'Read-only', right: true, cell: (r) => count(r.of, readOnly) },
    { label: 'Active', right: true, cell: (r) => count(r.of, (x) => x.state === 'active') },
    { label: 'To clients', right: true, cell: (r) => rate(r, 0) },
    { label: 'From clients', right: true, wide: true, cell: (r) => rate(r, 1) },
    { label: 'Through', wide: true, title: 'the node at whose listener the client is', cell: (r) => quietly(tally(r.of, (x) => x.node)) },
    { label: 'Path', wide: true, title: 'carrier of the data: the kernel, an event loop, or goroutines', cell: (r) => quietly(tally(r.of, (x) => x.path ?? 'not known')) },
  ], rows, 'The group has no replicas yet.', lacking(app, view));
}

function readers(app) {
  const rows = app.rows('coterie.routed');
  if (!rows) return lacking(app, 'coterie.routed') ?? skeleton(4);
  const n = sum(rows, (r) => r.readers), routed = sum(rows, (r) => r.routed);
  if (n === 0) return h('p', { class: 'blank' }, 'No reader has logged in within the last minute.');
  const by = new Map();
  const second = (r) => Math.floor(Date.parse(r.at) / 1000);
  for (const r of rows) {
    const x = by.get(second(r)) ?? [0, 0];
    by.set(second(r), [x[0] + r.readers, x[1] + r.routed]);
  }
  const last = Math.max(...by.keys()), high = Math.max(4, ...[...by.values()].map((x) => x[0]));
  const W = 600, H = 112, wide = W / 60, y = (v) => Math.round(v / high * (H - 16) * 10) / 10;
  const bars = [...by].filter(([at]) => at > last - 60).map(([at, [all, away]]) => {
    const x = W - (last - at + 1) * wide + 1;
    return [s('rect', { class: 'away', x, y: H - y(away), width: wide - 2, height: y(away) }), all > away && s('rect', { class: 'home', x: x + 0.5, y: H - y(all), width: wide - 3, height: y(all - away) })];
  });
  const said = `${n} readers logged in; ${percent(routed, n)} % of them went to a secondary.`;
  return [
    h('p', null, said),
    s('svg', { class: 'bars', viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `Readers by second: ${said} At most ${Math.max(...[...by.values()].map((x) => x[0]))} in a second.` }, s('path', { class: 'grid', d: `M0 ${H - 0.5}H${W}M0 ${H - y(high)}H${W}`, 'vector-effect': 'non-scaling-stroke' }), bars),
    h('p', { class: 'legend' }, h('span', null, h('i', { class: 'swatch away' }), 'to a secondary'), h('span', null, h('i', { class: 'swatch home' }), 'to the primary'), h('span', { class: 'quiet at' }, `at most ${high} a second, until ${timeOf(last * 1000)}`)),
  ];
}

// lists tells where readers go while each replica is the primary.
function lists(app) {
  const options = app.rows('coterie.options')?.filter((o) => o.option === 'READ_ONLY_ROUTING_LIST' && o.replica);
  const rows = options && (app.status?.replicas ?? []).filter((r) => r.availability_mode !== 'CONFIGURATION_ONLY').map((r) => ({ ...r, list: options.find((o) => o.replica === r.name) }));
  return table('Where readers go', [
    { label: 'While the primary is', cell: (r) => [r.name, r.name === app.status?.primary && quietly(' now')] },
    { label: 'Readers go to', cell: (r) => inOrder(app, r.list) },
    { label: 'Takes readers as a secondary', wide: true, cell: (r) => (r.allow_connections === 'NO' ? 'no' : r.maintenance ? state('warn', 'not in its maintenance') : 'yes') },
    { label: 'Change', class: 'right', cell: (r) => routingButton(app, r.name) },
  ], rows, 'The group has no replicas yet.', lacking(app, 'coterie.options'));
}

// routes tells where the listener of each node sends sessions now.
function routes(app) {
  const all = app.rows('coterie.routes');
  const rows = all && [...new Set(all.map((r) => r.node))].map((node) => {
    const of = all.filter((r) => r.node === node);
    return { name: node, of, primary: of.find((r) => r.is_primary), to: of.filter((r) => r.list_entry !== null).sort((a, b) => a.list_entry - b.list_entry) };
  });
  const able = (r) => r.is_primary || r.readable;
  return table('Where sessions go now', [
    { label: 'The listener of', cell: (r) => r.name },
    { label: 'Sends writers to', cell: (r) => (r.primary ? (r.primary.healthy ? r.primary.target : state('warn', `${r.primary.target}, which does not answer it`)) : state('bad', 'nobody')) },
    { label: 'Sends readers to', cell: (r) => (r.to.some(able) ? r.to.filter(able).map((t) => t.target).join(', ') : state('warn', 'nobody')) },
    { label: 'Left out', cell: (r) => (r.to.every(able) ? quietly('–') : state('warn', `${list(r.to.filter((t) => !able(t)).map((t) => t.target))}: no readers taken`)) },
    { label: 'To the primary', right: true, wide: true, title: 'readers that were sent to the primary since its agent started', cell: (r) => r.of[0].fell_back },
    { label: 'Passed over', right: true, wide: true, title: 'times that a replica was passed over for coterie.max_lag since its agent started', cell: (r) => r.of[0].lagged },
  ], rows, 'No listener answers.', lacking(app, 'coterie.routes'));
}

const kinds = ['failover', 'node_loss', 'server_loss'];

// continuity adds the sessions of one application and user up over all nodes, those first of which most would end.
function continuity(app, groups) {
  const by = new Map();
  for (const g of groups ?? []) {
    const others = g.application_name === null, key = others ? 'others' : JSON.stringify([g.application_name, g.user_name]);
    const x = by.get(key) ?? { $key: key, application: g.application_name, user: g.user_name, sessions: 0, ends: { failover: 0, node_loss: 0, server_loss: 0 }, why: new Map(), commits: 0, unknown: 0, unknownWhy: new Map() };
    x.sessions += g.sessions;
    if (g.commit_in_doubt) x.commits += g.sessions;
    if (g.commit_in_doubt === 'UNKNOWN') {
      x.unknown += g.sessions;
      if (g.commit_in_doubt_reason) x.unknownWhy.set(g.commit_in_doubt_reason, { n: (x.unknownWhy.get(g.commit_in_doubt_reason)?.n ?? 0) + g.sessions });
    }
    for (const k of kinds) if (g[k] === 'ENDS') x.ends[k] += g.sessions;
    const why = g[`${kinds.find((k) => g[k] === 'ENDS')}_reason`];
    if (why) x.why.set(why, { n: (x.why.get(why)?.n ?? 0) + g.sessions, statement: g.statement ?? x.why.get(why)?.statement });
    by.set(key, x);
  }
  const rows = groups && [...by.values()].sort((a, b) => b.ends.node_loss - a.ends.node_loss || b.sessions - a.sessions).slice(0, 100);
  const share = (k) => (r) => part(r.sessions - r.ends[k], r.sessions);
  return table('Continuity', [
    { label: 'Application', cell: (r) => r.application || quietly(r.application === null ? 'all others' : 'no name') },
    { label: 'User', cell: (r) => r.user ?? '–' },
    { label: 'Sessions', right: true, cell: (r) => r.sessions },
    { label: 'Planned failover', title: 'share that is kept', cell: share('failover') },
    { label: 'Its node dies', title: 'share that is kept', cell: share('node_loss') },
    { label: 'PostgreSQL dies', title: 'share that is kept', cell: share('server_loss') },
    { label: 'Most frequent reason', class: 'now', cell: (r) => reason(r.why) },
    { label: 'COMMIT in doubt', wide: true, title: 'share that would hear the truth of a COMMIT whose answer is lost with the server; the others get 08007', cell: (r) => (r.commits === 0 ? '–' : [part(r.commits - r.unknown, r.commits), r.unknown > 0 && quietly([' ', [...r.unknownWhy].sort((a, b) => b[1].n - a[1].n)[0]?.[0] ?? 'the reason is not told'])]) },
  ], rows, 'There are no sessions of clients.', lacking(app, 'coterie.continuity'));
}

function reason(why) {
  const [text, { statement } = {}] = [...why].sort((a, b) => b[1].n - a[1].n)[0] ?? [];
  return text ? [text, statement && [' ', h('code', null, statement)]] : quietly('all are kept');
}

// part shows how many of all are kept, as a number and as a bar.
function part(kept, all) {
  const share = all ? kept / all : 1;
  return h('span', { class: `part ${share === 1 ? 'good' : share === 0 ? 'bad' : 'warn'}` },
    s('svg', { viewBox: '0 0 48 8', 'aria-hidden': 'true' }, s('rect', { class: 'whole', width: 48, height: 8, rx: 2 }), share > 0 && s('rect', { class: 'some', width: Math.max(2, Math.round(48 * share)), height: 8, rx: 2 })), `${Math.floor(100 * share)} %`);
}

const filters = { '': ['All', () => true], write: ['Read-write', (r) => !readOnly(r)], read: ['Read-only', readOnly], active: ['Active', (r) => r.state === 'active'], open: ['Idle in a transaction', (r) => r.state === 'idle in transaction'], ends: ['Would end', (r) => kinds.some((k) => r[k] === 'ENDS')], doubt: ['COMMIT would get 08007', (r) => r.commit_in_doubt === 'UNKNOWN'] };

const fates = { KEPT: ['good', 'kept'], LIKELY: ['good', 'likely kept'], ENDS: ['bad', 'ends'] };

const fate = (of) => (r) => (fates[r[of]] ? h('span', { title: r[`${of}_reason`] }, state(...fates[r[of]])) : '–');

function single(app, all, groups) {
  const shown = app.sessionsShown ?? '', find = (app.sessionsFind ?? '').toLowerCase();
  const found = all?.filter((r) => filters[shown][1](r) && (!find || [r.user_name, r.database_name, r.client, r.replica, r.node].some((x) => String(x).toLowerCase().includes(find))));
  const rows = found?.slice(0, mostRows).map((r) => ({ ...r, $key: `${r.node}/${r.session_id}` }));
  const g = grid(app, 'sessions', 'Sessions', [
    { id: 'user', label: 'User', cell: (r) => r.user_name },
    { id: 'database', label: 'Database', cell: (r) => r.database_name },
    { id: 'client', label: 'Client', class: 'mono', cell: (r) => r.client },
    { id: 'intent', label: 'Intent', cell: (r) => (readOnly(r) ? 'read-only' : 'read-write') },
    { id: 'node', label: 'Through', cell: (r) => r.node },
    { id: 'replica', label: 'Served by', cell: (r) => r.replica },
    { id: 'state', label: 'State', cell: (r) => r.state },
    { id: 'since', label: 'Since', cell: (r) => h('time', { datetime: r.since, title: r.since }, ago(r.since)) },
    { id: 'failover', label: 'Planned failover', cell: fate('failover') },
    { id: 'node_loss', label: 'Node dies', cell: fate('node_loss') },
    { id: 'server_loss', label: 'PostgreSQL dies', off: true, cell: fate('server_loss') },
    { id: 'transaction', label: 'Its transaction', off: true, cell: (r) => (r.open_transaction ? h('span', { title: r.open_transaction_reason }, r.open_transaction === 'KEPT' ? 'goes on' : 'fails with 40001') : '–') },
    { id: 'commit', label: 'COMMIT in doubt', off: true, title: 'what its client would hear of a COMMIT whose answer is lost with the server', cell: (r) => (r.commit_in_doubt ? h('span', { title: r.commit_in_doubt_reason }, state(...(r.commit_in_doubt === 'PROVED' ? ['good', 'the truth'] : ['warn', `08007: ${r.commit_in_doubt_reason ?? 'the reason is not told'}`]))) : '–') },
    { id: 'statement', label: 'Statement', off: true, title: 'for which it is not kept', cell: (r) => (r.statement ? h('code', null, r.statement) : '–') },
    { id: 'path', label: 'Path', off: true, cell: (r) => r.path ?? '–' },
    { id: 'backend', label: 'Backend', off: true, cell: (r) => r.backend ?? '–' },
    { id: 'pid', label: 'Process', off: true, right: true, cell: (r) => r.pid },
    { id: 'out', label: 'To the client', off: true, right: true, cell: (r) => bytes(r.bytes_out) },
    { id: 'in', label: 'From the client', off: true, right: true, cell: (r) => bytes(r.bytes_in) },
    { id: 'tls', label: 'TLS', off: true, cell: (r) => r.tls ?? 'none' },
    { id: 'identity', label: 'Certificate of', off: true, cell: (r) => r.tls_identity ?? '–' },
    { id: 'entry', label: 'Place in the list', off: true, right: true, cell: (r) => r.list_entry ?? '–' },
  ], rows, all?.length ? 'No session is of this kind.' : 'There are no sessions of clients.', lacking(app, view), rows && `${app.seen[view]} ${shown} ${find}`);
  const listed = all?.length ?? 0, total = sum(groups ?? [], (x) => x.sessions);
  return card('Sessions', [aged(app, view), g.chooser],
    h('div', { class: 'sift' }, h('div', { class: 'chips', role: 'group', 'aria-label': 'kinds of sessions' }, Object.entries(filters).map(([k, [label, is]]) => h('button', { type: 'button', class: 'chip', 'aria-pressed': String(k === shown), onclick: () => app.set({ sessionsShown: k }) }, label, all && quietly(` ${count(all, is)}`)))),
      h('input', { type: 'search', id: 'find', 'aria-label': 'find sessions by user, database, client or node', placeholder: 'Find…', maxlength: '63', oninput: (e) => app.set({ sessionsFind: e.target.value }) })),
    h('div', { class: 'dense' }, g.table),
    (found?.length > mostRows || total > listed) && h('p', { class: 'quiet' }, sign('calm'), found?.length > mostRows ? ` The first ${mostRows} of ${found.length} are shown.` : '', total > listed ? ` Of ${total} sessions ${listed} are listed: 500 of each node at most.` : ''));
}
